"""Batches of payouts that a second person approves."""
