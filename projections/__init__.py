"""Events in, read models out; each projection with one position in the log.

What must stay true: a read model is a pure function of the events up to its position, and the position commits together with the
rows. Anything here may be thrown away and rebuilt.
"""
