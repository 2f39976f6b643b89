"""The audit: everything that is stored and served, checked against the events, and the events against their hashes and seals."""
