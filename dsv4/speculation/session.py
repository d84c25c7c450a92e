"""A run that is continued in bursts: the same stream, however it is cut."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from dsv4.errors import StateError
from dsv4.speculation.draft_model import DraftModel
from dsv4.speculation.loops import emit
from dsv4.speculation.refusals import refuse
from dsv4.speculation.rounds import Run, as_ids, commit_round, make_setup, open_run, play_round
from dsv4.speculation.sampling import Sampler, SpecSampling
from dsv4.speculation.switches import Switches
from dsv4.targets.protocol import SpecTarget

_ROOM = 8


@dataclass(slots=True)
class SpecSession:
    """A resumable run. done: an EOS was emitted or the context is full."""

    run: Run
    done: bool = False

    @property
    def pos(self) -> int:
        """Tokens in the target's cache."""
        return int(self.run.cache.pos)

    @property
    def finished(self) -> bool:
        """Whether it will emit nothing more."""
        return self.done or bool(self.run.dead)

    @property
    def cache_max_ctx(self) -> int:
        """Positions of the target's cache."""
        return self.run.setup.max_ctx

    @property
    def dead(self) -> str:
        """Why it cannot go on, empty while it can."""
        return self.run.dead


def new(
    target: SpecTarget,
    drafter: DraftModel,
    prompt: Sequence[int],
    ctx_cap: int,
    sampling: SpecSampling | None = None,
    *,
    switches: Switches | None = None,
    sampler: Sampler | None = None,
) -> SpecSession:
    """A session after its prompt. Errors: DrafterRefusal before anything runs."""
    c, prompt = drafter.config, as_ids(prompt)
    if sampling is not None and sampling.temp > 0 and sampling.penalises:
        raise refuse(
            "session-penalties", "a sampled session", "a penalty", "leave penalties neutral"
        )
    limit = c.context_limit
    max_ctx = ctx_cap if limit is None else min(ctx_cap, limit)
    if len(prompt) + c.block_size + _ROOM > max_ctx:
        raise refuse(
            "session-prompt",
            f"a session of {max_ctx} positions",
            f"{len(prompt)} prompt tokens, a block of {c.block_size} and {_ROOM} more",
            "shorten the prompt or widen the context",
        )
    setup = make_setup(
        target, drafter, prompt, max_ctx, sampling=sampling, switches=switches, sampler=sampler
    )
    return SpecSession(open_run(setup, prompt))


def burst(
    session: SpecSession, burst_target: int, eos: Container[int] = ()
) -> tuple[list[int], int, int]:
    """At least burst_target tokens where they exist, and drafted and accepted counts.

    The last round's whole run is emitted, so up to the drafts of a round more. A round that would
    not fit into the context is not begun, whatever its window.
    Errors: StateError when an earlier call raised.
    """
    if session.dead:
        raise StateError(
            f"a session was asked for {burst_target} more tokens\n  it is dead: {session.dead}\n"
            "  start a new session from the tokens emitted so far"
        )
    run, out = session.run, list[int]()
    drafted = accepted = 0
    while len(out) < burst_target and not session.done:
        if session.pos + run.setup.n_drafts + 1 > session.cache_max_ctx:
            session.done = True
            break
        done = play_round(run)
        drafted += done.vt - 1
        accepted += done.accepted
        if emit(done, out, None, eos):
            session.done = True
            break
        commit_round(run)
    run.stats.emitted += len(out)
    return out, drafted, accepted
