"""Sink attention: queries alone, padded lists, chunks joined, rows kept in other places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.cases.attention import HEAD_SCALE
from lab.twins import Inputs, Side, Trial, Twin
from lab.twins.bench import Bench, Outputs
from lab.twins.contents import Rng, f32
from lab.twins.rows import rows_alone

Make = Callable[[Rng], dict[str, Any]]

_KERNELS = {"": "attention_sink", "_f32": "attention_sink_f32"}


def _lists(
    T: int,
    H: int,
    K: int,
    N: int,
    S: int,
    *,
    lengths: tuple[int, ...] = (),
    front: int = 0,
    holes: float = 0.0,
    scale: float = HEAD_SCALE,
    lowered: float = 0.0,
    special: float = 0.0,
) -> Make:
    """Queries over random rows; absent entries in front, between, and after each one's length.

    lowered: what the logits of every third row lose, down to minus infinity. special: share of NaN
    and infinities in queries and rows.
    """

    def make(rng: Rng) -> dict[str, Any]:
        ids = rng.integers(0, N, (T, S)).astype(np.int32)
        ids[rng.random((T, S)) < holes] = -1
        ids[:, :front] = -1
        for t in range(T):
            ids[t, (lengths[t % len(lengths)] if lengths else S) :] = rng.choice([-1, N, -(2**31)])
        q, kv = f32(rng, (T, H, K)), f32(rng, (N, K))
        if lowered:
            q[..., 0], kv[:, 0] = 1e19, 0.0
            kv[::3, 0] = -lowered / scale / 1e19
        for content in (q, kv):
            spots = rng.random(content.shape) < special
            content[spots] = rng.choice([np.nan, np.inf, -np.inf], int(spots.sum()))
        return dict(q=q, kv=kv, ids=ids, sink=f32(rng, (H,)), scale=scale)

    return make


_TRIALS = (
    Trial("one row", _lists(1, 3, 8, 1, 1)),
    Trial("chunk and one", _lists(3, 9, 12, 90, 41)),
    Trial("front", _lists(2, 3, 8, 90, 200, front=97)),
    Trial("holes", _lists(3, 3, 8, 90, 130, holes=0.6)),
    Trial("unequal lengths", _lists(8, 5, 16, 200, 82, lengths=(0, 1, 40, 80, 81, 3, 39, 82))),
    Trial("all at once", _lists(4, 3, 8, 90, 170, front=3, holes=0.3, lengths=(9, 169, 44, 2))),
    Trial("underflowing weights", _lists(2, 3, 8, 70, 90, lowered=200.0)),
    Trial("weights of zero", _lists(2, 3, 8, 70, 90, holes=0.2, lowered=2000.0)),
    Trial("scores of minus infinity", _lists(2, 3, 8, 70, 90, lowered=3e38)),
    Trial("NaN and infinities", _lists(9, 5, 8, 90, 60, holes=0.5, special=0.01)),
    Trial("window", _lists(6, 8, 512, 160, 128, lengths=(123, 124, 125, 126, 127, 128))),
    Trial("fine", _lists(2, 64, 512, 1024, 640, lengths=(640, 601)), "full"),
    Trial("coarse", _lists(2, 8, 512, 4096, 1200, lengths=(1200, 1199)), "full"),
)


def _plainly(kernel: str) -> Side:
    return lambda bench, i: bench.run(kernel, **i)


def _compact(kernel: str) -> Side:
    """Every query alone, over a list of exactly the entries it has."""

    def run(bench: Bench, i: Inputs) -> Outputs:
        kv, found = bench.put(i["kv"]), []
        for t, ids in enumerate(i["ids"]):
            present = ids[(ids >= 0) & (ids < len(i["kv"]))]
            mine = present[None] if present.size else np.full((1, 1), -1, np.int32)
            queries = dict(q=i["q"][t : t + 1], ids=np.ascontiguousarray(mine))
            found.append(bench.run(kernel, kv=kv, **queries, sink=i["sink"], scale=i["scale"])["o"])
        return {"o": np.concatenate(found)}

    return run


def _in_chunks(suffix: str) -> Side:
    def run(bench: Bench, i: Inputs) -> Outputs:
        lists = {name: i[name] for name in ("q", "kv", "ids", "scale")}
        parts = bench.run(f"attention_sink_split{suffix}", **lists)
        return bench.run(f"attention_sink_join{suffix}", **parts, sink=i["sink"])

    return run


def _elsewhere(kernel: str) -> Side:
    """The same rows in the order of a ring that has gone round, with rows of NaN between."""

    def run(bench: Bench, i: Inputs) -> Outputs:
        N, K = i["kv"].shape
        slots = (np.arange(N) * 2 + 77) % (2 * N)
        kv = np.full((2 * N, K), np.nan, np.float32)
        kv[slots] = i["kv"]
        known = (i["ids"] >= 0) & (i["ids"] < N)
        ids = np.where(known, slots[np.where(known, i["ids"], 0)], -1).astype(np.int32)
        return bench.run(kernel, **{**i, "kv": kv, "ids": ids})

    return run


def _padded(kernel: str) -> Twin:
    return Twin(
        name=f"{kernel}_padding",
        left=f"{kernel}, padded lists of all queries",
        right=f"{kernel}, one query a launch, its own entries only",
        kernels=(kernel,),
        trials=_TRIALS,
        run_left=_plainly(kernel),
        run_right=_compact(kernel),
    )


def _joined(suffix: str) -> Twin:
    split, join = f"attention_sink_split{suffix}", f"attention_sink_join{suffix}"
    return Twin(
        name=f"{split}_and_join",
        left=f"{split}, {join} (decode)",
        right=f"{_KERNELS[suffix]} (prefill)",
        kernels=(split, join, _KERNELS[suffix]),
        trials=_TRIALS,
        run_left=_in_chunks(suffix),
        run_right=_plainly(_KERNELS[suffix]),
    )


def _placed(kernel: str) -> Twin:
    return Twin(
        name=f"{kernel}_row_places",
        left=f"{kernel}, rows in order (prefill)",
        right=f"{kernel}, the same rows in a ring (decode)",
        kernels=(kernel,),
        trials=_TRIALS,
        run_left=_plainly(kernel),
        run_right=_elsewhere(kernel),
    )


# ------------------------------------------------------------------ a step in one launch


def _rounds(T: int, H: int, K: int, N: int, S: int, R: int, **named: Any) -> Make:
    """As `_lists`, with queries before their norm and rows at neighbouring positions."""

    def make(rng: Rng) -> dict[str, Any]:
        positions = np.arange(T, dtype=np.int32) + 5
        positions[T // 2 :] += 1
        turns = rng.uniform(-np.pi, np.pi, (T + 5, R // 2))
        table = np.stack([np.cos(turns), np.sin(turns)], axis=2).reshape(T + 5, R)
        table[rng.random(table.shape) < named.get("special", 0.0)] = np.nan
        lists = _lists(T, H, K, N, S, **named)(rng)
        return dict(lists, table=table.astype(np.float32), positions=positions, eps=1e-6)

    return make


_STEPS = (
    *(Trial(f"T={t}", _rounds(t, 11, 20, 90, 130, 8, holes=0.4)) for t in (1, 3, 8)),
    *(
        Trial(name, _rounds(3, 3, 8, 90, 100, R, **named))
        for name, R, named in (
            ("all lanes turn", 8, {}),
            ("front", 4, {"front": 97}),
            ("unequal lengths", 4, {"lengths": (0, 41, 100)}),
            ("underflowing weights", 4, {"lowered": 200.0}),
            ("NaN and infinities", 4, {"holes": 0.5, "special": 0.01}),
        )
    ),
    Trial("many chunks", _rounds(2, 5, 8, 90, 1400, 4, lengths=(1400, 1290))),
    Trial("more blocks than run at once", _rounds(8, 64, 8, 90, 200, 4, lengths=(200, 150))),
    Trial("window", _rounds(6, 8, 512, 160, 128, 64, lengths=(123, 124, 125, 126, 127, 128))),
    Trial("model", _rounds(1, 64, 512, 700, 640, 64, lengths=(611,))),
    Trial("fine", _rounds(8, 64, 512, 1024, 640, 64, lengths=(640, 601)), "full"),
)


def _one_nan(bits: np.ndarray) -> np.ndarray:
    """bf16 with one NaN for all: which of two a CPU passes on is the compiler's choice."""
    return np.where((bits & 0x7FFF) > 0x7F80, np.uint16(0x7FC0), bits)


def _one_launch(bench: Bench, i: Inputs) -> Outputs:
    T, H, _ = i["q"].shape
    made = bench.run("attention_decode", **i, ticket=np.zeros((T, -(-H // 2), 2), np.int32))
    return {"o": _one_nan(made["o"]), "ticket": made["ticket"]}


def _six_launches(bench: Bench, i: Inputs) -> Outputs:
    place = dict(table=i["table"], positions=i["positions"])
    q = bench.run("rms_norm_head_f32", x=i["q"], eps=i["eps"])["x"]
    q = bench.run("rope", x=q, **place)["x"]
    lists = {name: i[name] for name in ("kv", "ids", "scale")}
    parts = bench.run("attention_sink_split_f32", q=q, **lists)
    o = bench.run("attention_sink_join_f32", **parts, sink=i["sink"])["o"]
    o = bench.run("rope", x=o, **place, inverse=1)["x"]
    T, H, _ = o.shape
    rounded = bench.run("cast_bf16", x=o.reshape(-1))["y"].reshape(o.shape)
    return {"o": _one_nan(rounded), "ticket": np.zeros((T, -(-H // 2), 2), np.int32)}


TWINS = (
    Twin(
        name="attention_decode_in_parts",
        left="attention_decode",
        right="rms_norm_head_f32, rope, split and join in f32, rope back, cast_bf16",
        kernels=(
            "attention_decode",
            "rms_norm_head_f32",
            "rope",
            "attention_sink_split_f32",
            "attention_sink_join_f32",
            "cast_bf16",
        ),  # fmt: skip
        trials=_STEPS,
        run_left=_one_launch,
        run_right=_six_launches,
    ),
    *(rows_alone(kernel, axis="T", trials=_TRIALS) for kernel in _KERNELS.values()),
    *(_padded(kernel) for kernel in _KERNELS.values()),
    *(_joined(suffix) for suffix in _KERNELS),
    *(_placed(kernel) for kernel in _KERNELS.values()),
)
