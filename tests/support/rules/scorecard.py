"""Prints what every rule says of every run: a Markdown table of directories by rules.

    python tests/support/rules/scorecard.py RUN [RUN ...] [--claims]

`F` fired (with the first letter of its severity), `.` clear, `?` insufficient data, blank not
applicable. `--claims` lists the findings below the table. Runs are folders of trace files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tracekit.model.report import Report
from tracekit.pipeline.run import Options, analyze_uncached

MARKS = {"clear": ".", "insufficient data": "?", "not applicable": " ", "fired": "F"}
ORDER = " .?F"
"""Of several answers (one a run) the last of these counts."""


def answers(report: Report) -> dict[str, str]:
    """The mark of each rule, by its R number."""
    (section,) = [part for part in report.sections if part.id == "rules"]
    sheet = section.sheets[0]
    at = {heading.name: index for index, heading in enumerate(sheet.headings)}
    marks: dict[str, str] = {}
    for row in sheet.rows:
        number, rule, answer = (str(row[at[name]]) for name in ("number", "rule", "answer"))
        found = [finding.severity[0] for finding in report.findings if finding.rule == rule]
        mark = MARKS[answer] + (f"({''.join(sorted(set(found)))})" if answer == "fired" else "")
        marks[number] = max(marks.get(number, " "), mark, key=lambda m: ORDER.index(m[0]))
    return marks


def main() -> None:
    """Analyse every run and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--claims", action="store_true", help="list the findings as well")
    options = parser.parse_args()
    found = {run: analyze_uncached(run, Options()).report for run in options.runs}
    marks = {run: answers(report) for run, report in found.items()}
    rules = sorted({rule for each in marks.values() for rule in each})
    print("| run | " + " | ".join(rules) + " |")
    print("|---|" + ":-:|" * len(rules))
    for run, each in marks.items():
        print(f"| {run.name} | " + " | ".join(each.get(rule, " ") for rule in rules) + " |")
    for run, report in found.items() if options.claims else ():
        print(f"\n{run.name}")
        for finding in report.findings:
            print(f"- {finding.rule} ({finding.severity}, {finding.cost_ns} ns): {finding.claim}")


if __name__ == "__main__":
    main()
