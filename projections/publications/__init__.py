"""The read model of publications: every result that is visible."""
