"""Layers, steps and rounds: proved in the run that times them, and what they count."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.switches import resolve_arms
from dsv4.errors import Refusal, StateError
from lab.bench import layers, rounds, steps
from lab.bench.engines import LOADING, engines, share_weights
from lab.bench.floors import component_bytes, distinct_experts, layer_bytes, rates, step_bytes
from lab.engine_steps import step_cost
from lab.minted import model_of
from lab.result import FAIL, PASS
from tests.engine.engines import tiny_engine

ENGINE = Path(decode.__file__).parent


def step_of(engine: Engine, **more: Any) -> Any:
    given = {"model": "tiny", "context": 9, "samples": 2, **more}
    return steps.bench_step([engine], [{}], None, **given)[0][0]


def test_a_step_is_timed_and_counts_what_step_counts() -> None:
    engine = tiny_engine()
    found = step_of(engine, rows=2)
    cost = step_cost(engine, context=9, rows=2, repeats=1)
    assert found.verdict == PASS and len(found.timing.samples_s) == 2
    assert (found.size_bytes, found.more["launches"]) == (cost.size_bytes, cost.launches)
    assert found.more["graph"] and found.facts["arms"]["decode_path"] == "device"


def test_a_replay_that_leaves_other_bytes_takes_the_verdict_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = decode.record_step

    def lossy(*given: Any) -> Any:
        graph = real(*given)
        (part,) = graph.parts
        part.__self__.calls = part.__self__.calls[: len(part.__self__.calls) // 2]
        return graph

    monkeypatch.setattr(decode, "record_step", lossy)
    engine = tiny_engine()
    found = step_of(engine)
    assert found.verdict == FAIL and found.timing is None
    assert "one by one" in found.facts["reasons"][0]


def test_steps_with_the_host_in_between_are_timed_as_they_run() -> None:
    found = step_of(tiny_engine(decode_path="device-hostmath"))
    assert found.verdict == PASS and not found.more["graph"]
    assert "one by one" in found.to_json()["timed_by"]


def test_steps_that_are_not_bound_are_refused() -> None:
    with pytest.raises(Refusal, match="DSV4_DECODE_PATH=legacy"):
        step_of(tiny_engine(decode_path="legacy"))
    with pytest.raises(Refusal, match="graph of one device"):
        layers.open_layers(tiny_engine(decode_path="device-hostmath"), context=4, rows=1)


def test_each_kind_of_layer_is_timed_and_all_launches_belong_to_one() -> None:
    engine = tiny_engine()
    found, _ = layers.bench_layers([engine], [{}], None, model="tiny", context=9, samples=2)
    assert {m.verdict for m in found} == {PASS}
    kinds = {m.more["kind"]: m.more for m in found}
    config = engine.config
    numbers = sorted(n for more in kinds.values() for n in more["layers"])
    assert numbers == list(range(config.n_layers))
    assert all(config.layer_class(n) == kind for kind, m in kinds.items() for n in m["layers"])
    whole = step_cost(engine, context=9, repeats=1)
    shared = {"entry", "lists", "head"}
    inside = sum(p.launches for p in whole.phases if p.phase not in shared)
    assert inside == sum(m["launches"] * len(m["layers"]) for m in kinds.values())


def test_layers_whose_replay_is_wrong_have_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real = layers._graph

    def lossy(*given: Any) -> Any:
        graph = real(*given)
        del graph.calls[-1]
        return graph

    monkeypatch.setattr(layers, "_graph", lossy)
    found, _ = layers.bench_layers([tiny_engine()], [{}], None, model="t", context=9, samples=2)
    assert {m.verdict for m in found} == {FAIL} and all(m.timing is None for m in found)


def test_rounds_emit_plain_tokens_and_only_full_ones_are_counted() -> None:
    engine = tiny_engine()
    found, pair = rounds.bench_rounds(
        [engine], [{}], model="tiny", prompt=[3, 5, 7], count=40, depth=2, accept=1.0
    )
    assert pair is None and found[0].verdict == PASS
    more = found[0].more
    assert more["rows"] == 2 and more["tokens_per_round"] > 1
    assert 0 < len(found[0].timing.samples_s) < more["rounds"]  # type: ignore[union-attr]
    assert "wall clock" in found[0].to_json()["timed_by"]


def test_rounds_with_other_tokens_have_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rounds.generate

    def other(*given: Any) -> Any:
        made = real(*given)
        return replace(made, tokens=(*made.tokens[:-1], made.tokens[-1] ^ 1))

    monkeypatch.setattr(rounds, "generate", other)
    found, _ = rounds.bench_rounds(
        [tiny_engine()], [{}], model="tiny", prompt=[3, 5, 7], count=20, depth=2, accept=1.0
    )
    assert found[0].verdict == FAIL and found[0].timing is None


def test_rounds_need_a_drafter_or_a_script() -> None:
    engine = replace(tiny_engine(), mtp=None)
    with pytest.raises(StateError, match="none is loaded"):
        rounds.bench_rounds([engine], [{}], model="tiny", prompt=[1], count=8)


def test_arms_that_differ_after_loading_share_their_weights() -> None:
    plain, branches, bf16 = engines(
        "mint:tiny,layers=2", (0,), "host", 32, [{}, {"branches": "on"}, {"dense_arm": "bf16"}]
    )
    assert plain.stages is branches.stages and branches.arms.branches
    assert bf16.stages is not plain.stages
    assert not share_weights(plain.arms, bf16.arms)
    assert plain.spaces is not branches.spaces


def test_what_loading_looks_at_is_what_decides_about_sharing() -> None:
    read = set()
    for name in ("opening", "placement", "loading", "peers", "source"):
        tree = ast.parse((ENGINE / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                read |= {node.attr} if node.value.id == "arms" else set()
    # Keys of an index lie in states, which every engine makes by its own arms; a placement that two
    # share counts those of the first.
    assert read - {"index_format"} == LOADING
    assert set(resolve_arms().to_json()) >= LOADING


def test_the_floor_of_a_step_is_the_sum_of_its_layers_and_its_head() -> None:
    config = model_of("mint:flash").config  # type: ignore[union-attr]
    kinds = [config.layer_class(n) for n in range(config.n_layers)]
    each = layer_bytes(config)
    assert [kinds.count(k) for k in ("window", "fine", "coarse")] == [2, 21, 20]
    inside = sum(each[kind] for kind in kinds)
    head = step_bytes(config) - inside
    # The head's matrix in bf16, its norm, and the gate of its streams.
    gate = 4 * (config.hc_mult * config.hc_mult * config.dim + config.hc_mult + 1)
    assert head == pytest.approx(2 * config.vocab_size * config.dim + 2 * config.dim + gate)


def test_the_floor_of_the_experts_by_hand() -> None:
    config = model_of("mint:flash").config  # type: ignore[union-attr]
    # A row of 32 weights is 16 bytes of codes and one of scale; 3 matrices, 6 experts, 43 layers.
    matrix = 2048 * 4096 // 32 * 17
    assert component_bytes(config)["routed experts"] == pytest.approx(43 * 6 * 3 * matrix)
    assert distinct_experts(config, 1) == pytest.approx(6)
    # 256 (1 - (250/256)^2)
    assert distinct_experts(config, 2) == pytest.approx(12 - 36 / 256)


def test_fewer_experts_on_the_card_read_the_same_bytes() -> None:
    full, pruned = (model_of(m).config for m in ("mint:flash", "mint:flash,experts=160"))  # type: ignore[union-attr]
    ours, theirs = component_bytes(full), component_bytes(pruned)
    assert ours["routed experts"] == pytest.approx(theirs["routed experts"])
    assert ours["router"] > theirs["router"]


def test_a_rate_is_bytes_over_bandwidth() -> None:
    config = model_of("mint:flash").config  # type: ignore[union-attr]
    found = rates(config, step_bytes(config) * 200)
    assert found["time_s"] == pytest.approx(0.005)
    assert found["tokens_per_s"] == pytest.approx(200)
