"""NVIDIA's tools, run on the kernels' own cases."""
