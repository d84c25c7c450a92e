"""Layers shared by targets and drafters, as launches on one device: f32 rows in, f32 rows out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv4.kernels.argmax import argmax
from dsv4.kernels.island_dots import island_dots_bf16_f32
from dsv4.kernels.lm_head import lm_head_f32
from dsv4.kernels.movement import (
    movement_add,
    movement_embed,
    movement_place,
    movement_scatter,
    movement_take,
)
from dsv4.kernels.quant_linear import quant_linear_q4, quant_linear_q8
from dsv4.kernels.rms_norm import rms_norm
from dsv4.kernels.rope_neox import rope_neox
from dsv4.kernels.swiglu import swiglu
from dsv4.runtime.device import Device
from dsv4.runtime.launch import prepare
from dsv4.spec import BF16, F32, I32, Format, Kernel


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """A weight [N,K] on a device: bf16 bits, or codes and scales of 32 columns each.

    fmt: "bf16", "q8_0" or "q4_0".
    """

    fmt: str
    rows: int
    columns: int
    data: Any
    scales: Any = None


@dataclass(slots=True)
class Held:
    """Arrays that are made once and come again in the same order after each `rewind`."""

    arrays: list[Any] = field(default_factory=list)
    taken: int = 0

    def rewind(self) -> None:
        """Begin with the first one again."""
        self.taken = 0

    def take(self, device: Device, shape: Sequence[int], fmt: Format) -> Any:
        """The next array, made when there is none yet."""
        if self.taken == len(self.arrays):
            self.arrays.append(device.empty(shape, fmt))
        self.taken += 1
        return self.arrays[self.taken - 1]


@dataclass(frozen=True, slots=True)
class Ops:
    """Launches on one device. Every product adds in an order that does not depend on its rows.

    held: where results lie, when the same launches will be made again; None for new arrays.
    """

    device: Device
    held: Held | None = None

    def run(self, kernel: Kernel, *inputs: Any, **named: Any) -> None:
        """One checked launch."""
        prepare(kernel.spec, *inputs, device=self.device, **named).run()

    def empty(self, *shape: int) -> Any:
        """An uninitialised f32 array."""
        return self._result(shape, F32)

    def zeros(self, *shape: int) -> Any:
        """An f32 array of zeros."""
        array = self.empty(*shape)
        array[...] = 0
        return array

    def ints(self, numbers: Sequence[int] | np.ndarray) -> Any:
        """An i32 array on the device."""
        return self.device.to_device(np.asarray(numbers, np.int32))

    def vector(self, values: np.ndarray) -> Any:
        """An f32 array on the device."""
        return self.device.to_device(np.ascontiguousarray(values, np.float32))

    def bits(self, values: np.ndarray) -> Any:
        """Stored bits on the device, whatever their type."""
        return self.device.to_device(np.ascontiguousarray(values))

    def linear(self, w: WeightMatrix, x: Any) -> Any:
        """x w^T. [T,K] -> [T,N]."""
        y = self.empty(len(x), w.rows)
        if w.fmt == "bf16":
            self.run(island_dots_bf16_f32, x, w.data, out=y)
        else:
            kernel = quant_linear_q8 if w.fmt == "q8_0" else quant_linear_q4
            self.run(kernel, x, w.data, w.scales, out=y)
        return y

    def head(self, w: WeightMatrix, x: Any) -> Any:
        """Logits of every row. [T,K] -> [T,V]."""
        y = self.empty(len(x), w.rows)
        self.run(lm_head_f32, x, w.data, out=y)
        return y

    def embed(self, table: Any, ids: Any) -> Any:
        """Rows of a bf16 table, widened. [T] -> [T,D]."""
        y = self.empty(len(ids), table.shape[1])
        self.run(movement_embed, table, ids, out=y)
        return y

    def norm(self, x: Any, gain: Any, eps: float) -> Any:
        """RMS norm over the last axis, times the gain."""
        rows = x.reshape(-1, x.shape[-1])
        y = self.empty(*rows.shape)
        self.run(rms_norm, rows, gain, out=y, eps=eps)
        return y.reshape(x.shape)

    def rotate(self, x: Any, table: Any, positions: Any) -> Any:
        """The heads of x rotated by their rows' positions, in place; gives x."""
        self.run(rope_neox, x=x, table=table, positions=positions)
        return x

    def add(self, x: Any, to: Any) -> None:
        """to += x."""
        self.run(movement_add, x.reshape(-1), y=to.reshape(-1))

    def swiglu(self, gate: Any, up: Any) -> Any:
        """silu(gate) * up, [T,D]."""
        y = self.empty(*gate.shape)
        self.run(swiglu, gate, up, out=y, limit=0.0)
        return y

    def mlp(self, gate: WeightMatrix, up: WeightMatrix, down: WeightMatrix, n: Any) -> Any:
        """(silu(n Wg^T) * n Wu^T) Wd^T. [T,D]."""
        return self.linear(down, self.swiglu(self.linear(gate, n), self.linear(up, n)))

    def argmax(self, rows: Any, out: Any = None) -> Any:
        """The first largest element's index of every row, i32 on the device."""
        out = self._result((len(rows),), I32) if out is None else out
        self.run(argmax, rows, out=out)
        return out

    def columns(self, x: Any, first: int, count: int) -> Any:
        """Some columns of wider rows, without gaps. [T,S] -> [T,C]."""
        if first == 0 and count == x.shape[1]:
            return x
        y = self.empty(len(x), count)
        self.run(movement_take, x, out=y, offset=first)
        return y

    def put(self, rows: Any, into: Any, at: Any) -> None:
        """Rows [T,...] written over those of [S,...] at i32 places on the device."""
        flat = into.reshape(len(into), -1)
        self.run(movement_scatter, rows.reshape(len(rows), -1), at, y=flat)

    def place(self, x: Any, into: Any, first: int) -> None:
        """x [T,C] written over columns first.. of wider rows [T,S]."""
        self.run(movement_place, x, y=into, offset=first)

    def _result(self, shape: Sequence[int], fmt: Format) -> Any:
        if self.held is None:
            return self.device.empty(shape, fmt)
        return self.held.take(self.device, shape, fmt)


def bf16_matrix(ops: Ops, bits: np.ndarray) -> WeightMatrix:
    """A matrix of stored bf16 bits on the device."""
    return WeightMatrix("bf16", bits.shape[0], bits.shape[1], ops.bits(bits.astype(BF16.storage)))
