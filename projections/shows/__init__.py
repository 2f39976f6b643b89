"""The read model of shows."""
