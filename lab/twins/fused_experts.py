"""Halves of experts in one launch against the kernels whose work they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsv4.kernels.linear_fp4 import SLOTS
from lab.cases.fills import sprinkled, wide
from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, bf16, e4m3, f32, powers_of_two
from lab.twins.experts import fp4_matrices
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]

_KINDS = ("mx", "nv")
_LIMIT = 7.0


def _shared_expert(rng: Rng, name: str, N: int, K: int) -> dict[str, np.ndarray]:
    scales = powers_of_two(rng, (-(-N // 128), K // 128), -12, -5)
    return {f"shared_{name}codes": e4m3(rng, (N, K)), f"shared_{name}scales": scales}


def _chosen(rng: Rng, E: int, T: int, A: int, stray: bool) -> np.ndarray:
    """Expert ids, repeated within and across tokens; some of them name nobody."""
    ids = rng.integers(0, E, (T, A))
    if stray:
        ids[rng.random((T, A)) < 0.3] = rng.choice([-1, E, 2**31 - 1])
    return ids.astype(np.int32)


def _first(kind: str, T: int, A: int, E: int, N: int, K: int, *, stray: bool = False) -> Trial:
    def make(rng: Rng) -> dict[str, Any]:
        gate, up = (fp4_matrices(rng, kind, E, N, K) for _ in range(2))
        return dict(
            **{f"gate_{name}": w for name, w in gate.items()},
            **{f"up_{name}": w for name, w in up.items()},
            **_shared_expert(rng, "gate_", N, K),
            **_shared_expert(rng, "up_", N, K),
            ids=_chosen(rng, E, T, A, stray),
            x=e4m3(rng, (T, K)),
            x_scales=powers_of_two(rng, (T, K // 128), -9, -2),
            wide_x=bf16(rng, (T, K)),
            weights=rng.uniform(0.1, 1.5, (T, A)).astype(np.float32),
            limit=_LIMIT,
        )

    return _trial(make, T, A, N, K, stray)


def _second(kind: str, T: int, A: int, E: int, N: int, K: int, *, stray: bool = False) -> Trial:
    def make(rng: Rng) -> dict[str, Any]:
        ids = _chosen(rng, E, T, A, stray)
        order = np.argsort(ids, axis=1, kind="stable").astype(np.int32)
        hidden = wide(-24, 6)
        return dict(
            **fp4_matrices(rng, kind, E, N, K),
            **_shared_expert(rng, "", N, K),
            ids=ids,
            # Groups whose amax lies on a border of scales, below the floor, and with NaN inside.
            hidden=f32(rng, (T, A, K), sprinkled(hidden, [np.nan, np.inf, 448.0], 1e-3)
                       if stray else hidden),
            shared_x=bf16(rng, (T, K)),
            order=order,
        )  # fmt: skip

    return _trial(make, T, A, N, K, stray)


def _trial(make: Make, T: int, A: int, N: int, K: int, stray: bool) -> Trial:
    name = f"T={T} A={A} N={N} K={K}" + (", some name nobody" if stray else "")
    return Trial(name, make, "full" if N * K >= 2**20 else "quick")


def _shared_product(bench: Bench, i: Inputs, name: str, x: Any) -> np.ndarray:
    codes, scales = i[f"shared_{name}codes"], i[f"shared_{name}scales"]
    return bench.run("linear_fp8", codes=codes, scales=scales, x=x)["y"]


def _routed(i: Inputs, *names: str) -> dict[str, Any]:
    return {name: i[name] for name in names if name in i}


def _first_in_parts(kind: str) -> Callable[[Bench, Inputs], Outputs]:
    def run(bench: Bench, i: Inputs) -> Outputs:
        T, A = i["ids"].shape
        slabs = {n: w for n, w in i.items() if n.startswith(("gate_", "up_"))}
        y = bench.run(
            f"linear_fp4_{kind}_gate_up", **slabs, **_routed(i, "x", "x_scales", "limit"),
            ids=i["ids"].reshape(-1), weights=i["weights"].reshape(-1), group=A,
        )["y"]  # fmt: skip
        gate, up = (_shared_product(bench, i, name, i["wide_x"]) for name in ("gate_", "up_"))
        hidden = bench.run("swiglu", gate=gate, up=up, limit=i["limit"])["y"]
        rounded = bench.run("cast_bf16", x=hidden.reshape(-1))["y"]
        return {"y": y.reshape(T, A, -1), "shared_y": rounded.reshape(hidden.shape)}

    return run


def _second_in_parts(kind: str) -> Callable[[Bench, Inputs], Outputs]:
    def run(bench: Bench, i: Inputs) -> Outputs:
        T, A, K = i["hidden"].shape
        made = bench.run("act_quant_fp8", x=i["hidden"].reshape(T * A, K), group=128)
        shared = _shared_product(bench, i, "", i["shared_x"])
        slab = _routed(i, "codes", "scales", "scale2")
        if A <= SLOTS:
            return bench.run(
                f"linear_fp4_{kind}_down", **slab, **_routed(i, "ids", "order"), shared=shared,
                x=made["codes"].reshape(T, A, K), x_scales=made["scales"].reshape(T, A, -1),
            )  # fmt: skip
        slots = bench.run(
            f"linear_fp4_{kind}_selected", **slab, ids=i["ids"].reshape(-1), x=made["codes"],
            x_scales=made["scales"], group=1,
        )["y"]  # fmt: skip
        contributions = slots.reshape(T, A, -1)
        return bench.run(
            "combine_shared", contributions=contributions, order=i["order"], shared=shared
        )

    return run


_SIZES: tuple[dict[str, Any], ...] = (
    dict(T=1, A=3, E=5, N=33, K=384),
    dict(T=3, A=2, E=3, N=150, K=1152),
    dict(T=8, A=3, E=3, N=17, K=2304),
    dict(T=3, A=19, E=8, N=18, K=256),
    dict(T=3, A=5, E=4, N=21, K=256, stray=True),
)
_WIDE = dict(A=6, E=4, N=48, K=4096)
_FIRST_SIZES = (
    *_SIZES,
    *(dict(T=t, **_WIDE) for t in (1, 2)),
    *(dict(T=t, A=6, E=16, N=2048, K=4096) for t in (1, 8)),
)
_SECOND_SIZES = (*_SIZES, *(dict(T=t, A=6, E=16, N=4096, K=2048) for t in (1, 8)))


def _gate_up(kind: str) -> Twin:
    kernel = f"experts_{kind}_gate_up"
    routed = f"linear_fp4_{kind}_gate_up"
    return Twin(
        name=f"{kernel}_in_parts",
        left=kernel,
        right=f"{routed}; linear_fp8 twice, swiglu, cast_bf16",
        kernels=(kernel, routed, "linear_fp8", "swiglu", "cast_bf16"),
        trials=tuple(_first(kind, **sizes) for sizes in _FIRST_SIZES),
        run_left=lambda bench, i: bench.run(kernel, **i),
        run_right=_first_in_parts(kind),
    )


def _down(kind: str) -> Twin:
    kernel = f"experts_{kind}_down"
    routed = (f"linear_fp4_{kind}_down", f"linear_fp4_{kind}_selected")
    return Twin(
        name=f"{kernel}_in_parts",
        left=kernel,
        right=f"act_quant_fp8, linear_fp8, {routed[0]}, or {routed[1]} and combine_shared",
        kernels=(kernel, *routed, "act_quant_fp8", "linear_fp8", "combine_shared"),
        trials=tuple(_second(kind, **sizes) for sizes in _SECOND_SIZES),
        run_left=lambda bench, i: bench.run(kernel, **i),
        run_right=_second_in_parts(kind),
    )


TWINS = (
    *(_gate_up(kind) for kind in _KINDS),
    *(_down(kind) for kind in _KINDS),
    *(
        rows_alone(f"experts_{kind}_gate_up", axis="T", trials=(_first(kind, **_SIZES[1]),))
        for kind in _KINDS
    ),
    *(
        rows_alone(f"experts_{kind}_down", axis="T", trials=(_second(kind, **_SIZES[1]),))
        for kind in _KINDS
    ),
)
