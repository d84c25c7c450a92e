"""The SM clock before and after a timing: read, never set."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dsv4.runtime.device import Device
from lab.record.nvidia_smi import sm_clock_mhz

Timings = TypeVar("Timings")
_STANDS_S: Final = 5.0
# By device: when it was read last, and what it was.
_LAST: dict[int, tuple[float, float | None]] = {}


@dataclass(frozen=True, slots=True)
class Clock:
    """MHz before and after; None where nothing tells. source: what was asked."""

    before_mhz: float | None
    after_mhz: float | None
    source: str

    @property
    def steady_mhz(self) -> float | None:
        """The clock to count cycles with: the mean of both."""
        if self.before_mhz is None or self.after_mhz is None:
            return None
        return (self.before_mhz + self.after_mhz) / 2

    def to_json(self) -> dict[str, Any]:
        """The `clock` of a result."""
        return {
            "before_mhz": self.before_mhz,
            "after_mhz": self.after_mhz,
            "source": self.source,
        }


NO_CLOCK = Clock(None, None, "none")


def around(device: Device, work: Callable[[], Timings]) -> tuple[Timings, Clock]:
    """What the work returns, and the clock before and after it.

    nvidia-smi takes as long as a whole timing, so what it said at the end of the last one stands
    for the beginning of the next within a few seconds.
    """
    last = _LAST.get(id(device))
    if last is not None and time.monotonic() - last[0] < _STANDS_S:
        before_mhz = last[1]
    else:
        before_mhz, _ = read_mhz(device)
    done = work()
    after_mhz, source = read_mhz(device)
    _LAST[id(device)] = (time.monotonic(), after_mhz)
    return done, Clock(before_mhz, after_mhz, source)


def read_mhz(device: Device) -> tuple[float | None, str]:
    """The SM clock now and what told it: NVML's Python package, else nvidia-smi; None on host."""
    if device.backend != "cuda":
        return None, "none"
    bus = _bus_id(device)
    handle = _nvml_handle(bus)
    if handle is not None:
        import pynvml

        return float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)), "nvml"
    found = sm_clock_mhz(bus)
    return found, "none" if found is None else "nvidia-smi"


def _bus_id(device: Device) -> str:
    index = int(getattr(device, "index", 0))
    return str(device.xp.cuda.Device(index).pci_bus_id)


@functools.cache
def _nvml_handle(bus: str) -> Any:
    """NVML's handle of the card at that address; None without the package or its driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByPciBusId(bus)
    except Exception:  # a missing package, library or permission: nvidia-smi is asked then
        return None
