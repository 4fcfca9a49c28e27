"""The database: engine, threads, schema, clock, leases and encryption. Knows no payment rules."""
