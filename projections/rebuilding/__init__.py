"""Making a projection's rows again from nothing, while it is being served and events keep arriving."""
