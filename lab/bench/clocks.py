"""The SM clock before and after a timing: read, never set."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from dsv4.runtime.device import Device
from lab.record.nvidia_smi import sm_clock_mhz


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
