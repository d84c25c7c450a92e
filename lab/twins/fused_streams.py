"""What stands between two sub-blocks, and a gate, in one launch against the kernels in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.cases.fills import normal, sprinkled, uniform, values
from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, bf16, f32
from lab.twins.mixing import between

Make = Callable[[Rng], dict[str, Any]]

_EPS = 1e-6
_MIX = ("scale", "base", "mix_eps", "eps", "iterations")


def _without(outputs: Outputs, *names: str) -> Outputs:
    """What both sides have: scratch is not compared."""
    return {name: y for name, y in outputs.items() if name not in names}


def _taken(bench: Bench, y: np.ndarray) -> Outputs:
    """A normed input as products take it."""
    rounded = bench.run("cast_bf16", x=y.reshape(-1))["y"].reshape(y.shape)
    return {"y": y, "wide": rounded, **bench.run("act_quant_fp8", x=y, group=128)}


# ------------------------------------------------------------------ after a sub-block


def _step(kernel: str, *drop: str) -> Callable[[Bench, Inputs], Outputs]:
    def run(bench: Bench, i: Inputs) -> Outputs:
        given = {name: v for name, v in i.items() if name not in drop}
        return _without(bench.run(kernel, **given), "partial")

    return run


def _scaled(bench: Bench, i: Inputs, x: np.ndarray) -> np.ndarray:
    """The scaled mixes of streams."""
    mix = bench.run("island_dots_f32", x=x.reshape(len(x), -1), w=i["fn"])["y"]
    return bench.run("hyper_norm_scale_f32", x=x, mix=mix, mix_eps=i["mix_eps"])["mix"]


def _open_in_parts(bench: Bench, i: Inputs) -> Outputs:
    x = bench.run("hyper_post", **{name: i[name] for name in ("z", "x", "post", "comb")})["out"]
    made = bench.run("hyper_post_pre_norm_f32", **i)
    rest = _without(made, "pre", "partial", "post_next", "comb_next")
    return {**rest, **_taken(bench, made["y"]), "mix": _scaled(bench, i, x)}


_STEPS = (
    Trial("smallest", between(1, 1, 128)),
    Trial("parts across streams", between(3, 5, 384)),
    Trial("eight streams", between(2, 8, 640)),
    *(Trial(f"{n} iterations", between(2, 4, 128, iterations=n)) for n in (1, 2, 5)),
    Trial("eight rows", between(8, 4, 384)),
    Trial("decode", between(1, 4, 4096)),
    Trial("verify", between(8, 4, 4096), "full"),
)


# ------------------------------------------------------------------ the entry and the exit


def _entry(T: int, M: int, D: int, *, V: int = 50) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        whole = between(T, M, D)(rng)
        tokens = rng.integers(0, V, T).astype(np.int32)
        # The last of several tokens does not exist.
        tokens[1:][-1:] = V
        names = (*_MIX, "fn", "gain", "norm_eps", "ticket", "M")
        given = {name: whole[name] for name in names}
        return dict(table=bf16(rng, (V, D)), tokens=tokens, **given)

    return make


def _streams_in_parts(bench: Bench, i: Inputs) -> Outputs:
    x = i["x"]
    mix = bench.run("island_dots_f32", x=x.reshape(len(x), -1), w=i["fn"])["y"]
    made = bench.run("hyper_pre_f32", x=x, mix=mix, **{name: i[name] for name in _MIX})
    y = bench.run("rms_norm_f32", x=made["y"], w=i["gain"], eps=i["norm_eps"])["y"]
    scaled = _scaled(bench, i, x)
    return {**_taken(bench, y), "mix": scaled, "ticket": np.zeros(len(x), np.int32)}


def _entry_in_parts(bench: Bench, i: Inputs) -> Outputs:
    row = bench.run("movement_embed", table=i["table"], ids=i["tokens"])["y"]
    x = bench.run("movement_repeat", x=row, M=i["M"])["y"]
    return {"x_next": x, **_streams_in_parts(bench, {**i, "x": x})}


def _exit(T: int, M: int, D: int) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        weights = values(lambda rng, shape: rng.standard_normal(shape) / np.sqrt(shape[1]))
        return dict(
            x=f32(rng, (T, M, D), normal(0.5)),
            fn=f32(rng, (M, M * D), weights),
            scale=f32(rng, (1,)),
            base=f32(rng, (M,)),
            gain=f32(rng, (D,), normal(0.1, mean=1.0)),
            ticket=np.zeros(T, np.int32),
            mix_eps=_EPS,
            eps=_EPS,
            norm_eps=_EPS,
        )

    return make


def _exit_in_parts(bench: Bench, i: Inputs) -> Outputs:
    x = i["x"]
    mix = bench.run("island_dots_f32", x=x.reshape(len(x), -1), w=i["fn"])["y"]
    mix = bench.run("hyper_norm_scale_f32", x=x, mix=mix, mix_eps=i["mix_eps"])["mix"]
    named = {name: i[name] for name in ("scale", "base", "eps")}
    pre = bench.run("hyper_head_gate", mix=mix, **named)["pre"]
    y = bench.run("hyper_collapse", x=x, pre=pre)["y"]
    normed = bench.run("rms_norm_f32", x=y, w=i["gain"], eps=i["norm_eps"])["y"]
    return {"collapsed": y, "y": normed, "ticket": np.zeros(len(x), np.int32)}


# ------------------------------------------------------------------ the gate


def _gate(T: int, E: int, A: int, D: int, *, M: int = 4, hashed: bool = False) -> Trial:
    def make(rng: Rng) -> dict[str, Any]:
        rows, V = (2 + M) * M, 50
        # Ties, far apart scores and sums that are no numbers.
        w = bf16(rng, (E, D))
        w[rng.random(E) < 0.2] = w[0]
        chooses = (
            dict(table=rng.integers(-1, E + 1, (V, A)), tokens=rng.integers(-1, V + 1, T))
            if hashed
            else dict(bias=f32(rng, (E,), sprinkled(uniform(-2, 2), [np.nan, 27.0], 0.05)))
        )
        if hashed:
            chooses["tokens"] = chooses["tokens"].astype(np.int32)
        return dict(
            x=f32(rng, (T, D), normal(0.2)),
            w=w,
            **chooses,
            mix=f32(rng, (T, rows), normal(2)),
            hyper_scale=f32(rng, (3,), normal(0.1, mean=0.8)),
            hyper_base=f32(rng, (rows,), normal(0.5)),
            ticket=np.zeros(1, np.int32),
            A=A,
            M=M,
            scale=1.5,
            eps=_EPS,
            iterations=20,
        )

    return Trial(f"T={T} E={E} A={A} D={D} M={M}", make, "full" if E * D >= 2**21 else "quick")


def _gates(hashed: bool) -> tuple[Trial, ...]:
    return (
        _gate(1, 8, 2, 128, hashed=hashed),
        _gate(3, 37, 5, 264, M=3, hashed=hashed),
        _gate(8, 257, 7, 520, hashed=hashed),
        _gate(2, 600, 6, 2056, M=8, hashed=hashed),
        _gate(1, 256, 6, 4096, hashed=hashed),
        _gate(8, 256, 6, 4096, hashed=hashed),
        _gate(8, 1024, 32, 4096, hashed=hashed),
    )


def _gate_in_parts(router: str, *names: str) -> Callable[[Bench, Inputs], Outputs]:
    def run(bench: Bench, i: Inputs) -> Outputs:
        raw = bench.run("island_dots_bf16_f32", x=i["x"], w=i["w"])["y"]
        named = {name: i[name] for name in names}
        routed = bench.run(router, raw=raw, **named, scale=i["scale"])
        split = bench.run(
            "hyper_split", mix=i["mix"], scale=i["hyper_scale"], base=i["hyper_base"],
            **{name: i[name] for name in ("M", "eps", "iterations")},
        )  # fmt: skip
        return {**routed, **_without(split, "pre"), "ticket": np.zeros(1, np.int32)}

    return run


def _gate_twin(kernel: str, router: str, *names: str, hashed: bool) -> Twin:
    return Twin(
        name=f"{kernel}_in_parts",
        left=kernel,
        right=f"island_dots_bf16_f32, {router}; hyper_split",
        kernels=(kernel, "island_dots_bf16_f32", router, "hyper_split"),
        trials=_gates(hashed),
        run_left=lambda bench, i: _without(bench.run(kernel, **i), "scores"),
        run_right=_gate_in_parts(router, *names),
    )


_SUMMED = "island_dots_f32"
_ENTERED = f"{_SUMMED}, hyper_norm_scale_f32, hyper_pre_f32, rms_norm_f32"
_PARTS = (*_ENTERED.split(", "), "cast_bf16", "act_quant_fp8")

TWINS = (
    Twin(
        name="hyper_step_open_in_parts",
        left="hyper_step_open",
        right=f"hyper_post_pre_norm_f32, casts; hyper_post, {_SUMMED}, hyper_norm_scale_f32",
        kernels=("hyper_step_open", "hyper_post_pre_norm_f32", "hyper_post", _SUMMED,
                 "hyper_norm_scale_f32", "cast_bf16", "act_quant_fp8"),
        trials=_STEPS,
        run_left=_step("hyper_step_open", "iterations"),
        run_right=_open_in_parts,
    ),
    Twin(
        name="hyper_step_streams_in_parts",
        left="hyper_step_streams",
        right=f"{_ENTERED}, casts",
        kernels=("hyper_step_streams", *_PARTS),
        trials=_STEPS,
        run_left=_step("hyper_step_streams", "z", "post", "comb", "iterations"),
        run_right=_streams_in_parts,
    ),
    Twin(
        name="hyper_step_entry_in_parts",
        left="hyper_step_entry",
        right=f"movement_embed, movement_repeat, {_ENTERED}, casts",
        kernels=("hyper_step_entry", "movement_embed", "movement_repeat", *_PARTS),
        trials=(
            Trial("smallest", _entry(1, 1, 128)),
            Trial("three rows", _entry(3, 3, 384)),
            Trial("eight rows", _entry(8, 4, 128)),
            Trial("decode", _entry(1, 4, 4096)),
        ),
        run_left=_step("hyper_step_entry", "iterations"),
        run_right=_entry_in_parts,
    ),
    Twin(
        name="hyper_step_exit_in_parts",
        left="hyper_step_exit",
        right=f"{_SUMMED}, hyper_norm_scale_f32, hyper_head_gate, hyper_collapse, rms_norm_f32",
        kernels=("hyper_step_exit", _SUMMED, "hyper_norm_scale_f32", "hyper_head_gate",
                 "hyper_collapse", "rms_norm_f32"),
        trials=(
            Trial("smallest", _exit(1, 1, 8)),
            Trial("three rows", _exit(3, 3, 264)),
            Trial("eight rows", _exit(8, 4, 264)),
            Trial("decode", _exit(1, 4, 4096)),
        ),
        run_left=_step("hyper_step_exit"),
        run_right=_exit_in_parts,
    ),
    _gate_twin("router_gate", "router", "bias", "A", hashed=False),
    _gate_twin("router_gate_hash", "router_hash", "table", "tokens", hashed=True),
)  # fmt: skip
