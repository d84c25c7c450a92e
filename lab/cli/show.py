"""`dsv4-lab show`: everything about one kernel."""

from __future__ import annotations

from typing import Any

import click

from lab import builds, page
from lab.cli import settings, text
from lab.cli.types import CASE_NAMES, KERNEL

_DEFAULT_ARCH = "sm_90a"


@click.command()
@click.argument("kernel", type=KERNEL)
@click.option("--case", "case_name", type=CASE_NAMES, metavar="NAME", help="Show this case.")
@click.option("--source", "what", flag_value="source", help="Print the .cu.")
@click.option("--ptx", "what", flag_value="ptx", help="Print the PTX of the case's build.")
@click.option("--sass", "what", flag_value="sass", help="Print the machine code of the build.")
def show(kernel: str, case_name: str | None, what: str | None) -> None:
    """Show a kernel's files, signature, geometry, promise, build and history.

    \b
    Example:
      dsv4-lab show rms_norm --case tail
    """
    chosen = settings.current()
    spec = page.one_spec(kernel)
    case = page.choose_case(spec, case_name)
    arch = chosen.arch[0] if chosen.arch else _DEFAULT_ARCH
    if what is None:
        described = page.describe(spec, case, chosen.store, arch)
        if chosen.json:
            text.emit_json("show", **described)
        else:
            text.say(_render(described))
        return
    constants = builds.constants_for(spec, case)
    listings = {
        "source": lambda: page.source_text(spec),
        "ptx": lambda: builds.ptx(spec, constants, arch),
        "sass": lambda: builds.sass(spec, constants, arch),
    }
    listing = listings[what]()
    if chosen.json:
        text.emit_json("show", kernel=spec.name, arch=arch, **{what: listing})
    else:
        click.echo(listing.rstrip("\n"))


def _render(d: dict[str, Any]) -> str:
    width = max(len(question) for question in d["files"])
    lines = [click.style(f"{d['kernel']}: {d['summary']}", bold=True)]
    for question, path in d["files"].items():
        gone = f"  {text.verdict('MISSING')}" if path in d["missing"] else ""
        lines.append(f"  {question:<{width}}  {path}{gone}")
    lines += ["", d["signature"]]
    lines += [f"  {axis}  {meaning}" for axis, meaning in d["axes"].items()]
    for name, choices in d["options"].items():
        lines.append(f"  option {name}: {', '.join(map(str, choices))}")
    lines += [f"  requires {r['condition']}: {r['because']}" for r in d["requires"]]
    lines += ["", "contract"]
    for name, promise in d["contract"].items():
        lines.append(f"  {name}  {promise['contract']}: {promise['because']}")
    lines.append(f"  {_flags(d)}")
    lines += ["", *_case(d["case"]), f"  build  {_build(d['build'])}", ""]
    lines.append(f"cases  {', '.join(_case_name(c) for c in d['cases'])}")
    lines.append(f"history  {_history(d['history'])}")
    return "\n".join(lines)


def _flags(d: dict[str, Any]) -> str:
    rows = f"rows independent along {d['batch_invariant']}" if d["batch_invariant"] else ""
    return "; ".join(
        part
        for part in (
            "relaunch gives the same bytes" if d["repeatable"] else "relaunch may differ",
            rows,
            "same bytes on host and cuda" if d["portable"] else "bytes differ between backends",
        )
        if part
    )


def _case(c: dict[str, Any]) -> list[str]:
    values = " ".join(f"{k}={v}" for k, v in c["values"].items())
    constants = " ".join(f"-D{k}={v}" for k, v in c["constants"].items()) or "no constants"
    grid, block = ("x".join(map(str, c[k])) for k in ("grid", "block"))
    return [
        f"case {c['case']}  {values}",
        f"  grid {grid}  block {block}  dynamic shared {c['shared_bytes']} bytes  {constants}",
        f"  moves {text.scaled(c['bytes'], 'B')}, computes {text.scaled(c['flops'], 'op')}",
    ]


def _build(b: dict[str, Any] | None) -> str:
    if b is None:
        return "unknown: NVRTC is missing; see dsv4-lab doctor"
    if b["skipped"] or b["problem"]:
        return f"{b['arch']}: {b['skipped'] or b['problem']}"
    return (
        f"{b['arch']}: {b['registers']} registers, {b['shared_bytes']} bytes static shared,"
        f" {b['spill_bytes']} bytes spilled"
    )


def _case_name(c: dict[str, Any]) -> str:
    return c["case"] if c["level"] == "quick" else f"{c['case']} ({c['level']})"


def _history(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "NEW: never recorded here"
    last = rows[-1]
    words = " ".join(text.verdict(row["verdict"]) for row in rows)
    place = last["arch"] if last["backend"] == "cuda" else last["backend"]
    use = "" if last["bound_use"] is None else f", bound use {last['bound_use']:.2f}"
    return (
        f"{words}  last in record {last['run']}, {last['started']}, {place},"
        f" {last['cases']} cases{use}"
    )
