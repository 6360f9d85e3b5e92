"""`tracekit demo`: analyze the example that comes with tracekit, and suggest next commands."""

from __future__ import annotations

from pathlib import Path

import click

import tracekit
from tracekit.cli import terminal
from tracekit.cli.help_pages import GroupedCommand
from tracekit.model.errors import TracekitError
from tracekit.model.system.installed import install_command

PACKAGE = Path(tracekit.__file__).parent
EXAMPLE_PLACES = PACKAGE / "example", PACKAGE.parent / "examples/simulated_gpu/outputs/profile"
"""Places of the example: in the installed package, or in a checkout."""

NEXT = """
That was the example: two simulated ranks of GRPO. Next, with it or with your own profile:
  tracekit analyze {path} -v
    all tables
  tracekit open {path}
    the full report in a browser
  tracekit explain exposed-communication
    the cause of a finding, and how to fix it
"""


@click.command(name="demo", cls=GroupedCommand, short_help="Analyze the example that comes with tracekit.")
@click.option("--path", "only_path", is_flag=True, help="Print only the path of the example.")
@click.pass_context
def command(ctx: click.Context, *, only_path: bool) -> int:
    """Analyze the example that comes with tracekit: profiles of two simulated ranks."""
    from tracekit.cli.commands.analyze import command as analyze

    path = next((place for place in EXAMPLE_PLACES if place.is_dir()), None)
    if path is None:
        raise TracekitError("the example is not installed", install_command("", "--force-reinstall"))
    if only_path:
        terminal.write_output(f"{path}\n")
        return 0
    terminal.print_message(f"$ tracekit analyze {path}")
    with analyze.make_context("analyze", ["--no-config", str(path)], parent=ctx.parent) as of_example:
        status: int = analyze.invoke(of_example)
    terminal.print_message(NEXT.format(path=path).rstrip())
    return status
