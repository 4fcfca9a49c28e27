"""Contract of the service, as data and pure functions. No I/O, no clock, no randomness."""
