"""The router: known values, a decimal twin, ties, both ends of softplus, ids that are none."""

import functools
from collections.abc import Callable
from decimal import Decimal, localcontext
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.errors import LaunchError
from dsv4.runtime.hostdevice import HostDevice
from lab.testing import contract_tests, run_kernel, speed_tests
from oracle import router as oracle

Run = Callable[..., SimpleNamespace]

test_contract_router = contract_tests("router")
test_contract_router_hash = contract_tests("router_hash")
test_speed_router = speed_tests("router")
test_speed_router_hash = speed_tests("router_hash")

KNOWN_RAW = np.array([[0.5, -1, 2, 25, 0]], np.float32)
KNOWN_BIAS = np.array([0, 3.5, 0, -5, 0.9], np.float32)

on_host = functools.partial(run_kernel, device=HostDevice())


def route(raw: np.ndarray, bias: np.ndarray, active: int, scale: float = 1.5) -> SimpleNamespace:
    tokens, experts = raw.shape
    return on_host("router", T=tokens, E=experts, A=active, raw=raw, bias=bias, scale=scale)


def score_in_decimals(raw: float) -> float:
    """The twin of a score: 150 digits, so that 1 + e^-215 keeps its tail; rounded once."""
    with localcontext() as context:
        context.prec, context.Emin = 150, -(10**6)
        g = Decimal(raw)
        return float(np.float32(float((g if g > 20 else (1 + g.exp()).ln()).sqrt())))


# ------------------------------------------------------------------ the oracle


def test_known_scores_and_weights(run: Run) -> None:
    # g = (0.5, -1, 2, 25, 0): s = sqrt(ln(1 + e^g)), 25 is above 20, so s = 5. s + bias =
    # (0.99, 4.06, 1.46, 0, 1.73): experts 1 and 4 with shares 0.5597 and 0.8326 of their sum.
    scores = oracle.expert_scores(KNOWN_RAW.astype(np.float64))[0]
    assert np.allclose(scores, [0.986953385, 0.559697854, 1.458399126, 5, 0.832554611], atol=5e-10)
    expected = oracle.router(KNOWN_RAW.astype(float), KNOWN_BIAS.astype(float), scale=1.5, A=2)
    got = run("router", T=1, E=5, A=2, raw=KNOWN_RAW, bias=KNOWN_BIAS, scale=1.5)
    for ids, weights, order in (
        (expected["ids"], expected["weights"].value, expected["order"]),
        (got.ids, got.weights, got.order),
    ):
        assert ids.tolist() == [[1, 4]]
        assert np.allclose(weights, [[0.603013320, 0.896986680]], atol=1e-7)
        assert order.tolist() == [[0, 1]]


@pytest.mark.parametrize("bounds", [(-3, 3), (-100, 100), (-215, -160), (19.9, 20.1)])
def test_oracle_scores_agree_with_decimals(bounds: tuple[float, float]) -> None:
    raw = np.random.default_rng(0).uniform(*bounds, 300).astype(np.float32).astype(np.float64)
    scores = oracle.expert_scores(raw).astype(np.float32)
    expected = np.array([score_in_decimals(g) for g in raw], np.float32)
    assert np.array_equal(scores, expected)


def test_oracle_agrees_with_plain_loops() -> None:
    rng = np.random.default_rng(1)
    raw = rng.integers(-4, 5, (6, 9)) / 2.0  # few values: many ties
    bias = rng.integers(0, 3, 9) / 4.0
    got = oracle.router(raw, bias, scale=2.0, A=4)
    for t in range(6):
        scores = [np.float32(score_in_decimals(g)) for g in raw[t]]
        left = dict(enumerate(float(s + np.float32(b)) for s, b in zip(scores, bias, strict=True)))
        chosen = []
        for _ in range(4):
            best = max(left.values())
            chosen.append(min(e for e, key in left.items() if key == best))
            del left[chosen[-1]]
        assert got["ids"][t].tolist() == chosen
        total = sum(float(scores[e]) for e in chosen)
        shares = [float(scores[e]) / total * 2.0 for e in chosen]
        assert np.allclose(got["weights"].value[t], shares, rtol=1e-14, atol=0)
        assert [chosen[slot] for slot in got["order"][t]] == sorted(chosen)


def test_bias_selects_and_never_weighs() -> None:
    raw = np.array([[1.0, 2.0, 0.5]])
    plain = oracle.router(raw, np.zeros(3), scale=1.0, A=3)
    biased = oracle.router(raw, np.array([9.0, 0.0, 27.0]), scale=1.0, A=3)
    assert biased["ids"].tolist() == [[2, 0, 1]]
    by_expert = biased["weights"].value[0, np.argsort(biased["ids"][0])]
    assert np.allclose(by_expert, plain["weights"].value[0, np.argsort(plain["ids"][0])])


# ------------------------------------------------------------------ ties, NaN, zeros


def test_equal_keys_go_to_the_lowest_ids(run: Run) -> None:
    got = run("router", T=2, E=256, A=6, raw=-0.5, bias=2.0, scale=1.5)
    assert got.ids.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("raw", [-1000.0, -300.0, -np.inf])
def test_scores_that_are_all_zero_give_equal_weights_and_no_nan(raw: float, run: Run) -> None:
    got = run("router", T=1, E=8, A=3, raw=raw, bias=0.0, scale=1.5)
    assert got.weights.tolist() == [[0.5, 0.5, 0.5]]
    table = np.array([[7, 2, 5]], np.int64)
    tokens = np.zeros(1, np.int32)
    hashed = run("router_hash", T=1, E=8, A=3, V=1, raw=raw, table=table, tokens=tokens, scale=1.5)
    assert hashed.weights.tolist() == [[0.5, 0.5, 0.5]]


def test_logits_far_below_zero_keep_their_ratio(run: Run) -> None:
    # sqrt(softplus(g)) is e^(g/2) there: one apart in g means e^0.5 in the score. The naive
    # ln(1 + e^g) is 0 from g = -17 on, and expf(-110) is 0.
    for base in (-20.0, -60.0, -110.0, -170.0):
        raw = np.array([[base, base - 1]], np.float32)
        got = run("router", T=1, E=2, A=2, raw=raw, bias=0.0, scale=1.0)
        assert np.isclose(got.weights[0, 0] / got.weights[0, 1], np.exp(0.5), rtol=1e-5)


def test_nan_is_chosen_last_and_makes_only_its_tokens_weights_nan(run: Run) -> None:
    raw = np.array([[np.nan, 1, np.nan, -5], [0, 1, 2, 3]], np.float32)
    two = run("router", T=2, E=4, A=2, raw=raw, bias=0.0, scale=1.0)
    assert two.ids.tolist() == [[1, 3], [3, 2]]
    assert np.isfinite(two.weights).all()
    three = run("router", T=2, E=4, A=3, raw=raw, bias=0.0, scale=1.0)
    assert three.ids.tolist() == [[1, 3, 0], [3, 2, 1]]
    assert np.isnan(three.weights[0]).all() and np.isfinite(three.weights[1]).all()


def test_minus_infinity_still_beats_nan(run: Run) -> None:
    bias = np.array([np.nan, -np.inf, -np.inf, np.nan], np.float32)
    got = run("router", T=1, E=4, A=4, raw=0.0, bias=bias, scale=1.0)
    assert got.ids.tolist() == [[1, 2, 0, 3]]


# ------------------------------------------------------------------ the table


@pytest.mark.parametrize("stray", [-1, 8, 2**32 + 3, -(2**63), 2**63 - 1])
def test_a_table_entry_that_is_no_expert_becomes_minus_one(stray: int, run: Run) -> None:
    table = np.array([[1, stray, 3], [4, 5, 6]], np.int64)
    tokens = np.array([0, 1], np.int32)
    got = run("router_hash", T=2, E=8, A=3, V=2, table=table, tokens=tokens, scale=1.0)
    assert got.ids.tolist() == [[1, -1, 3], [4, 5, 6]]
    assert np.isnan(got.weights[0]).all() and np.isfinite(got.weights[1]).all()
    assert got.order.tolist() == [[1, 0, 2], [0, 1, 2]]


@pytest.mark.parametrize("token", [-1, 2, 2**31 - 1, -(2**31)])
def test_a_token_without_a_row_reads_nothing(token: int, run: Run) -> None:
    table = np.array([[1, 2], [4, 5]], np.int64)
    tokens = np.array([token], np.int32)
    got = run("router_hash", T=1, E=8, A=2, V=2, table=table, tokens=tokens, scale=1.0)
    assert got.ids.tolist() == [[-1, -1]]
    assert np.isnan(got.weights).all()


def test_the_table_gives_the_weights_that_the_same_choice_by_score_gives(run: Run) -> None:
    raw = np.random.default_rng(2).standard_normal((3, 16)).astype(np.float32)
    chosen = run("router", T=3, E=16, A=4, raw=raw, bias=0.0, scale=1.5)
    hashed = run(
        "router_hash", T=3, E=16, A=4, V=3, raw=raw, table=chosen.ids.astype(np.int64),
        tokens=np.arange(3, dtype=np.int32), scale=1.5,
    )  # fmt: skip
    for name in ("ids", "weights", "order"):
        assert getattr(hashed, name).tobytes() == getattr(chosen, name).tobytes()


def test_more_experts_than_there_are_is_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="experts of a token are distinct"):
        run("router", T=1, E=4, A=5, scale=1.0)
    with pytest.raises(LaunchError, match="at most 32 experts"):
        run("router", T=1, E=1025, A=5, scale=1.0)
    with pytest.raises(LaunchError, match="one a lane"):
        run("router", T=1, E=64, A=33, scale=1.0)


# ------------------------------------------------------------------ properties

logits = st.lists(st.floats(-120, 60, width=32), min_size=3, max_size=40)


@settings(deadline=None, max_examples=60)
@given(logits, st.data())
def test_the_choice_is_a_top_set_with_shares_that_sum_to_the_scale(
    row: list[float], data: st.DataObject
) -> None:
    raw = np.array([row], np.float32)
    bias = np.array(
        data.draw(st.lists(st.floats(-2, 2, width=32), min_size=len(row), max_size=len(row))),
        np.float32,
    )
    active = data.draw(st.integers(1, min(len(row), 8)))
    got = route(raw, bias, active)
    ids = got.ids[0]
    assert len(set(ids.tolist())) == active
    keys = oracle.expert_scores(raw[0].astype(np.float64)).astype(np.float32) + bias
    assert (np.diff(keys[ids]) <= 0).all()
    assert keys[ids[-1]] >= np.delete(keys, ids).max(initial=-np.inf)
    assert (np.diff(ids[got.order[0]]) > 0).all()
    assert np.isclose(got.weights.sum(), 1.5, rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(logits, st.randoms(use_true_random=False))
def test_renaming_the_experts_renames_the_choice(row: list[float], random: object) -> None:
    raw = np.array([sorted(set(row))], np.float32)
    scores = oracle.expert_scores(raw.astype(np.float64)).astype(np.float32)[0]
    if len(set(scores.tolist())) < len(scores):
        return  # a tie goes by the name, so renaming may change it
    renamed = np.arange(raw.size)
    random.shuffle(renamed)  # type: ignore[attr-defined]
    active = min(3, raw.size)
    zero = np.zeros(raw.size, np.float32)
    plain, moved = route(raw, zero, active), route(raw[:, renamed], zero, active)
    assert renamed[moved.ids[0]].tolist() == plain.ids[0].tolist()
    assert moved.weights.tobytes() == plain.weights.tobytes()


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_a_token_is_routed_as_if_it_were_alone(tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((tokens, 33)).astype(np.float32)
    bias = rng.standard_normal(33).astype(np.float32)
    together = route(raw, bias, 5)
    for t in range(tokens):
        alone = route(raw[t : t + 1].copy(), bias, 5)
        assert alone.ids.tobytes() == together.ids[t].tobytes()
        assert alone.weights.tobytes() == together.weights[t].tobytes()
