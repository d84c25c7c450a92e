"""Reads the line table of a compiled library: which code address belongs to which source line.

Only what the check build makes: 64-bit little-endian ELF with DWARF 4 line programs, which g++ and
clang++ both write with -gdwarf-4. So a fault gets its `.cu` line with no debugger installed.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from dsv4.errors import CompileError

_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE = 1, 2, 3, 4
_CONST_ADD_PC, _FIXED_ADVANCE_PC = 8, 9
_END_SEQUENCE, _SET_ADDRESS = 1, 2


@dataclass(frozen=True, slots=True)
class LineTable:
    """Rows (offset, file number, line) sorted by offset, and the files by number."""

    rows: tuple[tuple[int, int, int], ...]
    files: tuple[str, ...]


class _Reader:
    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def unpack(self, form: str) -> int:
        value: int = struct.unpack_from("<" + form, self.data, self.position)[0]
        self.position += struct.calcsize("<" + form)
        return value

    def text(self) -> str:
        end = self.data.index(0, self.position)
        value = self.data[self.position : end].decode(errors="replace")
        self.position = end + 1
        return value

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        start = self.position
        value = self.unsigned()
        bits = 7 * (self.position - start)
        return value - (1 << bits) if value >> (bits - 1) else value


def read_line_table(library: Path) -> LineTable:
    """The line table of every unit in the library.

    Errors: CompileError when the compiler wrote another format.
    """
    data = library.read_bytes()
    section = _section(data, b".debug_line")
    rows: list[tuple[int, int, int]] = []
    numbers: dict[str, int] = {}
    reader = _Reader(section)
    while reader.position < len(section):
        length = reader.unpack("I")
        end = reader.position + length
        version = reader.unpack("H")
        if not 2 <= version <= 4:
            raise CompileError(
                f"{library.name}: the debug line table cannot be read\n"
                f"  found DWARF version {version}, written although version 4 was asked for\n"
                f"  in {library}\n  set DSV4_CXX to g++ or clang++ of another version"
            )
        _read_unit(reader, end, version, numbers, rows)
        reader.position = end
    # At one address the end of a sequence comes before the start of the next; the last row wins.
    rows.sort(key=lambda row: (row[0], row[2] != 0))
    return LineTable(tuple(rows), tuple(numbers))


def _append(rows: list[tuple[int, int, int]], address: int, file: int, line: int) -> None:
    """Add a row, but not for code that the compiler gave no line: the line before it is nearer."""
    if line != 0:
        rows.append((address, file, line))


def _section(data: bytes, name: bytes) -> bytes:
    if data[:6] != b"\x7fELF\x02\x01":
        return b""
    table = struct.unpack_from("<Q", data, 0x28)[0]
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    names_at = headers[names_index][4]
    for header in headers:
        start = names_at + header[0]
        if data[start : data.index(0, start)] == name:
            return data[header[4] : header[4] + header[5]]
    return b""


def _read_unit(
    reader: _Reader,
    end: int,
    version: int,
    numbers: dict[str, int],
    rows: list[tuple[int, int, int]],
) -> None:
    header_length = reader.unpack("I")
    program = reader.position + header_length
    step = reader.unpack("B")
    if version >= 4:
        reader.unpack("B")  # operations per instruction: 1 everywhere we run
    reader.unpack("B")  # default of is_stmt
    line_base, line_range, opcode_base = (reader.unpack(form) for form in "bBB")
    operands = [0, *(reader.unpack("B") for _ in range(opcode_base - 1))]
    folders = [""]
    while folder := reader.text():
        folders.append(folder)
    files = [0]
    while name := reader.text():
        folder = folders[reader.unsigned()]
        reader.unsigned()
        reader.unsigned()
        path = str(Path(folder) / name)
        files.append(numbers.setdefault(path, len(numbers)))
    reader.position = program

    address, file, line = 0, 1, 1
    sequence = len(rows)
    while reader.position < end:
        opcode = reader.unpack("B")
        if opcode >= opcode_base:
            adjusted = opcode - opcode_base
            address += adjusted // line_range * step
            line += line_base + adjusted % line_range
            _append(rows, address, files[file], line)
        elif opcode == 0:
            size = reader.unsigned()
            after = reader.position + size
            extended = reader.unpack("B")
            if extended == _END_SEQUENCE:
                rows.append((address, 0, 0))
                if rows[sequence][0] == 0:  # a function that the linker dropped
                    del rows[sequence:]
                address, file, line = 0, 1, 1
                sequence = len(rows)
            elif extended == _SET_ADDRESS:
                address = reader.unpack("Q")
            reader.position = after
        elif opcode == _COPY:
            _append(rows, address, files[file], line)
        elif opcode == _ADVANCE_PC:
            address += reader.unsigned() * step
        elif opcode == _ADVANCE_LINE:
            line += reader.signed()
        elif opcode == _SET_FILE:
            file = reader.unsigned()
        elif opcode == _CONST_ADD_PC:
            address += (255 - opcode_base) // line_range * step
        elif opcode == _FIXED_ADVANCE_PC:
            address += reader.unpack("H")
        else:
            for _ in range(operands[opcode]):
                reader.unsigned()
