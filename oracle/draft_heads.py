"""What a drafter makes of its rows: token bias chains, confidence, candidates and their walk."""

from dataclasses import dataclass

import numpy as np

from oracle.draft_config import DraftConfig
from oracle.formats import Floats
from oracle.qwen3 import Tensors
from oracle.topk import top_k


@dataclass(frozen=True, slots=True)
class Chain:
    """A left-to-right proposal: tokens [N], logits with the bias [N,V], previous rows [N,R]."""

    tokens: np.ndarray
    logits: Floats
    previous: Floats | None


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk through candidates: tokens and columns [N], scores [N,K], and the candidates."""

    tokens: np.ndarray
    path: np.ndarray
    scores: Floats
    ids: np.ndarray
    values: Floats
    hidden: Floats


def scaled_logits(config: DraftConfig, logits: Floats) -> Floats:
    """Logits after the multiplier and the soft cap, where the configuration has them."""
    scaled = logits * config.multiplier
    return np.tanh(scaled / config.softcap) * config.softcap if config.softcap else scaled


def markov_chain(
    config: DraftConfig, w: Tensors, logits: Floats, rows: Floats, anchor: int
) -> Chain:
    """Each slot's token given the one before it; ties go to the lowest id."""
    if "markov_head.markov_w1.weight" not in w:
        return Chain(np.argmax(logits, axis=1), logits, None)
    biased, tokens, stash = logits.copy(), [], []
    state, previous = None, anchor
    for slot, h in enumerate(rows):
        bias, e, state = markov_step(config, w, previous, h, state)
        biased[slot] += bias
        previous = int(np.argmax(biased[slot]))
        tokens.append(previous)
        stash.append(e)
    return Chain(np.array(tokens), biased, np.array(stash))


def markov_step(
    config: DraftConfig, w: Tensors, previous: int, h: Floats, state: Floats | None
) -> tuple[Floats, Floats, Floats | None]:
    """The bias [V] of one slot, the table row of the token before it, and the state after it.

    state: of a recurrent bias, None before the first slot. Without a table the bias is 0.
    """
    if "markov_head.markov_w1.weight" not in w:
        return np.zeros(1), np.zeros(0), None
    e = w["markov_head.markov_w1.weight"][previous]
    inner, state = _bias_input(config.markov, w, e, h, np.zeros_like(e) if state is None else state)
    return w["markov_head.markov_w2.weight"] @ inner, e, state


def _bias_input(
    kind: str, w: Tensors, e: Floats, h: Floats, state: Floats
) -> tuple[Floats, Floats]:
    """What the second table multiplies, and the recurrent state for the next slot."""
    if kind == "vanilla":
        return e, state
    if kind == "gated":
        gate = w["markov_head.gate_proj.weight"] @ np.concatenate([h, e])
        return _sigmoid(gate + w["markov_head.gate_proj.bias"]) * e, state
    if kind == "rnn":
        joint = w["markov_head.joint_proj.weight"] @ np.concatenate([state, e, h])
        gate, candidate, out = np.split(joint + w["markov_head.joint_proj.bias"], 3)
        keep = _sigmoid(gate)
        return np.tanh(out), keep * state + (1.0 - keep) * np.tanh(candidate)
    raise ValueError(f"markov_head_type is {kind!r}; known are vanilla, gated, rnn")


def confidence(w: Tensors, rows: Floats, previous: Floats | None) -> Floats:
    """Raw scores: how surely each slot is accepted when those before it are. [N]."""
    weight = w["confidence_head.proj.weight"][0]
    inputs = rows
    if len(weight) > rows.shape[1]:
        if previous is None:
            raise ValueError("the confidence head wants rows of the token table, and there is none")
        inputs = np.concatenate([rows, previous], axis=1)
    return np.asarray(inputs @ weight + w["confidence_head.proj.bias"][0])


def select(config: DraftConfig, w: Tensors, logits: Floats, rows: Floats, anchor: int) -> Walk:
    """The greedy walk through the best candidates of each slot, first maximum on ties."""
    at = "candidate_selector."
    before, after = w[_book(w, "predecessor")], w[_book(w, "successor")]
    hidden = rows @ w[f"{at}hidden_projection.weight"].T
    ids = top_k(logits, config.candidates)
    values = np.take_along_axis(logits, ids, axis=1)
    scores, path, tokens, previous = np.empty_like(values), [], [], anchor
    for slot in range(len(rows)):
        scores[slot] = values[slot] + after[ids[slot]] @ (before[previous] * hidden[slot])
        path.append(int(np.argmax(scores[slot])))
        previous = int(ids[slot, path[-1]])
        tokens.append(previous)
    return Walk(np.array(tokens), np.array(path), scores, ids, values, hidden)


def _book(w: Tensors, name: str) -> str:
    bare = f"candidate_selector.{name}_codebook"
    return bare if bare in w else f"{bare}.weight"


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))
