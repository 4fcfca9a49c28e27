"""Changes of payments, and their readers."""
