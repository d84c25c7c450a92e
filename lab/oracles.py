"""Joins a kernel with its float64 twin by name, and calls it on stored bits."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.errors import SpecError
from dsv4.spec import Format, KernelSpec
from oracle.bounded import Bounded
from oracle.formats import decode
from oracle.stages import StageProbe


@dataclass(frozen=True, slots=True)
class Reference:
    """What one output should be: the value and, for a `Within` contract, its magnitudes."""

    value: np.ndarray
    magnitude: np.ndarray | None = None


@functools.cache
def oracle_of(kernel: str, family: str, override: str) -> Callable[..., Any]:
    """The oracle function of a kernel. Errors: SpecError when a half lacks its other half."""
    name = override or kernel
    try:
        module = importlib.import_module(f"oracle.{family}")
        found = getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise SpecError(
            f"{kernel} has no oracle ({error})\n  write oracle/{family}.py with a function {name}"
        ) from None
    return found  # type: ignore[no-any-return]


def as_values(raw: np.ndarray, fmt: Format) -> np.ndarray:
    """Stored bits as the oracle takes them: float64, raw codes, or int64."""
    if fmt.is_float:
        return decode(raw, fmt.name)
    return raw.astype(np.int64) if fmt.name in ("i32", "i64") else raw


def reference(
    spec: KernelSpec,
    inputs: Mapping[str, np.ndarray],
    bound: Mapping[str, Any],
    *,
    probe: StageProbe | None = None,
) -> dict[str, Reference]:
    """The oracle's outputs for these inputs (stored bits) and axes, options and scalars.

    probe: called with the oracle's named stages, if it has any.
    Errors: SpecError when the oracle does not take an input or does not give an output.
    """
    function = oracle_of(spec.name, spec.family, spec.oracle)
    parameters = inspect.signature(function).parameters
    arrays = {a.name: as_values(inputs[a.name], a.fmt) for a in spec.inputs}
    unread = [n for n in arrays if n not in parameters]
    if unread:
        raise SpecError(
            f"oracle of {spec.name} does not take {', '.join(unread)}; it takes"
            f" {', '.join(parameters)}\n  give both sides the same argument names"
        )
    scalars = {a.name: _as_scalar(bound[a.name], a.fmt) for a in spec.scalars}
    given = {**{k: v for k, v in bound.items() if k in parameters}, **arrays}
    given.update({k: v for k, v in scalars.items() if k in parameters})
    if probe is not None and "probe" in parameters:
        given["probe"] = probe
    with np.errstate(all="ignore"):
        result = function(**given)
    results = result if isinstance(result, dict) else {spec.outputs[0].name: result}
    missing = [a.name for a in spec.outputs if a.name not in results]
    if missing:
        raise SpecError(f"oracle of {spec.name} gives no {', '.join(missing)}")
    return {
        name: Reference(*value) if isinstance(value, Bounded) else Reference(value)
        for name, value in results.items()
    }


def _as_scalar(value: Any, fmt: Format) -> float | int:
    """The value the kernel receives: rounded to the scalar's storage type first."""
    stored = np.dtype(fmt.storage).type(value)
    return float(stored) if fmt.is_float else int(stored)
