"""Speculative runs under the watch: identity with plain decoding, acceptance, and cost of rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsv4.engine.engine import Engine
from dsv4.engine.source import open_source
from dsv4.engine.speculate import SpecRun, speculate
from dsv4.speculation.sampling import SpecSampling
from lab.engine_steps import step_cost
from lab.generation import generate
from lab.minted import model_of
from lab.scripted import ScriptedDrafter, with_probability

SCRIPTED_BLOCK = 5


@dataclass(frozen=True, slots=True)
class DepthRun:
    """One run. first_difference: the place where it leaves the plain tokens; None for nowhere."""

    depth: int
    run: SpecRun
    first_difference: int | None

    @property
    def identity(self) -> bool:
        """Whether the tokens are those of plain decoding."""
        return self.first_difference is None


@dataclass(frozen=True, slots=True)
class RowsCost:
    """The median time of a verify of so many rows as the engine runs it, and over that of one."""

    rows: int
    time_s: float
    relative: float


@dataclass(frozen=True, slots=True)
class SpecReport:
    """The plain tokens, their time and their median step, a run for each depth, cost of rows."""

    plain: tuple[int, ...]
    plain_s: float
    plain_step_s: float
    runs: tuple[DepthRun, ...]
    costs: tuple[RowsCost, ...]

    @property
    def identity(self) -> bool:
        """Whether every run emitted the plain tokens."""
        return all(r.identity for r in self.runs)

    @property
    def fit(self) -> tuple[float, float] | None:
        """(intercept, slope) of cost(T)/cost(1) over T, by least squares."""
        if len(self.costs) < 2:
            return None
        slope, intercept = np.polyfit(
            [c.rows for c in self.costs], [c.relative for c in self.costs], 1
        )
        return float(intercept), float(slope)


def with_drafter(folder: Path | str, switches: Mapping[str, str | None]) -> dict[str, str | None]:
    """The switches, with the drafter that the checkpoint holds where they name none.

    Errors: Refusal for what cannot be opened.
    """
    lineage = open_source(model_of(folder)).census.layout.lineage
    held = {"dspark": "dspark", "nextn": "mtp"}.get(lineage)
    return {"drafter": held, **switches}


def spec_report(
    engine: Engine,
    prompt: Sequence[int],
    count: int,
    *,
    depths: Sequence[int] = (),
    accept: float | None = None,
    sampling: SpecSampling | None = None,
    stop: Collection[int] = (),
    costs: bool = True,
) -> SpecReport:
    """Runs of `count` tokens at each depth (the deepest when none is named) beside a plain one.

    accept: drafts are read from the plain run, each right with this probability, instead of the
    model's own. Errors: StateError without a drafter, or for a prompt that does not fit.
    """
    plain = generate(engine, prompt, count, stop=stop, sampling=sampling)
    block = SCRIPTED_BLOCK if accept is not None else engine.verify_tmax - 1
    found = []
    for depth in depths or (block + 1,):
        drafter, vstate = None, None
        if accept is not None:
            right = with_probability(accept, block)
            drafter = ScriptedDrafter(engine, block, plain.tokens, len(prompt), right)
            vstate = engine.alloc_verify_state(block + 1)
        run = speculate(
            engine, prompt, count, drafter=drafter, vstate=vstate, depth_cap=depth,
            sampling=sampling, stop=stop,
        )  # fmt: skip
        found.append(DepthRun(depth, run, first_difference(plain.tokens, run.tokens)))
    return SpecReport(
        plain.tokens, plain.decode_s, plain.step_s, tuple(found),
        tuple(cost_of_rows(engine, len(prompt), block + 1)) if costs else (),
    )  # fmt: skip


def cost_of_rows(engine: Engine, context: int, most: int) -> list[RowsCost]:
    """What rounds of 1.. rows cost behind a context, as far as they fit the engine."""
    times = []
    for rows in range(1, most + 1):
        if context + rows <= engine.max_seq:
            times.append(step_cost(engine, context=context, rows=rows, repeats=3).best_s)
    return [RowsCost(i + 1, t, t / times[0]) for i, t in enumerate(times)]


def first_difference(want: Sequence[int], got: Sequence[int]) -> int | None:
    """The first place where two runs differ, their lengths included."""
    for place, (a, b) in enumerate(zip(want, got, strict=False)):
        if a != b:
            return place
    return None if len(want) == len(got) else min(len(want), len(got))
