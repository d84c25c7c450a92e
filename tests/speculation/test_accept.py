"""Acceptance, greedy and sampled, and that a sampled round draws from the target (T8-T11)."""

import numpy as np
import pytest

from dsv4.speculation.accept import accept_prefix, rejection_len
from dsv4.speculation.philox import host_uniforms
from dsv4.speculation.sampling import residual_draw
from tests.speculation.refusing import refuses

TRIALS = 200_000
P = np.array([0.30, 0.22, 0.15, 0.12, 0.09, 0.06, 0.04, 0.02])
DENSE = P[::-1].copy()
SPARSE = np.array([0, 0.7, 0, 0.3, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("p", "q", "u", "kept"),
    [
        ([0.5, 0.5], [0.5, 0.5], [0.9, 0.9], 2),
        ([0.5, 0.5], [0.5, 0.5], [1.0, 0.0], 0),
        ([0.25], [0.5], [0.5], 0),
        ([1e-6], [0], [0.999], 1),
        ([0.9, 0, 0.9], [0.1, 0.9, 0.1], [0.5] * 3, 1),
    ],
)
def test_drafts_stay_while_u_q_is_below_p(
    p: list[float], q: list[float], u: list[float], kept: int
) -> None:
    assert rejection_len(p, q, u) == kept


def test_every_judged_draft_needs_its_numbers() -> None:
    with refuses("accept-length"):
        rejection_len([0.5, 0.5], [0.5], [0.1, 0.1])
    with refuses("accept-length"):
        rejection_len([0.5, 0.5], [0.5, 0.5], [0.1])


def test_a_greedy_round_keeps_the_common_prefix() -> None:
    assert accept_prefix([7, 1, 2, 3], [1, 2, 9, 9]) == 2
    assert accept_prefix([7, 1, 2, 3], [1, 2, 3, 4]) == 3
    assert accept_prefix([7, 1, 2, 3], [5, 1, 2, 3]) == 0
    # Only what was verified is judged.
    assert accept_prefix([7, 1, 2, 3], [1, 2]) == 1


def composed(
    q: np.ndarray, *, inverted: bool = False, ignores_q: bool = False
) -> tuple[float, float]:
    """Total variation between rounds of one draft and the target, and the share accepted."""
    counts, accepted, cumulative = np.zeros(len(P)), 0, np.cumsum(q).tolist()
    for draw, judge, rest in host_uniforms(7, 0, 3 * TRIALS).astype(float).reshape(-1, 3):
        x = next((i for i, c in enumerate(cumulative) if draw < c), len(q) - 1)
        keeps = rejection_len(P[x : x + 1], q[x : x + 1], [judge]) == 1
        if keeps != inverted:
            accepted += 1
        else:
            x = residual_draw(P, np.zeros_like(q) if ignores_q else q, rest, 0)
        counts[x] += 1
    return float(np.abs(counts / TRIALS - P).sum() / 2), accepted / TRIALS


@pytest.mark.parametrize(
    ("q", "distance", "rate"), [(DENSE, 0.00165, 0.42028), (SPARSE, 0.00190, 0.33932)]
)
def test_a_round_draws_from_the_target(q: np.ndarray, distance: float, rate: float) -> None:
    found, accepted = composed(q)
    assert found < 0.01
    assert found == pytest.approx(distance, abs=1e-5)
    assert accepted == pytest.approx(rate, abs=1e-5)


def test_an_inverted_rule_is_noticed() -> None:
    assert composed(DENSE, inverted=True)[0] == pytest.approx(0.42994, abs=1e-5)


def test_a_residual_that_forgets_q_is_noticed() -> None:
    assert composed(SPARSE, ignores_q=True)[0] == pytest.approx(0.22402, abs=1e-5)


def test_a_residual_is_drawn_from_what_the_target_has_more_of() -> None:
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.6, 0.1, 0.3])
    assert {residual_draw(p, q, u, 9) for u in (1e-9, 0.5, 1.0)} == {1}
    assert residual_draw(p, p, 0.5, 9) == 9
