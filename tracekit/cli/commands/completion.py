"""`tracekit completion`: print the shell completion script."""

from __future__ import annotations

import click

from tracekit.cli import terminal
from tracekit.cli.help_pages import GroupedCommand


@click.command(name="completion", cls=GroupedCommand, short_help="Print the shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, *, shell: str) -> int:
    """Print the script that completes commands, options, names and paths in a shell.

    \b
    bash   eval "$(tracekit completion bash)"            in ~/.bashrc
    zsh    eval "$(tracekit completion zsh)"             in ~/.zshrc
    fish   tracekit completion fish > ~/.config/fish/completions/tracekit.fish
    """  # noqa: D301 - \b keeps click from wrapping
    from click.shell_completion import get_completion_class

    from tracekit.cli import COMPLETE, PROGRAM

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    script = completion_class(ctx.find_root().command, {}, PROGRAM, COMPLETE).source()
    terminal.write_output(script.encode("utf-8"))
    return 0
