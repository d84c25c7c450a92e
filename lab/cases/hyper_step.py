"""Inputs for the launches between sub-blocks: widths inside a part, tokens of nothing."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import alternating, ids, normal, sprinkled, uniform, values, wide
from lab.cases.hyper import doubly_stochastic, mixing_weights
from lab.cases.router import stray_tokens

_EPS = 1e-6
_WEIGHTS: dict[str, Any] = dict(
    scale=normal(0.3, mean=0.8), base=normal(0.5), fn=mixing_weights(), gain=normal(0.1, mean=1.0),
    eps=_EPS, mix_eps=_EPS, norm_eps=1e-5, ticket=0,
)  # fmt: skip
_STEP: dict[str, Any] = dict(**_WEIGHTS, post=uniform(0.0, 2.0), comb=values(doubly_stochastic))


def _steps(given: dict[str, Any]) -> Iterator[Case]:
    """Stream counts, groups that their floor decides."""
    yield Case("smallest", T=1, M=1, D=128, **given)
    yield Case("tail", T=7, M=3, D=384, **given)
    yield Case("more columns than threads", T=2, M=2, D=640, **given)
    yield Case("parts across streams", T=2, M=5, D=128, **given)
    yield Case("eight streams", T=2, M=8, D=640, **given)
    # z is the output of a sub-block, where there was one.
    large: dict[str, Any] = dict.fromkeys(("x", "z") if "post" in given else ("x",), normal(50))
    yield Case("larger streams", T=3, M=4, D=384, **large, **given)
    yield Case("small inputs", T=3, M=4, D=384, **{**given, "gain": wide(-30, -20)})
    yield Case("cancel", T=3, M=4, D=384, x=alternating(1.0, noise=1e-3), **given)
    yield Case("special", T=12, M=2, D=384, x=sprinkled(normal(), [np.nan, np.inf], 1e-3), **given)
    yield Case("decode", T=1, M=4, D=4096, **given)
    yield Case("verify", T=6, M=4, D=4096, **given, level="full")
    yield Case("larger model", T=1, M=4, D=7168, **given, level="full")
    yield Case("many rows", T=65536 + 3, M=1, D=128, **given, level="full")


@cases_for("hyper_step_open")
def hyper_step_open_cases() -> Iterator[Case]:
    """Streams that a sub-block comes back into."""
    yield from _steps(_STEP)


@cases_for("hyper_step_streams")
def hyper_step_streams_cases() -> Iterator[Case]:
    """Streams that are there."""
    yield from _steps(_WEIGHTS)


@cases_for("hyper_step_entry")
def hyper_step_entry_cases() -> Iterator[Case]:
    """Tables of any height, tokens that do not exist."""
    inside: dict[str, Any] = dict(**_WEIGHTS, tokens=ids("V"))
    yield Case("smallest", T=1, M=1, D=128, V=1, **inside)
    yield Case("tail", T=7, M=3, D=384, V=33, **inside)
    yield Case("eight streams", T=2, M=8, D=640, V=33, **inside)
    yield Case("zeros", T=2, M=4, D=128, V=9, table=0.0, **inside)
    yield Case("binades", T=3, M=4, D=384, V=9, table=wide(-30, 10), **inside)
    yield Case("stray tokens", T=12, M=4, D=128, V=9, **{**_WEIGHTS, "tokens": stray_tokens})
    yield Case("decode", T=1, M=4, D=4096, V=512, **inside)


@cases_for("hyper_step_exit")
def hyper_step_exit_cases() -> Iterator[Case]:
    """Widths that end inside a part, and no group of 128."""
    yield Case("smallest", T=1, M=1, D=8, **_WEIGHTS)
    yield Case("tail", T=7, M=3, D=264, **_WEIGHTS)
    yield Case("eight streams", T=2, M=8, D=520, **_WEIGHTS)
    yield Case("larger streams", T=3, M=4, D=264, x=normal(50), **_WEIGHTS)
    yield Case("cancel", T=3, M=4, D=264, x=alternating(1.0, noise=1e-3), **_WEIGHTS)
    yield Case("special", T=12, M=2, D=264, x=sprinkled(normal(), [np.nan, np.inf], 1e-3),
               **_WEIGHTS)  # fmt: skip
    yield Case("decode", T=1, M=4, D=4096, **_WEIGHTS)
    yield Case("verify", T=6, M=4, D=4096, **_WEIGHTS, level="full")
