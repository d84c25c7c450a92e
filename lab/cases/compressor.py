"""Inputs for the compressor: buffers, pending blocks, rings; scores that leave few rows or none."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import Fill, extreme, normal, sprinkled, subnormal, values, wide

FINE: dict[str, Any] = {"C": 4, "overlap": 1}
COARSE: dict[str, Any] = {"C": 128, "overlap": 0}


def _first_rows_absent(count: int) -> Fill:
    """Normal scores, minus infinity in the first rows: a pending block that nothing precedes."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        made = rng.standard_normal(shape)
        made[:count] = -np.inf
        return made

    return values(make)


def _falling(step: float) -> Fill:
    """Scores that fall by `step` from row to row: exponentials that underflow."""
    return values(lambda rng, shape: -step * np.arange(shape[0])[:, None] + np.zeros(shape))


def positions(*numbers: int) -> Fill:
    """These positions, repeated or cut to the shape."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        return np.resize(np.asarray(numbers), shape).astype(fmt.storage)

    return fill


_SOME_ABSENT = sprinkled(normal(), [-np.inf], 0.3)
_NUMBERS: dict[str, dict[str, Any]] = {
    "ties": {"score": 1.25, "ape": 0.5},
    "absent rows": {"score": _SOME_ABSENT, "kv": normal(5.0)},
    "no rows": {"score": -np.inf, "kv": np.nan},
    "absent rows of nan": {"score": _first_rows_absent(4), "kv": normal()},
    "underflow": {"score": _falling(60.0)},
    "far apart": {"score": wide(-5, 100), "ape": normal(10.0)},
    "cancelling logits": {"score": normal(1e4, 3e4), "ape": normal(1e4, -3e4)},
    "subnormal": {"kv": subnormal(), "score": subnormal()},
    "extreme": {"kv": extreme(), "score": normal()},
    "nan values": {"kv": sprinkled(normal(), [np.nan], 0.02)},
    "nan scores": {"score": sprinkled(normal(), [np.nan], 0.02)},
    "infinite scores": {"score": sprinkled(normal(), [np.inf], 0.02)},
    "infinite values": {"kv": sprinkled(normal(), [np.inf, -np.inf], 0.02)},
}


@cases_for("compressor_pool")
def compressor_pool_cases() -> Iterator[Case]:
    """Prefill, decode from the pending rows, rings; each ratio of the model and others."""

    def case(name: str, **content: Any) -> Case:
        return Case(name, **{"first": 0, "previous": 0, "ring": 2**31 - 1, **content})

    yield case("one", B=1, S=1, C=1, K=1)
    yield case("tail", B=3, S=20, C=5, K=129, first=2)
    yield case("overlapping tail", B=3, S=40, C=5, K=131, first=11, previous=1, overlap=1)
    yield case("seventeen pairs", B=2, S=34, C=17, K=33)
    yield case("wide overlap", B=2, S=99, C=33, K=7, overlap=1)
    for name, content in _NUMBERS.items():
        yield case(f"fine {name}", B=5, S=24, K=20, first=4, previous=1, **FINE, **content)
        yield case(f"coarse {name}", B=2, S=64, C=32, K=20, **content)
    yield case("first block", B=1, S=4, K=16, **FINE)
    pending: dict[str, Any] = {"B": 1, "S": 8, "first": 4, "previous": 1, **FINE}
    yield case("pending", K=512, **pending)
    yield case("pending keys", K=128, **pending)
    yield case("pending at the start", K=512, **pending, score=_first_rows_absent(4))
    yield case("pending coarse", B=1, S=128, K=512, **COARSE)
    yield case("ring", B=2, S=22, K=16, first=40, previous=1, ring=22, **FINE)
    yield case("ring longer than the buffer", B=5, S=24, K=16, first=4, previous=1, ring=25, **FINE)
    yield case("shortest ring", B=1, S=8, K=16, first=44, previous=1, ring=8, **FINE)
    yield case("ring from its last row", B=1, S=9, K=16, first=8, previous=1, ring=9, **FINE)
    yield case("coarse ring", B=1, S=140, K=16, first=1280, ring=134, **COARSE)
    yield case("far position", B=1, S=14, K=16, first=1048572, previous=1, ring=14, **FINE)
    yield case("prefill", B=32, S=131, K=512, **FINE)
    yield case("coarse prefill", B=2, S=300, K=512, **COARSE)
    yield case("long prefill", B=512, S=2048, K=512, level="full", **FINE)
    yield case("long keys", B=512, S=2048, K=128, level="full", **FINE)
    yield case("long coarse prefill", B=16, S=2048, K=512, level="full", **COARSE)


@cases_for("compressor_pool_at")
def compressor_pool_at_cases() -> Iterator[Case]:
    """Positions that end a block and positions that do not, one or several queries."""

    def case(name: str, at: Fill, **content: Any) -> Case:
        return Case(name, positions=at, **content)

    yield case("one", positions(0), T=1, S=1, C=1, K=1, ring=1)
    yield case("tail", positions(34, 35, 39), T=3, S=11, C=5, K=129, ring=10, overlap=1)
    yield case("first block", positions(3), T=1, S=8, K=16, ring=8, **FINE)
    yield case("second block", positions(7), T=1, S=8, K=16, ring=8, **FINE)
    yield case("no block", positions(-1, 0, 2, 4, -(2**31)), T=5, S=8, K=16, ring=8, **FINE)
    for name, content in _NUMBERS.items():
        yield case(
            f"fine {name}", positions(3, 7, 20, 23), T=4, S=24, K=20, ring=24, **FINE, **content
        )
    yield case("verify", positions(*range(2044, 2050)), T=6, S=14, K=512, ring=14, **FINE)
    yield case("verify keys", positions(*range(2044, 2050)), T=6, S=14, K=128, ring=14, **FINE)
    yield case(
        "coarse verify", positions(*range(1276, 1282)), T=6, S=134, K=512, ring=134, **COARSE
    )
    yield case("decode", positions(1048575), T=1, S=14, K=512, ring=14, **FINE)
