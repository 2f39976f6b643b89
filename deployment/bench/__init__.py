"""Benchmarks: ours against something else, side by side in one run, so that a ratio means the same on any machine.

Each benchmark is a module of this package with `run(repeats, scale, report) -> dict` (see `registry.py`); the form of what it
returns is in `figures.py`. What must stay true: medians of at least three repeats, contenders interleaved within each repeat,
the ratio and not the absolute figure compared with the aim, and a missed aim said with by how much. No test asserts a time.
A crash half-way leaves temporary folders that the embedded server's supervisor removes.
"""
