"""The next-token block of the first release: one more layer, fed with the trunk's state.

Row i joins the trunk's state at position i with the embedding of the token at i + 1 and speaks
about the token at i + 2; it turns by position i.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from oracle.attention_block import attention
from oracle.block import Probe, collapse_exit, ignore, run_block
from oracle.cache import LayerCache, attention_step, new_layer_cache
from oracle.trunk import Model
from oracle.weights import Nextn


def new_nextn_cache(model: Model) -> LayerCache:
    """An empty ring for one sequence."""
    return new_layer_cache(model.config, 0, model.capacity, model.conditions.law.real)


def nextn_forward(
    model: Model, state: np.ndarray, following: npt.ArrayLike, probe: Probe = ignore
) -> np.ndarray:
    """The logits of every row, from the trunk's states and the tokens that follow them.

    Shapes: state [T,M,D] of positions 0.., following [T] -> [T,V].
    """
    a = _nextn(model).block.attention
    return _run(model, state, following, lambda x: attention(model.conditions, a, x), probe)


def nextn_step(
    model: Model,
    cache: LayerCache,
    state: np.ndarray,
    following: npt.ArrayLike,
    start: int,
    probe: Probe = ignore,
) -> np.ndarray:
    """The logits of the rows at positions start.., going on from the ring, which moves on.

    Errors: ValueError when the rows do not fit the model's capacity.
    """
    if start + len(state) > model.capacity:
        raise ValueError(
            f"rows {start}..{start + len(state) - 1} were asked for\n"
            f"  the cache holds {model.capacity} positions; build a larger model"
        )
    a = _nextn(model).block.attention

    def attend(x: np.ndarray) -> np.ndarray:
        return attention_step(model.conditions, a, x, cache, start)

    return _run(model, state, following, attend, probe)


def entry(model: Model, state: np.ndarray, following: npt.ArrayLike) -> np.ndarray:
    """The block's first state: the projected embedding added to every projected copy.

    Shapes: state [T,M,D], following [T] -> [T,M,D].  Every copy is normalised on its own.
    """
    cond, n = model.conditions, _nextn(model)
    embedded = model.weights.embed[np.asarray(following, np.int64)]
    token = cond.linear(cond.norm(embedded, n.enorm), n.e_proj)
    trunk = cond.linear(cond.norm(state.astype(cond.law.real), n.hnorm), n.h_proj)
    return cond.law.rounded(token[:, None, :] + trunk)


def _run(
    model: Model,
    state: np.ndarray,
    following: npt.ArrayLike,
    attend: Callable[[np.ndarray], np.ndarray],
    probe: Probe,
) -> np.ndarray:
    cond, n = model.conditions, _nextn(model)
    ids = np.asarray(following, np.int64)
    if ids.shape != (len(state),) or (ids < 0).any() or (ids >= model.config.vocab_size).any():
        raise ValueError(
            f"{ids.shape} following tokens were given for {len(state)} states\n"
            f"  give one of 0..{model.config.vocab_size - 1} for each"
        )
    x = run_block(cond, n.block, entry(model, state, ids), ids, attend, probe)
    probe("state", x)
    return cond.linear(cond.norm(collapse_exit(cond, n.exit, x), n.exit.norm), model.weights.head)


def _nextn(model: Model) -> Nextn:
    if model.weights.nextn is None:
        raise ValueError("this checkpoint holds no next-token block; use one with mtp.0.e_proj")
    return model.weights.nextn
