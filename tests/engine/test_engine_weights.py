"""Weights on a stage: views, residency, placement arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint
from dsv4.checkpoint.published import model_config
from dsv4.engine.engine import Engine
from dsv4.engine.placement import balanced_splits, plan_placement
from dsv4.engine.source import open_source
from dsv4.engine.state import cache_bytes
from dsv4.engine.switches import resolve_arms
from dsv4.engine.weights import arrays_of, size_bytes
from dsv4.errors import Refusal, StateError
from dsv4.runtime.hostdevice import HostDevice
from oracle.blocks import decode_fp8_block
from tests.engine.engines import tiny_engine, tokens
from tests.goldens import golden_folder


def test_an_fp8_matrix_is_cut_where_its_scales_are() -> None:
    matrix = tiny_engine().stages[0].layers[0].wo_a
    part = matrix.ref.offset_rows(128, 128)
    assert part.codes.shape == (128, 256) and part.scales.shape == (1, 2)
    assert np.array_equal(part.codes, matrix.ref.codes[128:])
    with pytest.raises(StateError, match="blocks of 128"):
        matrix.ref.offset_rows(64, 128)


def test_a_bf16_matrix_is_cut_anywhere() -> None:
    matrix = tiny_engine(dense_arm="bf16").stages[0].layers[0].wo_a
    assert np.array_equal(matrix.ref.offset_rows(3, 5).bf16, matrix.dev()[3:8])


def test_an_fp8_matrix_is_not_taken_for_a_bf16_one() -> None:
    with pytest.raises(StateError, match="DSV4_DENSE_ARM=bf16"):
        tiny_engine().stages[0].layers[0].wo_a.dev()


def test_bf16_residency_holds_the_exact_products_of_codes_and_scales() -> None:
    w = tiny_engine(dense_arm="bf16").stages[0].layers[1].wq_b
    stored = open_source(golden_folder("tiny-s"))
    codes = stored.artifact.tensors.tensor("layers.1.attn.wq_b.weight")
    scales = stored.artifact.tensors.tensor("layers.1.attn.wq_b.scale")
    held = (w.dev().astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(held.astype(np.float64), decode_fp8_block(codes, scales))


def test_every_stored_matrix_is_resident_once() -> None:
    engine = tiny_engine()
    arrays = list(arrays_of(engine.stages[0].layers))
    assert len(arrays) == len({id(a) for a in arrays})
    assert size_bytes(engine.stages[0].layers) == sum(a.nbytes for a in arrays)


@pytest.mark.parametrize(
    ("sizes", "stages", "splits"),
    [
        ([1] * 8, 1, ()),
        ([1] * 8, 2, (4,)),
        ([1] * 9, 2, (5,)),
        ([1] * 8, 4, (2, 4, 6)),
        ([100, 1, 1, 1], 2, (1,)),
        ([1, 1, 1, 100], 2, (3,)),
        ([1, 1, 1, 100], 4, (1, 2, 3)),
        ([5, 1, 1], 3, (1, 2)),
    ],
)
def test_stages_weigh_about_the_same_and_have_layers(
    sizes: list[int], stages: int, splits: tuple[int, ...]
) -> None:
    assert balanced_splits(sizes, stages) == splits


def test_the_published_model_splits_in_the_middle() -> None:
    sizes = [3_875 + 66 * (n >= 2 and n % 2 == 0) for n in range(43)]
    assert balanced_splits(sizes, 2) == (22,)


def test_more_stages_than_layers_are_refused() -> None:
    census = open_source(golden_folder("tiny-s")).census
    with pytest.raises(Refusal, match="DSV4_SPLIT_AT"):
        plan_placement(census, resolve_arms({}), devices=range(5), max_seq=16, tail="off")


def test_a_sequence_costs_what_its_layers_keep() -> None:
    config = model_config("flash", "official")
    base = [cache_bytes(config, ratio, 4096, 512) for ratio in (0, 4, 128)]
    grown = [cache_bytes(config, ratio, 8192, 512) for ratio in (0, 4, 128)]
    per_token = [(b - a) / 4096 for a, b in zip(base, grown, strict=True)]
    # Fine: a row of 512 in f32 and a key of 128 in bf16 for 4 tokens; coarse: a row for 128.
    assert per_token == [0, 576, 16]
    assert base[0] == 4 * (128 + 512) * 512


def test_long_prompts_go_through_in_pieces_of_the_chunk() -> None:
    ids = tokens(40)
    whole = tiny_engine(quantisers="off").forward(ids)
    cut = tiny_engine(quantisers="off", prefill_chunk="8").forward(ids)
    assert whole is not None and cut is not None
    assert np.array_equal(whole.logits, cut.logits)
    assert np.array_equal(whole.h_last, cut.h_last)


def test_stages_on_two_devices_and_a_tail_give_the_bytes_of_one() -> None:
    plan, ids = plan_mint("tiny", "nextn", seed=2), tokens(13)
    made = []
    for devices in ((HostDevice(),), (HostDevice(), HostDevice())):
        engine = Engine.load(plan, devices, max_seq=20)
        assert engine.mtp is not None and len({id(s.device) for s in engine.stages}) == len(devices)
        state = engine.alloc_decode_state()
        out = engine.prefill_with_cache(ids[:11], state, keep_states=True)
        rows = [engine.decode_step(int(t), state) for t in ids[11:]]
        made.append([out.logits, engine.mtp_logits_last(out.h_last, ids[:11]), *rows])
    for one, two in zip(*made, strict=True):
        assert np.array_equal(one, two)
