"""The simulated GPU run against the figures that its maker worked out by itself."""

import json
from pathlib import Path

import pytest
from columns import columns_of
from memory_builder import Allocator, pickled, snapshot
from snapshot_traces import written

from tracekit.analyses.time.gpu_time import breakdown
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.readers.loading import load

EXAMPLE = Path(__file__).parents[1] / "examples" / "simulated_gpu"
TRUTH = json.loads((EXAMPLE / "truth.json").read_text())
BY_TIME = (
    "compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "exposed_memset_ns", "idle_ns", "comm_ns",
)  # fmt: skip


@pytest.fixture(scope="module")
def measured():
    return analyze_uncached(EXAMPLE / "outputs" / "profile").measurements


def rank_rows(measured, table, rank):
    frame = measured[table]
    return frame[frame["rank"] == rank]


def windows_of(truth):
    """(step, stage, figures) of every window whose figures are known."""
    for step, figures in truth["steps"].items():
        yield int(step), None, figures
        for stage, inner in figures["stages"].items():
            yield int(step), stage, inner


@pytest.mark.parametrize("rank", [0, 1])
def test_the_window_of_each_gpu_is_exact(rank):
    truth = TRUTH["ranks"][str(rank)]["window"]
    path = next((EXAMPLE / "outputs" / "profile").glob(f"*rank{rank}*"))
    found = breakdown(columns_of(load(path)["device_ops"])).frame().iloc[0]
    assert {name: int(found[name]) for name in BY_TIME} == {name: truth[name] for name in BY_TIME}
    assert (found["window_ns"], found["busy_ns"]) == (truth["wall_ns"], truth["busy_ns"])
    assert found["overlap_ns"] == truth["comm_hidden_by_compute_ns"]


@pytest.mark.parametrize("rank", [0, 1])
def test_steps_and_stages_by_time_are_exact(measured, rank):
    rows = rank_rows(measured, "gpu_time", rank)
    checked = 0
    for step, stage, figures in windows_of(TRUTH["ranks"][str(rank)]):
        truth = figures["by_time"]
        mine = rows[(rows["step"] == step) & (rows["window"] == ("step" if stage is None else "stage"))]
        row = (mine if stage is None else mine[mine["stage"] == stage]).iloc[0]
        assert {n: int(row[n]) for n in BY_TIME} == {n: truth[n] for n in BY_TIME}
        assert row["window_ns"] == truth["wall_ns"]
        checked += 1
    assert checked == 15


@pytest.mark.parametrize("rank", [0, 1])
def test_work_by_launch_is_exact_whatever_thread_launched_it(measured, rank):
    steps, stages = rank_rows(measured, "steps", rank), rank_rows(measured, "stages", rank)
    for step, stage, figures in windows_of(TRUTH["ranks"][str(rank)]):
        truth = figures["by_launch"]
        table = steps if stage is None else stages[stages["stage"] == stage]
        row = table[table["step"] == step].iloc[0]
        classes = ("compute", "comm", "memcpy", "memset")
        assert row["launch_count"] == sum(truth.get(f"{name}_count", 0) for name in classes)
        assert row["work_ns"] == sum(truth.get(f"{name}_sum_ns", 0) for name in classes)


@pytest.mark.parametrize("rank", [0, 1])
def test_copies_and_unlinked_work_are_exact(measured, rank):
    truth = TRUTH["ranks"][str(rank)]
    copies = rank_rows(measured, "copies", rank)
    found = {
        f"Memcpy {row.direction} ({row.memory})": (row.count_, row.size_bytes, row.dur_ns)
        for row in copies.rename(columns={"count": "count_"}).itertuples()
        if row.direction != "memset"
    }
    assert found == {name: (c["count"], c["bytes"], c["sum_ns"]) for name, c in truth["copies"].items()}
    launches = rank_rows(measured, "launches", rank)
    unlinked = launches[launches["link"] == "unlinked"]
    figures = truth["unlinked"]
    assert unlinked["count"].sum() == figures["compute_count"] + figures["memset_count"]
    assert unlinked["dur_ns"].sum() == figures["compute_sum_ns"] + figures["memset_sum_ns"]


def test_peak_memory_is_what_was_placed():
    for rank in ("0", "1"):
        path = next((EXAMPLE / "outputs" / "profile").glob(f"*rank{rank}*"))
        memory = load(path)["memory_ops"]
        truth = TRUTH["ranks"][rank]["memory"]
        assert memory["allocated_bytes"].max() == truth["peak_allocated_bytes"]
        assert memory["reserved_bytes"].max() == truth["peak_reserved_bytes"]
        assert memory["allocated_bytes"].iloc[-1] == truth["last_allocated_bytes"]


FEW = Options(questions=("memory-peak",))


def test_a_snapshot_of_a_model_is_told_as_simulated_and_one_without_the_mark_is_not(tmp_path):
    device = Allocator()
    device.alloc(4096)
    folder = written(tmp_path, {1: device})
    assert "SIMULATED DATA" in analyze_uncached(folder, FEW).report.identity
    made = snapshot(device)
    del made["simulated"]
    written(tmp_path, {1: pickled(made)})
    assert "SIMULATED DATA" not in analyze_uncached(folder, FEW).report.identity


def test_the_report_says_that_the_data_is_simulated():
    assert "SIMULATED DATA" in analyze_uncached(EXAMPLE / "outputs" / "profile").report.identity
