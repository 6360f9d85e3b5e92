"""Sides made of recorded values written by hand, and small profiles whose times are known."""

from __future__ import annotations

from chrome_builder import op, step, write

from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.judge import compare_sides
from tracekit.compare.sides import ComparedInput, build_side
from tracekit.model.report import Heading, Report, Sheet

COLUMNS = ("run", "role", "rank", "step", "part", "stage", "name", "value", "unit", "better")

BASE_RUNS = ([10.2, 10.4, 10.1, 10.6, 10.3], [10.5, 10.2, 10.4], [10.1, 10.0, 10.3], [10.2, 10.3, 10.25])
OPT_RUNS = ([9.1, 9.3, 9.0, 9.2, 9.4], [9.3, 9.1], [9.0, 9.4, 9.2], [9.3, 9.2, 9.4])
"""The worked example of the method: 1.112979 [1.096578, 1.129627] as runs, its first runs 1.121739 [1.092758, 1.151489]."""


def row(name, value, *, run="run", step=None, rank=None, role=None, part=None, stage=None):
    """One recorded value."""
    return (run, role, rank, step, part, stage, name, value, "ns", "lower")


def step_rows(*runs, name="step_time", label="run", **keys):
    """The values of runs, in seconds, as rows of nanoseconds; steps count from 1."""
    return [
        row(name, value * 1e9, run=f"{label}{number}", step=at, **keys)
        for number, values in enumerate(runs, 1)
        for at, value in enumerate(values, 1)
    ]


def report(rows, *, omitted=0, identity=(), **facts):
    """A report that holds these values, and whose fingerprint is `facts`."""
    sheet = Sheet("values", "Values", tuple(Heading(n, n) for n in COLUMNS), tuple(rows), omitted)
    return Report("made", "0", identity=identity, values=sheet, fingerprint=tuple(sorted(facts.items())))


def made_side(name, rows, drop_first=0, **facts):
    """A side of one report."""
    return build_side(name, [ComparedInput(name, report(rows, **facts), None)], drop_first)


def compared(base, opt, **choices):
    """Two lists of rows, or two sides, compared."""
    sides = [
        made_side(name, given) if isinstance(given, list) else given for name, given in (("base", base), ("opt", opt))
    ]
    return compare_sides(*sides, ComparisonChoices(**choices))


def change_of(found, name, stage=None, role=None):
    """The one change of this name, None where there is none."""
    hits = [c for c in found.changes if (c.name, c.stage, c.role) == (name, stage, role)]
    assert len(hits) <= 1
    return hits[0] if hits else None


STEP_US = 1_000


def write_run(folder, lasting, *, ranks=1, origin_us=0, first=1, **meta):
    """A profile with a file per rank, whose steps last these microseconds, back to back."""
    for rank in range(ranks):
        rows, at = [], origin_us
        for number, dur in enumerate(lasting, first):
            rows += [step(number, at, dur), op("aten::mm", at + 1, dur // 2)]
            at += dur
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=ranks, **meta)
    return folder
