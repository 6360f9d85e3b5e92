"""The tool `compare`: whether a change helped, and how certain that is."""

from __future__ import annotations

from typing import Annotated

from tracekit.agents.bounds import limit_sentences, truncate_answer_text
from tracekit.agents.reports import AnswerTable, Ranks, Stages, Steps, Top, make_agent_options, make_answer_table
from tracekit.agents.roots import Roots, resolve_inside_roots
from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.comparison import Change, Comparison, Difference, Word
from tracekit.compare.reports.comparison_report import build_comparison_report
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.pipeline import comparing
from tracekit.render import render

_SIDE = "a directory of runs, one run, saved measurements or a saved report; several runs as a list"


@dataclass(frozen=True, slots=True)
class CompareArguments:
    """Arguments of the tool `compare`: the two sides."""

    base: Annotated[str | tuple[str, ...], f"Before: {_SIDE}."]
    opt: Annotated[str | tuple[str, ...], f"After: {_SIDE}."]
    min_effect_percent: Annotated[float, "The smallest change of a step that matters, per cent."] = 3.0
    ranks: Ranks = None
    steps: Steps = None
    stages: Stages = ()
    top: Top = 10


@dataclass(frozen=True, slots=True)
class CompareAnswer:
    """The first screen of a comparison as data."""

    base: tuple[str, ...]
    opt: tuple[str, ...]
    schema: Annotated[str, "Version of the underlying comparison."]
    verdict: Annotated[Word, "Of the headline; 'inconclusive': the runs cannot tell, which is not 'no change'."]
    answer: Annotated[str, "The first sentence."]
    basis: tuple[str, ...]
    headline: Annotated[
        Change,
        "The step: means before and after, `ratio` is before over after (above 1 is faster) with the interval `low` to `high`.",
    ]
    changes: Annotated[tuple[Change, ...], "The step, its stages and other metrics, in order of importance."]
    changes_total: int
    overview: Annotated[AnswerTable | None, "Where the change came from, or its stages."]
    differences: Annotated[tuple[Difference, ...], "Differences between the sides that affect the comparison."]
    needed: Annotated[str, "Recordings needed for a firmer verdict; may be empty."]
    warnings: tuple[str, ...]


def answer_compare(roots: Roots, asked: CompareArguments) -> tuple[str, CompareAnswer]:
    """Compare two sides; return the first screen as text and as data."""
    if not 0 <= asked.min_effect_percent < 100:
        raise TracekitError(f"argument 'min_effect_percent' is {asked.min_effect_percent}", "from 0 to below 100")
    base, opt = _resolve_side_paths(roots, asked.base), _resolve_side_paths(roots, asked.opt)
    reading = make_agent_options(roots, asked.ranks, asked.steps, asked.stages)
    choices = ComparisonChoices(min_effect=asked.min_effect_percent / 100)
    comparison = comparing.compare_paths(base, opt, reading, choices).comparison
    text = str(render(comparison, "text", top=asked.top, width=120))
    answer = _make_compare_answer(base, opt, comparison, asked.top)
    return truncate_answer_text(text, "`tracekit compare` writes all of it."), answer


def _resolve_side_paths(roots: Roots, path_or_paths: str | tuple[str, ...]) -> tuple[str, ...]:
    """Resolve the paths of one side."""
    paths = (path_or_paths,) if isinstance(path_or_paths, str) else path_or_paths
    if not paths:
        raise TracekitError("a side of the comparison names no path", "give both `base` and `opt`")
    return tuple(resolve_inside_roots(roots, path) for path in paths)


def _make_compare_answer(
    base: tuple[str, ...], opt: tuple[str, ...], comparison: Comparison, top: int
) -> CompareAnswer:
    """Convert a comparison to data."""
    report = build_comparison_report(comparison)
    return CompareAnswer(
        base=base,
        opt=opt,
        schema=comparison.schema,
        verdict=comparison.verdict,
        answer=report.answer,
        basis=report.basis,
        headline=comparison.headline,
        changes=comparison.changes[:top],
        changes_total=len(comparison.changes),
        overview=None if report.overview is None else make_answer_table(report.overview, top),
        differences=comparison.differences,
        needed=comparison.needed,
        warnings=limit_sentences(comparison.warnings),
    )
