"""Models for tests: the committed tiny checkpoint, and variants of it."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from oracle.laws import LAWS
from oracle.trunk import Model, build_model
from tests.goldens import golden


@functools.lru_cache(maxsize=8)
def tiny(law: str = "smooth", capacity: int = 64) -> Model:
    """tiny-s: ratios 0, 4, 8, 4, window 8, top 3 blocks, a drafter of two stages."""
    recorded = golden("tiny-s")
    return build_model(recorded.config, recorded.tensors, LAWS[law], capacity)


@functools.lru_cache(maxsize=4)
def coarse(law: str = "smooth", capacity: int = 272) -> Model:
    """tiny-s with blocks of 128 in layer 2, as the published model's coarse layers have them."""
    recorded = golden("tiny-s")
    ratios = (0, 4, 128, 4, 0, 0)
    config = dataclasses.replace(recorded.config, compress_ratios=ratios)
    ape = np.random.default_rng(5).normal(0, 0.5, (128, 128)).astype(np.float32)
    tensors = {**recorded.tensors, "layers.2.attn.compressor.ape": ("F32", ape)}
    return build_model(config, tensors, LAWS[law], capacity)


@functools.lru_cache(maxsize=2)
def with_nextn(law: str = "smooth", capacity: int = 64) -> Model:
    """tiny-s with a next-token block made of its first drafter stage."""
    recorded = golden("tiny-s")
    config = dataclasses.replace(
        recorded.config,
        compress_ratios=(0, 4, 8, 4, 0),
        dspark_block_size=0,
        dspark_target_layer_ids=(),
    )
    kept = {n: t for n, t in recorded.tensors.items() if not n.startswith("mtp.1.")}
    tensors = {n: t for n, t in kept.items() if ".main_" not in n}
    for part in ("hc_head_fn", "hc_head_base", "hc_head_scale", "norm.weight"):
        tensors[f"mtp.0.{part}"] = recorded.tensors[f"mtp.1.{part}"]
    for name, donor in (("e_proj", "layers.1.attn.wkv"), ("h_proj", "layers.2.attn.wq_a")):
        for part in ("weight", "scale"):
            tensors[f"mtp.0.{name}.{part}"] = recorded.tensors[f"{donor}.{part}"]
    for name, donor in (("enorm", "layers.0.attn_norm"), ("hnorm", "layers.1.ffn_norm")):
        tensors[f"mtp.0.{name}.weight"] = recorded.tensors[f"{donor}.weight"]
    return build_model(config, tensors, LAWS[law], capacity)


def some_tokens(count: int, seed: int = 0) -> np.ndarray:
    """Token ids of the tiny vocabulary."""
    return np.random.default_rng(seed).integers(0, 256, count)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference over the largest value."""
    return float(np.abs(a - b).max() / np.abs(b).max())


@functools.lru_cache(maxsize=2)
def odd(law: str = "smooth", capacity: int = 64) -> Model:
    """tiny-s without its coincidences: two copies, no stretched angles, a clamp that bites, a
    window of 5, a compressor in the first layer and none in the third.
    """
    recorded = golden("tiny-s")
    config = dataclasses.replace(
        recorded.config,
        compress_ratios=(8, 4, 0, 4, 0, 0),
        hc_mult=2,
        original_seq_len=0,
        swiglu_limit=0.5,
        window_size=5,
    )
    rng = np.random.default_rng(9)
    shapes = {"fn": (8, 256), "base": (8,), "scale": (3,)}
    head_shapes = {"fn": (2, 256), "base": (2,), "scale": (1,)}
    tensors = {}
    for name, (dtype, bits) in recorded.tensors.items():
        part = name.rpartition("_")[2]
        if "hc_" in name:
            shape = (head_shapes if "hc_head" in name else shapes)[part]
            spread = 256**-0.5 if part == "fn" else 0.5
            bits = rng.normal(0, spread, shape).astype(np.float32)
        tensors[name.replace("layers.2.attn.comp", "layers.0.attn.comp")] = (dtype, bits)
    return build_model(config, tensors, LAWS[law], capacity)
