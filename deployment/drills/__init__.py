"""Drills: real processes on embedded services, killed and stopped on purpose, judged by what the log says afterwards."""
