"""The indexer: ordered selection against a stable sort, queries and keys in any groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lab.cases.fills import sprinkled, uniform
from lab.twins import Inputs, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, f32, upper_halves
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]

_LIMIT = 2**31 - 1


# ------------------------------------------------------------------ ordered selection


def _scores(
    N: int,
    S: int,
    *,
    T: int = 1,
    tied: float = 0.0,
    special: tuple[float, ...] = (),
    tail: int = 0,
    visible: tuple[int, ...] = (_LIMIT,),
    offset: int = 128,
) -> Make:
    """tied: share of one value. special: values sprinkled in. tail: scores of -inf at the end."""

    def make(rng: Rng) -> dict[str, Any]:
        score = f32(rng, (T, N), sprinkled(uniform(-9, 9), special, 0.3) if special else None)
        score[rng.random((T, N)) < tied] = 0.375
        score[:, N - tail :] = -np.inf
        counts = np.resize(np.array(visible), T).astype(np.int32)
        return dict(score=score, visible=counts, S=S, offset=offset)

    return make


_SELECTIONS = (
    Trial("one score", _scores(1, 1)),
    Trial("as many as there are", _scores(512, 512)),
    Trial("fewer than asked for", _scores(300, 512, T=3)),
    *(Trial(f"{share:.0%} tied", _scores(700, 512, T=3, tied=share)) for share in (0.5, 0.75, 1.0)),
    *(Trial(f"{n} scores for 64", _scores(n, 64, tied=0.3)) for n in (63, 65, 96, 127, 128, 129)),
    Trial("-inf tails", _scores(600, 512, T=2, tail=200)),
    Trial("nothing but -inf", _scores(600, 512, tail=600)),
    Trial("infinities and zeros", _scores(600, 300, T=4, special=(np.inf, -np.inf, 0.0, -0.0))),
    Trial("NaN", _scores(600, 512, T=4, special=(np.nan, -np.inf))),
    Trial("counts", _scores(600, 64, T=9, visible=(-1, 0, 1, 63, 64, 65, 128, 599, 600))),
    Trial("4096 scores", _scores(4096, 512, T=2)),
    Trial("4096 scores, tied", _scores(4096, 512, tied=0.9)),
    Trial("beyond 4096", _scores(9001, 1024, tied=0.5)),
    Trial("262144 scores", _scores(262144, 512, T=2, tied=0.2), "full"),
)


def _selected(bench: Bench, i: Inputs) -> Outputs:
    return bench.run("topk", **i)


def _sorted(bench: Bench, i: Inputs) -> Outputs:
    """A stable sort of the visible scores, the largest first; NumPy puts NaN at the end."""
    T, N = i["score"].shape
    ids, nans = np.full((T, i["S"]), -1, np.int32), np.zeros(T, np.int32)
    for t, count in enumerate(np.clip(i["visible"], 0, N)):
        scores = i["score"][t, :count]
        order = np.argsort(-scores, kind="stable")[: i["S"]]
        ids[t, : len(order)] = order + i["offset"]
        nans[t] = np.isnan(scores).sum()
    return {"ids": ids, "nans": nans}


# ------------------------------------------------------------------ scores


def _queries(T: int, H: int, K: int, N: int, *, opposed: bool = False) -> Make:
    """opposed: keys against which most products are negative, so that the clamp decides."""

    def make(rng: Rng) -> dict[str, Any]:
        q, keys = f32(rng, (T, H, K)), f32(rng, (N, K))
        return dict(
            q=np.abs(q) if opposed else q,
            keys=0.5 * keys - np.abs(keys) if opposed else keys,
            weights=f32(rng, (T, H)),
            visible=rng.integers(-1, N + 2, T).astype(np.int32),
            wscale=128.0**-0.5 * H**-0.5,
        )

    return make


def _cut(make: Make) -> Make:
    """The same queries and keys in bf16."""

    def made(rng: Rng) -> dict[str, Any]:
        found = make(rng)
        return {**found, **{name: upper_halves(found[name]) for name in ("q", "keys")}}

    return made


_COMMON = (
    Trial("many keys", _queries(8, 3, 8, 515)),
    Trial("negative products", _queries(4, 9, 64, 67, opposed=True)),
    Trial("verify", _queries(6, 64, 128, 70)),
    Trial("long", _queries(6, 64, 128, 2049), "full"),
)
_SCORES = {
    "indexer_score": (
        Trial("odd sizes", _queries(3, 5, 12, 17)),
        Trial("more heads than a tile", _queries(2, 65, 132, 33)),
        *_COMMON,
    ),
    "indexer_score_f32": (
        Trial("odd sizes", _cut(_queries(3, 5, 24, 17))),
        Trial("more heads than a tile", _cut(_queries(2, 65, 104, 33))),
        *(replace(trial, make=_cut(trial.make)) for trial in _COMMON),
    ),
}


def _all_keys(kernel: str) -> Callable[[Bench, Inputs], Outputs]:
    return lambda bench, i: bench.run(kernel, **i)


def _keys_in_groups(kernel: str) -> Callable[[Bench, Inputs], Outputs]:
    """A few keys a launch, one to eleven of them."""

    def run(bench: Bench, i: Inputs) -> Outputs:
        N, first, groups = len(i["keys"]), 0, []
        for width in np.resize([1, 11, 5, 8, 2], N):
            if first >= N:
                break
            keys = i["keys"][first : first + width]
            visible = (i["visible"] - first).astype(np.int32)
            groups.append(bench.run(kernel, **{**i, "keys": keys, "visible": visible})["score"])
            first += len(keys)
        return {"score": np.concatenate(groups, axis=1)}

    return run


def _grouped(kernel: str) -> Twin:
    return Twin(
        name=f"{kernel}_keys",
        left=f"{kernel}, all keys",
        right=f"{kernel}, a few keys a launch",
        kernels=(kernel,),
        trials=tuple(t for t in _SCORES[kernel] if t.level == "quick"),
        run_left=_all_keys(kernel),
        run_right=_keys_in_groups(kernel),
    )


# ------------------------------------------------------------------ scores and selection at once


def _quantised(T: int, H: int, K: int, N: int, S: int, *, off: float = 0.0, **named: Any) -> Make:
    """Queries and keys as FP4 leaves them, scales apart; off: share of keys with other numbers."""

    def make(rng: Rng) -> dict[str, Any]:
        queries = _queries(T, H, K, N, **named)(rng)
        for name in ("q", "keys"):
            rows = queries[name]
            powers = np.ldexp(1.0, rng.integers(-3, 1, (*rows.shape[:-1], -(-K // 32))))
            grid = rng.choice([0, 0.5, 1, 1.5, 2, 3, 4, 6], rows.shape) * np.sign(rows)
            quantised = (grid * powers.repeat(32, -1)[..., :K]).astype(np.float32)
            free = rng.random(rows.shape[:-1]) < (off if name == "keys" else 0.0)
            queries[name] = upper_halves(np.where(free[..., None], rows, quantised))
        return dict(queries, S=S, offset=77)

    return make


_CHOICES = (
    *(Trial(f"T={t}", _quantised(t, 37, 48, 300, 40)) for t in (1, 3, 8)),
    Trial("numbers off the grid", _quantised(3, 9, 64, 300, 64, off=0.05)),
    Trial("nothing on the grid", _quantised(2, 9, 64, 150, 64, off=1.0)),
    Trial("many keys", _quantised(2, 3, 16, 5000, 512)),
    Trial("negative products", _quantised(4, 9, 64, 167, 64, opposed=True)),
    Trial("model", _quantised(2, 64, 128, 700, 512)),
    Trial("long", _quantised(6, 64, 128, 20000, 512), "full"),
)


def _between(i: Inputs) -> dict[str, np.ndarray]:
    """What is zero between launches; rows of thousands of keys need so short a list."""
    T = len(i["q"])
    return dict(
        bins=np.zeros((T, 2048), np.int32),
        list=np.zeros((T, 1200), np.int64),
        tickets=np.zeros((T, 2), np.int32),
    )


def _at_once(bench: Bench, i: Inputs) -> Outputs:
    return bench.run("indexer_select", **i, **_between(i))


def _one_after_the_other(bench: Bench, i: Inputs) -> Outputs:
    queries = {name: i[name] for name in ("q", "keys", "weights", "visible", "wscale")}
    score = bench.run("indexer_score_f32", **queries)["score"]
    made = bench.run("topk", score=score, visible=i["visible"], S=i["S"], offset=i["offset"])
    return {"score": score, **made, **_between(i)}


TWINS = (
    Twin(
        name="indexer_select_in_parts",
        left="indexer_select",
        right="indexer_score_f32, then topk",
        kernels=("indexer_select", "indexer_score_f32", "topk"),
        trials=_CHOICES,
        run_left=_at_once,
        run_right=_one_after_the_other,
    ),
    Twin(
        name="topk_as_sort",
        left="topk",
        right="a stable sort on the host",
        kernels=("topk",),
        trials=_SELECTIONS,
        run_left=_selected,
        run_right=_sorted,
    ),
    rows_alone("topk", axis="T", trials=_SELECTIONS),
    *(rows_alone(kernel, axis="T", trials=trials) for kernel, trials in _SCORES.items()),
    *(_grouped(kernel) for kernel in _SCORES),
)
