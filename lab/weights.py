"""Real weights for kernel cases: tensors of a safetensors checkpoint, read by their stored names.

A family that can take weights says how in its case module with `weights_for`; kernel-diff then
replaces the generated contents by what the checkpoint holds, bits untouched.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

import numpy as np

from dsv4.errors import Refusal, SpecError
from dsv4.spec import KernelSpec
from lab.cases import Case
from lab.stored import Checkpoint as Checkpoint

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
