"""What a comparison writes beside a report: for CI systems, and for programs that read it."""

from __future__ import annotations

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

JUNIT, GITHUB = "junit", "github"
SUMMARY = 900 * 1024
"""Bytes of a job's summary: GitHub drops one of more than a mebibyte as a whole."""

_STANDARD_ERROR = "standard error"


def file_target(path: str) -> out.Target:
    """The target of `-o FILE`, of which .xml is JUnit."""
    if path.lower().endswith(".xml"):
        refuse_unwritable(path)
        return out.Target(JUNIT, path)
    return out.file_target(path)


def export_target(text: str) -> out.Target:
    """The target of `--export KIND=PATH`; annotations for `-` go to standard error."""
    name, _, path = text.partition("=")
    if name not in (JUNIT, GITHUB) or not path:
        return out.export_target(text)
    if path != out.STANDARD_OUTPUT:
        refuse_unwritable(path)
    elif name == GITHUB:
        path = _STANDARD_ERROR
    return out.Target(name, path)


def targets(outputs: Sequence[str], exports: Sequence[str], *, quiet: bool) -> list[out.Target]:
    """Everything that is asked for, and the text on standard output where nothing else is printed."""
    found = [*map(file_target, outputs), *map(export_target, exports)]
    if in_github() and not any(target.format == GITHUB for target in found):
        found.append(out.Target(GITHUB, _STANDARD_ERROR))
    if not quiet and not any(target.printed for target in found):
        found.insert(0, out.Target("text", out.STANDARD_OUTPUT))
    out.only_one_printed(found)
    return found


def in_github() -> bool:
    """Whether this runs in a job of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


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
    """Nothing; afterwards every target holds its form of the report, the gate or the comparison.

    `rules` (else the comparison) say what an undecided gate is.
    """
    from tracekit.render.comment import pull_request_comment
    from tracekit.render.github import gate_annotations
    from tracekit.render.json import plain_json
    from tracekit.render.junit import gate_junit
    from tracekit.render.options import Options

    stated = rules or comparison
    inconclusive_fails = stated is not None and stated.inconclusive_fails
    untested_passes = stated is not None and stated.untested_passes
    for target in wanted:
        text: str | None = None
        if target.format == GITHUB:
            lines = gate_annotations(gates, untested_passes=untested_passes)
            text = "".join(f"{line}\n" for line in lines)
            if target.path == _STANDARD_ERROR:
                _annotate(text)
                continue
        elif target.format == JUNIT:
            text = gate_junit(
                report.title,
                gates,
                inconclusive_fails=inconclusive_fails,
                untested_passes=untested_passes,
            )
        elif comparison is not None and target.format == "json":
            text = plain_json(comparison, "comparison")
        elif comparison is not None and target.format == "md":
            sides = comparison.base, comparison.opt
            text = pull_request_comment(report, sides, Options(top, verbose))
        if text is None:
            out.write(report, target, top=top, verbose=verbose)
        elif target.printed:
            terminal.say(text)
        else:
            write_atomically(target.path, text.encode("utf-8"))
        if not (target.printed or quiet):
            terminal.tell(f"wrote {target.path}")


def tell_github(
    values: Mapping[str, str | float | None], wanted: Sequence[out.Target] = ()
) -> None:
    """Nothing; appends the outputs of this step to `$GITHUB_OUTPUT`, if this is a job of GitHub's.

    `report` is the first page that was written. That it cannot be written changes no result.
    """
    from tracekit.render.github import step_outputs

    pages = [one.path for kind in ("html", "md") for one in wanted if one.format == kind]
    pages = [path for path in pages if path != out.STANDARD_OUTPUT]
    lines = step_outputs({**values, "report": pages[0] if pages else ""})
    _append("GITHUB_OUTPUT", lines)


def comparison_outputs(found: Comparison) -> dict[str, str | float | None]:
    """The outputs of a comparison: its word, the change in words, the speedup with its interval, the gate's word.

    The speedup is before over after, as everywhere: above 1 the second side is faster.
    """
    from tracekit.compare.amdahl import factor
    from tracekit.compare.gate import overall

    step = found.headline
    known = step.unit == "ns" and step.ratio is not None
    return {
        "verdict": found.verdict,
        "change": factor(step.ratio, step.low, step.high) if known else "",
        "speedup": step.ratio if step.unit == "ns" else None,
        "ci_low": step.low,
        "ci_high": step.high,
        "gate": overall(found.gates),
    }


def summarize(report: Report, sides: tuple[str, str]) -> None:
    """Nothing; appends the whole comparison to the job's summary, as far as there is room for it."""
    from tracekit.render.comment import pull_request_comment
    from tracekit.render.options import Options

    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not (in_github() and path):
        return
    try:
        room = SUMMARY - Path(path).stat().st_size
    except OSError:
        room = SUMMARY
    limit = room
    while limit > 2_000:
        text = pull_request_comment(report, sides, Options(200, verbose=True), limit) + "\n"
        if len(text.encode()) <= room:
            _append("GITHUB_STEP_SUMMARY", text)
            return
        limit //= 2  # a character takes up to four bytes
    terminal.tell_problem("the job's summary is full", "")


def _append(variable: str, text: str) -> None:
    """Append to the file that GitHub names."""
    path = os.environ.get(variable)
    if not (in_github() and path):
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        terminal.tell_problem(f"{variable}: cannot be written: {error}", "")


def _annotate(lines: str) -> None:
    """Write annotations to standard error, each on a line of its own."""
    for line in lines.splitlines():
        terminal.tell(line)
