"""What `kernel-diff --against` names, opened."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from dsv4.runtime.device import Device
from lab import against, session
from lab.against import Baseline
from lab.cli import settings
from lab.record import golden
from lab.record.store import Store


def open_baseline(
    options: Mapping[str, Any], work: session.Work, device: Device
) -> Baseline | None:
    """The baseline of kernel-diff's options; None for the oracle. Errors: as `lab.against`."""
    chosen = settings.current()
    specs = [spec for spec, _ in work]
    return against.open_baseline(
        options["baseline"],
        record=functools.partial(_stored_results, chosen.store),
        golden=lambda folder: golden.accepted(specs, folder or golden.FOLDER, device),
        arguments=_selection(options, chosen.seed),
    )


def _stored_results(path: Path, record: str) -> Iterator[dict[str, Any]]:
    store = Store.open_existing(path)
    if store is None:
        raise click.UsageError(f"--against record:{record}: there is no store at {path}")
    if not record.isdigit():
        raise click.UsageError(f"--against record:{record}: a record is a number")
    with store:
        store.run(int(record))
        yield from (row["json"] for row in store.results(int(record)))


def _selection(options: Mapping[str, Any], seed: int) -> list[str]:
    """Arguments that select the same cases in another process."""
    found = ["--seed", str(seed), *options["kernels"], "--level", options["level"]]
    found += ["--backend", options["backend"], "--mode", options["mode"], "--no-time"]
    found += [part for p in options["patterns"] for part in ("-p", p)]
    found += [part for n in options["names"] for part in ("-c", n)]
    if options["weights"]:
        found += ["--weights", str(options["weights"])]
    if options["tensor"]:
        found += ["--tensor", options["tensor"]]
    return found
