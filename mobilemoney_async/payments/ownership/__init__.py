"""Whose is this transaction? Matching, evidence, unmatched transactions, comparison after a restore."""
