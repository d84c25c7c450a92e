"""Routed experts on their FP4 codes; ids stay on the device."""

from __future__ import annotations

from typing import Any

from dsv4.engine.rows import Rows
from dsv4.engine.weights import ExpertBank


def chosen_experts(
    run: Rows, bank: ExpertBank, x: Any, ids: Any, weights: Any, contributions: Any
) -> Any:
    """Contributions [T,A,D] of every row's experts."""
    raise NotImplementedError
