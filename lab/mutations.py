"""Planted faults of an engine: each changes what launches are given, or leave, inside a `with`.

A step sends single launches, or fused ones that do the work of several; a fault is planted in both,
so that a gate says the same of it on every backend.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dsv4.checkpoint.config import FINE_RATIO, ModelConfig
from dsv4.engine.rows import Schedule
from dsv4.engine.tape import Tape
from dsv4.spec import Kernel, KernelSpec


@dataclass(frozen=True, slots=True)
class Asked:
    """A launch that was asked for. go: sends it, with other values for arguments of these names."""

    tape: Tape
    go: Callable[..., None]

    def then(self, name: str, change: Callable[[], None]) -> None:
        """Change arrays in place between this launch and the next one, whenever both are sent.

        A graph may hold it. So it computes on the device, and makes no array: memory that a graph
        writes would belong to somebody else by the next replay.
        """
        device = self.tape.device

        def run() -> None:
            with device.active():
                change()

        self.tape.call(name, run)


@dataclass(frozen=True, slots=True)
class Change:
    """What happens in place of a launch.

    names: declared arguments that it is given by keyword, so that their order does not matter.
    """

    names: tuple[str, ...]
    run: Callable[..., None]


Planted = tuple[tuple[str, ...], Change]
"""Patterns of kernels' names, and what is done to their launches."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The fault of that name is in every launch asked for inside the `with`."""
    planted = MUTATIONS[name]
    original = Tape.launch

    def launch(self: Tape, kernel: Kernel, *arrays: Any, **named: Any) -> None:
        change = next((c for some, c in planted if meant(some, kernel.spec.name)), None)
        if change is None:
            original(self, kernel, *arrays, **named)
            return
        given = given_to(kernel.spec, arrays, named)

        def go(**changed: Any) -> None:
            original(self, kernel, **{**given, **changed})

        with self.device.active():
            change.run(Asked(self, go), **{n: given[n] for n in change.names})

    Tape.launch = launch  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tape.launch = original  # type: ignore[method-assign]


def meant(patterns: tuple[str, ...], kernel: str) -> bool:
    """Whether a kernel's name matches one of the patterns."""
    return any(fnmatch.fnmatchcase(kernel, pattern) for pattern in patterns)


def given_to(spec: KernelSpec, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """What a launch was given, by declared names: arrays, scalars and options."""
    given = {o.name: o.default for o in spec.options}
    given |= dict(zip((a.name for a in spec.inputs), arrays, strict=False))
    outs = [a.name for a in spec.arrays if a.role == "out"]
    return given | {outs[0] if n == "out" and len(outs) == 1 else n: v for n, v in named.items()}


def _instead(make: Callable[[Tape, Any], Any], *names: str) -> Change:
    """Other arrays in place of those of these names, which no launch writes."""

    def run(asked: Asked, **given: Any) -> None:
        asked.go(**{name: make(asked.tape, array) for name, array in given.items()})

    return Change(names, run)


def _one_ulp(tape: Tape, gain: Any) -> Any:
    moved = gain.copy()
    moved[:1] = (gain[:1].view(np.int32) + 1).view(np.float32)
    return moved


def _swapped(tape: Tape, codes: Any) -> Any:
    return (codes >> 4) | (codes << 4)


def _times(factor: float) -> Callable[[Tape, Any], Any]:
    return lambda tape, array: array * np.float32(factor)


def _first_slot(tape: Tape, order: Any) -> Any:
    return tape.device.to_device(np.zeros(order.shape, np.int32))


def _none(tape: Tape, sink: Any) -> Any:
    return tape.device.to_device(np.full(sink.shape, -np.inf, np.float32))


# Places and rules of step_rows: dsv4.engine.fused_front reads and writes them in these orders.
_PLACE = {field.name: place for place, field in enumerate(fields(Schedule))}
_RING, _RATIO = 0, 2


def _wrong_slot(asked: Asked, ring_rows: Any, ring: int) -> None:
    asked.go()

    def move() -> None:
        rows = ring_rows
        rows += 1
        rows %= ring

    asked.then("wrong slot", move)


def _wrong_slots(asked: Asked, places: Any, rules: Any) -> None:
    _wrong_slot(asked, places[:, _PLACE["ring_rows"]], rules[:, _RING : _RING + 1])


def _seen_late(asked: Asked, blocks: Any, positions: Any, ratio: int) -> None:
    asked.go()
    if ratio:
        xp = asked.tape.device.xp
        asked.then("seen late", lambda: xp.floor_divide(positions, ratio, out=blocks))


def _all_seen_late(asked: Asked, places: Any, ids: Any, rules: Any, window: int) -> None:
    """The counts, and the lists, which the same launch makes of them."""
    asked.go()
    device = asked.tape.device
    ratios = rules[:, _RATIO : _RATIO + 1]
    divisors, some = device.xp.maximum(ratios, 1), device.xp.minimum(ratios, 1)
    columns = device.to_device(np.arange(ids.shape[2] - window, dtype=np.int32))
    late, kept = places[:, 0].copy(), ids[:, :, window:].copy()

    def drop() -> None:
        late[...] = places[:, _PLACE["positions"]]
        counts = late
        counts //= divisors
        counts *= some
        places[:, _PLACE["blocks"]] = late
        device.xp.less(columns, late[:, :, None], out=kept)
        listed = ids[:, :, window:]
        listed += 1
        listed *= kept
        listed -= 1

    asked.then("seen late", drop)


def _stale_row(asked: Asked, raw_rows: Any) -> None:
    """raw_rows [..., T]: the last row has the place of the one before it."""
    asked.go()
    if raw_rows.shape[-1] > 1:
        before = raw_rows[..., -2:-1].copy()

        def repeat() -> None:
            before[...] = raw_rows[..., -2:-1]
            raw_rows[..., -1:] = before

        asked.then("stale row", repeat)


def _stale_rows(asked: Asked, places: Any) -> None:
    _stale_row(asked, places[:, _PLACE["raw_rows"]])


def _short_window(asked: Asked, ids: Any) -> None:
    asked.go()

    def drop() -> None:
        ids[..., 0] = -1

    asked.then("short window", drop)


def _not_turned_back(asked: Asked, inverse: int) -> None:
    if not inverse:
        asked.go()


def _unsigned(asked: Asked, weights: Any) -> None:
    asked.then("unsigned", lambda: asked.tape.device.xp.absolute(weights, out=weights))
    asked.go()


_COMPRESSORS = ("compressor_pool", "compressor_pool_at", "finish_blocks")


def _ape(factor: float) -> tuple[Planted, ...]:
    of_one, of_two = (
        _instead(_times(factor), *names) for names in (("ape",), ("ape", "index_ape"))
    )
    return (_COMPRESSORS, of_one), (("finish_indexed",), of_two)


# A fault: where it is planted, among single launches and among fused ones.
MUTATIONS: Mapping[str, tuple[Planted, ...]] = {
    "one ulp in the gains": (
        (("rms_norm", "rms_norm_f32"), _instead(_one_ulp, "w")),
        (("hyper_post_pre_norm*", "hyper_step*"), _instead(_one_ulp, "gain")),
        (("finish_window",), _instead(_one_ulp, "q_gain", "kv_gain")),
        (("finish_blocks",), _instead(_one_ulp, "q_gain", "kv_gain", "gain")),
        (("finish_indexed",), _instead(_one_ulp, "q_gain", "kv_gain", "gain", "index_gain"))),
    "swapped nibbles": (
        (("linear_fp4_*_gate_up", "experts_*_gate_up"),
         _instead(_swapped, "gate_codes", "up_codes")),
        (("linear_fp4*", "dequant_mxfp4", "dequant_nvfp4", "experts_*_down"),
         _instead(_swapped, "codes"))),
    "ring slot off by one": (
        (("schedule",), Change(("ring_rows", "ring"), _wrong_slot)),
        (("step_rows",), Change(("places", "rules"), _wrong_slots))),
    "block seen late": (
        (("schedule",), Change(("blocks", "positions", "ratio"), _seen_late)),
        (("step_rows",), Change(("places", "ids", "rules", "window"), _all_seen_late))),
    "stale pending row": (
        (("schedule",), Change(("raw_rows",), _stale_row)),
        (("step_rows",), Change(("places",), _stale_rows))),
    "window one short": (
        (("index_lists_window", "step_rows"), Change(("ids",), _short_window)),),
    "missing ape": _ape(0.0),
    "ape added twice": _ape(2.0),
    "expert counted twice": (
        (("combine_shared", "linear_fp4_*_down", "experts_*_down"),
         _instead(_first_slot, "order")),),
    "no sink": (
        (("attention_sink", "attention_sink_f32", "attention_sink_join*", "attention_decode"),
         _instead(_none, "sink")),),
    # A fused step turns heads back inside attention_decode, by the table that turns its queries: no
    # argument is the way back alone. The gates that name this fault run single launches.
    "inverse rotation missing": ((("rope",), Change(("inverse",), _not_turned_back)),),
    "unsigned index weights": (
        (("indexer_score*", "indexer_select"), Change(("weights",), _unsigned)),),
}  # fmt: skip


def cannot_matter(name: str, config: ModelConfig, count: int) -> str:
    """Why that fault changes nothing that `count` tokens of a model meet; empty where it may.

    Only what the model's sizes decide: whether a gate sees a fault is for the gate to show. Names
    of faults that are not planted in launches are known as well.
    """
    ratios = [ratio for ratio in config.compress_ratios if ratio]
    if name in ("block seen late", "missing ape", "ape added twice"):
        if not ratios:
            return "no layer compresses"
        if count < min(ratios):
            return f"{count} tokens end no block of {min(ratios)}"
    if name == "stale pending row" and not ratios:
        return "no layer compresses"
    if name == "unsigned index weights":
        blocks = count // FINE_RATIO if FINE_RATIO in ratios else 0
        if blocks <= config.index_topk:
            return f"{count} tokens end {blocks} blocks, and an indexer chooses {config.index_topk}"
    if name == "early ring write" and count <= config.window_size:
        return f"{count} tokens do not go past a window of {config.window_size}"
    return ""
