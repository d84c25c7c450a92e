"""Compares a model of ours with the recorded outputs of another implementation.

Under SMOOTH everything is compared end to end, row by row. A law with quantisers is a staircase:
there every part is compared on its recorded input, where most rows come out the same byte for
byte, and end to end only the agreement is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dsv4.errors import Refusal
from lab.engine_run import engine_outputs, engine_pairs, load_for
from lab.oracle_run import Arrays, Pair, end_to_end, on_recorded_inputs
from lab.recorded import Recorded, read_recorded, refusing
from oracle.laws import LAWS
from oracle.trunk import build_model

SMOOTH_BOUND = 2e-5
"""Of a row's largest value: float32 noise of the recorded run reaches 2e-6."""
ENGINE_BOUND = 1e-4
"""Of a row's largest value; the engine stays below 2e-6 on every recorded folder."""
MEDIAN_ROW_BOUND = 1e-5
"""A row is the same or a flipped code off; with all rounding points in place most are the same."""
DIFFERING_BOUND = 0.4
"""The share of elements that flipped codes may touch; one misplaced rounding touches 0.85."""
FLIP_NOISE = 0.1
"""Of the largest logit: how far one flipped code spreads on a tiny random model."""
SUBJECTS = ("oracle", "engine")
AGAINST = ("recorded", "oracle")


@dataclass(frozen=True, slots=True)
class Check:
    """One figure held against its bound; None is a bound that is not set, which always passes.

    n: elements or rows. scale: the largest recorded value that max_abs is measured against, of
    the worst row. rel_max: the figure. row: where it is worst, if it is a row's.
    """

    name: str
    n: int
    max_abs: float
    scale: float
    rel_max: float
    bound: float | None
    row: int | None = None

    @property
    def passed(self) -> bool:
        """Whether the figure keeps to its bound; a figure that is NaN does not."""
        return self.bound is None or self.rel_max <= self.bound

    def to_json(self) -> dict[str, object]:
        """The check as the command's document has it."""
        return {
            "name": self.name,
            "n": self.n,
            "max_abs": self.max_abs,
            "scale": self.scale,
            "rel_max": self.rel_max,
            "bound": self.bound,
            "pass": self.passed,
        }


@dataclass(frozen=True, slots=True)
class LayerError:
    """Relative L2 errors of a layer: of its input, by itself on the recorded input, of its output.

    identical: the share of its elements that are the recorded number, on the recorded input.
    """

    layer: str
    inherited: float
    added: float
    after: float
    identical: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """Greedy choices compared; a disagreement counts when the recorded margin exceeds the noise."""

    compared: int = 0
    agree: int = 0
    disagree_above_margin: int = 0

    def plus(self, other: Tokens) -> Tokens:
        """Both counts together."""
        return Tokens(
            self.compared + other.compared,
            self.agree + other.agree,
            self.disagree_above_margin + other.disagree_above_margin,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one comparison: checks decide, the rest explains."""

    folder: Path
    subject: str
    law: str
    checks: tuple[Check, ...]
    told: tuple[Check, ...]
    layers: tuple[LayerError, ...]
    tokens: Tokens

    @property
    def broken(self) -> tuple[Check, ...]:
        """The checks that left their bound, in the order of the forward pass."""
        return tuple(c for c in self.checks if not c.passed)


def model_diff(
    folder: Path,
    *,
    subject: str = "oracle",
    law: str = "smooth",
    backend: str = "auto",
    switches: Mapping[str, str | None] | None = None,
) -> Report:
    """The comparison of a recorded folder with a subject under a law.

    backend, switches: where the engine runs, and arms beside those that the law asks for.
    Errors: Refusal when the folder, its configuration or its tensors cannot be used, it holds no
    outputs for the law, or the engine has no arms for it.
    """
    recorded = read_recorded(folder)
    prefix = "smooth." if law == "smooth" else ""
    if not any(name.startswith(f"{prefix}prefill.") for name in recorded.arrays):
        raise Refusal(
            f"{folder} was asked about the law {law}\n"
            f"  it holds no outputs named {prefix}prefill.*\n"
            "  record them with the reference, or choose another --law"
        )
    if subject == "engine":
        engine = load_for(recorded, law, backend=backend, **(switches or {}))
        got = engine_outputs(recorded, engine)
        pairs = list(engine_pairs(recorded, engine, prefix))
        return _report(recorded, law, subject, prefix, got, pairs)
    with refusing(folder):
        model = build_model(recorded.config, recorded.tensors, LAWS[law])
        got = end_to_end(recorded, model)
        pairs = list(on_recorded_inputs(recorded, model, prefix))
    return _report(recorded, law, subject, prefix, got, pairs)


def _report(
    recorded: Recorded, law: str, subject: str, prefix: str, got: Arrays, pairs: list[Pair]
) -> Report:
    want = {n: recorded.arrays[prefix + n] for n in got if prefix + n in recorded.arrays}
    for name, value in want.items():
        if value.shape != got[name].shape:
            raise Refusal(
                f"{recorded.folder}: {prefix}{name} is recorded as {list(value.shape)}\n"
                f"  this model gives {list(got[name].shape)}; the outputs are another model's"
            )
    bound = ENGINE_BOUND if subject == "engine" else SMOOTH_BOUND
    tokens = _tokens(got, want, bound if law == "smooth" else FLIP_NOISE)
    overall = [worst_row(prefix + p.name, p.got, p.want) for p in _comparable(got, want)]
    if law == "smooth":
        checks = [replace(c, bound=bound) for c in overall] + _token_checks(tokens)
        told: list[Check] = []
    else:
        rows = [p for p in pairs if p.want.ndim > 1 and len(p.want) > 1]
        found = [c for p in rows for c in row_checks(p)]
        # The engine keeps float32 streams, so only the float64 model can meet REF's bytes.
        judged = law == "ref" and subject == "oracle"
        checks = found if judged else []
        told = [] if judged else [replace(c, bound=None) for c in found]
        singles = [p for p in pairs if p.want.ndim == 1 or len(p.want) == 1]
        told += [worst_row(f"{p.name} (own input)", p.got, p.want) for p in singles]
        told += overall
    layers = _layer_errors(got, want, {p.name.removeprefix(prefix): p for p in pairs})
    return Report(recorded.folder, subject, law, tuple(checks), tuple(told), tuple(layers), tokens)


def worst_row(name: str, got: np.ndarray, want: np.ndarray) -> Check:
    """The row with the largest error relative to its own largest recorded value.

    A confidence has no scale of its own and is measured against the largest of all.
    """
    rows = (1, -1) if want.ndim == 1 else (len(want), -1)
    error = np.abs(got.astype(np.float64) - want).reshape(rows).max(axis=1, initial=0.0)
    scale = np.abs(want).reshape(rows).max(axis=1, initial=0.0)
    if name.endswith("confidence"):
        scale = np.full_like(scale, scale.max(initial=0.0))
    scale = np.where(scale > 0, scale, max(float(scale.max(initial=0.0)), np.finfo(float).tiny))
    relative = error / scale
    # argmax stops at the first NaN, so a NaN is the worst row wherever it stands.
    row = int(np.argmax(relative))
    return Check(
        name, want.size, float(error[row]), float(scale[row]), float(relative[row]), None, row
    )


def row_checks(pair: Pair) -> list[Check]:
    """Two figures of one part on its recorded input: the median row's error, and what differs."""
    got = pair.got.astype(np.float64).reshape(len(pair.want), -1)
    want = pair.want.reshape(len(pair.want), -1)
    error = float(np.abs(got - want).max())
    scale = float(np.abs(want).max())
    median = float(np.median(_relative_rows(got, want)))
    differing = float(np.mean(got != want))
    return [
        Check(f"{pair.name} median row", len(want), error, scale, median, MEDIAN_ROW_BOUND),
        Check(f"{pair.name} differing share", want.size, error, scale, differing, DIFFERING_BOUND),
    ]


def _relative_rows(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(want, axis=1)
    error = np.linalg.norm(got - want, axis=1)
    return np.asarray(error / np.where(norm > 0, norm, 1.0))


def _comparable(got: Arrays, want: Arrays) -> Iterator[Pair]:
    """Recorded outputs beside ours; drafts only as far as both sides drafted the same tokens."""
    valid = np.ones((1, 1), bool)
    if "spec.out_ids" in want:
        same = np.cumprod(got["spec.out_ids"] == want["spec.out_ids"], axis=1).astype(bool)
        valid = same[:, :-1]  # row i depends on the tokens up to its own
    for name, value in want.items():
        if name in ("spec.logits", "spec.confidence"):
            mask = valid.reshape(*valid.shape, *(1 for _ in value.shape[2:]))
            yield Pair(name, np.where(mask, got[name], value), value)
        elif name != "spec.out_ids":
            yield Pair(name, got[name], value)


def _tokens(got: Arrays, want: Arrays, noise: float) -> Tokens:
    total = Tokens()
    for name in ("prefill.logits", "decode.logits", "mtp.logits"):
        if name in want:
            rows = want[name].reshape(-1, want[name].shape[-1])
            chosen = np.argmax(got[name].reshape(rows.shape), axis=1)
            total = total.plus(_agreement(chosen, np.argmax(rows, axis=1), rows, noise))
    if "spec.out_ids" in want and "spec.logits" in want:
        theirs, ours = want["spec.out_ids"], got["spec.out_ids"]
        same = np.cumprod(ours[:, :-1] == theirs[:, :-1], axis=1).astype(bool)
        rows = want["spec.logits"][same]
        total = total.plus(_agreement(ours[:, 1:][same], theirs[:, 1:][same], rows, noise))
    return total


def _agreement(ours: np.ndarray, theirs: np.ndarray, rows: np.ndarray, noise: float) -> Tokens:
    if not len(rows):
        return Tokens()
    top = np.sort(rows, axis=1)[:, -2:]
    # Both of the two best logits may move by the noise.
    clear = top[:, 1] - top[:, 0] > 2 * noise * np.abs(rows).max(axis=1)
    differ = ours != theirs
    return Tokens(len(rows), int((~differ).sum()), int((differ & clear).sum()))


def _token_checks(tokens: Tokens) -> list[Check]:
    if not tokens.compared:
        return []
    wrong = tokens.disagree_above_margin
    share = wrong / tokens.compared
    return [Check("tokens above margin", tokens.compared, float(wrong), 1.0, share, 0.0)]


def _layer_errors(got: Arrays, want: Arrays, pairs: Mapping[str, Pair]) -> list[LayerError]:
    found: list[LayerError] = []
    inherited, number = 0.0, 0
    while (name := f"prefill.layer{number}") in want:
        after = _relative(got[name], want[name])
        if name in pairs:
            pair = pairs[name]
            added, identical = _relative(pair.got, pair.want), float(np.mean(pair.got == pair.want))
            found.append(LayerError(name, inherited, added, after, identical))
        inherited, number = after, number + 1
    return found


def _relative(got: np.ndarray, want: np.ndarray) -> float:
    scale = float(np.linalg.norm(want))
    return float(np.linalg.norm(got.astype(np.float64) - want)) / (scale or 1.0)
