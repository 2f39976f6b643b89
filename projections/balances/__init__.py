"""The read model of the ledger's balances."""
