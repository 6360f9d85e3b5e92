"""Where files are read, as told on the command line: on this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

F = Callable[..., Any]


def options(command: F) -> F:
    """The command with `engine`, `ray_address` and `on_every_node`."""
    command = click.option(
        "--on-every-node",
        multiple=True,
        metavar="PATTERN",
        help="With Ray: what lies there on each node; ~ and $VARIABLES are those of the node. Repeatable.",
    )(command)
    command = click.option(
        "--ray-address",
        metavar="ADDR",
        help="The cluster [default: RAY_ADDRESS, else one is started here].",
    )(command)
    return click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Read here, or with Ray on the nodes where the files lie (needs ray).",
    )(command)


def need_paths(paths: Sequence[str], on_every_node: Sequence[str], name: str) -> None:
    """Nothing; raises click's own error where neither a path nor a pattern was given."""
    if not paths and not on_every_node:
        raise click.UsageError(f"Missing argument '{name}...'.")
