"""The store against the service's list."""
