"""Our stored bits as torch tensors: bf16 and FP8 codes are views, not conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.formats import decode, encode


def as_f32(torch: Any, device: str, array: np.ndarray) -> Any:
    """A float32 tensor."""
    return torch.from_numpy(np.array(array, np.float32, order="C")).to(device)


def as_i32(torch: Any, device: str, array: np.ndarray) -> Any:
    """An int32 tensor."""
    return torch.from_numpy(np.array(array, np.int32, order="C")).to(device)


def as_bf16(torch: Any, device: str, bits: np.ndarray) -> Any:
    """A bfloat16 tensor of stored bits."""
    signed = np.array(bits, np.uint16, order="C").view(np.int16)
    return torch.from_numpy(signed).view(torch.bfloat16).to(device)


def as_e4m3(torch: Any, device: str, codes: np.ndarray) -> Any:
    """A float8_e4m3fn tensor of codes."""
    return (
        torch.from_numpy(np.array(codes, np.uint8, order="C")).view(torch.float8_e4m3fn).to(device)
    )


def to_numpy(tensor: Any) -> np.ndarray:
    """The values of a tensor as float64."""
    return np.asarray(tensor.detach().float().cpu().numpy(), np.float64)


def dequantised(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The values [N,K] of FP8 codes under scales of 128 x 128 blocks."""
    wide = np.repeat(np.repeat(scales.astype(np.float64), 128, axis=0), 128, axis=1)
    return np.asarray(decode(codes, "e4m3") * wide[: codes.shape[0], : codes.shape[1]])


def quantised(x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """(codes e4m3 [M,K], scales [M,ceil(K/group)]) of values.

    Each scale is the power of two that keeps the largest magnitude of its group within 448.
    """
    m, k = x.shape
    count = -(-k // group)
    groups = np.zeros((m, count * group))
    groups[:, :k] = x
    groups = groups.reshape(m, count, group)
    largest = np.maximum(np.abs(groups).max(axis=2), 2.0**-60)
    scales = np.exp2(np.ceil(np.log2(largest / 448.0)))
    codes = encode((groups / scales[..., None]).reshape(m, -1)[:, :k], "e4m3")
    return codes, scales


def size_of(*tensors: Any) -> int:
    """Bytes of these tensors."""
    return sum(int(t.numel()) * int(t.element_size()) for t in tensors)
