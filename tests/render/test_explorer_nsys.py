"""The explorer page of exports of Nsight Systems, read back and compared with the rows of the database."""

import os
import sqlite3
from collections import Counter
from pathlib import Path

import nsys_builder as nsys
import numpy as np
import pytest
from explorer_page import CAUSE_ROWS, build_blocks
from page_reading import Page
from render.test_explorer_page import check_blame
from sample_report import HOSTILE

import tracekit
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.model.report import Report
from tracekit.model.tables.slots import CAUSES
from tracekit.render.explorer.page import write_explorer_page
from tracekit.render.explorer.template import PageAssets

ASSETS = PageAssets('<script type="application/json" id="head">{{head}}</script>{{blocks}}', "", "")
EMPTY = Report("a run", "1.0")
OF_DEVICE = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET")]


def write_page(path):
    """The traces of an export, its page and the text of that."""
    traces = list(tracekit.load_all(path))
    text = write_explorer_page(EMPTY, list(map(build_blocks, traces)), ASSETS, CAUSE_ROWS, 9_000_000).text
    return traces, Page(text), text


def read_rows(path, query):
    """The rows of a query; none where the export has no such table."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        try:
            return database.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []


def list_recorded_ops(path):
    """Start and length of all device ops of an export, from the first one on."""
    spans = [row for table in OF_DEVICE for row in read_rows(path, f"SELECT start, end FROM {table}")]
    first = min(start for start, _ in spans)
    return sorted((start - first, end - start) for start, end in spans)


def list_shown_ops(page):
    spans = [(int(start), int(length)) for _, columns in page.cells() for start, length in columns[:2].T]
    first = min(start for start, _ in spans)
    return sorted((start - first, length) for start, length in spans)


def check_causes(traces, page):
    """The segments have the causes of the analysis, device by device."""
    gaps, segments = page.started("gaps", 6), page.columns("segments", 3)
    of_gap = np.repeat(np.arange(gaps.shape[1]), gaps[5])
    assert (np.bincount(of_gap, segments[0], gaps.shape[1]) == gaps[2]).all()
    row = 0
    for trace in traces:
        for idle in trace.derived(make_idle_time_measurement()):
            of_row = segments[:, gaps[0][of_gap] == row]
            found = {key: int(of_row[0][of_row[1] == cause].sum()) for cause, key in enumerate(CAUSES)}
            assert found == {key: idle.causes[key].total for key in CAUSES}
            row += 1
    assert row == len(page.head["rows"])


@pytest.fixture
def export(tmp_path):
    """Two steps of 1 ms with the stages gen and update_actor, a kernel in each and a copy, times in ns."""
    rows = []
    for number, begin in ((1, 0), (2, 1_000_000)):
        rows += [
            nsys.nvtx(f"step {number}", begin, begin + 1_000_000), nsys.nvtx("gen", begin + 10_000, begin + 400_000),
            nsys.nvtx("update_actor", begin + 500_000, begin + 900_001),
            *nsys.launched("gemm", begin + 20_000, begin + 30_001, begin + 130_003, 10 * number),
            *nsys.launched("adam", begin + 510_000, begin + 520_007, begin + 820_010, 10 * number + 1),
            nsys.api("cudaMemcpyAsync_v3020", begin + 840_000, begin + 845_000, 10 * number + 2),
            nsys.memcpy(begin + 850_000, begin + 860_013, 4_096, 10 * number + 2),
        ]  # fmt: skip
    return nsys.write(tmp_path / "report.sqlite", rows)


def test_kernels_stages_and_host_rows_are_those_of_the_database(export):
    traces, page, _ = write_page(export)
    assert list_shown_ops(page) == list_recorded_ops(export)
    by_stage = Counter(
        (page.names[name - 1], page.names[stage - 1] if stage else None, int(length))
        for _, columns in page.cells()
        for name, stage, length in columns[[3, 5, 1]].T.tolist()
    )
    (copy,) = {name for name, _, length in by_stage if length == 10_013}
    assert by_stage == {
        ("gemm", "gen", 100_002): 2,
        ("adam", "update_actor", 300_003): 2,
        (copy, "update_actor", 10_013): 2,
    }
    ranges = page.started("ranges", 6)
    outer = Counter(page.names[name] for name in ranges[3][ranges[4] == 0])
    assert outer == {"gen": 2, "update_actor": 2}
    thread, start, length, path = page.started("h0", 4)
    assert (thread == thread[0]).all()
    first = int(start.min())
    shown = sorted(zip((start - first).tolist(), length.tolist(), strict=True))
    recorded = read_rows(export, "SELECT start, end FROM NVTX_EVENTS") + read_rows(
        export, "SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    )
    begin = min(start for start, _ in recorded)
    assert shown == sorted((start - begin, end - start) for start, end in recorded)
    assert {page.path(int(number))[-1] for number in path} >= {"gen", "update_actor"}
    check_causes(traces, page)


def test_idle_time_before_a_launch_has_the_range_of_the_host(export):
    """Between the copy of step 1 and the kernel of step 2 the host is in step 1, then in gen of step 2."""
    _, page, _ = write_page(export)
    gaps, segments = page.started("gaps", 6), page.columns("segments", 3)
    ends = np.cumsum(gaps[5])
    (between,) = [place for place, length in enumerate(gaps[2].tolist()) if length == 1_030_001 - 860_013]
    parts = segments[:, ends[between] - gaps[5][between] : ends[between]]
    assert parts[0].sum() == gaps[2][between]
    paths = [page.path(int(number)) for number in parts[2]]
    assert any("gen" in path for path in paths)
    assert any("cudaLaunchKernel" in path[-1] for path in paths)
    around = [page.names[int(gaps[column][between]) - 1] for column in (3, 4)]
    assert around[1] == "gemm"


def test_hostile_names_of_kernels_and_ranges_are_inert(tmp_path):
    rows, names = [], [name for name in HOSTILE if "\ud800" not in name]
    for place, name in enumerate(names):
        at = 100_000 * place
        rows += [nsys.nvtx(name, at, at + 90_000), *nsys.launched(name, at + 10, at + 100, at + 200, place + 1)]
    _, page, text = write_page(nsys.write(tmp_path / "report.sqlite", rows))
    assert text.count("<script") == len(page.raw) + 1
    assert all(name.isprintable() for name in page.names)
    assert len(list_shown_ops(page)) == len(names)


REAL = os.environ.get("TRACEKIT_REAL_DATA")
REAL_FILES = ("GindaChen_nsys-ai/mock.sqlite", "GindaChen_nsys-ai/mfu_2gpu_before.sqlite")


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.parametrize("name", REAL_FILES)
def test_pages_of_real_exports_have_all_device_ops_and_the_causes_of_the_analysis(name):
    path = Path(REAL) / "nsys" / name
    traces, page, _ = write_page(path)
    lines = [line for line, _ in page.cells()]
    assert page.head["missed"] == 0
    assert all(line[4] == 0 for line in lines)
    assert list_shown_ops(page) == list_recorded_ops(path)
    if page.head["dropped_gaps"] == [0, 0]:
        check_causes(traces, page)
        check_blame(page, traces)
