"""Records of payments: state machine, journal, queries, the account's own store."""
