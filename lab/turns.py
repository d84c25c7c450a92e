"""Turns on a GPU that several worker processes share.

One process at a time copies, launches and times there, while the others compute their oracles on
the CPU: a timing then never sees another worker's launches. The lock is a file, so that a worker
which dies gives its turn back.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dsv4.runtime.device import Device


@contextlib.contextmanager
def turn(device: Device) -> Iterator[None]:
    """Hold this device alone among the processes that ask; returns its unused memory at the end.

    A host device is never shared: workers have their own arrays and time nothing.
    """
    if device.backend == "host":
        yield
        return
    import fcntl

    with _lock_file(device).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
            device.synchronize()
        finally:
            # The pool keeps freed blocks, and the next process cannot see that they are free.
            device.xp.get_default_memory_pool().free_all_blocks()
            fcntl.flock(file, fcntl.LOCK_UN)


def _lock_file(device: Device) -> Path:
    address = device.xp.cuda.Device(getattr(device, "index", 0)).pci_bus_id
    name = f"dsv4-lab-{os.getuid()}-{address.replace(':', '-')}.turn"
    return Path(tempfile.gettempdir()) / name
