"""Compares targets and drafters with the recorded outputs of another implementation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lab.drafter_outputs import Outputs, drafter_outputs, target_outputs
from lab.drafter_recorded import UNWINDOWED, DrafterRecord, read_drafter_record
from lab.model_diff import Check, Report, Tokens

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


def drafter_diff(folder: Path) -> Report:
    """The comparison of the float64 models with a recorded folder. Errors: Refusal."""
    record = read_drafter_record(folder)
    rule = "causal_swa" if (folder / UNWINDOWED).is_file() else "seed"
    checks = checks_of(oracle_outputs(record, rule), record, ORACLE_BOUND)
    if rule != "seed":
        other = read_drafter_record(folder, UNWINDOWED)
        checks += checks_of(oracle_outputs(other, "seed"), other, ORACLE_BOUND)
    return Report(folder, "oracle", "f64", tuple(checks), (), (), token_counts(checks))


def token_counts(checks: list[Check]) -> Tokens:
    """How many chosen tokens were compared, and how many are the recorded ones."""
    chosen = [c for c in checks if c.name.endswith(("proposal_ids", "greedy.ids", "_ids"))]
    total = sum(c.n for c in chosen)
    wrong = sum(int(min(c.max_abs, c.n)) for c in chosen)
    return Tokens(total, total - wrong, wrong)
