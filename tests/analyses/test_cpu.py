"""Where the time of processes without a device goes, by hand. Traces in microseconds, results in nanoseconds."""

import pytest
from chrome_builder import MAIN, annotation, kernel, op, step, write

from tracekit.pipeline.run import Options, analyze_uncached

US = 1_000


def python(name, ts, dur):
    """A call of a Python function on the main thread."""
    return {**op(name, ts, dur, MAIN), "cat": "python_function"}


def report_on(folder, rows, **meta):
    return analyze_uncached(write(folder / "rank0.json", rows, **meta), Options()).report


def sheets(report):
    (section,) = [s for s in report.sections if s.id == "cpu"]
    return {
        sheet.name: [dict(zip([h.name for h in sheet.headings], row, strict=True)) for row in sheet.rows]
        for sheet in section.sheets
    }


ROWS = [
    step(1, 0, 20_000),
    annotation("update_actor", 0, 10_000),
    op("aten::mm", 0, 4_000),
    annotation("gloo:all_reduce", 4_000, 2_000, tid=9),
    python("train.py(7): update", 4_000, 5_000),
    op("aten::add", 9_500, 500),
    op("aten::mm", 19_000, 1_000),
]
"""update_actor of 10 ms: ops 4 + 0.5 ms, collective wait 2, Python 3, between ops 0.5; after it 9 ms of silence, 1 of ops."""


def test_activities_fill_each_stage_and_the_step(tmp_path):
    rows = {row["stage"]: row for row in sheets(report_on(tmp_path, ROWS))["cpu_time"]}
    inside, outside = rows["update_actor"], rows["(outside any stage)"]
    assert (inside["window_ns"], outside["window_ns"]) == (10_000 * US, 10_000 * US)
    assert inside["op"] + inside["wait"] == pytest.approx(0.65)
    assert inside["python"] == pytest.approx(0.3)
    assert inside["between"] == pytest.approx(0.05)
    assert (outside["op"], outside["silent"]) == pytest.approx((0.1, 0.9))


def test_the_headline_says_what_the_step_consists_of(tmp_path):
    """Of 20 ms: ops 5.5, collective wait 2, and Python, short and long pauses 12.5. Ranges alone show no ops."""
    headline = {metric.name: metric.value for metric in report_on(tmp_path, ROWS).headline}
    assert {name: value for name, value in headline.items() if name.startswith("host_")} == pytest.approx(
        {"host_op_ratio": 0.275, "host_collective_ratio": 0.1, "host_no_op_ratio": 0.625}
    )
    for name, rows in (("ranges", [step(1, 0, 9), annotation("gen", 0, 5)]), ("gpu", [*ROWS, kernel("gemm", 0, 5)])):
        others = report_on(tmp_path / name, rows).headline
        assert not [metric for metric in others if metric.name.startswith("host_")]


def test_threads_and_functions_have_their_own_time(tmp_path):
    rows = [*ROWS, python("train.py(1): main", 0, 20_000), op("aten::mm", 0, 5_000, tid=2)]
    found = sheets(report_on(tmp_path, rows))
    busy = {row["tid"]: row["op_ns"] for row in found["cpu_threads"]}
    assert busy == {100: 5_500 * US, 2: 5_000 * US}
    functions = {row["name"]: (row["self_ns"], row["total_ns"]) for row in found["cpu_frames"]}
    assert functions == {
        "train.py(1): main": (15_000 * US, 20_000 * US),
        "train.py(7): update": (5_000 * US, 5_000 * US),
    }


def test_recursion_counts_once_and_own_time_adds_up(tmp_path):
    rows = [op("aten::mm", 0, 100), *(python("a.py(1): f", 10 * k, 100 - 20 * k) for k in range(3))]
    (row,) = sheets(report_on(tmp_path, rows))["cpu_frames"]
    assert (row["count"], row["self_ns"], row["total_ns"]) == (3, 100 * US, 100 * US)


def test_garbage_collection_of_a_share_of_the_step_is_a_finding(tmp_path):
    """1 ms of 20 ms in update_actor: 5 %; 0.1 ms: 0.5 %."""
    for dur, expected in ((1_000, ["garbage-collection"]), (100, [])):
        rows = [*ROWS, python("Python GC", 6_500, dur)]
        report = report_on(tmp_path / str(dur), rows)
        found = [f for f in report.findings if f.cost_ns]
        assert [f.rule for f in found] == expected
        for finding in found:
            assert finding.cost_ns == 1_000 * US
            assert finding.cost_ratio == pytest.approx(0.05)
            assert finding.claim == ("the host spends 1.00 ms of 20.0 ms per step on garbage collection (1 collection)")
            assert [place.stage for place in finding.places] == ["update_actor"]


def test_a_process_with_a_device_has_no_such_page(tmp_path):
    report = report_on(tmp_path, [*ROWS, kernel("gemm", 0, 5)])
    assert not [s for s in report.sections if s.id == "cpu"]


@pytest.mark.parametrize(
    ("rows", "title"),
    [
        ([op("aten::mm", 0, 50), kernel("gemm", 60, 10)], "Kernels by total time"),
        ([op("aten::mm", 0, 50)], "Operators by their own host time"),
        ([python("train.py(7): f", 0, 50)], "Python functions by their own time"),
        (ROWS, "Where the step goes"),
    ],
)
def test_every_first_screen_has_a_table(tmp_path, rows, title):
    assert report_on(tmp_path, rows).overview.title == title
