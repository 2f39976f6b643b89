"""Leases: the inline guard row and the read model of who holds what."""
