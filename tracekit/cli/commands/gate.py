"""`tracekit gate`: check a profile against budgets without a baseline, or test whether a gate can fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tracekit.cli import ci_outputs, gate_options, terminal
from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand
from tracekit.model.errors import TracekitError
from tracekit.model.text.labels import choose_plural

if TYPE_CHECKING:
    from tracekit.cli.report_outputs import OutputTarget
    from tracekit.compare.changes import ComparisonChoices
    from tracekit.compare.gate_rules import GateRules
    from tracekit.compare.gates.self_test import GateSelfTest
    from tracekit.compare.sides import ComparedSide
    from tracekit.model.report import Gate, Report, Section
    from tracekit.pipeline.options import Options


@click.command(name="gate", cls=GroupedCommand, short_help="Check a profile against budgets.")
@opt.add_paths()
@click.option(
    "--self-test",
    "self_test",
    is_flag=True,
    help="Make the steps of PATH 20 % longer in memory, and check that the gate fails.",
)
@gate_options.add_gate_options(gate_options.TESTED_RULES)
@opt.work
@opt.add_results(
    "outcome",
    opt.COMPARISON_FORMATS,
    exports="junit=FILE, github=- (annotations), json=- (standard output)",
    folders=opt.FOLDER_FORMATS,
)
@opt.drop_first
@click.option(
    "--assume-independent-steps",
    is_flag=True,
    help="With --self-test: treat steps as independent runs, so that one run can decide.",
)
@opt.jobs
@opt.cache
@opt.add_strict()
@opt.quiet
@opt.verbose
@opt.reading
@opt.statistics
def command(  # noqa: PLR0913 - what is given, one by one
    *,
    paths: tuple[str, ...],
    self_test: bool,
    gate: gate_options.GateOptions,
    requested: opt.RequestedOutputs,
    options: Options,
    choices: ComparisonChoices,
    strict: bool,
    quiet: bool,
    verbose: bool,  # noqa: ARG001 - read by `terminal.set_verbose`
) -> int:
    """Check a profile against budgets (`max` and `min` in the gate file), without a baseline.

    PATH is anything that `tracekit compare` accepts as a side. With --self-test, PATH is a baseline: the exit
    status is 0 if the gate detects that its steps became 20 % longer, and 2 if not.
    """
    from tracekit.pipeline import comparing

    gate_file = gate_options.load_gate_file(gate)
    rules = gate_file.rules
    if rules.stated and not rules:
        return gate_options.report_empty_gate(rules)
    _refuse_untestable_rules(rules, self_test=self_test)
    targets = ci_outputs.list_comparison_targets(requested, rules, quiet=quiet)
    if gate_file.level is not None:
        choices = replace(choices, level=gate_file.level)
    side = comparing.read_side_with_logs(_name_gated_side(paths), paths, options, choices)
    if self_test:
        return _run_self_test(rules, side, choices, targets, quiet=quiet)
    outcomes = _check_budgets(rules, side, choices, targets, quiet=quiet)
    if strict and (side.errors or any(part.failures for part in side.measured)):
        return gate_options.FAILED
    return gate_options.get_gate_status(rules, outcomes)


_BUDGET_HINT = """in tracekit.toml: [[gate.rule]], metric = "step_time", max = "20ms\""""


def _refuse_untestable_rules(rules: GateRules, *, self_test: bool) -> None:
    """Raise `TracekitError` if no rule applies to a single profile."""
    if not rules:
        raise TracekitError("no rule is set", _BUDGET_HINT)
    if not (self_test or any(rule.test == "budget" for rule in rules.rules)):
        raise TracekitError(
            "every rule is about a change, which needs a baseline",
            f"tracekit compare BASE OPT; or a budget, {_BUDGET_HINT}",
        )


def _run_self_test(
    rules: GateRules, side: ComparedSide, choices: ComparisonChoices, targets: Sequence[OutputTarget], *, quiet: bool
) -> int:
    """Compare a side with a slowed copy of itself, write the result, and return the exit status."""
    from tracekit.compare.gates.self_test import run_gate_self_test

    tested = run_gate_self_test(rules, side, choices)
    ci_outputs.write_gate_targets(_report_self_test(side, tested), tested.gates, targets, verbose=True, quiet=quiet)
    if tested.fails:
        return gate_options.PASSED
    terminal.print_problem(
        "the gate does not fail although every step takes 20 % longer: it detects nothing", _suggest_gate_fix(tested)
    )
    return gate_options.FAILED


def _check_budgets(
    rules: GateRules, side: ComparedSide, choices: ComparisonChoices, targets: Sequence[OutputTarget], *, quiet: bool
) -> tuple[Gate, ...]:
    """Check every budget, write the outcomes, and print those that did not pass."""
    from tracekit.compare.gates.outcomes import apply_gate_rules, summarize_gates

    budgets = tuple(rule for rule in rules.rules if rule.test == "budget")
    outcomes = apply_gate_rules(replace(rules, rules=budgets), None, side, choices)
    report = _report_budgets(side, outcomes, len(rules.rules) - len(budgets))
    ci_outputs.write_gate_targets(report, outcomes, targets, verbose=True, quiet=quiet, rules=rules)
    ci_outputs.write_step_outputs({"gate": summarize_gates(outcomes)}, targets)
    if not any(target.printed and target.format == "text" for target in targets):
        gate_options.print_failed_rules(rules, outcomes)
    return outcomes


def _name_gated_side(paths: tuple[str, ...]) -> str:
    """Name the side after its label or path."""
    from tracekit.discover.arguments import split_label

    label, path = split_label(paths[0])
    return (label or path.name or str(path)) if len(paths) == 1 else "runs"


def _report_budgets(side: ComparedSide, outcomes: tuple[Gate, ...], changes: int) -> Report:
    """Report the outcomes of budgets, with the number of rules that need a baseline."""
    from tracekit.compare.gates.gate_sheet import build_gate_section, describe_gate_result

    section = build_gate_section(outcomes)
    if changes:
        are = choose_plural(changes, "rule is about a change", "rules are about changes")
        note = f"{changes} {are} and not checked here: tracekit compare BASE OPT"
        section = replace(section, caveats=(*section.caveats, note))
    remarks = ("SIMULATED DATA",) * side.simulated
    return _make_gate_report(side, remarks, describe_gate_result(outcomes), section)


def _make_gate_report(side: ComparedSide, remarks: tuple[str, ...], answer: str, section: Section) -> Report:
    """Make a report of one section on one side."""
    from tracekit.model.report import Report
    from tracekit.model.version import VERSION

    return Report(side.name, VERSION, (side.name, *remarks), answer=answer, sections=(section,))


def _report_self_test(side: ComparedSide, tested: GateSelfTest) -> Report:
    """Report the self-test of the gate."""
    from tracekit.compare.gates.gate_sheet import format_gate_outcome
    from tracekit.model.report import Heading, Section, Sheet

    headings = (Heading("rule", "rule"), Heading("outcome", "of steps 20 % longer"), Heading("can", "can fail at all"))
    rows: list[tuple[str, str, bool]] = []
    powerless, failing = [], []
    for rule in tested.rules:
        rows += [(gate.rule, format_gate_outcome(gate), rule.can_fail) for gate in rule.slowed]
        if rule.slowed and not rule.can_fail and not rule.only_warns:
            powerless.append(f"can never fail: {rule.slowed[0].rule}: {rule.reason}")
        if rule.already:
            failing.append(f"already fails without being slowed: {rule.slowed[0].rule}")
    answer = "the gate can fail" if tested.fails else "the gate does not fail where steps take 20 % longer"
    never = sum(not rule.can_fail and not rule.only_warns for rule in tested.rules)
    if never:
        answer += f"; {never} of {len(tested.rules)} rules can never fail"
    table = Sheet("self-test", "Rules", headings, tuple(rows))
    caveats = (*powerless, *failing)
    section = Section("self-test", "Gate self-test", sheets=(table,), caveats=caveats)
    return _make_gate_report(side, ("every step made 20 % longer in memory",), answer, section)


def _suggest_gate_fix(tested: GateSelfTest) -> str:
    """Suggest a change that makes the gate fail."""
    from tracekit.model.stats.needed import LEAST_RUNS_OF_PLAN
    from tracekit.model.stats.verdict import CAPS

    caveats = {caveat for gate in tested.gates for caveat in gate.caveats}
    if caveats & {CAPS["one run each"], CAPS["one run alone"]}:
        return "give several runs, or test the estimate alone: 'step_time>point:3%'"
    if any(gate.outcome == "inconclusive" and gate.severity == "error" for gate in tested.gates):
        return (
            f"there are fewer than {LEAST_RUNS_OF_PLAN} runs, or they differ too much to show 20 %: record more runs, or test the"
            " estimate: 'step_time>point:3%'"
        )
    return "add a rule on step_time below 20 %, of severity error"
