"""What the service says, as data and pure functions. No I/O, no clock, no randomness."""
