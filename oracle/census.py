"""Which tensors a checkpoint of a configuration holds: names, stored types and shapes."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from oracle.config import ModelConfig

Stored = Mapping[str, tuple[str, np.ndarray]]
"""Tensors by name: the safetensors dtype, and the bits (bf16 as uint16, FP8 and FP4 as uint8)."""


class TensorError(ValueError):
    """A tensor that is missing, not expected, or stored in another type, shape or value range."""


class Entry(NamedTuple):
    """How one tensor is stored."""

    dtype: str
    shape: tuple[int, ...]


def check_census(config: ModelConfig, tensors: Stored) -> None:
    """Nothing, if exactly the expected tensors are there.

    Errors: TensorError naming the first that is missing, extra, or of another dtype or shape.
    """
    expected = census(config, tensors)
    for name, entry in expected.items():
        if name not in tensors:
            raise TensorError(f"tensor {name} is missing; the configuration wants {entry}")
        dtype, bits = tensors[name]
        if (dtype, bits.shape) != entry:
            raise TensorError(
                f"tensor {name} is {dtype} {list(bits.shape)}\n"
                f"  the configuration wants {entry.dtype} {list(entry.shape)}"
            )
    extra = [name for name in tensors if name not in expected and not _redundant(name)]
    if extra:
        raise TensorError(
            f"tensor {extra[0]} is not part of this model ({len(extra)} such)\n"
            "  the configuration belongs to another checkpoint"
        )


def census(config: ModelConfig, names: Collection[str]) -> dict[str, Entry]:
    """The expected tensors; stored names decide between the tails and between MXFP4 and NVFP4.

    Errors: TensorError when both tails or a wrong number of stages are stored.
    """
    c, tail = config, lineage(names)
    stages = {name.split(".")[1] for name in names if name.startswith("mtp.")}
    if len(stages) != c.stages or (tail == "nextn" and c.stages != 1):
        raise TensorError(
            f"{len(stages)} stages mtp.* are stored ({tail} tail)\n"
            f"  compress_ratios leaves {c.stages} after {c.n_layers} layers"
        )
    if (tail == "dspark") != bool(c.dspark_block_size):
        raise TensorError(
            f"the stored tail is {tail}, but dspark_block_size is {c.dspark_block_size}\n"
            "  config.json belongs to another checkpoint"
        )
    found: dict[str, Entry] = {
        "embed.weight": Entry("BF16", (c.vocab_size, c.dim)),
        "head.weight": Entry("BF16", (c.vocab_size, c.dim)),
        **dict(_exit("", c)),
    }
    for layer in range(c.n_layers):
        found.update(_block(f"layers.{layer}.", c, layer, names))
    for stage in range(c.stages):
        found.update(_block(f"mtp.{stage}.", c, c.n_layers + stage, names))
    if tail == "nextn":
        found.update(_exit("mtp.0.", c))
        found.update(_fp8("mtp.0.e_proj", c.dim, c.dim))
        found.update(_fp8("mtp.0.h_proj", c.dim, c.dim))
        found.update({f"mtp.0.{n}.weight": Entry("BF16", (c.dim,)) for n in ("enorm", "hnorm")})
    if tail == "dspark":
        last, rank = f"mtp.{c.stages - 1}.", c.dspark_markov_rank
        found.update(_fp8("mtp.0.main_proj", c.dim, c.dim * len(c.dspark_target_layer_ids)))
        found["mtp.0.main_norm.weight"] = Entry("BF16", (c.dim,))
        found.update(_exit(last, c))
        for name in ("markov_w1", "markov_w2"):
            found[f"{last}markov_head.{name}.weight"] = Entry("BF16", (c.vocab_size, rank))
        found[f"{last}confidence_head.proj.weight"] = Entry("BF16", (1, c.dim + rank))
    return found


def lineage(names: Collection[str]) -> str:
    """Which tail is stored: "nextn", "dspark" or "none". Errors: TensorError for both."""
    nextn, dspark = "mtp.0.e_proj.weight" in names, "mtp.0.main_proj.weight" in names
    if nextn and dspark:
        raise TensorError("mtp.0 holds e_proj and main_proj; a checkpoint has one kind of tail")
    return "nextn" if nextn else "dspark" if dspark else "none"


def _block(
    at: str, c: ModelConfig, layer: int, names: Collection[str]
) -> Iterator[tuple[str, Entry]]:
    heads, experts, ratio = c.n_heads * c.head_dim, c.n_routed_experts, c.compress_ratios[layer]
    for norm, width in (
        ("attn_norm", c.dim),
        ("ffn_norm", c.dim),
        ("attn.q_norm", c.q_lora_rank),
        ("attn.kv_norm", c.head_dim),
    ):
        yield f"{at}{norm}.weight", Entry("BF16", (width,))
    yield from _fp8(f"{at}attn.wq_a", c.q_lora_rank, c.dim)
    yield from _fp8(f"{at}attn.wq_b", heads, c.q_lora_rank)
    yield from _fp8(f"{at}attn.wkv", c.head_dim, c.dim)
    yield from _fp8(f"{at}attn.wo_a", c.o_groups * c.o_lora_rank, heads // c.o_groups)
    yield from _fp8(f"{at}attn.wo_b", c.dim, c.o_groups * c.o_lora_rank)
    yield f"{at}attn.attn_sink", Entry("F32", (c.n_heads,))
    for site in ("hc_attn", "hc_ffn"):
        yield f"{at}{site}_fn", Entry("F32", (c.mixing_rows, c.hc_mult * c.dim))
        yield f"{at}{site}_base", Entry("F32", (c.mixing_rows,))
        yield f"{at}{site}_scale", Entry("F32", (3,))
    if ratio:
        yield from _compressor(f"{at}attn.compressor.", c.dim, c.head_dim, ratio)
    if ratio == 4:
        index = f"{at}attn.indexer."
        yield from _fp8(f"{index}wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank)
        yield f"{index}weights_proj.weight", Entry("BF16", (c.index_n_heads, c.dim))
        yield from _compressor(f"{index}compressor.", c.dim, c.index_head_dim, ratio)
    yield f"{at}ffn.gate.weight", Entry("BF16", (experts, c.dim))
    if layer < c.n_hash_layers:
        yield f"{at}ffn.gate.tid2eid", Entry("I64", (c.vocab_size, c.n_activated_experts))
    else:
        yield f"{at}ffn.gate.bias", Entry("F32", (experts,))
    for name, out, width in _halves(c):
        yield from _fp8(f"{at}ffn.shared_experts.{name}", out, width)
        for expert in range(experts):
            yield from _fp4(f"{at}ffn.experts.{expert}.{name}", out, width, names)


def _halves(c: ModelConfig) -> tuple[tuple[str, int, int], ...]:
    wide, dim = c.moe_inter_dim, c.dim
    return (("w1", wide, dim), ("w2", dim, wide), ("w3", wide, dim))


def _compressor(at: str, dim: int, width: int, ratio: int) -> Iterator[tuple[str, Entry]]:
    channels = 2 * width if ratio == 4 else width
    for name in ("wkv", "wgate"):
        yield f"{at}{name}.weight", Entry("BF16", (channels, dim))
    yield f"{at}ape", Entry("F32", (ratio, channels))
    yield f"{at}norm.weight", Entry("BF16", (width,))


def _exit(at: str, c: ModelConfig) -> Iterator[tuple[str, Entry]]:
    yield f"{at}hc_head_fn", Entry("F32", (c.hc_mult, c.hc_mult * c.dim))
    yield f"{at}hc_head_base", Entry("F32", (c.hc_mult,))
    yield f"{at}hc_head_scale", Entry("F32", (1,))
    yield f"{at}norm.weight", Entry("BF16", (c.dim,))


def _fp8(name: str, out: int, width: int) -> Iterator[tuple[str, Entry]]:
    yield f"{name}.weight", Entry("F8_E4M3", (out, width))
    yield f"{name}.scale", Entry("F8_E8M0", (-(-out // 128), -(-width // 128)))


def _fp4(name: str, out: int, width: int, names: Collection[str]) -> Iterator[tuple[str, Entry]]:
    if f"{name}.weight_scale_2" in names:
        yield f"{name}.weight", Entry("U8", (out, width // 2))
        yield f"{name}.weight_scale", Entry("F8_E4M3", (out, width // 16))
        yield f"{name}.weight_scale_2", Entry("F32", ())
        yield f"{name}.input_scale", Entry("F32", ())
    else:
        yield f"{name}.weight", Entry("I8", (out, width // 2))
        yield f"{name}.scale", Entry("F8_E8M0", (out, width // 32))


def _redundant(name: str) -> bool:
    """Whether it is one of the copies of embedding and head that some conversions add."""
    return name.startswith("mtp.") and (".emb" in name or name.endswith(".head.weight"))
