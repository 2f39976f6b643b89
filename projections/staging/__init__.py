"""Staging: the published features as rows in ClickHouse, for programs that ask by instrument and time."""
