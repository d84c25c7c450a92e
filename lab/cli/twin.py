"""`dsv4-lab twin`: pairs of computations that must give the same bytes."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from dsv4.runtime.device import open_device
from lab import twins
from lab.cli import exit_codes, settings, text
from lab.cli.exit_codes import ExitCode
from lab.record.environment import summary_line
from lab.recording import Recorder
from lab.twins.session import FAIL, PASS, Difference, TwinResult, run


class TwinPattern(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A twin: exact name, kernel that takes part, glob or prefix."""

    name = "twin"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The pattern itself, once it matches something. Errors: SpecError with near matches."""
        twins.match([value])
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Twins with that prefix."""
        known = twins.twins().values()
        return [
            CompletionItem(t.name, help=f"{t.left} = {t.right}")
            for t in known
            if t.name.startswith(incomplete)
        ]


@click.command("twin")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, type=TwinPattern())
@click.option("--all", "everything", is_flag=True, help="Every input, the model's sizes too.")
@click.option("--list", "listing", is_flag=True, help="Say what each twin compares; run nothing.")
@click.option(
    "--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto", help="Where to run."
)
@click.option(
    "--mode",
    type=click.Choice(["run", "shuffle"]),
    default="run",
    help="Host only: fast, or random thread order.",
)
@click.option("--no-record", is_flag=True, help="Do not write to the store.")
@click.pass_context
def twin(
    ctx: click.Context,
    patterns: tuple[str, ...],
    everything: bool,
    listing: bool,
    backend: str,
    mode: str,
    no_record: bool,
) -> None:
    """Run pairs of computations that must give the same bytes, and name what differs.

    PATTERN is a twin, a kernel, a glob or a prefix; every twin without one.

    \b
    Example:
      dsv4-lab twin linear_fp8 --all
    """
    settings_now = settings.current()
    chosen = twins.match(patterns)
    if listing:
        _list(chosen)
        return
    device = open_device(backend, index=settings_now.device, mode=mode, seed=settings_now.seed)
    recorder = Recorder(settings_now.store, device, enabled=not no_record)
    text.say(f"env  {summary_line(recorder.env)}  seed {settings_now.seed}\n")
    results: list[TwinResult] = []
    codes: list[int] = []
    level = "full" if everything else "quick"
    try:
        with text.progress("twins", len(chosen)) as bar:
            for result in run(chosen, device, seed=settings_now.seed, level=level):
                results.append(result)
                recorder.add_document(result.to_record())
                codes.append(_code(result))
                bar.update(1)
    except KeyboardInterrupt:
        codes.append(ExitCode.INTERRUPTED)
        text.note(f"interrupted; {len(results)} finished results are kept")
    code = exit_codes.worst(codes)
    recorder.finish(code)
    passed = sum(r.verdict == PASS for r in results)
    summary = {"twins": len(results), "pass": passed, "fail": len(results) - passed}
    if settings_now.json:
        text.emit_json(
            "twin",
            env=recorder.env,
            summary=summary,
            run=recorder.run_id,
            results=[r.to_json() for r in results],
        )
    _print(results, recorder.run_id)
    ctx.exit(code)


def _code(result: TwinResult) -> int:
    if result.verdict == PASS:
        return ExitCode.OK
    if result.verdict == FAIL:
        return ExitCode.CONTRACT
    return exit_codes.code_for_name(result.error_class)


def _list(chosen: list[twins.Twin]) -> None:
    if settings.current().json:
        known = [
            {"name": t.name, "left": t.left, "right": t.right, "kernels": t.kernels, "says": t.says}
            for t in chosen
        ]
        text.emit_json("twin", twins=known)
        return
    text.say(text.table(("twin", "left", "right"), [(t.name, t.left, t.right) for t in chosen]))
    for twin in chosen:
        if twin.says:
            text.say("\n" + "\n".join([twin.name, *(f"  {line}" for line in twin.says)]))


def _print(results: list[TwinResult], run_id: int | None) -> None:
    header = ("twin", "inputs", "bytes", "differing", "verdict")
    rows = [(r.name, r.trials, r.size_bytes, r.differing, text.verdict(r.verdict)) for r in results]
    text.say(text.table(header, rows))
    for result in results:
        if result.verdict == PASS:
            continue
        text.say(f"\n{text.verdict(result.verdict)}  {result.name}")
        text.say(f"  left    {result.left}\n  right   {result.right}")
        text.say(f"  {_sentence(result.first) if result.first else result.error}")
        text.say(f"  rerun   dsv4-lab twin {result.name} --all --backend {result.backend}")
    failed = sum(r.verdict != PASS for r in results)
    record = f"  (record {run_id:04d})" if run_id is not None else ""
    text.say(f"\n{len(results)} twins, {len(results) - failed} pass, {failed} fail{record}")


def _sentence(first: Difference) -> str:
    where = " ".join(f"{axis}={index}" for axis, index in first.where.items())
    return (
        f"first   input {first.trial!r}: {first.output} {where}   byte {first.byte}"
        f"   left {first.left_hex} ({first.left:.9g})   right {first.right_hex} ({first.right:.9g})"
        f"\n  {first.differing} bytes of {first.output} differ on that input"
    )
