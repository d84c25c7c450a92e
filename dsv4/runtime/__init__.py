"""Compile, load and launch the kernels on either backend."""
