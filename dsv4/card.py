"""The GPU that grids are made for."""

MULTIPROCESSORS = 132
"""Of an H200."""

AT_ONCE = 4 * MULTIPROCESSORS
"""Blocks of a launch, at most, that may begin before the launch in front of it has ended."""
