"""A GPU that is none: the host backend under the name of a card.

Graphs, rotation, roofs and clocks run on it where there is no card. Its seconds mean nothing.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from dsv4.runtime.hostdevice import HostDevice

MULTIPROCESSORS = 2


class PretendedGpu(HostDevice):
    """Says that it is a GPU with two multiprocessors; everything else is the host's."""

    backend = "cuda"
    index = 0

    def __init__(self) -> None:
        super().__init__()
        self.name = "no card"
        self.arch = "sm_90a"
        runtime = SimpleNamespace(
            getDeviceProperties=lambda index: {"multiProcessorCount": MULTIPROCESSORS}
        )
        card = lambda index: SimpleNamespace(pci_bus_id="0000:00:04.0")  # noqa: E731
        cuda = SimpleNamespace(runtime=runtime, Device=card)
        self.xp: Any = SimpleNamespace(ndarray=np.ndarray, cuda=cuda)
