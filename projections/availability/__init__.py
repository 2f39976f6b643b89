"""The read model of seats: what can be had, as far as it is known."""
