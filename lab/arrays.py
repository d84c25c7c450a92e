"""Arrays under test: guard zones around them, poison in them, and proof that inputs stayed.

A payload lies between two guard zones of a known pattern inside one byte buffer; rows of a strided
argument lie apart with guards in the gaps. After a launch every guard byte must be what it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.errors import SpecError
from dsv4.runtime.device import Device
from dsv4.spec import U8, Arg

GUARD_BYTES = 1024
_GUARD_PATTERN = 0x3C
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Damage:
    """Guard bytes that changed: before the payload, after it, and between rows."""

    before: int
    after: int
    between: int

    @property
    def any(self) -> bool:
        """Whether any guard byte changed."""
        return bool(self.before or self.after or self.between)


class Guarded:
    """One device array with its guards.

    array: the view that a kernel receives. pad: extra elements between rows.
    """

    def __init__(
        self, device: Device, arg: Arg, shape: tuple[int, ...], *, pad: int = 0, guard: bool = True
    ) -> None:
        """Allocate and set the guards; the payload is uninitialised."""
        self.arg = arg
        self.shape = shape
        self._device = device
        size = arg.fmt.size_bytes
        rows = shape[0] if len(shape) > 1 else 1
        self._row_bytes = size * int(np.prod(shape[1:] if len(shape) > 1 else shape))
        self._step_bytes = self._row_bytes + pad * size
        self._payload_bytes = self._step_bytes * rows
        self._guard_bytes = GUARD_BYTES if guard else 0
        # Without guards the allocation ends where the payload ends, so that a memory checker sees
        # an overrun of one byte.
        slack = _ALIGNMENT if guard else 0
        self._buffer = device.empty((self._payload_bytes + 2 * self._guard_bytes + slack,), U8)
        offset = -(device.address(self._buffer) + self._guard_bytes) % _ALIGNMENT if guard else 0
        self._start = self._guard_bytes + offset
        self._buffer[...] = _GUARD_PATTERN
        flat = self._buffer[self._start : self._start + self._payload_bytes]
        padded = flat.view(arg.fmt.storage)
        if pad and len(shape) < 2:
            raise SpecError(f"{arg.name}: only arrays with rows can be padded, not {list(shape)}")
        # Cutting the rows' tails off leaves rows that reshape without a copy.
        cut = padded.reshape(rows, -1)[:, : self._row_bytes // size] if pad else padded
        self.array: Any = cut.reshape(shape)

    def store(self, content: np.ndarray) -> None:
        """Copy stored bits into the payload."""
        self.array[...] = self._device.to_device(content)

    def poison(self, byte: int) -> None:
        """Fill the payload with one repeated byte; the guards stay."""
        pattern = np.full(self.arg.fmt.size_bytes, byte, np.uint8).view(self.arg.fmt.storage)[0]
        self.array[...] = pattern

    def bits(self) -> np.ndarray:
        """A contiguous copy of the payload's stored bits on the host."""
        return np.ascontiguousarray(self._device.to_numpy(self.array))

    def copy(self) -> Any:
        """A contiguous copy of the payload on its device, as unsigned integers: bytes compare."""
        words = np.dtype(f"u{self.arg.fmt.size_bytes}")
        return self.array.copy(order="C").view(words)

    def damage(self) -> Damage:
        """Guard bytes that are not what they were."""
        raw = self._device.to_numpy(self._buffer)
        low, high = self._start, self._start + self._payload_bytes
        changed = raw != _GUARD_PATTERN
        between = 0
        if self._step_bytes > self._row_bytes:
            gaps = changed[low:high].reshape(-1, self._step_bytes)[:, self._row_bytes :]
            between = int(gaps.sum())
        return Damage(int(changed[:low].sum()), int(changed[high:].sum()), between)


def differing(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Which elements of two arrays have other bytes; None when shape or type differ already."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return None
    words = np.dtype(f"u{a.itemsize}")
    left, right = (np.ascontiguousarray(x).view(words) for x in (a, b))
    return np.asarray(left != right).reshape(a.shape)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are the same to the byte: -0 is not +0, and a NaN is itself."""
    found = differing(a, b)
    return found is not None and not found.any()
