"""What is trained and how: the configuration of the small model, and the settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsv4.checkpoint.config import ModelConfig, read_config
from dsv4.checkpoint.published import nvfp4_manifest, published_config

BOS: Final = 256
EOS: Final = 257
PAD: Final = 258
NOISE: Final = 259
_STAGES: Final = 3
_SIZES: Final[Mapping[str, Mapping[str, Any]]] = {
    # Every structure of the published model in less than 12 MB of stored weights. Ids above 255
    # are padded to 272, so that rows of the vocabulary come in sixteens.
    "stdlib": {
        "vocab_size": 272,
        "hidden_size": 256,
        "moe_intermediate_size": 128,
        "num_hash_layers": 2,
        "num_attention_heads": 8,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "routed_scaling_factor": 1.5,
        "q_lora_rank": 128,
        "head_dim": 128,
        "o_groups": 2,
        "o_lora_rank": 128,
        "index_n_heads": 4,
        "index_head_dim": 64,
        "index_topk": 64,
        "sliding_window": 256,
        "max_position_embeddings": 2048,
        "ratios": (0, 0, 4, 128, 4, 0),
        "rank": 64,
        "original": 1024,
        "factor": 2,
    },
    # The same with few parts and short blocks: it learns something within seconds on a CPU.
    "smoke": {
        "vocab_size": 272,
        "hidden_size": 128,
        "moe_intermediate_size": 128,
        "num_hash_layers": 1,
        "num_attention_heads": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.5,
        "q_lora_rank": 128,
        "head_dim": 128,
        "o_groups": 1,
        "o_lora_rank": 128,
        "index_n_heads": 2,
        "index_head_dim": 64,
        "index_topk": 4,
        "sliding_window": 32,
        "max_position_embeddings": 128,
        "ratios": (0, 4, 16),
        "rank": 16,
        "original": 64,
        "factor": 2,
    },
}
SIZES: Final = tuple(_SIZES)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run goes. Shares are of the trunk's steps (or its time, where that ends first).

    length: tokens of a training sequence. batch: sequences of a step. warm: share with a rising
    rate. cool: share, at the end, with a falling rate. sparse_from: from when fine layers attend to
    the indexer's choice. coded_from: from when everything passes the codes of the export.
    anchors: drafts of a sequence. judged_windows: of the final bits per byte, all if none is given.
    bias_speed: how fast the router's bias follows the load. steps, draft_steps: as many as the
    checkpoint of `examples/` has learned for, so that the plain command makes one like it.
    """

    size: str = "stdlib"
    seed: int = 0
    length: int = 2048
    batch: int = 16
    steps: int = 1493
    rate: float = 0.02
    plain_rate: float = 0.004
    decay: float = 0.1
    dropout: float = 0.0
    warm: float = 0.03
    cool: float = 0.6
    sparse_from: float = 0.35
    coded_from: float = 0.7
    index_weight: float = 0.1
    bias_speed: float = 0.003
    draft_steps: int = 573
    draft_batch: int = 16
    anchors: int = 128
    evaluate_every: int = 250
    judged_windows: int | None = None
    minutes: float | None = None
    draft_minutes: float | None = None


_SMOKE: Final[Mapping[str, Any]] = {
    "length": 128,
    "batch": 4,
    "steps": 40,
    "draft_steps": 20,
    "draft_batch": 4,
    "anchors": 8,
    "evaluate_every": 10,
    "judged_windows": 32,
}


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings of a size with what is given beside them."""
    usual = _SMOKE if given.get("size") == "smoke" else {}
    return Settings(**{**usual, **given})


def config_content(size: str, *, nvfp4: bool = False) -> dict[str, Any]:
    """The content of config.json of a size, with its drafter."""
    own = dict(_SIZES[size])
    ratios, rank = own.pop("ratios"), own.pop("rank")
    original, factor = own.pop("original"), own.pop("factor")
    content = published_config("small", "0731-nvfp4" if nvfp4 else "0731")
    layers, taps = len(ratios), min(3, len(ratios))
    content |= own | {
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "num_hidden_layers": layers,
        "hc_eps": 1e-6,
        "compress_ratios": [*ratios, *[0] * _STAGES],
        "dspark_block_size": 5,
        "dspark_noise_token_id": NOISE,
        "dspark_target_layer_ids": list(range(layers - taps, layers)),
        "dspark_markov_rank": rank,
    }
    content["rope_scaling"] |= {
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    if nvfp4:
        manifest = nvfp4_manifest(layers)
        content["quantization_config"]["quantized_layers"] = manifest["quantized_layers"]
    return content


def model_config(size: str) -> ModelConfig:
    """The configuration of a size. Errors: Refusal when its parts do not fit each other."""
    return read_config(config_content(size), f"size {size}")
