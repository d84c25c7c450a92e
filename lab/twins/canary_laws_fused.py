"""What a NaN or an infinity in an input does, for the launches of a fused step."""

from __future__ import annotations

from collections.abc import Mapping

from lab.twins.canary_laws import ROW_DOT, Law, Laws

_MIXES: Mapping[str, Law] = {
    "scale": Law("", "every row's gates"),
    "base": Law("", "every row"),
    "fn": Law("", "the mixes of every row"),
}
# A magnitude that is not finite takes no part in its group's scale.
_GAIN = {"gain": Law("D/128", "scales its column, and leaves its group's scale to the others")}
_STEP: Laws = (
    "tail",
    {
        **_MIXES,
        **_GAIN,
        **{
            name: Law("T", "its row, and all that follows it")
            for name in ("z", "x", "post", "comb")
        },
    },
)
_GATE: Mapping[str, Law] = {
    "x": Law("T", "every score of its row"),
    "w": Law("", "a NaN score ranks its expert last for every token"),
    "mix": Law("T", "its row's gates"),
    "hyper_scale": Law("", "every row's gates"),
    "hyper_base": Law("", "every row"),
}
_TOKENS = "tokens-E=5-N=33-K=384-T=3-A=3"
_CODE = "a NaN code makes its row NaN"
_FIRST: Mapping[str, Law] = {
    "gate_scales": Law("N", "every token of its expert, in that row"),
    "up_scales": Law("N", "every token of its expert, in that row"),
    "shared_gate_codes": Law("N", _CODE),
    "shared_up_codes": Law("N", _CODE),
    "x": Law("T", ROW_DOT),
    "wide_x": Law("T", "joins every shared sum of its row; infinities are clamped by the limit"),
    "weights": Law("T A", "multiplies its slot"),
}
_SECOND: Mapping[str, Law] = {
    "scales": Law("N", "every token of its expert, in that row"),
    "shared_codes": Law("N", _CODE),
    "shared_scales": Law(
        "N", "its 128 rows are not finite; a group is summed before it is scaled", coarse=True
    ),
    "hidden": Law("T", "NaN joins its token's sums, an infinity saturates; amax ignores both"),
    "shared_x": Law("T", ROW_DOT),
}
_SCALE2 = "every token of its expert; an infinite gate is clamped by the limit"

FUSED_LAWS: Mapping[str, Laws] = {
    "hyper_step_open": _STEP,
    "hyper_step_streams": (
        "tail",
        {**_MIXES, **_GAIN, "x": Law("T", "its row, and all that follows it")},
    ),
    "hyper_step_entry": (
        "tail",
        {**_MIXES, **_GAIN, "table": Law("", "every row of its token")},
    ),
    "hyper_step_exit": (
        "tail",
        {
            **_MIXES,
            "x": Law("T", "its row, and all that follows it"),
            "gain": Law("D", "scales its column"),
        },
    ),
    "router_gate": (
        "tokens-T=3-E=37-A=5-D=264-M=4",
        {**_GATE, "bias": Law("", "a NaN bias ranks its expert last for every token")},
    ),
    "router_gate_hash": ("tokens-T=3-E=37-A=5-D=264-M=4-V=33", _GATE),
    "experts_mx_gate_up": (_TOKENS, _FIRST),
    "experts_nv_gate_up": (
        _TOKENS,
        {**_FIRST, "gate_scale2": Law("", _SCALE2), "up_scale2": Law("", _SCALE2)},
    ),
    "experts_mx_down": (_TOKENS, _SECOND),
    "experts_nv_down": (_TOKENS, {**_SECOND, "scale2": Law("", "every token of its expert")}),
}
