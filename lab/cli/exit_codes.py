"""What a command's exit code means, and which one wins when several things went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import click

from dsv4 import errors


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0  # all contracts held
    CONTRACT = 1  # a contract is broken
    USAGE = 2  # the command, its configuration or its files cannot be used as given
    COMPILE = 3  # a source did not compile, or there is no compiler
    LAUNCH = 4  # a launch was refused or failed
    BITS = 5  # golden values or bits differ
    SLOW = 6  # slower than allowed
    SANITIZER = 7  # a checker found a fault inside a kernel
    NOTHING_RAN = 8  # no device, or no case matches
    PEER = 9  # another process of the same run is gone, silent or different
    INTERRUPTED = 130  # Ctrl-C


# The worst first.
_PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.LAUNCH,
    ExitCode.COMPILE,
    ExitCode.SANITIZER,
    ExitCode.CONTRACT,
    ExitCode.BITS,
    ExitCode.SLOW,
    ExitCode.PEER,
    ExitCode.USAGE,
    ExitCode.NOTHING_RAN,
    ExitCode.OK,
)

_BY_CLASS: dict[type[BaseException], ExitCode] = {
    errors.SpecError: ExitCode.USAGE,
    errors.CompileError: ExitCode.COMPILE,
    errors.KernelFault: ExitCode.SANITIZER,
    errors.LaunchError: ExitCode.LAUNCH,
    errors.ContractError: ExitCode.CONTRACT,
    errors.DeviceError: ExitCode.NOTHING_RAN,
    errors.PeerError: ExitCode.PEER,
    errors.Refusal: ExitCode.USAGE,
    errors.StateError: ExitCode.LAUNCH,
    errors.StoreError: ExitCode.USAGE,
    click.UsageError: ExitCode.USAGE,
    click.Abort: ExitCode.INTERRUPTED,
    KeyboardInterrupt: ExitCode.INTERRUPTED,
    OSError: ExitCode.USAGE,
}


def code_for(error: BaseException) -> ExitCode:
    """The exit code of an error: that of its nearest known class; LAUNCH for a bug of ours."""
    return _by_ancestry(type(error))


def _by_ancestry(cls: type) -> ExitCode:
    known = (_BY_CLASS[ancestor] for ancestor in cls.__mro__ if ancestor in _BY_CLASS)
    return next(known, ExitCode.LAUNCH)


def _with_descendants(cls: type[BaseException]) -> set[type[BaseException]]:
    """The class and everything derived from it so far, such as refusals of a package."""
    return {cls}.union(*(_with_descendants(child) for child in cls.__subclasses__()))


def code_for_name(class_name: str) -> ExitCode:
    """The exit code of an error known only by its class's name, as results keep it."""
    named = [cls for cls in _with_descendants(BaseException) if cls.__name__ == class_name]
    return min((_by_ancestry(cls) for cls in named), default=ExitCode.LAUNCH)


def worst(codes: Iterable[int]) -> ExitCode:
    """The code that decides: 4, 3, 7, 1, 5, 6 in this order before all others but 130."""
    return min(map(ExitCode, codes), key=_PRECEDENCE.index, default=ExitCode.OK)
