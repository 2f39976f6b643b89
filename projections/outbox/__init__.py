"""The outbox: the ordered queue of work, generic in kind and key."""
