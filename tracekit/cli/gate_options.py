"""Gate options: parse the gate rules of a command, and map their outcomes to exit statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, date, datetime
from glob import has_magic, iglob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.completions import complete_names, list_fail_on_words
from tracekit.model.records import dataclass

if TYPE_CHECKING:
    from tracekit.compare.gate_rules import GateRules
    from tracekit.compare.gates.gate_file import GateFile
    from tracekit.model.report import Gate

PASSED, BREACHED, FAILED, UNDECIDED = 0, 1, 2, 3

_MAX_GATE_LINES = 20


@dataclass(frozen=True, slots=True)
class GateOptions:
    """The gate options of the command line."""

    fail_on: tuple[str, ...]
    config: str | None
    isolated: bool
    on_inconclusive: str | None
    allow_untested: bool


_GATE_FIELDS = tuple(field.name for field in fields(GateOptions))


def _parse_gate_options(parameters: Mapping[str, Any]) -> GateOptions:
    """Parse the gate options of a command."""
    return GateOptions(**{name: parameters[name] for name in _GATE_FIELDS})


_CHANGE_RULES = (
    "Exit with status 1 if the second side is worse by more than a limit, METRIC>LIMIT: 'step_time>3%', "
    "'memory.peak_allocated>256MiB'. 'step_time>point:5%' tests the estimate without its interval. Also takes "
    "keywords: regression (a significant slowdown), new-oom (out of memory only on the second side). Repeatable."
)
TESTED_RULES = (
    "With --self-test: also test this limit on a change, as in tracekit compare: 'step_time>3%'. A budget of one "
    'profile needs a gate file: max = "20ms" or min. Repeatable.'
)


def add_gate_options(fail_on: str = _CHANGE_RULES) -> opt.Decorator:
    """Add all gate options, which the command receives as `gate`; `fail_on` describes its rules of changes."""
    return opt.chain_decorators(
        opt.collect_options("gate", _parse_gate_options, _GATE_FIELDS),
        click.option(
            "--fail-on",
            multiple=True,
            metavar="RULE",
            shell_complete=complete_names(list_fail_on_words),
            help=fail_on,
        ),
        click.option(
            "--config",
            type=click.Path(),
            metavar="FILE",
            help="File of gate rules [default: the nearest tracekit.toml, or [tool.tracekit.gate]].",
        ),
        click.option("--isolated", is_flag=True, help="Do not look for a file of gate rules."),
        click.option(
            "--on-inconclusive",
            type=click.Choice(["warn", "fail"]),
            help="Treat an inconclusive gate as a warning, or exit with status 3 [default: warn].",
        ),
        click.option(
            "--allow-untested",
            is_flag=True,
            help="Pass with a warning, not status 3, if rules have no data or there are no rules.",
        ),
    )


def load_gate_file(choice: GateOptions, least_effect: float | None = None) -> GateFile:
    """Combine the gate of the command line with that of a file; raises if either is invalid.

    `least_effect` is the share from which a change counts as a regression, if given on the command line.
    """
    from tracekit.compare.gates import gate_file as files

    path = Path(choice.config) if choice.config else None
    if path is None and not choice.isolated:
        path = files.find_gate_file(Path.cwd())
    stated = files.read(path) if path else files.GateFile()
    rules = files.combine_gate_rules(stated, choice.fail_on, least_effect)
    rules = replace(rules, untested_passes=choice.allow_untested)
    if choice.on_inconclusive is not None:
        rules = replace(rules, inconclusive_fails=choice.on_inconclusive == "fail")
    if rules.accepts:
        rules = replace(rules, today=get_today())
    return replace(stated, rules=rules)


def get_today() -> date:
    """Get the date by which exceptions expire; called only if there are any."""
    return datetime.now(UTC).date()


def is_option_default(name: str) -> bool:
    """Check whether an option was not given on the command line, which lets a file set it."""
    from click.core import ParameterSource

    source = click.get_current_context().get_parameter_source(name)
    return source in (None, ParameterSource.DEFAULT)


def get_gate_status(rules: GateRules, gates: Sequence[Gate]) -> int:
    """Get the exit status of a gate: 1 only for a breach."""
    outcomes = {gate.outcome for gate in gates if gate.severity == "error"}
    if "fail" in outcomes:
        return BREACHED
    if "expired" in outcomes:
        return FAILED
    undecided = {"not comparable"}
    if not rules.untested_passes:
        undecided.add("not tested")
    if rules.inconclusive_fails:
        undecided.add("inconclusive")
    return UNDECIDED if outcomes & undecided else PASSED


def report_empty_gate(rules: GateRules) -> int:
    """Print that a gate without rules tested nothing, and return its exit status."""
    terminal.print_problem(
        f"{', '.join(rules.sources)}: the gate has no rule, so nothing was tested",
        'add fail-on = ["regression"], or a rule; or use --allow-untested',
    )
    return PASSED if rules.untested_passes else UNDECIDED


def print_failed_rules(rules: GateRules, gates: Sequence[Gate]) -> None:
    """Print every rule that did not pass to standard error, even with --quiet."""
    from tracekit.render.escape import make_printable

    failing = [gate for gate in gates if gate.outcome != "pass"]
    for gate in failing[:_MAX_GATE_LINES]:
        reasons = "".join(f" ({caveat})" for caveat in gate.caveats)
        word: str = gate.outcome
        if gate.severity != "error":
            word += ", only warns"
        terminal.print_message(f"tracekit: gate: {word}: {make_printable(gate.claim + reasons)}")
    if len(failing) > _MAX_GATE_LINES:
        terminal.print_message(f"tracekit: gate: {len(failing) - _MAX_GATE_LINES} more")
    untested = sum((gate.outcome, gate.severity) == ("not tested", "error") for gate in failing)
    if untested and not rules.untested_passes:
        terminal.print_problem(
            f"gate: {untested} of {len(gates)} rules tested nothing",
            "fix the rule, or record its metric; --allow-untested lets it pass",
        )


def find_missing_path(paths: Sequence[str | Path]) -> str | None:
    """Find the first baseline path without any file; None if all have some."""
    from tracekit.discover.arguments import split_label

    for argument in paths:
        _, path = split_label(argument)
        if _is_path_empty(path):
            return str(path)
    return None


def _is_path_empty(path: Path) -> bool:
    """Check whether no file exists at or matches the path, or it is an empty directory."""
    if path.is_dir():
        return not any(path.iterdir())
    pattern = str(path)
    matches = iglob(pattern, recursive=True) if has_magic(pattern) else ()  # noqa: PTH207 - Path.glob refuses absolute patterns
    return not path.exists() and next(iter(matches), None) is None
