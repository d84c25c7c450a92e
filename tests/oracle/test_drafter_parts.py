"""The parts of targets and drafters: by hand, in plain loops, and what must not depend on what."""

import json
import math

import numpy as np
import pytest

from lab.drafter_recorded import read_drafter_record
from oracle.dflash import build_backbone
from oracle.draft_config import read_draft_config
from oracle.dynconv import dynconv
from oracle.gated_delta import causal_conv, chunked, conv_tail, recurrence, unit_heads
from oracle.qwen3 import Tensors
from oracle.qwen_target import QwenTarget, TapSink, build_target
from oracle.rope_neox import Yarn, neox_table, rope_neox, yarn_divisors
from oracle.sdpa import sdpa_clip, sdpa_full
from tests.goldens import golden_folder

YARDSTICK = Yarn(32.0, 8192, 32.0, 1.0)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def target(name: str) -> QwenTarget:
    part = read_drafter_record(golden_folder(name)).target
    assert part is not None
    return build_target(part.content, part.tensors)


def test_yarn_divisors_of_the_yardstick_drafter() -> None:
    found = yarn_divisors(128, 1e7, YARDSTICK)
    assert (found[:15] == 1).all()
    assert found[[15, 20, 25, 28]] == pytest.approx([1.0690423, 1.6326532, 3.4532373, 10.4347828])
    assert (found[29:] == 32).all()


def test_yarn_multiplies_queries_and_keys_by_its_gain() -> None:
    plain, scaled = neox_table(1, 128, 1e7), neox_table(1, 128, 1e7, YARDSTICK)
    assert scaled[0, 0] / plain[0, 0] == pytest.approx(1.3465736, rel=1e-7)


def test_a_quarter_turn_swaps_the_two_halves_of_a_pair() -> None:
    table = np.array([[0.0, 1.0, 1.0, 0.0]])  # pair 0 turns by 90 degrees, pair 1 not at all
    y = rope_neox(np.array([[[1.0, 2.0, 3.0, 4.0, 5.0]]]), table, np.array([0])).value
    assert y[0, 0].tolist() == [-3.0, 2.0, 1.0, 4.0, 5.0]


def test_scores_depend_on_the_distance_of_two_positions_only() -> None:
    q, k, table = normal(1, 1, 8), normal(1, 1, 8, seed=1), neox_table(64, 8, 1e4)

    def score(a: int, b: int) -> float:
        left = rope_neox(q, table, np.array([a])).value
        return float(np.sum(left * rope_neox(k, table, np.array([b])).value))

    assert score(7, 3) == pytest.approx(score(60, 56), rel=1e-12)


@pytest.mark.parametrize("window", [1, 4, 7, 1000])
def test_attention_in_plain_loops(window: int) -> None:
    q, k, v = normal(3, 4, 5), normal(9, 2, 5, seed=1), normal(9, 2, 5, seed=2)
    last = np.array([7, 9, 4])
    first = np.maximum(last - window, 0)
    got = sdpa_clip(q, k, v, first, last, 5**-0.5).value
    for t in range(3):
        for h in range(4):
            keys = range(first[t], last[t])
            e = [math.exp(q[t, h] @ k[n, h // 2] / math.sqrt(5)) for n in keys]
            wanted = sum(w * v[n, h // 2] for w, n in zip(e, keys, strict=True)) / sum(e)
            assert got[t, h] == pytest.approx(wanted, rel=1e-13)


def test_a_row_without_keys_gives_zeros() -> None:
    got = sdpa_full(normal(2, 2, 4), normal(3, 1, 4), normal(3, 1, 4), np.array([0, 3]), 0.5).value
    assert not got[0].any()
    assert got[1].any()


def test_dynamic_convolution_by_hand() -> None:
    x = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    base = np.zeros((2, 2, 4))
    base[0, 0], base[0, 1] = 1.0, 0.5
    own = np.zeros((2, 2, 2, 2))
    own[0, 0] = [[0.1, 0.2], [9, 9]]
    own[1, 0] = [[0, 0.1], [0.5, -0.5]]
    got = dynconv(x, base, own, stage=0).value
    wanted = [[1.1, 2.2, 3.6, 4.8], [6, 8, 7.7, 8.8]]
    assert got.tolist() == [pytest.approx(row) for row in wanted]


def test_scan_in_chunks_equals_the_recurrence() -> None:
    q, k = unit_heads(normal(130, 2, 8)) * 8**-0.5, unit_heads(normal(130, 2, 8, seed=1))
    v, g = normal(130, 2, 6, seed=2), -np.abs(normal(130, 2, seed=3))
    beta = 1 / (1 + np.exp(-normal(130, 2, seed=4)))
    state = normal(2, 8, 6, seed=5)
    one, after = recurrence(q, k, v, g, beta, state)
    many, end = chunked(q, k, v, g, beta, state)
    assert np.abs(one - many).max() < 1e-12
    assert np.abs(after - end).max() < 1e-12


def test_convolution_continues_from_its_tail() -> None:
    u, w, state = normal(9, 5), normal(5, 4, seed=1), normal(5, 3, seed=2)
    whole = causal_conv(u, w, state)
    first = causal_conv(u[:2], w, state)
    second = causal_conv(u[2:], w, conv_tail(u[:2], state))
    assert np.array_equal(np.concatenate([first, second]), whole)
    # Two inputs replace two of the three older ones.
    assert conv_tail(u[:2], state)[:, 0].tolist() == state[:, 2].tolist()


@pytest.mark.parametrize("name", ["dflash", "dflash2", "dspark-qwen3"])
@pytest.mark.parametrize("chunk", [1, 3, 256])
def test_context_may_come_in_any_chunks(name: str, chunk: int) -> None:
    record = read_drafter_record(golden_folder(name))
    assert record.drafter is not None
    config, w = read_draft_config(record.drafter.content), Tensors(record.drafter.tensors)
    backbone = build_backbone(config, w, 64)
    taps, noise = record.arrays["input.target_taps"], normal(config.block, config.hidden)
    once, many = backbone.new_kv(64), backbone.new_kv(64)
    backbone.ingest(once, backbone.context(taps))
    for begin in range(0, len(taps), chunk):
        backbone.ingest(many, backbone.context(taps[begin : begin + chunk]))
    got, wanted = backbone.block(many, noise), backbone.block(once, noise)
    assert np.abs(got - wanted).max() < 1e-12


@pytest.mark.parametrize("name", ["qwen3-dense", "qwen3-next-moe", "qwen35-dense"])
def test_verify_equals_single_steps_and_commit_equals_restore_and_replay(name: str) -> None:
    model = target(name)
    ids = [5, 80, 200, 7, 3, 11]
    cache = model.new_cache(32)
    model.prime([1, 2, 3, 4, 5, 6, 7], cache)
    snap = model.snapshot(cache)
    cache.tap_sink = TapSink((0, 2), np.zeros((6, 256)), 128)
    rows = model.verify(ids, 7, cache, want="logits", ckpt=True)
    assert rows.logits is not None
    taps = cache.tap_sink.buf.copy()
    cache.tap_sink = None
    for keep in range(1, len(ids)):
        model.restore(cache, snap)
        steps = [model.verify([i], cache.pos, cache, want="logits").logits for i in ids[:keep]]
        assert np.abs(np.concatenate(steps) - rows.logits[:keep]).max() < 1e-12  # type: ignore[arg-type]
        replayed = {i: s.copy() for i, s in cache.recurrent.items()}
        rings = {i: s.copy() for i, s in cache.conv.items()}
        model.restore(cache, snap)
        model.verify(ids, 7, cache)
        model.commit_prefix(cache, snap, rows.ckpt, keep)
        assert cache.pos == 7 + keep
        for i, state in replayed.items():
            assert np.abs(cache.recurrent[i] - state).max() < 1e-13
            assert np.abs(cache.conv[i] - rings[i]).max() < 1e-13
    assert taps.any(axis=1).all()


def test_a_target_of_another_family_is_refused() -> None:
    content = json.loads((golden_folder("qwen3-dense") / "config.json").read_text())
    with pytest.raises(ValueError, match="model_type"):
        build_target(content | {"model_type": "gemma4"}, {})
