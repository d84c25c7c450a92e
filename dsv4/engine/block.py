"""One layer: two sub-blocks, each between the two halves of a hyper-connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsv4.engine.attention import attention
from dsv4.engine.experts import moe
from dsv4.engine.rows import Rows
from dsv4.engine.state import LayerCache
from dsv4.engine.streams import enter, leave
from dsv4.engine.weights import LayerWeights

Attention = Callable[[Rows, LayerWeights, LayerCache, Any, Any], Any]
"""The attention sub-block: called with its input [T,D] and where its output goes."""


def run_block(
    run: Rows, w: LayerWeights, cache: LayerCache, streams: Any, attend: Attention = attention
) -> Any:
    """The streams [T,M,D] after a layer, written over those before it."""
    c = run.config
    middle = run.buffer("streams middle", c.hc_mult, c.dim)
    z = run.buffer("z", c.dim)
    with run.phase("streams"):
        x, mixing = enter(run, w.attn_hyper, w.attn_norm, streams)
    run.look("attn_norm", x)
    attend(run, w, cache, x, z)
    run.look("attn", z)
    with run.phase("streams"):
        leave(run, z, streams, mixing, middle)
        x, mixing = enter(run, w.ffn_hyper, w.ffn_norm, middle)
    run.look("ffn_norm", x)
    moe(run, w, x, z)
    run.look("ffn", z)
    with run.phase("streams"):
        leave(run, z, middle, mixing, streams)
    run.look("layer", streams)
    return streams
