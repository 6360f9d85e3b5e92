"""`tracekit compare`: compare two sides and test which differences are significant."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli import ci_outputs, gate_options, terminal
from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand
from tracekit.model.errors import NothingComparableError, TracekitError
from tracekit.model.records import dataclass

if TYPE_CHECKING:
    from tracekit.compare.changes import ComparisonChoices
    from tracekit.compare.gate_rules import GateRules
    from tracekit.compare.gates.gate_file import GateFile
    from tracekit.pipeline.comparing import ComparedPaths
    from tracekit.pipeline.options import Options


@dataclass(frozen=True, slots=True)
class _SidePaths:
    """The inputs of both sides: profiles, and logs of step times."""

    base: tuple[str, ...]
    opt: tuple[str, ...]
    base_steps: tuple[str, ...]
    opt_steps: tuple[str, ...]


def _parse_sides(parameters: Mapping[str, Any]) -> _SidePaths:
    """Parse the inputs of both sides."""
    base, after = _parse_side_paths(parameters["paths"], parameters["bases"], parameters["opts"])
    base_logs, opt_logs = _parse_step_logs(parameters["logs"])
    base_steps = (*parameters["base_steps"], *base_logs)
    return _SidePaths(base, after, base_steps, (*parameters["opt_steps"], *opt_logs))


def _parse_side_paths(
    paths: tuple[str, ...], bases: tuple[str, ...], opts: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parse (base, opt) from two arguments, or from both options."""
    if len(paths) == 2 and not (bases or opts):
        return (paths[0],), (paths[1],)
    if bases and opts and not paths:
        return bases, opts
    several = "; with several variants, compare each with the base" if len(paths) > 2 else ""
    raise TracekitError(
        "two sides are needed: before and after the change",
        f"tracekit compare base/ opt/, or --base PATH --opt PATH, repeated for every run{several}",
    )


def _parse_step_logs(texts: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Parse (logs of base, logs of opt) by their labels, or two logs without labels in this order."""
    from tracekit.discover.arguments import split_label

    logs: dict[str | None, list[str]] = {"base": [], "opt": [], None: []}
    for text in texts:
        side, path = split_label(text)
        logs.setdefault(side, []).append(text if side is None else str(path))
    nameless = logs.pop(None)
    if len(nameless) == len(texts) == 2:
        return nameless[:1], nameless[1:]
    hint = "--steps-from base=FILE --steps-from opt=FILE, or two FILEs, base first"
    if nameless:
        raise TracekitError(f"--steps-from {nameless[0]}: the side is missing", hint)
    for side in logs:
        if side not in ("base", "opt"):
            raise TracekitError(f"--steps-from {side}=…: unknown side", hint)
    return logs["base"], logs["opt"]


@click.command(name="compare", cls=GroupedCommand, short_help="Compare two sides, and test whether a change helped.")
@opt.add_paths("[BASE OPT]", required=False)
@click.option("--base", "bases", multiple=True, metavar="PATH", help="A run before the change. Repeatable.")
@click.option("--opt", "opts", multiple=True, metavar="PATH", help="A run after the change. Repeatable.")
@opt.add_results(
    "comparison",
    opt.COMPARISON_FORMATS,
    exports="csv=DIR, junit=FILE, github=- (annotations), json=- (standard output)",
    folders=opt.FOLDER_FORMATS,
)
@opt.selection
@click.option(
    "--steps-from",
    "logs",
    multiple=True,
    metavar="[SIDE=]FILE",
    help="Step times measured without a profiler, which then decide the verdict: base=FILE and opt=FILE, or two "
    "FILEs, base first. A driver log, or CSV of step,seconds. Repeatable, one per run.",
)
@click.option("--base-steps", multiple=True, type=click.Path(), metavar="FILE", help="Same as --steps-from base=FILE.")
@click.option("--opt-steps", multiple=True, type=click.Path(), metavar="FILE", help="Same as --steps-from opt=FILE.")
@click.option("--noise", type=click.Path(), metavar="FILE", help="Run-to-run noise, from `tracekit noise -o FILE`.")
@opt.drop_first
@click.option(
    "--min-effect",
    type=opt.Percent(min=0, max=10),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="Smallest change that counts.",
)
@click.option(
    "--level",
    type=opt.Percent(min=50, max=99.99),
    default=95.0,
    show_default=True,
    metavar="PERCENT",
    help="Confidence level of the intervals.",
)
@click.option(
    "--pair",
    "paired",
    type=click.Choice(["step", "run"]),
    help="Pair the steps (same batches) or the runs (alternated) of both sides.",
)
@click.option(
    "--assume-independent-steps",
    is_flag=True,
    help="Treat steps as independent runs, so that one run per side can reach a verdict.",
)
@opt.work_of_two
@click.option("--force", is_flag=True, help="Compare sides that are not comparable.")
@gate_options.add_gate_options()
@opt.top
@opt.jobs
@opt.cache
@opt.add_strict()
@opt.quiet
@opt.verbose
@opt.collect_options("sides", _parse_sides, ("paths", "bases", "opts", "logs", "base_steps", "opt_steps"))
@opt.reading
@opt.statistics
def command(  # noqa: PLR0913 - what is given, one by one
    *,
    sides: _SidePaths,
    requested: opt.RequestedOutputs,
    options: Options,
    noise: str | None,
    choices: ComparisonChoices,
    both_work: Mapping[str, str | None],
    gate: gate_options.GateOptions,
    top: int,
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Compare two sides, and test whether a change helped.

    BASE and OPT are each a directory of profiles, a file, a glob pattern, measurements saved with --save, or a
    report saved with -o x.json; or logs of step times alone. For several runs per side, give a directory of
    runs, or repeat --base and --opt.
    """
    from tracekit.job.steps.throughput import parse_work_counts
    from tracekit.pipeline import comparing

    counts = parse_work_counts(both_work)
    least_effect = None if gate_options.is_option_default("min_effect") else choices.min_effect
    gate_file = gate_options.load_gate_file(gate, least_effect)
    rules = gate_file.rules
    targets = ci_outputs.list_comparison_targets(requested, rules, quiet=quiet)
    if rules.stated and (absent := gate_options.find_missing_path(sides.base)) is not None:
        terminal.print_problem(f"no baseline: nothing is at {absent}", "")
        ci_outputs.write_step_outputs({"verdict": "missing baseline", "gate": "missing baseline"})
        return gate_options.UNDECIDED
    try:
        compared = comparing.compare_paths(
            sides.base,
            sides.opt,
            _add_wanted_details(options, {target.format for target in targets}, verbose=verbose),
            _apply_gate_file(choices, gate_file, noise),
            sides.base_steps,
            sides.opt_steps,
            counts,
        )
    except NothingComparableError as error:
        if not rules.stated:
            raise
        terminal.print_error(error)
        ci_outputs.write_step_outputs({"verdict": "nothing comparable", "gate": "not comparable"})
        return gate_options.UNDECIDED
    ci_outputs.write_comparison(compared.comparison, targets, top=top, verbose=verbose, quiet=quiet)
    gate_options.print_failed_rules(rules, compared.comparison.gates)
    return gate_options.FAILED if strict and compared.failures else _get_compare_status(compared, rules)


def _add_wanted_details(options: Options, formats: Collection[str], *, verbose: bool) -> Options:
    """Add the data that only some outputs show: timelines on the page, graphs for the critical path where it is listed."""
    has_path = verbose or "html" in formats or "json" in formats
    return replace(options, timeline="html" in formats, graphs=has_path and not options.stages)


def _apply_gate_file(choices: ComparisonChoices, gate_file: GateFile, noise: str | None) -> ComparisonChoices:
    """Complete the choices with those of the gate file that the command line leaves open, and with the noise file."""
    from tracekit.compare import noise as noise_file

    if gate_file.min_effect is not None and gate_options.is_option_default("min_effect"):
        choices = replace(choices, min_effect=gate_file.min_effect)
    if gate_file.level is not None and gate_options.is_option_default("level"):
        choices = replace(choices, level=gate_file.level)
    measured = None if noise is None else noise_file.read(Path(noise))
    return replace(choices, noise=measured, gate=gate_file.rules)


def _get_compare_status(compared: ComparedPaths, rules: GateRules) -> int:
    """Get the exit status: of the gate if there is one, else whether the sides are comparable."""
    from tracekit.compare.differences import has_blocking_difference

    comparison = compared.comparison
    barred = comparison.verdict == "not comparable"
    if not rules.stated:
        return gate_options.FAILED if barred else gate_options.PASSED
    if not rules:
        return gate_options.report_empty_gate(rules)
    gate_status = gate_options.get_gate_status(rules, comparison.gates)
    if barred and gate_status == gate_options.PASSED and has_blocking_difference(comparison.differences):
        return gate_options.UNDECIDED
    return gate_status
