"""A GPU whose kernels record when they begin and when their wait ends, inside graphs as well."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import cupy
import numpy as np

from dsv4.errors import LaunchError
from dsv4.runtime.cuda import CudaDevice, loaded
from dsv4.runtime.nvrtc import Cubin
from dsv4.runtime.probes import BUFFER
from dsv4.spec import KernelSpec

BEGUN: Final = 0
WAITED: Final = 1
"""Places of a record: where a kernel lets the next one start, and behind its wait."""

RECORD: Final = np.dtype([("nanoseconds", "<u8"), ("place", "<u4"), ("unused", "<u4")])
_CAPACITY: Final = 8192  # records of one module


class TimedDevice(CudaDevice):
    """One GPU with kernels built to record (common/timeline.cuh)."""

    def __init__(self, index: int = 0) -> None:
        """Errors: DeviceError when there is no such device."""
        super().__init__(index)
        self._known: set[str] = set()  # cubins
        self._recorders: list[tuple[Any, Any]] = []  # of a module: its symbol, room for records

    def build(self, spec: KernelSpec, constants: Mapping[str, int]) -> Cubin:
        """The recording cubin of this kernel's source."""
        cubin = super().build(spec, {**constants, "LAB_TIMELINE": 1})
        if (path := str(cubin.path)) not in self._known:
            self._known.add(path)
            self._watch(path)
        return cubin

    def forget(self) -> None:
        """Start anew: what was recorded is gone."""
        with self.active():
            for symbol, room in self._recorders:
                head = np.zeros(1, BUFFER)
                head[0] = (0, _CAPACITY, room.data.ptr)
                symbol.copy_from_host(head.ctypes.data, BUFFER.itemsize)
        self.synchronize()

    def records(self) -> np.ndarray:
        """What was recorded since `forget`, by time. Errors: LaunchError where room was short."""
        self.synchronize()
        found = [np.zeros(0, RECORD)]
        head = np.zeros(1, BUFFER)
        with self.active():
            for symbol, room in self._recorders:
                symbol.copy_to_host(head.ctypes.data, BUFFER.itemsize)
                count = int(head["count"][0])
                if count > _CAPACITY:
                    raise LaunchError(
                        f"{count} launches of one source were recorded\n"
                        f"  there is room for {_CAPACITY}\n  in dsv4.runtime.timed\n"
                        "  forget the records more often"
                    )
                found.append(cupy.asnumpy(room).view(RECORD)[:count])
        every = np.concatenate(found)
        return every[np.argsort(every["nanoseconds"], kind="stable")]

    def _watch(self, path: str) -> None:
        """Nothing for a module that does not wait: it has no symbol to record through."""
        with self.active(), contextlib.suppress(cupy.cuda.driver.CUDADriverError):
            symbol = loaded(self.index, path).get_global("lab_timeline")
            room = cupy.zeros(_CAPACITY * RECORD.itemsize, cupy.uint8)
            self._recorders.append((symbol, room))
