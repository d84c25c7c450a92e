"""The trunk: the whole forward pass, stateless from all tokens, or step by step from a cache."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracle.attention_block import attention
from oracle.block import Probe, collapse_exit, copies, ignore, run_block
from oracle.cache import LayerCache, attention_step, new_layer_cache
from oracle.census import Stored
from oracle.conditions import Conditions, conditions
from oracle.config import ModelConfig
from oracle.decoding import decode_weights
from oracle.laws import Law
from oracle.weights import Block, Weights, in_precision


@dataclass(frozen=True, slots=True)
class Model:
    """A model under one law, for sequences of up to `capacity` tokens."""

    config: ModelConfig
    weights: Weights
    conditions: Conditions
    capacity: int


@dataclass(frozen=True, slots=True)
class Output:
    """What the trunk says about each row: logits [T,V], its last state [T,M,D], taps [T,n*D]."""

    logits: np.ndarray
    state: np.ndarray
    taps: np.ndarray


@dataclass(slots=True)
class TrunkCache:
    """The caches of one sequence, and how many of its tokens they have seen."""

    layers: tuple[LayerCache, ...]
    position: int = 0

    def blocks(self, layer: int) -> int:
        """How many compressed rows of a layer are complete."""
        compressed = self.layers[layer].compressed
        return self.position // compressed.ratio if compressed is not None else 0

    def reset(self) -> None:
        """Begin a new sequence."""
        self.position = 0
        for layer in self.layers:
            layer.reset()


def build_model(
    config: ModelConfig, tensors: Stored, law: Law, capacity: int | None = None
) -> Model:
    """The model of a checkpoint's tensors; capacity is max_position_embeddings if not given.

    Errors: TensorError or ConfigError (both ValueError) when they do not fit each other.
    """
    return under_law(config, decode_weights(config, tensors), law, capacity)


def under_law(
    config: ModelConfig, weights: Weights, law: Law, capacity: int | None = None
) -> Model:
    """The model of float64 weights under a law."""
    length = config.max_seq_len if capacity is None else capacity
    # Draft rows turn by positions past the last token's.
    cond = conditions(config, law, length + config.dspark_block_size + 1)
    return Model(config, in_precision(weights, law.real), cond, length)


def forward(model: Model, tokens: npt.ArrayLike, probe: Probe = ignore) -> Output:
    """The trunk's output at every position of a sequence, from its definition alone.

    Errors: ValueError for no tokens, tokens outside the vocabulary, or too many.
    """
    ids = _checked(model, tokens, 0)

    def attend(layer: int, x: np.ndarray) -> np.ndarray:
        return attention(model.conditions, model.weights.blocks[layer].attention, x)

    return _run(model, ids, attend, probe)


def step(model: Model, cache: TrunkCache, tokens: npt.ArrayLike, probe: Probe = ignore) -> Output:
    """The trunk's output at the next positions: one token, a prompt, or any piece of one.

    Errors: ValueError as `forward`, before the cache is touched.
    """
    ids = _checked(model, tokens, cache.position)

    def attend(layer: int, x: np.ndarray) -> np.ndarray:
        a = model.weights.blocks[layer].attention
        return attention_step(model.conditions, a, x, cache.layers[layer], cache.position)

    output = _run(model, ids, attend, probe)
    cache.position += len(ids)
    return output


def new_cache(model: Model) -> TrunkCache:
    """An empty cache for one sequence."""
    c, real = model.config, model.conditions.law.real
    return TrunkCache(
        tuple(
            new_layer_cache(c, ratio, model.capacity, real)
            for ratio in c.compress_ratios[: c.n_layers]
        )
    )


def run_layer(
    model: Model, layer: int, state: np.ndarray, tokens: npt.ArrayLike, probe: Probe = ignore
) -> np.ndarray:
    """The states after one layer from the states before it at positions 0...

    Shapes: state [T,M,D], tokens [T] -> [T,M,D].
    """
    block: Block = model.weights.blocks[layer]
    x = state.astype(model.conditions.law.real)
    return run_block(
        model.conditions,
        block,
        x,
        np.asarray(tokens, np.int64),
        lambda rows: attention(model.conditions, block.attention, rows),
        probe,
    )


def entry_state(model: Model, tokens: npt.ArrayLike) -> np.ndarray:
    """The state before layer 0: copies of the embeddings.  Shapes: [T] -> [T,M,D]."""
    return copies(model.weights.embed[np.asarray(tokens, np.int64)], model.config.hc_mult)


def tap(model: Model, state: np.ndarray) -> np.ndarray:
    """What the drafter sees of a state: the plain mean of its copies.  [T,M,D] -> [T,D]."""
    return model.conditions.law.rounded(state.mean(axis=1))


def trunk_logits(model: Model, state: np.ndarray) -> np.ndarray:
    """The logits of a last state; a float32 island.  Shapes: [T,M,D] -> [T,V]."""
    cond, weights = model.conditions, model.weights
    x = cond.norm(collapse_exit(cond, weights.exit, state), weights.exit.norm)
    return cond.linear(x, weights.head)


def _run(
    model: Model,
    ids: npt.NDArray[np.int64],
    attend: Callable[[int, np.ndarray], np.ndarray],
    probe: Probe,
) -> Output:
    state = entry_state(model, ids)
    taps = [np.zeros((len(ids), 0), state.dtype)]
    for number, block in enumerate(model.weights.blocks):

        def named(name: str, value: np.ndarray, number: int = number) -> None:
            probe(f"sub.{number}.{name}", value)

        def attention_of(x: np.ndarray, number: int = number) -> np.ndarray:
            return attend(number, x)

        state = run_block(model.conditions, block, state, ids, attention_of, named)
        probe(f"layer{number}", state)
        if number in model.config.dspark_target_layer_ids:
            taps.append(tap(model, state))
    return Output(trunk_logits(model, state), state, np.concatenate(taps, axis=1))


def _checked(model: Model, tokens: npt.ArrayLike, start: int) -> npt.NDArray[np.int64]:
    ids = np.asarray(tokens, np.int64)
    vocabulary, end = model.config.vocab_size, start + ids.size
    if ids.ndim != 1 or not ids.size:
        raise ValueError(f"tokens {ids.shape}: give a sequence of at least one token")
    if (ids < 0).any() or (ids >= vocabulary).any():
        raise ValueError(
            f"tokens {int(ids.min())}..{int(ids.max())} were given\n"
            f"  the vocabulary is 0..{vocabulary - 1}"
        )
    if end > model.capacity:
        raise ValueError(
            f"a sequence of {end} tokens was asked for ({ids.size} from position {start})\n"
            f"  the cache holds {model.capacity}\n  build the model with a larger capacity"
        )
    return ids
