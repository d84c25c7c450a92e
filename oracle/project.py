"""All products of a layer's normed input at once; open coefficients beside them."""

import numpy as np

from oracle.blocks import Bytes
from oracle.bounded import Bounded
from oracle.formats import Floats, round_to
from oracle.hyper import hyper_split
from oracle.island_dots import island_dots
from oracle.linear_bf16 import linear_bf16
from oracle.linear_fp8 import linear_fp8
from oracle.movement import Ids, movement_scatter

Outputs = dict[str, np.ndarray | Bounded]


def project_window(
    x: Floats,
    q_codes: Bytes,
    q_scales: Floats,
    kv_codes: Bytes,
    kv_scales: Floats,
    mix: Floats,
    hyper_scale: Floats,
    hyper_base: Floats,
    *,
    eps: float,
    iterations: int,
    M: int,
) -> Outputs:
    """Latent and keys: x rounded to bf16 times the decoded weights; and what `hyper_split` makes.

    Shapes: x [T,D], codes [Q,D] and [K,D], scales by 128 x 128, mix [T,C] -> latent [T,Q],
    kv [T,K], post [T,M], comb [T,M,M].
    Rounds: x to bf16. Source: wq_a and wkv, the inputs of FP8 linears in bf16.
    """
    rounded = round_to(x, "bf16")
    mixing = hyper_split(mix, hyper_scale, hyper_base, eps=eps, iterations=iterations, M=M)
    return {
        "latent": linear_fp8(q_codes, q_scales, rounded),
        "kv": linear_fp8(kv_codes, kv_scales, rounded),
        "post": mixing["post"],
        "comb": mixing["comb"],
    }


def project_blocks(
    x: Floats,
    q_codes: Bytes,
    q_scales: Floats,
    kv_codes: Bytes,
    kv_scales: Floats,
    mix: Floats,
    hyper_scale: Floats,
    hyper_base: Floats,
    wkv: Floats,
    wgate: Floats,
    raw_rows: Ids,
    raw_kv: Floats,
    raw_score: Floats,
    *,
    eps: float,
    iterations: int,
    M: int,
) -> Outputs:
    """As `project_window`; and the compressor's raw rows, of unrounded x, into their rings.

    Shapes: wkv, wgate [K,D], raw_rows [T], rings [S,K].
    Source: compressor.wkv and compressor.wgate, float32 islands.
    """
    return {
        **project_window(
            x,
            q_codes,
            q_scales,
            kv_codes,
            kv_scales,
            mix,
            hyper_scale,
            hyper_base,
            eps=eps,
            iterations=iterations,
            M=M,
        ),
        "raw_kv": _placed(x, wkv, raw_rows, raw_kv),
        "raw_score": _placed(x, wgate, raw_rows, raw_score),
    }


def project_indexed(
    x: Floats,
    q_codes: Bytes,
    q_scales: Floats,
    kv_codes: Bytes,
    kv_scales: Floats,
    mix: Floats,
    hyper_scale: Floats,
    hyper_base: Floats,
    wkv: Floats,
    wgate: Floats,
    index_wkv: Floats,
    index_wgate: Floats,
    proj: Floats,
    raw_rows: Ids,
    raw_kv: Floats,
    raw_score: Floats,
    index_kv: Floats,
    index_score: Floats,
    *,
    eps: float,
    iterations: int,
    M: int,
) -> Outputs:
    """As `project_blocks` with overlapping rows; and the same of the indexer, and head weights.

    Shapes: wkv, wgate [2K,D], index_wkv, index_wgate [L,D], proj [H,D], rings [S,2K] and [S,L].
    Source: indexer.compressor, indexer.weights_proj; the latter takes bf16 inputs.
    """
    return {
        **project_window(
            x,
            q_codes,
            q_scales,
            kv_codes,
            kv_scales,
            mix,
            hyper_scale,
            hyper_base,
            eps=eps,
            iterations=iterations,
            M=M,
        ),
        "heads": linear_bf16(proj, round_to(x, "bf16")),
        "raw_kv": _placed(x, wkv, raw_rows, raw_kv),
        "raw_score": _placed(x, wgate, raw_rows, raw_score),
        "index_kv": _placed(x, index_wkv, raw_rows, index_kv),
        "index_score": _placed(x, index_wgate, raw_rows, index_score),
    }


def _placed(x: Floats, w: Floats, rows: Ids, ring: Floats) -> Bounded:
    """The ring with x w^T in these rows. Rows that stay have magnitude 0: they are exact."""
    made = island_dots(x, w)
    return Bounded(
        movement_scatter(made.value, rows, ring),
        movement_scatter(made.magnitude, rows, np.zeros_like(ring)),
    )
