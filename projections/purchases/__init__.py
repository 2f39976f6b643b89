"""The read model of purchases: every saga in its present state."""
