"""What ranks cannot share is refused by name before anything is loaded; commands take ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint
from dsv4.distributed.joining import Seat, join_stages
from dsv4.engine.engine import Engine
from dsv4.engine.joins import new_joins
from dsv4.engine.lanes import in_order
from dsv4.engine.recording import recorded
from dsv4.engine.shares import Share, SharedSource, cut_axis, demand_divisible
from dsv4.engine.source import open_source
from dsv4.engine.switches import resolve_arms
from dsv4.engine.tape import Tape
from dsv4.errors import Refusal
from dsv4.kernels.join import join_add
from dsv4.runtime.hostdevice import HostDevice
from dsv4.spec import F32, I32, I64
from dsv4.targets.dsv4 import V4Target
from lab.bench.engines import share_weights
from lab.cli.main import main
from tests.engine.ranks import plan, ranked
from tests.goldens import golden_folder

SMALL = "mint:small,layers=3,seed=3"


def load(model: Any, count: int, **switches: str) -> Engine:
    devices = tuple(HostDevice() for _ in range(count))
    return Engine.load(model, devices, max_seq=60, parallel="tensor", **switches)


@pytest.mark.parametrize(
    ("changed", "world", "what"),
    [
        ({}, 3, "8 attention heads"),
        ({"n_heads": 3, "head_dim": 64}, 3, "3 attention heads of 64 columns in whole blocks"),
        ({"o_groups": 2}, 4, "2 output groups"),
        ({"o_groups": 4, "o_lora_rank": 64}, 4, "4 output groups of 64 columns in whole blocks"),
        ({"moe_inter_dim": 384}, 2, "384 columns inside an expert"),
        ({"vocab_size": 1023}, 2, "1023 tokens of the vocabulary"),
    ],
    ids=lambda v: str(v),
)
def test_sizes_that_ranks_do_not_divide_are_named(
    changed: dict[str, int], world: int, what: str
) -> None:
    config = replace(plan().config, **changed)
    with pytest.raises(Refusal, match=what):
        demand_divisible(config, world, "a test")
    demand_divisible(config, 1, "a test")
    demand_divisible(plan().config, 2, "a test")


def test_a_model_that_two_ranks_cannot_share_is_refused_before_a_tensor_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SharedSource, "tensor", lambda *given: pytest.fail("a tensor was read"))
    with pytest.raises(Refusal, match="128 columns inside an expert"):
        load(golden_folder("tiny-s"), 2)
    with pytest.raises(Refusal, match="8 attention heads"):
        load(plan(), 3)


def test_a_device_that_comes_twice_is_refused() -> None:
    device = HostDevice()
    with pytest.raises(Refusal, match="comes twice"):
        Engine.load(plan(), (device, device), max_seq=60, parallel="tensor")


@pytest.mark.parametrize(
    ("switches", "says"),
    [
        ({"drafter": "dspark"}, "DSV4_DRAFTER=dspark was asked for"),
        ({"drafter": "mtp"}, "has no drafter"),
        ({"split_at": "2"}, "DSV4_SPLIT_AT=2 was asked for"),
        ({"parallel": "experts"}, "DSV4_PARALLEL=experts"),
    ],
    ids=str,
)
def test_switches_that_exclude_each_other_are_refused(switches: dict[str, str], says: str) -> None:
    with pytest.raises(Refusal, match=says):
        resolve_arms({}, **{"parallel": "tensor", **switches})


def test_processes_and_drafters_from_outside_are_refused() -> None:
    seat = Seat(0, 2, ("127.0.0.1", 1))
    arms = resolve_arms({}, parallel="tensor")
    with pytest.raises(Refusal, match="with --world"):
        with join_stages(plan(), seat, arms=arms, backend="host", request={}):
            pass
    with pytest.raises(Refusal, match="a drafter for a model on 2 ranks"):
        V4Target(ranked())


def test_launches_that_block_are_refused_on_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    cards: Any = [SimpleNamespace(backend="cuda", name="H200") for _ in range(2)]
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(Refusal, match="CUDA_LAUNCH_BLOCKING=1"):
        new_joins(cards)
    assert new_joins(cards[:1]) is None and new_joins([HostDevice(), HostDevice()]) is not None


def test_the_next_token_block_of_a_release_stays_out() -> None:
    engine = load(plan("nvfp4"), 2)
    assert engine.mtp is None and engine.tail == "off" and engine.verify_tmax == 0


def test_names_say_what_is_cut() -> None:
    rows = (
        "head.weight",
        "layers.0.attn.wq_b.scale",
        "layers.3.attn.wo_a.weight",
        "layers.12.attn.attn_sink",
        "layers.0.ffn.experts.7.w1.weight",
        "layers.0.ffn.shared_experts.w3.scale",
        "layers.1.ffn.experts.1.w3.weight_scale",
    )
    columns = (
        "layers.0.attn.wo_b.weight",
        "layers.0.ffn.experts.7.w2.weight_scale",
        "layers.0.ffn.shared_experts.w2.weight",
    )
    whole = ("embed.weight", "layers.0.attn.wq_a.weight", "layers.0.attn.indexer.wq_b.weight",
             "layers.0.ffn.gate.weight", "layers.0.ffn.experts.7.w2.weight_scale_2", "hc_head_fn",
             "layers.0.attn.compressor.wkv.weight", "layers.0.attn.wkv.weight")  # fmt: skip
    assert [cut_axis(n) for n in rows] == [0] * len(rows)
    assert [cut_axis(n) for n in columns] == [1] * len(columns)
    assert [cut_axis(n) for n in whole] == [None] * len(whole)


def test_every_cut_tensor_is_the_parts_of_all_ranks() -> None:
    source, device = open_source(plan_mint("small", "nvfp4", seed=2, layers=1)), HostDevice()
    parts = [SharedSource(source, Share(rank, 2)) for rank in range(2)]
    for name in source.census.entries:
        if (axis := cut_axis(name)) is not None:
            whole = source.tensor(device, name)
            found = [p.tensor(device, name) for p in parts]
            assert [p.shape[axis] * 2 for p in found] == [whole.shape[axis]] * 2
            assert np.array_equal(np.concatenate(found, axis=axis), whole), name
    entry = source.census.entries["head.weight"]
    with pytest.raises(Refusal, match="head.weight was to be cut into 3 parts"):
        Share(0, 3).entry("head.weight", entry)


def test_arms_of_a_bench_do_not_share_weights_across_both_ways() -> None:
    tensor, layers = resolve_arms({}, parallel="tensor"), resolve_arms({})
    assert not share_weights(tensor, layers)
    assert share_weights(tensor, resolve_arms({}, parallel="tensor", fused="on"))


def test_ranks_have_a_graph_each_where_joins_can_wait() -> None:
    # As on GPUs: a join is a launch like any other. Here nothing runs, so nothing waits.
    devices, tapes = (HostDevice(), HostDevice()), []
    for device in devices:
        trunk, head = Tape(device, keep=True), Tape(device, keep=True)
        tapes += [trunk, head]
    sent: list[str] = []
    for n, tape in enumerate(tapes):
        rank = n // 2
        x, box = devices[rank].zeros((1, 1, 8), F32), devices[rank].zeros((32,), I64)
        prepared = join_add.prepare(
            x, box, devices[rank].zeros((2,), I64), devices[rank].zeros((1, 1), I32),
            devices[rank].zeros((1,), I32), y=x.copy(), first=rank, spins=1, device=devices[rank],
        )  # fmt: skip
        for part in ("a", "join", "b"):
            run = lambda n=n, part=part: sent.append(f"{n}{part}")  # noqa: E731
            if part == "join":
                tape.join(prepared, run, crossing=False)
            else:
                tape._take(part, run)
    for _, entries in in_order([tapes[0], tapes[2], tapes[1], tapes[3]]):
        for entry in entries:
            entry.run()
    both = "0a 2a 0join 2join 0b 1a 2b 3a 1join 3join 1b 3b"
    assert sent == both.split()
    assert recorded([tapes[0], tapes[2], tapes[1], tapes[3]], False).graphs == 2


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> dict[str, Any]:
    with pytest.raises(SystemExit) as left:
        main([*map(str, args), "--json"])
    assert not left.value.code
    return json.loads(capsys.readouterr().out)


RANKS = ("--devices", "0,1", "--arm", "parallel=tensor", "--backend", "host")


def test_generate_runs_on_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("generate", SMALL, "--ids", "5,9,1,200,17", "-n", 4, "--max-seq", 60)
    one = run(capsys, *given, "--backend", "host")
    two = run(capsys, *given, *RANKS)
    assert len(two["tokens"]) == 4 and two["arms"]["parallel"] == "tensor"
    assert one["arms"]["parallel"] == "layers" and two["stages"] == 2


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_step_tells_how_long_the_ranks_take_to_meet(
    capsys: pytest.CaptureFixture[str], graphs: str
) -> None:
    made = run(
        capsys, "step", SMALL, *RANKS, "--arm", f"graphs={graphs}", "--repeats", 1, "--context", 4
    )
    (step,) = made["steps"]
    # Two in every layer, and one for the token.
    assert step["joins"] == 2 * 3 + 1 and step["join_s"] > 0.0
    names = {k["kernel"] for k in step["kernels"]}
    assert bool(names) == (graphs == "on") and not {"join_add", "join_argmax"} & names


def test_bench_proves_and_times_a_step_on_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    made = run(
        capsys, "bench", "step", SMALL, *RANKS, "--context", 4, "--samples", 2, "--no-record"
    )
    (found,) = made["results"]
    assert found["verdict"] == "PASS" and found["graph"] and found["cards"] == 2
    assert found["joins"] == 7 and found["join_s"] > 0.0
