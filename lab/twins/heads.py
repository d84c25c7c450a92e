"""The head and the drafter's exit: rows alone, one pass against two, fusions against chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.cases.fills import wide
from lab.twins import Inputs, Side, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, bf16, f32
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]


def _plainly(kernel: str) -> Side:
    return lambda bench, i: bench.run(kernel, **i)


# ------------------------------------------------------------------ the head


def _head(T: int, V: int, D: int, *, tied: bool = False, nan: float = 0.0) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        w = bf16(rng, (V, D))
        if tied:
            w = w[rng.integers(0, 3, V)]
        w[rng.random(V) < nan] = 0x7FC0
        return dict(x=f32(rng, (T, D)), w=np.ascontiguousarray(w))

    return make


_HEAD_ROWS = (
    *(Trial(f"T={t}", _head(t, 37, 1032)) for t in range(1, 9)),
    Trial("more than eight rows", _head(19, 67, 264)),
    Trial("hidden", _head(6, 1000, 4096)),
    Trial("shard of the vocabulary", _head(8, 16160, 4096), "full"),
)
_GREEDY = (
    *(Trial(f"T={t}", _head(t, 515, 1032)) for t in range(1, 9)),
    Trial("more than eight rows", _head(19, 131, 264)),
    Trial("one token", _head(3, 1, 8)),
    Trial("ties", _head(8, 1027, 264, tied=True)),
    Trial("NaN rows", _head(5, 515, 264, nan=0.5)),
    Trial("nothing but NaN", _head(2, 131, 64, nan=1.0)),
    Trial("hidden", _head(2, 1000, 4096)),
    Trial("shard of the vocabulary", _head(8, 16160, 4096), "full"),
)
_AS_DOTS = (
    Trial("tall", _head(3, 4099, 264)),
    Trial("taller", _head(8, 8195, 1032)),
    Trial("shard of the vocabulary", _head(2, 16160, 4096), "full"),
)


def _one_pass(bench: Bench, i: Inputs) -> Outputs:
    zero = dict(keys=np.zeros(len(i["x"]), np.int64), ticket=np.zeros(1, np.int32))
    return bench.run("lm_head_argmax", **i, **zero)


def _logits_then_argmax(bench: Bench, i: Inputs) -> Outputs:
    logits = bench.run("lm_head_f32", **i)["y"]
    ids = bench.run("argmax", x=logits)["y"]
    return {
        "ids": ids,
        "logit": logits[np.arange(len(ids)), ids],
        "keys": np.zeros(len(ids), np.int64),
        "ticket": np.zeros(1, np.int32),
    }


def _head_as_dots(kernel: str, dots: str) -> Twin:
    return Twin(
        name=f"{kernel}_as_dots",
        left=kernel,
        right=f"{dots}, a tall weight",
        kernels=(kernel, dots),
        trials=_AS_DOTS,
        run_left=_plainly(kernel),
        run_right=_plainly(dots),
    )


# ------------------------------------------------------------------ the drafter's exit


def _drafted(T: int, V: int, R: int, *, extreme: bool = False) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        ids = rng.integers(0, V, T)
        ids[0] = V - 1
        return dict(
            w1=bf16(rng, (V, R)),
            w2=bf16(rng, (V, R), wide(-30, 30)) if extreme else bf16(rng, (V, R)),
            ids=ids.astype(np.int32),
            logits=f32(rng, (T, V), wide(-20, 20)),
        )

    return make


_MARKOV_ROWS = (
    *(Trial(f"T={t}", _drafted(t, 133, 264)) for t in range(1, 9)),
    Trial("more than eight rows", _drafted(19, 67, 32)),
    Trial("wide range", _drafted(5, 515, 256, extreme=True)),
    Trial("draft", _drafted(5, 129280, 256), "full"),
)
# Tall enough for island_dots to keep a row in one part, as the bias always does.
_MARKOV_CHAIN = (
    Trial("tall", _drafted(3, 4099, 256)),
    Trial("several steps", _drafted(2, 8195, 1032)),
    Trial("wide range", _drafted(8, 4096, 256, extreme=True)),
    Trial("draft", _drafted(1, 129280, 256), "full"),
)


def _row_products_sum(kernel: str) -> Side:
    def run(bench: Bench, i: Inputs) -> Outputs:
        x = bench.run("movement_embed", table=i["w1"], ids=i["ids"])["y"]
        bias = bench.run(kernel, x=x, w=i["w2"])["y"]
        total = bench.run("movement_add", x=bias.reshape(-1), y=i["logits"].reshape(-1))["y"]
        return {"logits": total.reshape(bias.shape)}

    return run


def _markov_chain(kernel: str, dots: str) -> Twin:
    return Twin(
        name=f"{kernel}_as_chain",
        left=kernel,
        right=f"movement_embed, {dots}, movement_add",
        kernels=(kernel, dots, "movement_embed", "movement_add"),
        trials=_MARKOV_CHAIN,
        run_left=_plainly(kernel),
        run_right=_row_products_sum(dots),
    )


def _confident(T: int, D: int, R: int, V: int = 67) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        return dict(
            x=f32(rng, (T, D)),
            w1=bf16(rng, (V, R)),
            ids=rng.integers(0, V, T).astype(np.int32),
            proj=bf16(rng, (D + R,)),
        )

    return make


_CONFIDENT = (
    Trial("draft", _confident(5, 4096, 256)),
    Trial("steps of both", _confident(3, 200, 104)),
    Trial("one row", _confident(1, 1032, 72)),
    Trial("more parts than lanes", _confident(2, 16384, 264)),
)


def _on_the_concatenation(bench: Bench, i: Inputs) -> Outputs:
    row = bench.run("movement_embed", table=i["w1"], ids=i["ids"])["y"]
    both = np.concatenate([i["x"], row], axis=1)
    return {"y": bench.run("island_dots_bf16", x=both, w=i["proj"][None])["y"][:, 0].copy()}


def _rows_of_logits(T: int, V: int, *, few: bool = False) -> Make:
    def make(rng: Rng) -> dict[str, Any]:
        logits = rng.integers(-3, 3, (T, V)).astype(np.float32) if few else f32(rng, (T, V))
        return dict(x=logits)

    return make


_LOGITS = (
    Trial("verify", _rows_of_logits(6, 16160)),
    Trial("ties", _rows_of_logits(9, 1027, few=True)),
    Trial("odd width", _rows_of_logits(8, 4099)),
)


TWINS = (
    rows_alone("argmax", axis="T", trials=_LOGITS),
    rows_alone("lm_head", axis="T", trials=_HEAD_ROWS),
    rows_alone("lm_head_f32", axis="T", trials=_HEAD_ROWS),
    _head_as_dots("lm_head", "island_dots_bf16"),
    _head_as_dots("lm_head_f32", "island_dots_bf16_f32"),
    Twin(
        name="lm_head_argmax_as_two_passes",
        left="lm_head_argmax",
        right="lm_head_f32, then argmax",
        kernels=("lm_head_argmax", "lm_head_f32", "argmax"),
        trials=_GREEDY,
        run_left=_one_pass,
        run_right=_logits_then_argmax,
    ),
    rows_alone("markov_bias", axis="T", trials=_MARKOV_ROWS),
    rows_alone("markov_bias_f32", axis="T", trials=_MARKOV_ROWS),
    _markov_chain("markov_bias", "island_dots_bf16"),
    _markov_chain("markov_bias_f32", "island_dots_bf16_f32"),
    rows_alone("confidence", axis="T", trials=_CONFIDENT),
    Twin(
        name="confidence_as_one_product",
        left="confidence",
        right="island_dots_bf16 on the concatenation",
        kernels=("confidence", "island_dots_bf16", "movement_embed"),
        trials=_CONFIDENT,
        run_left=_plainly("confidence"),
        run_right=_on_the_concatenation,
    ),
)
