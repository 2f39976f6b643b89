"""Contenders: other people's job queues on PostgreSQL, a hand-written loop, and how each is driven the same way.

The `*_jobs.py` files are not imported by anything of ours: `driver.py` loads one in the contender's own environment.
"""
