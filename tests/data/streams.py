"""Streams of batches as tests read them."""


def built(stream):
    """Build each batch of an endless stream at once: (batch, position after it)."""
    return ((make(), after) for make, after in stream)
