"""Keys, sizes and places in a tensor for the contents of made checkpoints."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for

_KEY = 0x243F6A8885A308D3
_NEGATIVE = -(2**63)
# Far into a tensor: the counter of a block needs more than 32 bits.
_FAR = 2**40
_FIRST: dict[str, Any] = dict(E=1, keys=np.array([_KEY]), start=0)


def _keys(*keys: int) -> np.ndarray:
    return np.array(keys, np.int64)


def _places(**scalars: Any) -> Iterator[Case]:
    """One element, sizes off a block, several tensors, the stream's ends, a matrix of the model."""
    one = _FIRST | scalars
    three = one | dict(E=3, keys=_keys(_KEY, 0, -1))
    yield Case("one", N=1, **one)
    yield Case("tail", N=1003, **one)
    yield Case("inside", N=530, **three | dict(start=48))
    yield Case("far", N=77, **one | dict(start=_FAR, keys=_keys(_NEGATIVE)))
    yield Case("several", N=259, **three)
    yield Case("part of a slab", N=256, pad={"y": 48}, **three)
    yield Case("matrix", N=2048 * 128, **one)
    yield Case("bank", N=2048 * 2048, level="full", **three)


@cases_for("mint_e2m1x2", "mint_e4m3")
def mint_codes_cases() -> Iterator[Case]:
    """Codes need a place in the stream only."""
    yield from _places()


@cases_for("mint_ue8m0")
def mint_ue8m0_cases() -> Iterator[Case]:
    """Shares at both ends and between, bases at both ends of the byte."""
    yield from _places(base=119, threshold=9001)
    yield Case("never", N=515, **_FIRST, base=120, threshold=0)
    yield Case("always", N=515, **_FIRST, base=120, threshold=16384)
    yield Case("lowest", N=515, **_FIRST, base=2, threshold=8192)
    yield Case("highest", N=515, **_FIRST, base=252, threshold=8192)


@cases_for("mint_e4m3_scales")
def mint_e4m3_scales_cases() -> Iterator[Case]:
    """Second scales that put the scales at both ends of E4M3."""
    yield from _places(base=119, threshold=9001, second=113)
    yield Case("lowest", N=515, **_FIRST, base=119, threshold=8192, second=124)
    yield Case("highest", N=515, **_FIRST, base=119, threshold=16384, second=113)


@cases_for("mint_bf16", "mint_f32")
def mint_normal_cases() -> Iterator[Case]:
    """Gains around one, weights of small deviation, a constant, subnormal products."""
    yield from _places(mean=1.0, scale=2.6e-6)
    yield Case("weights", N=1001, **_FIRST, mean=0.0, scale=4.1e-7)
    yield Case("constant", N=37, **_FIRST, mean=0.8, scale=0.0)
    yield Case("subnormal", N=513, **_FIRST, mean=0.0, scale=1e-44)
    yield Case("overflow", N=513, **_FIRST, mean=0.0, scale=1e34)


@cases_for("mint_expert_ids")
def mint_expert_ids_cases() -> Iterator[Case]:
    """One id of one expert, all experts, rows off a block, the published table."""
    yield Case("one", V=1, A=1, key=_KEY, start=0, experts=1)
    yield Case("all", V=37, A=7, key=_KEY, start=0, experts=7)
    yield Case("tail", V=259, A=5, key=_KEY, start=3, experts=9)
    yield Case("four", V=100, A=4, key=_NEGATIVE, start=0, experts=384)
    yield Case("far", V=41, A=6, key=-1, start=2**33, experts=256)
    yield Case("table", V=129280, A=6, key=_KEY, start=0, experts=256, level="full")
