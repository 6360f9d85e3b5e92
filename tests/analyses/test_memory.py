"""Memory: levels by step and stage, peaks, cards; findings R20 and R23, and the traces of all three rules."""

import numpy as np
import pandas as pd
import pytest
from analyses.memory_sections import analyze, measured, real, sections, sheet, verdicts
from chrome_builder import annotation, kernel, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.firing import Document, write_sources
from rules.traces_memory import FIRES, MIB, NEAR_MISSES, card, sample, steps_at

import tracekit
from tracekit.process.memory.levels import compute_memory_levels, read_gpu_capacities
from tracekit.process.memory.replay import MAX_BYTES

QUESTIONS = ("memory", "memory-growth")


# Levels


def test_what_is_held_when_a_step_begins_counts_for_it(tmp_path):
    """Step 1: 5, 9, 3. Step 2 begins with these 3, then 8. Step 3 has no sample: 8 all the time."""
    rows = [step(1, 0, 100), step(2, 100, 100), step(3, 200, 100)]
    rows += [sample(ts, level) for ts, level in ((10, 5), (20, 9), (90, 3), (150, 8))]
    found = measured(tmp_path, rows, "memory_steps")
    columns = ["floor_bytes", "end_bytes", "peak_bytes"]
    assert found[columns].to_numpy().tolist() == [[3, 3, 9], [3, 8, 8], [8, 8, 8]]
    assert found["reserved_bytes"].isna().all()


def test_a_step_before_the_first_sample_has_no_level(tmp_path):
    rows = [step(1, 0, 100), step(2, 100, 100), sample(150, 7)]
    found = measured(tmp_path, rows, "memory_steps")
    assert found["floor_bytes"].isna().tolist() == [True, False]


def test_hosts_and_gpus_are_never_one(tmp_path):
    rows = [step(1, 0, 100), sample(10, 5), sample(20, 700, device_type=0), sample(30, 9, device=1)]
    found = measured(tmp_path, rows, "memory_peaks")
    assert {(t, d): p for t, d, p in zip(found["device_type"], found["device"], found["peak_bytes"], strict=True)} == {
        (1, 0): 5, (0, -1): 700, (1, 1): 9,
    }  # fmt: skip
    shown = sheet(sections(write(tmp_path / "r.json", rows))["memory"], "memory_peaks")
    assert [(row["memory"], row["peak_bytes"]) for row in shown] == [("CPU", 700), ("GPU 1", 9), ("GPU 0", 5)]  # fmt: skip


def test_the_peak_has_a_stage_and_an_op(tmp_path):
    rows = [
        step(1, 0, 100), annotation("actor_update", 40, 50), op("aten::mm", 45, 20), op("aten::empty", 50, 5),
        sample(10, 5, reserved=20), sample(52, 9, reserved=20), sample(95, 9, reserved=30),
    ]  # fmt: skip
    (found,) = measured(tmp_path, rows, "memory_peaks").to_dict("records")
    assert (found["peak_bytes"], found["peak_stage"], found["peak_op"]) == (9, "actor_update", "aten::empty")  # fmt: skip
    assert found["peak_step"] == 1
    assert (found["reserved_peak_bytes"], found["reserved_stage"]) == (30, None)


def test_without_totals_levels_are_sums_from_the_start_of_the_recording(tmp_path):
    """+5 −2 −9 +4: what was there before may be freed, so levels may be negative."""
    rows = [step(1, 0, 100)]
    for ts, size in ((10, 5), (20, -2), (30, -9), (40, 4)):
        row = sample(ts, 0, size=size)
        del row["args"]["Total Allocated"]
        rows.append(row)
    (found,) = measured(tmp_path, rows, "memory_steps").to_dict("records")
    assert (found["floor_bytes"], found["end_bytes"], found["peak_bytes"]) == (-6, -2, 5)
    assert found["relative"]
    assert any("relative" in c for c in sections(write(tmp_path / "r.json", rows))["memory"].caveats)  # fmt: skip


def test_a_host_that_counts_from_nothing_is_relative_and_a_gpu_is_not(tmp_path):
    rows = [step(1, 0, 100), sample(10, 8, size=8, device_type=0), sample(20, 8, size=8)]
    found = measured(tmp_path, rows, "memory_steps")
    assert dict(zip(found["device_type"], found["relative"], strict=True)) == {0: True, 1: False}


def test_impossible_sizes_are_left_out_and_counted(tmp_path):
    rows = [step(1, 0, 100), sample(10, 5), sample(20, MAX_BYTES), sample(30, "x"), sample(40, 7)]
    (found,) = measured(tmp_path, rows, "memory_peaks").to_dict("records")
    assert (found["peak_bytes"], found["unsound_count"], found["sample_count"]) == (7, 2, 4)


def test_a_curve_has_few_points_and_keeps_the_peak(tmp_path):
    rows = [step(1, 0, 5000), *(sample(n, n % 977) for n in range(5000))]
    found = measured(tmp_path, rows, "memory_curve")
    assert len(found) <= 400
    assert found["allocated_bytes"].max() == 976


drawn = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 50), st.integers(0, 1)), min_size=1, max_size=25)


@settings(max_examples=40, deadline=None)
@given(drawn, st.randoms(use_true_random=False))
def test_levels_are_those_of_a_walk_over_the_samples(tmp_path_factory, samples, random):
    """Against a plain loop; the order of the rows in the file does not matter."""
    rows = [step(n, 100 * n, 100) for n in range(3)]
    rows += [sample(3 * ts + n % 3, level, device=device) for n, (ts, level, device) in enumerate(samples)]  # fmt: skip
    random.shuffle(rows)
    found = measured(tmp_path_factory.mktemp("t"), rows, "memory_steps")
    for row in found.to_dict("records"):
        # Of samples at one time the one that comes later in the file is the level.
        mine = [
            (r["ts"], r["args"]["Total Allocated"])
            for r in rows
            if r["name"] == "[memory]" and r["args"]["Device Id"] == row["device"]
        ]
        mine.sort(key=lambda pair: pair[0])
        start = 100 * row["step"]
        before = [level for ts, level in mine if ts <= start]
        inside = [level for ts, level in mine if start < ts < start + 100]
        held = before[-1:] + inside
        if not held:
            assert pd.isna(row["floor_bytes"])
            continue
        assert (row["floor_bytes"], row["peak_bytes"], row["end_bytes"]) == (min(held), max(held), held[-1])  # fmt: skip


def test_no_memory_and_a_gpu_without_any_are_told_apart(tmp_path):
    plain = sections(write(tmp_path / "a/r.json", [step(1, 0, 100), kernel("k", 0, 1)]))
    assert {s.status for s in plain.values()} == {"skipped"}
    assert "profile_memory" in plain["memory"].reason
    host = sections(write(tmp_path / "b/r.json", steps_at([5], device_type=0)))
    assert verdicts(host["memory"]) == {
        "memory-near-limit": ("not applicable", "no GPU memory was recorded"),
        "memory-imbalance": ("not applicable", "no GPU memory was recorded"),
    }


# Cards


@pytest.mark.parametrize(("reserved", "severity"), [(97, "high"), (96, "medium")])
def test_from_97_per_cent_on_a_full_card_is_high(tmp_path, reserved, severity):
    rows = steps_at([MIB], reserved=reserved * MIB)
    (found,) = sections(write(tmp_path / "r.json", rows, **card(rows, 100 * MIB).meta))["memory"].findings  # fmt: skip
    assert found.severity == severity


def test_a_card_of_unknown_size_is_not_judged(tmp_path):
    rows = steps_at([MIB], reserved=99 * MIB)
    found = sections(write(tmp_path / "r.json", rows))["memory"]
    assert verdicts(found)["memory-near-limit"][0] == "insufficient data"


def test_the_size_of_another_card_says_nothing(tmp_path):
    rows = steps_at([MIB], reserved=99 * MIB, device=3)
    found = sections(write(tmp_path / "r.json", rows, **card(rows, 100 * MIB).meta))["memory"]
    assert verdicts(found)["memory-near-limit"][0] == "insufficient data"


@pytest.mark.parametrize(
    "told",
    [None, "text", [None], [{}], [{"id": "0", "totalGlobalMem": 5}], [{"id": 0, "totalGlobalMem": -5}],
     [{"id": 0, "totalGlobalMem": True}], [{"id": 0, "totalGlobalMem": 2**60}], {"id": 0}],
)  # fmt: skip
def test_what_is_no_size_of_a_card_is_none(tmp_path, told):
    trace = tracekit.load(write(tmp_path / "r.json", steps_at([5]), deviceProperties=told))
    assert read_gpu_capacities(trace) == {}


def test_ranks_that_fill_less_than_half_of_a_card_may_differ(tmp_path):
    files = {r: card(steps_at([size * MIB]), 130 * MIB) for r, size in enumerate((60, 20))}
    assert sections(write_sources(tmp_path, files))["memory"].findings == ()


def test_roles_are_not_compared_with_one_another(tmp_path):
    name = "{}_train_step1_rank0-of-1_pid{}_20260101000000000.json"
    files = {
        name.format(role, pid): Document([annotation("gen", 0, 50), sample(1, size * MIB)], **card([], 100 * MIB).meta)
        for role, pid, size in (("actor", 1, 80), ("critic", 2, 20))
    }  # fmt: skip
    assert sections(write_sources(tmp_path, files))["memory"].findings == ()


# Rules, charts, hostile rows


@pytest.mark.parametrize("rule", sorted(FIRES))
def test_each_rule_fires_alone_with_the_numbers_worked_out_by_hand(tmp_path, rule):
    expected = FIRES[rule]
    (found,) = analyze(write_sources(tmp_path, expected.rows), None).report.findings
    assert (found.rule, found.claim, found.severity) == (rule, expected.claim, expected.severity)
    assert found.cost_ns is None
    assert {m.name: m.value for m in found.evidence} == pytest.approx(expected.evidence)
    assert found.places


@pytest.mark.parametrize("rule", sorted(NEAR_MISSES))
def test_a_near_miss_does_not_fire(tmp_path, rule):
    assert analyze(write_sources(tmp_path, NEAR_MISSES[rule]), None).report.findings == ()


def test_a_chart_of_many_has_lines_for_the_most_the_least_and_one_for_those_alike(tmp_path):
    files = {r: [step(0, 0, 1000), *(sample(n, r + n) for n in range(600))] for r in range(25)}
    (chart,) = sections(write_sources(tmp_path, files))["memory"].charts
    ends = [f"rank {rank} GPU 0" for rank in (*range(5), *range(20, 25))]
    assert list(chart.series) == [*ends[:5], "rank 12 GPU 0, like 14 more", *ends[5:]]
    assert len(chart.marks) <= 2_000
    assert max(mark[2] for mark in chart.marks) == 24 + 599
    assert chart.omitted > 0


odd = st.sampled_from([None, 0, 5, -5, 2**70, "7", "x", [], 1.5])


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), odd, odd, odd, odd), max_size=8))
def test_whatever_samples_say_there_is_a_section(tmp_path_factory, drawn_rows):
    rows = [step(0, 0, 100), step(1, 100, 100), annotation("gen", 10, 50)]
    for ts, size, total, type_, device in drawn_rows:
        row = sample(ts, 0)
        row["args"] = {"Bytes": size, "Total Allocated": total, "Device Type": type_, "Device Id": device, "Total Reserved": total}  # fmt: skip
        rows.append(row)
    found = sections(write(tmp_path_factory.mktemp("t") / "r.json", rows))
    assert {s.status for s in found.values()} <= {"ok", "skipped"}
    assert all(s.findings == () for s in found.values())


# Real files


def test_levels_of_real_files_are_the_recorded_totals():
    trace = tracekit.load(real("tracelens", "h100", "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"))
    rows = trace["memory_ops"]
    gpu, host = sorted(compute_memory_levels(trace), key=lambda level: -(level.device_type or 0))
    mine = rows[rows["device_type"] == 1]
    assert (gpu.allocated.max(), gpu.allocated.min()) == (
        mine["allocated_bytes"].max(), mine["allocated_bytes"].min(),
    )  # fmt: skip
    # Every sample changes the level by its own size: nothing was lost or put out of order.
    size = mine.sort_values(["ts_ns", "id"], kind="stable")["size_bytes"].to_numpy(np.int64)
    assert (np.diff(gpu.allocated) == size[1:]).all()
    assert (gpu.relative, host.relative) == (False, True)
    assert read_gpu_capacities(trace)[0] == 85_018_279_936


def test_a_file_of_2021_without_totals_is_relative():
    path = real("kineto_tb_plugin", "samples", "resnet50_num_workers_4")
    trace = tracekit.load(min(path.glob("*.json.gz")))
    assert [level.relative for level in compute_memory_levels(trace)] == [True, True]
    found = sections(path)
    assert verdicts(found["memory"])["memory-near-limit"][0] == "insufficient data"
    assert found["memory-growth"].findings == ()
