"""How much of the GPU's work is traced back to the host, and to which stage and call."""

import os
from pathlib import Path

import pytest
from chrome_builder import BACKWARD, annotation, kernel, launch, launched, op, step, write
from columns import columns_of
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.analyses.time.attribution import _list_attribution_caveats, measure
from tracekit.analyses.time.gpu_time import breakdown
from tracekit.model.tables.frame import from_rows
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.process.calls.launches import find_launches as launches_of

QUESTIONS = ("attribution",)

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def section(path):
    return next(
        s for s in analyze_uncached(path, Options(jobs=1, questions=QUESTIONS)).report.sections if s.id == "attribution"
    )


def metrics(found):
    return {metric.name: metric.value for metric in found.metrics}


def rows_of(found, name):
    sheet = next(sheet for sheet in found.sheets if sheet.name == name)
    columns = [heading.name for heading in sheet.headings]
    return [dict(zip(columns, cells, strict=True)) for cells in sheet.rows]


def test_work_is_given_to_the_stage_and_the_call_that_launched_it(tmp_path):
    """gen launches 30 (it runs later), update 50 from two calls, nobody who was seen 20: of 100."""
    rows = [
        step(1, 0, 100), annotation("gen", 0, 40), annotation("actor_update", 50, 50),
        *launched("k", 5, 60, 30, 1),
        *launched("k", 55, 90, 40, 2, tid=BACKWARD),
        launch(60, 3, name="cudaMemcpyAsync"), kernel("k", 130, 10, 3),
        kernel("early", 140, 20, 404),
    ]  # fmt: skip
    found = section(write(tmp_path / "rank0.json", rows))
    assert metrics(found) == {"linked_ratio": 0.75, "unlinked_count": 1, "unlinked_ns": 20_000}
    by_stage = rows_of(found, "launched_by_stage")
    assert [(r["stage"], r["dur_ns"], r["count"]) for r in by_stage] == [
        ("update_actor", 50_000, 2), ("gen", 30_000, 1), ("(unlinked)", 20_000, 1),
    ]  # fmt: skip
    assert [r["share_ratio"] for r in by_stage] == [0.5, 0.3, 0.2]
    assert [(r["call"], r["link"], r["dur_ns"]) for r in rows_of(found, "launched_by_call")] == [
        ("cudaLaunchKernel", "correlation", 70_000), ("(unknown)", "unlinked", 20_000),
        ("cudaMemcpyAsync", "correlation", 10_000),
    ]  # fmt: skip


def test_a_launch_between_stages_is_outside_any(tmp_path):
    rows = [annotation("gen", 0, 40), annotation("ref", 60, 40), *launched("k", 50, 70, 9, 1)]
    (row,) = rows_of(section(write(tmp_path / "rank0.json", rows)), "launched_by_stage")
    assert row["stage"] == "(outside any stage)"


def test_the_outermost_stage_counts_not_the_mini_batch_inside(tmp_path):
    rows = [annotation("actor_update", 0, 90), annotation("mini_batch0", 10, 50), *launched("k", 20, 30, 9, 1)]  # fmt: skip
    (row,) = rows_of(section(write(tmp_path / "rank0.json", rows)), "launched_by_stage")
    assert row["stage"] == "update_actor"


def test_an_external_id_names_the_op_where_the_call_was_not_recorded(tmp_path):
    rows = [op("aten::mul", 0, 10, **{"External id": 7}), kernel("k", 20, 5, **{"External id": 7})]
    (row,) = rows_of(section(write(tmp_path / "rank0.json", rows)), "launched_by_call")
    assert (row["call"], row["link"]) == ("aten::mul", "external_id")


def test_an_op_longer_than_the_capture_is_left_out_here_too(tmp_path):
    rows = [op("a", 0, 100), *launched("k", 1, 10, 5, 1), kernel("corrupt", 20, 9_999)]
    found = section(write(tmp_path / "rank0.json", rows))
    assert metrics(found)["unlinked_ns"] == 0
    assert metrics(found)["unlinked_count"] == 0


def test_ops_without_any_duration_have_no_shares(tmp_path):
    found = section(write(tmp_path / "rank0.json", [op("a", 0, 9), *launched("k", 1, 2, 0, 1)]))
    assert [r.get("share_ratio") for r in rows_of(found, "launched_by_stage")] == [None]


def test_a_device_without_a_host_is_unlinked(tmp_path):
    found = section(write(tmp_path / "rank0.json", [kernel("k", 0, 5, 1)]))
    assert metrics(found)["linked_ratio"] == 0


def test_unlinked_work_keeps_its_gpu_busy(tmp_path):
    """10-20 and 60-90 of 10-90: what was launched before the capture is work, not idleness."""
    rows = [op("a", 0, 99), *launched("k", 1, 10, 10, 1), kernel("early", 60, 30, 404)]
    trace = tracekit.load(write(tmp_path / "rank0.json", rows))
    row = breakdown(columns_of(trace["device_ops"])).frame().iloc[0]
    assert (row["window_ns"], row["busy_ns"]) == (80_000, 40_000)


def test_without_a_gpu_nothing_is_claimed(tmp_path):
    path = write(tmp_path / "rank0.json", [op("a", 0, 9)])
    assert measure(tracekit.load(path)) == {}
    assert (section(path).status, section(path).reason) == ("skipped", "no GPU activity was recorded")  # fmt: skip


launches = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 60), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(launches)
def test_unlinked_work_stays_in_the_totals(tmp_path_factory, drawn):
    rows = [annotation("gen", 0, 30), annotation("ref", 40, 20), op("a", 0, 200)]
    for number, (at, dur, seen) in enumerate(drawn, 1):
        # On streams of their own: in one stream, ops that overlap so would have late ends.
        kernels = launched("k", at, at + 5, dur, number, stream=number)
        rows += kernels if seen else [kernel("k", at, dur, number, stream=number)]
    trace = tracekit.load(write(tmp_path_factory.mktemp("t") / "rank0.json", rows))
    table = measure(trace)["launches"]
    assert sum(table["count"]) == len(drawn)
    assert sum(table["dur_ns"]) == 1000 * sum(dur for _, dur, _ in drawn)
    links = [table["link"].texts[code] for code in table["link"].codes]
    unlinked = [n for n, link in zip(table["count"], links, strict=True) if link == "unlinked"]
    assert sum(unlinked) == sum(not seen for _, _, seen in drawn)


KNOWN = {
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (509, 1707),
    "tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (463, 1517),
    "hta/negative_queue_length_values_check/rank0.json.gz": (872, 7747),
    # Graphs that are replayed: hundreds of kernels of one launch.
    "tracelens/inference/vllm_decode_full/graph_execution.json.gz": (0, 434),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_what_is_linked_in_real_files_is_what_was_counted(name):
    if REAL is None:
        pytest.skip("real profiles are not here")
    path = Path(REAL) / "chrome" / name
    unlinked, whole = KNOWN[name]
    found = section(path)
    assert metrics(found)["unlinked_count"] == unlinked
    assert metrics(found)["linked_ratio"] == pytest.approx(1 - unlinked / whole)
    by_call = rows_of(found, "launched_by_call")
    assert sum(row["count"] for row in by_call) == whole
    total = int(tracekit.load(path)["device_ops"]["dur_ns"].sum())
    assert sum(row["dur_ns"] for row in rows_of(found, "launched_by_stage")) == total


@pytest.mark.parametrize("name", [name for name in sorted(KNOWN) if "inference" in name])
def test_a_replayed_graph_is_the_work_of_its_launch(name):
    if REAL is None:
        pytest.skip("real profiles are not here")
    rows = rows_of(section(Path(REAL) / "chrome" / name), "launched_by_call")
    assert rows[0]["call"] == "hipGraphLaunch"
    assert rows[0]["count"] > 400


def test_replays_of_a_graph_are_counted_by_stage_with_their_extremes(tmp_path):
    """Three replays in gen of 3, 2 and 0 ops, two overlapping for 4 of 12 + 3 … : 10-22 and 18-21 are 12 busy."""
    rows = [annotation("gen", 0, 90), op("x", 0, 90), op("late", 0, 400)]
    for at, correlation in ((5, 1), (20, 2), (60, 3)):
        rows.append(launch(at, correlation, name="cudaGraphLaunch"))
    rows += [kernel("a", 10, 12, 1), kernel("b", 18, 3, 1, stream=8), kernel("c", 30, 5, 1)]
    rows += [kernel("a", 200, 12, 2), kernel("b", 212, 3, 2)]
    (row,) = rows_of(section(write(tmp_path / "rank0.json", rows)), "graph_launches")
    assert (row["stage"], row["call"]) == ("gen", "cudaGraphLaunch")
    assert (row["launch_count"], row["empty_count"], row["op_count"]) == (3, 1, 5)
    assert (row["least"], row["most"]) == (2, 3)
    assert (row["dur_ns"], row["busy_ns"]) == (35_000, 32_000)


def test_a_replay_belongs_to_the_stage_of_its_launch_not_of_its_kernels(tmp_path):
    """The graph is launched in gen, its kernels run in the update."""
    rows = [annotation("gen", 0, 40), annotation("actor_update", 50, 50)]
    rows += [launch(30, 1, name="hipGraphLaunch"), *(kernel(f"k{i}", 60 + 2 * i, 2, 1) for i in range(9))]  # fmt: skip
    found = section(write(tmp_path / "rank0.json", rows))
    (row,) = rows_of(found, "launched_by_stage")
    assert (row["stage"], row["count"]) == ("gen", 9)
    assert rows_of(found, "graph_launches")[0]["stage"] == "gen"


def test_a_file_of_one_stage_names_the_stage_of_its_micro_batches(tmp_path):
    name = "actor-rollout-ref_actor-update_step1_rank0-of-1_pid5_20260101000000000.json"
    rows = [annotation("micro_batch0", 0, 50), *launched("k", 5, 10, 9, 1)]
    (row,) = rows_of(section(write(tmp_path / name, rows)), "launched_by_stage")
    assert row["stage"] == "update_actor"


def test_thousands_of_iterations_of_an_engine_are_no_stages(tmp_path):
    rows = [
        row
        for i in range(70)
        for row in (annotation(f"execute_context_0(0)_generation_{i}({i})", 10 * i, 9), *launched("k", 10 * i + 1, 10 * i + 2, 5, i + 1))
    ]  # fmt: skip
    found = section(write(tmp_path / "rank0.json", rows))
    (row,) = rows_of(found, "launched_by_stage")
    assert (row["stage"], row["count"]) == ("(outside any stage)", 70)


def test_backward_kernels_of_a_real_file_go_to_their_stage_from_another_thread():
    """nccl_data: of 3,774 device ops 2,391 are launched during `## backward ##`, most from another thread."""
    if REAL is None:
        pytest.skip("real profiles are not here")
    path = Path(REAL) / "chrome" / "hta/nccl_parser_config/nccl_data.json.gz"
    found = {row["stage"]: row["count"] for row in rows_of(section(path), "launched_by_stage")}
    assert found == {"backward": 2_391, "forward": 1_356, "optimizer": 27}
    trace = tracekit.load(path)
    host, links = trace["host_ops"], launches_of(trace)
    ranges = host[host["name"].astype(object).eq("## backward ##")]
    assert ranges["thread"].nunique() == 1
    thread = host["thread"].to_numpy()[links.call]
    inside = [((links.ts_ns >= r.ts_ns) & (links.ts_ns < r.ts_ns + r.dur_ns)) for r in ranges.itertuples()]  # fmt: skip
    during = sum(mask.astype(int) for mask in inside) > 0
    assert during.sum() == 2_391
    assert (thread[during] != ranges["thread"].iloc[0]).sum() > 2_000


def test_replays_of_real_graphs_are_one_launch_each():
    if REAL is None:
        pytest.skip("real profiles are not here")
    for name, ops in (("vllm_decode_full/graph_execution", 421), ("sglang_decode/sglang_Qwen3-8B_decode", 544)):  # fmt: skip
        path = Path(REAL) / "chrome/tracelens/inference" / f"{name}.json.gz"
        (row,) = rows_of(section(path), "graph_launches")
        assert (row["launch_count"], row["op_count"], row["least"], row["most"]) == (1, ops, ops, ops)  # fmt: skip


def test_a_launch_that_is_the_first_row_of_the_host_is_named(tmp_path):
    (row,) = rows_of(section(write(tmp_path / "rank0.json", launched("k", 0, 20, 5, 1))), "launched_by_call")
    assert (row["call"], row["dur_ns"]) == ("cudaLaunchKernel", 5_000)


def test_graphs_whose_work_was_not_seen_replay_nothing(tmp_path):
    """Two launches of a graph without work; another call and an op of that name are no launches of graphs."""
    rows = [launch(number, 90 + number, name="cudaGraphLaunch") for number in (2, 4)]
    rows += [op("cudaGraphLaunch", 10, 2), *launched("k", 20, 40, 5, 1)]
    found = measure(tracekit.load(write(tmp_path / "rank0.json", rows)))["graph_launches"]
    columns = ("call", "launch_count", "empty_count", "op_count", "least", "most", "dur_ns", "busy_ns")
    assert [list(found[name]) for name in columns] == [["cudaGraphLaunch"], [2], [2], [0], [0], [0], [0], [0]]


def test_replays_are_apart_by_stage_and_have_no_work_of_other_calls(tmp_path):
    """One op of 3 before any stage, two of 2 in gen, one of 4 and three of 1 in the update; 50 of another call."""
    rows = [launch(0, 1, name="cudaGraphLaunch"), kernel("a", 200, 3, 1)]
    rows += [annotation("gen", 10, 40), launch(20, 2, name="cudaGraphLaunch")]
    rows += [kernel("a", 210 + 5 * i, 2, 2) for i in range(2)]
    rows += [annotation("actor_update", 60, 50), launch(70, 3, name="cudaGraphLaunch"), kernel("a", 230, 4, 3)]
    rows += [launch(80, 4, name="cudaGraphLaunch"), *(kernel("a", 240 + 5 * i, 1, 4) for i in range(3))]
    rows += launched("other", 90, 300, 50, 9)
    found = measure(tracekit.load(write(tmp_path / "rank0.json", rows)))["graph_launches"]
    columns = ("launch_count", "empty_count", "op_count", "least", "most", "dur_ns", "busy_ns")
    shown = {stage: [int(found[name][row]) for name in columns] for row, stage in enumerate(found["stage"])}
    assert shown == {
        None: [1, 0, 1, 1, 1, 3_000, 3_000], "gen": [1, 0, 2, 2, 2, 4_000, 4_000],
        "actor_update": [2, 0, 4, 1, 3, 7_000, 7_000],
    }  # fmt: skip


BEFORE = "launched before the recording began, outside any step or stage"
UNLINKED = "GPU work without a recorded launch is placed in steps and stages"


@pytest.mark.parametrize(
    ("placed", "caveats"),
    [
        ([], ()),
        ([("before", 1, 9)], (f"{BEFORE}: 9 ns (1 device op)",)),
        (
            [("time", 2, 9), ("annotation", 1, 5), ("time", 1, 1)],
            (f"{UNLINKED} by GPU annotation: 5 ns (1 device op); by time: 10 ns (3 device ops)",),
        ),
    ],
)
def test_how_work_without_a_launch_is_placed_is_said(placed, caveats):
    assert _list_attribution_caveats(from_rows(("placed", "count", "dur_ns"), placed)) == caveats
