"""DSpark: rings from committed rows only, pure drafts, the token chain, and recorded drafts."""

import numpy as np
import pytest

from lab.oracle_run import end_to_end
from oracle.conditions import Conditions
from oracle.drafter import (
    draft,
    ingest,
    main_rows,
    main_stream,
    new_drafter_cache,
)
from oracle.laws import LAWS
from oracle.trunk import build_model, forward, new_cache, run_layer, step
from tests.goldens import golden
from tests.oracle.tiny_models import relative, some_tokens, tiny, with_nextn


def primed(model, tokens, pieces):
    """Rings after the taps of these tokens, handed over in pieces of these sizes."""
    taps, rings, at = forward(model, tokens).taps, new_drafter_cache(model), 0
    for size in pieces:
        ingest(model, rings, taps[at : at + size])
        at += size
    assert at == len(tokens)
    return rings


@pytest.mark.parametrize("law", ["smooth", "exact"])
@pytest.mark.parametrize("pieces", [(20,), (1,) * 20, (3, 9, 8), (7, 1, 12)], ids=str)
def test_rings_do_not_depend_on_how_rows_were_handed_over(law, pieces):
    model, tokens = tiny(law), some_tokens(20)
    got, want = primed(model, tokens, pieces), primed(model, tokens, (5, 5, 5, 5))
    for a, b in zip(got.rings, want.rings, strict=True):
        assert relative(a, b) < 1e-12
    assert got.next == 20


def test_a_ring_holds_the_last_window_of_positions():
    model, tokens = tiny(), some_tokens(21)
    rings, taps = primed(model, tokens, (21,)), forward(model, tokens).taps
    positions = np.arange(13, 21)
    for stage, ring in enumerate(rings.rings):
        rows = main_rows(model, stage, main_stream(model, taps[13:]), positions)
        assert relative(ring[positions % 8], rows) < 1e-12


@pytest.mark.parametrize("committed", [1, 2, 5, 7, 8, 9, 20])
def test_a_draft_leaves_no_trace_and_repeats(committed):
    model = tiny("exact")
    rings = primed(model, some_tokens(committed), (committed,))
    before = [ring.copy() for ring in rings.rings]
    first, again = draft(model, rings, 7), draft(model, rings, 7)
    assert first.tokens.tobytes() == again.tokens.tobytes()
    assert first.logits.tobytes() == again.logits.tobytes()
    assert first.confidence.tobytes() == again.confidence.tobytes()
    for ring, old in zip(rings.rings, before, strict=True):
        assert ring.tobytes() == old.tobytes()


def test_slots_that_were_never_written_are_not_seen():
    model = tiny()
    rings = primed(model, some_tokens(3), (3,))
    clean = draft(model, rings, 7).logits
    for ring in rings.rings:
        ring[3:] = 1e6
    assert draft(model, rings, 7).logits.tobytes() == clean.tobytes()


def test_every_proposal_is_the_argmax_after_the_token_before_it():
    model = tiny()
    d, weights = draft(model, primed(model, some_tokens(12), (12,)), 9), model.weights.drafter
    assert d.tokens[0] == 9 and len(d.tokens) == 4
    assert d.tokens[1:].tolist() == np.argmax(d.logits, axis=1).tolist()
    cond = model.conditions
    base = cond.linear(cond.norm(d.hidden, weights.exit.norm), model.weights.head)
    for i in range(3):
        bias = weights.markov_w2.values @ weights.markov_w1[d.tokens[i]]
        np.testing.assert_allclose(d.logits[i], base[i] + bias, rtol=1e-12, atol=1e-12)
        features = np.concatenate([d.hidden[i], weights.markov_w1[d.tokens[i]]])
        assert d.confidence[i] == pytest.approx(float(weights.confidence.values[0] @ features))


def test_rows_of_a_block_see_later_rows_of_it():
    # The noise rows are the same tokens at different places; without a causal mask the first
    # row's logits change when a later row's embedding does.
    model = tiny()
    rings = primed(model, some_tokens(12), (12,))
    first = draft(model, rings, 9).hidden[0]
    noise = model.config.dspark_noise_token_id
    embed = model.weights.embed
    kept = embed[noise].copy()
    try:
        embed[noise] = embed[3]
        assert relative(draft(model, rings, 9).hidden[0], first) > 1e-4
    finally:
        embed[noise] = kept


def test_a_second_sequence_starts_with_empty_rings():
    model = tiny()
    used = primed(model, some_tokens(20), (20,))
    used.reset()
    ingest(model, used, forward(model, some_tokens(4, seed=3)).taps)
    fresh = primed(model, some_tokens(4, seed=3), (4,))
    assert draft(model, used, 1).logits.tobytes() == draft(model, fresh, 1).logits.tobytes()


def test_bad_calls_are_refused():
    model = tiny()
    with pytest.raises(ValueError, match="0 positions ingested"):
        draft(model, new_drafter_cache(model), 1)
    rings = primed(model, some_tokens(4), (4,))
    for token in (-1, 256):
        with pytest.raises(ValueError, match="0..255"):
            draft(model, rings, token)
    with pytest.raises(ValueError, match="no DSpark drafter"):
        new_drafter_cache(with_nextn())


def test_a_draft_at_the_end_of_the_cache_still_has_positions():
    model = tiny(capacity=24)
    rings = primed(model, some_tokens(24), (24,))
    assert np.isfinite(draft(model, rings, 1).logits).all()
    rings.next += 2
    with pytest.raises(ValueError, match="rope table"):
        draft(model, rings, 1)


def test_drafts_follow_the_recorded_ones_without_quantisers():
    recorded = golden("tiny-s")
    got = end_to_end(recorded, build_model(recorded.config, recorded.tensors, LAWS["smooth"]))
    assert (got["spec.out_ids"] == recorded.arrays["smooth.spec.out_ids"]).all()
    for name in ("spec.logits", "spec.confidence"):
        assert relative(got[name], recorded.arrays[f"smooth.{name}"]) < 2e-6


def scalar_root(cond, q):
    """The per-head norm with the recorded run's root: it was made on a CPU, whose loop over the
    rows beyond a multiple of 64 heads rounds the root to bf16 before it inverts it."""
    b = cond.law.rounded
    mean = b(np.mean(b(q * q), axis=-1, keepdims=True))
    w = b(mean + cond.config.norm_eps)
    inverse, twice = b(1.0 / np.sqrt(w)), b(1.0 / b(np.sqrt(w)))
    inverse.reshape(-1)[inverse.size // 64 * 64 :] = twice.reshape(-1)[inverse.size // 64 * 64 :]
    return b(q * inverse)


def test_ref_is_the_recorded_bytes_once_their_root_is_imitated(monkeypatch):
    # Proof of every other rounding point, in prefill, in decode form, and in the drafter.
    recorded = golden("tiny-s")
    model = build_model(recorded.config, recorded.tensors, LAWS["ref"])
    monkeypatch.setattr(Conditions, "head_norm", scalar_root)
    arrays, prompt = recorded.arrays, recorded.prompt
    for layer in range(1, 4):
        got = run_layer(model, layer, arrays[f"prefill.layer{layer - 1}"], recorded.ids[:prompt])
        assert np.mean(got == arrays[f"prefill.layer{layer}"]) > 0.95
    rings = new_drafter_cache(model)
    ingest(model, rings, arrays["prefill.main_hidden"].astype(np.float32))
    close = []
    for taps, tokens, logits in zip(
        arrays["decode.main_hidden"], arrays["spec.out_ids"], arrays["spec.logits"], strict=True
    ):
        ingest(model, rings, taps[None].astype(np.float32))
        error = np.abs(draft(model, rings, int(tokens[0])).logits - logits).max(axis=1)
        close.append(error < 1e-5 * np.abs(logits).max())
    assert np.mean(close) > 0.6


def test_taps_of_decode_steps_are_those_of_the_whole_pass():
    model, tokens = tiny(), some_tokens(14)
    cache = new_cache(model)
    step(model, cache, tokens[:9])
    taps = np.concatenate([step(model, cache, [t]).taps for t in tokens[9:]])
    assert relative(taps, forward(model, tokens).taps[9:]) < 1e-12
