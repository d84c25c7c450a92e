"""Sampled runs of the real loop draw what the target alone would, and faults are noticed.

Numbers of the counter-based streams are looked up in tables made at once, and a row's filters are
worked out once, which changes none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsv4.speculation import accept, philox, sampling
from dsv4.speculation.loops import generate
from dsv4.speculation.sampling import (
    HostSampler,
    SpecSampling,
    filter_stats,
    filtered,
    gumbel_draw,
    residual_draw,
)
from dsv4.speculation.switches import Switches
from tests.speculation import scripted
from tests.speculation.scripted import TARGET, ScriptedDrafter, ScriptedTarget, V

TRIALS = 200_000
SEED = 7
CUT = SpecSampling(0.8, SEED, top_k=4, top_p=0.95)
PROMPT = [1, 2]
ARMS = {
    "chain": (ScriptedDrafter("chain"), Switches()),
    "rows": (ScriptedDrafter("rows"), Switches(adapt=False)),
    "selector": (ScriptedDrafter("selector"), Switches()),
    "confidence": (ScriptedDrafter("chain", sure=True), Switches(policy="confidence-slot")),
}


def remembering(known: dict[Any, np.ndarray], name: str) -> Callable[..., np.ndarray]:
    """A function of a row and more that is worked out once for every row."""
    work: Callable[..., np.ndarray] = getattr(sampling, name)

    def look_up(row: np.ndarray, *rest: Any) -> np.ndarray:
        more = (x.tobytes() if isinstance(x, np.ndarray) else x for x in rest)
        key = (name, row.tobytes(), *more)
        if key not in known:
            known[key] = work(row, *rest)
        return known[key]

    return look_up


@pytest.fixture
def tabled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the streams of the seed up to that many events and lets the loop look them up."""

    def table(count: int) -> None:
        events = np.arange(count)
        blocks = np.arange(-(-V // 4))[None, :]
        words = np.stack(philox.philox(SEED, blocks, events[:, None]), axis=2)
        gumbel = words.reshape(count, -1)[:, :V]
        rest = philox.open_uniform(philox.philox(SEED, philox.RESIDUAL, events)[0]).astype(float)
        host = philox.host_uniforms(SEED, 0, count).astype(float).tolist()
        for n in (0, 1, count - 1):
            assert np.array_equal(gumbel[n], philox.gumbel_words(SEED, n, V))
            assert (rest[n], host[n]) == (philox.residual_u01(SEED, n), philox.host_u01(SEED, n))
        rest = rest.tolist()
        known: dict[Any, np.ndarray] = {}
        for name in ("filter_stats", "filtered"):
            monkeypatch.setattr(sampling, name, remembering(known, name))
        monkeypatch.setattr(sampling, "gumbel_words", lambda seed, event, size: gumbel[event])
        monkeypatch.setattr(sampling, "residual_u01", lambda seed, event: rest[event])
        for module in (accept, scripted):
            monkeypatch.setattr(module, "host_u01", lambda seed, n: host[n])

    return table


def wanted(settings: SpecSampling) -> np.ndarray:
    """What the target alone draws after two tokens, [2,V,V]."""
    rows = [filtered(row, filter_stats(row, settings), settings.temp)
            for row in TARGET.reshape(-1, V)]  # fmt: skip
    return np.stack(rows).reshape(2, V, V)


def distance(tokens: list[int], settings: SpecSampling) -> float:
    """Total variation between tokens and the target's own, over all contexts together."""
    seen = np.array([*PROMPT, *tokens])
    counts = np.zeros((2, V, V))
    np.add.at(counts, (seen[:-2] % 2, seen[1:-1], seen[2:]), 1)
    expected = counts.sum(axis=2, keepdims=True) * wanted(settings)
    return float(np.abs(counts - expected).sum() / 2 / counts.sum())


def drawn(arm: str, count: int) -> Any:
    drafter, switches = ARMS[arm]
    found = generate(
        ScriptedTarget(),
        drafter,
        PROMPT,
        count,
        sampling=CUT,
        switches=switches,  # type: ignore[arg-type]
    )
    assert len(found.tokens) == count
    return found


@pytest.mark.parametrize("arm", ARMS)
def test_a_long_run_has_the_targets_distribution(arm: str, tabled: Callable[[int], None]) -> None:
    tabled(3 * TRIALS)
    found = drawn(arm, TRIALS)
    assert distance(list(found.tokens), CUT) < 0.01
    assert 0.2 < found.stats.acceptance < 0.95
    if arm == "confidence":
        assert {r.vt for r in found.stats.rounds} == {2, 3}


def fewer(found: Any) -> float:
    return distance(list(found.tokens), CUT)


FAULTY = 20_000


def test_fewer_trials_are_enough_to_notice_a_fault(tabled: Callable[[int], None]) -> None:
    tabled(5 * FAULTY)
    for arm in ARMS:
        assert fewer(drawn(arm, FAULTY)) < 0.02, arm


@pytest.mark.parametrize("arm", ["chain", "selector"])
def test_a_wrong_acceptance_is_noticed(
    arm: str, tabled: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tabled(5 * FAULTY)
    right = accept.rejection_len
    rules: dict[str, Any] = {
        "inverted": lambda p, q, u: right(q, p, u),
        "forgets q": lambda p, q, u: right(p, np.ones_like(q), u),
        "all stay": lambda p, q, u: len(p),
        "one more": lambda p, q, u: min(right(p, q, u) + 1, len(p)),
    }
    for name, rule in rules.items():
        monkeypatch.setattr(accept, "rejection_len", rule)
        assert fewer(drawn(arm, FAULTY)) > 0.05, name


@pytest.mark.parametrize("arm", ["chain", "rows", "selector", "confidence"])
def test_a_wrong_residual_is_noticed(
    arm: str, tabled: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tabled(5 * FAULTY)
    rules: dict[str, Any] = {
        "forgets q": lambda p, q, u, f: residual_draw(p, np.zeros_like(q), u, f),
        "from q": lambda p, q, u, f: residual_draw(q, p, u, f),
    }
    for name, rule in rules.items():
        monkeypatch.setattr(sampling, "residual_draw", rule)
        assert fewer(drawn(arm, FAULTY)) > 0.04, name


def test_filters_of_another_row_are_noticed(
    tabled: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tabled(5 * FAULTY)
    open_stats = np.array([0.0, 0.0, 1.0])

    def unfiltered(row: np.ndarray, stats: np.ndarray, *rest: Any) -> int:
        return gumbel_draw(row, open_stats, *rest)

    monkeypatch.setattr(sampling, "gumbel_draw", unfiltered)
    assert fewer(drawn("chain", FAULTY)) > 0.025


def test_a_window_that_looks_at_the_drafts_themselves_is_noticed(
    tabled: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tabled(5 * FAULTY)
    peeking = ScriptedDrafter("chain", sure=True, peeks=True)
    monkeypatch.setitem(ARMS, "confidence", (peeking, ARMS["confidence"][1]))
    assert fewer(drawn("confidence", FAULTY)) > 0.03


def chi_bound(degrees: int) -> float:
    """The 0.999 quantile of chi-square, by Wilson and Hilferty."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + 3.0902 * spread**0.5) ** 3)


def alone(settings: SpecSampling, count: int) -> list[int]:
    """The target's own draws."""
    target, sampler = ScriptedTarget(), HostSampler()
    cache, out = target.new_cache(99), list[int]()
    row = target.prime(list(PROMPT), cache)[None]
    for event in range(count):
        out.append(sampler.gumbel(row, sampler.stats(row, settings), settings, event))
        row = target.verify(out[-1:], cache.pos, cache, want="logits").logits
    return out


SEEDS, POSITIONS = 800, 4


@pytest.mark.parametrize("filters", [{}, {"top_k": 4, "top_p": 0.95}], ids=str)
def test_every_position_passes_a_chi_square_test_against_the_target_alone(
    filters: dict[str, Any],
) -> None:
    plain = np.array(
        [alone(SpecSampling(0.8, 9_000_000 + i, **filters), POSITIONS) for i in range(SEEDS)]
    )
    for arm, (drafter, switches) in ARMS.items():
        found = np.array([
            generate(
                ScriptedTarget(), drafter, PROMPT, POSITIONS, switches=switches,  # type: ignore[arg-type]
                sampling=SpecSampling(0.8, 1_000_000 + i, **filters),
            ).tokens
            for i in range(SEEDS)
        ])  # fmt: skip
        for position in range(POSITIONS):
            a, b = (np.bincount(x[:, position], minlength=V) for x in (plain, found))
            few = a + b < 10
            a, b = (np.append(x[~few], x[few].sum()) for x in (a, b))
            total = np.maximum(a + b, 1)
            statistic = float(((a - b) ** 2 / total).sum())
            buckets = int((a + b > 0).sum())
            assert statistic < chi_bound(buckets - 1), (arm, position)
