"""The event store: mapper, recorder, the append function, group commit, and the queue's reservations."""
