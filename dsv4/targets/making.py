"""Qwen3 targets made of random numbers, by published sizes, so that full ones run without files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dsv4.checkpoint.agreeable import Language, head_bits
from dsv4.checkpoint.made import MadeTensor, MadeTensors
from dsv4.runtime.device import Device
from dsv4.speculation.refusals import refuse
from dsv4.targets.config import TargetConfig, target_config

_SHARED: Final = dict(model_type="qwen3", rms_norm_eps=1e-6, rope_theta=1e6)
SIZES: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen3-tiny": _SHARED
    | dict(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=128,
        vocab_size=320,
        eos_token_id=319,
    ),
    "qwen3-0.6b": _SHARED
    | dict(
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        vocab_size=151936,
        eos_token_id=151645,
    ),
}
"""Configurations by name; their head is the embedding, as in the published ones."""
_DAMPING: Final = 2.0**-6
"""What layers add to the residual stream of a target with a language."""


def made_target(
    size: str,
    device: Device,
    *,
    seed: int = 0,
    layers: int | None = None,
    share: float | None = None,
) -> MadeTensors:
    """The tensors of a target. share: it speaks a language, through a head of its own.

    Errors: DrafterRefusal for a size that there is not, or a share outside 0..1.
    """
    if size not in SIZES:
        raise refuse("value", "a made target", repr(size), f"there are {', '.join(SIZES)}")
    if share is not None and not 0 <= share <= 1:
        raise refuse("value", "a made target", f"a share of {share}", "give one from 0 to 1")
    content = dict(SIZES[size], tie_word_embeddings=share is None)
    if layers is not None:
        content["num_hidden_layers"] = layers
    c = target_config(content)
    changes = {} if share is None else {"lm_head.weight": _speaking(Language(c.vocab, seed, share))}
    title = f"made {size}, seed {seed}" + ("" if share is None else f", agreeing {share:g}")
    return MadeTensors(
        title, content, _tensors(c, _DAMPING if changes else 1.0), device, seed, changes
    )


def _speaking(language: Language) -> Any:
    def change(tensors: MadeTensors, made: np.ndarray) -> np.ndarray:
        made[language.successors()] = head_bits(np, tensors.random("model.embed_tokens.weight"))
        return made

    return change


def _tensors(c: TargetConfig, damping: float) -> dict[str, MadeTensor]:
    q, kv = c.heads * c.width, c.kv_heads * c.width
    found = {"model.embed_tokens.weight": MadeTensor((c.vocab, c.hidden), deviation=1.0)}
    if not c.tied:
        found["lm_head.weight"] = matrix(c.vocab, c.hidden)
    for i in range(len(c.kinds)):
        at = f"model.layers.{i}."
        attention = dict(q=(q, c.hidden), k=(kv, c.hidden), v=(kv, c.hidden))
        found |= {f"{at}{n}_layernorm.weight": gain(c.hidden) for n in ("input", "post_attention")}
        found |= {f"{at}self_attn.{n}_proj.weight": matrix(*s) for n, s in attention.items()}
        found |= {f"{at}self_attn.{n}_norm.weight": gain(c.width) for n in "qk"}
        found[f"{at}self_attn.o_proj.weight"] = matrix(c.hidden, q, damping)
        found |= {f"{at}mlp.{n}_proj.weight": matrix(c.ff, c.hidden) for n in ("gate", "up")}
        found[f"{at}mlp.down_proj.weight"] = matrix(c.hidden, c.ff, damping)
    return found | {"model.norm.weight": gain(c.hidden)}


def matrix(rows: int, columns: int, factor: float = 1.0) -> MadeTensor:
    """A matrix whose products keep the size of what it multiplies, times a factor."""
    return MadeTensor((rows, columns), deviation=factor / math.sqrt(columns))


def gain(width: int) -> MadeTensor:
    """The gain of a norm, near one."""
    return MadeTensor((width,), mean=1.0, deviation=0.1)
