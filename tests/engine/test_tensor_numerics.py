"""Ranks against one device: the same bytes before a cut sum, and its bound behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.prefill import eager_rows
from dsv4.runtime.hostdevice import HostDevice
from lab.ranks import sub_blocks
from tests.engine.engines import same_bytes
from tests.engine.ranks import (
    PROMPT,
    alone,
    assert_same,
    ids_of,
    ranked,
    remembered,
    wide_plan,
)

LAYERS = range(4)


@pytest.mark.parametrize("layout", ["official", "nvfp4"])
@pytest.mark.parametrize("rows", [1, 8, 20])
def test_every_sub_block_is_within_its_bound_of_one_device(layout: str, rows: int) -> None:
    arms = dict(layout=layout, prefill_gemm="rows")
    found = sub_blocks(alone(**arms), ranked(**arms), rows=rows, seed=rows)
    assert [(s.layer, s.name) for s in found] == [(n, k) for n in LAYERS for k in ("attn", "ffn")]
    assert all(s.alike and s.worst <= 1.0 for s in found), found
    # The sums are other sums: no distance at all would mean that nothing was cut.
    assert all(s.units > 0.0 for s in found) or rows == 1


def test_four_ranks_are_within_their_bound_and_agree_on_every_step() -> None:
    arms = dict(max_seq=60, prefill_gemm="rows")
    one = Engine.load(wide_plan(), backend="host", **arms)
    devices = tuple(HostDevice() for _ in range(4))
    four = Engine.load(wide_plan(), devices, parallel="tensor", graphs="on", **arms)
    assert all(s.alike and s.worst <= 1.0 for s in sub_blocks(one, four, rows=9))
    plain, replayed = four.alloc_decode_state(), four.alloc_decode_state(rows=3)
    ids = ids_of(6, seed=4)
    for state in (plain, replayed):
        four.prefill_with_cache(ids_of(9), state)
    rows = [four.decode_step(int(t), plain) for t in ids]
    for first in (0, 3):
        made = decode.step_logits(four, replayed, ids[first : first + 3])
        chosen = decode.step_greedy(four, replayed, ids[first : first + 3])
        assert same_bytes(made, np.stack(rows[first : first + 3]))
        assert chosen.tolist() == [int(row.argmax()) for row in rows[first : first + 3]]
        replayed.pos += 3
    assert_same(remembered(four, plain), remembered(four, replayed))


def test_a_rank_with_the_other_ones_columns_is_far_outside_of_the_bound() -> None:
    arms = dict(prefill_gemm="rows")
    one, crossed = alone(**arms), ranked(graphs="off", **arms)
    first, second = (stage.layers[1] for stage in crossed.stages)
    for a, b in ((first.wo_b, second.wo_b), (first.shared.w2, second.shared.w2)):
        assert a.fp8 is not None and b.fp8 is not None
        held = a.fp8.codes.copy()
        a.fp8.codes[...] = b.fp8.codes
        b.fp8.codes[...] = held
    try:
        worst = {(s.layer, s.name): s.worst for s in sub_blocks(one, crossed, rows=2)}
    finally:
        ranked.cache_clear()
    assert worst[1, "attn"] > 100 and worst[1, "ffn"] > 100
    assert max(w for (layer, _), w in worst.items() if layer != 1) <= 1.0


def left(engine: Engine, name: str, rows: int) -> list[np.ndarray]:
    """What the last launches left in buffers of that name [T,...], of every rank."""
    return [
        next(np.asarray(b[:rows]) for k, b in space.buffers.items() if k.startswith(f"{name} "))
        for space in engine.spaces
    ]


@pytest.mark.parametrize("layer", LAYERS)
def test_what_stands_before_a_cut_sum_is_the_same_bytes(layer: int) -> None:
    one, two = alone(prefill_gemm="rows"), ranked(prefill_gemm="rows")
    c, ids = one.config, ids_of(PROMPT)
    streams = np.random.default_rng(4).standard_normal((PROMPT, c.hc_mult, c.dim))
    captures = [e.run_layer(layer, streams.astype(np.float32), ids) for e in (one, two)]
    assert same_bytes(captures[0].x_dbg[layer], captures[1].x_dbg[layer])
    assert same_bytes(captures[0].kv_dbg[layer], captures[1].kv_dbg[layer])
    if layer == 2:
        assert same_bytes(captures[0].index_score[layer], captures[1].index_score[layer])
        assert same_bytes(captures[0].indexer_kv[layer], captures[1].indexer_kv[layer])
    for name in ("q", "o", "grouped"):
        (whole,), parts = left(one, name, PROMPT), left(two, name, PROMPT)
        assert same_bytes(
            whole.reshape(PROMPT, -1), np.hstack([p.reshape(PROMPT, -1) for p in parts])
        )


def test_logits_of_the_same_streams_are_the_same_bytes() -> None:
    one, two = alone(), ranked()
    c = one.config
    streams = np.random.default_rng(5).standard_normal((3, c.hc_mult, c.dim)).astype(np.float32)
    for row in range(3):
        rows = [e.trunk_logits_row(e.last.device.to_device(streams), 3, row) for e in (one, two)]
        assert rows[0].shape == (c.vocab_size,) and same_bytes(*rows)


def test_without_quantisers_ranks_and_one_device_agree_to_float32_noise() -> None:
    made: list[list[np.ndarray]] = []
    for engine in (alone(quantisers="off"), ranked(quantisers="off")):
        state = engine.alloc_decode_state(rows=1)
        rows = [engine.prefill_with_cache(ids_of(PROMPT), state).logits]
        rows += [engine.decode_step(int(t), state) for t in ids_of(4, seed=1)]
        made.append(rows)
    one, two = np.stack(made[0]), np.stack(made[1])
    assert not same_bytes(one, two)
    assert np.abs(one - two).max() <= 3e-6 * np.abs(one).max()


def test_every_row_of_a_prompt_is_told_its_logits() -> None:
    engine, seen = ranked(prefill_chunk="8"), {}

    def see(at: int, rows: np.ndarray) -> None:
        seen.update({at + n: row.copy() for n, row in enumerate(rows)})

    state = engine.alloc_decode_state()
    out = engine.prefill_with_cache(ids_of(PROMPT), state, see_logits=see, keep_states=True)
    assert sorted(seen) == list(range(PROMPT)) and same_bytes(seen[PROMPT - 1], out.logits)
    for row in (0, 9, PROMPT - 1):
        assert same_bytes(engine.trunk_logits_row(out.h_last, PROMPT, row), seen[row])


def test_a_pass_ends_early_on_all_ranks() -> None:
    from dsv4.engine.capture import Capture

    engine, capture = ranked(), Capture()
    assert engine.forward(ids_of(9), capture=capture, early_exit_after=1) is None
    assert sorted(capture.layer_out) == [0, 1] and capture.embed_out is not None
    whole: Any = Capture()
    assert engine.forward(ids_of(9), capture=whole) is not None
    assert same_bytes(capture.layer_out[1], whole.layer_out[1])
    assert not eager_rows(engine, ids_of(2), 0, library=False)[0].tape.entries
