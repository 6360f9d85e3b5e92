"""Holders of a GPU's memory: they sum to the memory that PyTorch counts; lines of the log sum to the GPU's memory."""

import random
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from memory_builder import MIB, Allocator, frame, pickled, snapshot, stack

from tracekit.job.memory.card_lines import CardLine
from tracekit.model.inputs.memory_pieces import HOLDERS
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

GIB = 2**30
CASE = Path(__file__).parents[1] / "data/cases/rl_runs/07_sleep_mode_snapshot"
VLLM = "/opt/vllm/v1/worker/gpu_worker.py"
WEIGHTS = [frame("create_weights", "/opt/vllm/linear.py"), frame("load_model", VLLM)]
KV = [frame("zeros", "x.cpp"), frame("initialize_from_config", VLLM)]
GRAPH = [frame("graph_capture", "/opt/vllm/compilation/cuda_graph.py")]
QUESTIONS = ("memory-peak", "card-holders")


def analyzed(folder, *questions):
    return analyze_uncached(folder, Options(jobs=1, questions=questions or QUESTIONS))


def written(folder, *allocators, step=7):
    """Write a snapshot of devices."""
    where = folder / f"step{step}"
    where.mkdir(parents=True)
    (where / "torch_memory_rank0_pid7.pickle").write_bytes(pickled(snapshot(*allocators)))
    return folder


def timeline_of(report):
    """The rows of the timeline as dictionaries by column, with None where the table lacks a column."""
    (section,) = [section for section in report.sections if section.id == "card-holders"]
    (sheet,) = [sheet for sheet in section.sheets if sheet.name == "card_timeline"]
    names = [heading.name for heading in sheet.headings]
    return [defaultdict(lambda: None, zip(names, row, strict=True)) for row in sheet.rows]


def snapshots_of(report):
    """The rows of snapshots."""
    return [row for row in timeline_of(report) if row["source"] is not None]


def lines_of(report):
    """The rows of the log about GPUs."""
    return [row for row in timeline_of(report) if row["source"] is None and row["who"] != "host"]


def used(row):
    """{holder: MiB} of a row, without empty holders."""
    return {name: row[name] / MIB for name in HOLDERS if row[name]}


def worked_example():
    """A trainer with an engine; all sizes fill whole segments. Returns the device after its last allocation."""
    device = Allocator()
    device.alloc(32 * MIB, stack("build"), metadata="parameter")
    device.alloc(64 * MIB, stack("build"), metadata="optimizer_state")
    device.alloc(20 * MIB, WEIGHTS, pool=(0, 1))
    device.alloc(100 * MIB, KV, pool=(0, 2))
    device.alloc(10 * MIB, GRAPH, pool=(0, 3))
    activation = device.alloc(48 * MIB, stack("forward"), metadata="activation")
    device.free(activation)
    device.alloc(12 * MIB, stack("loss"))  # a part of the 48 MiB that are cached
    return device


def test_holders_at_the_peak_and_at_the_end_worked_by_hand(tmp_path):
    """Peak: 32 + 64 + 20 + 100 + 10 + 48 MiB. End: of the 48 MiB that are cached, 12 are used again."""
    report = analyzed(written(tmp_path, worked_example())).report
    peak, end = snapshots_of(report)
    held = {"trainer_state": 96, "weights": 20, "kv_cache": 100, "graphs": 10}
    assert (peak["moment"], used(peak)) == ("peak", {**held, "activations": 48})
    assert (end["moment"], used(end)) == ("end", {**held, "other": 12, "cache": 36})
    for row in (peak, end):
        assert row["step"] == 7
        assert row["counted"] == 274 * MIB
        assert row["pausable"] == 120 * MIB


def test_without_recorded_pools_of_entries_the_segments_tell_them(tmp_path):
    """Before torch 2.12 the history has no pools: those of the segments at the end count."""
    made = snapshot(worked_example())
    for entry in made["device_traces"][0]:
        del entry["pool_id"]
    (tmp_path / "torch_memory_rank0_pid7.pickle").write_bytes(pickled(made))
    peak, _ = snapshots_of(analyzed(tmp_path).report)
    assert used(peak) == {"trainer_state": 96, "weights": 20, "kv_cache": 100, "graphs": 10, "activations": 48}


def test_emptied_segments_of_an_engine_are_unused_not_cached(tmp_path):
    """While weights load, 30 MiB are allocated and freed in their pool: its 30 MiB may be unmapped too."""
    device = Allocator()
    device.alloc(20 * MIB, WEIGHTS, pool=(0, 1))
    device.free(device.alloc(30 * MIB, WEIGHTS, pool=(0, 1)))
    device.free(device.alloc(40 * MIB, stack("train")))
    *_, end = snapshots_of(analyzed(written(tmp_path, device)).report)
    assert used(end) == {"weights": 20, "pool_cache": 30, "cache": 40}
    assert end["pausable"] == 50 * MIB


def test_ends_of_steps_are_moments(tmp_path):
    device = Allocator()
    for step in (1, 2, 3):
        device.annotate(f"ProfilerStep#{step}", "START")
        device.alloc(16 * MIB, stack("keep"))
        device.annotate(f"ProfilerStep#{step}", "END")
    (tmp_path / "torch_memory_rank0_pid7.pickle").write_bytes(pickled(snapshot(device)))
    rows = snapshots_of(analyzed(tmp_path).report)
    ends = [(row["step"], row["other"] / MIB) for row in rows if row["moment"] == "step end"]
    assert ends == [(1, 16), (2, 32), (3, 48)]


@pytest.mark.parametrize("seed", range(4))
def test_holders_sum_to_the_reserved_bytes_of_the_model_at_every_moment(tmp_path, seed):
    """Random allocations in four pools, frees, caches given back, and a history that lost its start."""
    draw = random.Random(seed)
    device, live = Allocator(most=(None, 40)[seed % 2]), []
    truth = []
    for step in range(6):
        device.annotate(f"ProfilerStep#{step}", "START")
        for _ in range(draw.randrange(30)):
            if live and draw.random() < 0.45:
                device.free(live.pop(draw.randrange(len(live))))
            else:
                pool, frames = draw.choice((((0, 0), stack("x")), ((0, 1), WEIGHTS), ((0, 2), KV), ((5, 0), [])))
                live.append(device.alloc(draw.randrange(1, 40 * MIB), frames, pool=pool))
        if draw.random() < 0.5:
            device.empty_cache()
        device.annotate(f"ProfilerStep#{step}", "END")
        truth.append((device.now_us, device.reserved))
    (tmp_path / "torch_memory_rank0_pid7.pickle").write_bytes(pickled(snapshot(device)))
    frame_of = analyzed(tmp_path).measurements.frame("card_holders")
    rows = list(frame_of.rows())
    assert {"step end", "end"} <= {row["moment"] for row in rows}
    for row in rows:
        assert sum(row[f"{name}_bytes"] for name in HOLDERS) == row["counted_bytes"]
        assert all(row[f"{name}_bytes"] >= 0 for name in HOLDERS)
        assert row["pausable_bytes"] <= row["counted_bytes"]
    begin_us = device.history[0]["time_us"]
    expected = [size for when_us, size in truth if when_us >= begin_us]
    ends = [row["counted_bytes"] for row in rows if row["moment"] == "step end"]
    assert expected
    assert ends[-len(expected) :] == expected
    assert rows[-1]["counted_bytes"] == device.reserved


def test_the_case_of_a_sleeping_engine_has_its_truth():
    """198.7 GiB counted on 139.8: weights 14, emptied 10, KV 64, graphs 3; 110.7 GiB are really held."""
    report = analyzed(CASE).report
    (end,) = snapshots_of(report)
    sizes = {name: round(size * MIB / GIB, 1) for name, size in used(end).items()}
    assert {name: sizes[name] for name in ("weights", "pool_cache", "kv_cache", "graphs")} == {
        "weights": 14.0, "pool_cache": 10.0, "kv_cache": 64.0, "graphs": 3.0,
    }  # fmt: skip
    assert round(end["counted"] / GIB, 1) == 198.7
    assert end["pausable"] == 88 * GIB
    slept, updated = lines_of(report)
    assert (slept["mark"], slept["freed"], slept["free"]) == ("sleep", 88 * GIB, None)
    assert (updated["who"], updated["time"], updated["moment"]) == (
        "rank 0, GPU 0",
        "10:00:00",
        "After update_weights",
    )
    assert updated["used"] == pytest.approx(110.7 * GIB)
    assert updated["free"] == pytest.approx(29.1 * GIB)
    assert updated["unmapped"] == pytest.approx(-88.01 * GIB)
    assert report.cautions[1].endswith("Really held: 110.7 GiB of 139.8 (log line of 10:00:00)")


VERL = "(WorkerDict pid={pid}) {point}, memory allocated (GB): 1.00, memory reserved (GB): 2.00, device memory used/total (GB): {used}/80.00"


def test_several_lines_give_a_range_and_other_processes_none(tmp_path):
    """The lines of process 7 count, by its pid; process 8 is another GPU."""
    written(tmp_path, worked_example())
    lines = [("7", "Before rollout offload", "60.00"), ("7", "After rollout offload", "20.00"), ("8", "x", "70.00")]
    text = "\n".join(VERL.format(pid=pid, point=point, used=size) for pid, point, size in lines)
    (tmp_path / "train.log").write_text(text)
    report = analyzed(tmp_path).report
    assert report.cautions[1].endswith(
        'Really held, of 80.0 GiB: from 20.0 GiB at "After rollout offload" to 60.0 GiB at "Before rollout offload" (2 log lines)'
    )
    first, second, other = lines_of(report)
    assert [row["mark"] for row in (first, second, other)] == ["sleep", "sleep", None]
    assert [row["change"] for row in (first, second, other)] == [None, -40 * GIB, None]
    assert first["outside"] == 58 * GIB


def test_lines_of_another_process_leave_the_note_alone(tmp_path):
    written(tmp_path, worked_example())
    (tmp_path / "train.log").write_text(VERL.format(pid="8", point="x", used="70.00"))
    assert analyzed(tmp_path).report.cautions[1].endswith("compare with nvidia-smi")


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_of_a_line_sum_to_the_gpu(seed):
    draw = random.Random(seed)
    total = draw.randrange(1, 200 * GIB)
    held, reserved = draw.randrange(total + 1), draw.randrange(300 * GIB)
    line = CardLine(
        run=None, source="x", owner="", line=1, pid=None, rank=None, device=None, step=None, logged_ns=None, point=None, mark=None,
        allocated_bytes=draw.randrange(reserved + 1), reserved_bytes=reserved, used_bytes=held, total_bytes=total,
        freed_bytes=None, host_used_bytes=None, change_bytes=None,
    )  # fmt: skip
    parts = line.split()
    assert sum(parts.values()) == total
    assert parts["free"] == total - held
    assert parts["unmapped"] <= 0 <= parts["outside"]
    assert parts["unmapped"] == 0 or parts["outside"] == 0


def test_a_run_without_snapshots_and_lines_has_no_answer(tmp_path):
    shutil.copy(CASE / "train.log", tmp_path / "train.log")
    text = (tmp_path / "train.log").read_text().replace("device memory", "memory")
    (tmp_path / "train.log").write_text(
        "\n".join([*text.splitlines()[2:], "INFO 09-01 10:00:00 GPU KV cache size: 9 tokens"])
    )
    assert [s.id for s in analyzed(tmp_path, "card-holders").report.sections if s.id == "card-holders"] == []


def test_host_memory_by_step_is_next_to_the_lines_of_a_training_log():
    """The case grows from 187 to 366 GiB in 40 steps; its log has one line about the GPU."""
    report = analyzed(CASE.parent / "02_host_ram_growth", "card-holders", "log-host-memory").report
    (line,) = lines_of(report)
    assert (line["who"], line["moment"]) == ("process 41777", "Before init vllm rollout")
    assert line["outside"] == pytest.approx((26.4 - 23.01) * GIB, abs=2)
    hosts = [row for row in timeline_of(report) if row["who"] == "host"]
    assert [row["step"] for row in hosts] == list(range(1, 41))
    assert hosts[0]["host_change"] is None
    assert sum(row["host_change"] for row in hosts[1:]) == hosts[-1]["host_used"] - hosts[0]["host_used"]
    assert 170 * GIB < hosts[-1]["host_used"] - hosts[0]["host_used"] < 190 * GIB
