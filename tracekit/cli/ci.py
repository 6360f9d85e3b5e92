"""Outputs of comparisons and gates for CI: JUnit, GitHub annotations, step outputs and job summary."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli import outputs as out
from tracekit.cli import terminal
from tracekit.model.files import refuse_unwritable, write_atomically

if TYPE_CHECKING:
    from tracekit.compare.comparison import Comparison
    from tracekit.compare.gate_rules import Rules
    from tracekit.model.report import Gate, Report
    from tracekit.render.options import Options

JUNIT, GITHUB = "junit", "github"
SUMMARY = 900 * 1024
"""Size limit of a job summary: GitHub drops a summary of more than 1 MiB."""

_STANDARD_ERROR = "standard error"


def file_target(path: str) -> out.Target:
    """Parse `-o FILE`; .xml means JUnit."""
    if path.lower().endswith(".xml"):
        refuse_unwritable(path)
        return out.Target(JUNIT, path)
    return out.file_target(path)


def export_target(text: str) -> out.Target:
    """Parse `--export KIND=PATH`; annotations to `-` go to standard error."""
    name, _, path = text.partition("=")
    if name not in (JUNIT, GITHUB) or not path:
        return out.export_target(text)
    if path != out.STANDARD_OUTPUT:
        refuse_unwritable(path)
    elif name == GITHUB:
        path = _STANDARD_ERROR
    return out.Target(name, path)


def targets(outputs: Sequence[str], exports: Sequence[str], *, quiet: bool) -> list[out.Target]:
    """List all requested outputs, plus the text on standard output if nothing else is printed."""
    wanted = [*map(file_target, outputs), *map(export_target, exports)]
    if terminal.in_github() and not any(target.format == GITHUB for target in wanted):
        wanted.append(out.Target(GITHUB, _STANDARD_ERROR))
    return out.with_answer(wanted, quiet=quiet)


def write_comparison(
    comparison: Comparison,
    wanted: Sequence[out.Target],
    *,
    top: int,
    verbose: bool,
    quiet: bool,
) -> None:
    """Write the comparison to every target, and its results to the outputs and the summary of a GitHub job."""
    from tracekit.compare.report import report_comparison

    report = report_comparison(comparison)
    write(
        report,
        comparison.gates,
        wanted,
        comparison=comparison,
        top=top,
        verbose=verbose,
        quiet=quiet,
    )
    tell_github(comparison_outputs(comparison), wanted)
    summarize(report, (comparison.base, comparison.opt))


def write(
    report: Report,
    gates: Sequence[Gate],
    wanted: Sequence[out.Target],
    *,
    comparison: Comparison | None = None,
    top: int = 10,
    verbose: bool = False,
    quiet: bool = False,
    rules: Rules | None = None,
) -> None:
    """Write the report, gate or comparison to every target.

    `rules` (else the comparison) decide how an undecided gate counts.
    """
    from tracekit.render.options import Options

    options = Options(top, verbose)
    for target in wanted:
        text = _gate_text(report, gates, target.format, rules or comparison)
        if text is None and comparison is not None:
            text = _comparison_text(report, comparison, target.format, options)
        if target.path == _STANDARD_ERROR:
            annotate(gates, untested_passes=_untested_passes(rules or comparison))
            continue
        if text is None:
            out.write(report, target, top=top, verbose=verbose)
        elif target.printed:
            terminal.say(text if target.format == "md" else text.encode("utf-8"))
        else:
            write_atomically(target.path, text.encode("utf-8"))
        if not (target.printed or quiet):
            terminal.tell(f"wrote {target.path}")


def _gate_text(
    report: Report, gates: Sequence[Gate], name: str, rules: Rules | Comparison | None
) -> str | None:
    """Render the gate as JUnit or annotations, by `rules` on undecided gates; None for other formats."""
    from tracekit.render.github import gate_annotations
    from tracekit.render.junit import gate_junit

    untested_passes = _untested_passes(rules)
    if name == GITHUB:
        lines = gate_annotations(gates, untested_passes=untested_passes)
        return "".join(f"{line}\n" for line in lines)
    if name != JUNIT:
        return None
    return gate_junit(
        report.title,
        gates,
        inconclusive_fails=rules is not None and rules.inconclusive_fails,
        untested_passes=untested_passes,
    )


def _untested_passes(rules: Rules | Comparison | None) -> bool:
    """Check whether a rule that tested nothing passes."""
    return rules is not None and rules.untested_passes


def _comparison_text(
    report: Report, comparison: Comparison, name: str, options: Options
) -> str | None:
    """Render the comparison in formats that differ from its report; None for the others."""
    from tracekit.render.comment import pull_request_comment
    from tracekit.render.json import plain_json

    if name == "json":
        return plain_json(comparison, "comparison")
    if name == "md":
        return pull_request_comment(report, (comparison.base, comparison.opt), options)
    return None


def tell_github(
    values: Mapping[str, str | float | None], wanted: Sequence[out.Target] = ()
) -> None:
    """Append the outputs of this step to `$GITHUB_OUTPUT`, in a GitHub job only.

    `report` is the first page written. A write error changes no result.
    """
    from tracekit.render.github import step_outputs

    files = [target for target in wanted if not target.printed]
    pages = [target.path for kind in ("html", "md") for target in files if target.format == kind]
    _append("GITHUB_OUTPUT", step_outputs({**values, "report": next(iter(pages), "")}))


def comparison_outputs(comparison: Comparison) -> dict[str, str | float | None]:
    """Make the step outputs of a comparison: verdict, change, speedup with its interval, and gate result.

    The speedup is before over after: above 1, the second side is faster.
    """
    from tracekit.compare.amdahl import factor
    from tracekit.compare.gate import overall

    step = comparison.headline
    speedup = step.ratio if step.unit == "ns" else None
    return {
        "verdict": comparison.verdict,
        "change": "" if speedup is None else factor(speedup, step.low, step.high),
        "speedup": speedup,
        "ci_low": step.low,
        "ci_high": step.high,
        "gate": overall(comparison.gates),
    }


def summarize(report: Report, sides: tuple[str, str]) -> None:
    """Append the comparison to the job summary, as far as it fits."""
    from tracekit.render.comment import pull_request_comment
    from tracekit.render.options import Options

    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not (terminal.in_github() and path):
        return
    room = SUMMARY
    with contextlib.suppress(OSError):
        room -= Path(path).stat().st_size
    limit = room
    while limit > 2_000:
        text = pull_request_comment(report, sides, Options(200, verbose=True), limit) + "\n"
        if len(text.encode()) <= room:
            _append("GITHUB_STEP_SUMMARY", text)
            return
        limit //= 2  # UTF-8 takes up to four bytes per character
    terminal.tell_problem("the job's summary is full", "")


def _append(variable: str, text: str) -> None:
    """Append to the file in an environment variable of GitHub."""
    path = os.environ.get(variable)
    if not (terminal.in_github() and path):
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        terminal.tell_problem(f"{variable}: cannot be written: {error}", "")


def annotate(gates: Sequence[Gate], *, untested_passes: bool) -> None:
    """Print annotations to standard error, one per line."""
    from tracekit.render.github import gate_annotations

    for line in gate_annotations(gates, untested_passes=untested_passes):
        terminal.tell_command(line)
