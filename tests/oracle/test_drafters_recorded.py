"""The float64 targets and drafters against recorded outputs of the public implementations."""

from pathlib import Path

import numpy as np
import pytest

from lab.drafter_diff import ORACLE_BOUND, checks_of, drafter_diff, oracle_outputs, recorded_pairs
from lab.drafter_recorded import UNWINDOWED, read_drafter_record
from tests.goldens import golden_folder

TARGETS = ["qwen3-dense", "qwen3-next-dense", "qwen3-next-moe", "qwen35-dense"]
DRAFTERS = [
    "dflash",
    "dflash-swa",
    "dflash-nexttoken",
    "dflash2",
    "dflash2-scaled",
    "dspark-qwen3",
    "dspark-qwen3-gated",
    "dspark-qwen3-rnn",
    "dspark-specforge",
]


@pytest.mark.parametrize("name", TARGETS + DRAFTERS)
def test_every_number_is_within_1e9_and_every_integer_is_the_recorded_one(name: str) -> None:
    report = drafter_diff(golden_folder(name))
    assert [c.name for c in report.broken] == []
    assert len(report.checks) > 14
    # Rounding of float64 stays far below the bound; closer to it something is formulated wrongly.
    assert max(c.max_abs for c in report.checks) < 1e-11


@pytest.mark.parametrize("name", TARGETS + DRAFTERS)
def test_no_recorded_output_is_left_out(name: str) -> None:
    record = read_drafter_record(golden_folder(name))
    rule = "causal_swa" if name == "dflash-swa" else "seed"
    compared = set(recorded_pairs(oracle_outputs(record, rule), record.arrays))
    recorded = {n.removeprefix("f64.") for n in record.arrays if not n.startswith("f32.")}
    inputs = {n for n in recorded if n.startswith("input.")} | {"greedy.top1_margin"}
    assert recorded - inputs == compared


def test_the_two_rules_for_sliding_layers_differ_and_each_matches_its_own_record() -> None:
    folder: Path = golden_folder("dflash-swa")
    record, older = read_drafter_record(folder), read_drafter_record(folder, UNWINDOWED)
    causal, seed = oracle_outputs(record, "causal_swa"), oracle_outputs(record, "seed")
    assert all(c.passed for c in checks_of(causal, record, ORACLE_BOUND))
    assert all(c.passed for c in checks_of(seed, older, ORACLE_BOUND))
    difference = np.abs(causal["round0.block_hidden"] - seed["round0.block_hidden"]).max()
    assert difference > 0.1


def test_a_changed_weight_is_noticed() -> None:
    record = read_drafter_record(golden_folder("dspark-qwen3"))
    assert record.drafter is not None
    dtype, bits = record.drafter.tensors["markov_head.markov_w2.weight"]
    bits = bits.copy()
    bits[3, 4] ^= 0x40
    tensors = dict(record.drafter.tensors) | {"markov_head.markov_w2.weight": (dtype, bits)}
    object.__setattr__(
        record,
        "drafter",
        type(record.drafter)(record.drafter.folder, record.drafter.content, tensors),
    )
    broken = [
        c.name
        for c in checks_of(oracle_outputs(record, "seed"), record, ORACLE_BOUND)
        if not c.passed
    ]
    assert broken and all("corrected" in n or "proposal" in n for n in broken)
