"""One layer: two sub-blocks, each between the two halves of a hyper-connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsv4.engine.attention import attention
from dsv4.engine.experts import moe
from dsv4.engine.fused_experts import fused_moe
from dsv4.engine.rows import Rows
from dsv4.engine.state import LayerCache
from dsv4.engine.streams import Mixing, enter, leave, pass_on, pass_on_open
from dsv4.engine.weights import LayerWeights

Attention = Callable[[Rows, LayerWeights, LayerCache, Any, Any], Any]
"""The attention sub-block: called with its input [T,D] and where its output goes."""


Entered = tuple[Any, Mixing]
"""A sub-block's normalised input [T,D], and how its output comes back."""


def run_block(
    run: Rows, w: LayerWeights, cache: LayerCache, streams: Any, attend: Attention = attention
) -> Any:
    """The streams [T,M,D] after a layer alone, written over those before it."""
    run_chained(run, w, cache, streams, attend=attend)
    return streams


def run_chained(
    run: Rows,
    w: LayerWeights,
    cache: LayerCache,
    streams: Any,
    *,
    entered: Entered | None = None,
    following: LayerWeights | None = None,
    attend: Attention = attention,
) -> Entered | None:
    """What the following layer enters with, or None; the streams after this one are written.

    entered: what the layer before this one handed on.
    """
    c = run.config
    middle = run.buffer("streams middle", c.hc_mult, c.dim)
    z = run.buffer("z", c.dim)
    with run.phase("streams"):
        x, mixing = entered or enter(run, w.attn_hyper, w.attn_norm, streams)
    run.look("attn_norm", x)
    attend(run, w, cache, x, z)
    run.look("attn", z)
    mixing = _feed(run, w, z, streams, mixing, middle)
    handed = None
    with run.phase("streams"):
        if following is None:
            leave(run, z, middle, mixing, streams)
        else:
            hyper, gain = following.attn_hyper, following.attn_norm
            handed = pass_on(run, z, middle, mixing, hyper, gain, streams)
    run.look("layer", streams)
    return handed


def _feed(run: Rows, w: LayerWeights, z: Any, streams: Any, mixing: Mixing, middle: Any) -> Mixing:
    """How the experts' output comes back; that lies in z then, and the streams before it in middle.

    z: the output of the attention sub-block; mixing: how it comes back into the streams.
    """
    into = (z, streams, mixing, w.ffn_hyper, w.ffn_norm, middle)
    if run.fused:
        with run.phase("streams"):
            x, pending = pass_on_open(run, *into)
        run.look("ffn_norm", x)
        fused_moe(run, w, x, pending, z)
        following = pending.mixing
    else:
        with run.phase("streams"):
            x, following = pass_on(run, *into)
        run.look("ffn_norm", x)
        moe(run, w, x, z)
    run.look("ffn", z)
    return following
