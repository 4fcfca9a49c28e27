"""The library inside other people's programs: a backend without a framework, and what frameworks need around it."""
