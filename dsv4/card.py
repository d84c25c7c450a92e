"""The GPU that grids are made for."""

MULTIPROCESSORS = 132
"""Of an H200."""

_ROOM_BYTES = [227 * 1024]


def room_bytes() -> int:
    """Shared memory that a block can have: an H200's, or that of a smaller card in use."""
    return _ROOM_BYTES[0]


def fit(limit_bytes: int) -> None:
    """From now on blocks have at most so much: a card that gives no more is in use."""
    _ROOM_BYTES[0] = min(_ROOM_BYTES[0], limit_bytes)
