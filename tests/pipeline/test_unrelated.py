"""Files of one directory that share no process, time, world or process group, or are of two launches, are runs of their own, and that is said."""

import json
import os
import shutil
from pathlib import Path

import pytest
from chrome_builder import BASE_NS, HOST_PID, annotation, launched, op, step, write

from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.render import render

QUESTIONS = ("gpu-time", "kernels", "steps")
REAL = Path(os.environ.get("TRACEKIT_REAL_DATA", "")) / "chrome" / "tracelens"
HOUR = 3600 * 10**9
real = pytest.mark.skipif("TRACEKIT_REAL_DATA" not in os.environ, reason="TRACEKIT_REAL_DATA names no real profiles")


def put(path, pid, start_ns, step_us=100, number=1, **meta):
    """A trace of one process with one step, which began so late (None: on a clock without an epoch)."""
    rows = [step(number, 0, step_us), op("aten::mm", 5, 10), *launched("gemm", 6, 20, 10, 1)]
    rows = [{**row, "pid": pid} if row["pid"] == HOST_PID else row for row in rows]
    return write(path, rows, base_ns=None if start_ns is None else BASE_NS + start_ns, **meta)


def runs_of(result):
    runs = {}
    for source in result.measurements.sources:
        runs.setdefault(source.run, []).append(source.name)
    return runs


@pytest.fixture
def models(tmp_path):
    """Three models, profiled one after the other."""
    for number, name in enumerate(("bert", "owl", "llama")):
        put(tmp_path / "models" / f"{name}.json", 1000 + number, HOUR * (1 + number), 100 * 4**number)
    return tmp_path / "models"


def test_three_models_in_a_folder_are_three_runs_and_the_first_screen_says_so(models):
    result = analyze_uncached(models, Options(questions=QUESTIONS))
    assert runs_of(result) == {name: [f"{name}.json"] for name in ("bert", "llama", "owl")}
    assert [(m.label, m.value) for m in result.report.headline] == [
        ("step of llama", 1_600_000), ("step of owl", 400_000), ("step of bert", 100_000),
    ]  # fmt: skip
    assert "3 runs" in result.report.identity
    for kind in ("text", "md", "html", "json"):
        assert "3 files of models share no process, time, world" in render(result.report, kind, width=120)
    for table in result.measurements.tables:
        frame = result.measurements[table]
        pairs = set(zip(frame["source"].astype(str), frame["run"].astype(str), strict=True))
        assert pairs <= {(f"{name}.json", name) for name in ("bert", "owl", "llama")}, table


def test_a_label_makes_them_one_run(models):
    result = analyze_uncached(f"all={models}", Options(questions=QUESTIONS))
    assert list(runs_of(result)) == ["all"]
    assert not any("share no process" in text for text in result.report.cautions)


def test_what_was_saved_says_so_too(models, tmp_path):
    result = analyze_uncached(models, Options(questions=QUESTIONS))
    saved_measurements.save(result.measurements, tmp_path / "a.tkm")
    assert analyze_uncached(tmp_path / "a.tkm", Options(questions=QUESTIONS)).report.headline == result.report.headline


TOGETHER = {
    "one process at two times": [(7, HOUR, {}), (7, 2 * HOUR, {"number": 2})],
    "two processes at one time": [(7, HOUR, {}), (8, HOUR + 50_000, {})],
    "a world, its ranks at different times": [
        (7, HOUR, {"rank": 0, "world_size": 2}),
        (8, 2 * HOUR, {"rank": 1, "world_size": 2}),
    ],
    "no clock": [(7, None, {}), (8, None, {})],
}


@pytest.mark.parametrize("files", TOGETHER.values(), ids=TOGETHER)
def test_files_that_share_something_or_of_which_nothing_is_known_are_one_run(tmp_path, files):
    for name, (pid, start_ns, meta) in zip("ab", files, strict=True):
        put(tmp_path / "run" / f"{name}.json", pid, start_ns, 100 + ord(name), **meta)
    assert list(runs_of(analyze_uncached(tmp_path / "run", Options(questions=QUESTIONS)))) == ["run"]


@pytest.mark.parametrize(
    "names",
    [
        ("rank0.json", "rank1.json"),
        ("actor_step1_rank0.json", "actor_step2_rank0.json"),
        ("actor_update/a.json", "ref_compute_log_prob/a.json"),
    ],
)
def test_files_whose_names_say_whose_they_are_stay_one_run_at_whatever_times(tmp_path, names):
    for number, name in enumerate(names):
        put(tmp_path / "run" / name, 7 + number, HOUR * (1 + number), 100 + number)
    assert list(runs_of(analyze_uncached(tmp_path / "run", Options(questions=QUESTIONS)))) == ["run"]


def test_two_worlds_of_one_rank_each_are_two_runs(tmp_path):
    for number in (0, 1):
        path = tmp_path / "run" / f"{'ab'[number]}.json"
        put(path, 7 + number, HOUR * (1 + number), 100 + number, rank=0, world_size=1)
    assert list(runs_of(analyze_uncached(tmp_path / "run", Options(questions=QUESTIONS)))) == ["a", "b"]


def test_one_that_belongs_to_none_of_those_with_names_leaves_them_as_they_are(tmp_path):
    for rank in (0, 1):
        put(tmp_path / "run" / f"rank{rank}.json", 7 + rank, HOUR, 100 + rank, rank=rank, world_size=2)
    put(tmp_path / "run" / "other.json", 90, 9 * HOUR, 300)
    assert runs_of(analyze_uncached(tmp_path / "run", Options(questions=QUESTIONS))) == {
        "other": ["other.json"],
        "run": ["rank0.json", "rank1.json"],
    }


@real
def test_real_captures_of_two_inference_engines_are_two_runs(tmp_path):
    for name in ("vllm_decode_full/graph_execution", "sglang_decode/sglang_Qwen3-8B_decode"):
        shutil.copy(REAL / "inference" / f"{name}.json.gz", tmp_path)
    result = analyze_uncached(tmp_path, Options(questions=QUESTIONS))
    assert list(runs_of(result)) == ["graph_execution", "sglang_Qwen3-8B_decode"]
    cautions = json.loads(render(result.report, "json"))["cautions"]
    assert len([text for text in cautions if "share no process" in text]) == 1


def stage_file(path, pid, start_ns, *stages, number=1, **meta):
    """A trace of one process with these stages in one step."""
    rows = [step(number, 0, 100), op("aten::mm", 5, 10), *launched("gemm", 6, 20, 10, 1)]
    rows += [annotation(name, 1 + 20 * place, 15) for place, name in enumerate(stages)]
    rows = [{**row, "pid": pid} if row["pid"] == HOST_PID else row for row in rows]
    return write(path, rows, base_ns=BASE_NS + start_ns, **meta)


def caution_of(result):
    return [text for text in result.report.cautions if "shown as" in text]


SECOND = 10**9


def test_before_and_after_of_one_program_are_two_runs_and_the_screen_says_which_rank_shows_it(tmp_path):
    for place, when in enumerate(("before", "after")):
        for rank in (0, 1):
            start_ns = HOUR * (1 + place) + rank * 10_000
            stage_file(
                tmp_path / "run" / f"{when}_{'ab'[rank]}.json", 144 + 4 * place + rank, start_ns, rank=rank, world_size=2
            )  # fmt: skip
    result = analyze_uncached(tmp_path / "run", Options(questions=QUESTIONS))
    assert sorted(runs_of(result).values()) == [["after_a.json", "after_b.json"], ["before_a.json", "before_b.json"]]
    (caution,) = caution_of(result)
    assert "rank 0 is pid 144, and 3,600 s later pid 148" in caution


@pytest.mark.parametrize(
    "names",
    [
        ("train_pid7.json", "train_pid8.json"),
        ("train_rank0_pid7_20261120080000000.json", "train_rank0_pid8_20261120090000000.json"),
    ],
)
def test_names_do_not_make_one_run_of_two_launches(tmp_path, names):
    for place, name in enumerate(names):
        stage_file(tmp_path / "run" / name, 7 + place, HOUR * (1 + place), rank=0)
    runs = runs_of(analyze_uncached(tmp_path / "run", Options(questions=QUESTIONS)))
    assert list(runs) == ["run", "run#2"]


ROLES = ("rollout_generate", "actor_update")


@pytest.mark.parametrize(
    "files",
    [
        # Two roles of rank 0 take turns, a step each; the pause between them is long.
        [(7, 0, ROLES[0], 1), (8, 30, ROLES[1], 1)],
        [(7, 0, ROLES[0], 1), (8, 30, ROLES[1], 1), (7, 60, ROLES[0], 2), (8, 90, ROLES[1], 2)],
        # One process, a file a stage.
        [(7, 0, ROLES[0], 1), (7, 30, "ref_compute_log_prob", 1), (7, 60, ROLES[1], 1)],
        # An engine that marks no stages, beside the trainer.
        [(7, 0, None, 1), (8, 30, ROLES[1], 1)],
        # They take turns in every step, which they mark alike.
        [(7, 0, None, 1), (8, 30, None, 1), (7, 60, None, 2), (8, 90, None, 2)],
        # Sooner than a process can be launched.
        [(7, 0, None, 1), (8, 0.9, None, 1)],
        # Killed, and gone on with from a checkpoint.
        [(7, 0, None, 10), (8, 300, None, 11)],
    ],
    ids=["one turn each", "two turns each", "discrete", "engine", "alike", "at once", "restart"],
)
@pytest.mark.parametrize("name", ["capture{n}.json", "capture{n}_pid{pid}.json"])
def test_roles_that_take_turns_and_jobs_that_go_on_stay_one_run(tmp_path, files, name):
    for place, (pid, start_s, stage, number) in enumerate(files):
        stage_file(
            tmp_path / "run" / name.format(n=place, pid=pid), pid, int(HOUR + start_s * SECOND),
            *filter(None, [stage]), number=number, rank=0, world_size=2,
        )  # fmt: skip
    result = analyze_uncached(tmp_path / "run", Options(questions=QUESTIONS))
    assert list(runs_of(result)) == ["run"]
    assert caution_of(result) == []


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        (("before.json", "after.json"), ["after", "before"]),
        (("rank0.json", "opt_rank0.json"), ["run", "run#2"]),
        (("rank0_pid1_20261120080000000.json", "rank0_pid1_20261120090000000.json"), ["run"]),
    ],
)
def test_a_pid_that_passes_its_steps_again_is_of_another_launch(tmp_path, names, runs):
    """As in containers, where every program is process 1; steps of one number would be taken for one."""
    for place, name in enumerate(names):
        stage_file(tmp_path / "run" / name, 1, HOUR * (1 + place), "actor_update", rank=0)
    result = analyze_uncached(tmp_path / "run", Options(questions=QUESTIONS))
    assert sorted(runs_of(result)) == runs
    assert [text for text in caution_of(result) if "hold the same steps twice (rank 0 passes step 1 again 3,600 s later)" in text] == caution_of(result)  # fmt: skip
    assert len(caution_of(result)) == len(runs) - 1


def test_a_job_that_begins_its_steps_anew_after_it_was_killed_is_a_run_of_its_own(tmp_path):
    for place, pid in enumerate((7, 8)):
        for number in (1, 2):
            path = tmp_path / "run" / f"part{number}_pid{pid}.json"
            stage_file(path, pid, HOUR * (1 + place) + number * SECOND, "actor_update", number=number, rank=0)  # fmt: skip
    assert [len(names) for names in runs_of(analyze_uncached(tmp_path / "run")).values()] == [2, 2]


@pytest.mark.parametrize(("hosts", "runs"), [(("a", "a"), 2), (("a", "b"), 1)])
def test_of_unknown_ranks_only_the_same_step_on_one_machine_is_another_launch(tmp_path, hosts, runs):
    for place, host in enumerate(hosts):
        path = tmp_path / "run" / f"host={host}" / f"trace_pid{7 + place}.json"
        stage_file(path, 7 + place, HOUR * (1 + place))
    assert len(runs_of(analyze_uncached(tmp_path / "run", Options(questions=QUESTIONS)))) == runs


def test_several_launches_of_ranks_that_were_captured_one_after_the_other_are_sorted_out(tmp_path):
    for launch in (0, 1):
        for rank in (0, 1):
            path = tmp_path / "run" / f"launch{launch}_{'ab'[rank]}.json"
            start_ns = HOUR * (1 + launch) + rank * 60 * SECOND
            stage_file(path, 10 * launch + rank, start_ns, rank=rank, world_size=2)
    assert sorted(runs_of(analyze_uncached(tmp_path / "run", Options(questions=QUESTIONS))).values()) == [
        ["launch0_a.json", "launch0_b.json"],
        ["launch1_a.json", "launch1_b.json"],
    ]


@real
def test_a_real_pair_of_before_and_after_is_two_runs():
    """Ranks 0 and 1 are pids 144 and 145, and 80 minutes later 148 and 149; each capture is of 0.3 s."""
    result = analyze_uncached(REAL.parents[1] / "nsys" / "GindaChen_nsys-ai", Options(questions=QUESTIONS))
    captures = result.measurements["captures"]
    assert {
        run: sorted(rows["pid"]) for run, rows in captures.groupby("run", observed=True) if rows["rank"].notna().any()
    } == {"mfu_2gpu_before": [144, 145], "mfu_2gpu_after": [148, 149]}  # fmt: skip
    assert max(wall.value for wall in result.report.headline if "mfu" in wall.label) < SECOND
