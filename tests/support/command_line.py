"""The command line in this process, both of its streams apart in every version of click."""

from inspect import signature

from click.testing import CliRunner

from tracekit.cli import main

# Before 8.2 click puts both streams together unless it is told not to.
APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}


def invoke(*args):
    """What running tracekit with these arguments printed, and its exit status."""
    return CliRunner(**APART).invoke(main, [str(arg) for arg in args])
