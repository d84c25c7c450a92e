"""Completion: scripts for three shells, and what they offer."""

from __future__ import annotations

import json

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from lab.cli.main import COMMANDS, main


def offered(*words: str) -> list[str]:
    """What the shell would offer for the last word."""
    *before, last = words
    completer = ShellComplete(main, {}, "dsv4-lab", "_DSV4_LAB_COMPLETE")
    return [item.value for item in completer.get_completions(list(before), last)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_calls_us_back(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "dsv4-lab" in result.stdout and f"_DSV4_LAB_COMPLETE={shell}_complete" in result.stdout
    document = json.loads(CliRunner().invoke(main, ["completion", shell, "--json"]).stdout)
    assert document["script"] == result.stdout.removesuffix("\n")


def test_an_unknown_shell_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["completion", "cmd"]).exit_code == 2


def test_commands_are_offered() -> None:
    assert offered("rec") == ["records"]
    assert set(COMMANDS) <= set(offered(""))


def test_kernels_and_families_are_offered() -> None:
    assert {"cast", "cast_bf16"} <= set(offered("list", "ca"))
    assert offered("show", "cast_") == ["cast_bf16"]


def test_case_names_come_from_the_chosen_kernel() -> None:
    assert offered("show", "cast_bf16", "--case", "ta") == ["tail"]
    assert offered("kernel-diff", "cast_bf16", "-c", "tail,sub") == ["tail,subnormal"]
    assert "adversarial" in offered("kernel-diff", "cast_bf16", "-c", "a")


def test_axes_and_their_sizes_are_offered_in_a_pattern() -> None:
    assert offered("kernel-diff", "cast_bf16", "-p", "") == ["N="]
    assert "N=257" in offered("kernel-diff", "cast_bf16", "-p", "N=2")
    assert offered("kernel-diff", "cast_bf16", "-p", "N=1,N=25") == ["N=1,N=257"]


def test_architectures_are_offered_in_a_list() -> None:
    assert offered("compile", "--arch", "sm_80,sm_90") == ["sm_80,sm_90", "sm_80,sm_90a"]


def test_completing_after_nonsense_offers_nothing_and_does_not_fail() -> None:
    assert offered("show", "no_such_kernel", "--case", "t") == []
    assert offered("kernel-diff", "-p", "T~", "ca")


def test_commands_on_text_offer_their_options_and_choices() -> None:
    assert offered("generate", "x", "--te") == ["--text", "--text-file", "--temperature"]
    assert {"--against", "--law", "--picture"} <= set(offered("eval", "x", "--"))
    assert offered("eval", "x", "--law", "sm") == ["smooth"]
    assert offered("demo", "--text-") == ["--text-file"]
