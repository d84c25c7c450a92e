"""What a cubin says about itself: its ELF sections, and what each kernel takes of a multiprocessor.

The assembler's log says the same in words, but several kernels assembled side by side share its
lines, and nothing tells whose they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL_BYTES = 24
_NO_BITS = 8
# `.nv.info` is a list of attributes: a form, a code and a size; form 4 has so many bytes behind it.
_ATTRIBUTE = struct.Struct("<BBH")
_SIZED = 4
_REGISTERS, _FRAME = 0x2F, 0x11
# From sm_90 on a block's shared memory starts with bytes of the system, counted in its section.
_SYSTEM_SHARED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Taken:
    """Registers of a thread, static shared bytes of a block, stack bytes of a thread."""

    registers: int
    shared_bytes: int
    stack_bytes: int


def sections(binary: bytes) -> dict[str, bytes]:
    """Every named section; one that takes no room in the file is as many zero bytes."""
    fields = _HEADER.unpack_from(binary)
    table, entry_bytes, count, names_at = fields[5], fields[10], fields[11], fields[12]
    rows = [_SECTION.unpack_from(binary, table + entry_bytes * i) for i in range(count)]
    names = binary[rows[names_at][4] : rows[names_at][4] + rows[names_at][5]]
    found: dict[str, bytes] = {}
    for name_at, kind, _, _, offset, size, *_ in rows:
        name = _text(names, name_at)
        if name:
            found[name] = bytes(size) if kind == _NO_BITS else binary[offset : offset + size]
    return found


def taken(binary: bytes) -> dict[str, Taken]:
    """What each kernel takes, by symbol."""
    held = sections(binary)
    reserved = _SYSTEM_SHARED_BYTES if ".nv.shared.reserved.0" in held else 0
    facts: dict[str, dict[int, int]] = {}
    for symbol, code, value in _attributes(held):
        facts.setdefault(symbol, {})[code] = value
    return {
        symbol: Taken(
            registers=fact.get(_REGISTERS, 0),
            shared_bytes=max(0, len(held.get(f".nv.shared.{symbol}", b"")) - reserved),
            stack_bytes=fact.get(_FRAME, 0),
        )
        for symbol, fact in facts.items()
        if f".text.{symbol}" in held
    }


def _attributes(held: dict[str, bytes]) -> Iterator[tuple[str, int, int]]:
    """(symbol, code, value) of every attribute that belongs to one symbol."""
    info, symbols, names = (held.get(n, b"") for n in (".nv.info", ".symtab", ".strtab"))
    place = 0
    while place + _ATTRIBUTE.size <= len(info):
        form, code, size = _ATTRIBUTE.unpack_from(info, place)
        place += _ATTRIBUTE.size
        if form != _SIZED:
            continue
        if size == 8:
            index, value = struct.unpack_from("<II", info, place)
            (name_at,) = struct.unpack_from("<I", symbols, _SYMBOL_BYTES * index)
            yield _text(names, name_at), code, value
        place += size


def _text(names: bytes, place: int) -> str:
    return names[place : names.index(b"\0", place)].decode()
