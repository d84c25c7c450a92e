"""`dsv4-lab completion`: the script that teaches a shell our commands, kernels and cases."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from lab.cli import text
from lab.cli.settings import current

_PLACES = {
    "bash": 'eval "$(dsv4-lab completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(dsv4-lab completion zsh)"   # in ~/.zshrc',
    "fish": "dsv4-lab completion fish > ~/.config/fish/completions/dsv4-lab.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_PLACES)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Example:
      eval "$(dsv4-lab completion bash)"
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"this Click has no completion for {shell}")
    complete_var = "_DSV4_LAB_COMPLETE"
    script = found(ctx.find_root().command, {}, "dsv4-lab", complete_var).source()
    if current().json:
        text.emit_json("completion", shell=shell, script=script, place=_PLACES[shell])
        return
    click.echo(script)
