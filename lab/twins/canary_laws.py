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

_FP8: Mapping[str, Law] = {
    "codes": Law("N", "a NaN code makes its row NaN"),
    "scales": Law(
        "N", "its 128 rows are not finite; a group is summed before it is scaled", coarse=True
    ),
    "x": Law("M", ROW_DOT),
}
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
_FP4_GATE_UP: Mapping[str, Law] = {
    "gate_scales": Law("N", "every slot of its expert, in that row"),
    "up_scales": Law("N", "every slot of its expert, in that row"),
    "x": Law("", "every slot of its row"),
    "weights": Law("S", "multiplies its slot"),
}
_FP4_DOWN: Mapping[str, Law] = {
    "scales": Law("N", "every token of its expert, in that row"),
    "x": Law("T", ROW_DOT),
    "x_scales": Law("T", _X_SCALE, coarse=True),
    "shared": Law("T N", _ADD),
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
    "linear_bf16_grouped": ("three groups", {"w": Law("N", ROW_DOT), "x": Law("M", ROW_DOT)}),
    "linear_fp8": ("rows-M=3-N=37-K=1040", _FP8),
    "linear_fp8_grouped": ("three groups", _FP8),
    "linear_fp8_grouped_bf16": ("three groups", _FP8),
    "queries_fp8": ("all lanes turn", {n: _FP8[n] for n in ("codes", "scales")}),
    "movement_embed": ("tail", {"table": Law("D", COPY)}),
    "movement_gather": ("tail", {"x": Law("D", COPY)}),
    "movement_gather_row": ("tail", {"x": Law("D", COPY)}),
    "movement_scatter": ("tail", {"x": Law("D", COPY), "y": Law("S D", COPY)}),
    "movement_scatter_bf16": ("tail", {"x": Law("D", COPY), "y": Law("S D", COPY)}),
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
    "attention_decode": _JOIN,
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
    "join_argmax": (
        "tail",
        {"logit": Law("S T", "NaN loses to every number; infinities compare as usual")},
    ),
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
    "linear_fp4_mx_gate_up": ("tail", _FP4_GATE_UP),
    "linear_fp4_nv_gate_up": (
        "tail",
        {
            **_FP4_GATE_UP,
            **{
                name: Law("", "every slot of its expert; an infinite gate is clamped by the limit")
                for name in ("gate_scale2", "up_scale2")
            },
        },
    ),
    "linear_fp4_mx_down": ("tail", _FP4_DOWN),
    "linear_fp4_nv_down": ("tail", {**_FP4_DOWN, "scale2": Law("", "every token of its expert")}),
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

# Groups are summed, then scaled, then clamped: what an infinity does depends on the order of sums.
_SCALES_OF_SUMS = ("x_scales", "shared_gate_scales", "shared_up_scales")

# Inputs that hold what another kernel made of its own, and the twin that shows both together.
_OPEN = ("mix", "hyper_scale", "hyper_base")
_PROJECTED = ("x", "q_codes", "q_scales", "kv_codes", "kv_scales", *_OPEN)
_RAW = ("raw_kv", "raw_score")
_INDEX_RAW = ("index_kv", "index_score")
_INDEX_PAIR = ("index_wkv", "index_wgate")
_FINISHED = ("latent", "q_gain", "kv", "kv_gain", "table", "kvc")
_POOLED = (*_RAW, "ape", "gain")
INTERNAL: Mapping[str, tuple[tuple[str, ...], str]] = {
    "project_window": (_PROJECTED, "project_window_in_parts"),
    "project_blocks": ((*_PROJECTED, "wkv", "wgate", *_RAW), "project_blocks_in_parts"),
    "project_indexed": (
        (*_PROJECTED, "wkv", "wgate", *_INDEX_PAIR, "proj", *_RAW, *_INDEX_RAW),
        "project_indexed_in_parts",
    ),
    "finish_window": (_FINISHED, "finish_window_in_parts"),
    "finish_blocks": ((*_FINISHED, *_POOLED), "finish_blocks_in_parts"),
    "finish_indexed": (
        (*_FINISHED, *_POOLED, *_INDEX_RAW, "index_ape", "index_gain", "keys"),
        "finish_indexed_in_parts",
    ),
    "attention_decode": (("q", "kv", "table"), "attention_decode_in_parts"),
    "indexer_select": (("q", "keys", "weights"), "indexer_select_in_parts"),
    "queries_fp8": (("index_codes", "index_scales", "x", "table"), "queries_fp8_in_parts"),
    "attention_sink_split": (("q", "kv"), "attention_sink_split_and_join"),
    "attention_sink_split_f32": (("q", "kv"), "attention_sink_split_f32_and_join"),
    "attention_sink_join": (("power", "total", "value"), "attention_sink_split_and_join"),
    "attention_sink_join_f32": (("power", "total", "value"), "attention_sink_split_f32_and_join"),
    "linear_fp4_mx_gate_up": (("x_scales",), "linear_fp4_mx_gate_up_as_parts"),
    "linear_fp4_nv_gate_up": (("x_scales",), "linear_fp4_nv_gate_up_as_parts"),
    "experts_mx_gate_up": (_SCALES_OF_SUMS, "experts_mx_gate_up_in_parts"),
    "experts_nv_gate_up": (_SCALES_OF_SUMS, "experts_nv_gate_up_in_parts"),
}
