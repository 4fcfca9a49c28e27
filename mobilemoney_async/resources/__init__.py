"""What a merchant does with the service."""
