"""What a NaN or an infinity in an input does, for every kernel of the trunk that takes numbers.

The reach names axes of the output along which only the planted element's own index may change:
"T" its row, "T D" the element, "T D/32" its group of 32, nothing at all everything. The sentence
is what the reader of the kernel is promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Law(NamedTuple):
    """How far one planted element reaches, and what it does there.

    coarse: in reach only finite or not is promised, not which infinity or NaN.
    """

    reach: str
    says: str
    coarse: bool = False


COPY = "copied bit for bit"
_ADD = "joins one addition"
ROW_DOT = "joins every sum of its row: NaN stays, an infinity gives one or NaN"
NORM = "an infinity or NaN takes its whole row: the mean is not finite"
_CODE = "a NaN code is a weight of NaN"


Laws = tuple[str, Mapping[str, Law]]

_NORMS: Laws = ("off the block", {"x": Law("T", NORM), "w": Law("D", "scales its column")})
_HEAD_NORMS: Laws = ("off the block", {"x": Law("T H", NORM)})
_ISLANDS: Laws = ("tail", {"x": Law("T", ROW_DOT), "w": Law("N", ROW_DOT)})
_ATTENTION: Laws = (
    "tail",
    {
        "q": Law("T H", "its head's logits"),
        "kv": Law("", "every query that lists the row sees it, in weight and value"),
        "sink": Law("H", "a logit of its head"),
    },
)
_JOIN: Laws = ("tail", {"sink": Law("H", "a logit of its head")})
_HEADS: Laws = ("rows-T=3-V=37-D=264", {"x": Law("T", ROW_DOT), "w": Law("V", ROW_DOT)})
_MARKOV: Laws = (
    "rows-T=3-V=133-R=264",
    {
        "w1": Law("", "every row whose token before is that one"),
        "w2": Law("V", ROW_DOT),
        "logits": Law("T V", _ADD),
    },
)
_POOL: Mapping[str, Law] = {
    "kv": Law("K", "every block that holds the row sees it, in that channel"),
    "score": Law("K", "as its row; minus infinity makes the row absent"),
    "ape": Law("K", "as the scores it is added to"),
}

_ANY: Mapping[str, Law] = {"scale": Law("", "every row's gates"), "base": Law("", "every row")}
_HYPER_SCALE: Laws = ("tail", {"x": Law("T", NORM), "mix": Law("T C", "stays in its element")})
_HYPER_PRE: Laws = ("tail", {**_ANY, "x": Law("T", NORM), "mix": Law("T", "its row's gates")})
_HYPER_ALL: Laws = (
    "tail",
    {
        **_ANY,
        **{
            name: Law("T", "its row, and all that follows it")
            for name in ("z", "x", "post", "comb")
        },
        "fn": Law("", "the mixes of every row"),
        "gain": Law("D", "scales its column"),
    },
)
_INDEXER: Laws = (
    "tail",
    {
        "q": Law("T", "a NaN product stays NaN, a negative infinity is clamped to 0"),
        "keys": Law("N", "a NaN product stays NaN, a negative infinity is clamped to 0"),
        "weights": Law("T", ROW_DOT),
    },
)

_X_SCALE = "its row is not finite; a group is summed before it is scaled, so its sign may differ"
_FP4: Mapping[str, Law] = {
    "scales": Law("N", "a NaN scale makes its row NaN"),
    "x": Law("T", ROW_DOT),
    "x_scales": Law("T", _X_SCALE, coarse=True),
}
_FP4_SLOTS: Mapping[str, Law] = {
    "scales": Law("N", "every slot of its expert, in that row"),
    "x": Law("", "every slot of its row"),
    "x_scales": Law("", _X_SCALE, coarse=True),
}

# Per kernel: the case whose inputs are used, and the law of every input that holds numbers.
LAWS: Mapping[str, Laws] = {
    "act_quant_fp8_inplace": (
        "kv rows",
        {"x": Law("T S/64", "NaN stays NaN, an infinity saturates; neither takes part in amax")},
    ),
    "act_quant_fp8": (
        "verify",
        {"x": Law("T K/128", "NaN becomes the NaN code, an infinity saturates; amax ignores both")},
    ),
    "act_quant_fp4_inplace": (
        "one group over a block",
        {"x": Law("T K/32", "NaN stays NaN, an infinity saturates; neither takes part in amax")},
    ),
    "argmax": ("tail", {"x": Law("T", "NaN loses to every number; infinities compare as usual")}),
    "cast_bf16": ("tail", {"x": Law("N", "stays what it is, in one element")}),
    "combine": ("tail", {"contributions": Law("T D", _ADD)}),
    "combine_shared": ("tail", {"contributions": Law("T D", _ADD), "shared": Law("T D", _ADD)}),
    "dequant_fp8_block": (
        "asymmetric",
        {
            "codes": Law("N K", _CODE),
            "scales": Law("N K", "scale byte 255 makes its 128 x 128 weights NaN"),
        },
    ),
    "dequant_mxfp4": ("tail", {"scales": Law("N K", "scale byte 255 makes its 32 weights NaN")}),
    "dequant_nvfp4": (
        "tail",
        {
            "scales": Law("N K", "a NaN scale makes its 16 weights NaN"),
            "scale2": Law("", "scales every weight of the matrix"),
        },
    ),
    "dequant_ue8m0": ("every byte", {"codes": Law("N", "byte 255 is NaN")}),
    "hadamard": ("tail-T=7-K=16", {"x": Law("T", "joins every sum of its row")}),
    "linear_bf16": ("rows-M=3-N=37-K=1040", {"w": Law("N", ROW_DOT), "x": Law("M", ROW_DOT)}),
    "linear_fp8": (
        "rows-M=3-N=37-K=1040",
        {
            "codes": Law("N", "a NaN code makes its row NaN"),
            "scales": Law("N", "scales its 128 rows"),
            "x": Law("M", ROW_DOT),
        },
    ),
    "movement_embed": ("tail", {"table": Law("D", COPY)}),
    "movement_gather": ("tail", {"x": Law("D", COPY)}),
    "movement_gather_row": ("tail", {"x": Law("D", COPY)}),
    "movement_scatter": ("tail", {"x": Law("D", COPY), "y": Law("S D", COPY)}),
    "movement_scatter_add": ("tail", {"x": Law("D", _ADD), "y": Law("S D", _ADD)}),
    "movement_add": ("tail", {"x": Law("N", _ADD), "y": Law("N", _ADD)}),
    "movement_take": ("tail", {"x": Law("T", COPY)}),
    "movement_place": ("tail", {"x": Law("T", COPY), "y": Law("T S", COPY)}),
    "movement_repeat": ("tail", {"x": Law("T D", COPY)}),
    "movement_mean": ("tail", {"x": Law("T D", _ADD)}),
    "rope": (
        "odd head",
        {
            "x": Law("T H", "its pair turns into NaN, or an infinity turns with it"),
            "table": Law("", "the pair of every head at that position"),
        },
    ),
    "router": (
        "tail",
        {
            "raw": Law("T", "a NaN score ranks below every number; chosen, it makes weights NaN"),
            "bias": Law("", "a NaN bias ranks its expert last for every token"),
        },
    ),
    "router_hash": ("tail", {"raw": Law("T", "a chosen NaN makes the weights of its token NaN")}),
    "swiglu": (
        "tail",
        {
            "gate": Law("T D", "NaN stays NaN; infinities are clamped by the limit"),
            "up": Law("T D", "NaN stays NaN; infinities are clamped by the limit"),
        },
    ),
    "swiglu_weighted": (
        "tail",
        {
            "gate": Law("T D", "NaN stays NaN; infinities are clamped by the limit"),
            "up": Law("T D", "NaN stays NaN; infinities are clamped by the limit"),
            "weights": Law("T", "multiplies its row"),
        },
    ),
    **dict.fromkeys(("rms_norm", "rms_norm_f32"), _NORMS),
    **dict.fromkeys(("rms_norm_head", "rms_norm_head_f32"), _HEAD_NORMS),
    **dict.fromkeys(("island_dots", "island_dots_f32"), _ISLANDS),
    **dict.fromkeys(("island_dots_bf16", "island_dots_bf16_f32"), _ISLANDS),
    **dict.fromkeys(("attention_sink", "attention_sink_f32"), _ATTENTION),
    **dict.fromkeys(("attention_sink_join", "attention_sink_join_f32"), _JOIN),
    **dict.fromkeys(("lm_head", "lm_head_f32", "lm_head_argmax"), _HEADS),
    **dict.fromkeys(("markov_bias", "markov_bias_f32"), _MARKOV),
    **dict.fromkeys(("hyper_norm_scale", "hyper_norm_scale_f32"), _HYPER_SCALE),
    **dict.fromkeys(("hyper_pre", "hyper_pre_f32"), _HYPER_PRE),
    **dict.fromkeys(("hyper_post_pre_norm", "hyper_post_pre_norm_f32"), _HYPER_ALL),
    **dict.fromkeys(("indexer_score", "indexer_score_f32"), _INDEXER),
    "hyper_split": ("streams-T=7-M=4", {**_ANY, "mix": Law("T", "its row's gates")}),
    "hyper_head_gate": (
        "tail",
        {
            "mix": Law("T M", "its own gate"),
            "scale": Law("", "every gate"),
            "base": Law("M", "its stream's gates"),
        },
    ),
    "join_add": ("tail", {"x": Law("S T D", _ADD)}),
    "hyper_collapse": ("tail", {"x": Law("T D", _ADD), "pre": Law("T", "weighs its row")}),
    "hyper_post": (
        "tail",
        {
            "z": Law("T D", _ADD),
            "x": Law("T D", _ADD),
            "post": Law("T M", "weighs its stream"),
            "comb": Law("T", "weighs one stream of its row"),
        },
    ),
    "linear_fp4_mx": ("tail", _FP4),
    "linear_fp4_nv": ("tail", {**_FP4, "scale2": Law("", "scales every row")}),
    "linear_fp4_mx_selected": ("tail", _FP4_SLOTS),
    "linear_fp4_nv_selected": (
        "tail",
        {**_FP4_SLOTS, "scale2": Law("", "every slot of its expert")},
    ),
    "topk": ("tail", {"score": Law("T", "a NaN comes last and is counted; infinities compare")}),
    "compressor_pool": ("overlapping tail", _POOL),
    "compressor_pool_at": ("tail", _POOL),
    "confidence": (
        "tail",
        {
            "x": Law("T", ROW_DOT),
            "w1": Law("", "every row whose token before is that one"),
            "proj": Law("", "every row"),
        },
    ),
}

# Inputs that hold what another kernel made of its own, and the twin that shows both together.
INTERNAL: Mapping[str, tuple[tuple[str, ...], str]] = {
    "attention_sink_split": (("q", "kv"), "attention_sink_split_and_join"),
    "attention_sink_split_f32": (("q", "kv"), "attention_sink_split_f32_and_join"),
    "attention_sink_join": (("power", "total", "value"), "attention_sink_split_and_join"),
    "attention_sink_join_f32": (("power", "total", "value"), "attention_sink_split_f32_and_join"),
}
