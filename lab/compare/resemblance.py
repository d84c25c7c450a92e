"""What the wrong values look like: a constant, a scaled or moved reference, a stale row."""

from __future__ import annotations

import numpy as np

from lab.compare.census import POISON_BYTES, holds
from lab.compare.pair import Mask, Pair, Raw
from oracle.formats import FORMATS

_ROWS = 64  # wrong rows that are looked up among the reference's rows


def resemblances(pair: Pair, wrong: Mask) -> tuple[str, ...]:
    """Sentences that hold for every wrong element (or for whole wrong rows)."""
    n = int(wrong.sum())
    if n < 2:
        return ()
    said = [*_constant(pair, wrong), *_scaled(pair, wrong), *_swapped(pair, wrong)]
    return tuple(said) or tuple(_moved_rows(pair, wrong))


def _constant(pair: Pair, wrong: Mask) -> list[str]:
    bits = pair.got_bits[wrong].view(f"u{pair.got_bits.dtype.itemsize}")
    refs = pair.ref_bits[wrong].view(bits.dtype)
    if (bits != bits[0]).any() or (refs == refs[0]).all():
        return []
    value = pair.got[wrong][0]
    text = f"every wrong element is {int(bits[0]):#0{2 + 2 * bits.itemsize}x} ({value:g})"
    poison = holds(bits[:1], POISON_BYTES[0]).all()
    return [text + (", the poison of an output before the launch" if poison else "")]


def _scaled(pair: Pair, wrong: Mask) -> list[str]:
    """got = c * ref with one c: a sign, a power of two (a scale's exponent), or about a number."""
    got, ref = pair.got[wrong], pair.rounded[wrong]
    usable = np.isfinite(got) & np.isfinite(ref) & (ref != 0) & (got != 0)
    if usable.sum() < 2 or not (usable | ((got == 0) & (ref == 0))).all():
        return []
    with np.errstate(over="ignore"):
        ratio = got[usable] / ref[usable]
    middle = float(np.median(ratio))
    if middle == 0 or not np.isfinite(middle):
        return []
    mantissa = FORMATS[pair.fmt].mantissa if pair.fmt in FORMATS else 52
    if np.abs(ratio / middle - 1).max() > 2.0**-mantissa:
        return []
    if middle == -1:
        return ["every wrong element is the reference with its sign flipped"]
    if np.frexp(abs(middle))[0] == 0.5 and (ratio == middle).all():
        return [f"every wrong element is {middle:g} times the reference: a scale's exponent"]
    if abs(middle - 1) <= 2.0 ** (2 - mantissa):
        return []  # off by an ulp or two, which is no scale
    return [f"every wrong element is about {middle:.4g} times the reference"]


def _swapped(pair: Pair, wrong: Mask) -> list[str]:
    """Each even element holds its odd neighbour's value and the other way round."""
    width = pair.shape[-1] if pair.shape else 0
    if width < 2 or width % 2:
        return []
    pairs = (*pair.shape[:-1], width // 2, 2)
    swapped = pair.ref_bits.reshape(pairs)[..., ::-1].reshape(pair.shape)
    if (swapped[wrong] != pair.got_bits[wrong]).any():
        return []
    order = " (the order of nibbles)" if pair.fmt == "e2m1" else ""
    return [f"neighbours along {pair.axes[-1]} are swapped{order}"]


def _moved_rows(pair: Pair, wrong: Mask) -> list[str]:
    """Wrong rows whose bytes are those of another row of the reference: stale, or misplaced."""
    if len(pair.shape) < 2 or pair.shape[-1] < 4:
        return []
    width, lead = pair.shape[-1], pair.shape[:-1]
    got, ref = pair.got_bits.reshape(-1, width), pair.ref_bits.reshape(-1, width)
    rows = np.flatnonzero(wrong.reshape(-1, width).mean(1) > 0.5)
    if not 0 < rows.size <= _ROWS:
        return []
    known = {_bytes(ref[r]): r for r in range(ref.shape[0] - 1, -1, -1)}
    moves = [(int(r), known.get(_bytes(got[r]))) for r in rows]
    found = [(r, s) for r, s in moves if s is not None and s != r]
    if not found:
        return []
    shown = ", ".join(
        f"{_name(pair, r, lead)} holds the reference of {_name(pair, s, lead)}"
        for r, s in found[:3]
    )
    return [shown + (f" and {len(found) - 3} more rows likewise" if len(found) > 3 else "")]


def _bytes(row: Raw) -> bytes:
    return np.ascontiguousarray(row).tobytes()


def _name(pair: Pair, row: int, lead: tuple[int, ...]) -> str:
    place = np.unravel_index(row, lead)
    return ",".join(f"{a}={int(i)}" for a, i in zip(pair.axes, place, strict=False))
