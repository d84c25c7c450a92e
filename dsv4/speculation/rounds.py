"""One round of speculation: draft, verify, accept, commit. Loops and sessions are made of these."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv4.errors import StateError
from dsv4.runtime.sources import steady_sources
from dsv4.speculation.accept import accept_prefix, accept_sampled
from dsv4.speculation.admission import admit
from dsv4.speculation.draft_model import DraftModel
from dsv4.speculation.harvest import Harvest
from dsv4.speculation.refusals import refuse
from dsv4.speculation.sampling import Counters, HostSampler, Proposal, Sampler, SpecSampling
from dsv4.speculation.snapshots import SnapBatch
from dsv4.speculation.stats import Round, SpecStats
from dsv4.speculation.switches import Switches
from dsv4.speculation.window import WindowPolicy, ladder_step, window_cap
from dsv4.targets.protocol import SpecTarget, TapSink, VerifyOut

INGEST_ROWS = 256
"""Prompt rows go into the drafter's cache in chunks, which bounds memory and changes nothing."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What stays the same over a run. tell: is told of every round, in a line."""

    target: SpecTarget
    drafter: DraftModel
    sampler: Sampler
    switches: Switches
    sampling: SpecSampling | None
    harvest: Harvest
    policy: WindowPolicy
    cap: int
    max_ctx: int
    noise_scale: float = 1.0
    tell: Callable[[str], None] | None = None

    @property
    def n_drafts(self) -> int:
        """Drafts of a round."""
        return self.harvest.n_drafts(self.drafter.config.block_size)

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn."""
        return self.sampling is not None

    @property
    def defers(self) -> bool:
        """Whether one readback may serve chain and verify: nothing is needed in between."""
        greedy = not self.sampled and not self.drafter.config.is_dflash2
        wanted = self.switches.defer and not self.switches.host_embedding
        checkpointed = self.switches.ckpt or self.switches.gate
        return greedy and wanted and checkpointed and not self.policy.is_confidence


@dataclass(slots=True)
class Run:
    """A run between rounds. `last` is decided and not yet in the target's cache.

    dead: why the run cannot go on; a round that raised leaves caches half advanced.
    """

    setup: Setup
    cache: Any
    kv: Any
    last: int
    ctx_len: int
    vt: int
    counters: Counters
    stats: SpecStats
    batch: SnapBatch | None = None
    pending: Any = None
    dead: str = ""


@dataclass(frozen=True, slots=True)
class _Played:
    """What committing a round needs."""

    round: Round
    snap: Any
    out: VerifyOut
    taps: Any
    choices: Any = field(default=None)


@steady_sources()
def open_run(setup: Setup, prompt: Sequence[int]) -> Run:
    """A run after its prompt, with the first token decided. Errors: DrafterRefusal."""
    target, drafter = setup.target, setup.drafter
    cache, kv = target.new_cache(setup.max_ctx), drafter.new_kv(setup.max_ctx)
    counters = Counters()
    stats = SpecStats(synchronize=target.synchronize if setup.switches.stats else None)
    begin = time.perf_counter()
    with _tapped(setup, cache, len(prompt)) as taps:
        row = target.prime(list(prompt), cache)
    last = _boundary(setup, row, counters)
    for first in range(0, len(prompt), INGEST_ROWS):
        rows = taps[first : first + INGEST_ROWS]
        features = drafter.ctx_features(rows)
        drafter.ingest_ctx(kv, features, range(first, first + len(rows)))
    target.synchronize()
    stats.prime_s = time.perf_counter() - begin
    return Run(setup, cache, kv, last, len(prompt), setup.cap, counters, stats)


@steady_sources()
def play_round(run: Run) -> Round:
    """Draft, verify and accept; the round waits in the run until it is committed.

    Errors: StateError when the run is dead or a round is not committed yet.
    """
    if run.pending is not None:
        run.dead = run.dead or "its last round was never committed"
    _alive(run)
    try:
        return _play(run)
    except BaseException as error:
        run.dead = f"a round raised {type(error).__name__}: {str(error).splitlines()[:1]}"
        raise


@steady_sources()
def commit_round(run: Run) -> None:
    """Roll back what was not accepted, give the drafter its new context, move the window."""
    _alive(run)
    played: _Played = run.pending
    try:
        with run.stats.phase("rollback"):
            if played.round.keep < played.round.vt:
                _roll_back(run, played)
        _ingest(run, played)
    except BaseException as error:
        run.dead = f"a commit raised {type(error).__name__}: {str(error).splitlines()[:1]}"
        raise
    run.pending = None
    run.last = played.round.next_token
    if run.setup.policy.is_confidence:
        run.vt = played.round.vt
    elif run.setup.switches.adapt:
        run.vt = ladder_step(played.round.accepted, run.setup.cap)


def _alive(run: Run) -> None:
    if run.dead:
        raise StateError(
            f"a speculative run was asked for another round\n  it is dead: {run.dead}\n"
            "  start a new run from the tokens emitted so far"
        )


def _play(run: Run) -> Round:
    s, target, drafter = run.setup, run.setup.target, run.setup.drafter
    c, start = drafter.config, run.cache.pos
    if not start == run.kv.length == run.ctx_len:
        raise refuse(
            "internal",
            "a round",
            f"target at {start}, drafter at {run.kv.length}, context {run.ctx_len}",
            "this is a bug",
        )
    with run.stats.phase("draft"):
        noise = target.embed([run.last] + [c.mask_token_id] * (c.block_size - 1))
        noise = drafter.noise(noise, s.noise_scale)
        block = drafter.forward_round(run.kv, noise, range(start, start + c.block_size))
        rows = block[s.harvest.first_row : s.harvest.first_row + s.n_drafts]
        logits = drafter.scaled(target.head(rows))
        drafts, proposal, chain, stash = _propose(run, logits, rows)
        vt = run.vt
        if s.policy.is_confidence:
            vt = s.policy.size_window(drafter.raw_scores(rows, stash), s.cap)
        if drafts is None and not s.defers:
            drafts = [int(t) for t in drafter.to_host(chain)[1:]]
    with run.stats.phase("snapshot"):
        snap = _snapshot(run)
    ids: Any = chain[:vt] if drafts is None else [run.last, *drafts[: vt - 1]]
    with run.stats.phase("verify"):
        with _tapped(s, run.cache, vt) as taps:
            want = "logits" if s.sampled else "argmax"
            ckpt = s.switches.ckpt or s.switches.gate
            graph = s.switches.verify_graph
            out = target.verify(ids, start, run.cache, want=want, ckpt=ckpt, graph=graph)
        if drafts is None:
            drafts = [int(t) for t in drafter.to_host(chain)[1:]]
        choices = None
        if s.sampling is not None:
            assert proposal is not None, "_propose gave one"
            accepted, after = accept_sampled(
                out.logits, proposal, vt, s.sampling, run.counters, s.sampler
            )
        else:
            choices = [int(t) for t in drafter.to_host(out.argmax)]
            accepted = accept_prefix([run.last, *drafts], choices)
            after = choices[accepted]
    done = Round(start, run.last, tuple(drafts), vt, accepted, after)
    if s.tell is not None:
        s.tell(_told(done, drafter.to_host(noise[:2]), choices))
    run.stats.rounds.append(done)
    run.pending = _Played(done, snap, out, taps, choices)
    return done


def _told(done: Round, noise: np.ndarray, choices: Sequence[int] | None) -> str:
    norms = " ".join(f"{float(np.linalg.norm(row)):.6g}" for row in noise)
    return (
        f"round at {done.start}: noise norms {norms}, drafts {list(done.drafts)},"
        f" verified {list(choices or ())}, kept {done.keep}"
    )


def _propose(
    run: Run, logits: Any, rows: Any
) -> tuple[list[int] | None, Proposal | None, Any, Any]:
    """Drafts on the host (None while they are on the device), proposal, chain and stash."""
    s, drafter = run.setup, run.setup.drafter
    if s.sampling is not None:
        proposal, stash = drafter.propose_sampled(
            logits, rows, run.last, s.sampling, run.counters, s.sampler
        )
        if proposal is None:
            raise refuse("internal", "a sampled round", "no proposal", "this is a bug")
        return list(proposal.tokens), proposal, None, stash
    if drafter.config.is_dflash2:
        return drafter.propose_greedy(logits, rows, run.last), None, None, None
    wants = s.policy.is_confidence and drafter.wants_stash
    chain = drafter.chain_greedy(logits, rows, run.last, stash=wants)
    return None, None, chain.tokens, chain.stash


def _snapshot(run: Run) -> Any:
    s = run.setup
    if not s.switches.batch_states:
        return s.target.snapshot(run.cache)
    if run.batch is None:
        run.batch = SnapBatch.create(s.target, run.cache)
        return s.target.snapshot(run.cache) if run.batch is None else run.batch.snap
    return run.batch.refresh(run.cache)


def _roll_back(run: Run, played: _Played) -> None:
    s, target, keep = run.setup, run.setup.target, played.round.keep
    if s.switches.ckpt or s.switches.gate:
        target.commit_prefix(run.cache, played.snap, played.out.ckpt, keep)
        if not s.switches.gate:
            return
    committed = target.state_bytes(run.cache) if s.switches.gate else {}
    target.restore(run.cache, played.snap)
    if run.cache.pos != played.round.start:
        raise refuse(
            "internal",
            "a rollback",
            f"position {run.cache.pos}, the round began at {played.round.start}",
            "this is a bug",
        )
    kept = [played.round.anchor, *played.round.drafts[: keep - 1]]
    again = target.verify(kept, played.round.start, run.cache, want="argmax", ckpt=False)
    if played.choices is not None:
        found = [int(t) for t in s.drafter.to_host(again.argmax)]
        if found != played.choices[:keep]:
            raise refuse(
                "replay-differs",
                f"the replay of {keep} rows at {played.round.start}",
                f"{found}, verified {played.choices[:keep]}",
                "rows of this target depend on how many are verified",
            )
    if s.switches.gate:
        replayed = target.state_bytes(run.cache)
        differ = [name for name in replayed if replayed[name] != committed.get(name)]
        if differ or set(replayed) != set(committed):
            raise refuse(
                "gate-differs",
                f"the commit of {keep} rows at {played.round.start}",
                f"other bytes in {', '.join(differ[:3])}",
                "the checkpoint does not redo what the replay does",
            )


def _ingest(run: Run, played: _Played) -> None:
    keep, drafter = played.round.keep, run.setup.drafter
    with run.stats.phase("ingest"):
        features = drafter.ctx_features(played.taps[:keep])
        drafter.ingest_ctx(run.kv, features, range(run.ctx_len, run.ctx_len + keep))
    run.ctx_len += keep


@contextmanager
def _tapped(setup: Setup, cache: Any, rows: int) -> Iterator[Any]:
    """The tap buffer of one forward pass; the sink is disarmed afterwards, come what may."""
    c = setup.drafter.config
    buf = setup.target.tap_buffer(rows, len(c.target_layer_ids) * c.hidden)
    cache.tap_sink = TapSink(c.target_layer_ids, buf, c.hidden, rows)
    try:
        yield buf
    finally:
        cache.tap_sink = None


def _boundary(setup: Setup, row: Any, counters: Counters) -> int:
    """The first token after the prompt."""
    rows = row.reshape(1, -1)
    if setup.sampling is None:
        return setup.sampler.argmax(rows[0])
    stats = setup.sampler.stats(rows, setup.sampling)
    return setup.sampler.gumbel(rows, stats, setup.sampling, counters.events())


def make_setup(
    target: SpecTarget,
    drafter: DraftModel,
    prompt: Sequence[int],
    max_ctx: int,
    *,
    sampling: SpecSampling | None = None,
    switches: Switches | None = None,
    sampler: Sampler | None = None,
    policy: WindowPolicy | None = None,
) -> Setup:
    """A checked pair for one run; a temperature of 0 means greedy. Errors: DrafterRefusal."""
    switches = Switches() if switches is None else switches
    if sampling is not None:
        sampling = sampling.checked() if sampling.temp != 0 else None
    harvest, resolved = admit(target, drafter, prompt, switches, sampling)
    n_drafts = harvest.n_drafts(drafter.config.block_size)
    return Setup(
        target,
        drafter,
        HostSampler() if sampler is None else sampler,
        switches,
        sampling,
        harvest,
        resolved if policy is None else policy,
        window_cap(switches.verify_t, n_drafts + 1, n_drafts + 1),
        max_ctx,
    )


def as_ids(tokens: Sequence[int] | np.ndarray) -> list[int]:
    """Tokens as plain numbers."""
    return [int(t) for t in tokens]
