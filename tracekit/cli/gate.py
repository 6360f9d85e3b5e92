"""`tracekit gate`: budgets of one profile without a baseline, and whether a gate can fail at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tracekit.cli import ci, gating, terminal, work
from tracekit.model.errors import TracekitError

if TYPE_CHECKING:
    from tracekit.compare.sides import Side
    from tracekit.compare.slowed import SelfTest
    from tracekit.model.report import Gate, Report


@click.command(name="gate", short_help="Hold a profile to its budgets, or test the gate itself.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option(
    "--self-test",
    "self_test",
    is_flag=True,
    help="Make the steps of PATH 20 % longer in memory, and fail unless the gate does.",
)
@gating.options
@work.options
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Also write the outcome here; the suffix is the format (.html .md .json .txt .xml). Repeatable.",
)
@click.option(
    "--export",
    "exports",
    multiple=True,
    metavar="KIND=PATH",
    help="Also write the outcome as KIND: junit=FILE, github=- (annotations). Repeatable.",
)
@click.option(
    "--drop-first",
    type=click.IntRange(min=0),
    metavar="N",
    help="Leave out the first N steps of every run [default: those known to be warm-up].",
)
@click.option(
    "--assume-independent-steps",
    is_flag=True,
    help="With --self-test: let one run decide, as if its steps were runs.",
)
@click.option("-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Files read at once.")
@click.option("--strict", is_flag=True, help="Exit with 2 if any file could not be read.")
@terminal.quiet_option
@terminal.verbose_option
def command(  # noqa: PLR0913 - one per option
    *,
    paths: tuple[str, ...],
    self_test: bool,
    fail_on: tuple[str, ...],
    config: str | None,
    isolated: bool,
    on_inconclusive: str | None,
    allow_untested: bool,
    tokens: float | None,
    samples: float | None,
    images: float | None,
    outputs: tuple[str, ...],
    exports: tuple[str, ...],
    drop_first: int | None,
    assume_independent_steps: bool,
    jobs: int | None,
    strict: bool,
    quiet: bool,
    verbose: bool,  # noqa: ARG001 - the stack of an error
) -> int:
    """Hold one profile to its budgets (`max` and `min` in the gate's file), without a baseline.

    PATH is what `tracekit compare` takes for a side. With --self-test it is a baseline, and the exit status
    is 0 where the gate notices that its steps became 20 % longer, and 2 where it does not.
    """
    from tracekit.compare.changes import Choices
    from tracekit.compare.gate import gates, overall
    from tracekit.compare.slowed import self_test as held_against_itself
    from tracekit.pipeline import comparing
    from tracekit.pipeline import run as pipeline

    gate = gating.gate_file(
        fail_on, config, on_inconclusive, isolated=isolated, allow_untested=allow_untested
    )
    if gate.rules.stated and not gate.rules:
        return gating.of_empty(gate.rules)
    if not gate.rules:
        raise TracekitError("no rule is set", "--fail-on 'step_time>3%', or a tracekit.toml")
    if not (self_test or any(rule.test == "budget" for rule in gate.rules.rules)):
        raise TracekitError(
            "every rule is about a change, which needs a baseline",
            "tracekit compare BASE OPT, or rules with max = or min =",
        )
    targets = ci.targets(outputs, exports, quiet=quiet)
    counts = work.told(tokens, samples, images)
    options = pipeline.Options(jobs=jobs, progress=not quiet, work=counts)
    choices = Choices(
        level=0.95 if gate.level is None else gate.level,
        drop_first=drop_first,
        assume_independent_steps=assume_independent_steps,
    )
    side = comparing.read_runs(_name(paths), paths, options, choices)
    if self_test:
        tested = held_against_itself(gate.rules, side, choices)
        ci.write(_tested(side, tested), tested.gates, targets, verbose=True, quiet=quiet)
        if not tested.fails:
            terminal.tell_problem(
                "the gate does not fail where every step takes 20 % longer: it guards nothing",
                _try(tested),
            )
        return gating.PASSED if tested.fails else gating.FAILED
    budgets = tuple(rule for rule in gate.rules.rules if rule.test == "budget")
    found = gates(replace(gate.rules, rules=budgets), None, side, choices)
    report = _held(side, found, len(gate.rules.rules) - len(budgets))
    ci.write(report, found, targets, verbose=True, quiet=quiet, rules=gate.rules)
    ci.tell_github({"gate": overall(found)}, targets)
    if not any(target.printed and target.format == "text" for target in targets):
        gating.tell(gate.rules, found)
    if strict and (side.errors or any(part.failures for part in side.measured)):
        return gating.FAILED
    return gating.status(gate.rules, found)


def _name(paths: tuple[str, ...]) -> str:
    """What the side is called."""
    from tracekit.discover.arguments import split_label

    label, path = split_label(paths[0])
    return (label or path.name or str(path)) if len(paths) == 1 else "runs"


def _held(side: Side, found: tuple[Gate, ...], changes: int) -> Report:
    """The outcome of budgets as a report, which says how many rules are about changes."""
    from tracekit.compare.gate_sheet import gate_section, gate_word
    from tracekit.model.report import Report
    from tracekit.model.version import VERSION

    simulated = ["SIMULATED DATA"] if side.simulated else []
    section = gate_section(found)
    if changes:
        are = "rule is about a change" if changes == 1 else "rules are about changes"
        note = f"{changes} {are} and not held here: tracekit compare BASE OPT"
        section = replace(section, caveats=(*section.caveats, note))
    return Report(
        title=side.name,
        tool_version=VERSION,
        identity=(side.name, *simulated),
        answer=gate_word(found),
        sections=(section,),
    )


def _tested(side: Side, tested: SelfTest) -> Report:
    """What the test of the gate itself showed, as a report."""
    from tracekit.compare.gate_sheet import outcome_text
    from tracekit.model.report import Heading, Report, Section, Sheet
    from tracekit.model.version import VERSION

    headings = (
        Heading("rule", "rule"), Heading("outcome", "of steps 20 % longer"), Heading("can", "can fail"),
    )  # fmt: skip
    rows = tuple(
        (gate.rule, outcome_text(gate), one.can_fail) for one in tested.rules for gate in one.slowed
    )
    answer = "the gate can fail" if tested.fails else "the gate cannot fail as it should"
    never = sum(not one.can_fail for one in tested.rules)
    detail = f"; {never} of {len(tested.rules)} rules can never fail" if never else ""
    table = Sheet("self-test", "Rules", headings, rows)
    reasons = tuple(
        f"can never fail: {one.slowed[0].rule}: {one.reason}"
        for one in tested.rules
        if one.slowed and not one.can_fail
    )
    reasons += tuple(
        f"already fails without being slowed: {one.slowed[0].rule}"
        for one in tested.rules
        if one.already
    )
    section = Section("self-test", "The gate held against itself", sheets=(table,), caveats=reasons)
    return Report(
        title=side.name,
        tool_version=VERSION,
        identity=(side.name, "every step made 20 % longer in memory"),
        answer=answer + detail,
        sections=(section,),
    )


def _try(tested: SelfTest) -> str:
    """What would make the gate notice."""
    from tracekit.model.stats.verdict import CAPS

    said = {caveat for gate in tested.gates for caveat in gate.caveats}
    if said & {CAPS["one run each"], CAPS["one run alone"]}:
        return "give several runs of it, or test the estimate alone: 'step_time>point:3%'"
    if any(gate.outcome == "inconclusive" and gate.severity == "error" for gate in tested.gates):
        return "its runs differ too much to show 20 %: record more of them, or test the estimate: 'step_time>point:3%'"
    return "add a rule on step_time below 20 %, of severity error"
