"""The critical path on the page: all pieces where they fit; else short neighbors are merged, and the page says how many."""

import re
from types import SimpleNamespace

import chrome_builder as chrome
import numpy as np
import pytest
from explorer_page import CAUSE_ROWS, build_blocks
from page_reading import Page

import tracekit
from tracekit.model.report import Report
from tracekit.render.explorer.critical_path import BYTES_OF_PATH, LIMITS_NS, LONGEST
from tracekit.render.explorer.page import write_explorer_page
from tracekit.render.explorer.template import PageAssets

TEMPLATE = """<p>{{identity}}</p><script type="application/json" id="head">{{head}}</script>{{blocks}}"""
ASSETS = PageAssets(TEMPLATE, "", "")
COUNT = 60_000
LONG_NS = 50_000


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A trace of one kernel in a step of one second."""
    rows = [chrome.step(1, 0, 1_000_000), *chrome.launched("gemm", 10, 20, 5, 1)]
    return tracekit.load(chrome.write(tmp_path_factory.mktemp("critical") / "rank0.json", rows, rank=0, world_size=1))


def make_path(trace, length):
    """Pieces one after the other from the begin of the trace, of two kinds and many names."""
    start = chrome.BASE_NS + np.cumsum(length) - length
    kind = ["kernel" if number % 3 else "host" for number in range(len(length))]
    name = [f"k{number % 50}" if number % 3 else None for number in range(len(length))]
    source = trace.source
    columns = {"ts_ns": start.tolist(), "dur_ns": length.tolist(), "kind": kind, "name": name}
    return SimpleNamespace(source=[source.name] * len(length), pid=[source.pid] * len(length), **columns)


def write_with_path(trace, path, budget):
    """The page with this path, and its text."""
    report = Report("a run", "1.0")
    text = write_explorer_page(report, [build_blocks(trace)], ASSETS, CAUSE_ROWS, budget, critical=path).text
    return Page(text), text


def draw_lengths():
    """Lengths of pieces: most are below 3 µs, each hundredth is long."""
    length = np.random.default_rng(5).integers(100, 3_000, COUNT)
    length[::100] = LONG_NS
    return length


def test_a_path_that_fits_is_whole(trace):
    length = draw_lengths()
    page, text = write_with_path(trace, make_path(trace, length), 6_000_000)
    path = page.started("critical", 5)
    assert path[2].tolist() == length.tolist()
    assert path[1].tolist() == (np.cumsum(length) - length).tolist()
    assert "critical path" not in text


def test_a_path_that_does_not_fit_keeps_its_long_pieces_and_its_time(trace):
    length, budget = draw_lengths(), 600_000
    page, text = write_with_path(trace, make_path(trace, length), budget)
    path = page.started("critical", 5)
    size = len(re.search(r'id="b-critical">[^<]*<', text)[0])
    assert size <= budget * BYTES_OF_PATH
    # The path has no hole: each piece begins where the one before it ends.
    assert path[1].tolist() == (np.cumsum(path[2]) - path[2]).tolist()
    assert path[2].sum() == length.sum()
    # Each long piece is there with its own start, kind and name.
    long = (np.cumsum(length) - length)[::100]
    assert np.isin(long, path[1]).all()
    at = np.searchsorted(path[1], long)
    assert (path[2][at] == LONG_NS).all()
    assert [page.names[kind] for kind in path[3][at]] == [
        "kernel" if number % 3 else "host" for number in range(0, COUNT, 100)
    ]
    assert [page.names[name - 1] if name else None for name in path[4][at]] == [
        f"k{number % 50}" if number % 3 else None for number in range(0, COUNT, 100)
    ]
    merged = path[2][path[2] != LONG_NS]
    limit = next(limit for limit in LIMITS_NS if limit > 3_000)
    assert merged.max() <= (LONGEST + 1) * limit
    assert f"critical path: {COUNT:,} pieces in {path.shape[1]:,}, as neighbors shorter than" in text


def test_a_merged_piece_has_the_kind_of_its_longest_member_and_a_name_only_if_all_have_it(trace):
    """Pieces of the host take 100 to 300 ns, of kernels 700 to 900, two in three: a kernel is the longest, and names differ."""
    length = np.random.default_rng(6).integers(0, 200, COUNT) + np.tile([100, 700, 700], COUNT // 3)
    page, _ = write_with_path(trace, make_path(trace, length), 60_000)
    path = page.started("critical", 5)
    assert path.shape[1] < COUNT // 2
    assert {page.names[kind] for kind in path[3][path[2] > 1_100]} == {"kernel"}
    assert set(path[4][path[2] > 2_000].tolist()) == {0}


def test_a_path_that_never_fits_is_left_out_and_the_page_says_so(trace):
    page, text = write_with_path(trace, make_path(trace, draw_lengths()), 500)
    assert "critical" not in page.raw
    assert "the critical path does not fit on the page" in text
