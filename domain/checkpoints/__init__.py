"""The checkpoints aggregate: its commands and events (`messages`) and its decisions (`aggregate`)."""
