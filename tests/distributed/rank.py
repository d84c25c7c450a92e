"""One process of a run, as tests start it: what it computes, as digests, or a step without an end.

`python -m tests.distributed.rank MODEL RANK WORLD HOST:PORT JOB SWITCH=VALUE...`
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.distributed.joining import Seat, join_stages
from dsv4.distributed.rendezvous import parse_address
from dsv4.engine.engine import Engine
from dsv4.engine.interleave import generate_together
from dsv4.engine.speculate import speculate
from dsv4.engine.switches import resolve_arms
from dsv4.speculation.sampling import SpecSampling
from lab.cli.exit_codes import code_for
from lab.generation import generate
from lab.minted import model_of

MAX_SEQ = 60
PEER_TIMEOUT_S = 120.0


def everything(engine: Engine) -> dict[str, Any]:
    """Prompt, steps, rounds, drafts and turns: digests of logits, tokens, and of the caches."""
    ids = np.random.default_rng(3).integers(0, 256, 24)
    state, vstate = engine.alloc_decode_state(), engine.alloc_verify_state(4)
    rows = [engine.prefill_with_cache(ids[:11], state).logits]
    rows += [engine.prefill_with_cache(ids[11:14], state).logits]
    rows += [engine.decode_step(int(token), state) for token in ids[14:17]]
    greedy = [engine.decode_step_greedy(int(token), state) for token in ids[17:19]]
    for kept in (2, 1):
        out = engine.verify_batch(ids[19:22], state, vstate, want_logits=True)
        assert out.logits is not None
        rows += [*out.logits, out.argmax.astype(np.float32)]
        engine.commit_verify(state, vstate, kept)
    rows.append(engine.decode_step(int(ids[23]), state))
    prompt, other = [int(t) for t in ids[:9]], [int(t) for t in ids[9:14]]
    run, drawing = speculate(engine, prompt, 7), SpecSampling(1.5, 11, 0, 1.0, 0.0)
    together = generate_together(engine, [prompt, other], 5)
    drafted = generate_together(engine, [prompt, other], 5, speculative=True)
    return {
        "rows": [_digest(row) for row in rows],
        "greedy": greedy,
        "speculated": run.tokens,
        "accepted": run.accept_digest,
        "drawn": generate(engine, prompt, 5, sampling=drawing).tokens,
        "drawn by rounds": speculate(engine, prompt, 5, sampling=drawing).tokens,
        "streams": together.tokens,
        "drafted": drafted.tokens,
        "caches": {name: _digest(array) for name, array in engine.cache_classes(state)},
    }


def steps_without_end(engine: Engine) -> None:
    """Step after step on one sequence; a line for each, so that a test knows where it is."""
    while True:
        state = engine.alloc_decode_state()
        engine.prefill_with_cache([1, 2, 3], state)
        for token in range(40):
            engine.decode_step_greedy(token, state)
            print("step", flush=True)


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, np.float32).tobytes()).hexdigest()[:16]


def main(words: list[str]) -> int:
    """The exit code of the process, as the command line has it."""
    model, rank, world, address, job, *given = words
    arms = resolve_arms({}, **dict(word.split("=", 1) for word in given))
    seat = Seat(
        int(rank), int(world), parse_address(address), peer_timeout_s=PEER_TIMEOUT_S,
        load_timeout_s=PEER_TIMEOUT_S,
    )  # fmt: skip
    try:
        with join_stages(
            model_of(model if ":" in model else Path(model)), seat, arms=arms, backend="host",
            max_seq=MAX_SEQ, request={"job": job},
        ) as engine:  # fmt: skip
            if job == "everything":
                print(json.dumps(everything(engine)))
            else:
                engine.decode_step_greedy(1, _warm(engine))
                engine.links.mesh.timeout_s = float(job)  # type: ignore[union-attr]
                steps_without_end(engine)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return int(code_for(error))
    return 0


def _warm(engine: Engine) -> Any:
    """A state after a prompt: what is built at first use is built, before times are short."""
    state = engine.alloc_decode_state()
    engine.prefill_with_cache([1, 2, 3], state)
    return state


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
