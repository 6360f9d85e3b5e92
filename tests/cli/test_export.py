"""All ranks as one timeline: nothing lost, nothing mixed up, times exact."""

import json
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path

import nsys_builder as nsys
import numpy as np
import pytest
from chrome_builder import BASE_NS, HOST_PID, kernel, launch, memory, op, step, write
from cli.exports import LEAD_US, STEP, arrow, exported, named, processes, rows_of, two_ranks, with_collectives
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import GPU

import tracekit
from tracekit.model.report import Finding, Metric, Place, Report
from tracekit.model.tables import TABLES
from tracekit.model.tables.frame import Frame, numbers, texts
from tracekit.model.trace import Measurements, Source
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.timeline import annotations, lanes
from tracekit.process.calls.launches import find_launches

REAL = os.environ.get("TRACEKIT_REAL_DATA")


# Nothing lost, nothing mixed up


def test_both_ranks_are_there_each_under_its_own_name(tmp_path):
    done = exported(two_ranks(tmp_path / "in"), tmp_path / "out.json.gz")
    _, rows = rows_of(tmp_path / "out.json.gz")
    names = processes(rows)
    assert {"rank 0 · CPU (pid 100)", "rank 1 · CPU (pid 100)", "rank 0 · GPU 0", "rank 1 · GPU 0"} <= set(names.values())  # fmt: skip
    assert Counter(names[row["pid"]] for row in named(rows, "gemm")) == {"rank 0 · GPU 0": 2, "rank 1 · GPU 0": 2}  # fmt: skip
    assert {row["tid"] for row in named(rows, "gemm")} == {7, 9}
    # Two kernels, and a range, a step, an op and two launches, on each of two ranks.
    assert done.rows == {"host_ops": 10, "device_ops": 4}
    order = {row["pid"]: row["args"]["sort_index"] for row in named(rows, "process_sort_index")}
    shown = [names[pid] for pid in sorted(order, key=order.get) if names[pid].startswith("rank")]
    assert [name[:6] for name in shown] == ["rank 0"] * 3 + ["rank 1"] * 3


def test_times_are_exact_on_the_one_clock(tmp_path):
    exported(two_ranks(tmp_path / "in"), tmp_path / "out.json.gz")
    found, rows = rows_of(tmp_path / "out.json.gz")
    # The first op of rank 0 is the zero of the run, after the lead; rank 1 begins 0.5 µs later.
    starts = sorted(row["ts"] - LEAD_US for row in named(rows, "gemm"))
    assert starts == [Decimal(t) for t in ("30", "30.5", "55", "55.5")]
    assert {row["dur"] for row in named(rows, "gemm")} == {Decimal("10.125"), Decimal(10)}
    assert found["baseTimeNanoseconds"] == BASE_NS - lanes.LEAD_NS


def test_a_launch_finds_its_own_kernel_and_no_other_ranks(tmp_path):
    exported(two_ranks(tmp_path / "in"), tmp_path / "out.json.gz")
    merged = tracekit.load(tmp_path / "out.json.gz")
    links = find_launches(merged)
    assert links.linked.all()
    device, host = merged["device_ops"], merged["host_ops"]
    assert device["correlation"].is_unique
    # 8 µs and 5 µs from launch to kernel, on either rank.
    assert sorted(device["ts_ns"] - host["ts_ns"].to_numpy()[links.call]) == [5_000, 5_000, 8_000, 8_000]  # fmt: skip
    assert merged.notes == ()


def test_arrows_join_the_same_two_ends_and_are_no_two_ranks(tmp_path):
    rows = [*STEP, *arrow(7, 22, 30), *arrow(8, 50, 55, 9)]
    exported(two_ranks(tmp_path / "in", rows), tmp_path / "out.json.gz")
    _, rows = rows_of(tmp_path / "out.json.gz")
    names = processes(rows)
    ends = {}
    for row in rows:
        if row["ph"] in "sf":
            ends.setdefault(row["id"], {})[row["ph"]] = (names[row["pid"]], row["tid"])
    assert sorted((e["s"], e["f"]) for e in ends.values()) == [
        ((f"rank {rank} · CPU (pid 100)", HOST_PID), (f"rank {rank} · GPU 0", stream))
        for rank in (0, 1)
        for stream in (7, 9)
    ]


def test_an_arrow_to_a_stream_that_is_recorded_as_text_still_ends_on_it(tmp_path):
    # As torch 1.9 wrote it: the thread of a kernel is "stream 7", its device only an argument.
    odd = [kernel("gemm", 30, 10, 7) | {"tid": "stream 7"}, launch(22, 7)]
    ends = [*arrow(7, 22, 30)]
    ends[1]["tid"] = "stream 7"
    write(tmp_path / "in" / "rank0.json", [*odd, *ends], rank=0, world_size=1)
    exported(tmp_path / "in", tmp_path / "out.json")
    _, rows = rows_of(tmp_path / "out.json")
    drawn = [(r["pid"], r["tid"]) for r in rows if r["ph"] == "f" or r.get("name") == "gemm"]
    assert len(drawn) == 2
    assert len(set(drawn)) == 1


def test_what_was_recorded_comes_back_with_its_arguments(tmp_path):
    given = {"Input Dims": [[2, 3], []], "grid": [1, 2, 3], "text": "[1, 2]", "n": 2**63, "f": 0.5,
             "no": None, "yes": True, "External id": 5}  # fmt: skip
    rows = [op("aten::mm", 0, 5, **given), memory(3, 512, 4096), memory(4, -512, 3584)]
    write(tmp_path / "in" / "a.json", rows, rank=0, world_size=1)
    done = exported(tmp_path / "in", tmp_path / "out.json")
    _, rows = rows_of(tmp_path / "out.json")
    assert named(rows, "aten::mm")[0]["args"] == given
    memory_curve = [r["args"]["bytes"] for r in rows if r["ph"] == "C"]
    assert memory_curve == [4096, 3584]
    assert done.rows == {"host_ops": 1, "memory_ops": 2, "allocated memory": 2}


def test_no_name_breaks_the_file(tmp_path):
    evil = ['"', "\\", "%s %d", "</script>", "\u2028", "\x07", "}],", "表", "a" * 5000, "{0}"]
    rows = [op(name, 10 * at, 5, **{name: name, "%d": 1}) for at, name in enumerate(evil)]
    text = {"ph": "X", "cat": "cpu_op", "name": "\ud800", "pid": 100, "tid": 100, "ts": 500, "dur": 1}
    write(tmp_path / "in" / "rank0.json", [*rows, text], rank=0, world_size=1)
    exported(tmp_path / "in", tmp_path / "out.json.gz")
    _, rows = rows_of(tmp_path / "out.json.gz")
    drawn = [row for row in rows if row.get("cat") == "cpu_op"]
    assert [row["name"] for row in drawn] == [*evil, "\ufffd"]
    # Quotes and backslashes in keys are replaced when they are read.
    values = [v for row in drawn for k, v in row.get("args", {}).items() if k != "%d"]
    assert values == evil


def test_process_and_thread_ids_that_nobody_takes_get_others(tmp_path):
    rows = [
        op("a", 0, 1, tid=2**40), op("b", 0, 1, tid=-3), op("c", 0, 1, tid="text"),
        op("d", 0, 1) | {"pid": "Spans"}, op("e", 0, 1) | {"pid": -1}, op("f", 0, 1) | {"pid": 2**62},
        kernel("k", 0, 1, device=-1, stream=-1), kernel("l", 0, 1, device=10**12, stream=2**33),
    ]  # fmt: skip
    write(tmp_path / "in" / "rank0.json", rows, rank=0, world_size=1)
    exported(tmp_path / "in", tmp_path / "out.json")
    _, rows = rows_of(tmp_path / "out.json")
    drawn = {r["name"]: (r["pid"], r["tid"]) for r in rows if r["ph"] == "X" and r["name"] in "abcdefkl"}  # fmt: skip
    assert len(drawn) == 8
    assert len({drawn[name] for name in "abcdefk"}) == 7
    assert all(0 < pid < 2**31 and 0 <= tid < 2**31 for pid, tid in drawn.values())
    assert {pid for pid, _ in drawn.values()} <= set(processes(rows))


def test_a_run_without_a_gpu_draws_none(tmp_path):
    write(tmp_path / "in" / "rank0.json", [step(1, 0, 50), op("aten::mm", 1, 2)], rank=0, world_size=1)  # fmt: skip
    exported(tmp_path / "in", tmp_path / "out.json")
    assert "GPU" not in (tmp_path / "out.json").read_text(encoding="utf-8")


# Which part, and whose clock


def test_only_the_steps_asked_for(tmp_path):
    later = [row | {"ts": row["ts"] + 1000} for row in STEP]
    for row in later:
        if "correlation" in row.get("args", {}):
            row["args"] = row["args"] | {"correlation": row["args"]["correlation"] + 100}
    later[0]["name"] = "ProfilerStep#4"
    rows = [*STEP, *later, *arrow(7, 22, 30), *arrow(107, 1022, 1030)]
    write(tmp_path / "in" / "rank0.json", rows, rank=0, world_size=1)
    done = exported(tmp_path / "in", tmp_path / "out.json", steps="4")
    _, rows = rows_of(tmp_path / "out.json")
    assert [row["name"] for row in rows if row["ph"] == "X" and row["name"].startswith("Profiler")] == ["ProfilerStep#4"]  # fmt: skip
    assert done.rows == {"host_ops": 5, "device_ops": 2, "flows": 2}
    assert len({row["id"] for row in rows if row["ph"] in "sf"}) == 1


def ends_by_rank(target):
    _, rows = rows_of(target)
    names = processes(rows)
    return {
        rank: [row["ts"] + row["dur"] - LEAD_US for row in named(rows, "ncclDevKernel_AllReduce")
               if names[row["pid"]].startswith(f"rank {rank}")]
        for rank in (0, 1)
    }  # fmt: skip


def test_a_clock_that_is_ahead_is_put_back_and_that_is_written_down(tmp_path):
    folder = with_collectives(tmp_path / "in", 5000)
    done = exported(folder, tmp_path / "out.json")
    assert ends_by_rank(tmp_path / "out.json") == {0: [200, 500, 900], 1: [200, 500, 900]}
    assert [lane.offset_ns for lane in done.lanes] == [0, 5_000_000]
    found, _ = rows_of(tmp_path / "out.json")
    assert [one["clock_offset_ns"] for one in found["tracekit"]["sources"]] == [0, 5_000_000]


@pytest.mark.parametrize("change", [pytest.param("as recorded", marks=pytest.mark.slow), "one host"])
def test_clocks_are_left_alone_when_told_to_and_on_one_host(tmp_path, change):
    hosts = ("one", "one") if change == "one host" else ("one", "two")
    folder = with_collectives(tmp_path / "in", 5000, hosts)
    exported(folder, tmp_path / "out.json", correct_clocks=change == "one host")
    assert ends_by_rank(tmp_path / "out.json") == {0: [200, 500, 900], 1: [5200, 5500, 5900]}


def test_runs_begin_together(tmp_path):
    rows = [step(1, 0, 50), op("aten::mm", 1, 2)]
    write(tmp_path / "a" / "rank0.json", rows, rank=0, world_size=1)
    write(tmp_path / "b" / "rank0.json", rows, rank=0, world_size=1, base_ns=BASE_NS + 10**15)
    done = exported([tmp_path / "a", tmp_path / "b"], tmp_path / "out.json")
    _, drawn = rows_of(tmp_path / "out.json")
    assert {row["ts"] - LEAD_US for row in named(drawn, "aten::mm")} == {1}
    assert done.apart == ("2 runs: all drawn as if they had begun together",)
    assert {name.split(" rank")[0] for name in processes(drawn).values()} == {"a", "b"}


def test_a_broken_time_does_not_move_the_others_away(tmp_path):
    # A start of 0 in a trace of 2023, as a damaged row has it: its base is none, its times are absolute.
    rows = [row | {"ts": row["ts"] + BASE_NS // 1000} for row in STEP]
    write(tmp_path / "in" / "rank0.json", [*rows, op("odd", 0, 1)], rank=0, world_size=1, base_ns=None)  # fmt: skip
    exported(tmp_path / "in", tmp_path / "out.json")
    _, drawn = rows_of(tmp_path / "out.json")
    assert {row["ts"] - LEAD_US for row in named(drawn, "gemm")} == {30, 55}


# What was concluded


def test_steps_stages_and_findings_stand_where_they_are(tmp_path):
    folder = two_ranks(tmp_path / "in")
    found = pipeline.discover_sources(folder)
    measured = pipeline.measure(found, pipeline.Options(jobs=1))
    findings = [
        Finding("on-a-stage", "high", "c", "a", places=(Place(rank=1, step=3, stage="update_actor"),)),
        Finding("on-a-step", "low", "c", "a", (Metric("x", 1500, "ns"),), (Place(step=3),), 2_000_000),
        Finding("at-a-time", "low", "c", "a", places=(Place(rank=0, start_ns=BASE_NS + 5000, end_ns=BASE_NS + 9000),)),
        Finding("nowhere", "info", "c", "a", places=(Place(rank=99),)),
    ]  # fmt: skip
    report = Report("t", "1", sections=(tracekit.model.report.Section("s", "S", findings=tuple(findings)),))
    where = lanes.plan_timeline(measured)
    told = annotations.annotate_timeline(measured, report, where)
    rows = json.loads(f"[{told.text.removeprefix(',')}]")
    names = processes(rows)
    drawn = sorted(
        (row["name"].split(":")[0], names[row["pid"]][:6], row["ts"] - LEAD_US, row["dur"])
        for row in rows
        if row["ph"] == "X"
    )
    assert drawn == [
        ("at-a-time", "rank 0", 5, 4),
        ("nowhere", "findin", 0, 100.5),  # from the first op to the last end, on rank 1
        ("on-a-stage", "rank 1", 10.5, 60),
        ("on-a-step", "rank 0", 0, 100),
        ("on-a-step", "rank 1", 0.5, 100),
        ("step 3", "rank 0", 0, 100),
        ("step 3", "rank 1", 0.5, 100),
        ("update_actor", "rank 0", 10, 60),
        ("update_actor", "rank 1", 10.5, 60),
    ]
    assert told.count == len(drawn)
    assert told.omitted == 0
    one = next(row for row in rows if row["name"].startswith("on-a-step"))
    assert one["args"] == {"rule": "on-a-step", "severity": "low", "claim": "c", "try": "a", "x": "1.50 µs"}  # fmt: skip


def test_overlapping_stages_get_tracks_of_their_own():
    begin = np.array([0, 5, 10])
    rows = Frame.from_columns({"name": texts("abc"), "begin": begin, "end": np.array([10, 15, 20]),
                               "length": np.array([10, 10, 10]), "step": numbers([None, 1, 2])})  # fmt: skip
    text = "".join(annotations._draw_ranges(rows, 9, 1, "stages", annotations._Canvas(Counter(), None)))
    drawn = {row["name"]: row["tid"] for row in json.loads(f"[{text[1:]}]") if row["ph"] == "X"}
    assert drawn == {"a": 1, "b": 2, "c": 1}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["r", "s"]), st.sampled_from([None, "actor"]),
            st.sampled_from([None, 0, 1]), st.sampled_from([None, 5, 6]),
        ),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_no_two_processes_share_a_place_or_a_name(keys):
    sources = tuple(
        Source(Path("x"), f"f{n}", "chrome", run=run, role=role, rank=rank, pid=pid)
        for n, (run, role, rank, pid) in enumerate(keys)
    )
    frame = TABLES["captures"].cast({"source": [s.name for s in sources], "ts_ns": [0] * len(sources),
        "dur_ns": [1] * len(sources), "row_count": [1] * len(sources), "host_op_count": [1] * len(sources),
        "device_op_count": [0] * len(sources), "absolute_time": [False] * len(sources)} |
        {name: [None] * len(sources) for name in TABLES["captures"].columns
         if name not in ("source", "ts_ns", "dur_ns", "row_count", "host_op_count", "device_op_count", "absolute_time")})  # fmt: skip
    where = lanes.plan_timeline(Measurements({"captures": frame}, sources))
    distinct = {lanes.make_lane_key(source) for source in sources}
    assert len(where.processes()) == len(distinct)
    assert len({lane.name for lane in where.processes()}) == len(distinct)
    places = [lane.pid(at) for lane in where.processes() for at in (0, 1, 2, 999, 10**9)]
    assert len(places) == len(set(places))
    assert all(1 < place < 2**31 for place in places)
    assert len({lane.source_number for lane in where.lanes}) == len(sources)


# Real files


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder",
    ["gloo_cpu/base_mem", "hta/critical_path", "rl_insight"]
    if REAL
    else ["compare/base", "no_marks/per_step", "rl/torch"],
)
def test_of_real_files_every_row_comes_back(tmp_path, folder):
    root = Path(REAL) / "chrome" / folder if REAL else GPU / folder
    done = exported(root, tmp_path / "out.json.gz")
    merged = tracekit.load(tmp_path / "out.json.gz")
    given = [tracekit.load(source.path) for source in pipeline.discover_sources(root).sources]
    for table in ("host_ops", "device_ops", "device_ranges", "syncs", "memory_ops"):
        frame = merged.get_or_empty(table)
        if table == "host_ops":
            frame = frame[(frame["cat"] != annotations.ANNOTATION_CATEGORY).to_numpy(bool, na_value=True)]
        assert len(frame) == sum(len(trace.get_or_empty(table)) for trace in given)
        assert done.rows.get(table, 0) == len(frame)
        if "dur_ns" in frame:
            length = sum(int(trace.get_or_empty(table)["dur_ns"].sum()) for trace in given)
            assert int(frame["dur_ns"].sum()) == length


def test_two_processes_of_one_report_keep_their_launches_apart(tmp_path, call):
    """Correlation ids are told per process: both launch their kernel under number 1."""
    rows = [
        row
        for pid, device in ((100, 0), (200, 1))
        for row in (
            nsys.nvtx("gen", 0, 50_000, pid=pid, tid=pid),
            *nsys.launched(f"kernel of {pid}", 1000, 5000 + pid, 40_000, 1, pid=pid, tid=pid, device=device),
        )
    ]  # fmt: skip
    report = nsys.write(tmp_path / "both.sqlite", rows, duration_ns=100_000)
    target = tmp_path / "merged.json"
    assert call("export", report, "--perfetto", target).exit_code == 0
    merged = tracekit.load(target)
    calls = merged["host_ops"].dropna(subset="correlation")
    pairs = calls.merge(merged["device_ops"].dropna(subset="correlation"), on="correlation")
    assert sorted(zip(pairs["name_x"], pairs["name_y"], strict=True)) == [
        ("cudaLaunchKernel", "kernel of 100"),
        ("cudaLaunchKernel", "kernel of 200"),
    ]
    ranges = merged["host_ops"][merged["host_ops"]["kind"] == "range"]
    assert ranges["name"].tolist().count("gen") == 2
