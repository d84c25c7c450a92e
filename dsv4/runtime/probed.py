"""Launches a kernel built with its probes and brings their records home, on either backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv4.errors import LaunchError
from dsv4.runtime.device import Device
from dsv4.runtime.probes import BUFFER, RECORD
from dsv4.runtime.sources import cuda_root
from dsv4.spec import Geometry, KernelSpec

PROBES = {"LAB_PROBE": 1}


@dataclass
class ProbedDevice:
    """A device on which a bound kernel is built with probes; `records` holds the last launch's.

    capacity: how many records are kept; `met` counts all. Pass it to `prepare(..., device=...)`.
    """

    device: Device
    capacity: int
    records: np.ndarray = field(default_factory=lambda: np.zeros(0, RECORD))
    met: int = 0

    @property
    def xp(self) -> Any:
        """The array module of the device."""
        return self.device.xp

    @property
    def name(self) -> str:
        """What people call the device."""
        return self.device.name

    def address(self, array: Any) -> int:
        """The address of the first element."""
        return self.device.address(array)

    def bind(
        self,
        spec: KernelSpec,
        constants: Mapping[str, int],
        geometry: Geometry,
        values: Sequence[Any],
    ) -> Callable[[], None]:
        """A call that launches the probed build and fills `records`, waiting for it to end."""
        launch = _on_cuda if self.device.backend == "cuda" else _on_host

        def run() -> None:
            built = {**constants, **PROBES}
            self.records, self.met = launch(
                self.device, spec, built, geometry, values, self.capacity
            )

        return run


def _on_host(
    device: Any,
    spec: KernelSpec,
    constants: Mapping[str, int],
    geometry: Geometry,
    values: Sequence[Any],
    capacity: int,
) -> tuple[np.ndarray, int]:
    from dsv4.runtime.host import build

    module = build(cuda_root() / f"{spec.family}.cu", defines=constants, mode=device.mode)
    return module.launch_probed(
        spec.symbol,
        capacity=capacity,
        grid=geometry.grid,
        block=geometry.block,
        shared_bytes=geometry.shared_bytes,
        args=list(values),
        seed=device.seed,
        cluster=geometry.cluster,
    )


def _on_cuda(
    device: Any,
    spec: KernelSpec,
    constants: Mapping[str, int],
    geometry: Geometry,
    values: Sequence[Any],
    capacity: int,
) -> tuple[np.ndarray, int]:
    """The symbol `lab_probe` of the module is filled before the launch and read after it."""
    import cupy

    cubin = device.build(spec, constants)
    with cupy.cuda.Device(device.index):
        module = cupy.RawModule(path=str(cubin.path))
        try:
            symbol = module.get_global("lab_probe")
        except cupy.cuda.driver.CUDADriverError as error:
            raise LaunchError(
                f"{spec.name}: probes were asked for, but its build has none ({error})\n"
                f"  add PROBE lines to cuda/{spec.family}.cu"
            ) from None
        room = cupy.zeros(max(1, capacity) * RECORD.itemsize, cupy.uint8)
        head = np.zeros(1, BUFFER)
        head[0] = (0, capacity, room.data.ptr)
        symbol.copy_from_host(head.ctypes.data, BUFFER.itemsize)
        function = module.get_function(spec.symbol)
        if geometry.shared_bytes > function.max_dynamic_shared_size_bytes:
            function.max_dynamic_shared_size_bytes = geometry.shared_bytes
        function(geometry.grid, geometry.block, tuple(values), shared_mem=geometry.shared_bytes)
        device.synchronize()
        symbol.copy_to_host(head.ctypes.data, BUFFER.itemsize)
        met = int(head["count"][0])
        kept = cupy.asnumpy(room)[: min(met, capacity) * RECORD.itemsize].view(RECORD)
    return kept[np.argsort(kept, order=("stage", "index"), kind="stable")], met
