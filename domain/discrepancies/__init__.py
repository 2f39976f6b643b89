"""The discrepancy aggregate: its commands and events (`messages`) and its decisions (`aggregate`)."""
