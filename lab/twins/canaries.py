"""NaN and infinities planted one at a time: how far each may reach, as a law per kernel and input.

A law says which part of an output may see the planted element. There the kernel must give what the
float64 oracle gives: NaN, an infinity or a number in the same places, integers exactly. Everywhere
else the bytes must be those of a launch without it. So a NaN neither spreads nor gets lost.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4 import registry
from dsv4.spec import Arg, KernelSpec
from lab.cases import Case, cases, inputs_of, scalars_of
from lab.oracles import reference
from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.canary_laws import LAWS, Law
from lab.twins.canary_laws_drafters import DRAFTER_LAWS
from lab.twins.canary_laws_fused import FUSED_LAWS
from oracle.formats import FORMATS, decode, encode

EVERY_LAW = {**LAWS, **FUSED_LAWS, **DRAFTER_LAWS}

# What is planted, by the bits that a format has for it.
_VALUES = {"nan": np.nan, "+inf": np.inf, "-inf": -np.inf}
_CODES = {"e4m3": {"nan": 0x7F, "-nan": 0xFF}, "ue8m0": {"nan": 0xFF}}


@dataclass(frozen=True, slots=True)
class _Planted:
    """One canary: the case's inputs without it and with it, where it is, and what may see it."""

    spec: KernelSpec
    named: Mapping[str, Any]
    bound: Mapping[str, Any]
    clean: Mapping[str, np.ndarray]
    dirty: Mapping[str, np.ndarray]
    arg: Arg
    place: tuple[int, ...]
    law: Law


def canary_twin(kernel: str, case_name: str, laws: Mapping[str, Law]) -> Twin:
    """The twin of a kernel with planted values and itself without them, but for their reach."""
    return Twin(
        name=f"canary_{kernel}",
        left=f"{kernel}, one NaN or inf",
        right="without it; the oracle in its reach",
        kernels=(kernel,),
        trials=tuple(_trials(kernel, case_name, laws)),
        run_left=_with_canary,
        run_right=_without_canary,
        says=tuple(f"{name}: {law.says}" for name, law in laws.items()),
    )


def plantable(arg: Arg) -> Mapping[str, int]:
    """The stored bits of every NaN and infinity that the argument's format has, by name."""
    if arg.fmt.is_float:
        return {name: int(_bits(value, arg.fmt.name)) for name, value in _VALUES.items()}
    return _CODES.get(arg.fmt.name, {})


def _bits(value: float, fmt: str) -> Any:
    raw = np.asarray(encode(value, fmt))
    return raw.view(f"u{raw.itemsize}")


def _trials(kernel: str, case_name: str, laws: Mapping[str, Law]) -> Iterator[Trial]:
    for argument, law in laws.items():
        for value in plantable(registry.spec(kernel).arg(argument)):
            for spot in ("inside", "last"):
                yield Trial(
                    f"{value} in {argument}, {spot}",
                    lambda rng, a=argument, v=value, s=spot, w=law: {  # type: ignore[misc]
                        "planted": _plant(kernel, case_name, a, v, s, w, rng)
                    },
                )


def _plant(
    kernel: str,
    case_name: str,
    argument: str,
    value: str,
    spot: str,
    law: Law,
    rng: np.random.Generator,
) -> _Planted:
    spec = registry.spec(kernel)
    case = _case(kernel, case_name)
    named = scalars_of(spec, case)
    clean = inputs_of(spec, case, seed=0)
    arg, original = spec.arg(argument), clean[argument]
    # The last element, or one that law and case call visible, somewhere in between.
    flat = original.size - 1 if spot == "last" else int(rng.integers(original.size))
    place = tuple(int(i) for i in np.unravel_index(flat, original.shape))
    changed = original.copy()
    raw = changed.view(f"u{changed.itemsize}")
    raw[place] = plantable(arg)[value]
    dirty = {**clean, argument: changed}
    bound = {**case.axes, **named}
    return _Planted(spec, named, bound, clean, dirty, arg, place, law)


def _case(kernel: str, name: str) -> Case:
    return next(c for c in cases(kernel) if name in (c.name, c.label))


def _with_canary(bench: Bench, inputs: Inputs) -> Outputs:
    p: _Planted = inputs["planted"]
    got = bench.run(p.spec.name, **p.dirty, **p.named, **_sizes(p))
    return {k: v for arg in p.spec.outputs for k, v in _split(p, arg, got[arg.name], got[arg.name])}


def _without_canary(bench: Bench, inputs: Inputs) -> Outputs:
    p: _Planted = inputs["planted"]
    clean = bench.run(p.spec.name, **p.clean, **p.named, **_sizes(p))
    expected = reference(p.spec, p.dirty, p.bound)
    found: Outputs = {}
    for arg in p.spec.outputs:
        ideal = np.broadcast_to(expected[arg.name].value, clean[arg.name].shape)
        stored = _stored(ideal, arg, clean[arg.name].dtype)
        found.update(_split(p, arg, clean[arg.name], stored))
    return found


def _sizes(p: _Planted) -> dict[str, int]:
    return {k: v for k, v in p.bound.items() if k.isupper()}


def _stored(values: np.ndarray, arg: Arg, dtype: Any) -> np.ndarray:
    if arg.fmt.name in FORMATS and values.dtype.kind == "f":
        return np.asarray(encode(values, arg.fmt.name))
    return values.astype(dtype)


def _split(
    p: _Planted, arg: Arg, outside: np.ndarray, inside: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Bytes beyond the reach of the canary, and the kind of every element within it."""
    seen = reach(p.law, p.arg, p.place, arg, outside.shape)
    if not seen.all():
        yield arg.name, np.where(seen, 0, outside).astype(outside.dtype)
    if seen.any():
        kinds = _kind(inside, arg)
        kinds = np.minimum(kinds, 1) if p.law.coarse and arg.fmt.name in FORMATS else kinds
        yield f"{arg.name} in reach", np.where(seen, kinds, 0)


def _kind(bits: np.ndarray, arg: Arg) -> np.ndarray:
    """0 for a number, 1 NaN, 2 inf, 3 -inf; an integer is its own kind."""
    if arg.fmt.name not in FORMATS:
        return bits.astype(np.int64)
    values = np.asarray(decode(bits, arg.fmt.name))
    kinds = np.select([np.isnan(values), values == np.inf, values == -np.inf], [1, 2, 3], 0)
    return kinds.astype(np.int64)


def reach(
    law: Law, source: Arg, place: tuple[int, ...], output: Arg, shape: tuple[int, ...]
) -> np.ndarray:
    """Which elements of an output the law lets see an element of an input."""
    seen = np.ones(shape, bool)
    for item in law.reach.split():
        axis, _, block = item.partition("/")
        if axis not in output.axes:
            continue
        width, at = int(block or 1), place[_position(source, axis)]
        scale = _step(source, axis)
        along = np.arange(shape[output.axes.index(axis)])
        # A source axis of several times the output's (fine and coarse channels) repeats along it.
        first = at * scale % len(along) // width * width
        hit = (along >= first) & (along < first + max(width, scale))
        seen &= hit.reshape([-1 if a == axis else 1 for a in output.axes])
    return seen


def _position(arg: Arg, axis: str) -> int:
    return next(i for i, text in enumerate(arg.axes) if axis in _names(text))


def _step(arg: Arg, axis: str) -> int:
    """How many steps of the axis one element of the argument stands for: `ceil(N/128)` is 128."""
    text = arg.axes[_position(arg, axis)]
    numbers = [n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)]
    return int(numbers[0]) if "/" in text else 1  # type: ignore[arg-type]


def _names(text: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}


TWINS = tuple(canary_twin(kernel, case, laws) for kernel, (case, laws) in EVERY_LAW.items())
