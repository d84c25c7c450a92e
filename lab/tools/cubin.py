"""What a cubin holds, read from its ELF sections: code of each kernel, apart from debug tables.

Two builds whose sources differ in comments or in line numbers have other debug tables and the same
code; comparing whole files would call them different.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from dsv4.runtime.elf import sections

# Lines, names and notes of the compiler: they say where code came from, not what it does.
_ABOUT = (".debug", ".nv_debug", ".rela.debug", ".rel.debug", ".shstrtab", ".strtab", ".symtab",
          ".note", ".nv.callgraph", ".rel.nv.", ".nv.prototype", ".nv.compat",
          ".nv.merc.symtab")  # fmt: skip


def code(binary: bytes) -> dict[str, bytes]:
    """The sections that decide what runs: instructions, constants, shared memory, attributes."""
    found = sections(binary).items()
    return {k: v for k, v in found if not k.startswith(_ABOUT) and "debug" not in k}


def code_bytes(binary: bytes, symbol: str) -> int:
    """The size of a kernel's instructions; 0 when the cubin has no such kernel."""
    return len(sections(binary).get(f".text.{symbol}", b""))


def code_digest(binary: bytes, symbol: str = "") -> str:
    """A digest of the code sections, of one kernel or of the whole file."""
    digest = hashlib.sha256()
    for name, content in sorted(_of(code(binary), symbol).items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def differing(before: bytes, after: bytes, symbol: str = "") -> list[str]:
    """The code sections that differ or are in one of the two only, sorted."""
    a, b = _of(code(before), symbol), _of(code(after), symbol)
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def _of(found: Mapping[str, bytes], symbol: str) -> dict[str, bytes]:
    """The sections of one kernel, whose names end with it, or all."""
    return {k: v for k, v in found.items() if not symbol or k.endswith(f".{symbol}")}
