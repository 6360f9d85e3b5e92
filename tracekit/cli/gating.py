"""What gates the command line: where the rules come from, and which exit status their outcome is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from glob import has_magic, iglob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli import terminal

if TYPE_CHECKING:
    from tracekit.compare.gate_file import GateFile
    from tracekit.compare.gate_rules import Rules
    from tracekit.model.report import Gate

PASSED, BREACHED, FAILED, UNDECIDED = 0, 1, 2, 3

_MOST_LINES = 20


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options that say what its gate is."""
    for option in reversed(
        (
            click.option(
                "--fail-on",
                multiple=True,
                metavar="RULE",
                help="Exit with 1 where this is exceeded: 'step_time>3%', 'memory.peak_allocated>256MiB', "
                "'step_time>point:5%'; or a word: regression, new-oom. Repeatable.",
            ),
            click.option(
                "--config",
                type=click.Path(),
                metavar="FILE",
                help="The gate's rules [default: the nearest tracekit.toml, or [tool.tracekit.gate]].",
            ),
            click.option("--isolated", is_flag=True, help="Look for no file with rules."),
            click.option(
                "--on-inconclusive",
                type=click.Choice(["warn", "fail"]),
                help="What an inconclusive gate is: a warning, or exit status 3 [default: warn].",
            ),
            click.option(
                "--allow-untested",
                is_flag=True,
                help="Let a gate pass with rules that nothing was recorded for, or with none: a warning, not status 3.",
            ),
        )
    ):
        command = option(command)
    return command


def gate_file(
    fail_on: Sequence[str],
    config: str | None,
    on_inconclusive: str | None,
    *,
    isolated: bool,
    allow_untested: bool,
    least: float | None = None,
) -> GateFile:
    """The gate of the command line and of a file; raises for whatever either does not mean.

    `least` is the share from which on a change is a regression, where the command line says so.
    """
    from tracekit.compare import gate_file as files

    path = Path(config) if config else None if isolated else files.find(Path.cwd())
    found = files.read(path) if path else files.GateFile()
    rules = replace(files.together(found, fail_on, least), untested_passes=allow_untested)
    if on_inconclusive is not None:
        rules = replace(rules, inconclusive_fails=on_inconclusive == "fail")
    if rules.accepts:
        rules = replace(rules, today=today())
    return replace(found, rules=rules)


def today() -> date:
    """The day by which exceptions are judged; only asked for where there are any."""
    return datetime.now(UTC).date()


def is_default(name: str) -> bool:
    """Whether an option of the running command was not given, so that a file may say it."""
    from click.core import ParameterSource

    source = click.get_current_context().get_parameter_source(name)
    return source in (None, ParameterSource.DEFAULT)


def status(rules: Rules, gates: Sequence[Gate]) -> int:
    """The exit status of a gate: 1 for a breach and nothing else."""
    outcomes = {gate.outcome for gate in gates if gate.severity == "error"}
    if "fail" in outcomes:
        return BREACHED
    if "expired" in outcomes:
        return FAILED
    undecided = {"not comparable"}
    undecided |= set() if rules.untested_passes else {"not tested"}
    undecided |= {"inconclusive"} if rules.inconclusive_fails else set()
    return UNDECIDED if outcomes & undecided else PASSED


def of_empty(rules: Rules) -> int:
    """The exit status of a gate without a rule, which standard error tells: nothing was tested."""
    terminal.tell_problem(
        f"{', '.join(rules.sources)}: the gate holds no rule: nothing was tested",
        'add fail-on = ["regression"], or a rule; or say --allow-untested',
    )
    return PASSED if rules.untested_passes else UNDECIDED


def tell(rules: Rules, gates: Sequence[Gate]) -> None:
    """Nothing; writes every rule that did not pass to standard error, also with --quiet."""
    from tracekit.render.escape import printable

    found = [gate for gate in gates if gate.outcome != "pass"]
    for gate in found[:_MOST_LINES]:
        why = "".join(f" ({caveat})" for caveat in gate.caveats)
        word = gate.outcome if gate.severity == "error" else f"{gate.outcome}, only warns"
        terminal.tell(f"tracekit: gate: {word}: {printable(gate.claim + why)}")
    if len(found) > _MOST_LINES:
        terminal.tell(f"tracekit: gate: {len(found) - _MOST_LINES} more")
    untested = sum((gate.outcome, gate.severity) == ("not tested", "error") for gate in found)
    if untested and not rules.untested_passes:
        terminal.tell_problem(
            f"gate: {untested} of {len(gates)} rules tested nothing",
            "mend the rule, or record what it asks for; --allow-untested lets it pass",
        )


def missing(paths: Sequence[str | Path]) -> str | None:
    """The first path of a baseline where nothing is; None where there is something at each."""
    from tracekit.discover.arguments import split_label

    for given in paths:
        _, path = split_label(given)
        text = str(path)
        there = path.exists() or (
            has_magic(text) and any(True for _ in iglob(text, recursive=True))  # noqa: PTH207 - may be absolute
        )
        if not there or (path.is_dir() and not any(path.iterdir())):
            return text
    return None
