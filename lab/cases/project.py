"""Inputs for all products of a layer's input at once."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.compressor import positions
from lab.cases.fills import (
    alternating,
    finite_e4m3,
    normal,
    one_huge,
    powers_of_two,
    sprinkled,
    subnormal,
    wide,
)

_OPEN: dict[str, Any] = dict(hyper_scale=normal(0.3, mean=0.8), hyper_base=normal(0.5), eps=1e-6)
_FLASH: dict[str, Any] = {"D": 4096, "Q": 1024, "K": 512, "M": 4, **_OPEN}
# What the official release holds: powers of two, most weights well below 1.
_SCALES: dict[str, Any] = {
    "q_scales": powers_of_two(-12, -5),
    "kv_scales": powers_of_two(-12, -5),
}


def _one_nan_code(
    rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape
) -> np.ndarray:
    codes = finite_e4m3()(rng, shape, fmt, s)
    codes[shape[0] // 2, shape[1] // 2] = 0xFF
    return codes


_NUMBERS: dict[str, dict[str, Any]] = {
    "cancel": {"x": alternating(1.0, noise=1e-3)},
    "one huge": {"x": one_huge(2.0**20)},
    "binades": {"x": wide(-30, 30)},
    "subnormal": {"x": subnormal()},
    "special": {"x": sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0], 0.002)},
    "nan code": {"q_codes": _one_nan_code, "kv_codes": _one_nan_code},
    "any scales": {"q_scales": wide(-20, 3), "kv_scales": wide(-20, 3)},
    "special mixes": {"mix": sprinkled(normal(), [np.nan], 0.02)},
}
_SKIPPED = positions(-1, 3, 14, 0, 2**31 - 1, -(2**31), 7, 1)


def _cases(**sizes: Any) -> Iterator[Case]:
    """What all three are tried on; `sizes` are those of the compressors and the heads.

    Rows lie in a ring of 14; T of them, at most 8, so their places differ.
    """

    def case(name: str, T: int, D: int, Q: int, K: int, **content: Any) -> Case:
        given = {"M": 4, **sizes, **_SCALES, **_OPEN, **content}
        return Case(name, T=T, D=D, Q=Q, K=K, **given)

    rounds = {"raw_rows": positions(*range(5, 13))} if "S" in sizes else {}
    yield case("smallest", 1, 16, 1, 1, M=1, **rounds)
    yield case("tail of a step", 3, 528, 37, 20, check=True, M=3, **rounds)
    yield case("eight rows", 8, 144, 130, 10, check=True, **rounds)
    yield case("many parts", 2, 7168 + 16, 12, 5, M=8, **rounds)
    for iterations in (1, 2, 5):
        yield case(f"iterations {iterations}", 2, 16, 3, 2, iterations=iterations, **rounds)
    yield case("near permutations", 8, 16, 3, 2, mix=normal(8), **rounds)
    yield case("x does not fit", 8, 8192, 5, 3, level="full", **rounds)
    yield case("tall", 2, 80, 1300, 700, level="full", **rounds)
    if rounds:
        yield case("rows without a place", 8, 144, 130, 10, raw_rows=_SKIPPED)
    for name, content in _NUMBERS.items():
        yield case(name, 3, 528, 37, 20, **rounds, **content)


@cases_for("project_window")
def project_window_cases() -> Iterator[Case]:
    """Widths off every multiple, x that does not fit, numbers at the ends of their formats."""
    yield from _cases()
    yield Case("decode", T=1, **_FLASH, **_SCALES)
    yield Case("verify", T=8, **_FLASH, **_SCALES, level="full")


@cases_for("project_blocks")
def project_blocks_cases() -> Iterator[Case]:
    """The same, and rows of a ring that have a place or none."""
    yield from _cases(S=14)
    ring = {"S": 136, "raw_rows": positions(*range(131, 136), *range(3)), **_SCALES}
    yield Case("decode", T=1, **_FLASH, **ring)
    yield Case("verify", T=8, **_FLASH, **ring, level="full")


@cases_for("project_indexed")
def project_indexed_cases() -> Iterator[Case]:
    """The same, and both compressors of an indexed layer."""
    yield from _cases(S=14, L=18, H=5)
    ring = {"S": 16, "raw_rows": positions(*range(11, 16), *range(3)), **_SCALES}
    yield Case("decode", T=1, **_FLASH, L=256, H=64, **ring)
    yield Case("verify", T=8, **_FLASH, L=256, H=64, **ring, level="full")
