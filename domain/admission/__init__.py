"""The admission aggregate: its commands and events (`messages`) and its decisions (`aggregate`)."""
