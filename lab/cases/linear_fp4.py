"""Inputs for FP4 products: every code under every scale, range ends, slots that share rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import (
    Fill,
    bits_every,
    bytes_between,
    finite_e4m3,
    ids,
    literal,
    normal,
    powers_of_two,
    values,
    wide,
)

_EVERY_BYTE = bits_every(8)
# What the quantiser gives for activations near 1: a power of two, another in every group.
_QUANTISED: dict[str, Any] = dict(x_scales=powers_of_two(-9, -6))


def _distinct(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """Another scale in every group, so that swapped rows and columns of scales show; no NaN."""
    flat = np.arange(int(np.prod(shape))).reshape(shape)
    return ((100 if fmt.name == "ue8m0" else 40) + flat % 40).astype(np.uint8)


def _every_code(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """All 256 bytes along each row, each row starting one further."""
    flat = np.arange(int(np.prod(shape))).reshape(shape)
    return ((flat + flat // shape[-1]) % 256).astype(np.uint8)


def _cancelling(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """+v, -v in turn: with equal weights every pair annihilates."""
    codes = rng.integers(1, 0x7F, shape).astype(np.uint8)
    codes[..., 1::2] = codes[..., 0::2] | 0x80
    return codes


def _spread(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """448 beside 2^-9 in one group: a group's sum needs more than 24 bits."""
    return rng.choice([0x7E, 0xFE, 0x01, 0x81, 0x03], shape).astype(np.uint8)


def stray_ids(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """Expert ids of which a third name nothing: masked, one off, huge."""
    inside = rng.integers(0, s.E, shape)
    outside = rng.choice([-1, int(s.E), 2**31 - 1, -(2**31)], shape)
    return np.where(rng.random(shape) < 0.35, outside, inside).astype(np.int32)


def _one_nan(base: Fill) -> Fill:
    """A base fill with one NaN code."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        made = base(rng, shape, fmt, s)
        made.reshape(-1)[int(rng.integers(made.size))] = 0xFF
        return made

    return fill


def _shapes() -> Iterator[Case]:
    yield Case("smallest", T=1, N=1, K=128, **_QUANTISED)
    yield Case("tail", T=7, N=33, K=384, **_QUANTISED)
    yield Case("tail of a step", T=3, N=19, K=1024 + 128, **_QUANTISED)
    yield Case("below a step", T=2, N=17, K=896, **_QUANTISED)
    yield Case("more than eight rows", T=19, N=9, K=640, **_QUANTISED)
    yield Case("every code", T=3, N=66, K=512, codes=_every_code, **_QUANTISED)
    yield Case("nibbles", T=1, N=3, K=128, codes=bytes_between(0x2B, 0x2C), **_QUANTISED)
    yield Case("asymmetric", T=5, N=70, K=640, scales=_distinct, x_scales=powers_of_two(-20, 3))
    yield Case("codes of NaN", T=9, N=5, K=256, x=_one_nan(finite_e4m3()), **_QUANTISED)
    yield Case("cancel", T=3, N=21, K=512, x=_cancelling, codes=0x22, **_QUANTISED)
    yield Case("spread", T=3, N=21, K=512, x=_spread, **_QUANTISED)
    yield Case("zeros", T=2, N=9, K=256, x=0.0, **_QUANTISED)
    yield Case("smallest activations", T=3, N=21, K=512, x_scales=2.0**-22)
    yield Case("any x_scales", T=3, N=21, K=512, x_scales=wide(-22, 20))
    yield Case("one block", T=1, N=256, K=1024, **_QUANTISED)
    yield Case("tall", T=1, N=1027, K=256, **_QUANTISED)
    yield Case("gate", T=1, N=2048, K=4096, **_QUANTISED, level="full")
    yield Case("down", T=8, N=4096, K=2048, **_QUANTISED, level="full")
    yield Case("many rows", T=65536 * 8 + 3, N=1, K=128, **_QUANTISED, level="full")


@cases_for("linear_fp4_mx")
def linear_fp4_mx_cases() -> Iterator[Case]:
    """Shapes around the step; every scale byte, NaN and both ends included."""
    ends = literal([2.0**-127, 2.0**-126, 2.0**126, 2.0**127])
    tiny: dict[str, Any] = dict(x_scales=2.0**-22)
    yield from _shapes()
    yield Case("every scale", T=2, N=64, K=512, codes=_every_code, scales=_EVERY_BYTE, **tiny)
    yield Case("range ends", T=2, N=65, K=256, codes=_every_code, scales=ends, **tiny)
    yield Case("byte 0", T=2, N=9, K=256, codes=_every_code, scales=2.0**-127, **tiny)
    yield Case("byte 254", T=2, N=9, K=256, codes=_every_code, scales=2.0**127, **tiny)
    yield Case("byte 120", T=2, N=9, K=256, codes=_every_code, scales=2.0**-7, x_scales=1.0)


@cases_for("linear_fp4_nv")
def linear_fp4_nv_cases() -> Iterator[Case]:
    """The same; second scales that are powers of two, and those that round."""
    power: dict[str, Any] = dict(scale2=powers_of_two(-13, -11))
    for case in _shapes():
        yield _with(case, power)
    codes: dict[str, Any] = dict(codes=_every_code, **_QUANTISED)
    yield Case("every scale", T=2, N=64, K=512, scales=_EVERY_BYTE, **power, **codes)
    yield Case("calibrated", T=3, N=33, K=512, scale2=normal(1e-4), **codes)
    yield Case("subnormal", T=3, N=33, K=512, scale2=1.77 * 2.0**-130, **codes)
    yield Case("infinite", T=3, N=5, K=128, scale2=np.inf, **codes)
    yield Case("nan", T=3, N=5, K=128, scale2=np.nan, **codes)


def _with(case: Case, more: dict[str, Any]) -> Case:
    content: dict[str, Any] = {**case.axes, **case.values, **more}
    return Case(case.name, level=case.level, **content)


def _selections() -> Iterator[Case]:
    picked: dict[str, Any] = dict(ids=ids("E"), **_QUANTISED)
    yield Case("smallest", E=1, N=1, K=128, T=1, S=1, group=1, **picked)
    yield Case("tail", E=5, N=33, K=384, T=3, S=9, group=3, **picked)
    yield Case("one expert", E=3, N=17, K=1152, T=5, S=5, group=1, **{**picked, "ids": 2})
    yield Case("stray", E=3, N=21, K=256, T=20, S=40, group=2, **{**picked, "ids": stray_ids})
    yield Case("shared rows", E=8, N=70, K=640, T=2, S=12, group=6, **picked)
    yield Case("own rows", E=8, N=70, K=640, T=12, S=12, group=1, **picked)
    yield Case("every code", E=4, N=9, K=512, T=2, S=12, group=6, codes=_every_code, **picked)
    yield Case("spread", E=4, N=9, K=512, T=2, S=4, group=2, x=_spread, **picked)
    yield Case("codes of NaN", E=4, N=9, K=256, T=6, S=6, group=1, **picked,
               x=_one_nan(finite_e4m3()))  # fmt: skip
    yield Case("tiny model", E=8, N=128, K=256, T=3, S=6, group=2, **picked)
    yield Case("decode", E=8, N=256, K=4096, T=1, S=6, group=6, **picked, level="full")
    apart = {**picked, "ids": ids("E", repeats=False)}
    yield Case("gates", E=16, N=2048, K=4096, T=1, S=6, group=6, **apart, level="full")
    yield Case("downs", E=16, N=4096, K=2048, T=6, S=6, group=1, **apart, level="full")
    yield Case("many slots", E=3, N=1, K=128, T=65536 + 3, S=65536 + 3, group=1, **picked,
               level="full")  # fmt: skip


@cases_for("linear_fp4_mx_selected")
def linear_fp4_mx_selected_cases() -> Iterator[Case]:
    """Repeated experts, ids of nothing, rows shared by the slots of a token."""
    yield from _selections()


@cases_for("linear_fp4_nv_selected")
def linear_fp4_nv_selected_cases() -> Iterator[Case]:
    """The same, with another scale2 for every expert."""
    scale2: dict[str, Any] = dict(
        scale2=values(lambda rng, shape: rng.uniform(1.0, 2.0, shape) * 2.0**-12)
    )
    for case in _selections():
        yield _with(case, scale2)


_GATE_UP: dict[str, Any] = dict(
    limit=7.0, weights=values(lambda rng, shape: rng.uniform(0.05, 1.5, shape))
)


def _first_halves() -> Iterator[Case]:
    picked: dict[str, Any] = dict(ids=ids("E"), **_QUANTISED, **_GATE_UP)
    yield Case("smallest", E=1, N=1, K=128, T=1, S=1, group=1, **picked)
    yield Case("tail", E=5, N=33, K=384, T=3, S=9, group=3, **picked)
    yield Case("one expert", E=3, N=17, K=1152, T=5, S=5, group=1, **{**picked, "ids": 2})
    yield Case("stray", E=3, N=21, K=256, T=20, S=40, group=2, **{**picked, "ids": stray_ids})
    yield Case("more slots than a block has", E=8, N=18, K=256, T=2, S=18, group=9, **picked)
    yield Case("no limit", E=8, N=70, K=640, T=2, S=12, group=6, **{**picked, "limit": 0.0})
    yield Case("tiny model", E=8, N=128, K=256, T=3, S=6, group=2, **picked)
    apart = {**picked, "ids": ids("E", repeats=False)}
    for tokens, experts in ((1, 16), (8, 48)):
        yield Case("experts", E=experts, N=2048, K=4096, T=tokens, S=6 * tokens, group=6, **apart,
                   level="full")  # fmt: skip


@cases_for("linear_fp4_mx_gate_up")
def linear_fp4_mx_gate_up_cases() -> Iterator[Case]:
    """The selections again, with every kind of clamp; more slots than one block takes."""
    yield from _first_halves()


@cases_for("linear_fp4_nv_gate_up")
def linear_fp4_nv_gate_up_cases() -> Iterator[Case]:
    """The same, with two scale2 for every expert."""
    second = values(lambda rng, shape: rng.uniform(1.0, 2.0, shape) * 2.0**-12)
    for case in _first_halves():
        yield _with(case, dict(gate_scale2=second, up_scale2=second))


def permuted_slots(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """A permutation of the slots for every token."""
    return rng.permuted(np.tile(np.arange(shape[1]), (shape[0], 1)), axis=1).astype(np.int32)


def stray_slots(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    """Permutations of which about a third hold one entry that is no slot."""
    order = permuted_slots(rng, shape, fmt, s)
    rows = np.flatnonzero(rng.random(shape[0]) < 0.35)
    order[rows, rng.integers(0, shape[1], rows.size)] = rng.choice([-1, shape[1]], rows.size)
    return order


def _second_halves() -> Iterator[Case]:
    picked: dict[str, Any] = dict(ids=ids("E"), order=permuted_slots, **_QUANTISED)
    yield Case("smallest", E=1, N=1, K=128, T=1, A=1, **picked)
    yield Case("tail", E=5, N=33, K=384, T=3, A=3, **picked)
    yield Case("eight slots", E=3, N=17, K=1152, T=2, A=8, **picked)
    yield Case("stray", E=3, N=21, K=256, T=20, A=2, **{**picked, "ids": stray_ids})
    yield Case("stray order", E=3, N=21, K=256, T=20, A=3, **{**picked, "order": stray_slots})
    yield Case("cancel", E=4, N=70, K=512, T=2, A=6, **picked, x=_cancelling, codes=0x22)
    yield Case("tiny model", E=8, N=256, K=128, T=3, A=2, **picked)
    apart = {**picked, "ids": ids("E", repeats=False)}
    yield Case("experts", E=16, N=4096, K=2048, T=1, A=6, **apart, level="full")
    yield Case("experts", E=48, N=4096, K=2048, T=8, A=6, **apart, level="full")


@cases_for("linear_fp4_mx_down")
def linear_fp4_mx_down_cases() -> Iterator[Case]:
    """Orders and ids of nothing, products that cancel, as many slots as a block takes."""
    yield from _second_halves()


@cases_for("linear_fp4_nv_down")
def linear_fp4_nv_down_cases() -> Iterator[Case]:
    """The same, with another scale2 for every expert."""
    second = values(lambda rng, shape: rng.uniform(1.0, 2.0, shape) * 2.0**-12)
    for case in _second_halves():
        yield _with(case, dict(scale2=second))
