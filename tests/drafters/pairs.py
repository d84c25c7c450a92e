"""Random targets and drafters of test size, written as published folders and loaded anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.drafters.backbone import BlockDrafter
from dsv4.drafters.weights import load_draft
from dsv4.runtime.hostdevice import HostDevice
from dsv4.speculation.draft_model import GreedyChain
from dsv4.speculation.switches import Switches
from dsv4.targets.load import load_target
from dsv4.targets.qwen3 import QwenTarget
from oracle.formats import encode
from tests.drafters.small import VOCAB, content, shapes

TARGETS = ("dense", "hybrid")
FAMILIES = ("dflash", "dspark", "dflash2")
HIDDEN = 64


def target_content(kind: str) -> dict[str, Any]:
    """config.json of a target of test size."""
    common: dict[str, Any] = dict(
        hidden_size=HIDDEN,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=VOCAB,
        rms_norm_eps=1e-6,
        tie_word_embeddings=kind == "dense",
        eos_token_id=VOCAB - 1,
    )
    if kind == "dense":
        return common | dict(model_type="qwen3", rope_theta=1e6)
    routed: dict[str, Any] = {}
    if kind == "moe":
        routed = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                      shared_expert_intermediate_size=32)  # fmt: skip
    return (
        common
        | routed
        | dict(
            model_type="qwen3_next" if kind == "moe" else "qwen3_5_text",
            head_dim=32,
            full_attention_interval=4,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_conv_kernel_dim=4,
            rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25),
        )
    )


def target_shapes(kind: str) -> dict[str, tuple[int, ...]]:
    """Tensors of such a target."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    if kind != "dense":
        found["lm_head.weight"] = (VOCAB, HIDDEN)
    width = 16 if kind == "dense" else 32
    for i in range(4):
        at = f"model.layers.{i}."
        found |= {f"{at}{n}_layernorm.weight": (HIDDEN,) for n in ("input", "post_attention")}
        if kind == "moe":
            found |= routed_shapes(f"{at}mlp.")
        else:
            found |= mlp_shapes(f"{at}mlp.", 128)
        if kind != "dense" and i < 3:
            # Qwen3-Next packs its projections by key head.
            sizes = dict(qkvz=192, ba=8) if kind == "moe" else dict(qkv=128, z=64, b=4, a=4)
            at += "linear_attn."
            found |= {f"{at}in_proj_{n}.weight": (rows, HIDDEN) for n, rows in sizes.items()}
            found |= {f"{at}{n}": (4,) for n in ("A_log", "dt_bias")}
            found |= {f"{at}conv1d.weight": (128, 1, 4), f"{at}norm.weight": (16,)}
            found[f"{at}out_proj.weight"] = (HIDDEN, 64)
            continue
        at += "self_attn."
        q = 4 * width * (1 if kind == "dense" else 2)
        found |= {f"{at}q_proj.weight": (q, HIDDEN), f"{at}o_proj.weight": (HIDDEN, 4 * width)}
        found |= {f"{at}{n}_proj.weight": (2 * width, HIDDEN) for n in "kv"}
        found |= {f"{at}{n}_norm.weight": (width,) for n in "qk"}
    return found


def mlp_shapes(at: str, width: int) -> dict[str, tuple[int, ...]]:
    """The three matrices of an MLP."""
    found: dict[str, tuple[int, ...]] = {
        f"{at}{n}_proj.weight": (width, HIDDEN) for n in ("gate", "up")
    }
    return found | {f"{at}down_proj.weight": (HIDDEN, width)}


def routed_shapes(at: str) -> dict[str, tuple[int, ...]]:
    """A router, four experts, and the shared one."""
    found: dict[str, tuple[int, ...]] = {f"{at}gate.weight": (4, HIDDEN)}
    for e in range(4):
        found |= mlp_shapes(f"{at}experts.{e}.", 32)
    found |= mlp_shapes(f"{at}shared_expert.", 32)
    return found | {f"{at}shared_expert_gate.weight": (1, HIDDEN)}


def weights(
    name: str, shape: tuple[int, ...], rng: np.random.Generator, centred: bool
) -> np.ndarray:
    """Healthy random values: products keep their size, gains are near one (zero if centred)."""
    values = rng.standard_normal(shape)
    if name.endswith(("layernorm.weight", "_norm.weight", ".norm.weight")) or name == "norm.weight":
        plain = not centred or "linear_attn" in name
        return 0.1 * values + plain
    if name.endswith("base_kernel"):
        values *= 0.1
        values[:, 0] += 1
        return values
    if name.endswith(("A_log", "dt_bias", "bias")):
        return 0.5 * values
    if "embed" in name or "codebook" in name or "markov" in name:
        return values
    return values * shape[-1] ** -0.5 * (2.0 if "lm_head" in name else 1.0)


def write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...]],
    *,
    seed: int,
    centred: bool = False,
) -> Path:
    """A folder with config.json and random bf16 tensors of these shapes."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header: dict[str, Any] = {}
    blob = b""
    for name, shape in tensors.items():
        bits = encode(weights(name, shape, rng, centred), "bf16").tobytes()
        ends = [len(blob), len(blob) + len(bits)]
        header[name] = dict(dtype="BF16", shape=list(shape), data_offsets=ends)
        blob += bits
    head = json.dumps(header).encode()
    content = len(head).to_bytes(8, "little") + head + blob
    (folder / "model.safetensors").write_bytes(content)
    return folder


def write_target(folder: Path, kind: str) -> Path:
    """A target of test size."""
    return write(folder, target_content(kind), target_shapes(kind), seed=1, centred=kind != "dense")


def write_drafter(folder: Path, family: str, **changes: Any) -> Path:
    """A drafter of test size for either target, with changes to its configuration."""
    tensors = {name: shape for name, (_, shape) in shapes(family, **changes).items()}
    return write(folder, content(family, **changes), tensors, seed=2)


def load_pair(
    folder: Path,
    kind: str,
    family: str,
    *,
    switches: Switches | None = None,
    device: HostDevice | None = None,
    precision: str = "bf16",
) -> tuple[QwenTarget, BlockDrafter]:
    """A target and a drafter on a host device."""
    device = device or HostDevice()
    target = load_target(write_target(folder / kind, kind), device)
    drafter = load_draft(
        write_drafter(folder / family, family),
        device,
        precision=precision,
        switches=switches,
        target_vocab=target.vocab,
        target_layers=target.n_layers,
    )
    return target, drafter


@dataclass(frozen=True)
class Knowing:
    """A drafter that knows the target's own continuation and proposes it, but for a share of slots.

    Everything else is the drafter's own: it stands for one that was distilled.
    """

    drafter: BlockDrafter
    stream: Sequence[int]
    wrong: Sequence[bool]
    prompt: int
    vocab: int = VOCAB

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def _drafts(self, start: int, slots: int) -> list[int]:
        behind = range(start - self.prompt + 1, start - self.prompt + 1 + slots)
        known = [self.stream[i] if i < len(self.stream) else 0 for i in behind]
        return [
            (t + 1) % self.vocab if self.wrong[i % len(self.wrong)] else t
            for i, t in zip(behind, known, strict=True)
        ]

    def forward_round(self, kv: Any, noise: Any, positions: Sequence[int]) -> Any:
        object.__setattr__(self, "_start", kv.length)
        return self.drafter.forward_round(kv, noise, positions)

    def chain_greedy(self, logits: Any, rows: Any, anchor: int, *, stash: bool) -> GreedyChain:
        chain = self.drafter.chain_greedy(logits, rows, anchor, stash=stash)
        drafts = self._drafts(self._start, len(logits))
        return GreedyChain(self.drafter.ops.ints([anchor, *drafts]), chain.logits, chain.stash)

    def propose_greedy(self, logits: Any, rows: Any, anchor: int) -> list[int]:
        return self._drafts(self._start, len(logits))
