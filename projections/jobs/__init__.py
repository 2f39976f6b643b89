"""Jobs, for operators: one row per job."""
