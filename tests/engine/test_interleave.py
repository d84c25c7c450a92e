"""Sequences that take turns, and stages on devices of their own: the bytes of one after another."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.interleave import generate_together, greedy_turns, step_turns, take_turns
from dsv4.engine.speculate import speculate
from dsv4.errors import StateError
from dsv4.runtime.hostdevice import HostDevice
from lab.cli.main import main
from lab.engine_steps import step_cost
from lab.generation import generate
from tests.engine.engines import same_bytes, tiny_engine, tokens
from tests.goldens import golden_folder

PROMPTS = ([5, 9, 1, 200, 17], [3, 3, 7], [11, 250, 4, 8, 9, 2, 6])


@functools.cache
def apart(**switches: str) -> Engine:
    """The tiny model on two devices, a stage each."""
    devices = (HostDevice(), HostDevice())
    return Engine.load(
        golden_folder("tiny-s"), devices, max_seq=60, drafter="dspark", split_at="2", **switches
    )


def alone() -> Engine:
    """The same model on one device, launched."""
    return tiny_engine(drafter="dspark")


@functools.cache
def drafted(which: int, count: int) -> str:
    """Which drafts a run of one prompt by itself accepts."""
    return speculate(alone(), PROMPTS[which], count).accept_digest


def wanted(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What plain decoding of a prompt by itself gives."""
    return _wanted(tuple(prompt))[:count]


@functools.cache
def _wanted(prompt: tuple[int, ...]) -> tuple[int, ...]:
    return generate(alone(), prompt, 8).tokens


@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize("speculative", [False, True], ids=["plain", "drafted"])
def test_streams_that_take_turns_have_the_tokens_of_one_after_the_other(
    speculative: bool, graphs: str
) -> None:
    engine = apart(graphs=graphs)
    assert decode.uses_graphs(engine) == (graphs == "on")
    made = generate_together(engine, PROMPTS, 7, speculative=speculative)
    for prompt, found in zip(PROMPTS, made.tokens, strict=True):
        assert tuple(found) == wanted(prompt, 7)
    if speculative:
        digests = [run.accept_digest for run in made.runs]
        assert digests == [drafted(which, 7) for which in range(len(PROMPTS))]


def test_a_stop_token_ends_one_stream_and_not_the_others() -> None:
    engine = apart(graphs="on")
    free = generate_together(engine, PROMPTS[:2], 8).tokens
    stop = free[0][2]
    held = generate_together(engine, PROMPTS[:2], 8, stop=[stop]).tokens
    assert held[0] == free[0][: free[0].index(stop) + 1]
    assert held[1] == (free[1][: free[1].index(stop) + 1] if stop in free[1] else free[1])


def test_steps_are_sent_in_turns_before_the_first_is_waited_for() -> None:
    engine, order = apart(graphs="on"), []
    states, into = [], [[], []]
    for prompt in PROMPTS[:2]:
        states.append(engine.alloc_decode_state())
        engine.prefill_with_cache(prompt, states[-1])

    def watched(which: int):
        for _ in step_turns(engine, 7, states[which], into[which]):
            order.append(f"sent {which}")
            yield
        order.append(f"got {which}")

    take_turns([watched(0), watched(1)])
    assert order == ["sent 0", "sent 1", "got 0", "got 1"]
    assert [state.pos for state in states] == [len(p) + 1 for p in PROMPTS[:2]]


def test_a_step_on_two_devices_is_a_graph_for_each_and_a_copy_between() -> None:
    engine, one = apart(graphs="on"), alone()
    ids = tokens(16)
    states = engine.alloc_decode_state(), one.alloc_decode_state()
    engine.prefill_with_cache(ids[:9], states[0])
    one.prefill_with_cache(ids[:9], states[1])
    graph = decode.record_step(engine, states[0], 1, "logits")
    assert graph.graphs == 2 and len(graph.parts) == 3
    assert decode.record_step(one, one_after(one, ids), 1, "logits").graphs == 1
    for token in ids[9:]:
        row = engine.decode_step(int(token), states[0])
        assert same_bytes(row, one.decode_step(int(token), states[1]))
    for (name, a), (_, b) in zip(
        engine.cache_classes(states[0]), one.cache_classes(states[1]), strict=True
    ):
        assert same_bytes(a, b), name


def one_after(engine: Engine, ids: np.ndarray):
    """A state of its own after a prompt."""
    state = engine.alloc_decode_state()
    engine.prefill_with_cache(ids[:9], state)
    return state


def test_rounds_on_two_devices_replay_to_the_bytes_of_one() -> None:
    engine, one = apart(graphs="on"), alone()
    ids, outs = tokens(30, seed=4), []
    for held in (engine, one):
        state, vstate = held.alloc_decode_state(), held.alloc_verify_state()
        held.prefill_with_cache(ids[:9], state)
        rows = []
        for first in range(9, 27, 3):
            # The third run of a round is a replay of what the second one recorded.
            out = held.verify_batch(ids[first : first + 4], state, vstate, want_logits=True)
            rows += [*out.logits, out.argmax.astype(np.float32)]
            held.commit_verify(state, vstate, 3)
        outs.append(rows)
    assert all(same_bytes(a, b) for a, b in zip(*outs, strict=True))


def test_a_round_that_is_sent_and_fails_leaves_the_sequence_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dsv4.engine.verify import begin_verify

    engine, ids = apart(graphs="off"), tokens(14)
    state, vstate = one_after(engine, ids), engine.alloc_verify_state()
    want = engine.verify_batch(ids[9:12], state, engine.alloc_verify_state()).argmax
    state = one_after(engine, ids)

    def failing(self, array):
        def finish():
            raise RuntimeError("the copy failed")

        return finish

    with monkeypatch.context() as patched:
        patched.setattr(HostDevice, "fetch", failing)
        finish = begin_verify(engine, ids[9:12], state, vstate)
        with pytest.raises(RuntimeError, match="the copy failed"):
            finish()
    assert "the copy failed" in vstate.poisoned and state.open_rows == 0
    again = engine.verify_batch(ids[9:12], state, engine.alloc_verify_state())
    assert np.array_equal(again.argmax, want)


def test_what_cannot_be_is_refused_before_anything_runs() -> None:
    engine = apart(graphs="on")
    with pytest.raises(StateError, match="after 0 prompts"):
        generate_together(engine, [], 3)
    with pytest.raises(StateError, match="0 tokens after 1"):
        generate_together(engine, [[1]], 0)
    with pytest.raises(StateError, match="60 positions"):
        take_turns([greedy_turns(engine, [1] * 50, 20, engine.alloc_decode_state(), [])])


@pytest.mark.parametrize("path", ["device-hostmath", "legacy"])
def test_paths_without_graphs_take_turns_as_well(path: str) -> None:
    engine = apart(decode_path=path)
    made = generate_together(engine, PROMPTS[:2], 4).tokens
    for prompt, found in zip(PROMPTS, made, strict=False):
        assert tuple(found) == generate(tiny_engine(decode_path=path), prompt, 4).tokens


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> dict[str, Any]:
    with pytest.raises(SystemExit) as left:
        main([*map(str, args), "--backend", "host", "--json"])
    assert not left.value.code
    return json.loads(capsys.readouterr().out)


def test_several_prompts_of_a_command_are_streams(capsys: pytest.CaptureFixture[str]) -> None:
    made = run(
        capsys, "generate", golden_folder("tiny-s"), "--ids", "5,9,1,200,17", "--ids", "3,3,7",
        "-n", 4, "--max-seq", 60,
    )  # fmt: skip
    assert [tuple(stream) for stream in made["streams"]] == [wanted(p, 4) for p in PROMPTS[:2]]
    assert made["tokens_per_s"] == 8 / made["decode_s"]


def test_step_tells_the_copy_between_stages_and_what_turns_gain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = run(
        capsys, "step", golden_folder("tiny-s"), "--devices", "0,0", "--streams", 2,
        "--repeats", 1, "--context", 4,
    )  # fmt: skip
    (step,), (streams,) = made["steps"], made["streams"]
    config = alone().config
    # Streams are read and written by the copy: its bytes are what crosses.
    assert step["boundary_bytes"] == 4 * config.hc_mult * config.dim and step["boundary_s"] > 0
    assert streams["rows_per_s"] == pytest.approx(2 / streams["step_s"])
    assert streams["gain"] == pytest.approx(2 * streams["alone_s"] / streams["step_s"])


def test_the_cost_of_a_step_on_two_devices_counts_each_launch_once() -> None:
    two = step_cost(apart(graphs="on"), context=5, repeats=1)
    stacked = tiny_engine(stages=2, split_at="2", drafter="dspark", graphs="on")
    one = step_cost(stacked, context=5, repeats=1)
    assert two.graph_s is not None and two.boundary_bytes == one.boundary_bytes > 0
    # On one device the copy is part of its graph; between two it stands outside of both.
    counts = [{k.kernel: k.launches for k in cost.kernels} for cost in (two, one)]
    assert counts[1].pop("receive") == 1
    assert counts[0] == counts[1]
