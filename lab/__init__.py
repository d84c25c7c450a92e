"""The workbench: runs kernels against their oracles and keeps the record."""
