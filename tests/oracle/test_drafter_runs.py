"""Whole speculative runs of the float64 pairs against recorded runs of the public loops."""

import pytest

from lab.drafter_oracle import oracle_drafter, oracle_target
from lab.drafter_recorded import read_drafter_record
from lab.drafter_runs import run_checks
from tests.goldens import golden_folder


@pytest.mark.parametrize("name", ["e2e-dspark", "e2e-dflash", "e2e-dflash2", "e2e-dflash2-hybrid"])
def test_emitted_tokens_and_accepted_counts_are_the_recorded_ones(name: str) -> None:
    record = read_drafter_record(golden_folder(name))
    assert record.target is not None and record.drafter is not None
    target, drafter = oracle_target(record.target), oracle_drafter(record.drafter)
    checks = list(run_checks(record, lambda: (target, drafter)))
    assert [c.name for c in checks if not c.passed] == []
    assert len(checks) > 40
