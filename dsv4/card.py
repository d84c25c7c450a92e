"""The GPU that grids are made for."""

MULTIPROCESSORS = 132
"""Of an H200."""
