"""Stacks that only grow, judged from tables made by hand: which are listed, and what limits the test."""

import pytest
from made_tables import make_table

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import leaks
from tracekit.model.tables import TABLES
from tracekit.model.trace import Measurements

THRESHOLDS = load_default_thresholds()
OWNER = {"run": "r", "source": "a", "rank": 0, "device": 0, "tool": "torch_memory"}
WINDOW = {
    **OWNER, "entry_count": 1, "live_bytes": 0, "live_count": 0, "omitted_stack_count": 0, "omitted_block_count": 0,
    "gap_ns": 5,
}  # fmt: skip
SURVIVOR = {
    **OWNER, "basis": "snapshot", "stack": 1, "site": "train.py:1 f", "frames": "f < main", "live_count": 7,
    "cohort_count": 4,
}  # fmt: skip


def table(name, rows, defaults):
    full = [defaults | row for row in rows]
    names = list(dict.fromkeys(key for row in full for key in row))
    return TABLES[name].cast({key: [row.get(key) for row in full] for key in names}, len(full))


def holding(*levels, **more):
    """A stack that holds so much at the windows 0, 1 and so on, which are the steps 10, 20 and so on."""
    return [
        {"window": window, "step": 10 * (window + 1), "live_bytes": level, **more}
        for window, level in enumerate(levels)
    ]


def judged(windows, survivors=(), runs=()):
    rows = [{"window": window} | row for window, row in enumerate(windows)]
    tables = {"snapshot_windows": table("snapshot_windows", rows, WINDOW)}
    if runs:
        tables["captures"] = make_table("captures", [{"run": run, "source": run} for run in runs])
    if survivors:
        tables["survivors"] = table("survivors", survivors, SURVIVOR)
    return leaks.judge(Measurements(tables, ()), THRESHOLDS)


def metrics(section):
    return {metric.name: metric.value for metric in section.metrics}


def kept(section):
    (sheet,) = (sheet for sheet in section.sheets if sheet.name == "kept_stacks")
    names = [heading.name for heading in sheet.headings]
    return [dict(zip(names, cells, strict=True)) for cells in sheet.rows]


FILLING = "a cache or buffer that is still being filled looks like a leak"


def test_without_snapshots_there_is_no_section():
    assert leaks.judge(Measurements({}, ()), THRESHOLDS) is None


@pytest.mark.parametrize(
    ("windows", "reason"),
    [
        ([{}, {}], "2 memory snapshots of one process in order of time, of at least 3 (better 8)"),
        ([{}], "1 memory snapshots of one process in order of time, of at least 3 (better 8)"),
        ([{"window": None}] * 4, "the process and order of the snapshots are unknown "),
    ],
)
def test_too_few_snapshots_of_one_process_are_not_compared(windows, reason):
    section = judged(windows)
    assert section.status == "skipped"
    assert section.reason.startswith(reason)


def test_three_snapshots_are_enough_and_so_are_steps_within_one():
    assert metrics(judged([{}, {}, {}])) == {"kept_stacks": 0, "kept_bytes": 0, "snapshots": 3}
    section = judged([{}], holding(0, 100, 200, 300, 400, basis="step"))
    assert metrics(section) == {"kept_stacks": 1, "kept_bytes": 300, "snapshots": 1}
    assert kept(section)[0]["basis"] == "steps of one snapshot"


def test_stacks_that_hold_more_are_listed_with_the_largest_growth_first():
    """The first of five is warm-up: from 100 to 400 in 30 steps, and from 10 to 1,000."""
    other = {"stack": 2, "site": "data.py:2 g", "frames": "g < main", "role": "actor"}
    section = judged([{}] * 5, [*holding(0, 100, 200, 300, 400), *holding(0, 10, 20, 30, 1000, **other)])
    assert metrics(section) == {"kept_stacks": 2, "kept_bytes": 1290, "snapshots": 5}
    first, second = kept(section)
    del second["who"]
    assert second == {
        "site": "train.py:1 f", "growth": 300, "per_step": 10, "cohorts": "4 of 5", "blocks": 7, "basis": "snapshots",
        "warm_up": 1, "frames": "f < main",
    }  # fmt: skip
    assert first["who"].replace(",", "") == "rank 0 actor GPU 0"
    assert (first["growth"], first["per_step"]) == (990, 33)


@pytest.mark.parametrize(
    ("whose", "name"),
    [({"rank": 3}, "rank 3 GPU 0"), ({"rank": None, "pid": 7}, "process 7 GPU 0"), ({"rank": None}, "GPU 0"),
     ({"replica": 2, "role": "rollout", "device": None}, "rank 0 replica 2 rollout")],
)  # fmt: skip
def test_a_stack_is_named_by_its_process_and_device(whose, name):
    (row,) = kept(judged([{}] * 5, holding(0, 100, 200, 300, 400, **whose)))
    assert row["who"].replace(",", "") == name


def test_a_stack_is_named_with_its_run_where_there_are_several():
    (row,) = kept(judged([{}] * 5, holding(0, 100, 200, 300, 400, role="actor"), runs=("r", "other")))
    assert row["run"] == "r"


@pytest.mark.parametrize("levels", [(0, 100, 200, 150, 400), (0, 100, 100, 100, 100)])
def test_stacks_that_free_or_stay_are_not_listed(levels):
    assert metrics(judged([{}] * 5, holding(*levels)))["kept_stacks"] == 0
    assert judged([{}] * 5, holding(*levels)).caveats == ()


def test_what_limits_the_test_is_said():
    windows = [{}, {"gap_ns": 0}, {"gap_ns": -1}, {"gap_ns": 1}, {"gap_ns": None}, {"window": None}]
    assert judged(windows).caveats == (
        "1 snapshots are copies, of unknown processes, or cannot be put in order: not compared",
        "2 histories overlap the previous one: only later entries count as new",
    )
    omitted = ("some snapshots exceed the limit of stacks or blocks: the smallest are left out",)
    assert judged([{}, {}, {"omitted_stack_count": 1}]).caveats == omitted
    assert judged([{}, {}, {"omitted_block_count": 1}]).caveats == omitted
    assert judged([{}, {}, {}]).caveats == ()
    assert judged([{}] * 5, holding(0, 100, 200, 300, 400)).caveats == (FILLING,)
    assert judged([{}] * 3, holding(0, 100, 200)).caveats == (
        "with three snapshots no warm-up can be left out: caches that fill up look the same", FILLING,
    )  # fmt: skip
