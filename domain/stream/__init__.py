"""The stream worker without I/O: what each record is, what it moves, and what ticks come of it."""
