"""Checks of what tensors hold: they need the data, so they run while weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from dsv4.checkpoint.census import Artifact
from dsv4.checkpoint.expected import Entry
from dsv4.checkpoint.rules import refuse

# Elements looked at in one go: comparisons make arrays of their size, so memory stays small.
_AT_ONCE: Final = 1 << 22
_E4M3_NAN: Final = 0x7F
_E8M0_NAN: Final = 0xFF
_DAMAGED: Final = "the file is damaged or was converted wrongly; fetch it again"


def check_values(
    name: str,
    entry: Entry,
    bits: np.ndarray,
    *,
    n_experts: int,
    where: object,
    exact: bool = True,
) -> None:
    """Nothing, if a tensor holds values that its type and its place in the model allow.

    n_experts: how many experts a hash table may name. exact: whether second scales must be powers
    of two, which makes NVFP4 weights exact in bf16 (kernels that keep the second scale apart do not
    need it).
    Errors: Refusal naming the rule, the tensor and the index of the first bad element.
    """

    def demand(rule: str, bad: Callable[[np.ndarray], np.ndarray]) -> None:
        for index in _first(bits, bad):
            value = bits[index]
            found = f"{name}[{', '.join(map(str, index))}] is {_shown(value, entry.dtype)}"
            raise refuse(rule, found, where, _DAMAGED)

    if entry.dtype == "F8_E8M0":
        demand("e8m0-nan", lambda part: part == _E8M0_NAN)
    elif entry.dtype == "F8_E4M3":
        demand("e4m3-nan", lambda part: (part & _E4M3_NAN) == _E4M3_NAN)
        if name.endswith(".weight_scale"):
            # -0 is negative too: its sign bit is set.
            demand("negative-scale", lambda part: part > _E4M3_NAN)
    elif entry.dtype == "BF16":
        demand("finite-weights", lambda part: (part & 0x7F80) == 0x7F80)
    elif entry.dtype == "F32":
        second = name.endswith(".weight_scale_2")
        finite = "scale-2" if second else "finite-weights"
        demand(finite, lambda part: ~np.isfinite(part))
        if second:
            demand("scale-2", lambda part: part <= 0)
        if second and exact:
            demand("scale-2-power", lambda part: np.frexp(part)[0] != 0.5)
    elif name.endswith(".tid2eid"):
        demand("expert-ids", lambda part: (part < 0) | (part >= n_experts))
        _check_distinct(name, bits, where)


def _check_distinct(name: str, table: np.ndarray, where: object) -> None:
    rows = max(1, _AT_ONCE // max(1, table.shape[-1]))
    for start in range(0, len(table), rows):
        ordered = np.sort(table[start : start + rows], axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        if twice.any():
            row = start + int(np.argmax(twice))
            found = f"{name}[{row}] is {table[row].tolist()}"
            raise refuse("distinct-experts", found, where, _DAMAGED)


def _first(bits: np.ndarray, bad: Callable[[np.ndarray], np.ndarray]) -> Iterator[tuple[int, ...]]:
    """The index of the first bad element, if there is one."""
    flat = bits.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        found = bad(flat[start : start + _AT_ONCE])
        if found.any():
            place = np.unravel_index(start + int(np.argmax(found)), bits.shape)
            yield tuple(int(i) for i in place)
            return


def _shown(value: np.generic, dtype: str) -> str:
    if dtype in ("F32", "I64"):
        return str(value.item())
    return f"0x{int(value.item()):0{2 * value.itemsize}x}"


def is_lossless_cast(scales: np.ndarray, second: float) -> bool:
    """Whether NVFP4 scales restate MXFP4 ones: powers of two, equal in pairs of 16-groups.

    Shapes: scales [out, in/16], E4M3 codes. The published weights are such a cast, so a false here
    on them means that scales were read from the wrong place.
    """
    magnitude = scales & _E4M3_NAN
    exponent, mantissa = magnitude >> 3, magnitude & 7
    # Below the smallest normal a power of two is a single mantissa bit; zero is none.
    power = np.where(exponent > 0, mantissa == 0, (mantissa & (mantissa - 1) == 0) & (mantissa > 0))
    pairs = bool((scales[..., 0::2] == scales[..., 1::2]).all())
    return pairs and bool(power.all()) and float(np.frexp(second)[0]) == 0.5


def check_all_values(
    artifact: Artifact,
    *,
    exact: bool = True,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> None:
    """Nothing, if every tensor of a checkpoint holds allowed values; reads all of it, once.

    progress is called with the bytes of each tensor. Errors: as `check_values`.
    """
    experts = artifact.config.n_routed_experts
    for name, bits in artifact.tensors.stream(artifact.census.entries):
        entry = artifact.census.entries[name]
        where = artifact.tensors.entry(name).file
        check_values(name, entry, bits, n_experts=experts, where=where, exact=exact)
        progress(entry.size_bytes)
