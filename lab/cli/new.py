"""`dsv4-lab new`: the five files of a new kernel family."""

from __future__ import annotations

import click

from lab import family
from lab.cli import text
from lab.cli.settings import current


@click.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Print the files instead of writing them.")
def new(name: str, dry_run: bool) -> None:
    """Write the five files of a new family: a small kernel that passes its test.

    \b
    Example:
      dsv4-lab new token_shift --dry-run
    """
    files = family.render(name)
    root = family.checkout()
    if not dry_run:
        family.write(files, root)
    if current().json:
        text.emit_json("new", family=name, written=not dry_run, files=files)
        return
    if dry_run:
        for path, content in files.items():
            text.say(f"{path}", bold=True)
            text.say("".join(f"  {line}".rstrip() + "\n" for line in content.splitlines()))
        return
    for path in files:
        text.say(f"wrote {path}")
    text.note(f"next: dsv4-lab kernel-diff {name}, then make the formula yours in all five")
