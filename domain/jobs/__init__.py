"""The job aggregate: long work for operators (`messages`, `aggregate`), and the slot that keeps one at a time (`slot`)."""
