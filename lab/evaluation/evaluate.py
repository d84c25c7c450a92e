"""One evaluation: a model on some texts, another beside it, and its drafter on the same texts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dsv4.engine.engine import Engine
from dsv4.engine.switches import resolve_arms
from dsv4.errors import Refusal
from lab.bench.engines import on_the_same_weights, share_weights
from lab.debug.subjects import open_model
from lab.engine_steps import open_engine
from lab.evaluation.calibration import Calibration, calibration
from lab.evaluation.drafting import Acceptance, acceptance, forced_rounds
from lab.evaluation.free import FreeRuns, free_runs
from lab.evaluation.scoring import (
    Agreement,
    Scored,
    Speaker,
    agreement,
    engine_speaker,
    oracle_speaker,
    score,
)
from lab.evaluation.texts import Text
from lab.evaluation.windows import Overlap
from lab.minted import is_minted

BY = ("prompt", "steps")
Switches = Mapping[str, str | None]


class Bar(Protocol):
    """Moves on by a number of steps."""

    def update(self, n_steps: int) -> None:
        """Move on."""


Progress = Callable[[str, int], AbstractContextManager[Bar]]
"""A bar with a label and a length."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where models run: backend, devices, and how rows of a text are computed."""

    backend: str
    devices: tuple[int, ...]
    by: str = "prompt"


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter on texts: without the confidence window, with it, and what its confidence means."""

    block: int
    tau: float
    whole: Acceptance
    windowed: Acceptance
    calibration: Calibration | None


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What an engine says about every text, its drafter on them, and what it writes behind prompts.

    arms, device: as it ran. written_against: the same prompts under other switches.
    """

    scored: tuple[Scored, ...]
    drafting: Drafting | None
    written: FreeRuns | None
    written_against: FreeRuns | None
    arms: Mapping[str, Any]
    device: Any


def evaluate(
    folder: Path,
    texts: Sequence[Text],
    overlap: Overlap,
    place: Place,
    switches: Switches,
    progress: Progress,
    *,
    rounds: int = 0,
    every: int = 16,
    prompts: int = 0,
    length: int = 64,
    stop: Collection[int] = (),
    rival: Switches | None = None,
) -> Evaluation:
    """An engine under these switches on the texts.

    rounds, prompts: of its drafter, if it has one and is on the device path. rival: switches under
    which prompts are written too, in turn, where they load the same weights.
    Errors: as `Engine.load`.
    """
    room = overlap.context
    engine = open_engine(folder, place.devices, place.backend, room, switches)
    scored = score_all(engine_speaker(engine, place.by), texts, overlap, progress)
    held = engine.dspark is not None or engine.mtp is not None
    drafts, drafting = held and engine.arms.decode_path.on_device, None
    written: list[FreeRuns] = []
    if rounds and drafts:
        drafting = _drafting(engine, texts, overlap.context, rounds, every, progress)
    if prompts and drafts:
        sides = [engine, *_rival_of(engine, rival)]
        with progress("write", prompts) as bar:
            written = free_runs(
                sides, texts, overlap.context, prompts=prompts, length=length, stop=stop,
                done=bar.update,
            )  # fmt: skip
    one, other = (*written, None, None)[:2]
    return Evaluation(scored, drafting, one, other, engine.arms.to_json(), engine.last.device)


def _rival_of(engine: Engine, rival: Switches | None) -> list[Engine]:
    if not rival:
        return []
    arms = resolve_arms(**rival)
    same = share_weights(engine.arms, arms) and arms.decode_path.on_device
    return [on_the_same_weights(engine, arms)] if same else []


def beside(
    folder: Path,
    texts: Sequence[Text],
    overlap: Overlap,
    place: Place,
    first: Sequence[Scored],
    progress: Progress,
    *,
    switches: Switches | None = None,
    law: str | None = None,
) -> Agreement:
    """Another engine, or the float64 model under a law, beside what an engine said before.

    Errors: Refusal for a law of weights that lie in no folder; as `Engine.load`.
    """
    # Two large models do not fit beside each other, so the first one is let go of before.
    gc.collect()
    if law is None:
        engine = open_engine(folder, place.devices, place.backend, overlap.context, switches or {})
        speaker = engine_speaker(engine, place.by)
    elif is_minted(folder):
        raise Refusal(
            f"the law {law} was asked for beside {folder}\n  its weights exist on a device only\n"
            "  in lab.evaluation\n  write them first: dsv4-lab mint OUT"
        )
    else:
        speaker = oracle_speaker(open_model(folder, law))
    return agreement(texts, first, score_all(speaker, texts, overlap, progress))


def score_all(
    speaker: Speaker, texts: Sequence[Text], overlap: Overlap, progress: Progress
) -> tuple[Scored, ...]:
    """What a speaker says about every text."""
    with progress("score", sum(len(t.tokens) - 1 for t in texts)) as bar:
        return tuple(score(speaker, t, overlap, bar.update) for t in texts)


def _drafting(
    engine: Engine,
    texts: Sequence[Text],
    context: int,
    rounds: int,
    every: int,
    progress: Progress,
) -> Drafting | None:
    with progress("draft", rounds) as bar:
        made = forced_rounds(engine, texts, context, every=every, most=rounds, done=bar.update)
    if not made:
        return None
    arms = engine.arms
    return Drafting(
        block=len(made[0].drafts),
        tau=arms.vt_tau,
        whole=acceptance(made),
        windowed=acceptance(made, (arms.vt_tau, arms.vt_floor)),
        calibration=calibration(made),
    )
