"""The purchase saga's context: shows and seats, reservations, the saga, its ledger, and what is told to others."""
