"""Configurations of block drafters, as far as the forward pass needs them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oracle.rope_neox import Yarn


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Sizes, taps and options of a drafter.

    sliding: by layer. shifted: row j proposes position start + j + 1 (all rows), else its own.
    dynamic: a convolution around every sublayer, and a candidate selector.
    """

    hidden: int
    heads: int
    kv_heads: int
    width: int
    layers: int
    eps: float
    theta: float
    yarn: Yarn | None
    block: int
    mask_id: int
    taps: tuple[int, ...]
    window: int | None
    sliding: tuple[bool, ...]
    shifted: bool
    dynamic: bool
    markov: str
    candidates: int
    embedding_scale: float
    multiplier: float
    softcap: float

    @property
    def first_row(self) -> int:
        """The first row that proposes."""
        return 0 if self.shifted else 1


def read_draft_config(content: Mapping[str, Any]) -> DraftConfig:
    """The configuration of a drafter. Errors: KeyError for a missing key."""
    own = content.get("dflash_config") or {}
    both = {**content, **own}
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    names = " ".join(content.get("architectures") or ())
    yarn = None
    if rope.get("rope_type", rope.get("type")) == "yarn":
        yarn = Yarn(
            float(rope["factor"]),
            int(rope["original_max_position_embeddings"]),
            float(rope["beta_fast"]),
            float(rope["beta_slow"]),
        )
    return DraftConfig(
        hidden=int(content["hidden_size"]),
        heads=int(content["num_attention_heads"]),
        kv_heads=int(content["num_key_value_heads"]),
        width=int(content["head_dim"]),
        layers=int(content["num_hidden_layers"]),
        eps=float(content["rms_norm_eps"]),
        theta=float(rope.get("rope_theta", content.get("rope_theta", 1e6))),
        yarn=yarn,
        block=int(both["block_size"]),
        mask_id=int(both["mask_token_id"]),
        taps=tuple(int(t) for t in both["target_layer_ids"]),
        window=content.get("sliding_window"),
        sliding=tuple(t == "sliding_attention" for t in content["layer_types"]),
        shifted="DSpark" in names or both.get("projector_type") == "dspark",
        dynamic="DFlash2" in names,
        markov=str(both.get("markov_head_type") or "vanilla"),
        candidates=int(both.get("selector_top_k", 0)),
        embedding_scale=float(own.get("input_embedding_scale", 1.0)),
        multiplier=float(own.get("output_multiplier", 1.0)),
        softcap=float(own.get("final_logit_softcapping") or 0.0),
    )
