"""The first launch of the engine's own forward pass whose kernel leaves its contract.

Two passes over the same tokens, through prompt and steps. In the free one every launch gets what
the launches before it made. In the forced one every launch is judged on the reference's inputs:
its outputs are held against its float64 oracle by the kernel's contract, and then replaced by the
oracle's values, rounded once. So a launch's added error is its own, and what the free pass has
beyond it is inherited. A wrong argument is given to kernel and oracle alike; that kind of fault is
`model-diff --subject engine --against oracle`'s to find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from dsv4.engine.engine import Engine
from dsv4.engine.switches import resolve_arms
from dsv4.errors import Refusal, StateError
from dsv4.runtime.device import Device
from dsv4.spec import Contract, Within
from lab.cases import Case
from lab.compare.judge import Judgement, judge
from lab.compare.pair import pair
from lab.debug.forward import Bisection, Tap, worst_of
from lab.debug.watched_device import Call, Places, WatchedDevice, places_of
from lab.engine_run import SWITCHES
from lab.oracles import reference
from oracle.blocks import pack_e2m1, unpack_e2m1
from oracle.formats import FORMATS, decode

_LIBRARY: Final = "gemm_bf16"
_PRODUCT: Final[Contract] = Within("dot", "a library sums in any order", depth="K")
Values = dict[str, np.ndarray]


@dataclass
class _Free:
    """Keeps what every launch made, by its place."""

    device: Device
    places: Places
    made: dict[str, Values] = field(default_factory=dict)

    def launch(self, call: Call, run: Callable[[], None]) -> None:
        place = _place_of(self.places, self.device, call)
        run()
        self.made[place] = {
            a.name: _numbers(_contiguous(self.device, call.arrays[a.name]), a.fmt.name)
            for a in call.spec.outputs
        }

    def product(self, w: Any, x: Any, out: Any, run: Callable[[], None]) -> None:
        place = self.places.place((self.device.address(w),), _LIBRARY)
        run()
        self.made[place] = {"out": self.device.to_numpy(out).astype(np.float64)}


@dataclass(frozen=True, slots=True)
class _Part:
    """One output as numbers: the kernel's, the reference's, and what the reference changed of it.

    changed: a mask for arrays that are updated in place, whose other elements say nothing.
    """

    name: str
    got: np.ndarray
    want: np.ndarray
    changed: np.ndarray | None
    use: float


@dataclass
class _Forced:
    """Judges every launch on the reference's inputs and puts the reference's outputs in place."""

    device: Device
    places: Places
    free: Mapping[str, Values]
    taps: list[Tap] = field(default_factory=list)
    broken: Case | None = None

    def launch(self, call: Call, run: Callable[[], None]) -> None:
        spec, device = call.spec, self.device
        place = _place_of(self.places, device, call)
        inputs = {a.name: _contiguous(device, call.arrays[a.name]) for a in spec.inputs}
        expected = reference(spec, inputs, call.shape)
        run()
        parts = []
        for arg in spec.outputs:
            array, ref = call.arrays[arg.name], expected[arg.name]
            both = pair(_contiguous(device, array), ref.value, arg.fmt.name, arg.axes)
            verdict = judge(spec.contract[arg.name], both, ref.magnitude, call.shape)
            bits = pack_e2m1(both.ref_bits) if both.packed > 1 else both.ref_bits
            array[...] = device.to_device(bits)
            changed = _changed(inputs.get(arg.name), bits) if both.packed == 1 else None
            parts.append(_Part(arg.name, both.got, both.rounded, changed, _use(verdict)))
        self._keep(place, spec.name, parts)
        if self.broken is None and self.taps[-1].use > 1:
            axes = {k: v for k, v in call.shape.items() if k not in call.named}
            content: dict[str, Any] = {**axes, **call.named, **inputs}
            self.broken = Case(place, **content)

    def product(self, w: Any, x: Any, out: Any, run: Callable[[], None]) -> None:
        device = self.device
        place = self.places.place((device.address(w),), _LIBRARY)
        left, right = (decode(_contiguous(device, a), "bf16") for a in (x, w))
        run()
        both = pair(_contiguous(device, out), left @ right.T, "f32", ("M", "N"))
        magnitude = np.abs(left) @ np.abs(right).T
        verdict = judge(_PRODUCT, both, magnitude, {"K": int(x.shape[1])})
        out[...] = device.to_device(both.ref_bits)
        self._keep(place, "", [_Part("out", both.got, both.rounded, None, _use(verdict))])

    def _keep(self, place: str, kernel: str, parts: list[_Part]) -> None:
        use = max(p.use for p in parts)
        added = max(_relative(p, p.got) for p in parts)
        mine = self.free.get(place)
        inherited = math.nan if mine is None else max(_relative(p, mine[p.name]) for p in parts)
        self.taps.append(Tap(len(self.taps), place, kernel, inherited, added, use))


def watched_engine(
    folder: Path,
    device: Device,
    *,
    law: str = "engine",
    switches: Mapping[str, str | None] | None = None,
    max_seq: int | None = None,
) -> Engine:
    """The engine of a checkpoint folder on a watched device, with the arms of a law.

    Graphs are off, because a replay shows no launch. Errors: Refusal for a law that the engine has
    no arms for, and as `Engine.load`.
    """
    if law not in SWITCHES:
        raise Refusal(
            f"the engine was asked for the law {law}\n  it has arms for {', '.join(SWITCHES)}\n"
            "  in lab.debug.engine_forward\n  choose one of these, or --subject oracle"
        )
    arms = resolve_arms(**{**SWITCHES[law], **(switches or {}), "graphs": "off"})
    watched: Any = WatchedDevice(device)
    return Engine.load(folder, [watched], max_seq=max_seq, arms=arms)


@dataclass(frozen=True, slots=True)
class Broken:
    """The first broken launch with the inputs that it had, ready to be run again."""

    kernel: str
    case: Case


def bisect_engine(
    engine: Engine,
    samples: Sequence[np.ndarray],
    *,
    steps: int = 0,
    until: str = "",
    tell: Callable[[int], None] = lambda samples: None,
) -> tuple[Bisection, Broken | None]:
    """(every launch's inherited and added error, the worst of all samples; the first broken one).

    steps: how many of a sample's tokens follow the prompt as decode steps. until: the last launch
    to look at, or its beginning. tell: called with 1 after each sample. The engine must have been
    loaded on `WatchedDevice`s, without graphs.
    Errors: StateError for another engine or tokens that do not fit; SpecError when kernel
    and oracle do not fit each other.
    """
    found: list[list[Tap]] = []
    broken: dict[str, Case] = {}
    for tokens in samples:
        taps, case = _sample(engine, tokens, steps)
        ends = [t.number for t in taps if until and t.name.startswith(until)]
        found.append(taps[: ends[0] + 1] if ends else taps)
        if case is not None:
            broken.setdefault(case.name, case)
        tell(1)
    result = worst_of(found)
    first = result.first
    case = broken.get(first.name) if first is not None else None
    return result, Broken(first.kernel, case) if first is not None and case is not None else None


def _sample(engine: Engine, tokens: np.ndarray, steps: int) -> tuple[list[Tap], Case | None]:
    watched = _watched(engine)
    free = _Free(watched.device, places_of(engine))
    _pass(engine, watched, free, tokens, steps)
    forced = _Forced(watched.device, places_of(engine), free.made)
    _pass(engine, watched, forced, tokens, steps)
    return forced.taps, forced.broken


def _pass(
    engine: Engine, watched: WatchedDevice, watcher: _Free | _Forced, tokens: np.ndarray, steps: int
) -> None:
    state = engine.alloc_decode_state()
    prompt = max(1, len(tokens) - steps)
    watched.watcher = watcher
    try:
        engine.prefill_with_cache(tokens[:prompt], state)
        for number, token in enumerate(tokens[prompt:], 1):
            watcher.places.before = f"step{number}."
            engine.decode_step(int(token), state)
    finally:
        watched.watcher = None


def _watched(engine: Engine) -> WatchedDevice:
    device: Any = engine.last.device
    if not isinstance(device, WatchedDevice) or any(s.device is not device for s in engine.stages):
        raise StateError(
            "a forward pass was to be bisected\n"
            f"  the engine runs on {', '.join(s.device.name for s in engine.stages)}, unwatched\n"
            "  in lab.debug.engine_forward\n  open it with watched_engine"
        )
    return device


def _place_of(places: Places, device: Device, call: Call) -> str:
    addresses = [device.address(call.arrays[a.name]) for a in call.spec.inputs]
    return places.place(addresses, call.spec.name)


def _contiguous(device: Device, array: Any) -> np.ndarray:
    return np.ascontiguousarray(device.to_numpy(array))


def _numbers(bits: np.ndarray, fmt: str) -> np.ndarray:
    if fmt == "e2m1x2":
        bits, fmt = unpack_e2m1(bits), "e2m1"
    return decode(bits, fmt) if fmt in FORMATS else bits.astype(np.float64)


def _use(verdict: Judgement) -> float:
    """Error over bound; a broken promise that no bound measures is beyond every bound."""
    return verdict.bound_use if verdict.passed or verdict.bound_use > 1 else math.inf


def _changed(before: np.ndarray | None, after: np.ndarray) -> np.ndarray | None:
    if before is None:
        return None
    changed = before.view(f"u{before.itemsize}") != after.view(f"u{after.itemsize}")
    return np.asarray(changed) if changed.any() else None


def _relative(part: _Part, got: np.ndarray) -> float:
    """The relative L2 error of an output; NaN in both is no error."""
    want = part.want
    if got.shape != want.shape:
        return math.nan
    if part.changed is not None:
        got, want = got[part.changed], want[part.changed]
    with np.errstate(invalid="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        error = np.where(same, 0.0, got - want)
    scale = float(np.linalg.norm(want[np.isfinite(want)]))
    return float(np.linalg.norm(error)) / (scale or 1.0)
