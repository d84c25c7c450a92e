"""The GPU that grids are made for."""

MULTIPROCESSORS = 132
"""Of an H200."""


def whole_waves(blocks: int) -> int:
    """As many blocks with work, and idle ones, that every multiprocessor gets equally many.

    Where blocks of two kernels share the card, a grid that leaves a few multiprocessors idle has
    two of the next kernel's blocks put on each of them; that kernel then takes twice its time, and
    so does every other one behind it. Idle blocks that leave before the others make room for the
    next kernel, too: that helps products, which wait for memory, and does not help experts. Grids
    below half a wave are no streams, and in those above two waves blocks follow each other anyway.
    """
    if not MULTIPROCESSORS // 2 < blocks <= 2 * MULTIPROCESSORS:
        return blocks
    return -(-blocks // MULTIPROCESSORS) * MULTIPROCESSORS
