"""Real weights for kernel cases: tensors of a safetensors checkpoint, read by their stored names.

A family that can take weights says how in its case module with `weights_for`; kernel-diff then
replaces the generated contents by what the checkpoint holds, bits untouched.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsv4.errors import Refusal, SpecError
from dsv4.spec import KernelSpec
from lab.cases import Case

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
        files = [f for f in files if f.name != "golden.safetensors"]
        if not files:
            raise Refusal(
                f"--weights {folder}: no .safetensors file there\n"
                "  give a checkpoint folder or one safetensors file"
            )
        self.folder = folder
        self._where: dict[str, tuple[Path, int, str, tuple[int, ...]]] = {}
        for file in files:
            self._where.update(_read_header(file))

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
        data = np.memmap(file, np.uint8, mode="r", offset=offset, shape=_size(dtype, shape))
        return Tensor(name, dtype, np.array(data).view(_STORAGE[dtype]).reshape(shape))


def _read_header(file: Path) -> dict[str, tuple[Path, int, str, tuple[int, ...]]]:
    size = file.stat().st_size
    with file.open("rb") as handle:
        prefix = handle.read(8)
        length = int.from_bytes(prefix, "little") if len(prefix) == 8 else size
        if length > size - 8:
            raise _damaged(file, f"its header would be {length} bytes, the file has {size}")
        try:
            header = json.loads(handle.read(length))
            entries = {
                name: (str(e["dtype"]), tuple(map(int, e["shape"])), tuple(e["data_offsets"]))
                for name, e in header.items()
                if name != "__metadata__"
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
    return found


def _size(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * np.dtype(_STORAGE[dtype]).itemsize


def _damaged(file: Path, what: str) -> Refusal:
    return Refusal(
        f"{file} cannot be used: {what}\n"
        "  the file is truncated or not safetensors; fetch or write it again"
    )


WeightAdapter = Callable[[Checkpoint, str], Mapping[str, object] | None]
_ADAPTERS: dict[str, WeightAdapter] = {}


def weights_for(*kernels: str) -> Callable[[WeightAdapter], WeightAdapter]:
    """Register how a tensor becomes a case's content.

    The adapter gets the checkpoint and a tensor name and returns axes and contents for `Case`, or
    None when the tensor is of another kind.
    """

    def register(adapter: WeightAdapter) -> WeightAdapter:
        _ADAPTERS.update(dict.fromkeys(kernels, adapter))
        return adapter

    return register


def weight_cases(
    spec: KernelSpec, checkpoint: Checkpoint, tensor: str | None, *, limit: int = 4
) -> list[Case]:
    """Cases on this checkpoint's tensors: the named one, or the first `limit` shapes that fit.

    Errors: Refusal when the named tensor is missing or of a kind this kernel does not take.
    """
    importlib.import_module(f"lab.cases.{spec.family}")
    adapter = _ADAPTERS.get(spec.name)
    if adapter is None:
        return []
    if tensor is not None:
        found = checkpoint.tensor(tensor)
        content = adapter(checkpoint, tensor)
        if content is None:
            raise Refusal(
                f"{spec.name} cannot take tensor {tensor} ({found.dtype}"
                f" {list(found.bits.shape)})\n"
                f"  its weights are {', '.join(a.fmt.name for a in spec.inputs)}; choose a tensor"
                " of that kind, or leave --tensor out"
            )
        return [Case(f"weights:{tensor}", **content)]  # type: ignore[arg-type]
    chosen: dict[object, Case] = {}
    for name in checkpoint:
        content = adapter(checkpoint, name)
        if content is None:
            continue
        kind = tuple(sorted((k, v) for k, v in content.items() if k.isupper()))
        chosen.setdefault(kind, Case(f"weights:{name}", **content))  # type: ignore[arg-type]
        if len(chosen) == limit:
            break
    return list(chosen.values())


def takes_weights(spec: KernelSpec) -> bool:
    """Whether the family says how to use checkpoint tensors for this kernel."""
    try:
        importlib.import_module(f"lab.cases.{spec.family}")
    except ImportError as error:
        raise SpecError(f"{spec.family} has no case module ({error})") from None
    return spec.name in _ADAPTERS


def fp8_pair(checkpoint: Checkpoint, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes and E8M0 scales of an FP8-block weight; None when the tensor is another kind."""
    return _pair(checkpoint, name, "F8_E4M3", "F8_E8M0", ".scale")


def mxfp4_pair(checkpoint: Checkpoint, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Packed codes and E8M0 scales of an MXFP4 weight; None when the tensor is another kind."""
    return _pair(checkpoint, name, "I8", "F8_E8M0", ".scale")


def nvfp4_triple(
    checkpoint: Checkpoint, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Packed codes, E4M3 scales and the scale of an NVFP4 weight; None for another kind."""
    pair = _pair(checkpoint, name, "U8", "F8_E4M3", ".weight_scale")
    second = name.removesuffix(".weight") + ".weight_scale_2"
    if pair is None or second not in checkpoint:
        return None
    return (*pair, checkpoint.tensor(second).bits.reshape(1))


def bf16_matrix(checkpoint: Checkpoint, name: str) -> np.ndarray | None:
    """The bits of a BF16 matrix; None when the tensor is another kind."""
    if checkpoint.dtype(name) != "BF16" or len(checkpoint.shape(name)) != 2:
        return None
    return checkpoint.tensor(name).bits


def _pair(
    checkpoint: Checkpoint, name: str, codes: str, scales: str, suffix: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """A weight and the scales stored beside it. Errors: Refusal when the scales are missing."""
    if checkpoint.dtype(name) != codes or len(checkpoint.shape(name)) != 2:
        return None
    beside = name.removesuffix(".weight") + suffix
    if beside not in checkpoint:
        if codes == "F8_E4M3" and name.endswith("scale"):
            return None
        raise Refusal(
            f"tensor {name} in {checkpoint.folder} has no {beside}\n"
            f"  a {codes} weight needs its scales; the checkpoint is incomplete"
        )
    if checkpoint.dtype(beside) != scales:
        return None
    return checkpoint.tensor(name).bits, checkpoint.tensor(beside).bits
