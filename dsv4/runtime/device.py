"""What a backend offers, and which one an array or a name belongs to.

Engine, drafters and workbench are written once against `Device`: NumPy arrays on the host backend,
CuPy arrays on CUDA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dsv4.errors import DeviceError
from dsv4.spec import Format, Geometry, KernelSpec


class Graph(Protocol):
    """A recorded sequence of launches."""

    def replay(self) -> None:
        """Run the recorded launches again, in order."""


class Device(Protocol):
    """A place where kernels run."""

    @property
    def backend(self) -> str:
        """Which backend: "host" or "cuda"."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def arch(self) -> str:
        """The target of its builds, such as "sm_90a", or "host"."""

    @property
    def xp(self) -> Any:
        """The array module: numpy or cupy."""

    def empty(self, shape: Sequence[int], fmt: Format) -> Any:
        """An uninitialised array of that format's storage type."""

    def zeros(self, shape: Sequence[int], fmt: Format) -> Any:
        """An array of that format's storage type, all bits 0."""

    def contiguous(self, view: Any) -> Any:
        """A copy of a view of one of this device's arrays, its elements one after the other."""

    def to_device(self, array: np.ndarray) -> Any:
        """A copy of a NumPy array on this device."""

    def to_numpy(self, array: Any) -> np.ndarray:
        """A copy of a device array on the host; waits for the work that makes it."""

    def fetch(self, array: Any) -> Callable[[], np.ndarray]:
        """A call that gives a copy of the array on the host, as it is after the work sent so far.

        The call waits for that copy and for nothing that is sent later.
        """

    def write(self, array: Any, values: np.ndarray) -> None:
        """Copy host values into an array of this device, after the work launched before."""

    def receive(self, array: Any, source: Any, sender: Device) -> None:
        """Copy another device's array into one of this device, in the order of both streams."""

    def reach(self, peer: Device) -> None:
        """Let kernels of this device read and write the peer's memory. Errors: Refusal."""

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total) bytes of this device's memory."""

    def address(self, array: Any) -> int:
        """The address of the first element."""

    def bind(
        self,
        spec: KernelSpec,
        constants: Mapping[str, int],
        geometry: Geometry,
        values: Sequence[Any],
    ) -> Callable[[], None]:
        """Build or fetch the module and return a call that launches it with these values."""

    @property
    def launches_early(self) -> bool:
        """Whether launches can begin before the one in front has ended."""

    def require_dependent_launch(self) -> None:
        """Errors: Refusal where launches cannot begin before the one in front has ended."""

    def synchronize(self) -> None:
        """Wait for everything launched so far. Errors: DeviceError, LaunchError."""

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """Arrays' own operators inside the `with` run on this device, in order with its launches.

        Of several devices another one may be current: it would reach this one's memory, in no
        order with what was launched here.
        """

    def stream(self) -> contextlib.AbstractContextManager[Any]:
        """A new stream, current inside the `with`; waits for it at the end."""

    def capture(self) -> contextlib.AbstractContextManager[Graph]:
        """Record launches inside the `with` instead of running them; replay afterwards."""

    def run_beside(self, branches: Sequence[Sequence[Callable[[], None]]]) -> None:
        """Run each branch in order, branches side by side where the backend can.

        All start after what was sent before; what is sent next waits for all. No branch may use
        what another one writes.
        """

    def gemm_bf16(self, w: Any, x: Any, out: Any) -> None:
        """out[m, n] = x[m, k] w[n, k]^T, bf16 in, f32 accumulation and result (library GEMM)."""

    def time_s(self, work: Callable[[], None], repeats: int) -> list[float]:
        """Seconds of each repeat: device events on CUDA, wall clock on host."""


def open_device(backend: str = "auto", *, index: int = 0, mode: str = "run", seed: int = 0) -> Any:
    """The device for "host", "cuda", or whichever is there ("auto").

    mode and seed concern the host backend. Errors: DeviceError when CUDA was asked for and is
    missing, with what to do.
    """
    if backend == "auto":
        backend = "cuda" if cuda_problem() is None else "host"
    if backend == "host":
        from dsv4.runtime.hostdevice import HostDevice

        return HostDevice(mode=mode, seed=seed)
    if backend == "cuda":
        problem = cuda_problem()
        if problem is not None:
            raise DeviceError(
                f"backend cuda was asked for, but {problem}\n"
                "  use --backend host to run the same sources on the CPU, or see: dsv4-lab doctor"
            )
        from dsv4.runtime.cuda import CudaDevice

        return CudaDevice(index)
    raise DeviceError(f"no backend {backend!r}; there are auto, host and cuda")


def cuda_problem() -> str | None:
    """Why CUDA cannot be used here, in a clause; None when it can. Imports CuPy."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported ({error})"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy raises its own class per library
        return f"the CUDA driver does not answer ({error})"
    return None if count else "no CUDA device was found"


def device_of(array: Any) -> Device:
    """The device an array lives on: the current host device, or the array's GPU."""
    if isinstance(array, np.ndarray):
        from dsv4.runtime.hostdevice import current_host_device

        return current_host_device()
    if type(array).__module__.partition(".")[0] == "cupy":
        from dsv4.runtime.cuda import cuda_device

        return cuda_device(array.device.id)
    raise DeviceError(
        f"an array of type {type(array).__module__}.{type(array).__name__} was passed;"
        " kernels take numpy.ndarray (host) or cupy.ndarray (cuda)"
    )


@contextlib.contextmanager
def null_stream() -> Iterator[None]:
    """The host backend's stream: launches are synchronous already."""
    yield None
