"""Speculative rounds: draft, verify, accept, under the wall clock of the host that drives them.

A round is more than launches of the device: the host reads what was accepted. So its time is the
host's, from the last token of one round to the last of the next.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dsv4.engine.engine import Engine
from dsv4.engine.speculate import SpecLoop, open_loop, play_round
from dsv4.errors import StateError
from lab.bench.clocks import Clock, around
from lab.bench.measured import Measured, Pair, pair_of
from lab.bench.steps import Arm, facts
from lab.generation import generate
from lab.measure.timing import Timing
from lab.scripted import ScriptedDrafter, with_probability
from lab.spec_run import SCRIPTED_BLOCK

HOW: Final = "wall clock of the host around whole rounds, the drafter's included"
# The first rounds bind and record what later ones replay.
_UNCOUNTED: Final = 2


@dataclass(slots=True)
class Played:
    """A speculative run of one arm, beside the plain tokens it must emit. times_s: of full rounds,
    each as long as a round is; the others are played and not counted.
    """

    engine: Engine
    loop: SpecLoop
    plain: tuple[int, ...]
    plain_step_s: float
    times_s: list[float] = field(default_factory=list)

    def play(self) -> None:
        """One more round, if one is left."""
        if self.loop.done:
            return
        begin = time.perf_counter()
        play_round(self.loop)
        self.engine.last.device.synchronize()
        spent = time.perf_counter() - begin
        rounds = self.loop.run.rounds
        if len(rounds) > _UNCOUNTED and rounds[-1].rows == self.loop.cap:
            self.times_s.append(spent)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong with the run."""
        if tuple(self.loop.run.tokens) != self.plain:
            return ("the run emitted other tokens than plain decoding",)
        return () if self.times_s else ("no full round was played; ask for more tokens",)


def bench_rounds(
    engines: Sequence[Engine],
    arms: Sequence[Arm],
    *,
    model: str,
    prompt: Sequence[int],
    count: int,
    depth: int | None = None,
    accept: float | None = None,
    seed: int = 0,
) -> tuple[list[Measured], Pair | None]:
    """The rounds of each engine, played in turns, and the verdict of the second of two.

    accept: drafts are read from the plain run, each right with this probability, instead of the
    model's own. Errors: StateError without a drafter, or for a prompt that does not fit.
    """
    played = [_open(e, prompt, count, depth, accept, seed) for e in engines]
    device = engines[0].last.device
    _, clock = around(device, lambda: _play_all(played))
    found = [
        _measured(side, arm, clock, model, len(prompt), accept, seed)
        for side, arm in zip(played, arms, strict=True)
    ]
    return found, pair_of(found)


def _open(
    engine: Engine,
    prompt: Sequence[int],
    count: int,
    depth: int | None,
    accept: float | None,
    seed: int,
) -> Played:
    if accept is None and engine.arms.drafter == "off" and engine.mtp is None:
        raise StateError(
            "rounds of a drafter were to be timed\n  none is loaded\n"
            f"  from {engine.source.where}\n  open a release with one, or give --accept"
        )
    plain = generate(engine, prompt, count)
    drafter, vstate = None, None
    if accept is not None:
        right = with_probability(accept, SCRIPTED_BLOCK, seed)
        drafter = ScriptedDrafter(engine, SCRIPTED_BLOCK, plain.tokens, len(prompt), right)
        vstate = engine.alloc_verify_state(SCRIPTED_BLOCK + 1)
    loop = open_loop(engine, prompt, count, drafter=drafter, vstate=vstate, depth_cap=depth)
    return Played(engine, loop, plain.tokens, plain.step_s)


def _play_all(played: Sequence[Played]) -> None:
    """Every round of every side, in turns."""
    while not all(p.loop.done for p in played):
        for side in played:
            side.play()


def _measured(
    side: Played,
    arm: Arm,
    clock: Clock,
    model: str,
    prompt: int,
    accept: float | None,
    seed: int,
) -> Measured:
    run = side.loop.run
    drafts = "own drafts" if accept is None else f"drafts right with {accept:g}"
    case = f"{model} prompt {prompt} rows {side.loop.cap}, {drafts}"
    digest = hashlib.sha256(str(run.tokens).encode()).hexdigest()
    # Without a full round there are no times, and that is one of the reasons.
    timing = None if side.reasons else Timing(tuple(side.times_s), cold=False)
    return Measured.of_engine(
        facts(side.engine, "round", case, seed, reasons=side.reasons, digest=digest),
        arm,
        timing,
        clock,
        size_bytes=0,
        roof=None,
        launches=1,
        more={
            "model": model,
            "timed_by": HOW,
            "rows": side.loop.cap,
            "rounds": len(run.rounds),
            "tokens_per_round": run.tokens_per_round,
            "acceptance": run.acceptance(),
            "accept_digest": run.accept_digest,
            "plain_step_s": side.plain_step_s,
            "tokens_per_s": run.tokens_per_round / timing.median_s if timing else None,
        },
    )
