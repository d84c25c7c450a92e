"""Every error the project raises on purpose, under one root.

A message has four parts: what was asked, what was found, where, what to do next. The command line
maps each class to one exit code (`lab.cli.exit_codes`).
"""


class Dsv4Error(Exception):
    """Root of all deliberate errors."""


class SpecError(Dsv4Error):
    """A declaration, a case or an argument does not fit the kernel's specification."""


class CompileError(Dsv4Error):
    """A source did not compile, or no compiler was found."""


class LaunchError(Dsv4Error):
    """A launch was refused, or the kernel failed while running."""


class KernelFault(LaunchError):
    """The host backend's check mode caught a fault inside a kernel.

    kind is one of "out-of-bounds", "race", "uninitialised-shared", "divergent-barrier",
    "deadlock", "write-to-const", "early-access", "early-start", "early-end", "misaligned",
    "assertion", "division-by-zero"; file and line locate it in the `.cu`, block and thread say who.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        file: str,
        line: int,
        block: tuple[int, int, int],
        thread: tuple[int, int, int],
    ) -> None:
        """Keep the place beside the message so that tools need not parse text."""
        super().__init__(message)
        self.kind = kind
        self.file = file
        self.line = line
        self.block = block
        self.thread = thread


class ContractError(Dsv4Error):
    """An output left its contract."""


class DeviceError(Dsv4Error):
    """The asked device or driver is not there, or refuses."""


class Refusal(Dsv4Error):
    """A configuration, checkpoint or switch is refused; the message names the rule."""


class StateError(Dsv4Error):
    """Calls came in an order, or with bounds, that the state does not allow."""


class PeerError(Dsv4Error):
    """Another process of the same run failed it; this process has let go of the others.

    rank: of that process; None where it never told.
    """

    def __init__(self, message: str, *, rank: int | None = None) -> None:
        """Keep the rank beside the message so that tools need not parse text."""
        super().__init__(message)
        self.rank = rank


class PeerLost(PeerError):
    """A process is gone, or has given up."""


class PeerSlow(PeerError):
    """A process said nothing within the set time."""


class PeerMismatch(PeerError):
    """A process runs something else: another program, version, model, arms or request."""


class StoreError(Dsv4Error):
    """The record store cannot be read or written; earlier records are safe."""
