"""generate, step and place: what they print, their documents, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dsv4.errors import Refusal
from lab.cli.main import main
from lab.engine_steps import step_cost
from lab.generation import generate
from tests.engine.engines import tiny_engine, tokens
from tests.goldens import golden_folder

TINY = str(golden_folder("tiny-s"))


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(map(str, args)))
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_generated_tokens_are_the_argmax_of_each_step() -> None:
    engine, prompt, seen = tiny_engine(), tokens(9), []
    made = generate(engine, prompt.tolist(), 6, on_token=seen.append)
    state = engine.alloc_decode_state()
    row = engine.prefill_with_cache(prompt, state).logits
    for token in made.tokens:
        assert token == int(np.argmax(row))
        row = engine.decode_step(token, state)
    assert list(made.tokens) == seen and len(seen) == 6 and not made.stopped


def test_a_stop_token_ends_the_text_and_is_its_last() -> None:
    engine, prompt = tiny_engine(), tokens(9).tolist()
    free = generate(engine, prompt, 6)
    stopped = generate(engine, prompt, 6, stop={free.tokens[2]})
    assert (
        stopped.stopped and stopped.tokens == free.tokens[: free.tokens.index(free.tokens[2]) + 1]
    )


def test_generate_prints_tokens_and_its_speed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "generate", TINY, "--ids", "1,2,3", "-n", 5, "--backend", "host")
    assert code == 0 and len(out.split()) == 5 and "tokens/s" in err
    code, out, _ = run(
        capsys, "generate", TINY, "--ids", "1,2,3", "-n", 5, "--backend", "host", "--json"
    )
    document = json.loads(out)
    assert document["command"] == "generate" and len(document["tokens"]) == 5
    assert document["arms"]["decode_path"] == "device"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--ids", "1,x"), "no list of token ids"),
        ((), "--ids, --text or --text-file"),
        (("--ids", "1", "--text", "a"), "--ids, --text or --text-file"),
        (("--ids", "1,256"), "token 256"),
        (("--ids", "1", "-n", "100"), "61"),
        (("--ids", "1", "--arm", "dots_arm"), "NAME=VALUE"),
        (("--ids", "1", "--arm", "speed=high"), "speed"),
        (("--ids", "1", "--devices", "one"), "--devices"),
    ],
    ids=str,
)
def test_generate_refuses_with_what_to_do(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "generate", TINY, *words, "--backend", "host")
    assert code != 0 and says in err and not out


def test_step_tells_every_phase(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "step", TINY, "--path", "device,device-hostmath", "--backend", "host",
        "--repeats", 1, "--json",
    )  # fmt: skip
    device, hostmath = json.loads(out)["steps"]
    assert code == 0 and device["host_calls"] == 0 and hostmath["host_calls"] > 0
    phases = {p["phase"] for p in device["phases"]}
    assert {"streams", "queries", "keys", "attention", "output", "experts", "head"} <= phases
    assert sum(p["launches"] for p in device["phases"]) == device["launches"]


def test_a_step_costs_the_same_launches_at_every_position_of_its_bound() -> None:
    engine = tiny_engine()
    costs = [step_cost(engine, context=n, repeats=1) for n in (3, 8, 17)]
    assert len({(c.launches, c.size_bytes) for c in costs}) == 1


def test_the_cost_of_a_step_needs_bound_steps() -> None:
    with pytest.raises(Refusal, match="DSV4_DECODE_PATH=legacy"):
        step_cost(tiny_engine(decode_path="legacy"), context=4)


def test_place_needs_no_device_and_tells_one_that_is_too_small(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "place", TINY, "--devices", "0,1", "--split-at", "2", "--json")
    document = json.loads(out)
    assert code == 0 and document["split_at"] == [2]
    assert [s["layers"] for s in document["stages"]] == [[0, 2], [2, 4]]
    code, out, _ = run(capsys, "place", TINY, "--memory", 1)
    assert code == 1 and "device 0 is too small" in out


def test_replays_of_a_step_are_compared_byte_for_byte(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["step", TINY, "--backend", "host", "--repeats", 1, "--replays", 3]
    code, out, _ = run(capsys, *words, "--json")
    (told,) = json.loads(out)["replays"]
    assert code == 0 and (told["count"], told["different"], told["first"]) == (3, 0, None)
    code, out, _ = run(capsys, *words)
    assert code == 0 and "3 replays in" in out and "all left the same bytes" in out

    from dsv4.runtime.hostdevice import HostDevice

    honest, looks = HostDevice.to_numpy, []

    def bent(self: HostDevice, array: np.ndarray) -> np.ndarray:
        looks.append(array.shape)
        bent_now = array.ndim == 3 and sum(s == array.shape for s in looks) > 1
        return honest(self, array) + np.float32(bent_now)

    monkeypatch.setattr(HostDevice, "to_numpy", bent)
    engine = tiny_engine()
    from lab.engine_steps import replays

    found = replays(engine, context=9, count=3)
    assert (found.count, found.different, found.first) == (3, 2, 1)
