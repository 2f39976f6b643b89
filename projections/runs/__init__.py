"""The read model of runs."""
