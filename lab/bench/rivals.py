"""One of our kernels and its rivals on the same work, checked, tuned, and sampled in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dsv4.errors import Dsv4Error
from dsv4.runtime.device import Device
from dsv4.spec import KernelSpec
from lab.bench.chosen import Work, plan, shape_of
from lab.bench.clocks import Clock, around
from lab.bench.combined import as_the_engine_runs_it
from lab.bench.kernels import Side, open_side
from lab.bench.measured import Measured, Pair, paired
from lab.bench.roofs import Roofs
from lab.bench.sampling import ROTATION_BYTES, Repeated, copies_for, turn_by_turn
from lab.cases import Case, inputs_of
from lab.oracles import reference
from lab.result import ERROR, FAIL, PASS
from lab.rivals import Candidate, Prepared, Rival, load_torch, missing, rivals, rivals_of

_TUNING_SAMPLES: Final = 3
_FEWEST_LAUNCHES: Final = 128


@dataclass(frozen=True, slots=True)
class RivalSide:
    """A rival on a case: what is wrong with it, or its fastest call, ready to be sampled."""

    rival: Rival
    words: str
    reason: str
    verdict: str
    size_bytes: int
    again: Repeated | None


def rival_plan(
    kernels: Sequence[str],
    *,
    patterns: Sequence[str] = (),
    names: Sequence[str] = (),
    on_host: bool = False,
) -> Work:
    """The kernels and cases that have rivals. Errors: Refusal without torch."""
    load_torch()
    known = {name for rival in rivals() for name in rival.kernels}
    chosen = plan(kernels, patterns=patterns, names=names, on_host=on_host)
    return [(spec, case) for spec, case in chosen if spec.name in known]


def bench_rivals(
    spec: KernelSpec,
    case: Case,
    device: Device,
    roofs: Roofs | None,
    *,
    seed: int = 0,
    samples: int = 15,
) -> tuple[list[Measured], list[Pair]]:
    """Our kernel first, then each rival; and a verdict on ours against each rival that passed."""
    whole = open_side(spec, case, device, {}, seed)
    ours, words = as_the_engine_runs_it(spec, case, device, seed, whole)
    others = [_open_rival(r, spec, case, device, seed) for r in rivals_of(spec.name)]
    every = [ours.again, *(side.again for side in others)]
    ready = [again for again in every if again is not None]
    taken, clock = around(device, lambda: turn_by_turn(ready, samples))
    timings = iter(taken)
    mine = replace(_ours(ours, roofs, clock, timings), more={"call": words} if words else {})
    found = [mine]
    for side in others:
        timing = next(timings) if side.again is not None else None
        found.append(
            Measured(
                facts=_facts(mine, side, case, seed),
                arm={},
                verdict=side.verdict,
                timing=timing,
                size_bytes=side.size_bytes,
                roof=roofs.read if roofs else None,
                clock=clock,
                launches=side.again.launches if side.again else 0,
                more={"rival": side.rival.name, "note": side.rival.note, "call": side.words},
            )
        )
    pairs = [
        replace(paired(other, mine), name=mine.name, rival=str(other.more["rival"]))
        for other in found[1:]
    ]
    return found, pairs


def _ours(side: Side, roofs: Roofs | None, clock: Clock, timings: Any) -> Measured:
    result = side.result
    if side.again is not None:
        result = replace(result, timing=next(timings), roof=roofs.read if roofs else None)
    return Measured.of_case(result, {}, clock, side.again)


def _facts(mine: Measured, side: RivalSide, case: Case, seed: int) -> dict[str, Any]:
    return {
        "kernel": f"rival: {side.rival.name}",
        "family": "rival",
        "case": f"{mine.facts['kernel']} {case.name}",
        "axes": dict(case.axes),
        **{k: mine.facts[k] for k in ("backend", "mode", "arch")},
        "seed": seed,
        "reasons": [side.reason] if side.reason else [],
        "outputs": [],
        "flops": 0,
    }


def _open_rival(rival: Rival, spec: KernelSpec, case: Case, device: Device, seed: int) -> RivalSide:
    """The rival checked against the oracle on what it takes, and its fastest call."""
    if package := missing(rival):
        return RivalSide(rival, "", f"{package} is not installed", ERROR, 0, None)
    torch = load_torch()
    place = f"cuda:{int(getattr(device, 'index', 0))}" if device.backend == "cuda" else "cpu"
    if place != "cpu" and not torch.cuda.is_available():
        return RivalSide(rival, "", "this torch sees no GPU", ERROR, 0, None)
    shape = shape_of(spec, case)
    try:
        seen = rival.sees(inputs_of(spec, case, seed), shape)
        wanted = reference(spec, seen, shape)[rival.output]
        candidates = rival.candidates(torch, place, seen, shape)
    except Dsv4Error as error:
        return RivalSide(rival, "", str(error), ERROR, 0, None)
    best: tuple[float, Candidate, Repeated, int] | None = None
    reasons: list[str] = []
    for candidate in candidates if place != "cpu" else candidates[:1]:
        try:
            prepared = candidate.make()
            prepared.run()
            got = prepared.output()
            if why := rival.wrong(got, wanted, seen, shape):
                reasons.append(f"{candidate.words}: {why}")
                continue
            again = _repeated(torch, place, candidate, prepared)
            spent = turn_by_turn([again], _TUNING_SAMPLES)[0].median_s
        except Exception as error:
            # Each library has errors of its own; what it refuses is its answer, told as such.
            reasons.append(f"{candidate.words}: {_one_line(error)}")
            continue
        if best is None or spent < best[0]:
            best = (spent, candidate, again, prepared.size_bytes)
    if best is None:
        why = reasons[0] if reasons else "no call of it fits this case"
        wrong = any("leave" in r or "picks" in r or "shape" in r for r in reasons)
        return RivalSide(rival, "", why, FAIL if wrong else ERROR, 0, None)
    return RivalSide(rival, best[1].words, "", PASS, best[3], best[2])


def _repeated(torch: Any, place: str, candidate: Candidate, first: Prepared) -> Repeated:
    """The rival's call as a graph of many launches on as many copies as ours rotates over."""
    backend = "host" if place == "cpu" else "cuda"
    count = copies_for(first.size_bytes, first.held_bytes, backend)
    copies = [first, *(candidate.make() for _ in range(count - 1))]
    if place == "cpu":
        return Repeated(first.run, 1, False, lambda: _wall_s(first.run))
    calls = [copy.run for copy in copies] * max(1, -(-_FEWEST_LAUNCHES // count))
    replay = _captured(torch, place, calls, copies)
    cold = first.size_bytes * count >= ROTATION_BYTES

    def sample() -> float:
        replay()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / len(calls)

    return Repeated(replay, len(calls), cold, sample)


def _captured(
    torch: Any, place: str, calls: Sequence[Callable[[], None]], copies: Sequence[Prepared]
) -> Callable[[], None]:
    """A replay of the calls as one CUDA graph. copies: kept alive with it."""
    with torch.cuda.device(place):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in calls[: len(copies)]:
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()

    def replay() -> None:
        assert copies, "their arrays are what the graph reads"
        graph.replay()

    return replay


def _wall_s(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
