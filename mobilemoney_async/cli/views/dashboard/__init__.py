"""`mobilemoney dashboard`: read-only page of a store (extras `sandbox` and `store`)."""
