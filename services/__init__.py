"""Use cases, process managers and workers; everything that they need is passed in.

What must stay true: whatever decides folds a stream, every effect carries its fence token, and drivers of the outside stay in
`services/adapters` and `services/store`.
"""
