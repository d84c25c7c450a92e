"""Inputs for the RMS norms."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import (
    alternating,
    extreme,
    literal,
    normal,
    one_huge,
    sprinkled,
    subnormal,
    wide,
)
from lab.weights import Checkpoint, weights_for
from oracle.formats import decode

_SPECIALS = [np.nan, np.inf, -np.inf, -0.0]


@cases_for("rms_norm", "rms_norm_f32")
def row_cases() -> Iterator[Case]:
    """Row lengths on and off the block, rows of one size and of many, and the ends of f32."""
    yield Case("smallest", T=1, D=1, eps=1e-6)
    yield Case("off the warp", T=3, D=33, eps=1e-6)
    yield Case("off the block", T=7, D=513, eps=1e-6)
    yield Case("decode", T=1, D=4096, eps=1e-6)
    yield Case("verify", T=8, D=1024, eps=1e-6)
    yield Case("kv", T=5, D=512, eps=1e-6)
    yield Case("indexer", T=3, D=128, eps=1e-6)
    yield Case("zeros", T=2, D=100, eps=1e-6, x=0.0)
    yield Case("annihilating", T=3, D=1000, eps=1e-6, x=alternating(1.0))
    yield Case("one huge", T=3, D=777, eps=1e-6, x=one_huge(1e6))
    yield Case("binades", T=4, D=640, eps=1e-6, x=wide(-60, 40))
    yield Case("eps decides", T=2, D=257, eps=1e-6, x=normal(1e-4))
    yield Case("subnormal", T=2, D=129, eps=1e-6, x=subnormal())
    yield Case("extreme", T=2, D=300, eps=1e-6, x=extreme(2.0**-70))
    yield Case("special", T=6, D=65, eps=1e-6, x=sprinkled(normal(), _SPECIALS, 0.01))
    yield Case("gain of every sign", T=2, D=96, eps=1e-6, w=literal([1.0, -1.5, 0.0, 8.0]))
    yield Case("prefill", T=2048, D=4096, eps=1e-6, level="full")


@cases_for("rms_norm_head", "rms_norm_head_f32")
def head_cases() -> Iterator[Case]:
    """Heads on and off the block, one huge lane, and the ends of f32."""
    yield Case("smallest", T=1, H=1, K=1, eps=1e-6)
    yield Case("off the warp", T=2, H=3, K=33, eps=1e-6)
    yield Case("off the block", T=3, H=5, K=129, eps=1e-6)
    yield Case("decode", T=1, H=64, K=512, eps=1e-6)
    yield Case("verify", T=4, H=16, K=128, eps=1e-6)
    yield Case("zeros", T=1, H=2, K=64, eps=1e-6, x=0.0)
    yield Case("annihilating", T=2, H=3, K=200, eps=1e-6, x=alternating(3.0))
    yield Case("one huge", T=2, H=2, K=300, eps=1e-6, x=one_huge(1e6))
    yield Case("binades", T=2, H=4, K=256, eps=1e-6, x=wide(-60, 40))
    yield Case("subnormal", T=1, H=2, K=65, eps=1e-6, x=subnormal())
    yield Case("extreme", T=1, H=2, K=300, eps=1e-6, x=extreme(2.0**-70))
    yield Case("special", T=3, H=3, K=40, eps=1e-6, x=sprinkled(normal(), _SPECIALS, 0.02))
    yield Case("prefill", T=256, H=64, K=512, eps=1e-6, level="full")


@weights_for("rms_norm", "rms_norm_f32")
def _norm_gains(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    if checkpoint.dtype(name) != "BF16" or len(checkpoint.shape(name)) != 1:
        return None
    gains = decode(checkpoint.tensor(name).bits, "bf16").astype(np.float32)
    return dict(T=3, D=gains.size, w=gains, eps=1e-6)
