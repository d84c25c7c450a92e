"""One-shot generation: a prompt in, at most so many tokens out."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from dsv4.speculation.draft_model import DraftModel
from dsv4.speculation.harvest import Harvest
from dsv4.speculation.refusals import refuse
from dsv4.speculation.rounds import (
    Run,
    Setup,
    as_ids,
    commit_round,
    make_setup,
    open_run,
    play_round,
)
from dsv4.speculation.sampling import Sampler, SpecSampling
from dsv4.speculation.stats import Round, SpecStats
from dsv4.speculation.switches import Switches
from dsv4.speculation.window import WindowPolicy, window_cap
from dsv4.targets.protocol import SpecTarget

_ROOM = 8
"""Positions beyond prompt, answer and block, as published engines allow."""
_DENSE_CAP = 8


@dataclass(frozen=True, slots=True)
class Generation:
    """What a run emitted, what it counted, and where its random streams stand."""

    tokens: tuple[int, ...]
    stats: SpecStats
    sctr: int
    uctr: int


def generate(
    target: SpecTarget,
    drafter: DraftModel,
    prompt: Sequence[int],
    max_new: int,
    *,
    eos: Container[int] = (),
    sampling: SpecSampling | None = None,
    switches: Switches | None = None,
    sampler: Sampler | None = None,
    policy: WindowPolicy | None = None,
) -> Generation:
    """At most max_new tokens after a prompt, an EOS included.

    Greedy tokens are those of the target alone; drawn ones have its distribution.
    Errors: DrafterRefusal before anything runs.
    """
    prompt, max_ctx = as_ids(prompt), _context(drafter, prompt, max_new)
    setup = make_setup(
        target,
        drafter,
        prompt,
        max_ctx,
        sampling=sampling,
        switches=switches,
        sampler=sampler,
        policy=policy,
    )
    return _loop(setup, prompt, max_new, eos)


def generate_dense(
    target: SpecTarget,
    drafter: DraftModel,
    prompt: Sequence[int],
    max_new: int,
    *,
    eos: Container[int] = (),
    switches: Switches | None = None,
    sampler: Sampler | None = None,
    tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> Generation:
    """As `generate`, greedy, always harvesting rows 1.. with a window of at most 8 rows.

    The scaling switch multiplies the block's embeddings by the root of their width here. tell:
    where the lines of the debugging switch go, one a round.
    """
    if drafter.config.is_dflash2:
        raise refuse("dense-dflash2", "the dense loop", "a DFlash2 drafter", "use generate")
    prompt, max_ctx = as_ids(prompt), _context(drafter, prompt, max_new)
    setup = make_setup(target, drafter, prompt, max_ctx, switches=switches, sampler=sampler)
    if drafter.config.block_size < 2:
        raise refuse("value", "block_size", str(drafter.config.block_size), "a block has a draft")
    scaled = setup.switches.scale_embedding
    setup = replace(
        setup,
        harvest=Harvest.DFLASH,
        policy=WindowPolicy(),
        cap=window_cap(setup.switches.verify_t, _DENSE_CAP, drafter.config.block_size),
        noise_scale=math.sqrt(drafter.config.hidden) if scaled else 1.0,
        tell=tell if setup.switches.debug else None,
    )
    return _loop(setup, prompt, max_new, eos)


def plain(
    target: SpecTarget, prompt: Sequence[int], max_new: int, *, eos: Container[int] = ()
) -> list[int]:
    """The target's own greedy tokens, one pass each."""
    cache = target.new_cache(len(prompt) + max_new + _ROOM)
    row, out = target.prime(as_ids(prompt), cache), list[int]()
    token = int(row.argmax())
    while len(out) < max_new:
        out.append(token)
        if token in eos or len(out) == max_new:
            break
        token = int(target.verify([token], cache.pos, cache).argmax[0])
    return out


def positions_needed(block_size: int, prompt: Sequence[int], max_new: int) -> int:
    """Positions of a run's caches: prompt, answer, a block, and some room."""
    return len(prompt) + max_new + block_size + _ROOM


def _context(drafter: DraftModel, prompt: Sequence[int], max_new: int) -> int:
    c = drafter.config
    if max_new < 0:
        raise refuse("value", "max_new", str(max_new), "ask for 0 tokens or more")
    needed = positions_needed(c.block_size, prompt, max_new)
    if c.context_limit is not None and needed > c.context_limit:
        raise refuse(
            "context-window",
            f"{len(prompt)} prompt tokens and {max_new} more",
            f"{needed} positions, the drafter's layers see {c.context_limit}",
            "ask for fewer tokens",
        )
    return needed


def _loop(setup: Setup, prompt: Sequence[int], max_new: int, eos: Container[int]) -> Generation:
    run, out = open_run(setup, prompt), list[int]()
    while len(out) < max_new:
        done = play_round(run)
        if emit(done, out, max_new, eos):
            break
        commit_round(run)
    run.stats.emitted = len(out)
    return _finished(run, out)


def emit(done: Round, out: list[int], limit: int | None, eos: Container[int]) -> bool:
    """Append the anchor and the accepted drafts; whether an EOS or the limit ended the run.

    The limit is tested before each token, so that it is never passed.
    """
    for token in (done.anchor, *done.drafts[: done.accepted]):
        if limit is not None and len(out) >= limit:
            return True
        out.append(token)
        if token in eos:
            return True
    return False


def _finished(run: Run, out: list[int]) -> Generation:
    return Generation(tuple(out), run.stats, run.counters.sctr, run.counters.uctr)
