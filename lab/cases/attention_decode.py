"""Inputs for decode attention: lists and sinks as for its parts, queries as products give them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.attention import HEAD_SCALE, listed
from lab.cases.fills import alternating, ids, literal, normal, sprinkled, subnormal, wide
from lab.cases.rope import angles

_TABLE = angles(10000.0)


@cases_for("attention_decode")
def attention_decode_cases() -> Iterator[Case]:
    """Lists of every length, heads off every multiple, positions outside the table."""

    def case(name: str, **content: Any) -> Case:
        usual: dict[str, Any] = {
            "R": 4,
            "P": 50,
            "scale": 0.5,
            "eps": 1e-6,
            "ids": listed(),
            "table": _TABLE,
            "positions": ids("P"),
            "ticket": 0,
        }
        return Case(name, **{**usual, **content})

    yield case("one", T=1, H=1, K=4, N=1, S=1, R=2, P=1)
    yield case("tail", T=3, H=9, K=12, N=50, S=41, R=6, pad={"ids": 3})
    yield case("table of odd length", T=3, H=3, K=8, N=50, S=41, P=51)
    yield case("all lanes turn", T=2, H=3, K=8, N=50, S=41, R=8)
    yield case("more than a warp of columns", T=2, H=7, K=36, N=39, S=39)
    yield case("more than four", T=2, H=8, K=132, N=300, S=81, R=64)
    yield case("more than a warp of chunks", T=1, H=3, K=8, N=90, S=1321)
    yield case("more blocks than run at once", T=8, H=61, K=8, N=90, S=170)
    yield case("alone and many chunks", T=8, H=60, K=36, N=90, S=330, ids=listed(holes=0.3))
    # Up to 16 chunks are a cluster, a block each; more have tickets.
    for blocks in (2, 3, 5, 8, 13, 16):
        few = dict(T=2, H=5, K=36, N=90, S=40 * blocks - 7, R=6)
        yield case(f"{blocks} together", **few, ids=listed(holes=0.2), check=blocks in (3, 16))
    yield case("16 together and 8 heads", T=3, H=61, K=12, N=90, S=633, check=True)
    yield case("7 together and 4 heads", T=1, H=61, K=36, N=90, S=277, R=36, check=True)
    yield case("more than a cluster", T=1, H=5, K=36, N=90, S=690, R=6, check=True)
    yield case("more lists than a cluster", T=4, H=33, K=36, N=90, S=690, R=6)
    yield case("one row", T=2, H=3, K=8, N=1, S=7)
    yield case("nothing listed", T=2, H=3, K=8, N=9, S=45, ids=-1)
    yield case("front", T=2, H=3, K=8, N=90, S=200, ids=listed(front=97), check=True)
    yield case("holes", T=3, H=11, K=8, N=90, S=130, ids=listed(holes=0.6), check=True)
    lengths = listed(lengths=(0, 1, 40, 80, 81, 3))
    yield case("lengths", T=6, H=5, K=16, N=200, S=82, ids=lengths)
    yield case("outside the table", T=3, H=3, K=8, N=50, S=50, positions=literal([-1, 49, 50]))
    yield case("ties", T=2, H=3, K=16, N=1, S=100)
    yield case("cancel", T=2, H=8, K=64, N=80, S=80, kv=alternating(1.0, noise=1e-3))
    yield case("large queries", T=2, H=3, K=8, N=50, S=50, q=normal(1e12))
    yield case("queries of zero", T=2, H=3, K=8, N=50, S=50, q=0.0)
    yield case("subnormal queries", T=2, H=3, K=8, N=50, S=50, q=subnormal())
    yield case("binades of queries", T=2, H=3, K=8, N=50, S=50, q=wide(-140, 30))
    yield case("far apart", T=1, H=4, K=8, N=50, S=50, kv=normal(1e3))
    yield case("large sink", T=2, H=3, K=8, N=50, S=50, sink=1e4)
    yield case("no sink", T=2, H=3, K=8, N=50, S=50, sink=-np.inf)
    yield case("nothing at all", T=2, H=3, K=8, N=9, S=50, ids=-1, sink=-np.inf)
    yield case("negative scale", T=2, H=3, K=8, N=50, S=50, scale=-0.7)
    yield case("subnormal rows", T=2, H=3, K=8, N=50, S=50, kv=subnormal())
    special = sprinkled(normal(), [np.nan], 0.002)
    yield case("nan rows", T=5, H=3, K=8, N=90, S=50, kv=special, ids=listed(holes=0.5))
    yield case("nan queries", T=5, H=3, K=8, N=50, S=50, q=special)
    yield case("nan together", T=5, H=5, K=36, N=90, S=181, R=6, kv=special)
    yield case("nan sink", T=2, H=9, K=8, N=50, S=50, sink=sprinkled(normal(), [np.nan], 0.1))
    model: dict[str, Any] = {"K": 512, "R": 64, "N": 1024, "scale": HEAD_SCALE}
    for length in (0, 1, 127, 128):
        yield case(f"window {length}", T=1, H=8, S=128, ids=listed(lengths=(length,)), **model)
    yield case("decode", T=1, H=64, S=640, **model)
    rounds = listed(lengths=(640, 639, 600, 128, 1, 0))
    yield case("verify", T=6, H=8, S=640, ids=rounds, **model)
    yield case("verify all heads", T=8, H=64, S=640, level="full", **model)
    yield case("coarse", T=1, H=64, S=8320, level="full", **{**model, "N": 9000})
