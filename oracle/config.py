"""The model configuration, as published checkpoints spell it, checked before it is used."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oracle.config_rules import check_consistent, check_published
from oracle.config_values import check, number, whole, wholes

_DSPARK = (
    "dspark_block_size",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
    "dspark_markov_rank",
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a model; fields are named as the published inference config does."""

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

    @property
    def stages(self) -> int:
        """Blocks after the trunk: one NextN block, or the drafter's stages, or none."""
        return len(self.compress_ratios) - self.n_layers

    @property
    def mixing_rows(self) -> int:
        """Rows of a hyper-connection's fn: M pre, M post and M * M comb."""
        return (2 + self.hc_mult) * self.hc_mult

    @property
    def head_scale(self) -> float:
        """What attention logits are multiplied with."""
        return float(self.head_dim**-0.5)

    @property
    def index_scale(self) -> float:
        """What indexer head weights are multiplied with."""
        return float(self.index_head_dim**-0.5 * self.index_n_heads**-0.5)

    def fine(self, layer: int) -> bool:
        """Whether a layer compresses with overlap and selects blocks with an indexer."""
        return self.compress_ratios[layer] == 4


def read_config(hf: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a published config.json says.

    Errors: ConfigError, a ValueError, naming the key and the rule that it breaks.
    """
    scaling = hf.get("rope_scaling") or {}
    check(isinstance(scaling, Mapping), "rope_scaling", scaling, "an object, or null")
    dspark = [key for key in _DSPARK if hf.get(key)]
    if hf.get("dspark_block_size"):
        missing = [key for key in _DSPARK if key not in hf]
        check(not missing, "dspark_block_size", dspark, f"all four dspark keys; {missing} missing")
    config = ModelConfig(
        vocab_size=whole(hf, "vocab_size"),
        dim=whole(hf, "hidden_size"),
        moe_inter_dim=whole(hf, "moe_intermediate_size"),
        n_layers=whole(hf, "num_hidden_layers"),
        n_hash_layers=whole(hf, "num_hash_layers", least=0),
        n_heads=whole(hf, "num_attention_heads"),
        n_routed_experts=whole(hf, "n_routed_experts"),
        n_activated_experts=whole(hf, "num_experts_per_tok"),
        route_scale=number(hf, "routed_scaling_factor"),
        swiglu_limit=number(hf, "swiglu_limit", zero=True),
        q_lora_rank=whole(hf, "q_lora_rank"),
        head_dim=whole(hf, "head_dim"),
        rope_head_dim=whole(hf, "qk_rope_head_dim"),
        norm_eps=number(hf, "rms_norm_eps"),
        o_groups=whole(hf, "o_groups"),
        o_lora_rank=whole(hf, "o_lora_rank"),
        window_size=whole(hf, "sliding_window"),
        compress_ratios=wholes(hf, "compress_ratios"),
        rope_theta=number(hf, "rope_theta"),
        compress_rope_theta=number(hf, "compress_rope_theta"),
        original_seq_len=whole(scaling, "original_max_position_embeddings", least=0, default=0),
        rope_factor=number(scaling, "factor", default=1.0),
        beta_fast=number(scaling, "beta_fast", default=32.0),
        beta_slow=number(scaling, "beta_slow", default=1.0),
        index_n_heads=whole(hf, "index_n_heads"),
        index_head_dim=whole(hf, "index_head_dim"),
        index_topk=whole(hf, "index_topk"),
        hc_mult=whole(hf, "hc_mult"),
        hc_sinkhorn_iters=whole(hf, "hc_sinkhorn_iters"),
        hc_eps=number(hf, "hc_eps"),
        max_seq_len=whole(hf, "max_position_embeddings"),
        dspark_block_size=whole(hf, "dspark_block_size", least=0, default=0),
        dspark_noise_token_id=whole(hf, "dspark_noise_token_id", least=0, default=0),
        dspark_target_layer_ids=wholes(hf, "dspark_target_layer_ids", default=()),
        dspark_markov_rank=whole(hf, "dspark_markov_rank", least=0, default=0),
    )
    check_published(hf)
    check_consistent(config)
    return config
