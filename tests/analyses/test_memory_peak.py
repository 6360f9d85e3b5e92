"""What fills memory at its peak: by place in the program, category and stack, from snapshots of our own making."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from chrome_builder import kernel, memory, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_builder import Allocator, as_written_by, frame, pickled, snapshot
from snapshot_traces import MIB, frame_of, loaded, report, rows, section, table, written

from tracekit.analyses.memory import memory_peak
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Frames
from tracekit.model.trace import Source, Trace, Want
from tracekit.process.memory import windows as snapshot_windows
from tracekit.process.memory.call_sites import build_allocation_tree, build_site_table, shorten_frame_path
from tracekit.process.memory.levels import compute_allocated_peak
from tracekit.process.memory.replay import replay_all_devices
from tracekit.readers import torch_memory

QUESTIONS = ("allocator", "fragmentation", "memory", "memory-peak", "out-of-memory")

MODEL = frame("forward", "/job/model.py", 10)
TRAIN = frame("train", "/job/train.py", 20)
TORCH = frame("linear", "/opt/lib/python3.11/site-packages/torch/nn/functional.py", 5)
ENGINE = frame("torch::autograd::Engine::thread_main()", "??", 0)
MM = frame("at::Tensor at::_ops::mm::call(at::Tensor const&)", "??", 0)
EMPTY = frame("at::TensorBase at::detail::_empty_generic<long>(int)", "??", 0)


def sites(tmp_path, *allocators, moment="peak", **more):
    """The rows of live_sites at one moment, largest first, with what matters of them."""
    made = table(memory_peak.measure(loaded(tmp_path, *allocators, **more)), "live_sites")
    mine = made[made["moment"] == moment]
    told = mine[["origin", "kind", "site", "size_bytes", "block_count"]].astype(object)
    return told.where(told.notna(), None).to_numpy().tolist()


def real(*parts):
    folder = os.environ.get("TRACEKIT_REAL_DATA")
    if folder is None:
        pytest.skip("real profiles are not here")
    path = Path(folder, "memory", *parts)
    return torch_memory.read(Source(path, path.name, "torch_memory", "torch_memory"), Want())[0]


def test_what_is_in_use_at_the_peak_is_told_by_place_and_sums_to_it(tmp_path):
    allocator = Allocator()
    first = allocator.alloc(1000, [TORCH, MODEL, TRAIN])
    allocator.alloc(3000, [TRAIN])
    allocator.alloc(500, [TORCH, MODEL, TRAIN])  # 4,500: the peak
    allocator.free(first)
    allocator.alloc(700, [TRAIN])  # 4,200
    assert sites(tmp_path, allocator) == [
        ["recorded", "user", "job/train.py:20 train", 3000, 1],
        ["recorded", "user", "job/model.py:10 forward", 1500, 2],
    ]
    assert sites(tmp_path, allocator, moment="end") == [
        ["recorded", "user", "job/train.py:20 train", 3700, 2],
        ["recorded", "user", "job/model.py:10 forward", 500, 1],
    ]


def test_what_was_there_before_the_recording_has_rows_of_its_own(tmp_path):
    allocator = Allocator()
    allocator.alloc(4096, [MODEL, TRAIN])
    gone = allocator.alloc(2048, [TRAIN])
    allocator.clear_history()
    allocator.alloc(1024, [TRAIN])
    allocator.free(gone, [TRAIN])
    # Where it was freed is known, and says nothing of who asked for it.
    assert sites(tmp_path, allocator) == [
        ["before", "user", "job/model.py:10 forward", 4096, 1],
        ["freed", "unknown", None, 2048, 1],
        ["recorded", "user", "job/train.py:20 train", 1024, 1],
    ]


def test_stacks_without_python_say_so_and_name_the_operator(tmp_path):
    allocator = Allocator()
    allocator.alloc(5000, [EMPTY, MM, ENGINE])
    allocator.alloc(4000, [TORCH])
    allocator.alloc(3000, [])
    found = [row[1:4] for row in sites(tmp_path, allocator)]
    assert found[0] == ["native", "at::_ops::mm::call", 5000]
    assert found[1] == ["library", "torch/nn/functional.py:5 linear", 4000]
    assert found[2] == ["empty", None, 3000]


def test_text_that_the_program_attached_and_annotated_ranges_are_categories(tmp_path):
    allocator = Allocator()
    allocator.alloc(4000, [TRAIN], metadata="weights")
    allocator.annotate("update_actor", "START")
    allocator.alloc(3000, [TRAIN])
    allocator.annotate("update_actor", "END")
    allocator.alloc(2000, [TRAIN])
    made = table(memory_peak.measure(loaded(tmp_path, allocator)), "live_sites")
    at_peak = made[made["moment"] == "peak"]
    told = at_peak[["category", "basis", "size_bytes"]].astype(object)
    assert told.where(told.notna(), None).to_numpy().tolist() == [
        ["weights", "metadata", 4000],
        ["update_actor", "stage", 3000],
        [None, "none", 2000],
    ]
    shown = rows(section(report(written(tmp_path, {1: allocator})), "memory-peak"), "live_categories")  # fmt: skip
    assert [(r["category"], r["how"], r["size_bytes"]) for r in shown] == [
        ("weights", "the program's own text", 4000),
        ("update_actor", "annotated range when allocated", 3000),
        ("not told", None, 2000),
    ]
    assert sum(r["share_ratio"] for r in shown) == pytest.approx(1)


def test_the_peak_has_a_step_a_stage_and_what_was_reserved_then(tmp_path):
    allocator = Allocator()
    allocator.annotate("ProfilerStep#6", "START")
    allocator.alloc(3 * MIB, [TRAIN])
    allocator.annotate("ProfilerStep#6", "END")
    allocator.annotate("ProfilerStep#7", "START")
    allocator.annotate("actor_update", "START")
    block = allocator.alloc(30 * MIB, [MODEL])
    allocator.annotate("actor_update", "END")
    allocator.free(block)
    allocator.annotate("ProfilerStep#7", "END")
    made = table(memory_peak.measure(loaded(tmp_path, allocator, step=3)), "snapshot_levels")
    (row,) = made.to_dict("records")
    assert (row["peak_bytes"], row["peak_step"], row["peak_stage"]) == (33 * MIB, 7, "actor_update")
    # A segment of 20 MiB for the first, one of 30 for the second.
    assert (row["peak_reserved_bytes"], row["end_reserved_bytes"]) == (50 * MIB, 50 * MIB)
    assert (row["end_requested_bytes"], row["end_allocated_bytes"]) == (3 * MIB, 3 * MIB)
    assert (row["alloc_count"], row["alloc_bytes"], row["largest_bytes"]) == (2, 33 * MIB, 30 * MIB)
    assert (row["base_bytes"], row["off_bytes"], row["unsound_count"]) == (0, 0, 0)


def test_rounding_is_told_at_the_end_where_blocks_tell_it(tmp_path):
    allocator = Allocator()
    allocator.alloc(1000)
    made = table(memory_peak.measure(loaded(tmp_path, allocator)), "snapshot_levels")
    assert made["end_requested_bytes"].tolist() == [1000]
    assert made["end_allocated_bytes"].tolist() == [1024]


def test_the_allocated_peak_is_of_sizes_as_the_allocator_rounds_them(tmp_path):
    allocator = Allocator()
    first = allocator.alloc(1000)  # 1,024
    allocator.alloc(MIB + 1)  # MIB + 512
    allocator.free(first)
    allocator.alloc(3)  # 512
    made = table(memory_peak.measure(loaded(tmp_path, allocator)), "snapshot_levels")
    assert made["peak_allocated_bytes"].tolist() == [1024 + MIB + 512]
    assert made["peak_bytes"].tolist() == [1000 + MIB + 1]
    found = memory_peak.measure(loaded(tmp_path, allocator))["metrics"]
    told = dict(zip(found["name"], found["value"], strict=True))
    assert told["device_peak_allocated"] == 1024 + MIB + 512


@given(sizes=st.lists(st.integers(1, MIB), min_size=1, max_size=40), seed=st.randoms())
@settings(max_examples=30)
def test_the_allocated_peak_is_that_of_the_allocator_where_every_rest_is_split_off(sizes, seed):
    """Blocks to 1 MiB come out of segments of which every rest of 512 bytes is split off."""
    allocator, held, before = Allocator(), [], 0
    for at, size in enumerate(sizes):
        if at == len(sizes) // 3:
            allocator.clear_history()
            before = allocator.allocated
        held.append(allocator.alloc(size))
        if seed.random() < 0.5:
            allocator.free(held.pop(seed.randrange(len(held))))
    with tempfile.TemporaryDirectory() as folder:
        trace = loaded(Path(folder), allocator)
    (replay,) = replay_all_devices(trace)
    assert compute_allocated_peak(trace, replay) == max(before, *(level[1] for level in allocator.levels))


def test_more_places_than_are_told_of_are_one_row_of_the_rest(tmp_path):
    allocator = Allocator()
    for line in range(1, 251):  # 1 KiB on line 1, 2 KiB on line 2 …
        allocator.alloc(line * 1024, [frame("f", "/job/a.py", line)])
    made = table(memory_peak.measure(loaded(tmp_path, allocator)), "live_sites")
    mine = made[made["moment"] == "peak"]
    assert len(mine) == 200
    last = mine.iloc[-1]
    # The 199 largest are told: lines 52 to 250; the rest is 1 + 2 + … + 51 KiB.
    assert (last["origin"], last["block_count"], last["size_bytes"]) == ("rest", 51, 51 * 26 * 1024)
    assert int(mine["size_bytes"].sum()) == 250 * 251 // 2 * 1024


def test_the_tree_begins_outermost_and_parts_lie_within_what_they_are_parts_of(tmp_path):
    allocator = Allocator()
    allocator.alloc(3 * MIB, [MODEL, TRAIN])
    allocator.alloc(2 * MIB, [frame("loss", "/job/model.py", 30), TRAIN])
    allocator.alloc(1 * MIB, [frame("load", "/job/data.py", 4)])
    allocator.alloc(4 * MIB, [])
    made = table(memory_peak.measure(loaded(tmp_path, allocator)), "live_frames")
    assert made[["depth", "start_bytes", "size_bytes", "name"]].to_numpy().tolist() == [
        [0, 0, 5 * MIB, "job/train.py:20 train"],
        [0, 5 * MIB, 1 * MIB, "job/data.py:4 load"],
        [1, 0, 3 * MIB, "job/model.py:10 forward"],
        [1, 3 * MIB, 2 * MIB, "job/model.py:30 loss"],
        [0, 6 * MIB, 4 * MIB, "allocated before the recording, or without a stack"],
    ]


def test_a_tree_leaves_out_what_is_too_small_with_all_above_it():
    stacks = TABLES["stacks"].cast(
        {
            "stack": np.array([1, 1, 2, 2], np.int64), "depth": np.array([0, 1, 0, 1], np.int32),
            "name": ["a", "top", "b", "other"], "file": ["x.py"] * 4, "line": [1, 2, 3, 4],
        }
    )  # fmt: skip
    trace = Trace(Source(Path("a"), "a", "torch_memory", "torch_memory"), Frames({"stacks": stacks}))
    made, missing = build_allocation_tree(trace, np.array([1, 2]), np.array([90, 10]), max_nodes=10, min_bytes=20)
    assert frame_of(made)[["depth", "name"]].to_numpy().tolist() == [[0, "x.py:2 top"], [1, "x.py:1 a"]]
    assert missing == 10


def test_places_are_named_by_the_last_parts_of_their_path():
    assert shorten_frame_path("C:\\job\\deep\\er\\model.py") == "deep/er/model.py"
    assert shorten_frame_path("model.py") == "model.py"
    assert shorten_frame_path("??") == ""


def test_a_program_within_an_installed_looking_folder_is_named_by_any_python(tmp_path):
    allocator = Allocator()
    allocator.alloc(1000, [EMPTY, TORCH, frame("run", "/opt/lib/python3.11/runpy.py", 3)])
    found = build_site_table(loaded(tmp_path, allocator))
    assert (found.site.texts, found.kind.tolist()) == (("torch/nn/functional.py:5 linear",), [1])


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([("a", "START"), ("a", "END")], [("a", 0, 10)]),
        # A range within one of its own name; both are ranges.
        ([("a", "START"), ("a", "START"), ("a", "END"), ("a", "END")], [("a", 0, 30), ("a", 10, 10)]),
        # Ranges that overlap: each ends with its own end.
        ([("a", "START"), ("b", "START"), ("a", "END"), ("b", "END")], [("a", 0, 20), ("b", 10, 20)]),
        ([("a", "END"), ("b", "START"), ("b", "END")], [("a", 0, 0), ("b", 10, 10)]),
        ([("a", "START"), ("b", "START"), ("b", "END")], [("a", 0, 20), ("b", 10, 10)]),
        ([("a", "START"), ("a", "END"), ("a", "START"), ("a", "END")], [("a", 0, 10), ("a", 20, 10)]),
        ([], []),
    ],
)  # fmt: skip
def test_starts_and_ends_become_ranges(tmp_path, marks, expected):
    allocator = Allocator()
    for name, stage in marks:
        allocator.annotate(name, stage)
    trace = loaded(tmp_path, allocator)
    found = trace.derived(snapshot_windows.list_annotated_ranges)
    zero = allocator.annotations[0]["time_us"] * 1000 if marks else 0
    told = [
        (found.name.texts[code], (ts - zero) // 1000, dur // 1000)
        for code, ts, dur in zip(found.name.codes, found.ts_ns, found.dur_ns, strict=True)
    ]
    assert told == expected


def test_ranges_are_those_of_one_device_though_all_record_them(tmp_path):
    first, second = Allocator(0), Allocator(1)
    for one in (first, second):
        one.alloc(512)
        one.annotate("gen", "START")
        one.annotate("gen", "END")
    trace = loaded(tmp_path, first, second)
    assert len(trace["annotations"]) == 4
    assert len(trace.derived(snapshot_windows.list_annotated_ranges)) == 1


def test_a_numbered_range_is_a_step_unless_the_file_is_one(tmp_path):
    allocator = Allocator()
    allocator.annotate("step 4", "START")
    allocator.alloc(512)
    allocator.annotate("step 4", "END")
    free, bound = (loaded(tmp_path, allocator, step=number) for number in (None, 9))
    found = [snapshot_windows.list_snapshot_steps(t, t.derived(replay_all_devices)[0]).step.values.tolist() for t in (free, bound)]  # fmt: skip
    assert found == [[4], [9]]


def test_the_report_shows_levels_places_and_pictures(tmp_path):
    small, large = Allocator(), Allocator()
    small.alloc(2 * MIB, [TRAIN])
    large.alloc(3 * MIB, [MODEL, TRAIN])
    large.free(large.alloc(5 * MIB, [TRAIN]))
    made = report(written(tmp_path, {1: small, 2: large}))
    found = section(made, "memory-peak")
    peaks = rows(found, "snapshot_peaks")
    assert [(r["peak_step"], r["peak_bytes"]) for r in peaks] == [(2, 8 * MIB), (1, 2 * MIB)]
    live = rows(found, "live_peak")
    assert [(r["where"], r["size_bytes"], r["share_ratio"]) for r in live] == [
        ("job/train.py:20 train", 5 * MIB, 0.625),
        ("job/model.py:10 forward", 3 * MIB, 0.375),
    ]
    assert {chart.id: chart.kind for chart in found.charts} == {
        "snapshot-curve": "lines", "peak-stacks": "icicle"
    }  # fmt: skip
    curve = found.charts[0]
    peak = [mark for mark in curve.marks if curve.series[mark[0]] == "peak"]
    assert peak[-1][2] == 8 * MIB
    (memory,) = rows(section(made, "memory"), "memory_peaks")
    assert (memory["memory"], memory["peak_bytes"]) == ("GPU 0 (snapshot)", 8 * MIB)


def test_the_curve_is_drawn_stage_by_stage(tmp_path):
    """4 MiB in gen, 1 MiB after it, in the update 3 MiB more; an entry every 10 µs, ranges included."""
    allocator = Allocator()
    allocator.annotate("gen", "START")
    kept = allocator.alloc(4 * MIB, [TRAIN])
    allocator.annotate("gen", "END")
    allocator.free(kept)
    allocator.alloc(MIB, [TRAIN])
    allocator.annotate("update_actor", "START")
    allocator.alloc(3 * MIB, [TRAIN])
    allocator.alloc(4 * MIB, [TRAIN])
    allocator.annotate("update_actor", "END")
    (curve, _) = section(report(written(tmp_path, {1: allocator})), "memory-peak").charts
    highest = {name: max((m[2] or 0) for m in curve.marks if curve.series[m[0]] == name) for name in curve.series}
    outside, update = "requested, outside any stage", "requested, in update_actor"
    assert highest["requested, in gen"] == 4 * MIB
    assert (highest[update], highest["peak"]) == (8 * MIB, 8 * MIB)
    assert highest[outside] == 4 * MIB  # where gen ends and the next stretch begins
    broken = [curve.series[m[0]] for m in curve.marks if m[2] is None]
    assert broken[-1] == outside  # the line of the update ends with the curve
    assert curve.caption.endswith("The peak is in update_actor.")


def test_metrics_of_a_snapshot_say_which_bytes_they_are(tmp_path):
    from tracekit.pipeline.run import Options, analyze_uncached

    allocator = Allocator()
    allocator.alloc(3 * MIB)
    found = analyze_uncached(written(tmp_path, {4: allocator}), Options(jobs=1, questions=QUESTIONS)).measurements[
        "metrics"
    ]
    told = found[["step", "name", "value"]].astype(object).to_numpy().tolist()
    assert {name: value / MIB for _, name, value in told} == {
        "device_peak_requested": 3, "device_peak_allocated": 3, "device_peak_reserved": 20,
        "device_end_requested": 3, "device_end_allocated": 3, "device_end_reserved": 20, "device_end_stranded": 17,
    }  # fmt: skip
    assert {step for step, *_ in told} == {4}


def test_a_snapshot_near_the_limit_of_a_device_whose_size_another_profile_tells(tmp_path):
    allocator = Allocator()
    allocator.alloc(92 * MIB)
    folder = written(tmp_path, {1: allocator})
    sample = memory(10, 1, 50 * MIB, device_type=1)
    sample["args"]["Device Id"] = 0
    write(
        folder / "step1" / "trace_rank0.json", [step(1, 0, 100), sample], rank=0,
        deviceProperties=[{"id": 0, "name": "GPU", "totalGlobalMem": 100 * MIB}],
    )  # fmt: skip
    (found,) = [f for f in report(folder).findings if f.rule == "memory-near-limit"]
    assert found.claim == "GPU 0 (snapshot) of rank 0 has 92 % of its memory reserved"


def test_other_profiles_have_no_section_about_snapshots(tmp_path):
    write(tmp_path / "rank0.json", [step(1, 0, 100), kernel("k", 1, 5)])
    made = report(tmp_path)
    assert {s.id for s in made.sections} & ({*QUESTIONS} - {"memory"}) == set()


def test_a_snapshot_without_a_history_shows_what_was_in_use(tmp_path):
    allocator = Allocator()
    allocator.alloc(3 * MIB, [TRAIN])
    made = snapshot(allocator)
    del made["device_traces"]
    found = report(written(tmp_path, {1: pickled(made)}))
    peak = section(found, "memory-peak")
    assert [(r["where"], r["size_bytes"]) for r in rows(peak, "live_peak")] == [("job/train.py:20 train", 3 * MIB)]
    assert any("without a history" in caveat for caveat in peak.caveats)
    assert section(found, "memory").status == "skipped"
    assert section(found, "allocator").reason == "no history of allocations was recorded"


def test_a_history_without_times_keeps_its_peak(tmp_path):
    allocator = Allocator()
    allocator.free(allocator.alloc(4 * MIB, [TRAIN]))
    allocator.alloc(3 * MIB, [MODEL])
    made = as_written_by("2.1", snapshot(allocator))
    found = section(report(written(tmp_path, {1: pickled(made)})), "memory-peak")
    assert rows(found, "snapshot_peaks")[0]["peak_bytes"] == 4 * MIB
    assert [chart.id for chart in found.charts] == ["peak-stacks"]


@pytest.mark.parametrize(
    ("parts", "peak", "end"),
    [
        (("CPU_torch2.13", "cpu_profile_snapshot.pickle"), 29_599_912, 21_141_656),
        (("SIMULATED_cpu_allocsim", "step7", "torch_memory_rank0_pid1.pickle"), 122_241_348, 88_268_952),
    ],
)  # fmt: skip
def test_real_peaks(parts, peak, end):
    (row,) = table(memory_peak.measure(real(*parts)), "snapshot_levels").to_dict("records")
    assert (row["peak_bytes"], row["end_requested_bytes"], row["off_bytes"]) == (peak, end, 0)


def test_a_real_history_cut_at_its_front_keeps_the_curve():
    trace = real("SIMULATED_cpu_allocsim", "step7", "torch_memory_rank0_pid1.pickle")
    (whole,) = trace.derived(replay_all_devices)
    for share in (0.75, 0.25, 0.02):
        kept = round(len(whole.rows) * share)
        history = trace["allocations"].iloc[-kept:].reset_index(drop=True)
        (part,) = Trace(trace.source, {**trace.tables, "allocations": history}).derived(replay_all_devices)
        assert part.requested.tolist() == whole.requested[-kept:].tolist()
        assert part.reserved.tolist() == whole.reserved[-kept:].tolist()


def test_complete_real_histories_begin_with_nothing_and_end_with_the_recorded_segments():
    name = "cs336_systems_profile_memory_forward_memory_snapshot_150.pickle"
    trace = real("NiuHuangxiaozi+assignment2-systems", name)
    (one,) = trace.derived(replay_all_devices)
    assert (one.base, one.reserved_before) == (0, 0)
    assert one.reserved[-1] == trace["memory_segments"]["size_bytes"].sum() == 666_894_336
    assert one.requested.max() == 626_943_088
