"""Experts: selected ones against one at a time, their ordered sum against one scatter-add each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.cases.fills import wide
from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, e4m3, f32, powers_of_two
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]

_KINDS = ("mx", "nv")
_NAN = 0x7FFFFFFF  # what a slot without an expert gives


# ------------------------------------------------------------------ FP4 products


def fp4_matrices(rng: Rng, kind: str, E: int, N: int, K: int) -> dict[str, np.ndarray]:
    """Weights of E experts in one slab; neighbouring codes have scales far apart."""
    codes = rng.integers(0, 256, (E, N, K // 2), dtype=np.uint8)
    if kind == "mx":
        return dict(codes=codes, scales=rng.integers(112, 128, (E, N, K // 32)).astype(np.uint8))
    scale2 = (rng.uniform(1.0, 2.0, E) * 2.0**-12).astype(np.float32)
    return dict(codes=codes, scales=e4m3(rng, (E, N, K // 16)), scale2=scale2)


def _activations(rng: Rng, T: int, K: int) -> dict[str, np.ndarray]:
    return dict(x=e4m3(rng, (T, K)), x_scales=powers_of_two(rng, (T, K // 128), -9, -2))


def _one_matrix(kind: str) -> Callable[..., Make]:
    def sized(T: int, N: int, K: int) -> Make:
        def make(rng: Rng) -> dict[str, Any]:
            slab = fp4_matrices(rng, kind, 1, N, K)
            weights = {n: w if n == "scale2" else w[0] for n, w in slab.items()}
            return {**weights, **_activations(rng, T, K)}

        return make

    return sized


def _rows(kind: str) -> tuple[Trial, ...]:
    sized = _one_matrix(kind)
    return (
        *(Trial(f"T={t}", sized(t, 37, 1152)) for t in range(1, 9)),
        Trial("more than eight rows", sized(19, 9, 640)),
        Trial("tall", sized(3, 1027, 256)),
        Trial("gate", sized(8, 2048, 4096), "full"),
    )


def _slots(kind: str, ids: list[int], *, E: int, N: int, K: int, group: int) -> Trial:
    """Slots that take these experts, `group` of them to a row of x."""

    def make(rng: Rng) -> dict[str, Any]:
        return dict(
            fp4_matrices(rng, kind, E, N, K),
            **_activations(rng, len(ids) // group, K),
            ids=np.array(ids, np.int32),
            group=group,
        )

    level = "full" if N * K >= 2**20 else "quick"
    return Trial(f"E={E} N={N} K={K}, {len(ids)} slots by {group}", make, level)


def _selections(kind: str) -> tuple[Trial, ...]:
    return (
        _slots(kind, [0], E=1, N=1, K=128, group=1),
        _slots(kind, [4, 0, 3, 3, 4, 1], E=5, N=33, K=384, group=3),  # repeated across rows
        _slots(kind, [2, 2, 2, 2], E=3, N=17, K=1152, group=1),
        _slots(kind, [7, 6, 5, 4, 3, 2, 2, 3, 4, 5, 6, 7], E=8, N=70, K=640, group=6),
        _slots(kind, [1, 0, 2, 1, 2, 0, 1, 0, 2, 1, 2, 0], E=3, N=131, K=256, group=1),
        _slots(kind, [0, -1, 3, 2, 1, 2**31 - 1], E=3, N=21, K=256, group=2),  # two name nobody
        _slots(kind, [15, 3, 8, 0, 9, 4], E=16, N=2048, K=4096, group=6),
        _slots(kind, [15, 3, 8, 0, 9, 4], E=16, N=4096, K=2048, group=1),
    )


def _one_by_one_slot(kernel: str) -> Callable[[Bench, Inputs], Outputs]:
    """Every slot's matrix cut out of the slab, for that slot's row of x alone."""

    def run(bench: Bench, i: Inputs) -> Outputs:
        E, N, _ = i["codes"].shape
        slab = {name: bench.put(i[name]) for name in ("codes", "scales", "scale2") if name in i}
        found = []
        for slot, expert in enumerate(i["ids"].tolist()):
            if not 0 <= expert < E:
                found.append(np.full((1, N), _NAN, np.uint32).view(np.float32))
                continue
            own = {
                n: w[expert : expert + 1] if n == "scale2" else w[expert] for n, w in slab.items()
            }
            row = slice(slot // i["group"], slot // i["group"] + 1)
            x = {name: i[name][row] for name in ("x", "x_scales")}
            found.append(bench.run(kernel, **own, **x)["y"])
        return {"y": np.concatenate(found)}

    return run


def _selected_twin(kind: str) -> Twin:
    kernel = f"linear_fp4_{kind}"
    return Twin(
        name=f"{kernel}_selected_as_single",
        left=f"{kernel}_selected",
        right=f"{kernel}, one slot a launch",
        kernels=(f"{kernel}_selected", kernel),
        trials=_selections(kind),
        run_left=lambda bench, i: bench.run(f"{kernel}_selected", **i),
        run_right=_one_by_one_slot(kernel),
    )


# ------------------------------------------------------------------ halves of an expert

_LIMIT = 7.0


def _halves(kind: str, ids: list[int], *, E: int, N: int, K: int, group: int) -> Trial:
    """Slots that take these experts, two matrices each."""

    def make(rng: Rng) -> dict[str, Any]:
        gate, up = (fp4_matrices(rng, kind, E, N, K) for _ in range(2))
        return dict(
            **{f"gate_{name}": w for name, w in gate.items()},
            **{f"up_{name}": w for name, w in up.items()},
            **_activations(rng, len(ids) // group, K),
            ids=np.array(ids, np.int32),
            weights=rng.uniform(0.1, 1.5, len(ids)).astype(np.float32),
            group=group,
        )

    level = "full" if N * K >= 2**20 else "quick"
    return Trial(f"E={E} N={N} K={K}, {len(ids)} slots by {group}", make, level)


def _first_halves(kind: str) -> tuple[Trial, ...]:
    return (
        _halves(kind, [4, 0, 3, 3, 4, 1], E=5, N=33, K=384, group=3),
        _halves(kind, [0, -1, 3, 2, 1, 2**31 - 1], E=3, N=21, K=256, group=2),
        _halves(kind, [0, 1, 2, 3, 4, 5, 6, 7, 0], E=8, N=18, K=1152, group=9),
        _halves(kind, [15, 3, 8, 0, 9, 4], E=16, N=2048, K=4096, group=6),
    )


def _gate_up(kind: str) -> Twin:
    kernel = f"linear_fp4_{kind}_gate_up"

    def apart(bench: Bench, i: Inputs) -> Outputs:
        given = {name: i[name] for name in ("ids", "x", "x_scales", "group")}
        halves = {
            half: bench.run(
                f"linear_fp4_{kind}_selected",
                **{n.removeprefix(f"{half}_"): w for n, w in i.items() if n.startswith(half)},
                **given,
            )["y"]
            for half in ("gate", "up")
        }
        return bench.run("swiglu_weighted", **halves, weights=i["weights"], limit=_LIMIT)

    return Twin(
        name=f"{kernel}_as_parts",
        left=kernel,
        right="two selected products, then swiglu_weighted",
        kernels=(kernel, f"linear_fp4_{kind}_selected", "swiglu_weighted"),
        trials=_first_halves(kind),
        run_left=lambda bench, i: bench.run(kernel, **i, limit=_LIMIT),
        run_right=apart,
    )


def _tokens(kind: str, *, E: int, N: int, K: int, T: int, A: int) -> Trial:
    """The second halves of T tokens with A experts each."""

    def make(rng: Rng) -> dict[str, Any]:
        rows = _activations(rng, T * A, K)
        ids = rng.integers(0, E, (T, A)).astype(np.int32)
        return dict(
            fp4_matrices(rng, kind, E, N, K),
            **{name: part.reshape(T, A, -1) for name, part in rows.items()},
            ids=ids,
            order=np.argsort(ids, axis=1, kind="stable").astype(np.int32),
            shared=f32(rng, (T, N)),
        )

    level = "full" if N * K >= 2**20 else "quick"
    return Trial(f"E={E} N={N} K={K}, {T} tokens of {A}", make, level)


def _down(kind: str) -> Twin:
    kernel = f"linear_fp4_{kind}_down"

    def apart(bench: Bench, i: Inputs) -> Outputs:
        T, A, K = i["x"].shape
        rows = {name: i[name].reshape(T * A, -1) for name in ("x", "x_scales")}
        names = [name for name in ("codes", "scales", "scale2") if name in i]
        slots = bench.run(
            f"linear_fp4_{kind}_selected",
            **{name: i[name] for name in names}, ids=i["ids"].reshape(-1), **rows, group=1,
        )["y"]  # fmt: skip
        contributions = slots.reshape(T, A, -1)
        given = dict(order=i["order"], shared=i["shared"])
        return bench.run("combine_shared", contributions=contributions, **given)

    return Twin(
        name=f"{kernel}_as_parts",
        left=kernel,
        right="a selected product a slot, then combine_shared",
        kernels=(kernel, f"linear_fp4_{kind}_selected", "combine_shared"),
        trials=(
            _tokens(kind, E=5, N=33, K=384, T=3, A=3),
            _tokens(kind, E=3, N=17, K=1152, T=1, A=8),
            _tokens(kind, E=8, N=516, K=256, T=5, A=6),
            _tokens(kind, E=16, N=4096, K=2048, T=2, A=6),
        ),
        run_left=lambda bench, i: bench.run(kernel, **i),
        run_right=apart,
    )


# ------------------------------------------------------------------ their sum


def _selected(T: int, A: int, D: int, E: int, *, descending: bool = False) -> Make:
    """Distinct experts for every token, their contributions, and their slots by ascending id."""

    def make(rng: Rng) -> dict[str, Any]:
        ids = np.stack([rng.permutation(E)[:A] for _ in range(T)])
        ids = -np.sort(-ids, axis=1) if descending else ids
        return dict(
            contributions=f32(rng, (T, A, D), wide(-20, 20)),
            ids=ids,
            order=np.argsort(ids, axis=1, kind="stable").astype(np.int32),
            shared=f32(rng, (T, D)),
        )

    return make


_SELECTIONS = (
    Trial("one token", _selected(1, 6, 4096, 256)),
    Trial("any order", _selected(7, 6, 515, 256)),
    Trial("descending ids", _selected(5, 6, 516, 256, descending=True)),
    Trial("few experts", _selected(8, 6, 260, 8)),
    Trial("one expert a token", _selected(4, 1, 33, 9)),
    Trial("prompt", _selected(300, 6, 4096, 256), "full"),
)


def _one_by_one(bench: Bench, i: Inputs) -> np.ndarray:
    """From zero, every expert in ascending order adds its contribution to its tokens."""
    T, _, D = i["contributions"].shape
    y = np.zeros((T, D), np.float32)
    for expert in np.unique(i["ids"]):
        tokens, slots = np.nonzero(i["ids"] == expert)
        rows = np.ascontiguousarray(i["contributions"][tokens, slots])
        y = bench.run("movement_scatter_add", x=rows, ids=tokens.astype(np.int32), y=y)["y"]
    return y


def _combined(bench: Bench, i: Inputs) -> Outputs:
    return bench.run("combine", contributions=i["contributions"], order=i["order"])


def _scattered(bench: Bench, i: Inputs) -> Outputs:
    return {"y": _one_by_one(bench, i)}


def _combined_with_shared(bench: Bench, i: Inputs) -> Outputs:
    names = ("contributions", "order", "shared")
    return bench.run("combine_shared", **{name: i[name] for name in names})


def _scattered_then_shared(bench: Bench, i: Inputs) -> Outputs:
    routed = _one_by_one(bench, i)
    added = bench.run("movement_add", x=i["shared"].reshape(-1), y=routed.reshape(-1))
    return {"y": added["y"].reshape(routed.shape)}


TWINS = (
    *(rows_alone(f"linear_fp4_{kind}", axis="T", trials=_rows(kind)) for kind in _KINDS),
    *(_selected_twin(kind) for kind in _KINDS),
    *(_gate_up(kind) for kind in _KINDS),
    *(_down(kind) for kind in _KINDS),
    Twin(
        name="combine_as_scatter_add",
        left="combine",
        right="movement_scatter_add from zero, experts ascending",
        kernels=("combine", "movement_scatter_add"),
        trials=_SELECTIONS,
        run_left=_combined,
        run_right=_scattered,
    ),
    Twin(
        name="combine_shared_as_scatter_add",
        left="combine_shared",
        right="movement_scatter_add from zero, then movement_add",
        kernels=("combine_shared", "movement_scatter_add", "movement_add"),
        trials=_SELECTIONS,
        run_left=_combined_with_shared,
        run_right=_scattered_then_shared,
    ),
)
