"""Inputs for gates: sums that are exact, so that every tie is one; ids and tokens of nothing."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import Fill, ids, normal, sprinkled, uniform, values
from lab.cases.router import expert_rows, stray_rows, stray_tokens

_OPEN: dict[str, Any] = dict(
    hyper_scale=normal(0.3, mean=0.8), hyper_base=normal(0.5), eps=1e-6, ticket=0
)


def _whole(largest: int, step: float = 1.0) -> Fill:
    """Small whole numbers times a power of two: their products add up without rounding."""
    return values(lambda rng, shape: rng.integers(-largest, largest + 1, shape) * step)


_EXACT: dict[str, Any] = dict(x=_whole(3, 0.25), w=_whole(7, 2.0**-6))


def _gates(**chooses: Any) -> Iterator[Case]:
    """Cases of both kinds of choice."""
    common: dict[str, Any] = {**_OPEN, **_EXACT, **chooses, "scale": 1.5}
    yield Case("one", T=1, E=1, A=1, D=8, M=1, **common)
    yield from _one_token(common)
    for tokens in (2, 3, 5, 8):
        yield Case("tokens", T=tokens, E=37, A=5, D=264, M=4, **common, check=tokens in (3, 8))
    yield Case("all chosen", T=3, E=5, A=5, D=264, M=2, **common)
    yield Case("several steps a part", T=2, E=600, A=7, D=2056, M=3, **common)
    yield Case("eight streams", T=2, E=33, A=3, D=520, M=8, **common)
    for iterations in (1, 2, 5):
        yield Case(f"iterations {iterations}", T=2, E=8, A=2, D=64, M=4, iterations=iterations,
                   **common)  # fmt: skip
    yield Case("near permutations", T=8, E=8, A=2, D=64, M=4, mix=normal(8), **common)
    yield Case("equal", T=2, E=256, A=6, D=512, M=4, **{**common, "x": 0.5, "w": 0.25})
    yield Case("far down", T=2, E=33, A=6, D=512, M=4, **{**common, "x": 1.0, "w": -0.25})
    yield Case("all zero", T=2, E=33, A=6, D=4096, M=4, **{**common, "x": -1.0, "w": 1.0})
    yield Case("special", T=8, E=70, A=6, D=264, M=4, mix=sprinkled(normal(), [np.nan], 0.02),
               **{**common, "x": sprinkled(_whole(3), [np.nan, np.inf], 1e-3)})  # fmt: skip
    yield Case("decode", T=1, E=256, A=6, D=4096, M=4, **common)
    yield Case("verify", T=6, E=256, A=6, D=4096, M=4, **common, level="full")
    yield Case("larger model", T=1, E=384, A=6, D=7168, M=4, **common, level="full")


def _one_token(common: dict[str, Any]) -> Iterator[Case]:
    """Blocks of a cluster with several experts, fewer, none; and what no cluster has."""
    for experts in (5, 33, 160, 256):
        yield Case("one token", T=1, E=experts, A=min(experts, 6), D=264, M=4, **common,
                   check=experts in (5, 33))  # fmt: skip
    for experts, width in ((257, 64), (33, 4104)):
        yield Case("no cluster", T=1, E=experts, A=6, D=width, M=4, **common)
    yield Case("one token, equal", T=1, E=160, A=20, D=512, M=2,
               **{**common, "x": 0.5, "w": 0.25})  # fmt: skip
    special = sprinkled(_whole(7), [np.nan, np.inf, -np.inf], 2e-3)
    yield Case("one token, special", T=1, E=160, A=32, D=64, M=4, **{**common, "w": special})


@cases_for("router_gate")
def router_gate_cases() -> Iterator[Case]:
    """Biases from none to large; numbers of experts around the warp."""
    yield from _gates(bias=normal(0.3))
    common: dict[str, Any] = {**_OPEN, **_EXACT, "scale": 2.5}
    yield Case("most", T=2, E=1024, A=32, D=264, M=4, bias=uniform(9, 27), **common)
    for tokens, experts, active in ((8, 256, 6), (1, 256, 32), (1, 160, 6)):
        yield Case("ties", T=tokens, E=experts, A=active, D=64, M=4, bias=0.0,
                   **{**common, "x": _whole(1)})  # fmt: skip


@cases_for("router_gate_hash")
def router_gate_hash_cases() -> Iterator[Case]:
    """Rows of distinct experts, and rows and tokens that name nothing."""
    for case in _gates(table=expert_rows, tokens=ids("V")):
        content: dict[str, Any] = {**case.axes, **case.values, "V": 33}
        yield Case(case.name, level=case.level, check=case.check, **content)
    stray: dict[str, Any] = {**_OPEN, **_EXACT, "scale": 1.5}
    yield Case("stray experts", T=8, E=37, A=5, D=264, M=4, V=64, table=stray_rows,
               tokens=ids("V"), **stray)  # fmt: skip
    yield Case("stray tokens", T=8, E=37, A=5, D=264, M=4, V=64, table=expert_rows,
               tokens=stray_tokens, **stray)  # fmt: skip
