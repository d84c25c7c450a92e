"""The layout of probe records, as cuda/common/probe.cuh writes them on both backends."""

import numpy as np

RECORD = np.dtype([("stage", "<u4"), ("unused", "<u4"), ("index", "<i8"), ("value", "<f8")])
"""One recorded value: hash of the stage's name, index, value."""

BUFFER = np.dtype([("count", "<u8"), ("capacity", "<u8"), ("records", "<u8")])
"""The symbol `lab_probe`: values met, room, and the address of the records."""


def stage_number(name: str) -> int:
    """The 32-bit FNV-1a hash of a stage's name, as the kernel's record holds it."""
    number = 2166136261
    for byte in name.encode():
        number = (number ^ byte) * 16777619 & 0xFFFFFFFF
    return number
