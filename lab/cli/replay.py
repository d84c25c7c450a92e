"""`dsv4-lab replay`: run a saved case again."""

from __future__ import annotations

import code
import pdb
import sys
from pathlib import Path
from typing import Any

import click

from dsv4 import registry
from dsv4.runtime.device import open_device
from lab.casefile import load_case
from lab.cases import array_shape, inputs_of, scalars_of
from lab.cli import exit_codes, result_text, settings, text
from lab.cli.exit_codes import ExitCode
from lab.oracles import reference
from lab.result import FAIL, PASS
from lab.run import RunOptions, run_case


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--backend",
    type=click.Choice(["auto", "host", "cuda"]),
    default=None,
    help="Where to run; the backend that saved it by default.",
)
@click.option(
    "--mode",
    type=click.Choice(["run", "shuffle", "check"]),
    default=None,
    help="Host mode; the mode that saved it by default.",
)
@click.option("--pdb", "debugger", is_flag=True, help="Open pdb with the arrays at hand.")
@click.option("--shell", is_flag=True, help="Open a Python prompt with the arrays at hand.")
def replay(file: Path, backend: str | None, mode: str | None, debugger: bool, shell: bool) -> None:
    """Run a saved case again and print the pytest line that runs its kernel's contract.

    Example: dsv4-lab replay .lab/failing/rms_norm-7c1e90aa.case
    """
    chosen = settings.current()
    saved = load_case(file)
    spec = registry.spec(saved.kernel)
    device = open_device(
        backend or saved.found["backend"],
        index=chosen.device,
        mode=mode or saved.found["mode"],
        seed=chosen.seed,
    )
    result = run_case(spec, saved.case, device, RunOptions(seed=saved.seed, time=False))
    then = saved.found["verdict"]
    text.say(result_text.block(result))
    text.say(f"  saved as {then}, now {result.verdict}")
    text.say(f"  pytest  python -m pytest 'tests/test_{spec.family}.py' -k '{spec.name}'")
    if chosen.json:
        text.emit_json("replay", file=str(file), saved=saved.found, result=result.to_json())
    if debugger or shell:
        _open(_at_hand(spec, saved.case, saved.seed, result), debugger=debugger)
    codes = {PASS: ExitCode.OK, FAIL: ExitCode.CONTRACT}
    sys.exit(codes.get(result.verdict, exit_codes.code_for_name(result.error_class)))


def _at_hand(spec: Any, case: Any, seed: int, result: Any) -> dict[str, Any]:
    """The names a prompt starts with: inputs by name, `expected`, `result`, `spec`, `case`."""
    inputs = inputs_of(spec, case, seed)
    bound = {**case.axes, **scalars_of(spec, case)}
    shapes = {a.name: array_shape(a, bound) for a in spec.arrays}
    expected = reference(spec, inputs, bound)
    return {
        **inputs,
        "expected": expected,
        "result": result,
        "spec": spec,
        "case": case,
        "shapes": shapes,
    }


def _open(names: dict[str, Any], *, debugger: bool) -> None:
    if debugger:
        pdb.run("pass", names, names)
    else:
        code.interact(banner=f"at hand: {', '.join(names)}", local=names, exitmsg="")
