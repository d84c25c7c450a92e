"""Between two sub-blocks, before the first and behind the last: streams, coefficients, inputs."""

import numpy as np
import numpy.typing as npt

from oracle.act_quant import act_quant_fp8
from oracle.bounded import Bounded
from oracle.hyper import Outputs, entered, expand, left
from oracle.hyper_error import SUM_ROUNDINGS, bounded

Ids = npt.NDArray[np.int64]


def hyper_step_open(
    z: np.ndarray,
    x: np.ndarray,
    post: np.ndarray,
    comb: np.ndarray,
    fn: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    gain: np.ndarray,
    ticket: np.ndarray,
    *,
    mix_eps: float,
    eps: float,
    norm_eps: float,
) -> Outputs:
    """The new streams, and the next sub-block's scaled mixes and input, in three formats.

    Shapes: as `hyper_post_pre_norm`; wide and codes [T,D], scales [T,D/128], mix [T,C] (scaled).
    Rounds: y to bf16, and to FP8 codes per 128, as prescribed.
    Magnitude: first-order errors, see `oracle.hyper_error`.
    """
    streams = x.shape[1]
    state = expand(z, x, post, comb)
    error = (streams + 1) * expand(*map(np.abs, (z, x, post, comb)))
    made = _entered(
        state, error, fn, scale, base, gain, ticket, mix_eps=mix_eps, eps=eps, norm_eps=norm_eps
    )
    return {"x_next": bounded(state, error), **made}


def hyper_step_streams(
    x: np.ndarray,
    fn: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    gain: np.ndarray,
    ticket: np.ndarray,
    *,
    mix_eps: float,
    eps: float,
    norm_eps: float,
) -> Outputs:
    """As `hyper_step_open`, of streams x [T,M,D] that are there."""
    return _entered(
        x, np.zeros_like(x), fn, scale, base, gain, ticket, mix_eps=mix_eps, eps=eps,
        norm_eps=norm_eps,
    )  # fmt: skip


def hyper_step_entry(
    table: np.ndarray,
    tokens: Ids,
    fn: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    gain: np.ndarray,
    ticket: np.ndarray,
    *,
    M: int,
    mix_eps: float,
    eps: float,
    norm_eps: float,
) -> Outputs:
    """Embeddings as every stream, and the first sub-block's scaled mixes and input.

    Shapes: table [V,D], tokens [T] -> x_next [T,M,D] and the outputs of `hyper_step_open`.
    A token that does not exist is a row of NaN.
    """
    there = (tokens >= 0) & (tokens < len(table))
    rows = np.where(there[:, None], table[np.where(there, tokens, 0)], np.nan)
    state = np.repeat(rows[:, None], M, axis=1)
    exact = np.zeros_like(state)
    made = _entered(
        state, exact, fn, scale, base, gain, ticket, mix_eps=mix_eps, eps=eps, norm_eps=norm_eps
    )
    return {"x_next": Bounded(state, exact), **made}


def hyper_step_exit(
    x: np.ndarray,
    fn: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    gain: np.ndarray,
    ticket: np.ndarray,
    *,
    mix_eps: float,
    eps: float,
    norm_eps: float,
) -> Outputs:
    """The streams collapsed for a head, and that over its root mean square.

    Shapes: x [T,M,D], fn [M,MD], scale [1], base [M], gain [D] -> collapsed, y [T,D].
    """
    made = left(
        x, fn, scale, base, gain, mix_eps=mix_eps, eps=eps, norm_eps=norm_eps,
        roundings=SUM_ROUNDINGS,
    )  # fmt: skip
    return {**made, "ticket": np.zeros_like(ticket)}


def _entered(
    state: np.ndarray,
    error: np.ndarray,
    fn: np.ndarray,
    scale: np.ndarray,
    base: np.ndarray,
    gain: np.ndarray,
    ticket: np.ndarray,
    *,
    mix_eps: float,
    eps: float,
    norm_eps: float,
) -> Outputs:
    """What a sub-block starts from; codes as quotients, known as well as y over its scale.

    Shapes: state and how far it may be off [T,M,D].
    """
    made = entered(
        state, error, fn, scale, base, gain, mix_eps=mix_eps, eps=eps, norm_eps=norm_eps,
        iterations=1, roundings=SUM_ROUNDINGS,
    )  # fmt: skip
    y = made["y"]
    scales = act_quant_fp8(y.value, group=128)["scales"]
    wide = np.asarray(scales).repeat(128, axis=1)
    return {
        "mix": made["mix"],
        "y": y,
        "wide": y,
        "codes": Bounded(y.value / wide, y.magnitude / wide),
        "scales": np.asarray(scales),
        "partial": made["partial"],
        "ticket": np.zeros_like(ticket),
    }
