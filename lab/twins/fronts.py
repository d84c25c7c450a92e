"""The front of a layer in two launches: against the single kernels that do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsv4.spec import I32
from lab.cases.fills import normal
from lab.cases.finish import rounds
from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, bf16, e4m3, f32, filled, powers_of_two

Make = Callable[[Rng], dict[str, Any]]

# ------------------------------------------------------------------ all products of an input

_RINGS = {
    "raw_kv": "wkv",
    "raw_score": "wgate",
    "index_kv": "index_wkv",
    "index_score": "index_wgate",
}


def _products(
    kind: str, T: int, D: int, Q: int, K: int, *, L: int = 18, H: int = 5, M: int = 4
) -> Make:
    """Weights and rings of a layer of that kind; the first row has no place where there are three.

    Scales are any numbers, so that their place in the order of the sum shows.
    """
    heights = {"window": {}, "blocks": {"": K}, "indexed": {"": 2 * K, "index_": L}}[kind]

    def scales(rng: Rng, rows: int) -> np.ndarray:
        shape = (-(-rows // 128), -(-D // 128))
        return np.asarray(powers_of_two(rng, shape, -9, -4) * f32(rng, shape))

    def make(rng: Rng) -> dict[str, Any]:
        made: dict[str, Any] = dict(
            x=f32(rng, (T, D)),
            q_codes=e4m3(rng, (Q, D)),
            q_scales=scales(rng, Q),
            kv_codes=e4m3(rng, (K, D)),
            kv_scales=scales(rng, K),
            mix=f32(rng, (T, (2 + M) * M), normal(2)),
            hyper_scale=f32(rng, (3,), normal(0.1, mean=0.8)),
            hyper_base=f32(rng, ((2 + M) * M,), normal(0.5)),
            M=M,
            eps=1e-6,
            iterations=20,
        )
        for prefix, rows in heights.items():
            for name in ("wkv", "wgate"):
                made[prefix + name] = bf16(rng, (rows, D))
            for name in ("kv", "score"):
                ring = f"{prefix or 'raw_'}{name}"
                made[ring] = f32(rng, (T + 3, rows))
        if heights:
            made["raw_rows"] = np.array([(t + 4) % (T + 3) for t in range(T)], np.int32)
            if T == 3:
                made["raw_rows"][0] = -1
        if kind == "indexed":
            made["proj"] = bf16(rng, (H, D))
        return made

    return make


def _infinite_row(make: Make) -> Make:
    """The last row is infinite; the last part of 17 steps has fewer, and reads none of that row."""

    def made(rng: Rng) -> dict[str, Any]:
        found = make(rng)
        found["x"][-1] = np.inf
        return found

    return made


def _at_once(kernel: str) -> Callable[[Bench, Inputs], Outputs]:
    return lambda bench, i: bench.run(kernel, **i)


def _one_by_one(bench: Bench, i: Inputs) -> Outputs:
    rows, D = i["x"].shape
    rounded = bench.run("cast_bf16", x=i["x"].reshape(-1))["y"].reshape(rows, D)
    found = {
        out: bench.run(
            "linear_fp8", codes=i[f"{name}_codes"], scales=i[f"{name}_scales"], x=rounded
        )["y"]
        for out, name in (("latent", "q"), ("kv", "kv"))
    }
    for ring, weight in _RINGS.items():
        if ring in i:
            made = bench.run("island_dots_bf16_f32", x=i["x"], w=i[weight])["y"]
            found[ring] = bench.run("movement_scatter", x=made, ids=i["raw_rows"], y=i[ring])["y"]
    split = bench.run(
        "hyper_split", mix=i["mix"], scale=i["hyper_scale"], base=i["hyper_base"],
        **{name: i[name] for name in ("M", "eps", "iterations")},
    )  # fmt: skip
    found |= {name: split[name] for name in ("post", "comb")}
    if "proj" in i:
        found["heads"] = bench.run("linear_bf16", w=i["proj"], x=rounded)["y"]
    return found


def _products_trials(kind: str) -> tuple[Trial, ...]:
    return (
        *(Trial(f"T={t}", _products(kind, t, 528, 37, 20)) for t in (1, 3, 8)),
        Trial("smallest", _products(kind, 1, 16, 1, 1, M=1)),
        Trial("eight streams", _products(kind, 8, 16, 3, 2, M=8)),
        Trial("many blocks of scales", _products(kind, 2, 400, 300, 140)),
        Trial("an infinite row behind", _infinite_row(_products(kind, 2, 17 * 256, 9, 500))),
        Trial("tiny model", _products(kind, 4, 256, 128, 256, L=256, H=4)),
        *(
            Trial(f"model T={t}", _products(kind, t, 4096, 1024, 512, L=256, H=64), level)
            for t, level in ((1, "quick"), (3, "full"), (8, "full"))
        ),
    )


def _project(kind: str) -> Twin:
    kernel = f"project_{kind}"
    single = ["cast_bf16", "linear_fp8", "hyper_split"]
    single += ["island_dots_bf16_f32", "movement_scatter"] if kind != "window" else []
    single += ["linear_bf16"] if kind == "indexed" else []
    return Twin(
        name=f"{kernel}_in_parts",
        left=kernel,
        right=", ".join(single),
        kernels=(kernel, *single),
        trials=_products_trials(kind),
        run_left=_at_once(kernel),
        run_right=_one_by_one,
    )


# ------------------------------------------------------------------ what follows them


def _rows(
    kind: str, T: int, Q: int, K: int, R: int, first: int, C: int, *, keys: int = 32, clamp: int = 0
) -> Make:
    """T rows from position `first` on, their products, rings and stores.

    The last block of many has no place. keys: width of the indexer's.
    """

    def make(rng: Rng) -> dict[str, Any]:
        ring, cap = 11 + T, max(1, (first + T) // C)
        made: dict[str, Any] = dict(
            latent=f32(rng, (T, Q)),
            q_gain=f32(rng, (Q,)),
            kv=f32(rng, (T, K)),
            kv_gain=f32(rng, (K,)),
            table=f32(rng, (first + T, R)),
            kvc=f32(rng, (ring + cap, K)),
            ring=ring,
            eps=1e-6,
            clamp_only=clamp,
        )
        ratio = 0 if kind == "window" else C
        for name, fill in rounds(first, T, ring, ratio, cap - (T > C)).items():
            made[name] = filled(fill, rng, (T,), I32)
        for prefix, names, width in _COMPRESSORS[kind](K, keys):
            columns = width * (2 if kind == "indexed" else 1)
            for name in names:
                made[prefix + name] = f32(rng, (2 * C + T, columns), normal(2.0))
            made[f"{prefix}ape"] = f32(rng, (C, columns))
            made[f"{prefix}gain"] = f32(rng, (width,))
        if kind == "indexed":
            made |= dict(keys=bf16(rng, (cap, keys)), scale=float(np.float32(keys**-0.5)))
        return made

    return make


_MAIN, _INDEX = ("raw_kv", "raw_score"), ("kv", "score")
_COMPRESSORS: dict[str, Callable[[int, int], list[tuple[str, tuple[str, str], int]]]] = {
    "window": lambda K, keys: [],
    "blocks": lambda K, keys: [("", _MAIN, K)],
    "indexed": lambda K, keys: [("", _MAIN, K), ("index_", _INDEX, keys)],
}


def _chain(bench: Bench, i: Inputs) -> Outputs:
    named, ring = dict(eps=i["eps"]), i["ring"]
    latent = bench.run("rms_norm_f32", x=i["latent"], w=i["q_gain"], **named)["y"]
    rows = bench.run("rms_norm_f32", x=i["kv"], w=i["kv_gain"], **named)["y"]
    rows = _turned_keys(bench, i, rows, i["positions"])
    kept = bench.run("movement_scatter", x=rows, ids=i["ring_rows"], y=i["kvc"][:ring])["y"]
    behind = i["kvc"][ring:]
    found = {"compact": bench.run("cast_bf16", x=latent.reshape(-1))["y"].reshape(latent.shape)}
    if "index_rows" in i:
        rows = _turned_keys(bench, i, _pooled(bench, i, "", _MAIN), i["firsts"])
        behind = bench.run("movement_scatter", x=rows, ids=i["index_rows"], y=behind)["y"]
    found["kvc"] = np.concatenate([kept, behind])
    if "keys" in i:
        rows = _turned(bench, i, _pooled(bench, i, "index_", _INDEX), i["firsts"])
        rows = bench.run("hadamard", x=rows, scale=i["scale"])["x"]
        rows = bench.run("act_quant_fp4_inplace", x=rows)["x"]
        made = bench.run("movement_scatter_bf16", x=rows, ids=i["index_rows"], y=i["keys"])
        found["keys"] = made["y"]
    return found


def _pooled(bench: Bench, i: Inputs, prefix: str, names: tuple[str, str]) -> np.ndarray:
    kv, score = (i[prefix + name] for name in names)
    ape, gain = i[f"{prefix}ape"], i[f"{prefix}gain"]
    overlap = int(kv.shape[1] > len(gain))
    pooled = bench.run(
        "compressor_pool_at", kv=kv, score=score, ape=ape, positions=i["positions"],
        ring=len(kv), overlap=overlap, K=len(gain),
    )["y"]  # fmt: skip
    return bench.run("rms_norm_f32", x=pooled, w=gain, eps=i["eps"])["y"]


def _turned(bench: Bench, i: Inputs, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    turned = bench.run("rope", x=rows[:, None], table=i["table"], positions=positions, inverse=0)
    return turned["x"][:, 0]


def _turned_keys(bench: Bench, i: Inputs, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    turned, prefix = _turned(bench, i, rows, positions), rows.shape[1] - i["table"].shape[1]
    named = dict(prefix=prefix, group=64, clamp_only=i["clamp_only"])
    return bench.run("act_quant_fp8_inplace", x=turned, **named)["x"]


def _rows_trials(kind: str) -> tuple[Trial, ...]:
    C = 20 if kind == "blocks" else 4
    return (
        *(Trial(f"T={t}", _rows(kind, t, 517, 578, 2, 2 * C - 1, C)) for t in (1, 3, 8)),
        Trial("no block", _rows(kind, 1, 517, 578, 2, 2 * C, C)),
        Trial("first block", _rows(kind, 8, 37, 72, 8, 0, C)),
        Trial("clamped", _rows(kind, 3, 37, 72, 8, 3 * C - 2, C, clamp=1)),
        Trial("tiny model", _rows(kind, 4, 128, 256, 64, 3 * C - 2, C, keys=128)),
        Trial("model", _rows(kind, 8, 1024, 512, 64, 1275, 128 if C > 4 else 4, keys=128)),
    )


def _finish(kind: str) -> Twin:
    kernel = f"finish_{kind}"
    single = ["rms_norm_f32", "cast_bf16", "rope", "act_quant_fp8_inplace", "movement_scatter"]
    single += ["compressor_pool_at"] if kind != "window" else []
    if kind == "indexed":
        single += ["hadamard", "act_quant_fp4_inplace", "movement_scatter_bf16"]
    return Twin(
        name=f"{kernel}_in_parts",
        left=kernel,
        right=", ".join(single),
        kernels=(kernel, *single),
        trials=_rows_trials(kind),
        run_left=_at_once(kernel),
        run_right=_chain,
    )


_KINDS = ("window", "blocks", "indexed")
TWINS = (*(_project(kind) for kind in _KINDS), *(_finish(kind) for kind in _KINDS))
