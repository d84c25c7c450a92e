"""Compares targets and drafters with the recorded outputs of another implementation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dsv4.drafters.weights import load_draft
from dsv4.runtime.device import Device
from dsv4.runtime.hostdevice import HostDevice
from dsv4.targets.load import load_target
from lab.drafter_engine import engine_drafter_outputs, engine_target_outputs
from lab.drafter_oracle import oracle_drafter, oracle_target
from lab.drafter_outputs import Outputs, drafter_outputs, present, target_outputs
from lab.drafter_recorded import UNWINDOWED, DrafterRecord, read_drafter_record
from lab.drafter_runs import Pair, run_checks
from lab.model_diff import Check, Report, Tokens
from lab.stored import RECORDED

ORACLE_BOUND = 1e-9
"""Absolute, of a float64 model: rounding stays below 1e-12, a wrong formula does not."""
ENGINE_FACTOR = 4.0
"""A float32 engine may be this many times as far as the recorded float32 run."""


def recorded_pairs(
    got: Outputs, recorded: Mapping[str, np.ndarray]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Ours beside the recorded by name, cut to what is recorded."""
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, value in got.items():
        want = recorded.get(f"f64.{name}", recorded.get(name))
        if want is None:
            continue
        if name.startswith("state.") and name.endswith(".conv"):
            want = want[:, -value.shape[1] :]
        if name.startswith("final_cache."):
            value = value[:, -want.shape[1] :]
        pairs[name] = (value, want)
    return pairs


def checks_of(got: Outputs, record: DrafterRecord, bound: float) -> list[Check]:
    """A check for every recorded output: integers must be identical, numbers within the bound."""
    checks = []
    for name, (value, want) in recorded_pairs(got, record.arrays).items():
        if value.shape != want.shape:
            checks.append(Check(f"{name} shape", want.size, np.inf, 1.0, np.inf, 0.0))
        elif want.dtype.kind == "f":
            error = float(np.abs(value - want).max(initial=0.0))
            checks.append(Check(name, want.size, error, 1.0, error, bound))
        else:
            wrong = float(np.count_nonzero(value != want))
            checks.append(Check(name, want.size, wrong, 1.0, wrong, 0.0))
    return checks


def oracle_outputs(record: DrafterRecord, rule: str) -> Outputs:
    """What the float64 model gives for a folder of a target or a drafter."""
    if record.kind == "target":
        return target_outputs(record)
    return drafter_outputs(record, rule)


def engine_outputs(record: DrafterRecord, rule: str, device: Device) -> Outputs:
    """What the engine gives for a folder of a target or a drafter, in bf16 precision."""
    if record.kind == "target":
        return engine_target_outputs(record, device)
    return engine_drafter_outputs(record, device, rule)


def drafter_diff(folder: Path, *, subject: str = "oracle", device: Device | None = None) -> Report:
    """The comparison of a recorded folder of this group with a subject of ours.

    subject: "oracle", the float64 models, or "engine", the kernels on a device (the host backend
    when none is given). Errors: Refusal when the folder cannot be used.
    """
    record = read_drafter_record(folder)
    if record.kind == "end-to-end":
        checks = list(run_checks(record, lambda: _pair(record, subject, device)))
    else:
        bound = ORACLE_BOUND if subject == "oracle" else ENGINE_FACTOR * record.f32_distance
        checks = []
        for name, rule in _records(folder):
            part = read_drafter_record(folder, name)
            if subject == "oracle":
                got = oracle_outputs(part, rule)
            else:
                got = engine_outputs(part, rule, device or HostDevice())
            checks += checks_of(got, part, bound)
    law = "f64" if subject == "oracle" else "f32"
    return Report(folder, subject, law, tuple(checks), (), (), token_counts(checks))


def _records(folder: Path) -> list[tuple[str, str]]:
    """The files of outputs in a folder, and the attention rule that each follows."""
    if (folder / UNWINDOWED).is_file():
        return [(RECORDED, "causal_swa"), (UNWINDOWED, "seed")]
    return [(RECORDED, "seed")]


def _pair(record: DrafterRecord, subject: str, device: Device | None) -> Pair:
    target, drafter = present(record, record.target), present(record, record.drafter)
    if subject == "oracle":
        return oracle_target(target), oracle_drafter(drafter)
    device = device or HostDevice()
    engine = load_target(target.folder, device)
    return engine, load_draft(
        drafter.folder,
        device,
        precision="bf16",
        target_vocab=engine.vocab,
        target_layers=engine.n_layers,
    )


def token_counts(checks: list[Check]) -> Tokens:
    """How many chosen tokens were compared, and how many are the recorded ones."""
    chosen = [c for c in checks if c.name.endswith(("proposal_ids", "greedy.ids", "_ids"))]
    total = sum(c.n for c in chosen)
    wrong = sum(int(min(c.max_abs, c.n)) for c in chosen)
    return Tokens(total, total - wrong, wrong)
