"""The read model of checkpoints: one row per committed epoch of a STREAM run."""
