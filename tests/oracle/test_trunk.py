"""The trunk: definition and caches agree at every boundary, whatever the pieces of the prompt."""

import functools

import numpy as np
import pytest

from oracle.attention_block import attention
from oracle.block import enter
from oracle.hyper import mixing_logits
from oracle.laws import LAWS
from oracle.trunk import entry_state, forward, new_cache, run_layer, step, tap, under_law
from tests.goldens import golden
from tests.oracle.tiny_models import coarse, odd, relative, some_tokens, tiny

# Blocks of 4 and 8, a window of 8, and 3 blocks chosen of 3 or 4: every place where a list changes.
EDGES = (1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 24, 25)


def in_pieces(model, tokens, sizes):
    """(logits, states, taps) of all rows, the sequence fed in pieces of these sizes, repeated."""
    cache, rows, at, turn = new_cache(model), [], 0, 0
    while at < len(tokens):
        size = sizes[turn % len(sizes)]
        rows.append(step(model, cache, tokens[at : at + size]))
        at, turn = at + size, turn + 1
    return (
        np.concatenate([o.logits for o in rows]),
        np.concatenate([o.state for o in rows]),
        np.concatenate([o.taps for o in rows]),
    )


@functools.lru_cache(maxsize=2)
def stateless(variant, law, count, seed):
    return forward(variant(law), some_tokens(count, seed))


def assert_same_everywhere(variant, law, sizes, *, count, seed=0):
    model, tokens = variant(law), some_tokens(count, seed)
    whole = stateless(variant, law, count, seed)
    for got, want in zip(
        in_pieces(model, tokens, sizes), (whole.logits, whole.state, whole.taps), strict=True
    ):
        assert relative(got, want) < 1e-12


@pytest.mark.parametrize("sizes", [(1,), (3,), (7, 1, 2), (20, 1), (40,)], ids=str)
@pytest.mark.parametrize("law", ["smooth", "exact"])
def test_any_chunking_gives_the_stateless_rows(law, sizes):
    assert_same_everywhere(tiny, law, sizes, count=40)


@pytest.mark.parametrize("sizes", [(1,), (4, 1, 11), (22, 3)], ids=str)
@pytest.mark.parametrize("law", ["smooth", "exact"])
def test_nothing_rests_on_coincidences_of_one_configuration(law, sizes):
    assert_same_everywhere(odd, law, sizes, count=25)


@pytest.mark.parametrize("law", ["deq64", "engine"])
def test_chunking_is_nothing_to_the_other_float64_laws(law):
    assert_same_everywhere(tiny, law, (7, 1, 2), count=27)


@pytest.mark.parametrize("law", ["smooth", "exact"])
@pytest.mark.parametrize("first", EDGES)
def test_a_prompt_of_any_length_continues_token_by_token(law, first):
    assert_same_everywhere(tiny, law, (first, 1, 1, 1), count=first + 3, seed=first)


@pytest.mark.parametrize(
    "sizes", [(126, 1, 1, 1, 1, 124, 1, 1, 1, 1), (129, 127, 1, 1), (255, 3)], ids=str
)
@pytest.mark.parametrize("law", ["smooth", "exact"])
def test_blocks_of_128_end_where_they_should(law, sizes):
    assert_same_everywhere(coarse, law, sizes, count=258)


@pytest.mark.parametrize("law", ["smooth", "exact"])
def test_a_second_sequence_knows_nothing_of_the_first(law):
    model, cache = tiny(law), new_cache(tiny(law))
    step(model, cache, some_tokens(31, seed=1))
    cache.reset()
    fresh = new_cache(model)
    for piece in np.split(some_tokens(9, seed=2), (2, 3, 7)):
        again, first = step(model, cache, piece), step(model, fresh, piece)
        assert again.logits.tobytes() == first.logits.tobytes()


def test_the_caches_hold_what_the_state_machine_says():
    model, cache = tiny(), new_cache(tiny())
    step(model, cache, some_tokens(22))
    assert cache.position == 22
    assert [cache.blocks(n) for n in range(4)] == [0, 5, 2, 5]
    fine, plain = cache.layers[1], cache.layers[2]
    assert fine.compressed.store.any(axis=1).sum() == 5  # nothing beyond the complete blocks
    assert fine.index.store.any(axis=1).sum() == 5
    assert plain.compressed.pending_kv.shape == (8, 128)
    assert fine.compressed.pending_kv.shape == (8, 256)
    once = new_cache(model)
    for token in some_tokens(22):
        step(model, once, [token])
    for a, b in ((fine.compressed, once.layers[1].compressed), (fine.index, once.layers[1].index)):
        assert relative(a.pending_kv, b.pending_kv) < 1e-12
        assert relative(a.pending_score, b.pending_score) < 1e-12
    assert relative(fine.ring, once.layers[1].ring) < 1e-12


def test_before_a_block_is_complete_nothing_precedes_it():
    model, cache = tiny(), new_cache(tiny())
    step(model, cache, some_tokens(3))
    pending = cache.layers[1].compressed
    assert (
        np.isneginf(pending.pending_score[:4]).all() and np.isneginf(pending.pending_score[7]).all()
    )
    assert np.isfinite(pending.pending_score[4:7]).all()


def test_a_row_does_not_depend_on_later_tokens():
    tokens = some_tokens(30)
    later = tokens.copy()
    later[20:] = (later[20:] + 1) % 256
    a, b = forward(tiny(), tokens), forward(tiny(), later)
    assert relative(a.logits[:20], b.logits[:20]) < 1e-12
    assert relative(a.logits[20:], b.logits[20:]) > 1e-3


@pytest.mark.parametrize("layer", range(4))
def test_single_rows_need_the_history_only(layer):
    model, tokens = tiny(), some_tokens(30)
    block, cond = model.weights.blocks[layer], model.conditions
    collapsed, _ = enter(cond, block.attn_hyper, entry_state(model, tokens))
    x = cond.norm(collapsed, block.attn_norm)
    whole = attention(cond, block.attention, x)
    rows = np.array([0, 3, 8, 17, 29])
    assert relative(attention(cond, block.attention, x, rows), whole[rows]) < 1e-12
    short = attention(cond, block.attention, x[:18], np.array([17]))
    assert relative(short, whole[17:18]) < 1e-12


def test_layers_on_their_recorded_inputs_make_the_whole_pass():
    model, tokens = tiny(), some_tokens(12)
    seen = {}
    output = forward(model, tokens, seen.__setitem__)
    state = entry_state(model, tokens)
    for layer in range(4):
        state = run_layer(model, layer, state, tokens)
        assert state.tobytes() == seen[f"layer{layer}"].tobytes()
    assert output.state.tobytes() == state.tobytes()
    assert (
        output.taps.tobytes()
        == np.concatenate([tap(model, seen[f"layer{n}"]) for n in (2, 3)], axis=1).tobytes()
    )


def test_the_norm_scale_of_mixing_multiplies_after_the_product():
    state = np.random.default_rng(0).standard_normal((2, 4, 8))
    fn = np.random.default_rng(1).standard_normal((24, 32))
    lanes = state.reshape(2, 32)
    scale = 1 / np.sqrt((lanes**2).mean(axis=1) + 1e-6)
    np.testing.assert_allclose(
        mixing_logits(state, fn, eps=1e-6), (lanes @ fn.T) * scale[:, None], rtol=1e-14
    )


def test_a_sequence_longer_than_the_cache_is_refused_before_the_cache_moves():
    model = tiny(capacity=24)
    cache = new_cache(model)
    step(model, cache, some_tokens(20))
    ring = cache.layers[0].ring.copy()
    with pytest.raises(ValueError, match=r"25 tokens[^$]* the cache holds 24"):
        step(model, cache, some_tokens(5))
    assert cache.position == 20 and cache.layers[0].ring.tobytes() == ring.tobytes()
    step(model, cache, some_tokens(4))


@pytest.mark.parametrize("tokens", [[], [[1]], [-1], [256]], ids=str)
def test_tokens_that_are_none_are_refused(tokens):
    with pytest.raises(ValueError, match="tokens"):
        forward(tiny(), tokens)


@pytest.mark.parametrize("law", LAWS)
def test_a_law_runs_in_its_own_precision(law):
    output = forward(tiny(law), some_tokens(10))
    assert output.logits.dtype == (np.float32 if LAWS[law].single else np.float64)
    assert np.isfinite(output.logits).all()


def test_rounding_moves_logits_and_smooth_does_not_round():
    recorded, tokens = golden("tiny-s"), some_tokens(10)
    smooth = forward(tiny("smooth"), tokens).logits
    for law in ("exact", "deq64", "engine"):
        assert 1e-4 < relative(forward(tiny(law), tokens).logits, smooth) < 0.5
    single = under_law(recorded.config, tiny("smooth").weights, LAWS["smooth"], 64)
    assert forward(single, tokens).logits.tobytes() == smooth.tobytes()
