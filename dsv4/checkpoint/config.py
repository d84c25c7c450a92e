"""The model configuration, from a published config.json or the flat inference config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dsv4.checkpoint.config_keys import Keys
from dsv4.checkpoint.config_rules import check_consistent, check_published
from dsv4.checkpoint.rules import refuse

LayerClass = Literal["window", "fine", "coarse"]
FINE_RATIO: Final = 4


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a model; fields are named as the published inference config does.

    max_seq_len: how many positions the model was made for. expert_dtype: what the file says, empty
    when it says nothing; stored types decide.
    """

    vocab_size: int
    dim: int
    moe_inter_dim: int
    n_layers: int
    n_hash_layers: int
    n_heads: int
    n_routed_experts: int
    n_activated_experts: int
    route_scale: float
    swiglu_limit: float
    q_lora_rank: int
    head_dim: int
    rope_head_dim: int
    norm_eps: float
    o_groups: int
    o_lora_rank: int
    window_size: int
    compress_ratios: tuple[int, ...]
    rope_theta: float
    compress_rope_theta: float
    original_seq_len: int
    rope_factor: float
    beta_fast: float
    beta_slow: float
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    max_seq_len: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    bos_token_id: int
    eos_token_id: int
    expert_dtype: str

    @property
    def stages(self) -> int:
        """Blocks after the trunk: one NextN block, or the drafter's stages, or none."""
        return len(self.compress_ratios) - self.n_layers

    @property
    def blocks(self) -> tuple[str, ...]:
        """Prefixes of all blocks in order: "layers.0." ..., "mtp.0." ..."""
        trunk = (f"layers.{n}." for n in range(self.n_layers))
        return (*trunk, *(f"mtp.{k}." for k in range(self.stages)))

    @property
    def mixing_rows(self) -> int:
        """Rows of a hyper-connection's fn: M pre, M post and M * M comb."""
        return (2 + self.hc_mult) * self.hc_mult

    @property
    def usable_positions(self) -> int:
        """How many tokens a sequence may have: draft rows turn by positions past the last one."""
        return self.max_seq_len - self.dspark_block_size

    def layer_class(self, layer: int) -> LayerClass:
        """How a block attends: its window only, with an indexer's blocks, or with all blocks."""
        ratio = self.compress_ratios[layer]
        return "window" if ratio == 0 else "fine" if ratio == FINE_RATIO else "coarse"

    def is_hash_layer(self, layer: int) -> bool:
        """Whether token ids choose the experts; stages after the trunk always score."""
        return layer < self.n_hash_layers

    def uses_yarn(self, layer: int) -> bool:
        """Whether the rotation of a block is stretched."""
        return self.original_seq_len > 0 and self.compress_ratios[layer] != 0


def read_config(content: Mapping[str, Any], where: object = "the configuration") -> ModelConfig:
    """The configuration that a config.json says, in either published spelling.

    Errors: Refusal naming the rule it breaks, the key and the value.
    """
    keys = Keys(content, where)
    check_published(keys)
    block_size = keys.whole("dspark_block_size", least=0, default=0)
    config = ModelConfig(
        vocab_size=keys.whole("vocab_size"),
        dim=keys.whole("hidden_size", "dim"),
        moe_inter_dim=keys.whole("moe_intermediate_size", "moe_inter_dim"),
        n_layers=keys.whole("num_hidden_layers", "n_layers"),
        n_hash_layers=keys.whole("num_hash_layers", "n_hash_layers", least=0),
        n_heads=keys.whole("num_attention_heads", "n_heads"),
        n_routed_experts=keys.whole("n_routed_experts"),
        n_activated_experts=keys.whole("num_experts_per_tok", "n_activated_experts"),
        route_scale=keys.number("routed_scaling_factor", "route_scale"),
        swiglu_limit=keys.number("swiglu_limit", zero=True),
        q_lora_rank=keys.whole("q_lora_rank"),
        head_dim=keys.whole("head_dim"),
        rope_head_dim=keys.whole("qk_rope_head_dim", "rope_head_dim"),
        norm_eps=keys.number("rms_norm_eps", "norm_eps"),
        o_groups=keys.whole("o_groups"),
        o_lora_rank=keys.whole("o_lora_rank"),
        window_size=keys.whole("sliding_window", "window_size", least=0),
        compress_ratios=keys.wholes("compress_ratios"),
        rope_theta=keys.number("rope_theta"),
        compress_rope_theta=keys.number("compress_rope_theta"),
        original_seq_len=keys.whole(
            "rope_scaling.original_max_position_embeddings",
            "original_seq_len",
            least=0,
            default=0,
        ),
        rope_factor=keys.number("rope_scaling.factor", "rope_factor", default=1.0),
        beta_fast=keys.number("rope_scaling.beta_fast", "beta_fast", default=32.0),
        beta_slow=keys.number("rope_scaling.beta_slow", "beta_slow", default=1.0),
        index_n_heads=keys.whole("index_n_heads"),
        index_head_dim=keys.whole("index_head_dim"),
        index_topk=keys.whole("index_topk", least=0),
        hc_mult=keys.whole("hc_mult"),
        hc_sinkhorn_iters=keys.whole("hc_sinkhorn_iters"),
        hc_eps=keys.number("hc_eps"),
        max_seq_len=keys.whole("max_position_embeddings", "max_seq_len"),
        dspark_block_size=block_size,
        dspark_noise_token_id=keys.whole("dspark_noise_token_id", least=0, default=0),
        dspark_target_layer_ids=keys.wholes("dspark_target_layer_ids", default=()),
        dspark_markov_rank=keys.whole("dspark_markov_rank", least=0, default=0),
        bos_token_id=keys.whole("bos_token_id", least=0, default=0),
        eos_token_id=keys.whole("eos_token_id", least=0, default=1),
        expert_dtype=str(keys.find("expert_dtype", "")[1] or ""),
    )
    check_consistent(config, keys)
    return config


def config_file(folder: Path) -> Path:
    """The configuration of a checkpoint folder: config.json, or the inference one below it.

    Errors: Refusal when there is neither.
    """
    for candidate in (folder / "config.json", folder / "inference" / "config.json"):
        if candidate.is_file():
            return candidate
    raise refuse(
        "config-file",
        "no config.json",
        folder,
        "give the folder of a checkpoint, or fetch the file",
    )


def load_config(folder: Path) -> ModelConfig:
    """The configuration of a checkpoint folder. Errors: Refusal naming the rule."""
    file = config_file(folder)
    return read_config(read_json_object(file, "config-file"), file)


def read_json_object(file: Path, rule: str) -> dict[str, Any]:
    """The JSON object in a file. Errors: Refusal of that rule when it holds something else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise refuse(rule, f"no JSON ({error})", file, "fetch the file again") from None
    if not isinstance(content, dict):
        found = f"a JSON {type(content).__name__}"
        raise refuse(rule, found, file, "fetch the file again")
    return content
