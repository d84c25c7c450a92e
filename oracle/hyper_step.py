"""Between two sub-blocks, before the first and behind the last: streams, coefficients, inputs."""

import numpy as np
import numpy.typing as npt

from oracle.act_quant import act_quant_fp8
from oracle.bounded import Bounded
from oracle.hyper import Outputs, entered, expand, left
from oracle.hyper_error import SUM_ROUNDINGS, bounded

Ids = npt.NDArray[np.int64]


def hyper_step(
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
    iterations: int,
) -> Outputs:
    """The new streams, and the next sub-block's coefficients and input, in three formats.

    Shapes: as `hyper_post_pre_norm`; wide and codes [T,D], scales [T,D/128], mix [T,C] (scaled).
    Rounds: y to bf16, and to FP8 codes per 128, as prescribed.
    Magnitude: first-order errors, see `oracle.hyper_error`.
    """
    streams = x.shape[1]
    state = expand(z, x, post, comb)
    error = (streams + 1) * expand(*map(np.abs, (z, x, post, comb)))
    made = entered(
        state, error, fn, scale, base, gain, mix_eps=mix_eps, eps=eps, norm_eps=norm_eps,
        iterations=iterations, roundings=SUM_ROUNDINGS,
    )  # fmt: skip
    return {"x_next": bounded(state, error), **_outputs(made, ticket)}


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
    """As `hyper_step`, with the scaled mixes where post and comb would be."""
    return hyper_step(
        z, x, post, comb, fn, scale, base, gain, ticket, mix_eps=mix_eps, eps=eps,
        norm_eps=norm_eps, iterations=1,
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
    iterations: int,
) -> Outputs:
    """Embeddings as every stream, and the first sub-block's coefficients and input.

    Shapes: table [V,D], tokens [T] -> x_next [T,M,D] and the outputs of `hyper_step`.
    A token that does not exist is a row of NaN.
    """
    there = (tokens >= 0) & (tokens < len(table))
    rows = np.where(there[:, None], table[np.where(there, tokens, 0)], np.nan)
    state = np.repeat(rows[:, None], M, axis=1)
    exact = np.zeros_like(state)
    made = entered(
        state, exact, fn, scale, base, gain, mix_eps=mix_eps, eps=eps, norm_eps=norm_eps,
        iterations=iterations, roundings=SUM_ROUNDINGS,
    )  # fmt: skip
    return {"x_next": Bounded(state, exact), **_outputs(made, ticket)}


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


def _outputs(made: dict[str, Bounded], ticket: np.ndarray) -> Outputs:
    """Under the kernels' names; codes as quotients, known as well as y over its scale."""
    y = made["y"]
    scales = act_quant_fp8(y.value, group=128)["scales"]
    wide = np.asarray(scales).repeat(128, axis=1)
    return {
        "post_next": made["post"],
        "comb_next": made["comb"],
        "mix": made["mix"],
        "y": y,
        "wide": y,
        "codes": Bounded(y.value / wide, y.magnitude / wide),
        "scales": np.asarray(scales),
        "partial": made["partial"],
        "ticket": np.zeros_like(ticket),
    }
