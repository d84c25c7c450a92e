"""A prompt with one case at hand: IPython where it is installed, else Python's own."""

from __future__ import annotations

import code
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lab.compare.text import render
from lab.debug.stand import Stand

_LONGEST = 20


def names_of(stand: Stand) -> dict[str, Any]:
    """What the prompt starts with: the case's arrays and the functions that work on them.

    launch() and rebuild(define=...) put the new results under the old names.
    """
    names: dict[str, Any] = {"np": np}

    def refresh() -> None:
        names.update(stand.names())

    def launch() -> None:
        """Launch again on fresh inputs and renew got, diff and bits."""
        stand.launch()
        refresh()
        print(summary(stand))

    def rebuild(define: Mapping[str, int] | None = None) -> None:
        """Compile the sources as they are now, with these constants on top, and launch."""
        stand.rebuild(define)
        refresh()
        print(summary(stand))

    def where(mask: Any, output: str = "") -> list[dict[str, int]]:
        """The places of a mask's true elements along the named axes, at most 20."""
        return places(stand, np.asarray(mask), output)

    stand.launch()
    refresh()
    names.update(launch=launch, rebuild=rebuild, where=where)
    return names


def places(stand: Stand, mask: np.ndarray, output: str = "") -> list[dict[str, int]]:
    """Where a mask is true, as index by axis of the output that has its shape, or of `output`."""
    fitting = [a for a in stand.spec.arrays
               if stand.arrays[a.name].shape == mask.shape and output in ("", a.name)]  # fmt: skip
    outputs = [a for a in fitting if a.role != "in"]
    axes = (outputs or fitting)[0].axes if fitting else tuple(f"axis{i}" for i in range(mask.ndim))
    found = np.argwhere(mask)[:_LONGEST]
    return [dict(zip(axes, map(int, row), strict=True)) for row in found]


def summary(stand: Stand) -> str:
    """Each output's comparison with the oracle."""
    lines = []
    for name in stand.bits:
        judged = stand.compared(name)
        lines += [render(judged, show_name=True), f"  {'PASS' if judged.passed else 'FAIL'}"]
    return "\n".join(lines)


def banner(stand: Stand, names: Mapping[str, Any]) -> str:
    """What the case is, what is at hand, and how the first launch came out."""
    arrays = [a.name for a in stand.spec.inputs]
    functions = [n for n, v in names.items() if isinstance(v, Callable)]  # type: ignore[arg-type]
    return (
        f"{stand.spec.name}  {stand.case.label}  {stand.device.name}\n"
        f"{summary(stand)}\n\n"
        f"inputs     {', '.join(arrays)}\n"
        f"results    got, ref (rounded once), ref64, diff = got - ref64, bits\n"
        f"functions  {', '.join(f + '()' for f in functions)}; also spec, case, shape, np"
    )


def interact(stand: Stand) -> None:
    """Open the prompt and return when it is closed."""
    names = names_of(stand)
    text = banner(stand, names)
    if sys.stdin.isatty() and importlib.util.find_spec("IPython") is not None:
        from IPython import start_ipython
        from traitlets.config import Config

        config = Config()
        config.TerminalIPythonApp.display_banner = False
        config.TerminalInteractiveShell.confirm_exit = False
        config.HistoryManager.enabled = False
        print(text)
        start_ipython(argv=[], user_ns=names, config=config)
        return
    code.interact(banner=text, local=names, exitmsg="")
