"""One call, from method to wire and back."""
