"""Safetensors headers: which tensors a file holds, and where; checked before anything is read.

A file is a little-endian u64, that many bytes of JSON, then the tensors; offsets count from the end
of the header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsv4.checkpoint.formats import STORAGE, size_of
from dsv4.checkpoint.rules import refuse
from dsv4.errors import Refusal

_PREFIX_BYTES: Final = 8
# What the safetensors library accepts; a larger length is a damaged prefix.
_LONGEST_HEADER_BYTES: Final = 100_000_000
_AGAIN: Final = "the file is damaged or still being written; fetch it again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a header describes it; offset counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What one safetensors file says it holds: tensors in the order of their data, and remarks."""

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]


def read_header(file: Path, *, headers_only: bool = False) -> Header:
    """The header of a safetensors file.

    headers_only: do not ask that the file holds the data its header describes.
    Errors: Refusal naming the rule; OSError when the file cannot be read.
    """
    size = file.stat().st_size
    with file.open("rb") as handle:
        prefix = handle.read(_PREFIX_BYTES)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < _PREFIX_BYTES or length > size - _PREFIX_BYTES:
            found = f"{size} bytes" + (f", a header of {length}" if len(prefix) == 8 else "")
            rule = "truncated-shard" if length <= _LONGEST_HEADER_BYTES else "shard-header"
            raise refuse(rule, found, file, _AGAIN)
        raw = handle.read(length)
    start = _PREFIX_BYTES + length
    header = parse_header(_json_of(raw, file), file, start=start)
    end = max((t.offset + t.size_bytes for t in header.tensors.values()), default=start)
    if size != end and not headers_only:
        rule = "truncated-shard" if size < end else "shard-length"
        raise refuse(rule, f"{size} bytes, the last tensor ends at {end}", file, _AGAIN)
    return header


def parse_header(content: Mapping[str, Any], file: Path, start: int) -> Header:
    """What the JSON of a header describes; offsets count from `start`.

    Errors: Refusal for an unknown type, a length that contradicts the shape, or data that overlaps
    or leaves a gap.
    """
    found = [_tensor(n, entry, file, start) for n, entry in content.items() if n != "__metadata__"]
    found.sort(key=lambda t: (t.offset, t.size_bytes))
    expected = start
    for tensor in found:
        if tensor.offset != expected:
            raise refuse(
                "tensor-overlap",
                f"{tensor.name} begins at byte {tensor.offset}, the one before ends at {expected}",
                file,
                _AGAIN,
            )
        expected += tensor.size_bytes
    metadata = content.get("__metadata__") or {}
    if not isinstance(metadata, Mapping):
        raise refuse("shard-header", f"__metadata__ of {metadata!r}", file, _AGAIN)
    remarks = {str(key): str(value) for key, value in metadata.items()}
    return Header({t.name: t for t in found}, remarks)


def _tensor(name: str, entry: Any, file: Path, start: int) -> StoredTensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise refuse("shard-header", f"an entry for {name} of {entry!r}", file, _AGAIN) from None
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise refuse("shard-header", f"an entry for {name} of {entry!r}", file, _AGAIN)
    if dtype not in STORAGE:
        raise refuse(
            "unknown-dtype",
            f"tensor {name} of type {dtype!r}",
            file,
            f"known are {', '.join(STORAGE)}",
        )
    size = size_of(dtype, shape)
    if end - begin != size:
        raise refuse(
            "tensor-length",
            f"tensor {name}, {dtype} {list(shape)}, has {end - begin} bytes instead of {size}",
            file,
            _AGAIN,
        )
    return StoredTensor(name, dtype, shape, file, start + begin, size)


def _json_of(raw: bytes, file: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise refuse("duplicate-tensor", f"{twice} twice in one header", file, _AGAIN)
        return content

    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except Refusal:
        raise
    except (ValueError, RecursionError) as error:
        raise refuse("shard-header", f"no JSON ({error})", file, _AGAIN) from None
    if not isinstance(header, dict):
        raise refuse("shard-header", f"a JSON {type(header).__name__}", file, _AGAIN)
    return header
