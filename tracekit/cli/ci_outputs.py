"""Outputs of comparisons and gates for CI: JUnit, GitHub annotations, step outputs and job summary."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tracekit.cli import report_outputs as out
from tracekit.cli import terminal
from tracekit.model.errors import TracekitError
from tracekit.model.system.files import write_atomically

if TYPE_CHECKING:
    from tracekit.cli.options import RequestedOutputs
    from tracekit.compare.comparison import Comparison
    from tracekit.compare.gate_rules import GateRules
    from tracekit.model.report import Gate, Report
    from tracekit.render.ci.comment import PageLink

MAX_SUMMARY_BYTES = 900 * 1024
"""Size limit of a job summary: GitHub drops a summary of more than 1 MiB."""


GATE_FORMATS = (out.JUNIT, out.GITHUB)
"""Formats that contain only the outcome of gate rules."""


def list_comparison_targets(requested: RequestedOutputs, rules: GateRules, *, quiet: bool) -> list[out.OutputTarget]:
    """List all requested outputs, and annotations in a GitHub job.

    Raises `TracekitError` for a requested format of gates without a gate: CI would show an empty result as a pass.
    """
    targets = out.list_targets(requested, quiet=quiet)
    if not rules.stated:
        refuse_gate_formats(targets, untested_passes=rules.untested_passes)
    if terminal.is_github_job() and not any(target.format == out.GITHUB for target in targets):
        targets.append(out.OutputTarget(out.GITHUB, out.STANDARD_ERROR))
    return targets


def refuse_gate_formats(targets: Sequence[out.OutputTarget], *, untested_passes: bool = False) -> None:
    """Raise `TracekitError` for a target that only a gate fills; with `untested_passes`, warn that it is empty."""
    for target in targets:
        if target.format not in GATE_FORMATS:
            continue
        problem = f"{target.format} contains the outcomes of gate rules, and no rule is set"
        hint = "add a rule: --fail-on 'step_time>3%', or [[gate.rule]] in tracekit.toml"
        if not untested_passes:
            raise TracekitError(problem, hint)
        terminal.print_problem(f"{problem}: it is empty", hint)


def write_comparison(
    comparison: Comparison, wanted: Sequence[out.OutputTarget], *, top: int, verbose: bool, quiet: bool
) -> None:
    """Write the comparison to every target, and its results to the outputs and the summary of a GitHub job."""
    from tracekit.compare.reports.comparison_report import build_comparison_report

    report = build_comparison_report(comparison)
    write_gate_targets(report, comparison.gates, wanted, comparison=comparison, top=top, verbose=verbose, quiet=quiet)
    write_step_outputs(make_step_outputs(comparison), wanted)
    write_job_summary(report)


def write_gate_targets(
    report: Report,
    gates: Sequence[Gate],
    wanted: Sequence[out.OutputTarget],
    *,
    comparison: Comparison | None = None,
    top: int = 10,
    verbose: bool = False,
    quiet: bool = False,
    rules: GateRules | None = None,
) -> None:
    """Write the report, gate or comparison to every target.

    `rules` (else the comparison) decide how an undecided gate counts.
    """
    link = find_page_link(wanted)
    for target in wanted:
        text = _render_gate(report, gates, target.format, rules or comparison)
        if text is None and (comparison is not None or gates):
            text = _render_comparison(report, gates, target.format, comparison, link)
        if target.path == out.STANDARD_ERROR:
            print_annotations(gates, untested_passes=_is_untested_passing(rules or comparison))
            continue
        if text is None:
            out.write_report(report, target, top=top, verbose=verbose)
        elif target.printed:
            terminal.write_output(text if target.format == "md" else text.encode("utf-8"))
        else:
            write_atomically(target.path, text.encode("utf-8"))
        if not (target.printed or quiet):
            terminal.print_message(f"wrote {target.path}")


def _render_gate(report: Report, gates: Sequence[Gate], name: str, rules: GateRules | Comparison | None) -> str | None:
    """Render the gate as JUnit or annotations, by `rules` on undecided gates; None for other formats."""
    from tracekit.render.ci.gates import make_gate_annotations, make_gate_junit

    untested_passes = _is_untested_passing(rules)
    if name == out.GITHUB:
        lines = make_gate_annotations(gates, untested_passes=untested_passes)
        return "".join(f"{line}\n" for line in lines)
    if name != out.JUNIT:
        return None
    return make_gate_junit(
        report.title,
        gates,
        inconclusive_fails=rules is not None and rules.inconclusive_fails,
        untested_passes=untested_passes,
    )


def _is_untested_passing(rules: GateRules | Comparison | None) -> bool:
    """Check whether a rule that tested nothing passes."""
    return rules is not None and rules.untested_passes


def _render_comparison(
    report: Report, gates: Sequence[Gate], name: str, comparison: Comparison | None, link: PageLink | None
) -> str | None:
    """Render a comparison or a gate in formats that differ from its report; None for the others."""
    from tracekit.render.ci.comment import make_pull_request_comment
    from tracekit.render.json import write_plain_json

    if name == "json" and comparison is not None:
        return write_plain_json(comparison, "comparison")
    if name != "md":
        return None
    sides = (report.title, "gate") if comparison is None else (comparison.base, comparison.opt)
    return make_pull_request_comment(report, gates, sides, link)


def find_page_link(wanted: Sequence[out.OutputTarget]) -> PageLink | None:
    """Find the address of the page, or of the run whose artifacts contain it, on GitHub and GitLab."""
    from tracekit.render.ci.comment import PageLink

    page = next((target.path for target in wanted if target.format == "html" and not target.printed), None)
    job, run = os.environ.get("CI_JOB_URL"), os.environ.get("GITHUB_RUN_ID")
    if job:
        relative = None if page is None else os.path.relpath(page, os.environ.get("CI_PROJECT_DIR", "."))
        return PageLink("Job", job) if relative is None else PageLink("Page", f"{job}/artifacts/file/{quote(relative)}")
    if run:
        server, repository = (os.environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY"))
        text = "Run" if page is None else f"{Path(page).name} in the artifacts of the run"
        return PageLink(text, f"{server}/{repository}/actions/runs/{run}")
    return None


def write_step_outputs(values: Mapping[str, str | float | None], wanted: Sequence[out.OutputTarget] = ()) -> None:
    """Append the outputs of this step to `$GITHUB_OUTPUT`, in a GitHub job only.

    `report` is the first page written. A write error changes no result.
    """
    from tracekit.render.ci.gates import format_step_outputs

    files = [target for target in wanted if not target.printed]
    pages = [target.path for kind in ("html", "md") for target in files if target.format == kind]
    _append_for_github("GITHUB_OUTPUT", format_step_outputs({**values, "report": next(iter(pages), "")}))


def make_step_outputs(comparison: Comparison) -> dict[str, str | float | None]:
    """Make the step outputs of a comparison: verdict, change, speedup with its interval, and gate result.

    The speedup is before over after: above 1, the second side is faster.
    """
    from tracekit.compare.amdahl import format_speedup_with_interval
    from tracekit.compare.gates.outcomes import summarize_gates

    step = comparison.headline
    speedup = step.ratio if step.unit == "ns" else None
    return {
        "verdict": comparison.verdict,
        "change": "" if speedup is None else format_speedup_with_interval(speedup, step.low, step.high),
        "speedup": speedup,
        "ci_low": step.low,
        "ci_high": step.high,
        "gate": summarize_gates(comparison.gates),
    }


def write_job_summary(report: Report) -> None:
    """Append the comparison to the job summary, as far as it fits."""
    from tracekit.render.markdown import make_job_summary
    from tracekit.render.options import RenderOptions

    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not (terminal.is_github_job() and path):
        return
    room = MAX_SUMMARY_BYTES
    with contextlib.suppress(OSError):
        room -= Path(path).stat().st_size
    limit = room
    while limit > 2_000:
        text = make_job_summary(report, RenderOptions(200, verbose=True), limit) + "\n"
        if len(text.encode()) <= room:
            _append_for_github("GITHUB_STEP_SUMMARY", text)
            return
        limit //= 2  # UTF-8 takes up to four bytes per character
    terminal.print_problem("the job's summary is full", "")


def _append_for_github(variable: str, text: str) -> None:
    """Append to the file in an environment variable of GitHub."""
    path = os.environ.get(variable)
    if not (terminal.is_github_job() and path):
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        terminal.print_problem(f"{variable}: cannot be written: {error}", "")


def print_annotations(gates: Sequence[Gate], *, untested_passes: bool) -> None:
    """Print annotations to standard error, one per line."""
    from tracekit.render.ci.gates import make_gate_annotations

    for line in make_gate_annotations(gates, untested_passes=untested_passes):
        terminal.print_workflow_command(line)
