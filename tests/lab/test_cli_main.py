"""The command line as a whole: loading, global options, errors and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dsv4.errors import CompileError, LaunchError
from lab.cli import main as cli
from lab.cli import settings
from lab.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]


def run_process(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lab.cli.main", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """A command `list` that raises the error put into the list."""
    errors: list[BaseException] = []

    @click.command("list")
    def command() -> None:
        raise errors[0]

    cli._add_global_options(command, ())
    monkeypatch.setitem(main.commands, "list", command)  # type: ignore[attr-defined]
    yield errors


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads_has_help_with_an_example_and_takes_the_global_options(
    name: str,
) -> None:
    shown = CliRunner().invoke(main, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Example:" in shown.output
    command = main.commands[name]  # type: ignore[attr-defined]
    assert command.name == name
    assert {"--json", "--store", "--debug"} <= {o for p in command.params for o in p.opts}


@pytest.mark.parametrize("name", COMMANDS)
def test_short_helps_start_with_a_verb_and_fit_a_line(name: str) -> None:
    short = COMMANDS[name][1]
    assert re.fullmatch(r"[A-Z][a-z]+ .{3,70}\.", short)


def test_list_loads_neither_cupy_nor_the_other_commands() -> None:
    program = (
        "import sys\n"
        "from lab.cli.main import main\n"
        "try:\n    main(['list', '--json'])\n"
        "except SystemExit as leave:\n    assert leave.code == 0\n"
        "bad = {'cupy', 'lab.cli.kernel_diff', 'lab.run', 'safetensors'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_list_needs_less_than_half_a_second_of_processor_time() -> None:
    # Wall time is the same on an idle machine, but tests may not depend on idleness.
    program = (
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'lab.cli.main', 'list'], capture_output=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime)"
    )
    command = [sys.executable, "-c", program]
    times = [
        float(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.5


@pytest.mark.parametrize(
    "arguments", [["--json", "list"], ["list", "--json"], ["--json", "list", "--json"]]
)
def test_json_may_stand_before_or_after_the_command(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    document = json.loads(result.stdout)
    assert document["schema"] == 1 and document["command"] == "list"


def test_global_options_reach_the_command_from_either_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    @click.command("list")
    def command() -> None:
        seen.append(settings.current())

    cli._add_global_options(command, ())
    monkeypatch.setitem(main.commands, "list", command)  # type: ignore[attr-defined]
    line = ["--seed", "3", "--arch", "sm_80, sm_90a", "list", "-q", "--device", "1"]
    CliRunner().invoke(main, [*line, "--store", str(tmp_path), "--no-color", "--debug"])
    CliRunner().invoke(main, ["list"])
    (given, plain) = seen
    assert (given.seed, given.arch, given.device) == (3, ("sm_80", "sm_90a"), 1)
    assert (given.store, given.quiet, given.color, given.debug) == (tmp_path, True, False, True)
    assert plain == settings.Settings()


def test_outside_of_a_command_the_settings_are_the_defaults() -> None:
    assert settings.current() == settings.Settings()


def test_an_unknown_command_gets_near_matches() -> None:
    result = CliRunner().invoke(main, ["kernel-dif"])
    assert result.exit_code == 2
    assert "no command 'kernel-dif'; did you mean kernel-diff" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "no_such_kernel"], "no kernel matches 'no_such_kernel'"),
        (["list", "--family", "nothing"], "no family 'nothing'"),
        (["show", "cast_bf17"], "did you mean cast_bf16"),
        (["show", "cast_bf16", "--case", "tial"], "did you mean tail"),
        (
            ["compile", "cast_bf16", "--arch", "sm_91"],
            "no architecture 'sm_91'; did you mean sm_90",
        ),
        (["kernel-diff", "cast_bf16", "-c", "tial"], "did you mean tail"),
        (["kernel-diff", "cast_bf16", "-p", "N~3"], "is no condition"),
        (["kernel-diff", "cast_bf16", "--backend", "tpu"], "'tpu' is not one of"),
        (["list", "--bogus"], "No such option"),
    ],
)
def test_what_does_not_exist_is_a_usage_error_in_one_paragraph(
    arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert "\n\n" not in result.stderr.partition("rror: ")[2].strip()


def test_an_error_with_json_is_a_document_too(failing: list[BaseException]) -> None:
    failing.append(CompileError("x.cu does not compile"))
    result = CliRunner().invoke(main, ["list", "--json"])
    assert result.exit_code == 3
    assert json.loads(result.stdout) == {
        "schema": 1,
        "command": "list",
        "error": {"class": "CompileError", "message": "x.cu does not compile"},
        "exit_code": 3,
    }


def test_a_traceback_is_shown_with_debug_only(failing: list[BaseException]) -> None:
    failing.append(LaunchError("no"))
    plain = CliRunner().invoke(main, ["list"])
    debug = CliRunner().invoke(main, ["list", "--debug"])
    assert plain.exit_code == debug.exit_code == 4
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr


def test_a_bug_is_told_in_one_paragraph_with_its_place(failing: list[BaseException]) -> None:
    failing.append(ZeroDivisionError("oh"))
    result = CliRunner().invoke(main, ["list"])
    assert result.exit_code == 4
    assert re.search(r"unexpected ZeroDivisionError at test_cli_main.py:\d+: oh\n", result.stderr)
    assert "--debug" in result.stderr and "Traceback" not in result.stderr


def test_a_file_error_is_a_usage_error(failing: list[BaseException]) -> None:
    failing.append(PermissionError(13, "Permission denied", "some/file"))
    result = CliRunner().invoke(main, ["list"])
    assert result.exit_code == 2
    assert "some/file" in result.stderr


def test_ctrl_c_leaves_with_130(failing: list[BaseException]) -> None:
    failing.append(KeyboardInterrupt())
    result = CliRunner().invoke(main, ["list"])
    assert result.exit_code == 130
    assert "interrupted" in result.stderr and "Traceback" not in result.stderr


def test_a_real_interrupt_leaves_with_130_and_no_traceback() -> None:
    program = (
        "import os, signal, click\n"
        "from lab.cli.main import main\n"
        "@click.command('list')\n"
        "def command():\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\n"
        "main.commands['list'] = command\n"
        "main(['list'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert signal.SIGINT.name not in done.stdout


def test_a_reader_that_leaves_early_causes_no_noise() -> None:
    line = f"{sys.executable} -m lab.cli.main list --json | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "{"
    assert done.stderr == ""


def test_processes_leave_with_the_documented_codes_and_without_tracebacks(tmp_path: Path) -> None:
    garbage = tmp_path / "lab.db"
    garbage.write_text("no database " * 100)
    for arguments, code in (
        (["--version"], 0),
        (["--help"], 0),
        (["list", "cast_bf17"], 2),
        (["records", "list", "--store", str(garbage)], 2),
        (["kernel-diff", "cast_bf16", "--store", str(garbage)], 2),
    ):
        done = run_process(*arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) <= 5


def test_cuda_without_a_gpu_says_what_to_do_and_leaves_with_8() -> None:
    done = run_process("kernel-diff", "cast_bf16", "--backend", "cuda", CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 8, done.stderr
    assert "--backend host" in done.stderr and "Traceback" not in done.stderr


def test_no_color_is_honoured(tmp_path: Path) -> None:
    store = str(tmp_path / "lab.db")
    colored = CliRunner().invoke(main, ["list", "cast", "--store", store], color=True)
    plain = CliRunner().invoke(main, ["list", "cast", "--store", store, "--no-color"], color=True)
    asked = CliRunner().invoke(
        main, ["list", "cast", "--store", store], color=True, env={"NO_COLOR": "1"}
    )
    assert "\x1b[" in colored.stdout
    assert "\x1b[" not in plain.stdout
    assert "\x1b[" not in asked.stdout


def test_the_version_is_that_of_the_package() -> None:
    from dsv4 import __version__

    assert CliRunner().invoke(main, ["--version"]).stdout == f"dsv4-lab {__version__}\n"
