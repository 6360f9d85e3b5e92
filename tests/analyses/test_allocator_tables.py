"""The allocator judged from tables made by hand: calls per steady step and process, churn, and lifetimes."""

import numpy as np
import pytest

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import allocator
from tracekit.model.tables import TABLES
from tracekit.model.trace import Measurements

THRESHOLDS = load_default_thresholds()
OWNER = {"run": "r", "rank": 0, "pid": 1, "source": "a", "tool": "torch_memory", "memory": "device", "device": 0}
LEVELS = {
    **OWNER, "entry_count": 1, "unsound_count": 0, "base_bytes": 0, "peak_bytes": 100, "end_requested_bytes": 0,
    "pending_bytes": 0, "off_bytes": 0, "alloc_count": 4, "alloc_bytes": 250, "expandable": False,
}  # fmt: skip
STEP = {
    **OWNER, "step": 3, "occurrence": 0, "alloc_count": 0, "alloc_bytes": 0, "driver_alloc_count": 0,
    "driver_alloc_bytes": 0, "driver_free_count": 0, "driver_free_bytes": 0, "retry_count": 0, "needless_count": 0,
}  # fmt: skip
LIFETIME = {**OWNER, "low_ns": 0, "high_ns": 1_000, "block_count": 1, "size_bytes": 100}
FOREVER = np.iinfo(np.int64).max


def table(name, rows, defaults):
    full = [defaults | row for row in rows]
    names = list(dict.fromkeys(key for row in full for key in row))
    return TABLES[name].cast({key: [row.get(key) for row in full] for key in names}, len(full))


def judged(steps, levels=({},), lifetimes=()):
    tables = {
        "snapshot_levels": table("snapshot_levels", levels, LEVELS),
        "allocator_steps": table("allocator_steps", steps, STEP),
        "lifetimes": table("lifetimes", lifetimes, LIFETIME),
    }
    return allocator.judge(Measurements(tables, ()), THRESHOLDS)


def calls(got, given=0, **more):
    return {"driver_alloc_count": got, "driver_free_count": given, **more}


def evidence(section):
    (found,) = section.findings
    return {metric.name: metric.value for metric in found.evidence}


def sheet(section, name):
    (one,) = (sheet for sheet in section.sheets if sheet.name == name)
    names = [heading.name for heading in one.headings]
    return [dict(zip(names, cells, strict=True)) for cells in one.rows]


def test_calls_are_a_mean_over_steady_steps_and_processes():
    """10 + 2 calls of rank 0 in steps 3 and 4, 3 + 1 of rank 1 in step 3: 16 in 3. Step 2 is not steady yet."""
    other = {"rank": 1, "pid": 2, "source": "b"}
    steps = [
        calls(90, step=2), calls(7, 3, driver_alloc_bytes=600), calls(1, 1, step=4, driver_alloc_bytes=30),
        calls(3, 1, **other),
    ]  # fmt: skip
    section = judged(steps, [{}, other])
    assert evidence(section) == pytest.approx({"calls": 16 / 3, "driver_bytes": 210, "retries": 0, "steps": 3})
    (found,) = section.findings
    assert "calls the driver 5.3 times per steady step and process" in found.claim
    assert "giving its cache back" not in found.claim
    assert [(place.rank, place.step, place.source) for place in found.places] == [(0, 3, "a")]


def test_the_place_is_the_step_with_most_calls():
    steps = [calls(5, step=3), calls(4, 4, step=4), calls(3, step=5)]
    (found,) = judged(steps).findings
    assert [place.step for place in found.places] == [4]


@pytest.mark.parametrize(
    ("step", "finding"),
    [(calls(5), True), (calls(2, 2), False), (calls(1, retry_count=1), True), (calls(0, 5), True), (calls(4, 1), True)],
)
def test_five_calls_or_one_retry_are_a_finding(step, finding):
    section = judged([step])
    assert bool(section.findings) is finding
    if "retry_count" in step:
        assert ", 1 times after releasing its cache for one request" in section.findings[0].claim


def test_calls_for_host_memory_do_not_count():
    host = {"memory": "host", "device": None}
    assert judged([calls(9, **host), calls(1)], [{}, host]).findings == ()


def test_runs_are_judged_apart():
    other = {"run": "s", "source": "b"}
    section = judged([calls(4), calls(6, **other), calls(9, step=1)], [{}, other])
    assert evidence(section)["calls"] == 6
    section = judged([calls(9, step=2), calls(6, **other)], [{}, other])
    assert [verdict.answer for verdict in section.verdicts] == ["insufficient data"]
    assert evidence(section)["calls"] == 6


@pytest.mark.parametrize("name", ["alloc_count", "driver_alloc_count", "driver_free_count"])
def test_without_any_work_of_the_allocator_nothing_is_judged(name):
    assert judged([]).status == "skipped"
    assert judged([{}]).status == "skipped"
    assert judged([{}, {name: 1}]).status != "skipped"
    empty = {"snapshot_levels": table("snapshot_levels", [], LEVELS)}
    assert allocator.judge(Measurements(empty, ()), THRESHOLDS) is None


def test_churn_sums_the_calls_of_a_snapshot_over_its_steps():
    """250 bytes are requested in all, of at most 100 at once; a snapshot without allocations is not listed."""
    levels = [{}, {"source": "b", "alloc_count": 0}, {"source": "c", "alloc_count": 1, "peak_bytes": 1000}]
    steps = [calls(2, 1, retry_count=1), calls(3, 1, step=4), calls(9, source="b"), calls(1, source="c")]
    rows = {row["source"]: row for row in sheet(judged(steps, levels), "churn")}
    names = ("churn", "alloc_count", "driver_alloc_count", "driver_free_count", "retry_count")
    assert {source: tuple(row[name] for name in names) for source, row in rows.items()} == {
        "a": (2.5, 4, 5, 2, 1), "c": (0.25, 1, 1, 0, 0),
    }  # fmt: skip


def test_steps_of_a_process_are_listed_in_their_order_without_those_of_no_number():
    steps = [
        calls(2, step=4, alloc_count=3), calls(1, step=3, alloc_count=5), calls(4, step=4, alloc_count=1, occurrence=1),
        calls(8, step=None),
    ]  # fmt: skip
    rows = sheet(judged(steps), "allocator_steps")
    assert [(row["step"], row["driver_alloc_count"], row["alloc_count"]) for row in rows] == [(3, 1, 5), (4, 6, 4)]


def test_lifetimes_are_summed_over_snapshots_of_devices_and_named():
    lifetimes = [
        {"low_ns": 1_000, "high_ns": 10_000, "size_bytes": 100, "block_count": 2}, {"size_bytes": 50},
        {"source": "b", "size_bytes": 150}, {"low_ns": None, "high_ns": None, "size_bytes": 300},
        {"low_ns": 10_000, "high_ns": FOREVER, "size_bytes": 400}, {"low_ns": 5, "block_count": 0},
        {"memory": "host", "size_bytes": 9_000},
    ]  # fmt: skip
    section = judged([calls(1)], lifetimes=lifetimes)
    rows = sheet(section, "lifetimes")
    assert [(row["lived"], row["block_count"], row["size_bytes"], row["share_ratio"]) for row in rows] == [
        ("below 1.00 µs", 2, 200, 0.2), ("1.00 µs to 10.0 µs", 2, 100, 0.1), ("10.0 µs and more", 1, 400, 0.4),
        ("not freed in the history", 1, 300, 0.3),
    ]  # fmt: skip
    (chart,) = section.charts
    assert chart.marks == ((0, 0, 200), (1, 0, 100), (2, 0, 400), (3, 0, 300))


def test_a_picture_of_lifetimes_takes_two_of_them():
    assert judged([calls(1)], lifetimes=[{}]).charts == ()
    assert len(judged([calls(1)], lifetimes=[{}, {"low_ns": 5}]).charts) == 1


@pytest.mark.parametrize(("size", "share"), [(0, 0), (1, 1), (2, 1)])
def test_the_only_lifetime_has_all_that_was_requested(size, share):
    (row,) = sheet(judged([calls(1)], lifetimes=[{"size_bytes": size}]), "lifetimes")
    assert row["share_ratio"] == share
