"""Greedy streams of every pair equal the target's own; sessions may be cut anywhere."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4.drafters.sampler import DeviceSampler
from dsv4.drafters.weights import load_draft
from dsv4.errors import StateError
from dsv4.runtime.hostdevice import HostDevice
from dsv4.speculation import session
from dsv4.speculation.loops import generate, generate_dense, plain
from dsv4.speculation.sampling import SpecSampling
from dsv4.speculation.switches import Switches
from dsv4.targets.load import load_target
from tests.drafters.pairs import (
    FAMILIES,
    TARGETS,
    Knowing,
    load_pair,
    write_drafter,
    write_target,
)
from tests.speculation.refusing import refuses

PROMPT = [3, 14, 15, 92, 65]
LENGTH = 20
PAIRS = list(itertools.product(TARGETS, FAMILIES))
COLD = SpecSampling(1e-6, seed=42)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    """Each pair with a drafter that knows two thirds of the target's continuation."""
    found = {}
    for kind, family in PAIRS:
        target, drafter = load_pair(tmp_path_factory.mktemp(f"{kind}-{family}"), kind, family)
        stream = plain(target, PROMPT, LENGTH + 12)
        wrong = np.random.default_rng(7).random(64) < 1 / 3
        found[kind, family] = target, Knowing(drafter, stream, wrong, len(PROMPT)), stream
    return found


def variants(kind: str, family: str) -> dict[str, Switches]:
    """Settings that must not show; how states roll back matters to the hybrid target alone."""
    found = {
        "default": Switches(),
        "whole window": Switches(adapt=False),
        "narrow": Switches(verify_t=2),
        "read at once": Switches(defer=False),
        "replayed rounds": Switches(verify_graph=True),
    }
    if kind == "hybrid":
        found |= {
            "three rows": Switches(verify_t=3),
            "replayed": Switches(ckpt=False),
            "gated": Switches(gate=True),
            "gated graphs": Switches(gate=True, verify_graph=True, defer=False),
            "fresh snapshots": Switches(batch_states=False),
        }
    if family == "dspark":
        found |= {p: Switches(policy=p) for p in ("ladder", "confidence", "confidence-slot")}
    return found


@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_a_greedy_stream_is_the_targets_own(kind: str, family: str, pairs: Any) -> None:
    target, drafter, stream = pairs[kind, family]
    for name, switches in variants(kind, family).items():
        found = generate(target, drafter, PROMPT, LENGTH, switches=switches)
        assert list(found.tokens) == stream[:LENGTH], name
        if name != "narrow":
            assert found.stats.tokens_per_round > 1.3, name
        assert (found.sctr, found.uctr) == (0, 0)


@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_no_run_emits_more_than_it_was_asked_for(kind: str, family: str, pairs: Any) -> None:
    target, drafter, stream = pairs[kind, family]
    for count in (0, 1, 2, 9):
        assert list(generate(target, drafter, PROMPT, count).tokens) == stream[:count]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_drafter_that_knows_nothing_changes_no_token(family: str, pairs: Any) -> None:
    target, drafter, stream = pairs["hybrid", family]
    found = generate(target, drafter.drafter, PROMPT, 12)
    assert list(found.tokens) == stream[:12]


def test_an_end_token_ends_the_run_even_inside_an_accepted_run(pairs: Any) -> None:
    target, drafter, stream = pairs["dense", "dspark"]
    for at in (0, 5, 6, 7):
        end = stream[at]
        wanted = stream[: stream.index(end) + 1]
        assert list(generate(target, drafter, PROMPT, LENGTH, eos=(end,)).tokens) == wanted


@pytest.mark.parametrize(("kind", "family"), PAIRS)
@pytest.mark.parametrize("sampling", [None, SpecSampling(0.8, seed=5, top_k=20, top_p=0.95)])
def test_a_session_gives_the_same_stream_however_it_is_cut(
    kind: str, family: str, sampling: SpecSampling | None, pairs: Any
) -> None:
    target, drafter, stream = pairs[kind, family]
    sampler = DeviceSampler(target.ops)
    streams = []
    for cut in (15, 4, 1):
        s = session.new(target, drafter, PROMPT, 60, sampling, sampler=sampler)
        out: list[int] = []
        while len(out) < 15:
            out += session.burst(s, min(cut, 15 - len(out)))[0]
        streams.append(out[:15])
    assert streams[0] == streams[1] == streams[2]
    if sampling is None:
        assert streams[0] == stream[:15]


def test_a_cold_draw_is_the_greedy_stream(pairs: Any) -> None:
    for kind, family in PAIRS:
        target, drafter, stream = pairs[kind, family]
        sampler = DeviceSampler(target.ops)
        found = generate(target, drafter, PROMPT, 16, sampling=COLD, sampler=sampler)
        assert list(found.tokens) == stream[:16]
        assert found.sctr > 16 / 5 and found.uctr > 0


def test_sampling_with_temperature_zero_is_greedy(pairs: Any) -> None:
    target, drafter, stream = pairs["dense", "dflash"]
    found = generate(target, drafter, PROMPT, 9, sampling=SpecSampling(0.0))
    assert list(found.tokens) == stream[:9]


def test_kernels_and_host_draw_the_same_tokens(pairs: Any) -> None:
    from dsv4.speculation.sampling import HostSampler

    sampling = SpecSampling(0.9, seed=11, top_k=30, top_p=0.9)
    for family in FAMILIES:
        target, drafter, _ = pairs["dense", family]
        streams = [
            generate(target, drafter, PROMPT, 16, sampling=sampling, sampler=s)
            for s in (HostSampler(), DeviceSampler(target.ops))
        ]
        assert streams[0].tokens == streams[1].tokens
        assert (streams[0].sctr, streams[0].uctr) == (streams[1].sctr, streams[1].uctr)


def test_counters_follow_the_window_and_not_the_outcome(pairs: Any) -> None:
    sampling = SpecSampling(0.9, seed=3)
    for family, per_round in (("dspark", 4), ("dflash", 3)):
        target, drafter, _ = pairs["dense", family]
        found = generate(target, drafter, PROMPT, 12, sampling=sampling)
        rounds = found.stats.rounds
        assert found.sctr == 1 + len(rounds) * (per_round + 1)
        assert found.uctr == sum(r.vt - 1 for r in rounds)
    target, drafter, _ = pairs["dense", "dflash2"]
    found = generate(target, drafter, PROMPT, 12, sampling=sampling)
    assert found.sctr == 1 + len(found.stats.rounds)
    assert found.uctr == sum(3 + r.vt - 1 for r in found.stats.rounds)


def test_the_dense_loop_reads_rows_from_one_on_and_stays_in_its_budget(pairs: Any) -> None:
    for family in ("dflash", "dspark"):
        target, drafter, stream = pairs["dense", family]
        found = generate_dense(target, drafter, PROMPT, 17)
        assert list(found.tokens) == stream[:17]
        assert all(len(r.drafts) == 3 for r in found.stats.rounds)
    scaled = generate_dense(target, drafter, PROMPT, 5, switches=Switches(scale_embedding=True))
    assert list(scaled.tokens) == stream[:5]


def test_the_dense_loop_tells_of_every_round_when_it_is_asked_to(
    pairs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    target, drafter, _ = pairs["dense", "dflash"]
    lines: list[str] = []
    quiet = generate_dense(target, drafter, PROMPT, 9, tell=lines.append)
    assert not lines
    loud = generate_dense(
        target, drafter, PROMPT, 9, switches=Switches(debug=True), tell=lines.append
    )
    assert loud.tokens == quiet.tokens
    assert len(lines) == len(loud.stats.rounds)
    first = loud.stats.rounds[0]
    embedded = target.embed([first.anchor, drafter.config.mask_token_id])
    norms = " ".join(f"{n:.6g}" for n in np.linalg.norm(embedded, axis=1).astype(float))
    assert lines[0].startswith(f"round at 5: noise norms {norms}, drafts {list(first.drafts)}")
    assert lines[0].endswith(f"kept {first.keep}")
    generate_dense(target, drafter, PROMPT, 3, switches=Switches(debug=True))
    assert capsys.readouterr().err.startswith("round at 5: ")


def test_a_full_context_ends_a_session_before_a_partial_block(pairs: Any) -> None:
    target, drafter, stream = pairs["hybrid", "dspark"]
    s = session.new(target, drafter, PROMPT, 30)
    out, _, _ = session.burst(s, 1000)
    assert s.finished and not s.dead
    assert s.pos + 4 + 1 > 30 >= s.pos
    assert out == stream[: len(out)]
    assert session.burst(s, 5) == ([], 0, 0)


def test_a_session_ends_with_an_end_token_and_leaves_it_emitted(pairs: Any) -> None:
    target, drafter, stream = pairs["dense", "dflash"]
    s = session.new(target, drafter, PROMPT, 60)
    out, _, _ = session.burst(s, 1000, (stream[6],))
    assert s.finished
    assert out == stream[: stream.index(stream[6]) + 1]


def test_a_session_that_raised_is_dead_and_says_so(pairs: Any, monkeypatch: Any) -> None:
    target, drafter, _ = pairs["dense", "dspark"]
    s = session.new(target, drafter, PROMPT, 60)
    session.burst(s, 2)

    def fails(*args: Any, **named: Any) -> None:
        raise RuntimeError("a launch failed")

    monkeypatch.setattr(type(target), "head", fails)
    with pytest.raises(RuntimeError):
        session.burst(s, 2)
    monkeypatch.undo()
    assert s.finished and "a launch failed" in s.dead
    assert s.run.cache.tap_sink is None
    with pytest.raises(StateError, match="dead"):
        session.burst(s, 2)


def test_pairs_that_do_not_fit_are_refused_before_anything_runs(pairs: Any, tmp_path: Path) -> None:
    target, drafter, _ = pairs["dense", "dflash2"]
    with refuses("dense-dflash2"):
        generate_dense(target, drafter, PROMPT, 4)
    with refuses("prompt-empty"):
        generate(target, drafter, [], 4)
    with refuses("value"):
        generate(target, drafter, [97], 4)
    with refuses("session-prompt"):
        session.new(target, drafter, PROMPT, 16)
    for penalty in ({"penalty_repeat": 1.1}, {"penalty_freq": 0.1}, {"penalty_present": 0.1}):
        with refuses("session-penalties"):
            session.new(target, drafter, PROMPT, 60, SpecSampling(1.0, **penalty))  # type: ignore[arg-type]
    with refuses("gate-sampled"):
        generate(target, drafter, PROMPT, 4, sampling=COLD, switches=Switches(gate=True))
    with refuses("temperature"):
        generate(target, drafter, PROMPT, 4, sampling=SpecSampling(-1.0))
    with refuses("confidence-missing"):
        generate(target, drafter, PROMPT, 4, switches=Switches(policy="confidence"))
    with refuses("harvest-dflash2"):
        generate(target, drafter, PROMPT, 4, switches=Switches(harvest="dspark"))


def test_a_target_of_another_width_or_way_to_roll_back_is_refused(pairs: Any) -> None:
    target, drafter, _ = pairs["dense", "dflash"]

    class Other:
        def __init__(self, **facts: Any) -> None:
            self.__dict__.update(facts)

        def __getattr__(self, name: str) -> Any:
            return getattr(target, name)

    with refuses("hidden-mismatch"):
        generate(Other(hidden=128), drafter, PROMPT, 4)  # type: ignore[arg-type]
    with refuses("gemma-target"):
        generate(Other(rollback_kind="ring"), drafter, PROMPT, 4)  # type: ignore[arg-type]
    with refuses("mask-id"):
        generate(Other(vocab=90), drafter, PROMPT[:1], 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_switch_that_is_no_word_is_refused_for_every_family(family: str, pairs: Any) -> None:
    target, drafter, _ = pairs["dense", family]
    for switches, code in (
        (Switches(harvest="shifted"), "harvest-unknown"),
        (Switches(policy="static"), "window-unknown"),
        (Switches(policy="confidence-slot", tau="2"), "tau-range"),
        (Switches(policy="confidence", tau="a half"), "tau-syntax"),
        (Switches(policy="confidence", adapt=False), "window-adapt"),
    ):
        with refuses(code):
            generate(target, drafter, PROMPT, 4, switches=switches)
        with refuses(code):
            session.new(target, drafter, PROMPT, 60, switches=switches)


class Changed:
    """A model with some of its methods replaced."""

    def __init__(self, model: Any, **changes: Any) -> None:
        self.model = model
        self.__dict__.update(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def test_rounds_in_a_state_that_cannot_be_are_refused_and_the_run_is_dead(pairs: Any) -> None:
    target, drafter, _ = pairs["hybrid", "dspark"]
    sampling = SpecSampling(1.0, seed=3)

    def stays(cache: Any, snap: Any) -> None:
        """A restore that restores nothing."""

    nowhere = Changed(target, restore=stays)
    with refuses("internal"):
        generate(nowhere, drafter, PROMPT, 16, switches=Switches(ckpt=False, adapt=False))  # type: ignore[arg-type]
    silent = Changed(drafter, propose_sampled=lambda *given: (None, None))
    with refuses("internal"):
        generate(target, silent, PROMPT, 4, sampling=sampling)  # type: ignore[arg-type]
    forgetful = Changed(
        drafter, chain_greedy=lambda *given, stash: drafter.chain_greedy(*given, stash=False)
    )
    with refuses("internal"):
        generate(target, forgetful, PROMPT, 4)  # type: ignore[arg-type]
    s = session.new(target, drafter, PROMPT, 60)
    s.run.kv.length -= 1
    with refuses("internal"):
        session.burst(s, 1)
    assert s.finished and "DrafterRefusal" in s.dead


def test_a_replay_that_differs_is_noticed(pairs: Any) -> None:
    target, drafter, _ = pairs["hybrid", "dspark"]

    class Forgetful:
        """A target whose checkpoint commit leaves the state of another round."""

        def __getattr__(self, name: str) -> Any:
            return getattr(target, name)

        def commit_prefix(self, cache: Any, snap: Any, ckpt: Any, keep: int) -> None:
            cache.pos = snap.pos + keep

    with refuses("gate-differs"):
        generate(Forgetful(), drafter, PROMPT, 16, switches=Switches(gate=True))  # type: ignore[arg-type]


def test_a_replay_with_other_tokens_is_noticed(pairs: Any) -> None:
    target, drafter, _ = pairs["hybrid", "dspark"]

    class Moody:
        """A target that chooses other tokens when it is asked about fewer rows."""

        def __getattr__(self, name: str) -> Any:
            return getattr(target, name)

        def verify(self, ids: Any, start: int, cache: Any, **named: Any) -> Any:
            out = target.verify(ids, start, cache, **named)
            if not named.get("ckpt") and len(ids) < 5:
                out.argmax[...] = 0
            return out

    wide = Switches(ckpt=False, adapt=False)
    with refuses("replay-differs"):
        generate(Moody(), drafter, PROMPT, 16, switches=wide)  # type: ignore[arg-type]


def test_a_context_that_full_layers_of_a_sliding_drafter_cannot_see_is_refused(
    tmp_path: Path,
) -> None:
    device = HostDevice()
    target = load_target(write_target(tmp_path / "t", "dense"), device)
    slides = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=20)
    drafter = load_draft(write_drafter(tmp_path / "d", "dflash", **slides), device)
    assert len(generate(target, drafter, PROMPT, 3).tokens) == 3
    with refuses("context-window"):
        generate(target, drafter, PROMPT, 4)
    assert session.new(target, drafter, PROMPT, 60).cache_max_ctx == 20


def test_threads_in_any_order_give_the_same_stream(pairs: Any, tmp_path: Path) -> None:
    _, _, stream = pairs["hybrid", "dflash2"]
    shuffled = HostDevice(mode="shuffle", seed=3)
    target, drafter = load_pair(tmp_path, "hybrid", "dflash2", device=shuffled)
    found = generate(target, drafter, PROMPT, 3, sampler=DeviceSampler(target.ops))
    assert list(found.tokens) == stream[:3]
