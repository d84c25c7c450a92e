"""A small drafter of each family: its configuration, and dtypes and shapes of its tensors."""

from typing import Any

from dsv4.drafters.census import (
    CONFIDENCE,
    EXTRA,
    HIDDEN_PROJECTION,
    W1,
    W2,
    DraftCensus,
    take_census,
    trunk_shapes,
)
from dsv4.drafters.config import draft_config

VOCAB = 97
Shapes = dict[str, tuple[str, tuple[int, ...]]]


def content(family: str, **changes: Any) -> dict[str, Any]:
    """config.json of a family; a change to None removes the key, own_ changes dflash_config."""
    document: dict[str, Any] = dict(
        architectures=["DFlashDraftModel"],
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        num_hidden_layers=2,
        rms_norm_eps=1e-6,
        layer_types=["full_attention"] * 2,
        rope_theta=1000000,
        block_size=4,
        num_target_layers=4,
        vocab_size=VOCAB,
    )
    own: dict[str, Any] = dict(mask_token_id=96, target_layer_ids=[0, 2])
    if family == "dspark":
        document["architectures"] = ["DSparkDraftModel"]
        own.update(
            projector_type="dspark",
            markov_rank=32,
            markov_head_type="vanilla",
            enable_confidence_head=True,
            confidence_head_with_markov=True,
        )
    if family == "dflash2":
        del document["rope_theta"]
        document.update(
            architectures=["DFlash2DraftModel"],
            is_causal=False,
            layer_types=["sliding_attention"] * 2,
            sliding_window=8,
            rope_parameters=dict(rope_theta=1e7, rope_type="default"),
        )
        own.update(selector_rank=8, selector_top_k=4, conv_kernel_size=2, conv_group_size=16)
        own["block_size"] = document.pop("block_size")
    for key, value in changes.items():
        place, key = (own, key[4:]) if key.startswith("own_") else (document, key)
        place.pop(key, None)
        if value is not None:
            place[key] = value
    if document.setdefault("dflash_config", own) is False:
        del document["dflash_config"]
    return document


def shapes(family: str, markov: str = "vanilla", **changes: Any) -> Shapes:
    """Tensors by name, (dtype, shape), of a small drafter with changes to its configuration."""
    config = draft_config(content(family, **changes))
    vocab, hidden = config.vocab, config.hidden
    found: dict[str, tuple[int, ...]] = dict(trunk_shapes(config))
    if family == "dspark":
        found |= {W1: (vocab, 32), W2: (vocab, 32)}
        found |= {CONFIDENCE[0]: (1, hidden + 32), CONFIDENCE[1]: (1,)}
        if markov == "gated":
            found |= {EXTRA[markov][0]: (32, hidden + 32), EXTRA[markov][1]: (32,)}
        if markov == "rnn":
            found |= {EXTRA[markov][0]: (96, hidden + 64), EXTRA[markov][1]: (96,)}
    if family == "dflash2":
        for layer in range(2):
            for conv in ("attention_conv", "mlp_conv"):
                found[f"layers.{layer}.{conv}.base_kernel"] = (2, 2, hidden)
                rows = 4 * (hidden // 16)
                found[f"layers.{layer}.{conv}.kernel_projection.weight"] = (rows, hidden)
        found[HIDDEN_PROJECTION] = (8, hidden)
        for book in ("predecessor", "successor"):
            found[f"candidate_selector.{book}_codebook"] = (vocab, 8)
    return {name: ("BF16", shape) for name, shape in found.items()}


def census(
    family: str, *, vocab: int = 0, tensors: Shapes | None = None, **changes: Any
) -> DraftCensus:
    """The census of a small drafter with changes to its configuration or its tensors."""
    stored = shapes(family) if tensors is None else tensors
    return take_census(draft_config(content(family, **changes)), stored, vocab)
