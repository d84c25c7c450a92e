"""The command `dsv4-lab`: global options, commands loaded when they are called, errors as text.

A command is a Click command in a module of its own, named in `COMMANDS`. It parses, calls one
function of the workbench, prints, and leaves with `ctx.exit(code)`. Errors pass through it: here
they become one paragraph and an exit code.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from dsv4 import __version__
from dsv4.errors import Dsv4Error
from lab.cli import text
from lab.cli.exit_codes import ExitCode, code_for
from lab.cli.settings import global_options

# Where each command lives, and what it does; the help page is printed from here without loading.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "list": ("lab.cli.list_kernels:list_kernels", "List kernels, their contracts and verdicts."),
    "show": ("lab.cli.show:show", "Show everything about one kernel."),
    "kernel-diff": (
        "lab.cli.kernel_diff:kernel_diff",
        "Run kernels against their float64 oracles and record the outcome.",
    ),
    "bench": (
        "lab.cli.bench:bench",
        "Time kernels, layers, steps and rounds against the roof of memory.",
    ),
    "twin": ("lab.cli.twin:twin", "Run pairs of computations that must give the same bytes."),
    "model-diff": (
        "lab.cli.model_diff:compare",
        "Compare a whole model with recorded outputs of another implementation.",
    ),
    "compare": ("lab.cli.compare:compare", "Compare two records, revisions or files."),
    "golden": ("lab.cli.golden:golden", "Hold outputs against golden digests; review changes."),
    "probe": ("lab.cli.probe:probe", "Compare the stages inside a kernel with the oracle's."),
    "minimise": ("lab.cli.minimise:minimise", "Make a failing case as small as it goes."),
    "shell": ("lab.cli.shell:shell", "Open a prompt with a case's arrays at hand."),
    "watch": ("lab.cli.watch:watch", "Run a kernel again whenever its source is saved."),
    "bisect": ("lab.cli.bisect:bisect", "Find the operator or the commit where it went wrong."),
    "replay": ("lab.cli.replay:replay", "Run a saved case again."),
    "sanitize": ("lab.cli.sanitize:sanitize", "Check kernels for wild accesses and races."),
    "ncu": ("lab.cli.ncu:ncu", "Profile one launch with Nsight Compute."),
    "compile": ("lab.cli.compile_all:compile_all", "Compile kernels; no GPU needed."),
    "census": ("lab.cli.census:census", "Validate a checkpoint from its headers and count it."),
    "mint": ("lab.cli.mint:mint", "Make a checkpoint in a published layout from a seed."),
    "generate": ("lab.cli.generate:generate_tokens", "Print the tokens after a prompt."),
    "demo": ("lab.cli.demo:demo", "Write a function body with and without the drafter."),
    "eval": ("lab.cli.evaluate:evaluate_texts", "Score texts with a model, in bits per byte."),
    "draft": ("lab.cli.draft:draft", "Generate speculatively with a target and its drafter."),
    "spec": ("lab.cli.spec:spec", "Decode with drafts and without, and compare."),
    "step": ("lab.cli.step:step", "Show launches, bytes and times of a decode step."),
    "timeline": ("lab.cli.timeline:timeline", "Tell what launches take in place, in a step."),
    "place": ("lab.cli.place:place", "Show which layers go where, from headers alone."),
    "gate": ("lab.cli.gate:gate", "Check laws of the engine, and mutations against them."),
    "report": ("lab.cli.report:report", "Write the store as one HTML file."),
    "records": ("lab.cli.records:records", "Look into the record store, or move records."),
    "env": ("lab.cli.env:env", "Show what a record would say about this machine."),
    "doctor": ("lab.cli.doctor:doctor", "Say what is missing here and how to get it."),
    "new": ("lab.cli.new:new", "Write the five files of a new kernel family."),
    "completion": ("lab.cli.completion:completion", "Print the completion script of a shell."),
}
# Global options that a command's own help shows, because they matter there.
_SHOWN: Final[dict[str, tuple[str, ...]]] = {
    "kernel-diff": ("seed", "device", "store"),
    "bench": ("seed", "device", "store"),
    "twin": ("seed", "device", "store"),
    "compile": ("arch",),
    "show": ("arch",),
    "records": ("store",),
    "mint": ("seed", "device"),
    "spec": ("seed",),
    "generate": ("seed",),
}


class LabGroup(click.Group):
    """The group of all commands: imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now and given the global options."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name not in COMMANDS:
            return None
        place, short_help = COMMANDS[cmd_name]
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        command.short_help = short_help
        _add_global_options(command, _SHOWN.get(cmd_name, ()))
        self.commands[cmd_name] = command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments call. Errors: UsageError with near matches."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=3, cutoff=0.5)
            hint = f"did you mean {', '.join(near)}?" if near else "see dsv4-lab --help"
            raise click.UsageError(f"no command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of the help page without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in COMMANDS.items()])

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run a command line and leave with its exit code; errors become one paragraph."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        try:
            returned = super().main(arguments, standalone_mode=False, **extra)
            code = returned if isinstance(returned, int) else ExitCode.OK
            sys.stdout.flush()
        except Exception as error:
            code = report(error, arguments)
        sys.exit(int(code))


def report(error: Exception, arguments: Sequence[str]) -> ExitCode:
    """The exit code of an error, after telling it: text on stderr, with --json a document too.

    A traceback is shown with --debug only.
    """
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        _close_output()
        return ExitCode.INTERRUPTED
    code = code_for(error)
    if "--debug" in arguments:
        traceback.print_exception(error)
    if isinstance(error, click.Abort):
        message = "interrupted; finished results are in the record store"
        click.echo(message, err=True)
    elif isinstance(error, click.ClickException):
        message = error.format_message()
        error.show(sys.stderr)
    else:
        message = _paragraph(error)
        text.warn(message)
    if "--json" in arguments:
        command = next((a for a in arguments if a in COMMANDS), "")
        facts = {"class": type(error).__name__, "message": message}
        text.emit_json(command, error=facts, exit_code=int(code))
    return code


def _paragraph(error: Exception) -> str:
    if isinstance(error, Dsv4Error):
        return str(error)
    if isinstance(error, OSError):
        full = error.errno == errno.ENOSPC
        return f"{error}\n  {'free some space' if full else 'check the path and its permissions'}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown place"
    return (
        f"unexpected {type(error).__name__} at {place}: {error}\n"
        "  this is a bug in dsv4-lab; run again with --debug to see the traceback"
    )


def _close_output() -> None:
    """Let the interpreter's last flush go nowhere: the reader of the pipe has left."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _add_global_options(command: click.Command, shown: Sequence[str]) -> None:
    taken = {name for parameter in command.params for name in parameter.opts}
    for option in global_options():
        if taken.isdisjoint(option.opts):
            option.hidden = option.name != "json" and option.name not in shown
            command.params.append(option)
    if not isinstance(command, click.Group):
        command.epilog = command.epilog or "Global options: see dsv4-lab --help."
        return
    for child in command.commands.values():
        _add_global_options(child, shown)


@click.group(
    cls=LabGroup,
    params=list(global_options()),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="dsv4-lab", message="%(prog)s %(version)s")
def main() -> None:
    """Run CUDA kernels against float64 oracles, on a GPU or on this machine's CPU.

    \b
    Example:
      dsv4-lab kernel-diff rms_norm -p T=7
    """


if __name__ == "__main__":
    main(prog_name="dsv4-lab")
