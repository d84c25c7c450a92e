"""`dsv4-lab minimise`: the smallest case that still fails."""

from __future__ import annotations

import re
from pathlib import Path

import click

from dsv4 import registry
from dsv4.runtime.device import open_device
from dsv4.spec import KernelSpec
from lab.casefile import load_case, save_case
from lab.cases import Case
from lab.cli import result_text, settings, text
from lab.cli.choices import one_case_options
from lab.cli.exit_codes import ExitCode
from lab.debug.choose import one_case
from lab.debug.minimise import Minimised
from lab.debug.minimise import minimise as search
from lab.page import one_spec

_FOLDER = Path(".lab") / "minimised"
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A time such as 60s or 2m, in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds, more than none."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value).strip())
        if match is None or float(match[1]) <= 0:
            self.fail(f"{value!r} is no time; write 60s or 2m", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


@click.command()
@one_case_options
@click.option("--budget", type=Duration(), default="60s", show_default=True, help="How long.")
@click.option("--keep", default="", metavar="AXES", help="Axes that stay, as 'T,K'.")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), metavar="CASE",
              help="Begin with a saved case.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=_FOLDER,
              show_default=True, metavar="DIR", help="Where the case file is written.")  # fmt: skip
@click.pass_context
def minimise(
    ctx: click.Context,
    kernel: str,
    patterns: tuple[str, ...],
    names: tuple[str, ...],
    backend: str,
    mode: str,
    budget: float,
    keep: str,
    file: Path | None,
    output: Path,
) -> None:
    """Make a failing case smaller: first its shape, then its values. Writes a case file.

    Ends with exit 1, because what it found fails.

    \b
    Example:
      dsv4-lab minimise rms_norm -p T=7 --budget 60s
    """
    chosen = settings.current()
    spec, case, seed = _start(kernel, patterns, names, file, chosen.seed)
    device = open_device(backend, index=chosen.device, mode=mode, seed=chosen.seed)
    axes = [a.strip() for a in keep.split(",") if a.strip()]
    text.note(f"{spec.name}  {case.label}  {device.name}")
    found = search(
        spec,
        case,
        device,
        seed=seed,
        budget_s=budget,
        keep=axes,
        tell=lambda step: text.note(f"  {step}"),
    )
    path = save_case(output, spec, found.case, found.result)
    _show(found, path)
    ctx.exit(ExitCode.CONTRACT if not found.result.error else ExitCode.SANITIZER)


def _start(
    kernel: str, patterns: tuple[str, ...], names: tuple[str, ...], file: Path | None, seed: int
) -> tuple[KernelSpec, Case, int]:
    if file is None:
        spec = one_spec(kernel)
        return spec, one_case(spec, patterns, names), seed
    saved = load_case(file)
    if saved.kernel not in {s.name for s in registry.match([kernel])}:
        raise click.UsageError(f"--file {file} is a case of {saved.kernel}, not of {kernel}")
    return registry.spec(saved.kernel), saved.case, saved.seed


def _show(found: Minimised, path: Path) -> None:
    result = found.result
    if settings.current().json:
        text.emit_json(
            "minimise",
            kernel=result.kernel,
            axes=dict(found.case.axes),
            file=str(path),
            runs=found.runs,
            finished=found.finished,
            steps=list(found.steps),
            nonzero={n: list(counts) for n, counts in found.nonzero.items()},
            result=result.to_json(),
        )
        return
    text.say(result_text.block(result, replay=path))
    shown = ", ".join(f"{n} {left} of {size}" for n, (left, size) in found.nonzero.items())
    text.say(f"  not zero  {shown or 'no input'}")
    end = "nothing smaller is left to try" if found.finished else "the budget ended the search"
    text.say(f"  {found.runs} runs; {end}")
