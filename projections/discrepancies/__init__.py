"""The read model of discrepancies: what the reconciler found, repaired, and asks an operator about."""
