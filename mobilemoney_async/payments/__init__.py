"""Payments that are remembered: creates that are never repeated, found again after a crash, shared by a fleet."""
