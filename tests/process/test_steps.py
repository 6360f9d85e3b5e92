"""Steps and stages from annotations and file names."""

import nsys_builder as nsys
import numpy as np
import pytest
from chrome_builder import BACKWARD, annotation, op, step, write

import tracekit
from tracekit.process.steps import windows as module
from tracekit.process.steps.windows import find_steps_and_stages


def load(tmp_path, rows, name="rank0.json"):
    return tracekit.load(write(tmp_path / name, rows))


def test_profiler_steps_are_the_steps(tmp_path):
    found = find_steps_and_stages(load(tmp_path, [step(5, 0, 10), step(6, 10, 30), op("a", 1, 2)])).steps
    assert found["step"].tolist() == [5, 6]
    assert found["dur_ns"].tolist() == [10_000, 30_000]
    assert set(found["origin"]) == {"profiler"}


def test_a_number_that_comes_twice_keeps_its_occurrence(tmp_path):
    found = find_steps_and_stages(load(tmp_path, [step(1, 0, 10), step(1, 20, 10), step(2, 30, 10)])).steps
    assert found["occurrence"].tolist() == [0, 1, 0]


def test_without_profiler_steps_the_file_is_the_step_its_name_says(tmp_path):
    name = "actor-rollout-ref_train_step7_rank1-of-2_pid9_20260101000000000.json"
    found = find_steps_and_stages(load(tmp_path, [op("a", 10, 5), op("b", 90, 10)], name)).steps
    assert found[["step", "ts_ns", "dur_ns"]].iloc[0].tolist()[::2] == [7, 90_000]
    assert found["origin"].tolist() == ["file"]


def test_ranges_that_a_program_numbers_as_its_steps_are_the_steps(tmp_path):
    rows = [
        annotation("step 3", 0, 50), annotation("gen", 0, 20), annotation("update_actor", 20, 25),
        annotation("step 4", 50, 40), annotation("gen", 50, 30), op("between", 95, 3), annotation("step 5", 100, 10),
    ]  # fmt: skip
    found = find_steps_and_stages(load(tmp_path, rows))
    assert found.steps["step"].tolist() == [3, 4, 5]
    assert found.steps["dur_ns"].tolist() == [50_000, 40_000, 10_000]
    assert set(found.steps["origin"]) == {"range"}
    assert found.stages["stage"].tolist() == ["gen", "update_actor", "gen"]
    assert found.stages["parent"].isna().all()
    assert found.stages["step"].tolist() == [3, 3, 4]


def test_numbered_ranges_within_a_stage_or_one_another_are_no_steps(tmp_path):
    denoising = [annotation(f"step {n}", 10 * n, 10) for n in range(4)]
    found = find_steps_and_stages(load(tmp_path, [annotation("generate_sequences", 0, 40), *denoising]))
    assert found.steps["origin"].tolist() == ["file"]
    nested = [annotation("train_step_1", 0, 40), *denoising, annotation("train_step_2", 40, 20)]
    assert find_steps_and_stages(load(tmp_path, nested)).steps["step"].tolist() == [1, 2]


def test_the_profilers_steps_and_the_files_own_come_before_numbered_ranges(tmp_path):
    rows = [step(7, 0, 30), annotation("step 1", 0, 30)]
    assert find_steps_and_stages(load(tmp_path, rows)).steps["origin"].tolist() == ["profiler"]
    name = "actor-rollout-ref_train_step7_rank1-of-2_pid9_20260101000000000.json"
    found = find_steps_and_stages(load(tmp_path, rows[1:], name)).steps
    assert (found["step"].tolist(), found["origin"].tolist()) == ([7], ["file"])


def test_a_step_without_a_number_does_not_hide_its_stages(tmp_path):
    rows = [annotation("step", 0, 50), annotation("gen", 0, 20), annotation("update_actor", 20, 25)]
    found = find_steps_and_stages(load(tmp_path, rows))
    assert found.stages["stage"].tolist() == ["gen", "update_actor"]
    assert found.stages["parent"].isna().all()
    assert (found.steps["origin"].tolist(), found.steps["dur_ns"].tolist()) == (["file"], [50_000])
    alone = find_steps_and_stages(load(tmp_path, [annotation("step", 0, 50), annotation("my_part", 0, 20)]))
    assert alone.stages["stage"].tolist() == ["step", "my_part"]


def test_a_file_of_one_stage_says_that_it_is_not_the_whole_step(tmp_path):
    name = "actor-rollout-ref_actor-update_step3_rank0-of-2_pid9_20260101000000000.json"
    found = find_steps_and_stages(load(tmp_path, [annotation("actor_update", 0, 50)], name)).steps
    assert found["origin"].tolist() == ["stage"]


def test_stages_are_the_ranges_of_the_step_thread_with_their_parents(tmp_path):
    rows = [
        step(1, 0, 100),
        annotation("gen", 0, 40), annotation("actor_update", 50, 50),
        annotation("mini_batch0", 50, 20), annotation("micro_batch0", 52, 5),
        annotation("gloo:all_reduce", 60, 5, tid=BACKWARD),
        annotation("nccl:all_gather", 71, 3),
    ]  # fmt: skip
    found = find_steps_and_stages(load(tmp_path, rows)).stages
    pairs = list(zip(found["stage"], found["parent"].astype(object).where(found["parent"].notna(), None), strict=True))
    assert pairs == [
        ("gen", None), ("actor_update", None),
        ("mini_batch0", "actor_update"), ("micro_batch0", "mini_batch0"),
    ]  # fmt: skip
    assert found["step"].tolist() == [1, 1, 1, 1]


def test_of_a_range_within_its_like_the_outer_one_counts(tmp_path):
    found = find_steps_and_stages(load(tmp_path, [annotation("update", 0, 50), annotation("update", 10, 20)])).stages
    assert found["dur_ns"].tolist() == [50_000]


def test_a_stage_that_runs_again_in_a_step_is_its_next_occurrence(tmp_path):
    rows = [step(1, 0, 100), step(2, 100, 100)]
    rows += [annotation("gen", at, 10) for at in (0, 20, 110)]
    found = find_steps_and_stages(load(tmp_path, rows)).stages
    assert found["occurrence"].tolist() == [0, 1, 0]


def test_beyond_the_cap_the_outermost_and_the_longest_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_STAGES", 2)
    rows = [annotation("update", 0, 100), annotation("x", 10, 5), annotation("y", 20, 30)]
    found = find_steps_and_stages(load(tmp_path, rows))
    assert found.stages["stage"].tolist() == ["update", "y"]
    assert found.dropped == 1


def test_a_trace_without_annotations_has_no_stages(tmp_path):
    assert len(find_steps_and_stages(load(tmp_path, [op("a", 0, 5)])).stages) == 0


def test_a_range_of_another_name_around_known_stages_is_a_stage(tmp_path):
    """And an op called `step` is none of the ranges that would hide what they hold."""
    rows = [
        step(1, 0, 100), annotation("my_loop", 0, 90), annotation("gen", 5, 20),
        op("step", 30, 40), annotation("update_actor", 40, 20),
    ]  # fmt: skip
    found = find_steps_and_stages(load(tmp_path, rows)).stages
    assert found["stage"].tolist() == ["my_loop", "gen", "update_actor"]


def test_a_file_of_several_steps_is_divided_where_its_first_stage_begins_again(tmp_path):
    name = "{}_train_step7_rank1-of-2_pid9_20260101000000000.json"
    rows = [annotation(stage, at, 10) for stage, at in (("gen", 0), ("reward", 20), ("gen", 50), ("reward", 70))]
    found = find_steps_and_stages(load(tmp_path, rows, name.format("actor"))).steps
    assert found["step"].tolist() == [7, 8]
    assert found["dur_ns"].tolist() == [50_000, 30_000]
    found = find_steps_and_stages(
        load(tmp_path, rows, "actor_actor-update_step7_rank1-of-2_pid9_20260101000000000.json")
    ).steps
    assert found["step"].tolist() == [7]


def test_a_range_that_holds_whole_steps_is_no_stage_of_them(tmp_path):
    """`whole_run` is around both steps, `load` begins before the first one, `forward` is as long as the second."""
    rows = [step(1, 100, 50), step(2, 150, 50), annotation("whole_run", 90, 200), annotation("load", 95, 20)]  # fmt: skip
    rows += [annotation("forward", 150, 50), op("aten::mm", 120, 10)]
    stages = load(tmp_path, rows).derived(find_steps_and_stages).stages
    assert stages["stage"].astype(str).tolist() == ["load", "forward"]


def test_what_the_profiler_and_the_system_did_is_no_part_of_the_file_as_a_step(tmp_path):
    """The call and its kernel reach from 100 to 4000; the profiler's own work lies before and after."""
    rows = nsys.launched("gemm", 100, 2_500, 4_000, 11)
    rows += [nsys.overhead("flush", 3, 4), nsys.overhead("flush", 9_000, 9_500)]
    trace = tracekit.load(nsys.write(tmp_path / "x.sqlite", rows))
    (found,) = find_steps_and_stages(trace).steps.to_dict("records")
    assert found["ts_ns"] == nsys.BASE_NS + 100
    assert found["dur_ns"] == 3_900


def test_of_a_device_alone_the_step_is_from_its_first_op_to_its_last(tmp_path):
    rows = [nsys.kernel("a", 100, 200), nsys.kernel("b", 900, 1_000)]
    trace = tracekit.load(nsys.write(tmp_path / "x.sqlite", rows))
    (found,) = find_steps_and_stages(trace).steps.to_dict("records")
    assert (found["ts_ns"], found["dur_ns"]) == (nsys.BASE_NS + 100, 900)


@pytest.mark.parametrize(
    ("names", "starts"),
    [
        (("gen", "update_actor") * 2, [0, 200]), (("gen",) * 4, [0]), (("gen", "update_actor", "ref", "gen", "update_actor"), [0]),
        (("gen", "update_actor", "ref", "old_log_prob"), [0]), (("gen", "update_actor", "ref") * 3, [0, 300, 600]),
    ],
)  # fmt: skip
def test_only_stages_that_come_equally_often_divide_a_file_into_steps(tmp_path, names, starts):
    rows = [annotation(name, 100 * place, 90) for place, name in enumerate(names)]
    trace = load(tmp_path, [*rows, op("a", 0, 100 * len(names))])
    found = find_steps_and_stages(trace).steps
    assert (found["ts_ns"] - found["ts_ns"].min()).tolist() == [1_000 * start for start in starts]


@pytest.mark.parametrize(
    ("chosen", "thread"), [([1, 1, 1, 0, 0], 4), ([1, 1, 1, 1, 0], 2), ([1, 1, 0, 0, 1], 2), ([0, 0, 0, 0, 0], None), ([0, 0, 1, 0, 0], 4)]
)  # fmt: skip
def test_the_busiest_thread_is_that_whose_rows_cover_most_time(chosen, thread):
    """Thread 2 has 0-10 and 5-15, 15 long, thread 4 has 100-116, and 7 has 0-15; with 200-202 thread 2 has most."""
    host = module._HostColumns(
        None,
        None,
        np.array([2, 2, 4, 2, 7], np.int32),
        np.array([0, 5, 100, 200, 0]),
        np.array([10, 10, 16, 2, 15]),
    )
    assert module._find_busiest_thread(host, np.array(chosen, np.bool_)) == thread


def test_an_instant_outside_all_steps_has_no_number(tmp_path):
    trace = load(tmp_path, [step(5, 0, 10), step(6, 20, 30), op("a", 1, 2)])
    steps = find_steps_and_stages(trace).step_rows
    numbers = steps.number_at(steps.ts_ns[0] + 1_000 * np.array([-1, 0, 9, 15, 20, 49, 50]))
    assert numbers.missing.tolist() == [True, False, False, True, False, False, True]
    assert numbers.values[~numbers.missing].tolist() == [5, 5, 6, 6]
