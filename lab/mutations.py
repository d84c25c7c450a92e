"""Planted faults of an engine: each changes what single launches are given, inside a `with`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from dsv4.engine.tape import Tape
from dsv4.spec import Kernel

Go = Callable[..., None]
"""Sends the launch with these arrays and names."""
Change = Callable[[Tape, Go, tuple[Any, ...], dict[str, Any]], None]
"""What happens in place of a launch. Values are computed when it runs, not when it is bound."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The fault of that name is in every launch asked for inside the `with`."""
    kernels, change = MUTATIONS[name]
    original = Tape.launch

    def launch(self: Tape, kernel: Kernel, *arrays: Any, **named: Any) -> None:
        def go(*given: Any, **names: Any) -> None:
            original(self, kernel, *given, **names)

        if kernel.spec.name.startswith(kernels):
            change(self, go, arrays, named)
        else:
            go(*arrays, **named)

    Tape.launch = launch  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tape.launch = original  # type: ignore[method-assign]


def _one_ulp(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
    x, gain = arrays
    moved = gain.copy()
    moved[:1] = (gain[:1].view(np.int32) + 1).view(np.float32)
    go(x, moved, **named)


def _swapped(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
    codes, *rest = arrays
    go((codes >> 4) | (codes << 4), *rest, **named)


def _wrong_slot(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
    go(*arrays, **named)
    rows, ring = named["ring_rows"], named["ring"]

    def move() -> None:
        rows[...] = (rows + 1) % ring

    tape.call("wrong slot", move)


def _seen_late(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
    go(*arrays, **named)
    blocks, positions, ratio = named["blocks"], named["positions"], named["ratio"]

    def late() -> None:
        if ratio:
            blocks[...] = positions // ratio

    tape.call("seen late", late)


def _stale_row(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
    go(*arrays, **named)
    rows = named["raw_rows"]

    def repeat() -> None:
        if len(rows) > 1:
            rows[-1:] = rows[-2:-1].copy()

    tape.call("stale row", repeat)


def _short_window(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
    go(*arrays, **named)
    ids = named["out"]

    def drop() -> None:
        ids[:, 0] = -1

    tape.call("short window", drop)


def _times_ape(factor: float) -> Change:
    def change(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
        kv, score, ape, *rest = arrays
        go(kv, score, ape * np.float32(factor), *rest, **named)

    return change


def _twice(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
    *given, order, shared = arrays
    first = tape.device.to_device(np.zeros(order.shape, np.int32))
    go(*given, first, shared, **named)


def _no_sink(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
    *rest, sink = arrays
    none = tape.device.to_device(np.full(sink.shape, -np.inf, np.float32))
    go(*rest, none, **named)


def _not_turned_back(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
    if not named.get("inverse"):
        go(*arrays, **named)


def _unsigned(tape: Tape, go: Go, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
    weights = arrays[2]

    def clear() -> None:
        weights[...] = abs(weights)

    tape.call("unsigned", clear)
    go(*arrays, **named)


# A fault: how the names of the kernels begin, and what is done to their launches.
MUTATIONS: Mapping[str, tuple[str | tuple[str, ...], Change]] = {
    "one ulp in the gains": ("rms_norm", lambda tape, go, a, n: (
        _one_ulp(tape, go, a, n) if len(a) == 2 else go(*a, **n))),
    "swapped nibbles": (("linear_fp4", "dequant_mxfp4", "dequant_nvfp4"), _swapped),
    "ring slot off by one": ("schedule", _wrong_slot),
    "block seen late": ("schedule", _seen_late),
    "stale pending row": ("schedule", _stale_row),
    "window one short": ("index_lists_window", _short_window),
    "missing ape": ("compressor_pool", _times_ape(0.0)),
    "ape added twice": ("compressor_pool", _times_ape(2.0)),
    "expert counted twice": (
        ("combine_shared", "linear_fp4_mx_down", "linear_fp4_nv_down"), _twice),
    "no sink": (("attention_sink_join", "attention_sink"), lambda tape, go, a, n: (
        go(*a, **n) if "power" in n else _no_sink(tape, go, a, n))),
    "inverse rotation missing": ("rope", _not_turned_back),
    "unsigned index weights": ("indexer_score", _unsigned),
}  # fmt: skip
