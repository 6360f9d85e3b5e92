"""Pages of runs without a device: gaps of main threads by cause, and one row per thread over the files of a process."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import chrome_builder as chrome
import numpy as np
import pytest
from explorer_page import CAUSE_ROWS, build_blocks, list_traces
from page_reading import Page
from process.blame_traces import python, traced

import tracekit
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.model.report import Report
from tracekit.process.host.phases import find_step_thread
from tracekit.process.idle_time.cpu_activity import CpuTime
from tracekit.process.page_blocks import idle_segments
from tracekit.render.explorer.page import PageAssets, write_explorer_page

PROFILE = Path(__file__).parents[2] / "examples" / "verl_cpu" / "outputs" / "profile"
ASSETS = PageAssets('<script type="application/json" id="head">{{head}}</script>{{blocks}}', "", "")
EMPTY = Report("a run", "1.0")


def written(blocks):
    return Page(write_explorer_page(EMPTY, blocks, ASSETS, CAUSE_ROWS).text)


def list_segments(page):
    """Row, start, length, title of the cause and path of all segments."""
    gaps, segments = page.started("gaps", 6), page.columns("segments", 3)
    of_gap = np.repeat(np.arange(gaps.shape[1]), gaps[5])
    assert (np.bincount(of_gap, segments[0], gaps.shape[1]) == gaps[2]).all()
    start = gaps[1][of_gap] + np.cumsum(segments[0]) - segments[0] - (np.cumsum(gaps[2]) - gaps[2])[of_gap]
    titles = [page.head["causes"][cause][1] for cause in segments[1]]
    paths = [page.path(int(path)) for path in segments[2]]
    return list(zip(gaps[0][of_gap].tolist(), start.tolist(), segments[0].tolist(), titles, paths, strict=True))


def list_boxes(page, row):
    """Start, length and name of all boxes of a row."""
    boxes = [columns for line, columns in page.cells() if line[0] == row]
    return sorted(
        (int(start), int(length), page.names[name - 1])
        for columns in boxes
        for start, length, name in zip(columns[0], columns[1], columns[3], strict=True)
    )


def test_gaps_of_the_main_thread_have_the_activity_of_the_host_and_its_path(tmp_path):
    """A step of 100 ms: loader 10–30, op 30–40, op of another thread 50–55, Python 60–62, then nothing until 90."""
    rows = [
        chrome.step(1, 0, 100_000), chrome.annotation("update_actor", 5_000, 90_000),
        chrome.annotation("enumerate(DataLoader)#_Single.__next__", 10_000, 20_000), chrome.op("aten::mm", 30_000, 10_000),
        chrome.op("aten::other", 50_000, 5_000, tid=chrome.BACKWARD), python("loss.py(3): f", 60_000, 2_000),
        chrome.op("aten::add", 90_000, 10_000),
    ]  # fmt: skip
    page = written([build_blocks(traced(tmp_path, rows, rank=0))])
    found = [(row, start // 1_000, ns // 1_000, title) for row, start, ns, title, _ in list_segments(page)]
    sums = {}
    for row, _, length, title in found:
        assert row == 0
        sums[title] = sums.get(title, 0) + length
    assert sums == {"no host activity": 53_000, "data loader": 20_000, "op on another thread": 5_000, "Python": 2_000}
    assert sum(sums.values()) * 1_000 == page.started("steps", 10, 2)[9][0]
    (loader,) = [path for *_, title, path in list_segments(page) if title == "data loader"]
    assert "update_actor" in loader
    gaps = page.started("gaps", 6)
    around = [[page.names[name - 1] if name else None for name in gaps[column]] for column in (3, 4)]
    assert around == [[None, "aten::mm"], ["aten::mm", "aten::add"]]


def test_without_steps_the_thread_with_most_time_in_ops_has_the_gaps(tmp_path):
    rows = [chrome.op("aten::mm", 10, 10), chrome.op("aten::mm", 40, 10), chrome.op("x", 0, 5, tid=chrome.BACKWARD)]
    page = written([build_blocks(tracekit.load(chrome.write(tmp_path / "rank0.json", rows, rank=0)))])
    assert [(start, length, title) for _, start, length, title, _ in list_segments(page)] == [
        (0, 5_000, "op on another thread"), (5_000, 5_000, "between ops"), (20_000, 20_000, "between ops"),
    ]  # fmt: skip
    assert list_boxes(page, 0) == [(10_000, 10_000, "aten::mm"), (40_000, 10_000, "aten::mm")]


@pytest.fixture(scope="module")
def verl():
    """The traces of four processes, three files each."""
    return list(list_traces(PROFILE))


@pytest.fixture(scope="module")
def page(verl):
    return written(list(map(build_blocks, verl)))


def files_of(verl, row):
    """The traces of the process of a row of the page, in order of time."""
    labels = [(trace.source.role, trace.source.rank) for trace in verl]
    same = [trace for trace, label in zip(verl, labels, strict=True) if label == (row["role"], row["rank"])]
    return sorted(same, key=lambda trace: trace.numbers("host_ops", "ts_ns").min())


def outermost_of(trace, thread):
    """Ops and collectives of a thread that no other one encloses, by a search over all pairs."""
    rows = trace["host_ops"]
    is_collective = rows["name"].str.startswith(("gloo:", "nccl:"))
    rows = rows[(rows["thread"] == thread) & (((rows["kind"] == "op") & (rows["dur_ns"] > 0)) | is_collective)]
    start, end = rows["ts_ns"].to_numpy(), (rows["ts_ns"] + rows["dur_ns"]).to_numpy()
    spans = sorted(zip(start.tolist(), (-end).tolist(), rows["name"], strict=True))
    kept, reach = [], -1
    for begin, minus_end, name in spans:
        if begin >= reach:
            kept.append((begin, -minus_end - begin, name))
            reach = -minus_end
    return kept


def test_files_of_a_process_are_one_row_per_thread(page, verl):
    assert len(verl) == 12
    rows = page.head["rows"]
    assert len({(row["process"], row["thread"]) for row in rows}) == len(rows)
    assert len({row["process"] for row in rows}) == 4
    t0 = int(page.head["t0"])
    steps = page.started("steps", 10, 2)
    for place, row in enumerate(rows):
        expected = []
        for trace in files_of(verl, row):
            (thread,) = trace["threads"].loc[trace["threads"]["name"] == row["thread"], "thread"]
            expected += [(start - t0, length, name) for start, length, name in outermost_of(trace, thread)]
        assert list_boxes(page, place) == sorted(expected), row
        of_row = steps[:, steps[0] == place]
        assert (of_row[1] - 1).tolist() == [1, 2, 4]
        assert (np.diff(of_row[2]) > 0).all()


def test_idle_time_of_main_threads_is_that_of_the_steps_and_of_the_report(page, verl):
    """What runs no op is the same in the table `cpu_time`, since its activities exclude ops of all threads."""
    titles = {"Python": "python", "between ops": "between", "no host activity": "silent"}
    steps, segments = page.started("steps", 10, 2), list_segments(page)
    main = {row for row, *_ in segments}
    assert len(main) == 4
    for place in main:
        label = page.head["rows"][place]
        for trace, step in zip(files_of(verl, label), steps[:, steps[0] == place].T.tolist(), strict=True):
            threads = trace["threads"].set_index("thread")["name"]
            assert threads[trace.derived(find_step_thread)] == label["thread"]
            _, number, start, length, *_, idle = step
            inside = {}
            for row, begin, ns, title, _ in segments:
                part = min(begin + ns, start + length) - max(begin, start)
                if row == place and part > 0:
                    inside[title] = inside.get(title, 0) + part
            assert sum(inside.values()) == idle
            table = trace.derived(CpuTime(make_idle_time_measurement().silence_ns))
            is_step = (table["step"].values == number - 1) & (
                table["window"].codes == table["window"].texts.index("step")
            )
            activities = [table["activity"].texts[code] for code in table["activity"].codes[is_step]]
            reported = dict(zip(activities, table["time_ns"][is_step].tolist(), strict=True))
            assert {name: inside.get(title, 0) for title, name in titles.items()} == {
                name: reported.get(name, 0) for name in titles.values()
            }


def test_sums_of_a_merged_row_are_those_of_its_boxes_by_step_and_stage(page):
    sums, ranges = page.columns("sums", 8), page.started("ranges", 6)
    for place in range(len(page.head["rows"])):
        boxes = list_boxes(page, place)
        of_row = sums[:, sums[0] == place]
        assert (of_row[6].sum(), of_row[7].sum()) == (len(boxes), sum(length for _, length, _ in boxes))
        staged = of_row[:, of_row[2] > 0]
        assert (ranges[0][staged[2] - 1] == place).all()
        # The stage of a sum is in the step of the sum.
        assert (ranges[5][staged[2] - 1] == staged[1]).all()
    by_step = {}
    for line, columns in page.cells():
        by_step[line[0], line[1]] = by_step.get((line[0], line[1]), 0) + int(columns[1].sum())
    for (row, step), total in by_step.items():
        assert sums[7][(sums[0] == row) & (sums[1] == step)].sum() == total


def test_host_rows_of_a_merged_process_are_those_of_its_files(page, verl):
    t0, floor = int(page.head["t0"]), page.head["host_floor"]
    for process in page.head["host"]:
        label = next(row for row in page.head["rows"] if row["process"] == process)
        expected = []
        for trace in files_of(verl, label):
            rows = trace["host_ops"]
            rows = rows[(rows["dur_ns"] >= max(floor, 1)) & (rows["kind"] != "overhead")]
            expected += zip(rows["ts_ns"] - t0, rows["dur_ns"], strict=True)
        thread, start, length, _ = page.started(f"h{process}", 4)
        assert sorted(zip(start, length, strict=True)) == sorted(expected)
        assert (np.diff(thread) >= 0).all()
        assert len(page.head["threads"][process]) > thread.max()


def write_step(folder, number, begin, device=0, length=100):
    """A file with a step, a stage and two kernels, on a stream of this file and one of all."""
    rows = [
        chrome.step(number, begin, length), chrome.annotation(f"stage_{number}", begin + 5, 50),
        *chrome.launched(f"k{number}", begin + 10, begin + 20, 7, 1, stream=10 - number, device=device),
        *chrome.launched("same", begin + 60, begin + 70, 5, 2, device=device), chrome.memory(begin + 30, 10, 10 * number),
    ]  # fmt: skip
    return tracekit.load(chrome.write(folder / f"step{number}_rank0_pid{chrome.HOST_PID}.json", rows, rank=0))


def describe_kernels(page):
    """Start, name, stream, stage and step of all kernels of row 0."""
    t0 = int(page.head["t0"]) - chrome.BASE_NS
    lanes = page.head["rows"][0]["lanes"]
    return sorted(
        ((start + t0) // 1_000, page.names[name - 1], lanes[lane][1], page.names[stage - 1] if stage else None, line[1])
        for line, columns in page.cells()
        for start, lane, name, stage in columns[[0, 2, 3, 5]].T.tolist()
    )


def test_files_of_a_process_with_a_device_are_one_row_in_order_of_time(tmp_path):
    """The later file is given first; each has a stream of its own and stream 7."""
    traces = [write_step(tmp_path, 2, 500), write_step(tmp_path, 1, 0)]
    page = written(list(map(build_blocks, traces)))
    (row,) = page.head["rows"]
    assert row["lanes"] == [[0, 7], [0, 8], [0, 9]]
    assert describe_kernels(page) == [
        (20, "k1", 9, "stage_1", 1), (70, "same", 7, None, 1), (520, "k2", 8, "stage_2", 2), (570, "same", 7, None, 2),
    ]  # fmt: skip
    steps, ranges, sums = page.started("steps", 10, 2), page.started("ranges", 6), page.columns("sums", 8)
    assert steps[1].tolist() == [2, 3]
    assert [(page.names[name], step) for name, step in zip(ranges[3], ranges[5], strict=True)] == [
        ("stage_1", 1), ("stage_2", 2),
    ]  # fmt: skip
    by_name = [(page.names[name], step, stage) for name, step, stage in zip(sums[4], sums[1], sums[2], strict=True)]
    assert sorted(by_name) == [("k1", 1, 1), ("k2", 2, 2), ("same", 1, 0), ("same", 2, 0)]
    time, allocated, _ = page.columns("curve0", 3)
    assert (np.cumsum(time).tolist(), allocated.tolist()) == ([30_000, 530_000], [10, 20])
    assert steps[9].sum() == sum(ns for *_, ns in [(0, 88_000), (0, 88_000)])


def test_files_that_overlap_in_time_or_have_no_pid_stay_apart(tmp_path):
    first, second, late = (
        build_blocks(write_step(tmp_path, number, begin)) for number, begin in ((1, 0), (2, 50), (3, 500))
    )
    assert [len(written(data).head["rows"]) for data in ([first, second], [first, late])] == [2, 1]
    nameless = [replace(data, source=replace(data.source, pid=None)) for data in (first, late)]
    assert len(written(nameless).head["rows"]) == 2
    of_rank = [first, replace(late, source=replace(late.source, rank=1))]
    assert len(written(of_rank).head["rows"]) == 2


def test_the_critical_path_is_on_the_row_of_any_file_of_a_process(tmp_path):
    blocks = [build_blocks(write_step(tmp_path, number, 500 * number)) for number in (1, 2)]
    pieces = SimpleNamespace(
        source=[data.source.name for data in blocks], pid=[data.source.pid for data in blocks],
        ts_ns=[chrome.BASE_NS + 510_000, chrome.BASE_NS + 1_010_000], dur_ns=[1, 2], kind=["call", "call"], name=[None, None],
    )  # fmt: skip
    page = Page(write_explorer_page(EMPTY, blocks, ASSETS, CAUSE_ROWS, critical=pieces).text)
    assert page.started("critical", 5)[:3].tolist() == [[1, 1], [10_000, 510_000], [1, 2]]


def test_gaps_that_one_file_left_out_are_left_out_of_the_process_and_counted(monkeypatch, tmp_path):
    """Each file has three gaps; one keeps its longest only, of 43 µs. The other has one of 125 µs."""
    whole = [build_blocks(write_step(tmp_path, number, 500 * number, length=200 // number)) for number in (1, 2)]
    monkeypatch.setattr(idle_segments, "MAX_GAPS", 1)
    few = [whole[0], build_blocks(write_step(tmp_path, 2, 1_000))]
    page = written(few)
    lengths = [length for data in whole for length in data.numbers["gap.length"].tolist()]
    kept = page.started("gaps", 6)[2].tolist()
    assert kept == [125_000]
    assert page.head["dropped_gaps"] == [len(lengths) - len(kept), sum(lengths) - sum(kept)]
