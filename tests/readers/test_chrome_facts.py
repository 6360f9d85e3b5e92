"""What a trace says of itself: its time zero, whose it is, and times that cannot be."""

import json

import numpy as np
import pytest
from chrome_builder import kernel, op, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.analyses import ANALYSES

OP = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 7, "tid": 7, "ts": 1.5, "dur": 2}
DAY_NS = 86_400_000_000_000


@pytest.fixture(autouse=True, params=["native", "pure"])
def scanner(request, monkeypatch):
    monkeypatch.setenv("TRACEKIT_PURE", str(int(request.param == "pure")))


@pytest.fixture
def read(tmp_path):
    """Load a trace of these members before and after its events."""

    def load(events=(OP,), before=None, after=None, name="trace.json"):
        parts = [json.dumps(part)[1:-1] for part in (before, {"traceEvents": list(events)}, after) if part]
        path = tmp_path / name
        path.write_text("{" + ", ".join(parts) + "}")
        return tracekit.load(path)

    return load


def codes(trace):
    return {note.code: note.count for note in trace.notes}


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize(
    ("base", "used"), [(10**18, 10**18), (str(10**18), 10**18), (1e18, 10**18), (0, 0), (-5, -5), (None, 0)]
)  # fmt: skip
def test_the_time_zero_is_taken_wherever_and_however_it_is_written(read, place, base, used):
    trace = read(**{place: {"baseTimeNanoseconds": base} if base is not None else {"a": 1}})
    assert trace["host_ops"]["ts_ns"].tolist() == [used + 1_500]
    assert trace.meta["absolute_time"] is (used == 10**18)
    assert not trace.notes


@pytest.mark.parametrize("base", [True, "soon", "1e18", 1.5, 2**61 + 1, -(2**63), [1], "1" * 40])
def test_a_time_zero_that_is_none_leaves_times_relative_and_is_said(read, base):
    trace = read(before={"baseTimeNanoseconds": base})
    assert trace["host_ops"]["ts_ns"].tolist() == [1_500]
    assert codes(trace) == {"base-time": 1}


def test_absolute_times_without_a_time_zero_are_known_as_absolute(read):
    trace = read([{**OP, "ts": 1_623_143_089_861_000}])
    assert trace["host_ops"]["ts_ns"].tolist() == [1_623_143_089_861_000_000]
    assert trace.meta["absolute_time"] is True


@given(st.integers(0, 10**18), st.integers(-DAY_NS, DAY_NS), st.integers(0, 10**9))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_moving_the_time_zero_and_the_times_against_it_moves_nothing(read, base, shift, ns):
    """Ranks may have different zeros: no fake skew may come of it."""

    def at(zero, time):
        sign, size = ("-" if time < 0 else ""), abs(time)
        event = {**OP, "ts": f"{sign}{size // 1000}.{size % 1000:03}"}
        return read([event], before={"baseTimeNanoseconds": zero})["host_ops"]["ts_ns"].iloc[0]

    assert at(base, ns) == at(base + shift, ns - shift) == base + ns


@pytest.mark.parametrize("ts", [1e40, -1e40, 2.4e15, "later", None, True, [1], {}, "", float("nan")])
def test_what_has_no_place_in_time_is_left_out_and_counted(read, ts):
    rows = [{**OP, "ts": ts}, OP, {**OP, "ts": ts, "cat": "kernel"}]
    trace = read(rows)
    assert trace["host_ops"]["ts_ns"].tolist() == [1_500]
    assert not trace.has("device_ops")
    assert codes(trace) == {"no-time": 2}


def test_metadata_needs_no_time(read):
    name = {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "args": {"name": "main"}}
    trace = read([OP, name])
    assert trace["threads"]["name"].tolist() == ["main"]
    assert not trace.notes


@pytest.mark.parametrize("dur", [-1, -0.001, 2.4e15, "-3.5"])
def test_an_impossible_duration_counts_as_none_and_is_counted(read, dur):
    trace = read([{**OP, "dur": dur}, {**OP, "cat": "kernel", "dur": dur}, OP])
    assert trace["host_ops"]["dur_ns"].tolist() == [0, 2_000]
    assert trace["device_ops"]["dur_ns"].tolist() == [0]
    assert codes(trace) == {"bad-duration": 2}


@pytest.mark.parametrize("dur", [None, "", "long", [], True, 1e40])
def test_a_missing_duration_counts_as_none_and_is_counted(read, dur):
    bare = {key: value for key, value in OP.items() if key != "dur"}
    trace = read([bare, {**OP, "dur": dur}, OP, {**bare, "ph": "i"}])
    assert trace["host_ops"]["dur_ns"].tolist() == [0, 0, 2_000]
    assert codes(trace) == {"no-duration": 2}


def test_kinetos_negative_remainder_is_a_time_before_zero(read):
    trace = read([{**OP, "ts": "3.-660", "dur": "1.25"}])
    assert trace["host_ops"]["ts_ns"].tolist() == [-3_660]
    assert trace["host_ops"]["dur_ns"].tolist() == [1_250]


def test_the_extremes_of_time_overflow_nowhere(read):
    edge = (2**61 - 1) // 1000
    rows = [
        {**OP, "ts": sign * edge, "dur": edge, "cat": cat}
        for sign in (1, -1)
        for cat in ("cpu_op", "kernel", "user_annotation")
    ]
    trace = read(rows, before={"baseTimeNanoseconds": 2**61 - 1})
    for table in ("host_ops", "device_ops"):
        start, dur = (trace[table][n].tolist() for n in ("ts_ns", "dur_ns"))
        assert [int(s + d) for s, d in zip(trace[table]["ts_ns"], trace[table]["dur_ns"], strict=True)] == [
            s + d for s, d in zip(start, dur, strict=True)
        ]
    with np.errstate(all="raise"):
        for analysis in ANALYSES:
            analysis.measure(trace)


def test_rank_world_size_host_and_pid_come_from_the_content(read):
    told = {"rank": 3, "world_size": 8, "backend": "nccl"}
    trace = read(before={"distributedInfo": told, "host_name": "node-7"})
    source = trace.source
    assert (source.rank, source.world_size, source.host, source.pid) == (3, 8, "node-7", 7)
    assert source.notes == ()


def test_content_after_the_events_counts_as_well(read):
    source = read(after={"distributedInfo": {"rank": 1, "world_size": 2}}).source
    assert (source.rank, source.world_size) == (1, 2)


@pytest.mark.parametrize("rank", ["3", -1, True, 2.0, None, [0], 2**63, {}])
def test_a_rank_that_is_no_number_is_unknown_never_zero(read, rank):
    assert read(before={"distributedInfo": {"rank": rank, "world_size": 8}}).source.rank is None


@pytest.mark.parametrize("info", ["nccl", [1], 5, None])
def test_distributed_info_of_any_kind_is_taken(read, info):
    assert read(before={"distributedInfo": info}).source.rank is None


def test_the_file_is_believed_before_its_name_and_the_conflict_is_said(read):
    trace = read(before={"distributedInfo": {"rank": 3, "world_size": 8}}, name="rank1.json")
    assert trace.source.rank == 3
    assert [note.code for note in trace.source.notes] == ["conflict"]


def test_the_pid_is_that_of_the_busiest_host_process(read):
    rows = [{**OP, "pid": 4}, {**OP, "pid": 9}, {**OP, "pid": 9}, {**OP, "cat": "kernel", "pid": 0}]
    assert read([*rows, *rows[-1:] * 5]).source.pid == 9


@pytest.mark.parametrize("pid", ["Spans", "", None, -1])
def test_a_process_without_a_number_has_no_pid(read, pid):
    assert read([{**OP, "pid": pid}]).source.pid is None


def test_devices_alone_name_no_process(tmp_path):
    assert tracekit.load(write(tmp_path / "gpu.json", [kernel("k", 0, 1)])).source.pid is None


def test_a_bare_array_of_events_is_a_trace(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps([OP, OP]))
    trace = tracekit.load(path)
    assert len(trace["host_ops"]) == 2
    assert trace.meta["element_count"] == 2


def test_phases_that_are_not_read_are_counted(read):
    rows = [OP, {**OP, "ph": "b"}, {**OP, "ph": "e"}, {**OP, "ph": None}, {**OP, "ph": "XX"}]
    trace = read(rows)
    assert len(trace["host_ops"]) == 1
    assert codes(trace) == {"phase": 4}


def test_analyses_never_change_a_frame(tmp_path):
    rows = [op("a", 0, 9), kernel("k", 2, 5, 1), kernel("ncclDevKernel", 4, 5, 2, bytes="8")]
    trace = tracekit.load(write(tmp_path / "t.json", rows))
    before = {name: frame.copy(deep=True) for name, frame in trace.tables.items()}
    for analysis in ANALYSES:
        analysis.measure(trace)
    for name, frame in before.items():
        assert trace[name].equals(frame), name
        assert trace[name].dtypes.equals(frame.dtypes), name
