"""Exit codes: every error has one, and the worst wins."""

from __future__ import annotations

import click
import pytest

from dsv4 import errors
from lab.cli.exit_codes import ExitCode, code_for, code_for_name, worst


def all_errors() -> list[type[errors.Dsv4Error]]:
    """Every error class of the project, the root excluded."""
    found: list[type[errors.Dsv4Error]] = []
    waiting = errors.Dsv4Error.__subclasses__()
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1].__subclasses__()
    return found


@pytest.mark.parametrize("cls", all_errors())
def test_every_deliberate_error_has_a_code_of_its_own_choice(cls: type[errors.Dsv4Error]) -> None:
    assert code_for_name(cls.__name__) == code_for(cls.__new__(cls))
    assert code_for(cls.__new__(cls)) not in (ExitCode.OK, ExitCode.INTERRUPTED)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ContractError(), 1),
        (errors.SpecError(), 2),
        (errors.Refusal(), 2),
        (errors.StoreError(), 2),
        (click.UsageError(""), 2),
        (FileNotFoundError(), 2),
        (errors.CompileError(), 3),
        (errors.LaunchError(), 4),
        (ZeroDivisionError(), 4),
        (errors.KernelFault.__new__(errors.KernelFault), 7),
        (errors.DeviceError(), 8),
        (errors.PeerSlow(""), 9),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_map_to_the_documented_codes(error: BaseException, code: int) -> None:
    assert code_for(error) == code


def test_the_worst_wins_in_the_documented_order() -> None:
    order = [4, 3, 7, 1, 5, 6]
    for index, code in enumerate(order):
        assert worst([0, *reversed(order[index:])]) == code
    assert worst([]) == 0
    assert worst([0, 0]) == 0
    assert worst([0, 130, 4]) == 130
