"""A sampled round of two drafts draws from the target, whatever proposed them."""

import numpy as np
import pytest

from dsv4.speculation.accept import accept_sampled
from dsv4.speculation.philox import host_u01
from dsv4.speculation.sampling import (
    Counters,
    HostSampler,
    Proposal,
    RowsProposal,
    SelectorProposal,
    SpecSampling,
    filter_stats,
    filtered,
)

V, TRIALS = 6, 6000
RNG = np.random.default_rng(4)
# What target and drafter say after each token; the chain's first token is 0.
TARGET, DRAFT = RNG.standard_normal((V, V)), RNG.standard_normal((V, V))
SAMPLERS = HostSampler()


def rows_of(table: np.ndarray, first: int, second: int) -> np.ndarray:
    return np.stack([table[0], table[first], table[second]])


def draw(kind: str, sampling: SpecSampling, counters: Counters) -> Proposal:
    if kind == "selector":
        ids = np.array([[0, 2, 4], [1, 3, 5]])
        q = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]], np.float32)
        first = counters.uniforms(2)
        columns = [
            int(np.argmax(host_u01(sampling.seed, first + i) < np.cumsum(q[i]))) for i in range(2)
        ]
        tokens = tuple(int(ids[i, c]) for i, c in enumerate(columns))
        return SelectorProposal(tokens, ids, q, q[[0, 1], columns])
    previous, logits, stats, tokens = 0, [], [], []
    for _ in range(2):
        row = DRAFT[previous][None]
        stats.append(SAMPLERS.stats(row, sampling))
        logits.append(row)
        previous = SAMPLERS.gumbel(row, stats[-1], sampling, counters.events())
        tokens.append(previous)
    return RowsProposal(tuple(tokens), np.concatenate(logits), np.concatenate(stats))


@pytest.mark.parametrize("kind", ["rows", "selector"])
@pytest.mark.parametrize("filters", [{}, {"top_k": 4, "top_p": 0.9}])
def test_the_first_token_of_a_round_has_the_targets_distribution(
    kind: str, filters: dict[str, float]
) -> None:
    sampling = SpecSampling(0.8, seed=12, **filters)  # type: ignore[arg-type]
    counters, counts, accepted_any = Counters(), np.zeros(V), 0
    for _ in range(TRIALS):
        proposal = draw(kind, sampling, counters)
        first, second = proposal.tokens
        rows = rows_of(TARGET, first, second)
        accepted, token = accept_sampled(rows, proposal, 3, sampling, counters, SAMPLERS)
        accepted_any += accepted > 0
        counts[first if accepted else token] += 1
    wanted = filtered(TARGET[0], filter_stats(TARGET[0], sampling), 0.8)
    # Six tokens at six thousand trials: sampling noise is about 0.012.
    assert np.abs(counts / TRIALS - wanted).sum() / 2 < 0.025
    assert 0.1 < accepted_any / TRIALS < 0.95
    assert (counts[wanted == 0] == 0).all()


def test_a_fully_accepted_round_ends_with_a_fresh_draw_of_the_last_row() -> None:
    sampling, counters = SpecSampling(1.0, seed=1), Counters()
    rows = np.full((3, V), -30.0)
    rows[0, 2] = rows[1, 3] = rows[2, 5] = 30.0
    stats = SAMPLERS.stats(rows[:2], sampling)
    proposal = RowsProposal((2, 3), rows[:2], stats)
    assert accept_sampled(rows, proposal, 3, sampling, counters, SAMPLERS) == (2, 5)
    assert (counters.sctr, counters.uctr) == (1, 2)


def test_all_uniforms_of_the_window_are_drawn_after_a_rejection_too() -> None:
    sampling, counters = SpecSampling(1.0, seed=1), Counters()
    rows, wrong = np.full((3, V), -30.0), np.full((2, V), -30.0)
    rows[:, 2], wrong[:, 4] = 30.0, 30.0
    proposal = RowsProposal((4, 4), wrong, SAMPLERS.stats(wrong, sampling))
    assert accept_sampled(rows, proposal, 3, sampling, counters, SAMPLERS) == (0, 2)
    assert (counters.sctr, counters.uctr) == (1, 2)
