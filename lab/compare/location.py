"""Everything that names one element: coordinates, byte, bits, values, and who computed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.spec import Tile
from lab.compare.pair import Pair, Raw


@dataclass(frozen=True, slots=True)
class Location:
    """One element of an output.

    where: index along each named axis. byte: offset in the contiguous output. got, ref: values as
    stored; ref64: the unrounded reference. block, thread: who writes it, when the tile says so.
    """

    index: int
    where: dict[str, int]
    byte: int
    got_hex: str
    ref_hex: str
    got: float
    ref: float
    ref64: float
    block: tuple[int, int, int] | None
    thread: int | None


def locate(pair: Pair, index: int, tile: Tile | None) -> Location:
    """The element at a flat index (in elements, not bytes)."""
    place = tuple(int(i) for i in np.unravel_index(index, pair.shape))
    block, thread = owner(pair, place, tile) if tile else (None, None)
    itemsize = pair.got_bits.dtype.itemsize
    return Location(
        index=index,
        where=dict(zip(pair.axes, place, strict=True)),
        byte=index * itemsize // pair.packed,
        got_hex=_hex(pair.got_bits[place], pair.packed),
        ref_hex=_hex(pair.ref_bits[place], pair.packed),
        got=float(pair.got[place]),
        ref=float(pair.rounded[place]),
        ref64=float(pair.target[place]),
        block=block,
        thread=thread,
    )


def owner(
    pair: Pair, place: tuple[int, ...], tile: Tile
) -> tuple[tuple[int, int, int], int | None]:
    """The block (x, y, z) that owns an element, and its thread when one thread has it whole."""
    block, thread = [0, 0, 0], None
    for dimension, part in enumerate((tile.x, tile.y, tile.z)):
        if part is None:
            continue
        axis, width = part
        position = _along(axis, pair, place)
        if position is None:
            continue
        block[dimension] = position // width
        if dimension == 0 and tile.per_thread:
            thread = position % width // tile.per_thread
    return (block[0], block[1], block[2]), thread


def widths(pair: Pair, tile: Tile | None) -> Mapping[str, int]:
    """Elements per tile of every axis that the tile cuts."""
    parts = [p for p in (tile.x, tile.y, tile.z) if p] if tile else []
    found = {axis: width for axis, width in parts if axis in pair.axes}
    if pair.packed > 1:  # a tile in bytes of the packed axis
        halves = {f"{a}/2": a for a in pair.axes}
        found.update({halves[a]: w * pair.packed for a, w in parts if a in halves})
    return found


def _along(axis: str, pair: Pair, place: tuple[int, ...]) -> int | None:
    """The index along an axis, or along a product of neighbouring axes such as T*H."""
    if axis in pair.axes:
        return place[pair.axes.index(axis)]
    if pair.packed > 1 and axis == f"{pair.axes[-1]}/2":
        return place[-1] // pair.packed
    names = [n.strip() for n in axis.split("*")]
    if len(names) < 2 or any(n not in pair.axes for n in names):
        return None
    index = 0
    for name in names:
        at = pair.axes.index(name)
        index = index * pair.shape[at] + place[at]
    return index


def _hex(bits: Any, packed: int) -> str:
    raw: Raw = np.asarray(bits)
    number = int(raw.view(f"u{raw.dtype.itemsize}"))
    return f"{number:#0{2 + 2 * raw.dtype.itemsize // packed}x}"
