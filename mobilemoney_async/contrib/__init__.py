"""The library inside web applications: a backend without a framework, and adapters for frameworks."""
