"""What a NaN or an infinity in an input does, for the kernels of drafters, samplers and targets."""

from __future__ import annotations

from collections.abc import Mapping

from lab.twins.canary_laws import COPY, NORM, ROW_DOT, Law, Laws

_SDPA: Laws = (
    "one tile",
    {
        "q": Law("T H", "its head's logits"),
        "k": Law("", "the logits of every query that sees it"),
        "v": Law("K", "the column of every query that sees it"),
    },
)

_DRAWN = "decides its row only; NaN is never kept and never drawn"
_QUANT: Laws = (
    "rows-T=3-N=13-K=96",
    {"x": Law("T", ROW_DOT), "scales": Law("N", "its row is not finite", coarse=True)},
)
_STATS: Mapping[str, Law] = {name: Law("T", _DRAWN) for name in ("x", "mx", "th", "z")}

_DRAWS_DENSE: Mapping[str, Law] = {
    **_STATS,
    **{name: Law("T", _DRAWN) for name in ("q", "q_mx", "q_th", "q_z")},
}

_ELEMENT = "stays in its element"
_CHANNEL = "its channel, from its row on"

# As LAWS of `lab.twins.canary_laws`.
DRAFTER_LAWS: Mapping[str, Laws] = {
    **dict.fromkeys(("sdpa_full", "sdpa_scan", "sdpa_clip"), _SDPA),
    "sdpa_bf16": ("odd tail", _SDPA[1]),
    "dynconv": (
        "stage 1",
        {
            "x": Law("D", "joins the sums of the rows that look back at it"),
            "base": Law("D", "weighs its column in every row"),
            "own": Law("T", "weighs its group in its row"),
        },
    ),
    "rope_neox": (
        "off the block",
        {
            "x": Law("T H", "its pair turns into NaN, or an infinity turns with it"),
            "table": Law("", "the pair of every head at that position"),
        },
    ),
    **dict.fromkeys(("quant_linear_q8", "quant_linear_q4"), _QUANT),
    "filter_gather": ("nothing filtered", _STATS),
    "filter_gumbel": ("off the block", _STATS),
    "candidates_topk": ("off the block", {"x": Law("T", "NaN comes behind every number")}),
    "filter_stats": ("together", {"x": Law("T", _DRAWN)}),
    "filter_residual_dense": ("off the block", _DRAWS_DENSE),
    "filter_residual_sparse": ("off the block", {**_STATS, "q": Law("T", _DRAWN)}),
    "gated_delta_conv": (
        "off the block",
        {name: Law("D", _CHANNEL) for name in ("u", "w", "state")},
    ),
    "gated_delta_tail": ("rows-T=2-D=259", {name: Law("D", COPY) for name in ("u", "state")}),
    "gated_delta_unit": ("off the warp", {"x": Law("T G", NORM)}),
    "gated_delta_decay": (
        "off the block",
        {
            "a": Law("T H", _ELEMENT),
            "b": Law("T H", _ELEMENT),
            "a_log": Law("H", "its head, in every row"),
            "dt_bias": Law("H", "its head, in every row"),
        },
    ),
    "gated_delta_scan": (
        "shared keys",
        {
            "q": Law("T", "the heads that read it, in its row"),
            "k": Law("", "the states of the heads that read it, from its row on"),
            "v": Law("H D", "its column of the state, from its row on"),
            "factor": Law("H", "its head, from its row on"),
            "beta": Law("H", "its head, from its row on"),
            "state": Law("H D", "its column of the state"),
        },
    ),
    "scale_softcap": ("off the block", {"x": Law("T D", _ELEMENT)}),
    "scale_gate": ("off the block", {"x": Law("T D", _ELEMENT), "gate": Law("T D", _ELEMENT)}),
}
