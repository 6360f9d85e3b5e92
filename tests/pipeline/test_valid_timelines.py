"""Cuts and exported ranges keep the rules of the Trace Event Format, so viewers such as Perfetto open them without losses."""

from copy import deepcopy
from pathlib import Path

import pytest
from chrome_builder import HOST_PID, annotation, kernel, launch, memory, op, projected, step, write
from chrome_validator import count_trace_problems, read_strict_json
from cli.exports import arrow
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import REAL

from tracekit.pipeline.options import Options
from tracekit.pipeline.timeline.cutting.search import cut_profile
from tracekit.pipeline.timeline.document import export_timeline
from tracekit.pipeline.timeline.time_ranges import parse_time_range

QUICK = Options(jobs=1, cache=False)
EXAMPLE = Path(__file__).parents[2] / "examples" / "simulated_gpu"


# The validator

SOUND = [
    step(1, 0, 100), op("aten::mm", 10, 20), launch(12, 7), kernel("gemm", 30, 10, 7), *arrow(7, 12, 30), memory(40, 8, 8),
    {"ph": "M", "name": "process_name", "pid": HOST_PID, "args": {"name": "python"}},
    {"ph": "M", "name": "thread_sort_index", "pid": HOST_PID, "tid": 1, "args": {"sort_index": 1}},
    {"ph": "C", "name": "bytes", "pid": 1, "tid": 1, "ts": 3, "args": {"bytes": 4}},
    {"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": 3}, {"ph": "E", "name": "outer", "pid": 1, "tid": 1, "ts": 9},
    {"ph": "b", "name": "wait", "cat": "async", "id": "0x1", "pid": 1, "tid": 1, "ts": 3},
    {"ph": "e", "name": "wait", "cat": "async", "id": "0x1", "pid": 1, "tid": 2, "ts": 9},
]  # fmt: skip
STEP, OP, LAUNCH, KERNEL, START, END, INSTANT, PROCESS, INDEX, COUNTER, BEGIN, STOP, ASYNC, _ = range(len(SOUND))
BROKEN = (
    (STEP, "ph", "Q", "unknown phase 'Q'"), (STEP, "ph", None, "unknown phase None"), (STEP, "pid", None, "pid is neither"),
    (STEP, "pid", -1, "pid is neither"), (OP, "tid", 2**32, "tid is neither"), (OP, "tid", 1.5, "tid is neither"),
    (OP, "name", "", "no name"), (OP, "name", 3, "no name"), (OP, "args", [], "args is not"), (STEP, "ts", -1, "ts is not"),
    (STEP, "ts", "5", "ts is not"), (STEP, "ts", 1.0005, "ts is not"), (STEP, "ts", None, "ts is not"), (STEP, "dur", None, "dur is not"),
    (STEP, "dur", -2, "dur is not"), (STEP, "dur", True, "dur is not"), (STEP, "dur", 15, "overlaps another"),
    (OP, "ts", 95, "overlaps another"), (KERNEL, "ts", 31, "at no slice"), (START, "id", "zz", "neither a number nor hex"),
    (START, "id", 8, "a flow without its"), (START, "ph", "f", "a flow without its start"), (END, "ph", "t", "a flow without its end"),
    (START, "ts", 32, "ends before it begins"), (END, "tid", 9, "at no slice"), (INSTANT, "s", "x", "unknown scope"),
    (PROCESS, "args", {"name": 3}, "process_name without a text"), (PROCESS, "args", {}, "process_name without a text"),
    (INDEX, "args", {"sort_index": "1"}, "thread_sort_index without a number"), (COUNTER, "args", {}, "not numbers"),
    (COUNTER, "args", {"bytes": "4"}, "not numbers"), (BEGIN, "name", "other", "an end without"), (STOP, "ph", "B", "a begin without"),
    (STOP, "ts", 1, "an end without"), (ASYNC, "id", "0x2", "an end without"),
)  # fmt: skip


def test_a_sound_trace_has_no_problem(tmp_path):
    assert count_trace_problems(write(tmp_path / "a.json", SOUND)) == {}


@pytest.mark.parametrize(("place", "key", "value", "rule"), BROKEN)
def test_each_broken_rule_is_found(tmp_path, place, key, value, rule):
    rows = deepcopy(SOUND)
    if value is None:
        del rows[place][key]
    else:
        rows[place][key] = value
    assert any(rule in found for found in count_trace_problems(write(tmp_path / "a.json", rows)))


@pytest.mark.parametrize(
    "text", ['{"traceEvents": [{"ts": NaN}]}', '{"traceEvents": [], "traceEvents": []}', "{'a': 1}", '{"a": 1']
)
def test_text_that_is_no_strict_json_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"."):
        read_strict_json(tmp_path / "a.json")


# Cuts


def test_rows_that_begin_in_the_window_stay_whole_and_ranges_around_them_end_with_them(tmp_path):
    # The window is 100–200 µs. An op of thread 100 ends at 250, the first kernel of stream 7 at 205; one call of thread 102
    # began at 95, another before the window launched a kernel within it.
    rows = [
        op("around", 0, 500, tid=102), launch(95, 2, dur=8, tid=102), kernel("first", 101, 1, 2, stream=8),
        launch(20, 3, tid=102), kernel("queued", 110, 1, 3, stream=8),
        step(1, 0, 1000), op("early", 50, 100), op("late", 190, 60), launch(195, 1, dur=35), op("other", 180, 90, tid=101),
        op("inside", 120, 10), projected("annotation", 90, 300), kernel("gemm", 240, 20, 1), kernel("last", 195, 10),
    ]  # fmt: skip
    write(tmp_path / "in.json", rows, rank=0, world_size=1)
    cut_profile(tmp_path / "in.json", tmp_path / "out.json", time_range=parse_time_range("100us:200us"), options=QUICK)
    drawn = read_strict_json(tmp_path / "out.json")["traceEvents"]
    times = sorted((row["name"], float(row["ts"]), float(row["ts"] + row["dur"])) for row in drawn if row["ph"] == "X")
    assert times == [
        ("ProfilerStep#1", 100, 250), ("annotation", 100, 205), ("around", 95, 200), ("cudaLaunchKernel", 20, 22),
        ("cudaLaunchKernel", 95, 103), ("cudaLaunchKernel", 195, 230), ("early", 100, 150), ("first", 101, 102),
        ("gemm", 240, 260), ("inside", 120, 130), ("last", 195, 205), ("late", 190, 250), ("other", 180, 270), ("queued", 110, 111),
    ]  # fmt: skip
    assert count_trace_problems(tmp_path / "out.json") == {}


def test_flows_follow_the_slices_that_they_connect_and_outer_ops_come_first(tmp_path):
    rows = [
        *arrow(1, 12, 30), kernel("b", 30, 5, 1), launch(12, 1), op("outer", 10, 10), op("inner", 10, 10), step(1, 0, 100),
        kernel("a", 40, 5),
    ]  # fmt: skip
    write(tmp_path / "in.json", rows, rank=0, world_size=1)
    cut_profile(tmp_path / "in.json", tmp_path / "out.json", time_range=parse_time_range("0:100us"), options=QUICK)
    drawn = read_strict_json(tmp_path / "out.json")["traceEvents"]
    assert [row["name"] for row in drawn] == [
        "outer",
        "inner",
        "ProfilerStep#1",
        "cudaLaunchKernel",
        "b",
        "a",
        "ac2g",
        "ac2g",
    ]


@st.composite
def draw_nested_rows(draw):
    """Draw ops, ranges, calls and kernels of which those of one thread or stream nest."""
    makers = (
        op,
        lambda name, at, length: annotation(name, at, length, tid=101),
        lambda name, at, length: op(name, at, length, tid=101),
        lambda name, at, length: launch(at, at + 1, dur=length, tid=101),
        lambda name, at, length: kernel(name, at, length, at),
        lambda name, at, length: projected(name, at + 1, length),
    )
    tracks = {}
    rows = []
    for number, (kind, at, length) in enumerate(
        draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90), st.integers(0, 40)), max_size=30))
    ):
        row = makers[kind](f"n{number}", at, length)
        begin, end = row["ts"], row["ts"] + row["dur"]
        others = tracks.setdefault((row["pid"], row["tid"]), [])
        if all(not a < begin < b < end and not begin < a < end < b for a, b in others):
            others.append((begin, end))
            rows.append(row)
    return rows


@given(rows=draw_nested_rows(), low=st.integers(0, 90), length=st.integers(1, 60))
@settings(deadline=None, max_examples=60)
def test_a_cut_of_any_window_of_rows_that_nest_nests(tmp_path_factory, rows, low, length):
    folder = tmp_path_factory.mktemp("nested")
    # Without a row at 0 and at 200 the recording would not have every window.
    source = write(folder / "in.json", [step(1, 0, 200) | {"tid": 200}, *rows], rank=0, world_size=1)
    assert count_trace_problems(source) == {}
    asked = parse_time_range(f"{low}us:{low + length}us")
    cut_profile(source, folder / "out.json", time_range=asked, options=QUICK)
    assert count_trace_problems(folder / "out.json") == {}


@pytest.mark.parametrize("anonymize", [False, True])
def test_cuts_of_the_example_break_no_rule_that_the_recording_keeps(tmp_path, anonymize):
    source = min(EXAMPLE.rglob("*.json.gz"))
    recorded = count_trace_problems(source)
    for number, asked in enumerate((parse_time_range("step 6"), parse_time_range("30ms:41ms"), None)):
        target = tmp_path / f"{number}.json.gz"
        finding = "1" if asked is None else None
        cut_profile(source, target, finding=finding, time_range=asked, anonymize=anonymize, options=QUICK)
        assert not count_trace_problems(target) - recorded


# Ranges of timelines


def test_exported_ranges_keep_every_rule(tmp_path):
    for number, text in enumerate(("step 6", "30ms:41ms")):
        target = tmp_path / f"{number}.json.gz"
        export_timeline(EXAMPLE, target, QUICK, time_range=parse_time_range(text))
        assert count_trace_problems(target) == {}


REAL_RANGES = (
    ("chrome/gloo_cpu/straggler", "100ms:200ms"),
    ("chrome/hta/negative_queue_length_values_check/rank0.json.gz", "100ms:200ms"),
    ("chrome/kineto_tb_plugin/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz", "100ms:200ms"),
    ("chrome/tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz", "100ms:200ms"),
    ("chrome/hta/trace_diff/control/control.json.gz", "100ms:200ms"),
    ("nsys/frasertajima_WeatherBench2/report1.sqlite", "100ms:300ms"),
    ("../more/nsys/flameox/nsight-2025.5.2.sqlite", "0:1s"),
)


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.parametrize(("name", "text"), REAL_RANGES)
def test_ranges_of_real_profiles_keep_every_rule(tmp_path, name, text):
    export_timeline(Path(REAL) / name, tmp_path / "out.json.gz", QUICK, time_range=parse_time_range(text))
    rows = read_strict_json(tmp_path / "out.json.gz")["traceEvents"]
    assert sum(row["ph"] == "X" for row in rows) > 100
    assert count_trace_problems(tmp_path / "out.json.gz") == {}


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.parametrize(("name", "text"), [pair for pair in REAL_RANGES if pair[0].endswith(".gz")])
def test_cut_ranges_of_real_profiles_break_no_rule_that_the_recording_keeps(tmp_path, name, text):
    """Numbers of threads stay as recorded, also negative ones, and rows that overlap in the recording overlap in the cut."""
    source = Path(REAL) / name
    cut_profile(source, tmp_path / "out.json.gz", time_range=parse_time_range(text), options=QUICK)
    recorded, cut = count_trace_problems(source), count_trace_problems(tmp_path / "out.json.gz")
    assert not cut - recorded, cut - recorded
