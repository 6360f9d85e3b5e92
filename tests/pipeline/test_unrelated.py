"""Files of one directory that share no process, time, world or process group are runs of their own, and that is said."""

import json
import os
import shutil
from pathlib import Path

import pytest
from chrome_builder import BASE_NS, HOST_PID, launched, op, step, write

from tracekit.pipeline import saved
from tracekit.pipeline.run import Options, analyze
from tracekit.render import render

QUESTIONS = ("gpu-time", "kernels", "steps")
REAL = Path(os.environ.get("TRACEKIT_REAL_DATA", "")) / "chrome" / "tracelens"
HOUR = 3600 * 10**9
real = pytest.mark.skipif(
    "TRACEKIT_REAL_DATA" not in os.environ, reason="TRACEKIT_REAL_DATA names no real profiles"
)


def put(path, pid, start_ns, step_us=100, **meta):
    """A trace of one process with one step, which began so late (None: on a clock without an epoch)."""
    rows = [step(1, 0, step_us), op("aten::mm", 5, 10), *launched("gemm", 6, 20, 10, 1)]
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
        put(
            tmp_path / "models" / f"{name}.json",
            1000 + number,
            HOUR * (1 + number),
            100 * 4**number,
        )
    return tmp_path / "models"


def test_three_models_in_a_folder_are_three_runs_and_the_first_screen_says_so(models):
    result = analyze(models, Options(questions=QUESTIONS))
    assert runs_of(result) == {name: [f"{name}.json"] for name in ("bert", "llama", "owl")}
    assert [(m.label, m.value) for m in result.report.headline] == [
        ("step of llama", 1_600_000), ("step of owl", 400_000), ("step of bert", 100_000),
    ]  # fmt: skip
    assert "3 runs" in result.report.identity
    for kind in ("text", "md", "html", "json"):
        assert "3 files of models share no process, time, world" in render(
            result.report, kind, width=120
        )
    for table in result.measurements.tables:
        frame = result.measurements[table]
        pairs = set(zip(frame["source"].astype(str), frame["run"].astype(str), strict=True))
        assert pairs <= {(f"{name}.json", name) for name in ("bert", "owl", "llama")}, table


def test_a_label_makes_them_one_run(models):
    result = analyze(f"all={models}", Options(questions=QUESTIONS))
    assert list(runs_of(result)) == ["all"]
    assert not any("share no process" in text for text in result.report.cautions)


def test_what_was_saved_says_so_too(models, tmp_path):
    result = analyze(models, Options(questions=QUESTIONS))
    saved.save(result.measurements, tmp_path / "a.tkm")
    assert (
        analyze(tmp_path / "a.tkm", Options(questions=QUESTIONS)).report.headline
        == result.report.headline
    )


TOGETHER = {
    "one process at two times": [(7, HOUR, {}), (7, 2 * HOUR, {})],
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
    assert list(runs_of(analyze(tmp_path / "run", Options(questions=QUESTIONS)))) == ["run"]


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
    assert list(runs_of(analyze(tmp_path / "run", Options(questions=QUESTIONS)))) == ["run"]


def test_two_worlds_of_one_rank_each_are_two_runs(tmp_path):
    for number in (0, 1):
        path = tmp_path / "run" / f"{'ab'[number]}.json"
        put(path, 7 + number, HOUR * (1 + number), 100 + number, rank=0, world_size=1)
    assert list(runs_of(analyze(tmp_path / "run", Options(questions=QUESTIONS)))) == ["a", "b"]


def test_one_that_belongs_to_none_of_those_with_names_leaves_them_as_they_are(tmp_path):
    for rank in (0, 1):
        put(
            tmp_path / "run" / f"rank{rank}.json",
            7 + rank,
            HOUR,
            100 + rank,
            rank=rank,
            world_size=2,
        )
    put(tmp_path / "run" / "other.json", 90, 9 * HOUR, 300)
    assert runs_of(analyze(tmp_path / "run", Options(questions=QUESTIONS))) == {
        "other": ["other.json"],
        "run": ["rank0.json", "rank1.json"],
    }


@real
def test_real_captures_of_two_inference_engines_are_two_runs(tmp_path):
    for name in ("vllm_decode_full/graph_execution", "sglang_decode/sglang_Qwen3-8B_decode"):
        shutil.copy(REAL / "inference" / f"{name}.json.gz", tmp_path)
    result = analyze(tmp_path, Options(questions=QUESTIONS))
    assert list(runs_of(result)) == ["graph_execution", "sglang_Qwen3-8B_decode"]
    cautions = json.loads(render(result.report, "json"))["cautions"]
    assert len([text for text in cautions if "share no process" in text]) == 1
