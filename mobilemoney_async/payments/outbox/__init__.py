"""Queue of payments, and its dispatcher."""
