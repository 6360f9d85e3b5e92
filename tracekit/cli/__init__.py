"""Command-line entry point: imports the command, and turns errors into messages and exit statuses.

Imports only click, and a command's module on demand: `tracekit --version` and shell completion must not wait for pandas.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from tracekit.cli import exit_status, terminal
from tracekit.model.system.installed import require_alone
from tracekit.model.system.signals import ignore_signals
from tracekit.model.text.redaction import remember_secrets
from tracekit.model.version import VERSION

COMMAND_GROUPS = {
    "Start": ("demo", "analyze", "open", "inspect", "doctor"),
    "Compare": ("compare", "gate", "noise", "whatif"),
    "Look up": ("explain", "tables", "sql", "schema"),
    "Connect": ("export", "cut", "log", "collect", "mcp"),
    "Housekeeping": ("cache", "completion"),
}
COMMANDS = tuple(name for names in COMMAND_GROUPS.values() for name in names)
"""Commands in help order; each is `command` in the module of its name, some in a folder."""

ALIASES = {"render": "export", "top": "analyze", "diff": "compare"}
"""Names under which a command is called, too; help does not list them."""

_FOLDERS = {"export": "traces", "cut": "traces"}
"""Folders of the commands whose module is in one."""

PROGRAM = "tracekit"
COMPLETE = "_TRACEKIT_COMPLETE"

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Settings that keep numpy and pandas from starting threads they do not need, which lets workers fork."""

GC_THRESHOLD = 300_000
"""Threshold of the cyclic garbage collector: its default of 700 costs 5 % of a small analysis and frees nothing."""


class CommandGroup(click.Group):
    """The group of all commands; `main` never returns, and every exit path has its own status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of all commands in help order."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of this name; None if it does not exist."""
        del ctx
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        place = f"{_FOLDERS[cmd_name]}.{cmd_name}" if cmd_name in _FOLDERS else cmd_name
        command: click.Command = importlib.import_module(f"tracekit.cli.commands.{place}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their groups."""
        width = max(map(len, COMMANDS))
        for title, names in COMMAND_GROUPS.items():
            commands = [(name.ljust(width), self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(200)) for name, command in commands if command])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command in `args`; raises `TracekitError` with the closest name for an unknown one."""
        name = args[0]
        if name in COMMANDS or name in ALIASES or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from tracekit.model.errors import TracekitError
        from tracekit.model.text.labels import did_you_mean

        is_path = os.path.exists(name)  # noqa: PTH110 - os.path returns False for invalid paths, where Path raises
        hint = f"{PROGRAM} analyze {name}" if is_path else f"{PROGRAM} --help"
        raise TracekitError(f"no command {name!r}{did_you_mean(name, (*COMMANDS, *ALIASES))}", hint)

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> NoReturn:
        """Run the command in `args` (default: those of the process), and exit with its status."""
        status = self.status(list(sys.argv[1:] if args is None else args))
        if args is None:
            # Only if tracekit owns the process: a program that passes `args` continues.
            if status in (exit_status.INTERRUPTED, exit_status.TERMINATED):
                from tracekit.model.system.lifetime import exit_at_once

                exit_at_once(status)
            ignore_signals()
        gc.freeze()  # skips the final garbage collection at exit
        sys.exit(status)

    def status(self, args: list[str]) -> int:
        """Run `args`, print any error message, and return the exit status."""
        instruction = os.environ.get(COMPLETE)
        if instruction:
            from click.shell_completion import shell_complete

            return shell_complete(self, {}, PROGRAM, COMPLETE, instruction)
        terminal.prepare_streams()
        for arg in args:
            remember_secrets(arg)
        for name, value in ONE_THREAD.items():
            os.environ.setdefault(name, value)
        gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])
        context: click.Context | None = None

        def work() -> object:
            nonlocal context
            require_alone()
            with exit_status.raise_on_signals(), self.make_context(PROGRAM, args) as context:
                status = self.invoke(context)
            terminal.write_output("")  # flush here, where an error can still be reported
            return status

        try:
            return exit_status.get_exit_status(work, lambda: bool(context and terminal.is_verbose(context)))
        finally:
            terminal.resume_workflow_commands()


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """Print the version and exit, if requested."""
    if wanted and not ctx.resilient_parsing:
        terminal.write_output(f"{PROGRAM} {VERSION}\n")
        if terminal.is_verbose(ctx):
            from tracekit.cli.compiled_parts import COMPILED_PARTS, REMEDY, describe_missing_parts

            if phrase := describe_missing_parts():
                terminal.print_problem(phrase, REMEDY)
            else:
                terminal.write_output(f"{len(COMPILED_PARTS)} of {len(COMPILED_PARTS)} compiled parts are in use\n")
        ctx.exit()


# Print the help ourselves: click's stream and exit status differ between its versions.
@click.group(cls=CommandGroup, invoke_without_command=True, context_settings=SETTINGS)
@click.option("--version", is_flag=True, expose_value=False, callback=_print_version, help="Print the version.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=terminal.set_verbose,
    help="With --version: show whether the compiled parts are in use.",
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Offline profiler for RL post-training: where step time and GPU memory go, and what to fix.

    \b
    tracekit demo                                      analyze the example
    tracekit analyze outputs/profile                   the answer on one screen
    tracekit analyze outputs/profile -o report.html    the full report as a page
    tracekit compare base/ opt/                        test whether a change helped
    """  # noqa: D301 - \b keeps click from wrapping
    if ctx.invoked_subcommand is None:
        terminal.write_output(f"{ctx.get_help()}\n")
