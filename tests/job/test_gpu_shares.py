"""Shares of GPU time as rules see them, worked by hand. Traces in microseconds, results in nanoseconds."""

import numpy as np
from analyses.waiting_traces import measure_folder
from chrome_builder import annotation, launched, step, write

from tracekit.job.gpu_shares import GPU_TIME_SUMS, append_gpu_time_shares
from tracekit.job.stages.windows import list_judged_windows, sum_gpu_time_by_stage
from tracekit.model.tables.frame import Frame, numbers
from tracekit.process.device.busy import PARTS


def test_a_share_is_of_the_window_and_unknown_of_nothing_and_of_the_unknown():
    """Windows of 200, of one nanosecond, of nothing, and of ten; of the 40 of collectives 10 overlap."""
    columns = {name: np.zeros(4, np.int64) for name in GPU_TIME_SUMS} | {
        "window_ns": np.array([200, 1, 0, 10]),
        "compute_ns": np.array([100, 1, 0, 0]),
        "idle_ns": np.array([50, 0, 0, 10]),
        "comm_ns": numbers([40, 0, None, 5]),
        "overlap_ns": numbers([10, 0, 3, None]),
    }
    shares = append_gpu_time_shares(Frame.from_columns(columns))
    assert shares.values("busy_ratio") == [0.75, 1.0, None, 0.0]
    assert shares.values("compute_ratio") == [0.5, 1.0, None, 0.0]
    assert shares.values("idle_ratio") == [0.25, 0.0, None, 1.0]
    assert shares.values("overlap_ratio") == [0.25, None, None, None]
    assert {part.replace("_ns", "_ratio") for part in PARTS} <= set(shares.columns)


def recorded(folder, role, stages, start=0):
    """A step of 1,000 with stages of (name, begin, length) in each of which a kernel runs for 100."""
    rows = [step(1, start, 1000), *launched("gemm", start, start + 5, 10, 1)]
    later = [(name, start + begin, length) for name, begin, length in stages]
    for number, (name, begin, length) in enumerate(later, 2):
        rows += [annotation(name, begin, length), *launched("gemm", begin, begin + 20, 100, number)]
    write(folder / f"{role}_train_step1_rank0-of-1_pid{len(rows)}_20260101000000000.json", rows)


def test_stages_come_longest_first_without_the_windows_of_steps(tmp_path):
    recorded(tmp_path, "actor", [("gen", 100, 200), ("reward", 400, 400)])
    found = sum_gpu_time_by_stage(measure_folder(tmp_path, ("steps", "gpu-time")))
    assert found.values("canonical") == ["reward", "gen"]
    assert found["window_ns"].tolist() == [400_000, 200_000]
    assert found.values("busy_ratio") == [0.25, 0.5]


def test_the_whole_step_is_judged_where_no_stage_was_recorded_after_all_stages(tmp_path):
    recorded(tmp_path, "actor", [])
    recorded(tmp_path, "critic", [("values", 100, 400)], start=5000)
    found = list_judged_windows(measure_folder(tmp_path, ("steps", "gpu-time")))
    assert [(window.role, window.canonical) for window in found] == [("critic", "values"), ("actor", None)]
    assert [window.gpu_time["idle_ns"] for window in found] == [300_000, 990_000]
    assert found[0].per_step(found[0].gpu_time["idle_ns"]) == (300_000, 0.3)
