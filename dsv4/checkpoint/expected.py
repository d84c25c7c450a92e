"""The tensors that a model has: names, stored types, shapes and bytes, from its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dsv4.checkpoint.config import FINE_RATIO, ModelConfig
from dsv4.checkpoint.formats import size_of
from dsv4.checkpoint.rules import refuse
from dsv4.errors import Refusal

# In the order of reports.
COMPONENTS: Final = (
    "embedding",
    "attention",
    "compressor",
    "indexer",
    "hyper-connections",
    "router",
    "shared experts",
    "routed experts",
    "norms",
    "head",
    "drafter",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """How one tensor is stored, and the part of the model it belongs to."""

    dtype: str
    shape: tuple[int, ...]
    component: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return size_of(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the configuration leaves open and stored names decide.

    lineage: "none", "nextn" or "dspark". nvfp4: prefixes of blocks whose routed experts are NVFP4;
    the others are MXFP4.
    """

    lineage: str
    nvfp4: frozenset[str] = frozenset()

    @property
    def precision(self) -> str:
        """Which number formats the matrices have, in words."""
        if not self.nvfp4:
            return "FP8 + MXFP4"
        tail = any(block.startswith("mtp.") for block in self.nvfp4)
        mixed = self.lineage != "none" and not tail
        return "FP8 + NVFP4" + (", tail MXFP4" if mixed else "")


def expected_tensors(config: ModelConfig, layout: Layout) -> dict[str, Entry]:
    """Every tensor of the model by name. Errors: Refusal when layout and configuration differ."""
    c, last = config, f"mtp.{config.stages - 1}."
    if (layout.lineage == "none") != (c.stages == 0):
        raise _no_such(layout, c)
    found: dict[str, Entry] = {
        "embed.weight": Entry("BF16", (c.vocab_size, c.dim), "embedding"),
        "head.weight": Entry("BF16", (c.vocab_size, c.dim), "head"),
        **dict(_exit("", c)),
    }
    for number, block in enumerate(c.blocks):
        found.update(_block(block, c, number, nvfp4=block in layout.nvfp4))
    if layout.lineage == "nextn":
        found.update(_exit("mtp.0.", c))
        for name in ("e_proj", "h_proj"):
            found.update(_fp8(f"mtp.0.{name}", c.dim, c.dim, "drafter"))
        for name in ("enorm", "hnorm"):
            found[f"mtp.0.{name}.weight"] = Entry("BF16", (c.dim,), "norms")
    if layout.lineage == "dspark":
        width = c.dim * len(c.dspark_target_layer_ids)
        found.update(_fp8("mtp.0.main_proj", c.dim, width, "drafter"))
        found["mtp.0.main_norm.weight"] = Entry("BF16", (c.dim,), "norms")
        found.update(_exit(last, c))
        rank = c.dspark_markov_rank
        for name in ("markov_w1", "markov_w2"):
            stored = Entry("BF16", (c.vocab_size, rank), "drafter")
            found[f"{last}markov_head.{name}.weight"] = stored
        stored = Entry("BF16", (1, c.dim + rank), "drafter")
        found[f"{last}confidence_head.proj.weight"] = stored
    return found


def _no_such(layout: Layout, config: ModelConfig) -> Refusal:
    return refuse(
        "lineage",
        f"a {layout.lineage} tail with {config.stages} stages",
        "the configuration",
        "give compress_ratios an entry for each stage",
    )


def _block(at: str, c: ModelConfig, number: int, *, nvfp4: bool) -> Iterator[tuple[str, Entry]]:
    heads, ratio = c.n_heads * c.head_dim, c.compress_ratios[number]
    for norm, width in (
        ("attn_norm", c.dim),
        ("ffn_norm", c.dim),
        ("attn.q_norm", c.q_lora_rank),
        ("attn.kv_norm", c.head_dim),
    ):
        yield f"{at}{norm}.weight", Entry("BF16", (width,), "norms")
    for name, out, width in (
        ("wq_a", c.q_lora_rank, c.dim),
        ("wq_b", heads, c.q_lora_rank),
        ("wkv", c.head_dim, c.dim),
        ("wo_a", c.o_groups * c.o_lora_rank, heads // c.o_groups),
        ("wo_b", c.dim, c.o_groups * c.o_lora_rank),
    ):
        yield from _fp8(f"{at}attn.{name}", out, width, "attention")
    yield f"{at}attn.attn_sink", Entry("F32", (c.n_heads,), "attention")
    for site in ("hc_attn", "hc_ffn"):
        yield from _hyper(f"{at}{site}", c.mixing_rows, 3, c)
    if ratio:
        yield from _compressor(f"{at}attn.compressor.", c, c.head_dim, ratio, "compressor")
    if ratio == FINE_RATIO:
        index, width = f"{at}attn.indexer.", c.index_n_heads * c.index_head_dim
        yield from _fp8(f"{index}wq_b", width, c.q_lora_rank, "indexer")
        yield f"{index}weights_proj.weight", Entry("BF16", (c.index_n_heads, c.dim), "indexer")
        yield from _compressor(f"{index}compressor.", c, c.index_head_dim, ratio, "indexer")
    yield f"{at}ffn.gate.weight", Entry("BF16", (c.n_routed_experts, c.dim), "router")
    if c.is_hash_layer(number):
        table = (c.vocab_size, c.n_activated_experts)
        yield f"{at}ffn.gate.tid2eid", Entry("I64", table, "router")
    else:
        yield f"{at}ffn.gate.bias", Entry("F32", (c.n_routed_experts,), "router")
    for name, out, width in expert_matrices(c):
        yield from _fp8(f"{at}ffn.shared_experts.{name}", out, width, "shared experts")
    routed = _nvfp4 if nvfp4 else _mxfp4
    for expert in range(c.n_routed_experts):
        for name, out, width in expert_matrices(c):
            yield from routed(f"{at}ffn.experts.{expert}.{name}", out, width)


def expert_matrices(c: ModelConfig) -> tuple[tuple[str, int, int], ...]:
    """The matrices of one expert: name, rows, columns (gate, down, up)."""
    inner, outer = c.moe_inter_dim, c.dim
    return (("w1", inner, outer), ("w2", outer, inner), ("w3", inner, outer))


def _compressor(
    at: str, c: ModelConfig, width: int, ratio: int, component: str
) -> Iterator[tuple[str, Entry]]:
    # Overlapping blocks have one half of the channels for each block they belong to.
    channels = 2 * width if ratio == FINE_RATIO else width
    for name in ("wkv", "wgate"):
        yield f"{at}{name}.weight", Entry("BF16", (channels, c.dim), component)
    yield f"{at}ape", Entry("F32", (ratio, channels), component)
    yield f"{at}norm.weight", Entry("BF16", (width,), component)


def _hyper(at: str, rows: int, scales: int, c: ModelConfig) -> Iterator[tuple[str, Entry]]:
    for part, shape in (("fn", (rows, c.hc_mult * c.dim)), ("base", (rows,)), ("scale", (scales,))):
        yield f"{at}_{part}", Entry("F32", shape, "hyper-connections")


def _exit(at: str, c: ModelConfig) -> Iterator[tuple[str, Entry]]:
    yield from _hyper(f"{at}hc_head", c.hc_mult, 1, c)
    yield f"{at}norm.weight", Entry("BF16", (c.dim,), "norms")


def _fp8(name: str, out: int, width: int, component: str) -> Iterator[tuple[str, Entry]]:
    yield f"{name}.weight", Entry("F8_E4M3", (out, width), component)
    yield f"{name}.scale", Entry("F8_E8M0", (-(-out // 128), -(-width // 128)), component)


def _mxfp4(name: str, out: int, width: int) -> Iterator[tuple[str, Entry]]:
    yield f"{name}.weight", Entry("I8", (out, width // 2), "routed experts")
    yield f"{name}.scale", Entry("F8_E8M0", (out, width // 32), "routed experts")


def _nvfp4(name: str, out: int, width: int) -> Iterator[tuple[str, Entry]]:
    yield f"{name}.weight", Entry("U8", (out, width // 2), "routed experts")
    yield f"{name}.weight_scale", Entry("F8_E4M3", (out, width // 16), "routed experts")
    yield f"{name}.weight_scale_2", Entry("F32", (), "routed experts")
    yield f"{name}.input_scale", Entry("F32", (), "routed experts")
