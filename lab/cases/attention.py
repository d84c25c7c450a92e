"""Inputs for sink attention: lists of every length with holes anywhere, extreme sinks and logits.

One set of cases serves whole lists and their chunks, in f32 and in f64.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import (
    Fill,
    alternating,
    extreme,
    normal,
    one_huge,
    sprinkled,
    subnormal,
    uniform,
    values,
    wide,
)

HEAD_SCALE = 512.0**-0.5


def listed(
    *, front: int = 0, holes: float = 0.0, back: int = 0, lengths: tuple[int, ...] = ()
) -> Fill:
    """Random rows with -1 in front, behind, and at random between.

    lengths: how many entries query t has, lengths[t % len]; the rest of its list is -1.
    """

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        entries = rng.integers(0, s.N, shape)
        entries[rng.random(shape) < holes] = -1
        entries[:, :front] = -1
        entries[:, shape[1] - back :] = -1
        for t in range(shape[0] if lengths else 0):
            entries[t, lengths[t % len(lengths)] :] = -1
        return entries.astype(fmt.storage)

    return fill


def _stray(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """Ids of which a third lie outside the rows, some at the very ends of the integers."""
    entries = rng.integers(0, s.N, shape)
    outside = rng.choice([-1, -2, -(2**31), s.N, s.N + 1, 2**31 - 1], shape)
    return np.where(rng.random(shape) < 0.35, outside, entries).astype(fmt.storage)


def _graded(step: float) -> Fill:
    """Row n is n * step in its first column, noise elsewhere: logits that fall off evenly."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        made = 0.01 * rng.standard_normal(shape)
        made[:, 0] = step * np.arange(shape[0])
        return made

    return values(make)


def _first_column(value: float) -> Fill:
    """`value` in the first column, zeros elsewhere: a logit is value * row[0] * scale."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        made = np.zeros(shape)
        made[..., 0] = value
        return made

    return values(make)


def _drowned(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Every third row so low that its logit is minus infinity in f32."""
    made = 0.1 * rng.standard_normal(shape)
    made[:, 0] = 0.0
    made[::3, 0] = -1e12
    return made


def _list_cases(*, sink: bool) -> Iterator[Case]:
    """sink: whether the kernel takes one."""

    def case(name: str, **content: Any) -> Case:
        if not sink:
            content.pop("sink", None)
        return Case(name, **{"scale": 1.0, "ids": listed(), **content})

    yield case("one", T=1, H=1, K=4, N=1, S=1)
    yield case("tail", T=3, H=9, K=12, N=50, S=41, pad={"ids": 3})
    yield case("one below", T=2, H=7, K=124, N=39, S=39, scale=0.1)
    yield case("chunk", T=2, H=8, K=128, N=300, S=40, scale=0.1)
    yield case("next step", T=1, H=3, K=8, N=90, S=1281)
    yield case("one row", T=2, H=3, K=8, N=1, S=7)
    # Lists.
    yield case("nothing listed", T=2, H=3, K=8, N=9, S=45, ids=-1)
    yield case("front", T=2, H=3, K=8, N=90, S=200, ids=listed(front=97), check=True)
    yield case("holes", T=3, H=3, K=8, N=90, S=130, ids=listed(holes=0.6), check=True)
    yield case("back", T=2, H=3, K=8, N=90, S=200, ids=listed(back=81))
    lengths = listed(lengths=(0, 1, 40, 80, 81, 3))
    yield case("lengths", T=6, H=5, K=16, N=200, S=82, ids=lengths)
    yield case("stray ids", T=2, H=3, K=8, N=20, S=100, ids=_stray, check=True)
    # Logits and sinks.
    yield case("ties", T=2, H=3, K=16, N=1, S=100)
    yield case("cancel", T=2, H=8, K=64, N=80, S=80, kv=alternating(1.0, noise=1e-3))
    yield case("spread", T=2, H=3, K=8, N=64, S=64, q=_first_column(1.0), kv=_graded(4.0))
    yield case("underflow", T=1, H=2, K=8, N=64, S=64, q=_first_column(1.0), kv=_graded(-25.0))
    yield case("one huge row", T=2, H=2, K=16, N=64, S=64, kv=one_huge(1e4), scale=HEAD_SCALE)
    yield case("drowned", T=2, H=3, K=8, N=70, S=70, q=_first_column(1e28), kv=values(_drowned))
    yield case("all drowned", T=1, H=3, K=8, N=7, S=7, q=_first_column(1e20), kv=-1e20)
    yield case("far apart", T=1, H=4, K=8, N=50, S=50, q=normal(1e12), kv=normal(1e6))
    yield case("large sink", T=2, H=3, K=8, N=50, S=50, sink=1e4)
    yield case("largest sink", T=2, H=3, K=8, N=50, S=50, sink=3e38)
    yield case("low sink", T=2, H=3, K=8, N=50, S=50, sink=-1e4)
    yield case("no sink", T=2, H=3, K=8, N=50, S=50, sink=-np.inf)
    yield case("nothing at all", T=2, H=3, K=8, N=9, S=50, ids=-1, sink=-np.inf)
    yield case("negative scale", T=2, H=3, K=8, N=50, S=50, scale=-0.7)
    # Numbers.
    yield case("subnormal rows", T=2, H=3, K=8, N=50, S=50, kv=subnormal())
    yield case("subnormal queries", T=2, H=3, K=8, N=50, S=50, q=subnormal())
    yield case("binades", T=2, H=3, K=8, N=50, S=50, kv=wide(-140, 3))
    yield case("extreme rows", T=2, H=3, K=8, N=50, S=50, kv=extreme(0.02), q=normal(1e-38))
    special = sprinkled(normal(), [np.nan], 0.002)
    yield case("nan rows", T=5, H=3, K=8, N=90, S=50, kv=special, ids=listed(holes=0.5))
    yield case("nan queries", T=5, H=3, K=8, N=50, S=50, q=special)
    yield case("nan sink", T=2, H=9, K=8, N=50, S=50, sink=sprinkled(normal(), [np.nan], 0.1))
    yield case("infinite query", T=2, H=2, K=8, N=9, S=9, q=_first_column(np.inf), kv=-1.0)
    # The model.
    for length in (0, 1, 127, 128):
        ids = listed(lengths=(length,))
        yield case(f"window {length}", T=1, H=8, K=512, N=160, S=128, ids=ids, scale=HEAD_SCALE)
    fine: dict[str, Any] = {"K": 512, "N": 1024, "S": 640, "scale": HEAD_SCALE, "kv": normal(1.0)}
    yield case("decode", T=1, H=64, **fine)
    yield case("verify", T=6, H=8, ids=listed(lengths=(640, 639, 600, 128, 1, 0)), **fine)
    yield case("verify all heads", T=8, H=64, level="full", **fine)
    yield case("prefill", T=64, H=64, level="full", **fine)
    long: dict[str, Any] = {"K": 512, "N": 9000, "S": 8320, "scale": HEAD_SCALE}
    yield case("coarse", T=1, H=64, level="full", **long)
    yield case("very long", T=1, H=8, K=16, N=100_000, S=100_001, level="full")


@cases_for("attention_sink", "attention_sink_f32")
def attention_list_cases() -> Iterator[Case]:
    """Whole lists."""
    yield from _list_cases(sink=True)


@cases_for("attention_sink_split", "attention_sink_split_f32")
def attention_chunk_cases() -> Iterator[Case]:
    """The same lists without their sinks."""
    yield from _list_cases(sink=False)


def _powers(low: int, high: int) -> Fill:
    """Whole numbers; one chunk in five is without weight."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
        made = rng.integers(low, high, shape).astype(fmt.storage)
        made[rng.random(shape) < 0.2] = -np.finfo(fmt.storage).max
        return made

    return fill


def _lowest(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """The power of a chunk without weight."""
    return np.full(shape, -np.finfo(fmt.storage).max, fmt.storage)


@cases_for("attention_sink_join", "attention_sink_join_f32")
def attention_join_cases() -> Iterator[Case]:
    """Chunks of equal and of far apart powers, chunks without weight, sinks of every size."""
    near: dict[str, Any] = {"power": _powers(-3, 4), "total": uniform(0.8, 50.0)}
    far: dict[str, Any] = {"power": _powers(-400, 400), "total": uniform(0.8, 50.0)}
    yield Case("one", T=1, B=1, H=1, K=4, **near)
    yield Case("tail", T=3, B=7, H=9, K=12, **near)
    yield Case("far apart", T=2, B=33, H=3, K=508, **far)
    nothing: dict[str, Any] = {"power": _lowest, "total": 0.0, "value": 0.0}
    yield Case("no weight", T=2, B=3, H=3, K=8, **nothing)
    yield Case("nothing at all", T=2, B=3, H=3, K=8, **nothing, sink=-np.inf)
    yield Case("large sink", T=2, B=5, H=3, K=8, **near, sink=3e38)
    yield Case("no sink", T=2, B=5, H=3, K=8, **near, sink=-np.inf)
    yield Case("nan sink", T=2, B=5, H=3, K=8, **near, sink=np.nan)
    yield Case("cancel", T=1, B=16, H=8, K=64, **near, value=alternating(3.0, noise=1e-4))
    yield Case("subnormal", T=2, B=5, H=3, K=8, **near, value=subnormal())
    yield Case("decode", T=1, B=16, H=64, K=512, **near)
    yield Case("verify", T=6, B=16, H=64, K=512, **near)
    yield Case("coarse", T=1, B=208, H=64, K=512, level="full", **near)
