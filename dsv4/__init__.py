"""The engine and runtime of dsv4-lab: kernels, their declarations, and what runs them."""

__version__ = "0.1.0"
