"""Findings of several runs: each is of one run, and claims what it claims of that run alone."""

from pathlib import Path

import pytest

from tracekit import analyze

ROOT = Path(__file__).resolve().parents[2]


def claims(report, run=None):
    """(rule, share of the step) of every finding with a saving whose places are of this run."""
    found = []
    for finding in report.findings:
        runs = {place.run for place in finding.places}
        if finding.cost_ratio is not None and (run is None or run in runs):
            assert run is None or runs <= {run, None}, finding
            found.append((finding.rule, round(finding.cost_ratio, 9)))
    return sorted(found)


@pytest.mark.parametrize("folder", ["examples/compare_cpu/base", "tests/data/gpu/compare/base"])
def test_runs_together_claim_what_they_claim_alone(folder):
    runs = ("run1", "run2")
    together = analyze([f"{run}={ROOT / folder / run}" for run in runs])
    for run in runs:
        alone = claims(analyze(ROOT / folder / run))
        assert alone
        assert claims(together, run) == alone
