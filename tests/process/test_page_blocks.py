"""Data of the explorer page from one trace: narrow columns, call paths, the longest gaps and host rows."""

from pathlib import Path

import chrome_builder as chrome
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.model import sweeps
from tracekit.process.page_blocks import host_rows, idle_segments
from tracekit.process.page_blocks.boxes import MERGE_LIMITS_NS, NEVER_MERGED, find_merge_levels
from tracekit.process.page_blocks.build import build_page_blocks
from tracekit.process.page_blocks.call_paths import add_call_paths
from tracekit.process.page_blocks.columns import PathTable, narrow_numbers

PROFILE = Path(__file__).parents[2] / "examples" / "simulated_gpu" / "outputs" / "profile"


def build(trace):
    devices = trace.derived(make_idle_time_measurement()) if trace.has("device_ops") else ()
    return build_page_blocks(trace, devices)


def read_rank():
    return tracekit.load(PROFILE / "simulated_rank0.pt.trace.json.gz")


@pytest.mark.parametrize(("highest", "kind"), [(255, "uint8"), (256, "uint16"), (2**16, "uint32"), (2**32, "uint64")])
def test_columns_have_the_narrowest_type(highest, kind):
    narrow = narrow_numbers(np.array([0, highest]))
    assert narrow.dtype == kind
    assert narrow.tolist() == [0, highest]


TREES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 3)), max_size=30)


@given(TREES)
def test_rows_share_a_path_if_and_only_if_all_names_from_the_top_down_are_equal(drawn):
    """The row around each row is drawn from those before it, or none."""
    parent = np.array([pick % (place + 1) - 1 for place, (pick, _) in enumerate(drawn)], np.int64)
    name = np.array([name for _, name in drawn], np.int64)
    paths, whole = PathTable(), []
    before = paths.add_paths(np.array([-1]), np.array([9]))
    assert before == 0
    numbers = add_call_paths(parent, name, paths)
    for place, around in enumerate(parent):
        whole.append((*whole[around], int(name[place])) if around >= 0 else (int(name[place]),))
    columns = paths.make_columns()
    for path, number in zip(whole, numbers.tolist(), strict=True):
        read, around = [], number
        while around >= 0:
            read.insert(0, int(columns["path.name"][around]))
            around = int(columns["path.parent"][around]) - 1
        assert tuple(read) == path
    assert len(columns["path.name"]) == 1 + len(set(whole))


def test_a_kernel_merges_below_the_first_limit_above_both_lengths_and_the_gap():
    """Lengths 500, 500, 3,000, 10; gaps 200, 999, 5,000,000; then another lane."""
    start = np.array([0, 700, 2_199, 5_005_199, 5_005_300])
    length = np.array([500, 500, 3_000, 10, 10])
    lane = np.array([0, 0, 0, 0, 1])
    levels = find_merge_levels(start, length, (lane,))
    assert levels.tolist() == [NEVER_MERGED, 1, 2, NEVER_MERGED, NEVER_MERGED]
    assert MERGE_LIMITS_NS[:2] == (1_000, 4_000)


def test_a_length_that_equals_the_limit_is_not_below_it():
    levels = find_merge_levels(np.array([0, 1_500]), np.array([1_000, 10]), ())
    assert levels.tolist() == [NEVER_MERGED, 2]


def test_only_the_longest_gaps_are_kept_and_the_others_counted(monkeypatch):
    whole = build(read_rank()).numbers
    monkeypatch.setattr(idle_segments, "MAX_GAPS", 10)
    few = build(read_rank()).numbers
    length = np.sort(whole["gap.length"].astype(np.int64))[::-1]
    assert sorted(few["gap.length"].tolist(), reverse=True) == length[:10].tolist()
    assert few["gap.dropped"].tolist() == [len(length) - 10, length[10:].sum()]
    assert few["segment.length"].sum() == length[:10].sum()
    assert few["gap.segments"].sum() == len(few["segment.length"])


def test_only_the_longest_host_rows_are_kept_and_the_length_from_which_all_are_is_said(monkeypatch):
    whole = build(read_rank()).numbers
    assert whole["host.cut_ns"].tolist() == [0]
    monkeypatch.setattr(host_rows, "MAX_HOST_ROWS", 50)
    few = build(read_rank()).numbers
    length = np.sort(whole["host.length"].astype(np.int64))[::-1]
    assert sorted(few["host.length"].tolist(), reverse=True) == length[:50].tolist()
    assert few["host.cut_ns"].tolist() == [length[49] + 1]


def test_the_data_is_the_same_without_the_module_in_c(monkeypatch):
    fast = build(read_rank())
    monkeypatch.setattr(sweeps, "native", None)
    slow = build(read_rank())
    assert slow.numbers.keys() == fast.numbers.keys()
    places = [{text: place for place, text in enumerate(data.names)} for data in (fast, slow)]
    assert places[0].keys() == places[1].keys()
    for name, column in fast.numbers.items():
        if not name.endswith((".name", ".path", ".before", ".after")) and not name.startswith(("path", "sum")):
            assert column.tolist() == slow.numbers[name].tolist(), name
    for name in ("kernel.name", "range.name"):
        texts = [[data.names[code] for code in data.numbers[name]] for data in (fast, slow)]
        assert texts[0] == texts[1]


def test_two_devices_of_a_process_are_two_rows_with_their_own_gaps_and_ranges(tmp_path):
    """Device 0 is idle from 20 to 40 µs, device 1 from 25 to 50."""
    spans = [(0, 10, 10), (0, 40, 10), (1, 10, 15), (1, 50, 5)]
    rows = [chrome.step(1, 0, 60), chrome.annotation("gen", 5, 50)]
    rows += [chrome.kernel("k", start, length, device=device) for device, start, length in spans]
    numbers = build(tracekit.load(chrome.write(tmp_path / "rank0.json", rows))).numbers
    assert numbers["row.device"].tolist() == [1, 2]
    assert numbers["row.kernels"].tolist() == [2, 2]
    assert numbers["row.ranges"].tolist() == [1, 1]
    inner = numbers["gap.before"] > 0
    inner &= numbers["gap.after"] > 0
    assert numbers["gap.length"][inner].tolist() == [20_000, 25_000]
    assert numbers["gap.row"][inner].tolist() == [0, 1]
    assert numbers["step.compute"].tolist() == [20_000, 20_000]
    assert numbers["step.idle"].tolist() == [40_000, 40_000]
    assert numbers["sum.range"].max() <= 2


def test_a_trace_without_work_has_no_columns(tmp_path):
    trace = tracekit.load(chrome.write(tmp_path / "rank0.json", [chrome.memory(1, 10, 10)]))
    assert not build(trace).numbers.get("row.kind", np.empty(0)).size
