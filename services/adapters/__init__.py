"""Adapters to the outside: the only place in the services, beside the store, where drivers are imported."""
