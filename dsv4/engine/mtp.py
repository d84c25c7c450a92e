"""The next-token block: the trunk's streams joined with the tokens that follow them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4.engine.block import run_block
from dsv4.engine.capture import Capture
from dsv4.engine.prefill import eager_rows
from dsv4.engine.products import product, product_input
from dsv4.engine.rows import Rows
from dsv4.engine.state import LayerCache, new_layer_cache
from dsv4.engine.streams import norm
from dsv4.engine.trunk import logits
from dsv4.engine.weights import MtpWeights
from dsv4.kernels.movement import movement_add, movement_embed, movement_repeat

if TYPE_CHECKING:
    from dsv4.engine.engine import Engine


def logits_last(
    engine: Engine, w: MtpWeights, streams: Any, ids: np.ndarray, capture: Capture | None
) -> np.ndarray:
    """The block's logits [V] at the last row of streams [s,M,D] of positions 0.. and s ids."""
    chunk, last = engine.arms.prefill_chunk, engine.last
    cache = new_layer_cache(last.device, engine.config, 0, engine.max_seq, chunk)
    made: Any = None
    for first in range(0, len(ids), chunk):
        piece = ids[first : first + chunk]
        runs = eager_rows(engine, piece, first, library=engine.arms.prefill_gemm == "library")
        run = runs[-1]
        if capture is not None:
            run = replace(run, look=capture.look(run, w.layer.layer))
        out = run_mtp(runs, run, w, cache, streams[first : first + len(piece)])
        made = logits(run, w.exit, out[-1:], last.head)
    return np.asarray(last.device.to_numpy(made)[0])


def run_mtp(runs: list[Rows], run: Rows, w: MtpWeights, cache: LayerCache, streams: Any) -> Any:
    """The block's streams [T,M,D]. runs: the rows on every stage, the first of which embeds.

    The projected embedding is added to every projected stream; each stream is normalised alone.
    """
    c, entry = run.config, runs[0]
    width = c.hc_mult * c.dim
    with run.phase("next-token entry"):
        embedded = entry.buffer("embedded", c.dim)
        entry.tape.launch(movement_embed, entry.stage.embed, entry.tokens, out=embedded)
        if entry.stage is not run.stage:
            here = run.buffer("embedded", c.dim)
            run.tape.receive(here, embedded, entry.stage.device)
            embedded = here
        token = norm(run, embedded, w.enorm, run.buffer("next-token x", c.dim))
        projected = run.buffer("next-token projected", c.dim)
        product(run, w.e_proj, product_input(run, "next-token x", token), projected)
        wide = replace(run, rows=run.rows * c.hc_mult)
        normed = run.buffer("next-token streams", width).reshape(wide.rows, c.dim)
        norm(run, streams.reshape(wide.rows, c.dim), w.hnorm, normed)
        own = run.buffer("next-token sum", c.hc_mult, c.dim)
        given = _wide_input(run, normed)
        product(wide, w.h_proj, given, own.reshape(wide.rows, c.dim))
        spread = run.buffer("next-token spread", c.hc_mult, c.dim)
        run.tape.launch(movement_repeat, projected, out=spread)
        run.tape.launch(movement_add, spread.reshape(-1), own.reshape(-1))
    return run_block(run, w.layer, cache, own)


def _wide_input(run: Rows, x: Any) -> Any:
    """Streams [T*M,D] as products take them."""
    rows = replace(run, rows=int(x.shape[0]), workspace=run.workspace.sibling(run.config.hc_mult))
    return product_input(rows, "next-token streams", x)
