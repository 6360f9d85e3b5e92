"""What the reader of Chrome traces does with times that cannot be true, and with files of several processes."""

import random

import numpy as np
import pytest
from chrome_builder import BASE_NS, kernel, launch, launched, memory, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit

AT = 5_000_000_000
"""Where the rows lie, in µs: as far from zero as those of a real trace."""


@pytest.fixture(params=["native", "pure"])
def scanner(request, monkeypatch):
    monkeypatch.setenv("TRACEKIT_PURE", str(int(request.param == "pure")))
    return request.param


def load(tmp_path, rows, **meta):
    return tracekit.load(write(tmp_path / "t.json", rows, **meta))


def notes(trace):
    return {note.code: (note.count, dict(note.data)) for note in trace.notes}


def ops(trace):
    """(name, start in µs after AT, duration in µs) of every device op."""
    frame = trace["device_ops"]
    start = (frame["ts_ns"] - BASE_NS) / 1_000 - AT
    return list(zip(frame["name"].astype(str), start, frame["dur_ns"] / 1_000, strict=True))


def program(count=10, lag=5, length=20, period=40, **named):
    """Launches one by one, each with its kernel."""
    rows = []
    for number in range(count):
        at = AT + period * number
        rows += launched(f"k{number}", at, at + lag, length, number + 1, **named)
    return rows


def test_rows_at_time_zero_are_left_out_with_steps_and_memory(tmp_path, scanner):
    rows = [step(1, AT, 100), *program(), step(2, 0, 0), memory(0, 512, 512), op("b", 0, 0)]
    trace = load(tmp_path, rows)
    assert notes(trace) == {"impossible-times": (3, {"zero": 3, "far": 0})}
    assert len(ops(trace)) == 10
    assert "memory_ops" not in trace.tables
    assert trace["host_ops"]["name"].tolist()[0] == "ProfilerStep#1"


def test_a_trace_that_counts_from_its_own_start_keeps_its_first_row(tmp_path):
    trace = load(tmp_path, [op("a", 0, 0), op("b", 40, 10), *launched("k", 41, 44, 5, 1)])
    assert trace.notes == ()
    assert len(trace["host_ops"]) == 3


def test_a_row_days_from_all_others_is_left_out(tmp_path):
    day = 86_400e6
    trace = load(tmp_path, [*program(), op("a", AT - day, 5), op("b", AT + 2 * day, 5)])
    assert notes(trace) == {"impossible-times": (2, {"zero": 0, "far": 2})}


def test_a_kernel_days_off_counts_with_its_launch(tmp_path):
    rows = program()
    rows[1]["ts"] -= 1e11
    trace = load(tmp_path, rows)
    assert notes(trace) == {"unusable-kernels": (1, {"launches": 10})}
    assert [name for name, _, _ in ops(trace)] == [f"k{n}" for n in range(1, 10)]


def test_kernels_before_their_launch_are_left_out(tmp_path):
    rows = program()
    for row in (rows[5], rows[7]):
        row["ts"] -= 2_000
    trace = load(tmp_path, rows)
    assert notes(trace) == {"unusable-kernels": (2, {"launches": 10})}
    assert len(ops(trace)) == 8


@pytest.mark.parametrize("lag", [-3, -900, -5_000_000])
def test_clocks_of_host_and_device_that_differ_lose_nothing(tmp_path, lag):
    """As much as every kernel is off."""
    trace = load(tmp_path, program(lag=lag))
    assert trace.notes == ()
    assert len(ops(trace)) == 10


def test_a_late_end_is_cut_to_the_usual_length_of_its_kernel(tmp_path):
    rows = [row | ({"name": "k"} if row["cat"] == "kernel" else {}) for row in program()]
    rows[5]["dur"] = 95
    trace = load(tmp_path, rows)
    assert notes(trace) == {"late-ends": (1, {"cut_ns": 75_000})}
    assert ops(trace)[2] == ("k", 85, 20)


def test_a_late_end_of_a_lone_kernel_is_cut_at_the_next(tmp_path):
    rows = program()
    rows[5]["dur"] = 95
    trace = load(tmp_path, rows)
    assert notes(trace) == {"late-ends": (1, {"cut_ns": 55_000})}
    assert ops(trace)[2] == ("k2", 85, 40)


def test_hip_runs_in_order(tmp_path):
    """An overlap that ends in order is left on CUDA, where it may be a programmatic launch."""
    rows = program(length=50)
    assert load(tmp_path, rows).notes == ()
    for row in rows:
        row["name"] = row["name"].replace("cudaLaunch", "hipLaunch")
    trace = load(tmp_path, rows)
    assert notes(trace) == {"late-ends": (9, {"cut_ns": 90_000})}


def test_a_programmatic_launch_that_ends_within_the_kernel_before_it_is_by_design(tmp_path):
    rows = [
        *launched("big", AT, AT + 5, 60, 1),
        launch(AT + 3, 2, name="cudaLaunchKernelExC"),
        kernel("prefetch", AT + 30, 5, 2),
        *launched("next", AT + 4, AT + 70, 9, 3),
    ]
    assert load(tmp_path, rows).notes == ()
    rows[2]["name"] = "cudaLaunchKernel"
    assert notes(load(tmp_path, rows)) == {"late-ends": (1, {"cut_ns": 35_000})}


def test_kernels_of_one_graph_run_side_by_side(tmp_path):
    rows = [
        launch(AT, 1, name="cudaGraphLaunch"),
        *(kernel(f"k{n}", AT + 10 + n, 50 - 10 * n, 1) for n in range(4)),
        *launched("next", AT + 4, AT + 70, 9, 2),
    ]
    assert load(tmp_path, rows).notes == ()


def test_kernels_that_were_captured_into_a_graph_do_not_run(tmp_path):
    begin = launch(AT - 100, 91, name="cudaStreamBeginCapture")
    end = launch(AT - 10, 92, name="cudaStreamEndCapture")
    captured = [launch(AT - 90 + n, 50 + n) for n in range(5)]
    for rows in ([begin, *captured, end], [*captured, end]):
        assert load(tmp_path, [*rows, *program()]).notes == ()
    assert notes(load(tmp_path, [*captured, *program()])) == {"lost-kernels": (5, {"launches": 15})}


def test_launches_at_the_end_may_lack_their_kernels(tmp_path):
    """The recording ended before these ran."""
    rows = [*program(), *(launch(AT + 500 + n, 50 + n) for n in range(5))]
    assert load(tmp_path, rows).notes == ()


def test_where_few_kernels_were_recorded_none_is_called_lost(tmp_path):
    """Only collectives, say."""
    rows = [*(launch(AT - 500 + n, 50 + n) for n in range(30)), *launched("k", AT, AT + 5, 9, 1)]
    rows += [launch(AT + 500 + n, 150 + n) for n in range(30)]
    assert load(tmp_path, rows).notes == ()


def test_an_op_that_outlasts_the_recording_is_left_out(tmp_path):
    trace = load(tmp_path, [op("a", AT, 100), *launched("k", AT + 1, AT + 10, 5, 1), kernel("x", AT + 20, 2_500_000)])
    assert notes(trace) == {"overlong-ops": (1, {})}
    assert ops(trace) == [("k", 10, 5)]


def test_without_host_rows_nothing_bounds_a_kernel(tmp_path):
    trace = load(tmp_path, [kernel("k", AT, 5), kernel("long", AT + 5, 2_500_000)])
    assert trace.notes == ()


def test_begin_and_end_make_an_interval(tmp_path, scanner):
    """Nested on one thread, beside another."""

    def event(phase, ts, tid=100, name="a"):
        return {"ph": phase, "name": name, "cat": "cpu_op", "pid": 1, "tid": tid, "ts": ts}

    rows = [
        event("B", 10), event("B", 12, name="b"), event("B", 11, tid=7, name="other"),
        event("E", 15), event("E", 20), event("E", 90, tid=7), event("B", 20, name="c"), event("E", 25),
    ]  # fmt: skip
    trace = load(tmp_path, rows)
    assert trace.notes == ()
    frame = trace["host_ops"]
    assert dict(zip(frame["name"], frame["dur_ns"], strict=True)) == {
        "a": 10_000, "b": 3_000, "other": 79_000, "c": 5_000,
    }  # fmt: skip


def test_a_begin_without_its_end_is_left_out_and_counted(tmp_path):
    rows = [
        {"ph": phase, "name": "a", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": ts}
        for phase, ts in (("E", 5), ("B", 10), ("E", 15), ("B", 20))
    ]
    trace = load(tmp_path, [*rows, op("b", 0, 1)])
    assert notes(trace) == {"unpaired": (2, {})}
    assert trace["host_ops"]["dur_ns"].tolist() == [5_000, 1_000]


def labelled(rows, prefix, pid=0):
    return [row | {"pid": f"{prefix} {row['pid'] + (pid if row['pid'] else 0)}"} for row in rows]


def test_merged_ranks_are_a_trace_each_and_never_linked(tmp_path, scanner):
    """Both number their launches from 1 and call their GPU 0."""
    rows = [*labelled(program(), "[TP01]", 1), *labelled(program(lag=7), "[TP00]")]
    path = write(tmp_path / "merged.json", rows, rank=1, world_size=2)
    first, second = tracekit.load_all(path)
    assert [(t.source.rank, t.source.pid, t.source.topology) for t in (first, second)] == [
        (0, 100, "tp0"), (1, 101, "tp1"),
    ]  # fmt: skip
    assert notes(first) == {"merged-ranks": (2, {"ranks": ("TP00", "TP01")})}
    assert second.notes == ()
    assert [start for _, start, _ in ops(first)] == [40 * n + 7 for n in range(10)]
    assert [start for _, start, _ in ops(second)] == [40 * n + 5 for n in range(10)]
    assert tracekit.load(path, rank=1).source.pid == 101
    for trace in (first, second):
        assert len(trace["threads"]) == 2
        assert trace["host_ops"]["correlation"].tolist() == list(range(1, 11))
        assert trace.meta["element_count"] == 20


def test_elements_without_a_rank_label_in_a_merged_file_are_counted(tmp_path, scanner):
    """Three ops of a process without a label; its metadata are not counted."""
    alone = [{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}}]
    alone += [op("aten::mul", 10 * start, 5) | {"pid": 7} for start in range(3)]
    rows = [*labelled(program(), "[TP00]"), *labelled(program(), "[TP01]", 1), *alone]
    first, second = tracekit.load_all(write(tmp_path / "merged.json", rows))
    counts = {note.code: note.count for note in first.notes}
    assert counts == {"merged-ranks": 2, "no-rank-label": 3}
    assert second.notes == ()


LAYOUTS = {
    ("TP00", "TP03"): (0, 3),
    ("TP00-DP00", "TP01-DP01"): (0, 1),
    ("TP00-PP00", "TP00-PP01", "TP01-PP00", "TP01-PP01"): (0, 2, 1, 3),
    ("DP00", "DP01"): (0, 1),
    ("TP00-EP00", "TP01-EP00"): (0, 1),
}


@pytest.mark.parametrize(("labels", "ranks"), LAYOUTS.items())
def test_the_rank_is_the_place_in_the_engine(tmp_path, labels, ranks):
    rows = [row for label in labels for row in labelled(program(2), f"[{label}]")]
    traces = tracekit.load_all(write(tmp_path / "merged.json", rows))
    assert tuple(trace.source.rank for trace in traces) == ranks


def test_damage_in_one_rank_does_not_touch_the_other(tmp_path):
    rows = [*labelled(program(length=20), "[TP00]"), *labelled(program(), "[TP01]", 1)]
    rows[5]["dur"] = 95
    first, second = tracekit.load_all(write(tmp_path / "merged.json", rows))
    assert set(notes(first)) == {"merged-ranks", "late-ends"}
    assert second.notes == ()


def busy(trace):
    """Nanoseconds at which any device op runs, by brute force over microseconds."""
    frame = trace["device_ops"]
    start = ((frame["ts_ns"] - BASE_NS) // 1_000 - int(AT)).to_numpy()
    end = start + (frame["dur_ns"] // 1_000).to_numpy()
    covered = np.zeros(10**6, np.bool_)
    for first, last in zip(start, end, strict=True):
        covered[max(first, 0) : last] = True
    return int(covered.sum())


JOBS = st.lists(st.tuples(st.integers(7, 8), st.integers(3, 60), st.integers(1, 40)), min_size=4, max_size=20)


def job(shape):
    """Kernels that run in turn on two streams, each launched before: (rows, rows of the kernels)."""
    free, rows, at = {}, [], AT
    for number, (stream, pause, length) in enumerate(shape):
        at += 4
        begin = max(at + 5, free.get(stream, 0) + pause)
        free[stream] = begin + length
        rows += launched(f"k{stream}", at, begin, length, number + 1, stream=stream)
    rows.append(launch(max(free.values()) + 5, 10_000, name="cudaDeviceSynchronize"))
    return rows, [row for row in rows if row["cat"] == "kernel"]


@settings(max_examples=15, deadline=None)
@given(JOBS, st.randoms(use_true_random=False))
def test_sound_rows_stay_as_they_are_and_damaged_ones_give_the_figures_of_the_rest(tmp_path_factory, shape, rng):
    folder = tmp_path_factory.mktemp("job")
    rows, kernels = job(shape)
    sound = load(folder, rows)
    assert sound.notes == ()
    assert len(sound["device_ops"]) == len(kernels)

    hurt = rng.sample(range(len(kernels)), len(kernels) // 3)
    without = load(folder, [row for row in rows if row not in [kernels[n] for n in hurt]])
    # Kernels a day before, at zero, or seconds before their launch are as good as not recorded.
    for shift in (-(10**11), -AT, -7_000_000):
        damaged = [dict(row) for row in rows]
        for row in damaged:
            if row["cat"] == "kernel" and row["args"]["correlation"] - 1 in hurt:
                row["ts"] += shift if shift != -AT else -row["ts"]
        trace = load(folder, damaged)
        assert busy(trace) == busy(without)
        assert sum(count for count, _ in notes(trace).values()) == len(hurt)

    # A late end is cut at the next op of its stream at the latest, and nothing else changes.
    late = rng.choice(range(len(kernels)))
    stream, begin = kernels[late]["tid"], kernels[late]["ts"]
    following = [row["ts"] for row in kernels if row["tid"] == stream and row["ts"] > begin]
    if following:
        longer = {"dur": kernels[late]["dur"] + 10**6}
        trace = load(folder, [row | longer if row is kernels[late] else row for row in rows])
        assert notes(trace)["late-ends"][0] == 1
        lengths = {True: [], False: []}
        for (_, start, length), (_, _, sound_length) in zip(ops(trace), ops(sound), strict=True):
            is_late = start == begin - AT and length != sound_length
            lengths[is_late].append((length, min(following) - begin, sound_length))
        assert all(length <= bound for length, bound, _ in lengths[True])
        assert all(length == sound_length for length, _, sound_length in lengths[False])


def test_damage_is_repaired_alike_whichever_scanner_read_it(tmp_path, monkeypatch):
    rng = random.Random(1)
    rows = program(60)
    for row in rng.sample(rows, 12):
        row[rng.choice(("ts", "dur"))] = rng.choice((0, 1e11, 10))
    found = []
    for pure in "01":
        monkeypatch.setenv("TRACEKIT_PURE", pure)
        trace = load(tmp_path, rows)
        found.append((notes(trace), ops(trace), trace["host_ops"]["ts_ns"].tolist()))
    assert found[0] == found[1]
