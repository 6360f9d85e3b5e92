"""The command line: finds the command, and turns what it raises into a message and an exit status.

Only click is imported here, and a command's module only when it is asked for: `tracekit --version` and
shell completion must not wait for pandas.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from tracekit.cli import leaving, terminal
from tracekit.model.installed import require_alone
from tracekit.model.redaction import remember
from tracekit.model.version import VERSION

COMMANDS = (
    "demo",
    "analyze",
    "compare",
    "gate",
    "noise",
    "inspect",
    "doctor",
    "render",
    "export",
    "log",
    "collect",
    "explain",
    "tables",
    "sql",
    "schema",
    "mcp",
    "cache",
    "completion",
)
"""Each is `command` in the module of its name."""

PROGRAM = "tracekit"
COMPLETE = "_TRACEKIT_COMPLETE"

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""What keeps numpy and pandas from starting threads that nothing here needs: workers can be forked then."""

NEW_OBJECTS = 300_000
"""The collector of cycles looks after so many new objects, more than a small analysis makes: with its 700 it takes a twentieth of the time to find nothing."""


class Commands(click.Group):
    """The group of all commands; `main` never returns, and every way out of it has its status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, in the order in which a person needs them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None if there is none."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tracekit.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """What click says of the command that `args` name; for none of ours the nearest is named."""
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from tracekit.model.errors import TracekitError
        from tracekit.model.labels import did_you_mean

        is_path = os.path.exists(name)  # noqa: PTH110 - false, not an error, for what is no path
        hint = f"{PROGRAM} analyze {name}" if is_path else f"{PROGRAM} --help"
        raise TracekitError(f"no command {name!r}{did_you_mean(name, COMMANDS)}", hint)

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> NoReturn:
        """Run the command that `args` (by default the process's own) name, and leave with its status."""
        status = self.status(list(sys.argv[1:] if args is None else args))
        if args is None and status in (leaving.INTERRUPTED, leaving.TERMINATED):
            # The process is this command's own: a program that passes `args` goes on after it.
            from tracekit.model.lifetime import leave_at_once

            leave_at_once(status)
        gc.freeze()  # or Python would look through all that is left for cycles once more, to free it an instant earlier
        sys.exit(status)

    def status(self, args: list[str]) -> int:
        """The exit status of running `args`, after any message."""
        instruction = os.environ.get(COMPLETE)
        if instruction:
            from click.shell_completion import shell_complete

            return shell_complete(self, {}, PROGRAM, COMPLETE, instruction)
        terminal.prepare()
        for arg in args:
            remember(arg)
        for name, value in ONE_THREAD.items():
            os.environ.setdefault(name, value)
        gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
        context: click.Context | None = None

        def work() -> object:
            nonlocal context
            require_alone()
            with leaving.terminable(), self.make_context(PROGRAM, args) as context:
                status = self.invoke(context)
            terminal.say("")  # what is still buffered must fail here, where it can be reported
            return status

        try:
            return leaving.status_of(work, lambda: bool(context and terminal.is_verbose(context)))
        finally:
            terminal.resume_commands()


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """Nothing; prints the version and leaves when that is wanted."""
    if wanted and not ctx.resilient_parsing:
        terminal.say(f"{PROGRAM} {VERSION}\n")
        if terminal.is_verbose(ctx):
            from tracekit.cli.compiled import PARTS, REMEDY, missing_phrase

            if phrase := missing_phrase():
                terminal.tell_problem(phrase, REMEDY)
            else:
                terminal.say(f"{len(PARTS)} of {len(PARTS)} compiled parts are in use\n")
        ctx.exit()


# Without a command click would print the help itself: to other streams and with another status in each version.
@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=terminal.set_verbose,
    help="With --version: tell whether the compiled parts are in use.",
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Where the time and the memory of an RL post-training run went, and what to do about it.

    \b
    tracekit demo                                      try it on an example
    tracekit analyze outputs/profile                   the answer on one screen
    tracekit analyze outputs/profile -o report.html    all of it
    tracekit inspect outputs/profile                   which files are read, and as what
    """  # noqa: D301 - \b keeps click from wrapping
    if ctx.invoked_subcommand is None:
        terminal.say(f"{ctx.get_help()}\n")
