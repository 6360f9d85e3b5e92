"""Device rows of an export whose times contradict their launches or their stream; times in ns, by hand."""

import nsys_builder as nsys
import numpy as np
import pytest

from tracekit.model.inputs.note_codes import LATE_ENDS, UNUSABLE_KERNELS
from tracekit.model.tables import TABLES
from tracekit.model.trace import Source, Want
from tracekit.readers.nsys import read
from tracekit.readers.nsys.sqlite.expressions import MISSING
from tracekit.readers.nsys.times import extract_launch_calls, number_streams

US, MS = 1_000, 1_000_000


def only(tmp_path, rows, tables=None, **options):
    path = nsys.write(tmp_path / "x.sqlite", rows, **options)
    want = Want(None if tables is None else frozenset(tables))
    (trace,) = read(Source(path, "x", "nsys", "nsys"), want)
    return trace


def steady(count=20, *, stream=7, first=1, **more):
    """Kernels of 80 µs, one every 100 µs, each launched 10 µs before it begins."""
    rows = []
    for number in range(count):
        at = 10 * MS + 100 * US * number
        rows += nsys.launched("gemm", at, at + 10 * US, at + 90 * US, first + number, stream=stream, **more)
    return rows


def notes(trace, *codes):
    return {note.code: (note.severity, note.count) for note in trace.notes if note.code in codes}


def test_a_kernel_stamped_far_before_its_launch_is_left_out(tmp_path):
    rows = steady()
    rows[11][1]["start"] -= 10**14
    rows[11][1]["end"] -= 10**14
    trace = only(tmp_path, rows)
    ops = trace["device_ops"]
    assert len(ops) == 19
    assert set(ops["dur_ns"]) == {80 * US}
    assert 6 not in set(ops["correlation"])
    assert int(ops["ts_ns"].min()) == nsys.BASE_NS + 10 * MS + 10 * US
    assert ops["id"].is_monotonic_increasing
    assert notes(trace, UNUSABLE_KERNELS) == {UNUSABLE_KERNELS: ("data_loss", 1)}
    assert len(trace.arg("grid", "device_ops")) == 19


@pytest.mark.parametrize("early", [900 * US, 1_100 * US])
def test_clocks_may_differ_by_a_millisecond_but_not_by_more(tmp_path, early):
    """The sixth kernel begins so long before its launch; the recording lasts 2 ms, a thousandth of which is 2 µs."""
    rows = steady()
    rows[11][1]["start"] = rows[10][1]["start"] - early
    rows[11][1]["end"] = rows[11][1]["start"] + 5 * US
    rows[11][1]["streamId"] = 8
    assert len(only(tmp_path, rows)["device_ops"]) == (20 if early < MS else 19)


def test_a_late_end_is_cut_at_the_next_op_of_its_stream(tmp_path):
    """The third kernel of 80 µs ends 5 ms late: kernels of its name take 80 µs, and 4.92 ms go."""
    rows = steady()
    rows[5][1]["end"] = rows[5][1]["start"] + 5 * MS
    trace = only(tmp_path, rows, duration_ns=100 * MS)
    assert trace["device_ops"]["dur_ns"].tolist() == [80 * US] * 20
    (note,) = [note for note in trace.notes if note.code == LATE_ENDS]
    assert (note.severity, note.count) == ("warning", 1)
    assert note.data["cut_ns"] == 4_920 * US


def test_work_of_two_streams_and_of_two_contexts_of_one_device_may_overlap(tmp_path):
    """The numbers of streams count by context: stream 7 of both is not one stream."""
    other = nsys.launched("long", 9 * MS, 9_500 * US, 12_500 * US, 99, stream=8)
    trace = only(tmp_path, [*steady(), *other])
    assert trace["device_ops"]["dur_ns"].max() == 3 * MS
    contexts = [nsys.context(1, 0), nsys.context(2, 0)]
    other[1][1].update(streamId=7, contextId=2)
    trace = only(tmp_path / "contexts", [*steady(), *other, *contexts])
    assert trace["device_ops"]["dur_ns"].max() == 3 * MS
    assert notes(trace, LATE_ENDS) == {}
    other[1][1]["contextId"] = 1
    trace = only(tmp_path / "one", [*steady(), *other, contexts[0]])
    assert notes(trace, LATE_ENDS) == {LATE_ENDS: ("warning", 1)}


def test_kernels_of_one_graph_and_programmatic_launches_overlap_by_design(tmp_path):
    call = nsys.api("cudaGraphLaunch_v10000", 0, 2 * US, 500)
    side = [nsys.kernel(f"k{n}", 10 * US + n, 90 * US - n, 500) for n in range(4)]
    trace = only(tmp_path, [call, *side, *steady()])
    assert notes(trace, LATE_ENDS, UNUSABLE_KERNELS) == {}
    assert len(trace["device_ops"]) == 24


def test_nothing_is_checked_where_calls_are_not_read(tmp_path):
    rows = steady()
    rows[11][1]["start"] -= 10**14
    rows[11][1]["end"] -= 10**14
    assert len(only(tmp_path, rows, tables=["device_ops"])["device_ops"]) == 20


def test_a_stream_has_one_number_on_each_device():
    device, stream = np.array([0, 0, 1, 1, -1, 0]), np.array([7, 8, 7, 7, 7, -(2**62)])
    first, second, other, same, *unknown = number_streams(device, stream, []).tolist()
    assert len({first, second, other}) == 3
    assert other == same
    assert unknown == [-1, -1]
    assert number_streams(device, stream, [1]).tolist()[2:4] == [-1, -1]
    large = number_streams(np.array([2**40, 2**40]), np.array([2**40, 5]), [])
    assert len(set(large.tolist())) == 2


def alike(device, stream, shared=()):
    """Which rows have the number of an earlier one: the place of the first such row, -1 if unknown."""
    found = number_streams(np.array(device, np.int64), np.array(stream, np.int64), shared)
    assert found.dtype == np.int64
    numbers = found.tolist()
    return [-1 if number == -1 else numbers.index(number) for number in numbers]


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_equal_streams_of_one_device_and_only_they_have_one_number(devices):
    pairs = [(device, stream) for device in range(devices) for stream in range(4)]
    device, stream = zip(*pairs, *pairs, strict=True)
    places = list(range(len(pairs)))
    assert alike(device, stream) == places + places
    # A device that two contexts share has no number, the others do.
    known = [place if pairs[place][0] != devices - 1 else -1 for place in places]
    assert alike(device, stream, [devices - 1]) == known + known


def test_numbers_of_devices_and_streams_do_not_run_into_one_another_however_large():
    # 2**32 devices of 2**32 streams are more than a number can count.
    assert alike([0, 2**32, 0, 0], [0, 0, 2**32 - 1, 0]) == [0, 1, 2, 0]


def test_a_missing_device_or_stream_is_unknown_beside_known_ones():
    assert alike([0, 1, 1], [3, MISSING, 3]) == [0, -1, 2]
    assert alike([0, MISSING, 1], [3, 3, 3]) == [0, -1, 2]
    assert alike([MISSING, MISSING], [3, 3]) == [-1, -1]
    assert alike([], []) == []


def host_ops(rows):
    """`host_ops` of (name, kind, start, correlation)."""
    names, kinds, starts, correlations = zip(*rows, strict=True)
    empty = [None] * len(rows)
    columns = {
        "id": list(range(len(rows))), "ts_ns": list(starts), "dur_ns": [1] * len(rows), "name": list(names),
        "kind": list(kinds), "cat": empty, "pid": empty, "tid": empty, "thread": [0] * len(rows),
        "correlation": list(correlations), "external_id": empty,
    }  # fmt: skip
    return TABLES["host_ops"].cast(columns)


def test_calls_that_launch_and_captures_of_streams_are_found():
    rows = [
        ("cudaStreamBeginCapture", "runtime", 10, 1), ("cudaStreamBeginCapture", "range", 11, None),
        ("cudaLaunchKernel", "runtime", 20, 7), ("poll", "other", 25, 8), ("cudaMalloc", "runtime", 27, None),
        ("cudaStreamEndCapture", "runtime", 30, 9), ("cudaStreamEndCapture", "other", 31, None),
    ]  # fmt: skip
    calls = extract_launch_calls(host_ops(rows))
    assert calls.ts_ns.tolist() == [10, 20, 30]
    assert calls.correlation.tolist() == [1, 7, 9]
    assert [calls.names[code] for code in calls.name] == [
        "cudaStreamBeginCapture", "cudaLaunchKernel", "cudaStreamEndCapture",
    ]  # fmt: skip
    assert [times.tolist() for times in calls.captures] == [[10], [30]]
    assert len(set(calls.pid().tolist())) == 1
    without = extract_launch_calls(host_ops(rows[2:5]))
    assert [times.tolist() for times in without.captures] == [[], []]
    none = extract_launch_calls(None)
    assert (len(none.ts_ns), len(none.pid()), len(none.captures[0])) == (0, 0, 0)
