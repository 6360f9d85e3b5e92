"""The explorer page, read back: it has the times of the traces to the ns, and counts merged and missing kernels."""

import base64
import hashlib
import importlib.util
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import chrome_builder as chrome
import numpy as np
import pytest
from explorer_page import CAUSE_ROWS, build_blocks, list_traces
from hypothesis import given, settings
from hypothesis import strategies as st
from page_reading import Page
from sample_report import HOSTILE, sample_report

import tracekit
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.model.intervals import measure_coverage, merge_intervals
from tracekit.model.report import Finding, Heading, Instance, Place, Report, Section, Sheet
from tracekit.model.tables.slots import CAUSES
from tracekit.process.calls.launches import find_launches
from tracekit.process.device.placement import place_device_ops
from tracekit.process.idle_time.attribution import attribute_idle_time
from tracekit.process.idle_time.tables import sum_idle_time_by_window
from tracekit.process.steps.windows import find_steps_and_stages
from tracekit.render.escape import make_printable
from tracekit.render.explorer.cells import LEVEL_LIMITS_NS, list_row_cells, merge_row_kernels
from tracekit.render.explorer.page import write_explorer_page
from tracekit.render.explorer.processes import arrange_rows
from tracekit.render.explorer.template import PageAssets

EXAMPLES = Path(__file__).parents[2] / "examples"
PROFILE = EXAMPLES / "simulated_gpu" / "outputs" / "profile"
TEMPLATE = """<title>{{title}}</title><style>{{style}}</style><p>{{identity}}<h1>{{sentence}}</h1><ol>{{findings}}</ol>
<table>{{kernels}}</table><details><summary>{{skipped_title}}</summary><ul>{{skipped}}</ul></details>{{tables}}
<meta content="script-src 'sha256-{{code_hash}}'; style-src 'sha256-{{style_hash}}'">
<script type="application/json" id="head">{{head}}</script>{{blocks}}<script>{{code}}</script>"""
ASSETS = PageAssets(TEMPLATE, "h1{}", "let a=1")
EMPTY = Report("a run", "1.0")


@pytest.fixture(scope="module")
def traces():
    """The traces of two simulated ranks."""
    return list(list_traces(PROFILE))


@pytest.fixture(scope="module")
def page(traces):
    """Their page, written with their report."""
    report = tracekit.analyze(PROFILE)
    return Page(write_explorer_page(report, list(map(build_blocks, traces)), ASSETS, CAUSE_ROWS).text)


def written(traces, report=EMPTY, budget=3_000_000):
    return Page(write_explorer_page(report, list(map(build_blocks, traces)), ASSETS, CAUSE_ROWS, budget).text)


def kernels_of(page, row):
    """Start, length and name of all kernels of a row, in order."""
    boxes = np.concatenate([columns for line, columns in page.cells() if line[0] == row], axis=1)
    start = boxes[0] + int(page.head["t0"])
    return sorted(zip(start.tolist(), boxes[1].tolist(), (page.names[name - 1] for name in boxes[3]), strict=True))


def test_every_kernel_has_its_start_length_and_name(page, traces):
    for row, trace in enumerate(traces):
        ops = trace["device_ops"]
        assert kernels_of(page, row) == sorted(zip(ops["ts_ns"], ops["dur_ns"], ops["name"], strict=True))
    assert page.head["missed"] == 0
    assert page.head["kernels"] == sum(map(len, (trace["device_ops"] for trace in traces)))
    assert all(line[4] == 0 for line, _ in page.cells())


def test_the_sums_are_those_of_the_traces_by_name(page, traces):
    sums = page.columns("sums", 8)
    for row, trace in enumerate(traces):
        of_row = sums[:, sums[0] == row]
        by_name = {}
        for name, count, ns in zip(of_row[4], of_row[6], of_row[7], strict=True):
            before = by_name.get(page.names[name], (0, 0))
            by_name[page.names[name]] = before[0] + int(count), before[1] + int(ns)
        grouped = trace["device_ops"].groupby("name", observed=True)["dur_ns"].agg(["size", "sum"])
        assert by_name == {name: (int(row["size"]), int(row["sum"])) for name, row in grouped.iterrows()}


def test_the_sums_of_a_step_are_those_of_its_launches(page, traces):
    """The step of a kernel is the one in which the report places it: by its launch, where that is recorded."""
    sums = page.columns("sums", 8)
    for row, trace in enumerate(traces):
        place, steps = trace.derived(place_device_ops), trace.derived(find_steps_and_stages).step_rows
        for number, (begin, end) in enumerate(zip(steps.ts_ns, steps.end_ns, strict=True), 1):
            inside = place.is_placed & (place.ts_ns >= begin) & (place.ts_ns < end)
            wanted = sums[:, (sums[0] == row) & (sums[1] == number)]
            length = trace.numbers("device_ops", "dur_ns")[inside]
            assert (wanted[6].sum(), wanted[7].sum()) == (inside.sum(), length.sum())


def test_a_random_brush_has_the_time_of_the_trace_to_the_ns(page, traces):
    draws, t0 = np.random.default_rng(11), int(page.head["t0"])
    boxes = [(line[0], columns) for line, columns in page.cells()]
    for _ in range(20):
        low, high = np.sort(draws.integers(0, page.head["span"], 2)).tolist()
        for row, trace in enumerate(traces):
            start, length = (trace.numbers("device_ops", name) for name in ("ts_ns", "dur_ns"))
            expected = np.clip(np.minimum(start + length - t0, high) - np.maximum(start - t0, low), 0, None).sum()
            parts = [columns for of_row, columns in boxes if of_row == row]
            inside = [np.minimum(part[0] + part[1], high) - np.maximum(part[0], low) for part in parts]
            assert sum(int(np.clip(part, 0, None).sum()) for part in inside) == expected


def test_steps_are_divided_without_a_rest_and_those_of_the_report_count(page):
    steps = page.started("steps", 10, 2)
    assert (steps[5:].sum(0) == steps[3]).all()
    assert {int(number) - 1 for number, counted in zip(steps[1], steps[4], strict=True) if counted} == {6, 7}
    assert page.head["counted"] == [6, 7]


def test_the_segments_of_gaps_have_the_causes_of_the_analysis(page, traces):
    gaps, segments = page.started("gaps", 6), page.columns("segments", 3)
    assert page.head["dropped_gaps"] == [0, 0]
    of_gap = np.repeat(np.arange(gaps.shape[1]), gaps[5])
    assert (np.bincount(of_gap, segments[0]).astype(int) == gaps[2]).all()
    for row, trace in enumerate(traces):
        for idle in trace.derived(make_idle_time_measurement()):
            of_row = segments[:, gaps[0][of_gap] == row]
            for cause, key in enumerate(CAUSES):
                assert of_row[0][of_row[1] == cause].sum() == idle.causes[key].total


def sum_blame(trace, devices):
    """Path → idle ns of the capture with all below it, as the analysis has it; small nodes are folded into `(other)`."""
    tables = attribute_idle_time(trace, devices)
    frames, rows = tables["idle_frames"], tables["idle_blame"]
    in_capture = np.array(rows["window"].texts)[rows["window"].codes] == "capture"
    inside = np.zeros(len(frames["node"]), np.int64)
    np.add.at(inside, rows["node"][in_capture], rows["idle_ns"][in_capture])
    for node in range(len(inside) - 1, -1, -1):
        if frames["parent"][node] >= 0:
            inside[frames["parent"][node]] += inside[node]
    whole, sums = [], {}
    for parent, code, ns in zip(frames["parent"], frames["frame"].codes, inside, strict=True):
        whole.append((*(whole[parent] if parent >= 0 else ()), frames["frame"].texts[code]))
        sums[whole[-1]] = sums.get(whole[-1], 0) + int(ns)
    return sums


def sum_segments(page, row, first, last):
    """Path → ns of the segments of a row between two instants, with all below it."""
    gaps, segments = page.started("gaps", 6), page.columns("segments", 3)
    of_gap = np.repeat(np.arange(gaps.shape[1]), gaps[5])
    behind = np.cumsum(segments[0]) - np.repeat(np.cumsum(gaps[2]) - gaps[2], gaps[5])
    end = gaps[1][of_gap] + behind
    length = np.clip(np.minimum(end, last) - np.maximum(end - segments[0], first), 0, None)
    length[gaps[0][of_gap] != row] = 0
    of_path = np.bincount(segments[2], length).astype(np.int64)
    sums = {}
    for number in np.flatnonzero(of_path).tolist():
        names = page.path(number)
        for depth in range(1, len(names) + 1):
            sums[tuple(names[:depth])] = sums.get(tuple(names[:depth]), 0) + int(of_path[number])
    return sums


def check_blame(page, traces):
    """Compare the segments with `idle_blame`. The window of the capture is from the first op to the last."""
    row, t0 = 0, int(page.head["t0"])
    for trace in traces:
        devices = trace.derived(make_idle_time_measurement())
        shown = {}
        for idle in devices:
            of_row = sum_segments(page, row, idle.first - t0, idle.last - t0)
            shown = {path: shown.get(path, 0) + of_row.get(path, 0) for path in {*shown, *of_row}}
            assert sum(ns for path, ns in of_row.items() if len(path) == 1) == sum_idle_of_capture(trace, idle)
            row += 1
        blamed = sum_blame(trace, devices)
        assert len(blamed) > 3
        for path, ns in blamed.items():
            # A path may have two nodes, such as a call that waits and one that does not: a small one is in `(other)`.
            folded = blamed.get((*path[:-1], "(other)"), 0)
            more = shown.get(tuple(map(make_printable, path)), 0) - ns
            assert "(other)" in path or 0 <= more <= folded, path


def sum_idle_of_capture(trace, idle):
    """The idle time between the first and the last op of a device, as the analysis has it."""
    window = sum_idle_time_by_window(trace, idle)
    of_capture = np.array(window["window"].texts)[window["window"].codes] == "capture"
    return window["idle_ns"][of_capture].sum()


def test_the_segments_of_gaps_have_the_paths_of_idle_blame(page, traces):
    check_blame(page, traces)


def test_bins_are_the_time_of_the_row_within_rounding(page, traces):
    count, width, t0 = page.head["bins"], page.head["width"], int(page.head["t0"])
    planes = np.frombuffer(page.raw["bins"], np.uint8).reshape(-1, 5, count).astype(np.int64)
    edges = t0 + np.arange(count + 1, dtype=np.int64) * width
    for row, trace in enumerate(traces):
        ops = trace["device_ops"]
        end = ops["ts_ns"] + ops["dur_ns"]
        busy = merge_intervals(ops["ts_ns"].to_numpy(), end.to_numpy())
        covered = measure_coverage(busy, edges[:-1], edges[1:])
        assert np.abs(planes[row, :3].sum(0) * width / 255 - covered).max() <= 1.5 * width / 255
        is_comm = (ops["kind"] == "collective").to_numpy()
        comm = merge_intervals(ops["ts_ns"].to_numpy()[is_comm], end.to_numpy()[is_comm])
        covered = measure_coverage(comm, edges[:-1], edges[1:])
        assert np.abs(planes[row, 3] * width / 255 - covered).max() <= 0.5 * width / 255
        (idle,) = trace.derived(make_idle_time_measurement())
        causes = np.stack([measure_coverage(idle.causes[key], edges[:-1], edges[1:]) for key in CAUSES])
        assert (planes[row, 4] == np.where(causes.any(0), causes.argmax(0) + 1, 0)).all()


def test_ranges_are_those_of_the_steps_and_kernels_have_their_stage(page):
    ranges = page.started("ranges", 6)
    assert {page.names[name] for name in ranges[3][ranges[4] == 0]} == {"gen", "old_log_prob", "ref", "update_actor"}
    sums = page.columns("sums", 8)
    inside = sums[2] > 0
    assert (ranges[0][sums[2][inside] - 1] == sums[0][inside]).all()
    assert (ranges[4][sums[2][inside] - 1] == 0).all()
    by_box = {}
    for line, columns in page.cells():
        for stage, length in zip(columns[5], columns[1], strict=True):
            key = line[0], page.names[stage - 1] if stage else None
            by_box[key] = by_box.get(key, 0) + int(length)
    by_sum = {}
    for row, place, ns in zip(sums[0], sums[2], sums[7], strict=True):
        key = int(row), page.names[ranges[3][place - 1]] if place else None
        by_sum[key] = by_sum.get(key, 0) + int(ns)
    assert by_box == by_sum


def test_launch_delays_are_the_time_since_the_launching_call_began(page, traces):
    for row, trace in enumerate(traces):
        links, start = trace.derived(find_launches), trace.numbers("device_ops", "ts_ns")
        expected = np.where(links.linked & (start >= links.ts_ns), start - links.ts_ns + 1, 0)
        delays = np.concatenate([columns[6] for line, columns in page.cells() if line[0] == row])
        assert sorted(delays) == sorted(expected)


def test_host_rows_are_recorded_rows_from_the_floor_on(page, traces):
    t0, floor = int(page.head["t0"]), page.head["host_floor"]
    for process, trace in enumerate(traces):
        rows = trace["host_ops"]
        rows = rows[(rows["dur_ns"] >= max(floor, 1)) & (rows["kind"] != "overhead")]
        expected = sorted(zip(rows["thread"], rows["ts_ns"] - t0, rows["dur_ns"], strict=True))
        thread, start, length, path = page.started(f"h{process}", 4)
        assert sorted(zip(thread, start, length, strict=True)) == expected
        assert {page.path(int(number))[-1] for number in path} >= {"aten::mm", "cudaLaunchKernel"}
        assert len(page.head["threads"][process]) > int(thread.max())


def test_paths_of_kernels_lead_from_the_outermost_op_to_the_innermost(tmp_path):
    """The ranges of steps and stages are not part of a path, ranges inside them are."""
    rows = [
        chrome.step(5, 0, 100), chrome.annotation("update_actor", 10, 80), chrome.annotation("layer#3", 15, 60),
        chrome.op("aten::linear", 20, 50), chrome.op("aten::mm", 25, 40), *chrome.launched("gemm", 30, 120, 7, 1),
    ]  # fmt: skip
    page = written([tracekit.load(chrome.write(tmp_path / "rank0.json", rows))])
    ((line, columns),) = page.cells()
    assert page.path(int(columns[4][0])) == ["layer#", "aten::linear", "aten::mm"]
    assert (line[0], line[4:], columns[6].tolist()) == (0, [0, 1, 1], [120_000 - 30_000 + 1])
    assert page.names[columns[5][0] - 1] == "update_actor"


# Merging


def merge_one_by_one(start, length, key, limit):
    """Boxes (start, end, count, busy) of one row in order of cell, lane and start, as a person would merge them."""
    boxes, before = [], None
    for place, begin in enumerate(start):
        joins = before is not None and key[place] == key[before]
        joins = joins and begin - (start[before] + length[before]) < limit
        joins = joins and max(length[place], length[before]) < limit
        if joins:
            first, end, count, busy = boxes[-1]
            boxes[-1] = first, max(end, begin + length[place]), count + 1, busy + length[place]
        else:
            boxes.append((begin, begin + length[place], 1, length[place]))
        before = place
    return sorted(boxes)


@pytest.mark.parametrize("level", range(len(LEVEL_LIMITS_NS)))
def test_merging_conserves_count_and_busy_time(traces, level):
    (row, _) = arrange_rows(list(map(build_blocks, traces)), EMPTY).rows
    cells = list_row_cells(row)
    numbers = np.arange(10_000)
    boxes = merge_row_kernels(row, cells, np.full(len(cells.cell), level), (numbers, numbers, numbers))
    assert boxes.sizes.tolist() == cells.boxes[:, level].tolist()
    start, reach, _, name, _, stage, _, more, busy = boxes.columns
    read = {name: row.read_part("kernels", f"kernel.{name}") for name in ("cell", "lane", "stage", "length", "name")}
    begin = row.read_times("kernels", "kernel.start")
    key = list(zip(read["cell"], read["lane"], read["stage"], strict=True))
    expected = merge_one_by_one(begin.tolist(), read["length"].tolist(), key, LEVEL_LIMITS_NS[level])
    busy = np.where(more > 0, busy, reach)
    assert sorted(zip(start, start + reach, more + 1, busy, strict=True)) == expected
    assert (int((more + 1).sum()), int(busy.sum())) == (len(begin), int(read["length"].sum()))
    assert set(stage.tolist()) == set(read["stage"].tolist())
    if level == 0:
        assert (more == 0).all()
        assert sorted(name - 1) == sorted(read["name"])


def test_a_box_of_kernels_with_one_name_has_it_and_of_several_has_none(tmp_path):
    """Kernels of 0.5 µs, 0.2 µs apart: three of one name, then far away two of different names."""
    spans = [("a", 10), ("a", 10.7), ("a", 11.4), ("a", 1_000), ("b", 1_000.7)]
    rows = [chrome.kernel(name, at, 0.5) for name, at in spans]
    trace = tracekit.load(chrome.write(tmp_path / "rank0.json", rows))
    (row,) = arrange_rows([build_blocks(trace)], EMPTY).rows
    cells, numbers = list_row_cells(row), np.arange(10)
    boxes = merge_row_kernels(row, cells, np.array([1]), (numbers, numbers, numbers))
    assert [column.tolist() for column in (boxes.columns[3], boxes.columns[7], boxes.columns[8])] == [
        [row.process.data.names.index("a") + 1, 0], [2, 1], [1_500, 1_000],
    ]  # fmt: skip


# Budget


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The data of 64 small ranks."""
    place = EXAMPLES / "scale" / "make_ranks.py"
    spec = importlib.util.spec_from_file_location("make_ranks_of_page", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = module.write(tmp_path_factory.mktemp("ranks"), 64, steps=2)
    blocks = map(build_blocks, list_traces(folder))
    return [replace(data, source=replace(data.source, run="simulated")) for data in blocks]


@pytest.mark.parametrize("budget", [200_000, 400_000, 700_000, 3_000_000])
def test_the_budget_holds_for_64_ranks_and_nothing_is_lost_unsaid(many, budget):
    made = write_explorer_page(EMPTY, many, ASSETS, CAUSE_ROWS, budget)
    page = Page(made.text)
    assert len(page.head["rows"]) == 64
    assert len(made.text.encode()) <= budget
    lines = np.array([line for line, _ in page.cells()]).reshape(-1, 7)
    shown = sum(int((columns[7] + 1).sum()) for _, columns in page.cells())
    assert shown == lines[:, 6].sum()
    assert shown + page.head["missed"] == page.head["kernels"] == made.kernels.total
    assert made.kernels.exact + made.kernels.merged == shown
    assert (budget == 3_000_000) == (made.kernels.exact == made.kernels.total) == (made.kernels.merged == 0)
    gaps = page.started("gaps", 6)
    assert gaps.shape[1] + page.head["dropped_gaps"][0] == sum(len(data.numbers["gap.length"]) for data in many)
    whole = sum(int(data.numbers["gap.length"].sum()) for data in many)
    assert int(gaps[2].sum()) + page.head["dropped_gaps"][1] == whole
    sums = page.columns("sums", 8)
    assert sums[6].sum() == page.head["kernels"]
    assert sums[7].sum() == sum(int(data.numbers["sum.ns"].sum()) for data in many)


@pytest.mark.parametrize("budget", [22_000, 100_000, 3_000_000])
def test_the_budget_holds_for_one_rank(traces, budget):
    made = write_explorer_page(EMPTY, [build_blocks(traces[0])], ASSETS, CAUSE_ROWS, budget)
    assert len(made.text.encode()) <= budget
    assert (made.kernels.exact == made.kernels.total) == (budget > 22_000)


def test_the_longest_and_the_median_step_of_the_latest_rank_are_exact_first(many):
    rows = [(rank, 1_000.0 if rank == 9 else 0.0) for rank in range(64)]
    headings = (Heading("rank", "rank"), Heading("beyond_ns", "beyond"))
    waits = Sheet("waits", "waits", (Heading("late_rank", ""), Heading("each_ns", "")), tuple(rows))
    report = replace(
        EMPTY, sections=(Section("stragglers", "", sheets=(Sheet("ranks", "", headings, tuple(rows)), waits)),)
    )
    page = Page(write_explorer_page(report, many, ASSETS, CAUSE_ROWS, 500_000).text)
    exact = {line[0] for line, _ in page.cells() if line[4] == 0}
    (late,) = (number for number, row in enumerate(page.head["rows"]) if row["rank"] == 9)
    assert late in exact
    assert len(exact) < 64
    assert page.head["rows"][late]["late"] == 1_000


# Findings


def find_pins(traces, *instances, places=()):
    finding = Finding("x", "high", "claim", "advice", places=places, instances=instances)
    page = written(traces, replace(EMPTY, sections=(Section("s", "", findings=(finding,)),)))
    t0 = int(page.head["t0"])
    return [(pin["name"], pin["row"], pin["t0"] + t0, pin["t1"] + t0) for pin in page.head["findings"][0]["pins"]]


@pytest.fixture
def stages(tmp_path):
    """Ranks 0 and 1, each with a step of 100 µs."""
    traces = []
    for rank in (0, 1):
        rows = [chrome.step(1, 0, 100), chrome.launch(1, 1), chrome.memcpy("Memcpy HtoD", 2, 5, 8, 1)]
        traces.append(tracekit.load(chrome.write(tmp_path / f"rank{rank}.json", rows, rank=rank)))
    return traces


def at(start, length):
    return chrome.BASE_NS + start * 1_000, chrome.BASE_NS + (start + length) * 1_000


def instance(which, start, length, **place):
    start_ns, end_ns = at(start, length)
    return Instance(which, Place(**place, start_ns=start_ns, end_ns=end_ns), 1)


def test_the_worst_and_the_median_instance_are_pinned_on_the_rows_of_their_ranks(stages):
    pins = find_pins(stages, instance("worst", 20, 30, rank=1), instance("median", 40, 7, rank=0))
    assert pins == [("worst", 1, *at(20, 30)), ("median", 0, *at(40, 7))]


def test_an_instance_of_a_process_that_the_page_has_no_row_of_is_not_pinned(stages):
    assert find_pins(stages, instance("worst", 20, 30, rank=3)) == []
    assert find_pins(stages, instance("worst", 20, 30, source="snapshot.pickle")) == []
    assert find_pins(stages) == []


def test_places_with_times_are_pinned_where_a_finding_has_no_instance(stages):
    start_ns, end_ns = at(20, 7)
    places = (Place(stage="gen"), Place(rank=0, start_ns=start_ns, end_ns=end_ns), Place(rank=1, start_ns=start_ns))
    expected = [("interval", 0, start_ns, end_ns), ("interval", 1, start_ns, start_ns + 1)]
    assert find_pins(stages, places=places) == expected
    assert find_pins(stages, instance("worst", 1, 2, rank=0), places=places) == [("worst", 0, *at(1, 2))]


# Overlays


def test_the_critical_path_is_on_the_rows_of_its_processes_and_the_page_names_it(traces):
    """Three pieces, the last first: of an unknown process, of rank 1, of rank 0."""
    t0 = int(written(traces).head["t0"])
    names = [trace.source.name for trace in traces]
    pieces = SimpleNamespace(
        source=["other", names[1], names[0]], pid=[None, traces[1].source.pid, traces[0].source.pid],
        ts_ns=[t0 + 50, t0 + 20, t0 + 10], dur_ns=[5, 30, 10], kind=["gap", "kernel", "call"], name=[None, "gemm", "launch"],
    )  # fmt: skip
    blocks = list(map(build_blocks, traces))
    page = Page(write_explorer_page(EMPTY, blocks, ASSETS, CAUSE_ROWS, critical=pieces).text)
    path = page.started("critical", 5)
    assert path[:3].tolist() == [[1, 2, 0], [10, 20, 50], [10, 30, 5]]
    assert [page.names[kind] for kind in path[3]] == ["call", "kernel", "gap"]
    assert [page.names[name - 1] if name else None for name in path[4]] == ["launch", "gemm", None]


def test_the_memory_of_a_device_is_a_curve(tmp_path):
    """Levels of 10, 30 and 5 bytes; the first one before the page begins at its step."""
    rows = [
        chrome.step(1, 100, 100), *chrome.launched("gemm", 110, 120, 7, 1),
        chrome.memory(50, 10, 10), chrome.memory(130, 20, 30), chrome.memory(150, -25, 5), chrome.memory(140, 1, 99, device_type=0),
    ]  # fmt: skip
    page = written([tracekit.load(chrome.write(tmp_path / "rank0.json", rows))])
    time, allocated, reserved = page.columns("curve0", 3)
    assert np.cumsum(time).tolist() == [0, 30_000, 50_000]
    assert allocated.tolist() == [10, 30, 5]
    assert reserved.tolist() == [0, 0, 0]
    assert page.head["dropped_curves"] == 0


# Clocks, threads, hostile names


def test_clock_offsets_of_the_report_are_taken_off(traces):
    """Rank 1 is 5 ms ahead: its kernels move by that, those of rank 0 do not."""
    headings = (Heading("rank", "rank"), Heading("offset_ns", "offset"))
    clocks = Sheet("clocks", "clocks", headings, ((0, 0), (1, 5_000_000)))
    report = replace(EMPTY, sections=(Section("stragglers", "", sheets=(clocks,)),))
    plain, moved = written(traces), written(traces, report)
    for row, shift in ((0, 0), (1, 5_000_000)):
        before, after = kernels_of(plain, row), kernels_of(moved, row)
        assert [start - shift for start, _, _ in before] == [start for start, _, _ in after]


def make_role_sheet(name, rank, value, *rows):
    return Sheet(name, name, (Heading("role", ""), Heading(rank, ""), Heading(value, "")), rows)


def test_ranks_of_two_roles_have_their_own_offsets_and_delays(traces):
    """Both traces are of a rank 0, of different roles: nothing of one is shown at the other."""
    roles = ("actor", "critic")
    blocks = [build_blocks(trace) for trace in traces]
    blocks = [replace(of, source=replace(of.source, rank=0, role=role)) for of, role in zip(blocks, roles, strict=True)]
    sheets = (
        make_role_sheet("clocks", "rank", "offset_ns", ("actor", 0, 0), ("critic", 0, 5_000_000)),
        make_role_sheet("ranks", "rank", "beyond_ns", ("actor", 0, 30), ("critic", 0, -30)),
        make_role_sheet("waits", "late_rank", "each_ns", ("actor", 0, 7), ("actor", 0, 4), ("critic", 0, 2)),
    )
    report = replace(EMPTY, sections=(Section("stragglers", "", sheets=sheets),))
    page, plain = Page(write_explorer_page(report, blocks, ASSETS, CAUSE_ROWS).text), written(traces)
    assert [(row["role"], row["late"], row["beyond"]) for row in page.head["rows"]] == [
        ("actor", 11, 30), ("critic", 2, -30),
    ]  # fmt: skip
    for row, shift in ((0, 0), (1, 5_000_000)):
        assert [start - shift for start, *_ in kernels_of(plain, row)] == [start for start, *_ in kernels_of(page, row)]


def test_a_run_without_a_device_has_its_host_threads_as_rows(tmp_path):
    """Outermost ops alone, collectives as communication; 100 µs of a step with 60 in ops."""
    rows = [
        chrome.step(1, 0, 100), chrome.op("aten::linear", 10, 40), chrome.op("aten::mm", 15, 20),
        chrome.op("gloo:all_reduce", 60, 20), chrome.op("aten::add", 5, 7, tid=chrome.BACKWARD),
    ]  # fmt: skip
    page = written([tracekit.load(chrome.write(tmp_path / "rank0.json", rows, rank=0))])
    assert [(row["kind"], row["device"], row["lanes"]) for row in page.head["rows"]] == [
        ("thread", None, [[0, 0], [1, 0]]), ("thread", None, [[0, 0]]),
    ]  # fmt: skip
    steps = page.started("steps", 10, 2)
    assert steps[5:, 0].tolist() == [40_000, 20_000, 0, 0, 40_000]
    boxes = [(line[0], page.names[name - 1]) for line, columns in page.cells() for name in columns[3]]
    assert boxes == [(0, "aten::linear"), (0, "gloo:all_reduce"), (1, "aten::add")]
    planes = np.frombuffer(page.raw["bins"], np.uint8).reshape(2, 5, page.head["bins"])
    assert planes[0, 0].sum() * page.head["width"] / 255 == pytest.approx(40_000, rel=0.01)
    assert planes[0, 1].sum() == planes[0, 3].sum() > 0


def test_a_report_without_data_of_processes_makes_a_page(sample):
    page = written([], sample)
    assert page.head["rows"] == []
    assert page.head["sentence"]


class Elements(HTMLParser):
    """Counts elements, and collects attributes that would run or load something."""

    def __init__(self):
        super().__init__()
        self.tags, self.loads = {}, []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.loads += [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]


def test_hostile_names_are_inert(tmp_path):
    """As names of kernels, ops, stages and threads, and in every text of a report."""
    names = [*HOSTILE[:-1], "{{code}}", "{{head}}"]
    rows = [chrome.step(1, 0, 1_000)]
    for place, name in enumerate(names):
        at = 10 + 20 * place
        rows += [
            chrome.annotation(name, at, 15), chrome.op(name, at + 1, 10),
            *chrome.launched(name, at + 2, at + 6, 5, place + 1),
        ]  # fmt: skip
    trace = tracekit.load(chrome.write(tmp_path / "rank0.json", rows))
    made = write_explorer_page(sample_report(), [build_blocks(trace)], ASSETS, CAUSE_ROWS)
    elements, page = Elements(), Page(made.text)
    elements.feed(made.text)
    assert elements.tags["script"] == len(page.raw) + 2
    assert "img" not in elements.tags
    assert elements.loads == []
    assert made.text.count("let a=1") == 1
    assert all(name.isprintable() for name in page.names)
    assert json.dumps(page.head["findings"])
    allowed = {"title", "style", "p", "h1", "h3", "ol", "li", "table", "thead", "tbody", "tr", "td", "th", "div"}
    assert set(elements.tags) <= allowed | {"details", "summary", "ul", "meta", "script", "noscript"}


def test_the_policy_names_the_style_and_the_program_by_hash(traces):
    page = write_explorer_page(EMPTY, [build_blocks(traces[0])], ASSETS, CAUSE_ROWS).text
    hashes = re.findall(r"sha256-([A-Za-z0-9+/=]{44})", page)
    assert hashes == [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in ("let a=1", "h1{}")]


def test_the_page_without_scripts_has_answer_findings_kernels_and_tables(sample):
    page = write_explorer_page(sample, [], ASSETS, CAUSE_ROWS).text
    body = page[: page.index('<script type="application/json"')]
    assert body.count("<li><h3>") == len(sample.findings)
    assert "could not be answered from this recording" in body
    sheets = [sample.overview, *(sheet for section in sample.sections for sheet in section.sheets), sample.values]
    assert body.count("<details><summary>") == 1 + sum(sheet is not None for sheet in sheets)


# Any trace

SPANS = st.tuples(st.integers(0, 60), st.integers(0, 20))
KERNELS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([7, 8, 2**62]), SPANS, st.sampled_from("ab"), st.booleans()),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(KERNELS, st.lists(SPANS, max_size=3), st.lists(SPANS, max_size=3), st.lists(SPANS, max_size=6))
def test_pages_of_drawn_traces_have_all_kernels_and_no_rest(tmp_path_factory, kernels, steps, stages, ops):
    """Kernels of zero length, at once on one stream, outside all steps, with and without launch; steps that overlap."""
    rows = [chrome.step(number, *span) for number, span in enumerate(steps, 1)]
    rows += [chrome.annotation(f"stage_{place % 2}", *span) for place, span in enumerate(stages)]
    rows += [chrome.op("aten::mm", *span) for span in ops]
    for place, (device, stream, (start, length), name, linked) in enumerate(kernels, 1):
        rows += [chrome.launch(max(start - 3, 0), place)] if linked else []
        rows.append(chrome.kernel(name, start, length, place if linked else None, device, stream))
    trace = tracekit.load(chrome.write(tmp_path_factory.mktemp("drawn") / "rank0.json", rows or [chrome.op("x", 1, 1)]))
    blocks = build_blocks(trace)
    page = Page(write_explorer_page(EMPTY, [blocks], ASSETS, CAUSE_ROWS).text)
    if kernels:
        shown = [kernel for row in range(len(page.head["rows"])) for kernel in kernels_of(page, row)]
        ops_of_trace = trace["device_ops"]
        assert sorted(shown) == sorted(
            zip(ops_of_trace["ts_ns"], ops_of_trace["dur_ns"], ops_of_trace["name"], strict=True)
        )
        gaps, segments = page.started("gaps", 6), page.columns("segments", 3)
        assert (np.bincount(np.repeat(np.arange(gaps.shape[1]), gaps[5]), segments[0]) == gaps[2]).all()
        assert blocks.numbers["sum.ns"].sum() == ops_of_trace["dur_ns"].sum()
    measured = page.started("steps", 10, 2)
    assert (measured[5:].sum(0) == measured[3]).all()


REAL = os.environ.get("TRACEKIT_REAL_DATA")
REAL_FILES = (
    "data/chrome/tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz",
    "more/chrome/hta/df_index_resolver/df_index_resolver.json.gz",
    "more/chrome/tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
)


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.parametrize("name", REAL_FILES)
def test_pages_of_real_profiles_have_all_kernels_and_the_idle_time_of_the_analysis(name):
    traces = list(list_traces(Path(REAL).parent / name))
    made = write_explorer_page(EMPTY, list(map(build_blocks, traces)), ASSETS, CAUSE_ROWS, 9_000_000)
    page = Page(made.text)
    assert made.kernels.exact == made.kernels.total == sum(trace.row_count("device_ops") for trace in traces)
    for row, trace in enumerate(traces):
        spans = sorted(
            zip(*(trace.numbers("device_ops", column).tolist() for column in ("ts_ns", "dur_ns")), strict=True)
        )
        assert [(start, length) for start, length, _ in kernels_of(page, row)] == spans
    if page.head["dropped_gaps"] == [0, 0]:
        check_blame(page, traces)
