"""Resources: collections, disbursements, transactions, users."""
