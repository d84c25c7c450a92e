"""The next-token block: alignment, its own exit, and steps that equal the whole pass."""

import numpy as np
import pytest

from oracle.block import collapse_exit
from oracle.laws import LAWS
from oracle.nextn import entry, new_nextn_cache, nextn_forward, nextn_step
from oracle.trunk import build_model, forward
from tests.goldens import golden
from tests.oracle.tiny_models import relative, some_tokens, tiny, with_nextn


@pytest.mark.parametrize("law", ["smooth", "exact"])
@pytest.mark.parametrize("sizes", [(1,), (5, 1, 2), (9, 3), (24,)], ids=str)
def test_any_chunking_gives_the_stateless_rows(law, sizes):
    model, tokens = with_nextn(law), some_tokens(25)
    state = forward(model, tokens[:-1]).state
    want = nextn_forward(model, state, tokens[1:])
    cache, rows, at, turn = new_nextn_cache(model), [], 0, 0
    while at < len(state):
        size = sizes[turn % len(sizes)]
        part = slice(at, at + size)
        rows.append(nextn_step(model, cache, state[part], tokens[1:][part], at))
        at, turn = at + size, turn + 1
    assert relative(np.concatenate(rows), want) < 1e-12


def test_a_row_joins_a_state_with_the_token_after_it():
    model, tokens = with_nextn(), some_tokens(11)
    state = forward(model, tokens[:-1]).state
    logits = nextn_forward(model, state, tokens[1:])
    other = tokens.copy()
    other[10] = (other[10] + 1) % 256
    again = nextn_forward(model, state, other[1:])
    assert relative(again[:9], logits[:9]) < 1e-12  # the last token touches the last row only
    assert relative(again[9:], logits[9:]) > 1e-3


def test_the_entry_normalises_every_copy_on_its_own():
    model, n = with_nextn(), with_nextn().weights.nextn
    state = np.random.default_rng(0).standard_normal((3, 4, 128))
    got = entry(model, state, [1, 2, 3])
    for t in range(3):
        e = model.weights.embed[t + 1]
        e = e / np.sqrt(np.mean(e**2) + 1e-6) * n.enorm
        for m in range(4):
            h = state[t, m] / np.sqrt(np.mean(state[t, m] ** 2) + 1e-6) * n.hnorm
            want = n.e_proj.values @ e + n.h_proj.values @ h
            np.testing.assert_allclose(got[t, m], want, rtol=1e-12, atol=1e-12)


def test_the_block_has_an_exit_of_its_own_and_the_trunks_head():
    model, tokens = with_nextn(), some_tokens(8)
    seen = {}
    logits = nextn_forward(model, forward(model, tokens).state, tokens, seen.__setitem__)
    n, cond = model.weights.nextn, model.conditions
    x = cond.norm(collapse_exit(cond, n.exit, seen["state"]), n.exit.norm)
    np.testing.assert_allclose(logits, x @ model.weights.head.values.T, rtol=1e-12, atol=1e-12)


def test_bad_calls_are_refused():
    model = with_nextn()
    state = forward(model, some_tokens(4)).state
    with pytest.raises(ValueError, match="following tokens"):
        nextn_forward(model, state, [1, 2, 3])
    with pytest.raises(ValueError, match="following tokens"):
        nextn_forward(model, state, [1, 2, 3, 256])
    with pytest.raises(ValueError, match="holds 64 positions"):
        nextn_step(model, new_nextn_cache(model), state, [1, 2, 3, 4], 61)
    with pytest.raises(ValueError, match="no next-token block"):
        nextn_forward(tiny(), state, [1, 2, 3, 4])


def test_recorded_logits_of_the_block_are_met():
    recorded = golden("tiny-nextn")
    model = build_model(recorded.config, recorded.tensors, LAWS["smooth"])
    output = forward(model, recorded.ids)
    assert relative(output.state, recorded.arrays["smooth.trunk.h"]) < 2e-5
    logits = nextn_forward(model, output.state, recorded.ids)[-1]
    assert relative(logits, recorded.arrays["smooth.mtp.logits"]) < 2e-5
