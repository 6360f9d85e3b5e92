"""`tracekit compare`: two sides, what became faster or slower, and how surely."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from tracekit.cli import ci, gating, terminal, work
from tracekit.model.errors import NothingComparableError, TracekitError


@click.command(name="compare", short_help="Say whether a change really helped.")
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[BASE OPT]")
@click.option("--base", "bases", multiple=True, metavar="PATH", help="A run before. Repeatable.")
@click.option("--opt", "opts", multiple=True, metavar="PATH", help="A run after. Repeatable.")
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Also write the comparison here; the suffix is the format (.html .md .json .txt .xml). Repeatable.",
)
@click.option(
    "--export",
    "exports",
    multiple=True,
    metavar="KIND=PATH",
    help="Also write the comparison as KIND: csv=DIR, junit=FILE, github=- (annotations), json=- (standard output). Repeatable.",
)
@click.option("--ranks", metavar="SPEC", help="Only these ranks: 0,2,8-15.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="K",
    help="Read K ranks only, spread over all; the rest, maybe a straggler, is not read.",
)
@click.option("--steps", metavar="SPEC", help="Only these steps: 3,10-20.")
@click.option("--stages", multiple=True, metavar="GLOB", help="Only these stages. Repeatable.")
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Leave out files of this name. Repeatable."
)
@click.option(
    "--steps-from",
    "logs",
    multiple=True,
    metavar="[SIDE=]FILE",
    help="Step times without a profiler, which are then the answer: base=FILE and opt=FILE, or two FILEs, that of "
    "base first. A driver's log, or CSV of step,seconds. Repeatable, one a run.",
)
@click.option(
    "--base-steps",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="The same as --steps-from base=FILE.",
)
@click.option(
    "--opt-steps",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="The same as --steps-from opt=FILE.",
)
@click.option(
    "--noise",
    type=click.Path(),
    metavar="FILE",
    help="How much equal runs differ, from `tracekit noise`.",
)
@click.option(
    "--drop-first",
    type=click.IntRange(min=0),
    metavar="N",
    help="Leave out the first N steps of every run [default: those known to be warm-up].",
)
@click.option(
    "--min-effect",
    type=click.FloatRange(min=0, max=10),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="The least change that matters.",
)
@click.option(
    "--level",
    type=click.FloatRange(min=50, max=99.99),
    default=95.0,
    show_default=True,
    metavar="PERCENT",
    help="The level of the intervals.",
)
@click.option(
    "--pair",
    type=click.Choice(["step", "run"]),
    help="Steps (same batches) or runs (alternated) of both sides belong together in pairs.",
)
@click.option(
    "--assume-independent-steps",
    is_flag=True,
    help="Let one run a side reach a verdict: as if its steps were runs.",
)
@work.options_of_two
@click.option("--force", is_flag=True, help="Compare what is not comparable.")
@gating.options
@terminal.top_option
@click.option("-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Files read at once.")
@click.option("--strict", is_flag=True, help="Exit with 2 if any file could not be read.")
@terminal.quiet_option
@terminal.verbose_option
def command(  # noqa: PLR0913 - one per option
    *,
    paths: tuple[str, ...],
    bases: tuple[str, ...],
    opts: tuple[str, ...],
    outputs: tuple[str, ...],
    exports: tuple[str, ...],
    ranks: str | None,
    sample: int | None,
    steps: str | None,
    stages: tuple[str, ...],
    exclude: tuple[str, ...],
    logs: tuple[str, ...],
    base_steps: tuple[str, ...],
    opt_steps: tuple[str, ...],
    noise: str | None,
    drop_first: int | None,
    min_effect: float,
    level: float,
    pair: Literal["step", "run"] | None,
    assume_independent_steps: bool,
    tokens: str | None,
    samples: str | None,
    images: str | None,
    force: bool,
    fail_on: tuple[str, ...],
    config: str | None,
    isolated: bool,
    on_inconclusive: str | None,
    allow_untested: bool,
    top: int,
    jobs: int | None,
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Say whether a change really helped.

    BASE and OPT are each a directory of profiles, a file, a pattern, measurements saved with --save, or a
    report saved with -o x.json; or logs of step times alone. Several runs a side: a directory of runs, or
    --base and --opt repeated.
    """
    from tracekit.compare import noise as noise_file
    from tracekit.compare.changes import Choices
    from tracekit.compare.differences import forbids
    from tracekit.compare.report import as_report
    from tracekit.job.throughput import work_of_texts
    from tracekit.pipeline import comparing
    from tracekit.pipeline import run as pipeline

    counts = work_of_texts({"tokens": tokens, "samples": samples, "images": images})
    before, after = _sides(paths, bases, opts)
    steps_before, steps_after = _step_logs(logs)
    gate = gating.gate_file(
        fail_on,
        config,
        on_inconclusive,
        isolated=isolated,
        allow_untested=allow_untested,
        least=None if gating.is_default("min_effect") else min_effect / 100,
    )
    targets = ci.targets(outputs, exports, quiet=quiet)
    if gate.rules.stated and (lost := gating.missing(before)) is not None:
        terminal.tell_problem(f"no baseline: nothing is at {lost}", "")
        ci.tell_github({"verdict": "missing baseline", "gate": "missing baseline"})
        return gating.UNDECIDED
    options = pipeline.Options(
        ranks=ranks,
        steps=steps,
        stages=stages,
        exclude=exclude,
        sample=sample,
        jobs=jobs,
        progress=not quiet,
    )
    choices = Choices(
        min_effect=gate.min_effect
        if gate.min_effect is not None and gating.is_default("min_effect")
        else min_effect / 100,
        level=gate.level if gate.level is not None and gating.is_default("level") else level / 100,
        paired=pair,
        assume_independent_steps=assume_independent_steps,
        force=force,
        drop_first=drop_first,
        noise=None if noise is None else noise_file.read(Path(noise)),
        gate=gate.rules,
    )
    try:
        found = comparing.compare_paths(
            before,
            after,
            options,
            choices,
            (*base_steps, *steps_before),
            (*opt_steps, *steps_after),
            counts,
        )
    except NothingComparableError as error:
        if not gate.rules.stated:
            raise
        terminal.tell_error(error)
        ci.tell_github({"verdict": "nothing comparable", "gate": "not comparable"})
        return gating.UNDECIDED
    report, comparison = as_report(found.comparison), found.comparison
    ci.write(
        report,
        comparison.gates,
        targets,
        comparison=comparison,
        top=top,
        verbose=verbose,
        quiet=quiet,
    )
    ci.tell_github(ci.comparison_outputs(comparison), targets)
    ci.summarize(report, (comparison.base, comparison.opt))
    gating.tell(gate.rules, comparison.gates)
    if strict and found.failures:
        return gating.FAILED
    barred = comparison.verdict == "not comparable"
    if not gate.rules.stated:
        return gating.FAILED if barred else gating.PASSED
    if not gate.rules:
        return gating.of_empty(gate.rules)
    found_status = gating.status(gate.rules, comparison.gates)
    barred = barred and forbids(comparison.differences)
    return gating.UNDECIDED if barred and found_status == gating.PASSED else found_status


def _sides(
    paths: tuple[str, ...], bases: tuple[str, ...], opts: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(base, opt) as they were named: two arguments, or both options."""
    if len(paths) == 2 and not (bases or opts):
        return (paths[0],), (paths[1],)
    if bases and opts and not paths:
        return bases, opts
    raise TracekitError(
        "two sides are needed: what was before, and what is after",
        "tracekit compare base/ opt/, or --base PATH --opt PATH, each as often as there are runs"
        + ("; of several variants compare each with the base" if len(paths) > 2 else ""),
    )


def _step_logs(given: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(logs of base, logs of opt): by the side that each names, or two that name none."""
    from tracekit.discover.arguments import split_label

    named: dict[str | None, list[str]] = {"base": [], "opt": []}
    for text in given:
        side, path = split_label(text)
        named.setdefault(side, []).append(text if side is None else str(path))
    bare = named.pop(None, [])
    if len(bare) == len(given) == 2:
        return bare[:1], bare[1:]
    hint = "--steps-from base=FILE --steps-from opt=FILE, or two FILEs, that of base first"
    if bare:
        raise TracekitError(f"--steps-from {bare[0]}: it is not said of which side", hint)
    if unknown := [side for side in named if side not in ("base", "opt")]:
        raise TracekitError(f"--steps-from {unknown[0]}=…: no side is called so", hint)
    return named["base"], named["opt"]
