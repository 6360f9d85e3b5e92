"""Kernel statistics against numpy, pandas and hand-made traces."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from chrome_builder import kernel, launched, memcpy, memset, op, write
from columns import columns_of
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import TRACES, name_of

import tracekit
from tracekit.analyses import load_default_thresholds
from tracekit.analyses.ops.kernels import judge, measure, pool_kernels, summary
from tracekit.model.tables import TABLES
from tracekit.model.tables.frame import Frame, concat
from tracekit.model.trace import Measurements, Source, add_key_columns
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("kernels",)

REAL = os.environ.get("TRACEKIT_REAL_DATA")
STATISTICS = ["count", "total_ns", "mean_ns", "std_ns", "min_ns", "p50_ns", "p95_ns", "max_ns"]


def load(tmp_path, rows, name="rank0.json"):
    return tracekit.load(write(tmp_path / name, rows))


def device_ops(durations, name="k", device=0, kind="kernel"):
    """A `device_ops` frame: name, device and kind for all rows, or one a row."""
    count = len(durations)
    each = {
        key: list(value) if isinstance(value, list | tuple) else [value] * count
        for key, value in {"name": name, "device": device, "kind": kind}.items()
    }
    return TABLES["device_ops"].frame(
        {
            "id": np.arange(count, dtype=np.int32),
            "ts_ns": np.zeros(count, np.int64),
            "dur_ns": np.array(durations, np.int64),
            "device": pd.array(each["device"], dtype="Int64"),
            "name": np.array(each["name"], object),
            "kind": np.array(each["kind"], object),
        },
        count,
    )


def summed_up(device_ops):
    return summary(columns_of(device_ops)).frame()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 4), st.integers(0, 1)), min_size=1))
def test_statistics_are_those_of_numpy(drawn):
    durations, names, devices = (list(column) for column in zip(*drawn, strict=True))
    found = summed_up(device_ops(durations, [f"k{n}" for n in names], devices))
    assert len(found) == len(set(zip(names, devices, strict=True)))
    for row in found.to_dict("records"):
        mine = np.array([d for d, n, g in drawn if f"k{n}" == row["name"] and g == row["device"]], np.int64)
        assert (row["count"], row["total_ns"]) == (len(mine), mine.sum())
        assert (row["min_ns"], row["max_ns"]) == (mine.min(), mine.max())
        assert row["mean_ns"] == pytest.approx(mine.mean())
        assert row["p50_ns"] == pytest.approx(np.percentile(mine, 50))
        assert row["p95_ns"] == pytest.approx(np.percentile(mine, 95))
        if len(mine) == 1:
            assert row["std_ns"] is None
        else:
            assert row["std_ns"] == pytest.approx(np.std(mine, ddof=1), rel=1e-9, abs=1e-6)


def test_one_kernel_worked_by_hand(tmp_path):
    """1, 2, 3 and 10 µs: mean 4, squared deviations 9 + 4 + 1 + 36 = 50; the 95th lies 0.85 of the way from 3 to 10."""
    rows = [kernel("k", 20 * i, dur) for i, dur in enumerate((3, 10, 1, 2))]
    row = summed_up(load(tmp_path, rows)["device_ops"]).iloc[0]
    assert row[["count", "total_ns", "mean_ns", "min_ns", "max_ns"]].tolist() == [
        4, 16_000, 4_000, 1_000, 10_000,
    ]  # fmt: skip
    assert row["std_ns"] == pytest.approx(1000 * (50 / 3) ** 0.5)
    assert row["p50_ns"] == 2_500
    assert row["p95_ns"] == pytest.approx(3_000 + 0.85 * 7_000)


def test_each_of_more_than_ten_kernels_keeps_its_own_numbers(tmp_path):
    """Kernel i runs i and i + 2 µs: never its total in place of its mean, however many there are."""
    rows = [kernel(f"k{i}", 100 * i + at, i + at // 10) for i in range(1, 15) for at in (0, 20)]
    found = analyze_uncached(write(tmp_path / "rank0.json", rows), Options(jobs=1, questions=QUESTIONS)).report
    sheet = next(s for s in found.sections if s.id == "kernels").sheets[0]
    columns = [heading.name for heading in sheet.headings]
    assert len(sheet.rows) == 14
    for cells in sheet.rows:
        row = dict(zip(columns, cells, strict=True))
        number = int(row["name"][1:])
        assert row["count"] == 2
        assert row["total_ns"] == 1000 * (2 * number + 2)
        assert row["mean_ns"] == 1000 * (number + 1)
        assert (row["min_ns"], row["max_ns"]) == (1000 * number, 1000 * (number + 2))
        assert row["std_ns"] == pytest.approx(1000 * 2**0.5)


def test_two_gpus_are_never_one_row(tmp_path):
    rows = [kernel("k", 0, 5, device=0), kernel("k", 0, 9, device=1)]
    found = summed_up(load(tmp_path, rows)["device_ops"])
    assert found[["device", "count", "total_ns"]].to_numpy().tolist() == [[1, 1, 9_000], [0, 1, 5_000]]  # fmt: skip


def test_a_device_that_is_not_recorded_is_one_of_its_own():
    found = summed_up(device_ops([4, 6, 9], device=[None, 0, None]))
    assert found["total_ns"].tolist() == [13, 6]
    assert found["device"].isna().tolist() == [True, False]


def test_one_name_of_two_kinds_is_two_rows():
    found = summed_up(device_ops([4, 6], "all_reduce", kind=["kernel", "collective"]))
    assert found["kind"].tolist() == ["collective", "kernel"]


def test_rows_come_by_total_time_and_no_ops_give_no_rows():
    found = summed_up(device_ops([4, 6, 3], ["a", "b", "a"]))
    assert found["name"].tolist() == ["a", "b"]
    assert len(summed_up(device_ops([]))) == 0


def test_an_op_of_no_duration_counts_and_takes_no_time(tmp_path):
    row = summed_up(load(tmp_path, [kernel("k", 0, 0), kernel("k", 1, 4)])["device_ops"]).iloc[0]
    assert row[["count", "total_ns", "min_ns"]].tolist() == [2, 4_000, 0]


def test_an_op_longer_than_the_capture_is_in_no_statistic(tmp_path):
    rows = [op("a", 0, 100), kernel("k", 1, 10), kernel("k", 20, 2_500_000)]
    assert list(measure(load(tmp_path, rows))["kernels"]["max_ns"]) == [10_000]


def measured_of(*parts):
    """Measurements of processes whose kernel durations are `parts`."""
    frames = []
    for rank, durations in enumerate(parts):
        source = Source(Path(), f"rank{rank}", "chrome", rank=rank, pid=rank)
        frame = summed_up(device_ops(durations))
        columns = {str(name): frame[name].array for name in frame}
        frames.append(Frame.from_columns(add_key_columns(TABLES["kernels"], columns, source)))
    return concat(frames)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=9), min_size=1, max_size=4))
def test_pooled_over_processes_the_statistics_are_those_of_all_launches(parts):
    (row,) = pool_kernels(measured_of(*parts)).rows()
    every = np.concatenate([np.array(part, np.int64) for part in parts])
    assert (row["count"], row["total_ns"]) == (len(every), every.sum())
    assert (row["min_ns"], row["max_ns"]) == (every.min(), every.max())
    assert row["mean_ns"] == pytest.approx(every.mean())
    if len(every) > 1:
        assert row["std_ns"] == pytest.approx(np.std(every, ddof=1), rel=1e-9, abs=1e-6)
    else:
        assert row["std_ns"] is None
    assert (row["p95_ns"] is None) == (len(parts) > 1)


def test_pooling_nearly_equal_long_kernels_keeps_their_spread():
    """10 s ± 1 ns in each of two processes: squares of the durations would swallow it."""
    ten = 10**10
    (row,) = pool_kernels(measured_of([ten - 1, ten + 1], [ten - 1, ten + 1])).rows()
    assert row["std_ns"] == pytest.approx((4 / 3) ** 0.5)


def test_the_share_is_of_all_device_time(tmp_path):
    """30, 60 and 10 of 100 µs; copies and fills are kernels of their own kind here."""
    rows = [*launched("gemm", 0, 0, 30, 1), memcpy("Memcpy DtoD (Device -> Device)", 50, 60, 1)]
    report = analyze_uncached(
        write(tmp_path / "r.json", [*rows, memset(200, 10, 1)]), Options(jobs=1, questions=QUESTIONS)
    ).report
    sheet = next(s for s in report.sections if s.id == "kernels").sheets[0]
    at = [heading.name for heading in sheet.headings].index("share_ratio")
    assert [cells[at] for cells in sheet.rows] == [0.6, 0.3, 0.1]


def test_without_gpu_activity_the_question_is_skipped(tmp_path):
    assert measure(load(tmp_path, [op("a", 0, 5)])) == {}
    section = judge(Measurements({}, ()), load_default_thresholds())
    assert (section.status, section.reason) == ("skipped", "no GPU activity was recorded")


OF_H200 = [path for path in TRACES if path.name.split(".")[0] not in ("cuda_graph", "launch_bound")]  # of few kernels
REAL_FILES = ["hta/nccl_parser_config/nccl_data.json.gz", "tracelens/b200/eager_trace.json.gz"]


@pytest.mark.parametrize(
    "path", [Path(REAL) / "chrome" / name for name in REAL_FILES] if REAL else OF_H200, ids=name_of
)
def test_a_real_file_has_the_statistics_of_a_pandas_groupby(path):
    ops = tracekit.load(path, tables=["device_ops"])["device_ops"]
    keys = ["device", "kind", "name"]
    grouped = ops.groupby(keys, dropna=False, observed=True)["dur_ns"]
    expected = grouped.agg(["size", "sum", "mean", "std", "min", "median", "max"])
    expected.insert(6, "p95", grouped.quantile(0.95))
    found = summed_up(tracekit.load(path)["device_ops"])
    assert len(found) == len(expected) > 10
    mine = found.set_index(keys).loc[expected.index, STATISTICS].astype(float)
    np.testing.assert_allclose(mine.to_numpy(), expected.to_numpy(float), rtol=1e-9)
    assert int(found["count"].sum()) == len(ops)
