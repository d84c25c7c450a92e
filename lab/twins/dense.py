"""Dense projections: FP8 weights against their exact bf16, many rows against one, slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsv4.errors import SpecError
from dsv4.spec import F32
from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, bf16, e4m3, powers_of_two, repeated_rows
from lab.twins.rows import rows_alone
from oracle.formats import decode, encode

Make = Callable[[Rng], dict[str, Any]]


# ------------------------------------------------------------------ FP8 weights are exact in bf16


def _fp8(
    N: int, K: int, M: int, *, low: int = -20, high: int = 3, gain: int = 0, repeated: bool = False
) -> Make:
    """Every finite code about equally often, a power of two from the range for every block.

    gain: exponent of a power of two on x.
    """

    def make(rng: Rng) -> dict[str, Any]:
        x = bf16(rng, (M, K))
        x = encode(np.ldexp(decode(x, "bf16"), gain), "bf16")
        return dict(
            codes=e4m3(rng, (N, K)),
            scales=powers_of_two(rng, (-(-N // 128), -(-K // 128)), low, high),
            x=repeated_rows(x) if repeated else x,
        )

    return make


def _every_code(rng: Rng) -> dict[str, Any]:
    """Row n is zero but for the finite code n, somewhere; the scales are 2^-20 to 2^3."""
    finite = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    codes = np.zeros((len(finite), 3072), np.uint8)
    codes[np.arange(len(finite)), rng.permutation(3072)[: len(finite)]] = finite
    scales = np.ldexp(1.0, np.arange(48).reshape(2, 24) % 24 - 20).astype(np.float32)
    return dict(codes=codes, scales=scales, x=bf16(rng, (8, 3072)))


_AS_BF16 = (
    Trial("every finite code", _every_code),
    *(Trial(f"M={m}", _fp8(257, 1040, m)) for m in range(1, 9)),
    Trial("K of 8208", _fp8(130, 8208, 2)),
    # x so large that products are normal numbers: below them the two sides round apart.
    Trial("subnormal weights", _fp8(129, 272, 3, low=-124, high=-115, gain=60)),
    Trial("wkv", _fp8(512, 4096, 1)),
    Trial("wq_a", _fp8(1024, 4096, 6), "full"),
    Trial("shared down", _fp8(4096, 2048, 1), "full"),
    Trial("wq_b", _fp8(32768, 1024, 8), "full"),
    Trial("wo_b", _fp8(4096, 8192, 5), "full"),
)


def _as_stored(bench: Bench, i: Inputs) -> Outputs:
    return bench.run("linear_fp8", **i)


def _dequantised(bench: Bench, i: Inputs) -> Outputs:
    exponents = (np.frexp(i["scales"])[1] + 126).astype(np.uint8)
    count = np.zeros(1, np.int32)
    plain = bench.run("dequant_fp8_block", codes=i["codes"], scales=exponents, inexact=count)
    if plain["inexact"][0]:
        raise SpecError(f"{plain['inexact'][0]} weights of this input are not exact in bf16")
    return bench.run("linear_bf16", w=plain["y"], x=i["x"])


# ------------------------------------------------------------------ many rows are single rows


def _bf16(N: int, K: int, M: int, *, repeated: bool = False) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        x = bf16(rng, (M, K))
        return dict(w=bf16(rng, (N, K)), x=repeated_rows(x) if repeated else x)

    return make


def _row_trials(make: Callable[..., Make]) -> tuple[Trial, ...]:
    return (
        *(Trial(f"M={m}", make(70, 1040, m)) for m in range(1, 9)),
        Trial("repeated rows", make(70, 528, 8, repeated=True)),
        Trial("smallest", make(3, 16, 5)),
        Trial("wkv", make(512, 4096, 6)),
        Trial("wq_b", make(32768, 1024, 8), "full"),
        Trial("wo_b", make(4096, 8192, 6), "full"),
    )


# ------------------------------------------------------------------ slices of wider rows


def _groups(N: int, K: int, groups: int, M: int) -> Make:
    """Weights of all groups one under the other, inputs of all groups side by side."""

    def make(rng: Rng) -> dict[str, Any]:
        total = groups * N
        wide = bf16(rng, (M, groups * K))
        return dict(_fp8(total, K, 1)(rng), w=bf16(rng, (total, K)), wide=wide, groups=groups)

    return make


_GROUPS = (
    Trial("two groups", _groups(128, 272, 2, 3)),
    Trial("eight groups, one row", _groups(128, 128, 8, 1)),
    Trial("eight groups, eight rows", _groups(128, 144, 8, 8)),
    Trial("wo_a", _groups(1024, 4096, 8, 6), "full"),
)


def _in_place(kernel: str, bench: Bench, i: Inputs) -> Outputs:
    """Each group reads its columns of the wide input and writes its columns of the wide output."""
    total, K = i["codes"].shape
    N, y = total // i["groups"], bench.fresh((len(i["wide"]), total), F32)
    wide, weights = bench.put(i["wide"]), _on_device(kernel, bench, i)
    for g in range(i["groups"]):
        x, out = wide[:, g * K : (g + 1) * K], y[:, g * N : (g + 1) * N]
        bench.run(kernel, **_group_of(weights, g * N, N), x=x, y=out)
    return {"y": bench.get(y)}


def _from_copies(kernel: str, bench: Bench, i: Inputs) -> Outputs:
    """Each group reads a contiguous copy and writes an output of its own."""
    total, K = i["codes"].shape
    N, weights, parts = total // i["groups"], _on_device(kernel, bench, i), []
    for g in range(i["groups"]):
        x = np.ascontiguousarray(i["wide"][:, g * K : (g + 1) * K])
        parts.append(bench.run(kernel, **_group_of(weights, g * N, N), x=x)["y"])
    return {"y": np.concatenate(parts, axis=1)}


def _grouped(kernel: str, bench: Bench, i: Inputs) -> Outputs:
    """All groups in one launch."""
    weights, rows = _on_device(kernel, bench, i), len(i["codes"]) // i["groups"]
    return bench.run(f"{kernel}_grouped", **weights, x=i["wide"], group=rows)


def _rounded_at_once(bench: Bench, i: Inputs) -> Outputs:
    weights, rows = _on_device("linear_fp8", bench, i), len(i["codes"]) // i["groups"]
    return bench.run("linear_fp8_grouped_bf16", **weights, x=i["wide"], group=rows)


def _then_rounded(bench: Bench, i: Inputs) -> Outputs:
    y = _grouped("linear_fp8", bench, i)["y"]
    return {"y": bench.run("cast_bf16", x=y.reshape(-1))["y"].reshape(y.shape)}


def _latent(M: int, N: int, K: int, H: int, D: int, R: int, *, nan: float = 0.0) -> Make:
    """Both matrices of a latent of M rows, at neighbouring positions of which one may be off."""

    def make(rng: Rng) -> dict[str, Any]:
        own, index = _fp8(N, K, M, low=-9, high=-4)(rng), _fp8(H * D, K, M, low=-9, high=-4)(rng)
        turns = rng.uniform(-np.pi, np.pi, (M + 3, R // 2))
        table = np.stack([np.cos(turns), np.sin(turns)], axis=2).reshape(M + 3, R)
        own["x"][rng.random(own["x"].shape) < nan] = 0x7FC0
        return dict(
            own,
            index_codes=index["codes"],
            index_scales=index["scales"],
            table=table.astype(np.float32),
            positions=(np.arange(M) + 4).astype(np.int32),
            scale=float(np.float32(D**-0.5)),
            H=H,
            D=D,
        )

    return make


_LATENTS = (
    *(Trial(f"M={m}", _latent(m, 352, 272, 3, 64, 16)) for m in (1, 3, 8)),
    Trial("rows beside no head", _latent(2, 2080, 16, 1, 32, 32)),
    Trial("NaN", _latent(8, 32, 272, 2, 64, 16, nan=0.001)),
    Trial("model's heads", _latent(2, 1056, 1024, 5, 128, 64)),
    Trial("model", _latent(8, 32768, 1024, 64, 128, 64), "full"),
)


def _both_at_once(bench: Bench, i: Inputs) -> Outputs:
    return bench.run("queries_fp8", **i)


def _one_by_one(bench: Bench, i: Inputs) -> Outputs:
    y = bench.run("linear_fp8", codes=i["codes"], scales=i["scales"], x=i["x"])["y"]
    heads = bench.run("linear_fp8", codes=i["index_codes"], scales=i["index_scales"], x=i["x"])["y"]
    place = dict(table=i["table"], positions=i["positions"])
    heads = bench.run("rope", x=heads.reshape(-1, i["H"], i["D"]), **place)["x"]
    heads = bench.run("hadamard", x=heads.reshape(-1, i["D"]), scale=i["scale"])["x"]
    heads = bench.run("act_quant_fp4_inplace", x=heads)["x"]
    heads = bench.run("cast_bf16", x=heads.reshape(-1))["y"]
    return {"y": y, "index_q": heads.reshape(-1, i["H"], i["D"])}


def _on_device(kernel: str, bench: Bench, i: Inputs) -> dict[str, Any]:
    names = ("codes", "scales") if kernel == "linear_fp8" else ("w",)
    return {name: bench.put(i[name]) for name in names}


def _group_of(weights: dict[str, Any], first: int, N: int) -> dict[str, Any]:
    """The rows of one group; its scales start at a whole block because its rows do."""
    blocks = slice(first // 128, -(-(first + N) // 128))
    return {n: w[blocks] if n == "scales" else w[first : first + N] for n, w in weights.items()}


def _slices(kernel: str) -> Twin:
    return Twin(
        name=f"{kernel}_slices",
        left=f"{kernel} on columns of wider rows",
        right=f"{kernel} on contiguous copies",
        kernels=(kernel,),
        trials=_GROUPS,
        run_left=lambda bench, i: _in_place(kernel, bench, i),
        run_right=lambda bench, i: _from_copies(kernel, bench, i),
    )


def _groups_at_once(kernel: str) -> Twin:
    return Twin(
        name=f"{kernel}_grouped_as_slices",
        left=f"{kernel}_grouped",
        right=f"{kernel} on contiguous copies",
        kernels=(f"{kernel}_grouped", kernel),
        trials=_GROUPS,
        run_left=lambda bench, i: _grouped(kernel, bench, i),
        run_right=lambda bench, i: _from_copies(kernel, bench, i),
    )


TWINS = (
    Twin(
        name="linear_fp8_as_bf16",
        left="linear_fp8",
        right="linear_bf16 on the exact dequant",
        kernels=("linear_fp8", "linear_bf16", "dequant_fp8_block"),
        trials=_AS_BF16,
        run_left=_as_stored,
        run_right=_dequantised,
    ),
    rows_alone("linear_bf16", axis="M", trials=_row_trials(_bf16)),
    rows_alone("linear_fp8", axis="M", trials=_row_trials(_fp8)),
    _slices("linear_bf16"),
    _slices("linear_fp8"),
    _groups_at_once("linear_bf16"),
    _groups_at_once("linear_fp8"),
    Twin(
        name="queries_fp8_in_parts",
        left="queries_fp8",
        right="linear_fp8 twice, rope, hadamard, act_quant_fp4_inplace, cast_bf16",
        kernels=(
            "queries_fp8",
            "linear_fp8",
            "rope",
            "hadamard",
            "act_quant_fp4_inplace",
            "cast_bf16",
        ),  # fmt: skip
        trials=_LATENTS,
        run_left=_both_at_once,
        run_right=_one_by_one,
    ),
    Twin(
        name="linear_fp8_grouped_bf16_in_parts",
        left="linear_fp8_grouped_bf16",
        right="linear_fp8_grouped, then cast_bf16",
        kernels=("linear_fp8_grouped_bf16", "linear_fp8_grouped", "cast_bf16"),
        trials=_GROUPS,
        run_left=_rounded_at_once,
        run_right=_then_rounded,
    ),
)
