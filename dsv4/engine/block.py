"""One layer: two sub-blocks, each between the two halves of a hyper-connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsv4.engine.attention import attention
from dsv4.engine.experts import moe
from dsv4.engine.fused_experts import fused_moe
from dsv4.engine.joins import windows
from dsv4.engine.rows import Rows
from dsv4.engine.state import LayerCache
from dsv4.engine.streams import Mixing, enter, leave, pass_on
from dsv4.engine.weights import LayerWeights
from dsv4.spec import F32

Attention = Callable[[Rows, LayerWeights, LayerCache, Any, Any, Mixing], Any]
"""The attention sub-block: called with its input [T,D], where its output goes, and how that comes
back, which it closes if it is open."""


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
    attend(run, w, cache, x, z, mixing)
    made = joined(run, z)
    run.look("attn", made)
    made, mixing = _feed(run, w, z, made, streams, mixing, middle)
    handed = None
    with run.phase("streams"):
        if following is None:
            leave(run, made, middle, mixing, streams)
        else:
            hyper, gain = following.attn_hyper, following.attn_norm
            handed = pass_on(run, made, middle, mixing, hyper, gain, streams)
    run.look("layer", streams)
    return handed


def joined(run: Rows, z: Any) -> Any:
    """A sub-block's output [T,D]: z itself, or the sum of what the ranks have in theirs.

    z: of that name in the workspace. A rank that waits in vain is told of by `Joins.checked`.
    """
    if run.stage.joins is None:
        return z
    space, dim = run.workspace, run.config.dim
    part = space.rows_of("z", space.rows, dim, fmt=F32)
    out = space.rows_of("z joined", space.rows, dim, fmt=F32)
    with run.phase("join"):
        for rows in windows(run.rows, dim, space.rows):
            run.stage.joins.add(run.tape, run.stage.share.rank, part[rows], out[rows])
    return out[: run.rows]


def _feed(
    run: Rows, w: LayerWeights, z: Any, made: Any, streams: Any, mixing: Mixing, middle: Any
) -> tuple[Any, Mixing]:
    """(the experts' output, how it comes back); the streams before it are in middle then.

    z: where outputs go. made: that of attention; mixing: how it comes back into the streams.
    """
    with run.phase("streams"):
        x, following = pass_on(run, made, streams, mixing, w.ffn_hyper, w.ffn_norm, middle)
    run.look("ffn_norm", x)
    if run.fused:
        fused_moe(run, w, x, following, z)
    else:
        moe(run, w, x, z)
    made = joined(run, z)
    run.look("ffn", made)
    return made, following
