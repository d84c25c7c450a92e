"""Float64 NumPy twins: the specification of every kernel. Imports NumPy only."""
