"""Creates under idempotency keys, and their attempts."""
