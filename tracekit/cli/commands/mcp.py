"""`tracekit mcp`: the MCP server."""

from __future__ import annotations

from importlib.util import find_spec

import click

from tracekit.cli import options as opt
from tracekit.model.errors import TracekitError
from tracekit.model.system.installed import install_command


@click.command(name="mcp", short_help="Answer agents, by the Model Context Protocol.")
@click.option(
    "--root",
    "roots",
    multiple=True,
    required=True,
    type=click.Path(),
    metavar="DIR",
    help="A directory whose profiles may be read, and nothing outside. Repeatable.",
)
@opt.verbose
def command(*, roots: tuple[str, ...], verbose: bool) -> int:
    """Answer agents, by the Model Context Protocol, over standard input and output.

    An agent's program starts this command. It can ask for reports, findings, tables and comparisons of the
    profiles below each DIR; nothing is written, and nothing outside is read.
    """
    del verbose
    from tracekit.agents.roots import resolve_roots

    folders = resolve_roots(roots)
    if find_spec("mcp") is None:
        raise TracekitError("mcp needs the package mcp", install_command("mcp"))
    from tracekit.agents import server

    server.serve_mcp(folders)
    return 0
