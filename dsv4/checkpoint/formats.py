"""How published checkpoints store tensors: types, names, and which tensors form one weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dsv4.spec import BF16, E2M1X2, E4M3, F32, I64, UE8M0, Format

# Safetensors names to storage types; the formats NumPy lacks are kept as bits.
STORAGE: Final[Mapping[str, np.dtype[Any]]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.uint16),
    "BF16": np.dtype(np.uint16),
    "F8_E4M3": np.dtype(np.uint8),
    "F8_E8M0": np.dtype(np.uint8),
    "I8": np.dtype(np.uint8),
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "BOOL": np.dtype(np.uint8),
}
# What a stored type of this model means to a kernel. Packed FP4 is I8 in MXFP4 and U8 in NVFP4;
# either way it is two unsigned nibbles.
FORMAT_OF: Final = {
    "F32": F32,
    "BF16": BF16,
    "F8_E4M3": E4M3,
    "F8_E8M0": UE8M0,
    "I8": E2M1X2,
    "U8": E2M1X2,
    "I64": I64,
}

_ALIASES: Final = {
    "self_attn": "attn",
    "mlp": "ffn",
    "weight_scale_inv": "scale",
    "e_score_correction_bias": "bias",
    "embed_tokens": "embed",
    "lm_head": "head",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_a_proj": "wq_a",
    "q_a_layernorm": "q_norm",
    "q_b_proj": "wq_b",
    "kv_a_layernorm": "kv_norm",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
}


def normalise(name: str) -> str:
    """The published name of a tensor that may be stored under an accepted alias."""
    parts = name.removeprefix("model.").split(".")
    return ".".join(_ALIASES.get(part, part) for part in parts)


def is_redundant_copy(name: str) -> bool:
    """Whether a name outside the census is a copy of embedding or head that conversions add.

    Ask only for names that are not expected: `mtp.2.markov_head...` and `hc_head_fn` are real.
    """
    parts = name.split(".")
    if parts[0] != "mtp":
        return False
    head = len(parts) > 2 and parts[-1] == "weight" and parts[-2] in ("head", "shared_head")
    return head or any(part.startswith("emb") for part in parts[2:])


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor of that stored type and shape."""
    return math.prod(shape) * STORAGE[dtype].itemsize


def format_of(dtype: str) -> Format:
    """The kernel format of a stored type of this model."""
    return FORMAT_OF[dtype]


@dataclass(frozen=True, slots=True)
class WeightParts:
    """Which stored tensors form one matrix, by suffix, and how many columns share a scale.

    A weight is a code times its scale (times the second scale), never divided by it.
    """

    kind: str
    scales: str
    group: int
    second: str = ""

    def names(self, matrix: str) -> tuple[str, ...]:
        """The tensors of a matrix such as "layers.0.attn.wq_a": codes, scales, second scale."""
        found = (f"{matrix}.weight", f"{matrix}{self.scales}")
        return (*found, f"{matrix}{self.second}") if self.second else found


# By the stored type of the codes: it decides, whatever manifests say.
WEIGHTS: Final[Mapping[str, WeightParts]] = {
    "F8_E4M3": WeightParts("fp8", ".scale", 128),
    "I8": WeightParts("mxfp4", ".scale", 32),
    "U8": WeightParts("nvfp4", ".weight_scale", 16, ".weight_scale_2"),
}


def block_of(name: str) -> str:
    """The prefix of the block a tensor belongs to: "layers.7.", "mtp.0." or ""."""
    parts = name.split(".", 2)
    return f"{parts[0]}.{parts[1]}." if parts[0] in ("layers", "mtp") and len(parts) == 3 else ""
