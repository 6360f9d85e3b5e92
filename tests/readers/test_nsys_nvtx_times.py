"""NVTX ranges in time: which were still open at the end, which was the captured one, and times that cannot be."""

import os
from pathlib import Path

import pytest
from nsys_builder import PID, TID, domain, nvtx, system, write
from nsys_nvtx_reading import list_texts, listed, of_file

from tracekit.model.trace import Source, Want
from tracekit.process.calls.nesting import build_call_tree, measure_exclusive_host_times
from tracekit.readers import nsys
from tracekit.readers.nsys.nvtx import ranges as nsys_nvtx

REAL = os.environ.get("TRACEKIT_REAL_DATA")


@pytest.fixture
def path(tmp_path):
    numbers = iter(range(10_000))
    return lambda: tmp_path / f"{next(numbers)}.sqlite"


@pytest.fixture
def read(path):
    """A function: the ranges of an export of these rows."""

    def load(rows, schema="3.11", args=None, **more):
        return of_file(write(path(), rows, schema=schema, **more), args)

    return load


def test_ranges_that_were_open_at_the_end_are_kept_apart(read):
    rows = [nvtx("done", 10, 99), nvtx("open", 20, 5000), nvtx("nearly", 30, 4000), nvtx("null", 40, None),
            nvtx("almost", 50, 3999)]  # fmt: skip
    found = read(rows, duration_ns=5000)
    assert list_texts(nsys_nvtx.select_complete_ranges(found, PID).name) == ["done", "almost"]
    assert listed(nsys_nvtx.select_open_ranges(found, PID)) == [
        (20, 4980, "open", "nvtx", "range", TID),
        (30, 4970, "nearly", "nvtx", "range", TID),
        (40, 4960, "null", "nvtx", "range", TID),
    ]
    (note,) = nsys_nvtx.note_nvtx_ranges(found, PID)
    assert (note.severity, note.code, note.count) == ("info", "open-ranges", 3)


def test_without_a_recorded_end_only_a_range_without_one_is_open(read):
    found = read([nvtx("done", 10, 5000), nvtx("null", 40, None)])
    assert list_texts(nsys_nvtx.select_complete_ranges(found, PID).name) == ["done"]
    assert listed(nsys_nvtx.select_open_ranges(found, PID))[0][:2] == (40, 4960)


def test_what_ends_close_to_the_end_is_open_even_if_it_only_began_but_not_if_it_ends_before_it_began(read):
    found = read([nvtx("instant", 4500, 4500), nvtx("backwards", 4600, 4500)], duration_ns=5000)
    assert [row[:3] for row in listed(nsys_nvtx.select_open_ranges(found, PID))] == [(4500, 500, "instant")]
    assert [row[:3] for row in listed(nsys_nvtx.select_complete_ranges(found, PID))] == [(4600, 0, "backwards")]


def test_times_at_the_bound_of_what_can_be_are_not_used(read):
    """2**61 ns is no time: a range that begins there is left out, and one that ends there has no length."""
    rows = [nvtx("done", 10, 50), nvtx("null", 40, None), nvtx("endless", 20, 2**61), nvtx("late", 2**61, 2**61),
            nvtx("early", -(2**61), 5)]  # fmt: skip
    found = read(rows)
    assert [row[:3] for row in listed(nsys_nvtx.select_open_ranges(found, PID))] == [(40, 10, "null")]
    assert [row[:3] for row in listed(nsys_nvtx.select_complete_ranges(found, PID))] == [
        (10, 40, "done"),
        (20, 0, "endless"),
    ]
    assert {n.code: n.count for n in nsys_nvtx.note_nvtx_ranges(found, PID)} == {
        "open-ranges": 1,
        "no-time": 2,
        "bad-duration": 1,
    }


def test_a_range_may_begin_with_the_recording_and_end_as_it_begins(read):
    assert nsys_nvtx.note_nvtx_ranges(read([nvtx("first", 0, 5), nvtx("instant", 2, 2)]), PID) == []
    (note,) = nsys_nvtx.note_nvtx_ranges(read([nvtx("before", -1, 5)]), PID)
    assert (note.code, note.count) == ("negative-time", 1)


LATE, END = 56_000_000, 60_000_000
"""A program takes so long to its first range; a capture that a range sets off begins with it."""


def test_a_captured_range_needs_no_earlier_rows_if_it_began_with_the_recording(read):
    found = read([nvtx("training_step", 900_000, END), nvtx("fwd", 1_000_000, 2_000_000)], "3.0", duration_ns=END)  # fmt: skip
    assert list_texts(nsys_nvtx.select_complete_ranges(found, PID).name) == ["training_step", "fwd"]
    assert not len(nsys_nvtx.select_open_ranges(found, PID).name)


def test_the_captured_range_of_an_old_nsys_ends_with_the_recording_and_is_complete(read):
    rows = [domain("trainer", 1, at=-900), nvtx("update_actor", 10, 5000), nvtx("fwd", 20, 30),
            nvtx("loader", 40, 5000, tid=8)]  # fmt: skip
    found = read(rows, "3.0", duration_ns=5000)
    assert list_texts(nsys_nvtx.select_complete_ranges(found, PID).name) == ["update_actor", "fwd"]
    assert list_texts(nsys_nvtx.select_open_ranges(found, PID).name) == ["loader"]
    assert [n.code for n in nsys_nvtx.note_nvtx_ranges(found, PID)] == ["open-ranges", "capture-range"]


@pytest.mark.parametrize(
    ("rows", "schema", "installed"),
    [
        ([nvtx("a", LATE, END), nvtx("b", LATE + 20, LATE + 30)], "3.0", ""),
        ([domain("d", 1, at=-9), nvtx("b", 5, 7), nvtx("a", 10, END)], "3.0", ""),
        ([domain("d", 1, at=-9), nvtx("a", 10, END - 1)], "3.0", ""),
        ([domain("d", 1, at=-9), nvtx("a", 10, END), nvtx("b", 10, END, tid=8)], "3.0", ""),
        ([domain("d", 1, at=-9), nvtx("a", 10, END)], "3.11", "/opt/nsight-systems/2024.2.3/"),
        ([domain("d", 1, at=-9, pid=7), nvtx("a", LATE, END)], "3.0", ""),
    ],
    ids=["began with the program", "not first", "not at the end", "not alone", "new nsys", "other process"],
)  # fmt: skip
def test_any_other_range_that_ends_with_the_recording_is_open(read, rows, schema, installed):
    found = read([*rows, system("TargetInstallDir", installed)], schema, duration_ns=END)
    assert "a" in list_texts(nsys_nvtx.select_open_ranges(found, PID).name)


@pytest.mark.parametrize(("begin", "is_open"), [(5_000_000, False), (5_000_001, True)])
def test_a_captured_range_begins_within_5_ms_of_the_recording(read, begin, is_open):
    found = read([nvtx("a", begin, END), nvtx("b", begin + 20, begin + 30)], "3.0", duration_ns=END)
    assert (list_texts(nsys_nvtx.select_open_ranges(found, PID).name) == ["a"]) == is_open


def test_a_domain_without_a_usable_time_does_not_show_that_a_process_ran_before(read):
    for at, is_open in ((-9, False), (0, True), (-(2**61), True)):
        found = read([domain("d", 1, at=at), nvtx("a", LATE, END)], "3.0", duration_ns=END)
        assert (list_texts(nsys_nvtx.select_open_ranges(found, PID).name) == ["a"]) == is_open, at


def test_times_that_cannot_be_are_counted(read):
    rows = [nvtx("backwards", 50, 40), nvtx("far", 2**62, 2**62 + 5), nvtx("endless", 60, 2**62),
            nvtx("early", -70, -60), nvtx("good", 80, 90)]  # fmt: skip
    found = read(rows, duration_ns=5000)
    assert [(row[0], row[1], row[2]) for row in listed(nsys_nvtx.select_complete_ranges(found, PID))] == [
        (-70, 10, "early"),
        (50, 0, "backwards"),
        (60, 0, "endless"),
        (80, 10, "good"),
    ]
    assert [(n.code, n.count) for n in nsys_nvtx.note_nvtx_ranges(found, PID)] == [
        ("no-time", 1),
        ("bad-duration", 2),
        ("negative-time", 1),
    ]
    assert nsys_nvtx.note_nvtx_ranges(found, 7) == []


def test_the_exporters_shift_is_undone(read):
    shifted = {"EXPORT_CONFIG_TIME_SHIFT": "1000"}
    rows = [nvtx("a", 1010, 1020), nvtx("open", 1030, 6000)]
    found = read(rows, duration_ns=5000, exported=shifted.items())
    assert listed(nsys_nvtx.select_complete_ranges(found, PID))[0][:2] == (10, 10)
    assert listed(nsys_nvtx.select_open_ranges(found, PID))[0][:2] == (30, 4970)


def test_ranges_that_overlap_without_nesting_stay_as_recorded_and_share_the_time_once(path):
    file = write(path(), [nvtx("first", 0, 10, kind=60), nvtx("second", 5, 15, kind=60)])
    (trace,) = nsys.read(Source(file, file.name, "nsys", "nsys"), Want())
    assert trace["host_ops"]["dur_ns"].tolist() == [10, 10]
    # The thread is in what began last: in the first for 5 ns, in the second for 10, which makes the 15 of both.
    assert build_call_tree(trace).parent.tolist() == [-1, 0]
    assert measure_exclusive_host_times(trace).tolist() == [5, 10]


@pytest.mark.skipif(REAL is None, reason="no real data")
@pytest.mark.parametrize("part", [1, 2, 3])
@pytest.mark.parametrize("year", ["22", "23", "24"])
def test_the_captured_range_of_real_repeated_captures_is_complete(year, part):
    found = of_file(Path(REAL) / f"nsys/real_cpu/rep_nsys{year}.{part}.sqlite")
    (pid,) = nsys_nvtx.count_process_ranges(found)
    assert list_texts(nsys_nvtx.select_complete_ranges(found, pid).name).count("update_actor") == 1
    assert list_texts(nsys_nvtx.select_open_ranges(found, pid).name) == ["dataloader"] * (part == 1)
