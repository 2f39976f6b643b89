"""The ground: pure decisions and values.

Nothing here does I/O, reads a clock or draws a random number; instants and identities come in as arguments. A crash leaves nothing
of this layer behind, because it holds nothing.
"""
