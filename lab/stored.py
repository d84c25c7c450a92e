"""Tensors of safetensors files by their stored names, memory-mapped, bits untouched."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsv4.errors import Refusal

RECORDED = "golden.safetensors"
"""Recorded outputs lie beside the weights of some checkpoints, and are none."""

# Safetensors names to storage types; the formats NumPy lacks are kept as bits.
_STORAGE = {
    "F64": "float64",
    "F32": "float32",
    "F16": "uint16",
    "BF16": "uint16",
    "F8_E4M3": "uint8",
    "F8_E8M0": "uint8",
    "I8": "uint8",
    "U8": "uint8",
    "I32": "int32",
    "I64": "int64",
    "BOOL": "uint8",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored tensor: its name, its safetensors dtype, and its bits."""

    name: str
    dtype: str
    bits: np.ndarray


class Checkpoint:
    """The tensors of a folder with one or more safetensors files, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        """Read every header. Errors: Refusal naming the file and what is wrong with it."""
        files = [folder] if folder.is_file() else sorted(folder.glob("*.safetensors"))
        if folder.is_dir():
            files = [f for f in files if f.name != RECORDED]
        if not files:
            raise Refusal(
                f"{folder}: no .safetensors file there\n"
                "  give a checkpoint folder or one safetensors file"
            )
        self.folder = folder
        self.metadata: dict[str, str] = {}
        self._where: dict[str, tuple[Path, int, str, tuple[int, ...]]] = {}
        for file in files:
            metadata, found = _read_header(file)
            self.metadata.update(metadata)
            self._where.update(found)

    def __iter__(self) -> Iterator[str]:
        """Tensor names in stored order."""
        return iter(self._where)

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of that name is stored."""
        return name in self._where

    def dtype(self, name: str) -> str:
        """The safetensors dtype of a tensor."""
        return self._where[name][2]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._where[name][3]

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name. Errors: Refusal when it is not stored."""
        if name not in self._where:
            raise Refusal(
                f"tensor {name!r} is not in {self.folder} ({len(self._where)} tensors)\n"
                "  list names with: dsv4-lab kernel-diff --weights DIR --tensor '*' --json"
            )
        file, offset, dtype, shape = self._where[name]
        size = _size(dtype, shape)
        if size == 0:  # nothing to map
            return Tensor(name, dtype, np.empty(shape, _STORAGE[dtype]))
        data = np.memmap(file, np.uint8, mode="r", offset=offset, shape=size)
        return Tensor(name, dtype, np.array(data).view(_STORAGE[dtype]).reshape(shape))


def _read_header(
    file: Path,
) -> tuple[dict[str, str], dict[str, tuple[Path, int, str, tuple[int, ...]]]]:
    size = file.stat().st_size
    with file.open("rb") as handle:
        prefix = handle.read(8)
        length = int.from_bytes(prefix, "little") if len(prefix) == 8 else size
        if length > size - 8:
            raise _damaged(file, f"its header would be {length} bytes, the file has {size}")
        try:
            header = json.loads(handle.read(length))
            metadata = dict(header.pop("__metadata__", None) or {})
            entries = {
                name: (str(e["dtype"]), tuple(map(int, e["shape"])), tuple(e["data_offsets"]))
                for name, e in header.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(file, f"its header is not the expected JSON ({error})") from None
    found = {}
    for name, (dtype, shape, (begin, end)) in entries.items():
        if dtype not in _STORAGE:
            raise _damaged(file, f"tensor {name} has unknown dtype {dtype}")
        if end - begin != _size(dtype, shape):
            raise _damaged(
                file, f"tensor {name} {dtype} {list(shape)} has {end - begin} bytes of data"
            )
        if 8 + length + end > size:
            raise _damaged(
                file, f"tensor {name} ends at byte {8 + length + end}, the file has {size}"
            )
        found[name] = (file, 8 + length + begin, dtype, shape)
    return metadata, found


def _size(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * np.dtype(_STORAGE[dtype]).itemsize


def _damaged(file: Path, what: str) -> Refusal:
    return Refusal(
        f"{file} cannot be used: {what}\n"
        "  the file is truncated or not safetensors; fetch or write it again"
    )
