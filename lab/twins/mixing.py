"""Hyper-connections: fused kernels against their parts, many tokens against single ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.cases.fills import normal, uniform, values
from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, f32
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]

_EPS = 1e-6
_SETTLED = ("equal", "near a permutation")


def _mixes(rng: Rng, T: int, M: int, kind: str) -> np.ndarray:
    """Mixes whose balanced matrix is final at once ("equal") or never ("near a permutation")."""
    shape = (T, (2 + M) * M)
    return np.full(shape, 0.5, np.float32) if kind == "equal" else f32(rng, shape, normal())


def _coefficients(rng: Rng, M: int, kind: str) -> dict[str, np.ndarray]:
    spread = {"equal": 0.0, "near a permutation": 9.0}.get(kind, 0.5)
    base = f32(rng, ((2 + M) * M,), normal(spread, mean=-0.25))
    return dict(scale=f32(rng, (3,), normal(0.1, mean=0.8)), base=base)


# ------------------------------------------------------------------ pre is three kernels


def _before(T: int, M: int, D: int, *, kind: str = "", iterations: int = 20) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        return dict(
            x=f32(rng, (T, M, D), normal(0.3)),
            mix=_mixes(rng, T, M, kind),
            **_coefficients(rng, M, kind),
            M=M,
            mix_eps=_EPS,
            eps=_EPS,
            iterations=iterations,
        )

    return make


_BEFORE = (
    Trial("smallest", _before(1, 1, 8)),
    Trial("three streams", _before(7, 3, 264)),
    Trial("eight streams", _before(2, 8, 1032)),
    *(Trial(f"{n} iterations", _before(3, 4, 264, iterations=n)) for n in (1, 2, 5)),
    *(Trial(f"{kind} mixes", _before(5, 4, 264, kind=kind)) for kind in _SETTLED),
    Trial("verify", _before(6, 4, 4096)),
)


def _fused(kernel: str, *drop: str) -> Callable[[Bench, Inputs], Outputs]:
    """One launch; scratch is not compared."""

    def run(bench: Bench, i: Inputs) -> Outputs:
        return {n: y for n, y in bench.run(kernel, **i).items() if n not in drop}

    return run


def _pre_in_parts(suffix: str) -> Callable[[Bench, Inputs], Outputs]:
    def run(bench: Bench, i: Inputs) -> Outputs:
        return _split_and_collapse(bench, i, i["x"], i["mix"], suffix)

    return run


def _split_and_collapse(
    bench: Bench, i: Inputs, x: np.ndarray, mix: np.ndarray, suffix: str
) -> Outputs:
    eps = i["mix_eps"]
    scaled = bench.run(f"hyper_norm_scale{suffix}", x=x, mix=mix, mix_eps=eps)["mix"]
    named = {name: i[name] for name in ("scale", "base", "M", "eps", "iterations")}
    split = bench.run("hyper_split", mix=scaled, **named)
    return {**split, **bench.run("hyper_collapse", x=x, pre=split["pre"])}


# ------------------------------------------------------------------ post, and all that follows it


def between(T: int, M: int, D: int, *, kind: str = "", iterations: int = 20) -> Make:
    """The output of a sub-block, old streams, and the weights of the next sub-block."""

    def make(rng: Rng) -> dict[str, Any]:
        rows = (2 + M) * M
        comb = rng.uniform(0.05, 1.0, (T, M, M))
        weights = values(lambda rng, shape: rng.standard_normal(shape) / np.sqrt(shape[1]))
        # Without a product the mixes are zero: the balanced matrix follows from base alone.
        fn = (
            np.zeros((rows, M * D), np.float32)
            if kind == "equal"
            else f32(rng, (rows, M * D), weights)
        )
        return dict(
            z=f32(rng, (T, D)),
            x=f32(rng, (T, M, D), normal(0.5)),
            post=f32(rng, (T, M), uniform(0.0, 2.0)),
            comb=(comb / comb.sum(axis=1, keepdims=True)).astype(np.float32),
            fn=fn,
            **_coefficients(rng, M, kind),
            gain=f32(rng, (D,), normal(0.1, mean=1.0)),
            ticket=np.zeros(T, np.int32),
            M=M,
            mix_eps=_EPS,
            eps=_EPS,
            norm_eps=_EPS,
            iterations=iterations,
        )

    return make


_BETWEEN = (
    Trial("smallest", between(1, 1, 8)),
    Trial("parts across streams", between(3, 5, 104)),
    Trial("eight streams", between(2, 8, 520)),
    *(Trial(f"{n} iterations", between(2, 4, 64, iterations=n)) for n in (1, 2, 5)),
    *(Trial(f"{kind} mixes", between(3, 4, 264, kind=kind)) for kind in _SETTLED),
    Trial("decode", between(1, 4, 4096)),
    Trial("verify", between(8, 4, 4096), "full"),
)


def _in_parts(suffix: str) -> Callable[[Bench, Inputs], Outputs]:
    def run(bench: Bench, i: Inputs) -> Outputs:
        mixed = {name: i[name] for name in ("z", "x", "post", "comb")}
        x = bench.run("hyper_post", **mixed)["out"]
        mix = bench.run(f"island_dots{suffix}", x=x.reshape(len(x), -1), w=i["fn"])["y"]
        found = _split_and_collapse(bench, i, x, mix, suffix)
        norm = bench.run(f"rms_norm{suffix}", x=found["y"], w=i["gain"], eps=i["norm_eps"])
        return {
            "x_next": x,
            "pre": found["pre"],
            "post_next": found["post"],
            "comb_next": found["comb"],
            "y": norm["y"],
            "ticket": np.zeros(len(x), np.int32),
        }

    return run


def _fused_pre(suffix: str) -> Twin:
    kernel, scale = f"hyper_pre{suffix}", f"hyper_norm_scale{suffix}"
    return Twin(
        name=f"{kernel}_in_parts",
        left=kernel,
        right=f"{scale}, hyper_split, hyper_collapse",
        kernels=(kernel, scale, "hyper_split", "hyper_collapse"),
        trials=_BEFORE,
        run_left=_fused(kernel),
        run_right=_pre_in_parts(suffix),
    )


def _fused_all(suffix: str) -> Twin:
    kernel, scale = f"hyper_post_pre_norm{suffix}", f"hyper_norm_scale{suffix}"
    dots, norm = f"island_dots{suffix}", f"rms_norm{suffix}"
    return Twin(
        name=f"{kernel}_in_parts",
        left=kernel,
        right=f"hyper_post, {dots}, {scale}, hyper_split, hyper_collapse, {norm}",
        kernels=(kernel, "hyper_post", dots, scale, "hyper_split", "hyper_collapse", norm),
        trials=_BETWEEN,
        run_left=_fused(kernel, "partial"),
        run_right=_in_parts(suffix),
    )


# ------------------------------------------------------------------ many tokens are single tokens


def _only(make: Make, *names: str) -> Make:
    """The trial's inputs of these names."""
    return lambda rng: {name: value for name, value in make(rng).items() if name in names}


def _trials(trials: tuple[Trial, ...], *names: str) -> tuple[Trial, ...]:
    return tuple(Trial(t.name, _only(t.make, *names), t.level) for t in trials)


def _gates(T: int, M: int) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        mix = f32(rng, (T, M), uniform(-110, 110))
        return dict(mix=mix, scale=f32(rng, (1,)), base=f32(rng, (M,)), eps=_EPS)

    return make


_GATES = (Trial("verify", _gates(6, 4)), Trial("seven streams", _gates(9, 7)))
_SPLIT = _trials(_BEFORE, "mix", "scale", "base", "M", "eps", "iterations")
_SCALED = _trials(_BEFORE, "x", "mix", "mix_eps")
_MIXED = _trials(_BETWEEN, "z", "x", "post", "comb")

TWINS = (
    *(_fused_pre(suffix) for suffix in ("", "_f32")),
    *(_fused_all(suffix) for suffix in ("", "_f32")),
    rows_alone("hyper_split", axis="T", trials=_SPLIT),
    rows_alone("hyper_head_gate", axis="T", trials=_GATES),
    rows_alone("hyper_post", axis="T", trials=_MIXED),
    *(rows_alone(f"hyper_norm_scale{s}", axis="T", trials=_SCALED) for s in ("", "_f32")),
    *(rows_alone(f"hyper_pre{s}", axis="T", trials=_BEFORE) for s in ("", "_f32")),
    *(rows_alone(f"hyper_post_pre_norm{s}", axis="T", trials=_BETWEEN) for s in ("", "_f32")),
)
