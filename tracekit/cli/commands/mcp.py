"""`tracekit mcp`: the MCP server."""

from __future__ import annotations

from importlib.util import find_spec

import click

from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand
from tracekit.model.errors import TracekitError
from tracekit.model.system.installed import install_command


@click.command(name="mcp", cls=GroupedCommand, short_help="MCP server: reports and tables for AI agents.")
@click.option(
    "--root",
    "roots",
    multiple=True,
    required=True,
    type=click.Path(),
    metavar="DIR",
    help="Directory of profiles to serve; nothing outside is read. Repeatable.",
)
@opt.verbose
def command(*, roots: tuple[str, ...], verbose: bool) -> int:
    """Run an MCP server over standard input and output.

    An AI agent starts this command, and asks for reports, findings, tables and comparisons of the profiles below
    each DIR. The server writes nothing, and reads nothing outside.
    """
    del verbose
    from tracekit.agents.roots import resolve_roots

    folders = resolve_roots(roots)
    if find_spec("mcp") is None:
        raise TracekitError("mcp needs the package mcp", install_command("mcp"))
    from tracekit.agents import server

    server.serve_mcp(folders)
    return 0
