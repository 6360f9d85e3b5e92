"""verl's own PPO trainer, with its own profiler and with capture in its place: what it learns, and what is profiled.

Collected where a Python has verl (`TRACEKIT_VERL_PYTHON`, or this one). What of verl cannot run without a GPU
is replaced by `examples/verl_on_cpu.py`, alike in both runs.
"""

import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import nsys_tool
import pytest
import verl_python

from capture.trigger import trigger
from tracekit.pipeline import analyze
from tracekit.pipeline.comparing import compare_paths
from tracekit.readers.loading import load

PROGRAM = Path(__file__).parents[2] / "examples" / "make_verl_ppo.py"
UNLIKE = re.compile(r"_pid\d+(_\d{17})?")
TIMES, OF_THE_MACHINE = ("timing_", "perf/"), ("/mfu", "/perf/cpu_memory_used")
STEPS, PROFILED = 5, [2, 4]
OPTIONS = "global_profiler.global_tool_config.nsys.worker_nsight_options"
NSYS = (
    "global_profiler.tool=nsys",
    "trainer.device=cuda",  # verl starts the workers of no other under nsys
    f"{OPTIONS}.trace=nvtx",
    f"~{OPTIONS}.cuda-memory-usage",
    f"~{OPTIONS}.cuda-graph-trace",
    f"{OPTIONS}.capture-range=nvtx",
    f"+{OPTIONS}.nvtx-capture=training_step",
    f"{OPTIONS}.capture-range-end=repeat-shutdown:{len(PROFILED)}",
    f'+{OPTIONS}.env-var="NSYS_NVTX_PROFILER_REGISTER_ONLY=0"',
    f"+{OPTIONS}.sample=none",
    f"+{OPTIONS}.cpuctxsw=none",
)


def metrics(folder):
    """What the trainer logged of each step, without times and what is made of them."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [
        {
            name: value
            for name, value in line["data"].items()
            if not name.startswith(TIMES) and not any(part in name for part in OF_THE_MACHINE)
        }
        for line in lines
    ]


def written(folder):
    """The files of the profile, without process and time."""
    paths = (folder / "profile").iterdir()
    return sorted(UNLIKE.sub("", path.name) for path in paths if path.is_file())


if verl_python.PYTHON:

    @pytest.fixture(scope="module")
    def runs(tmp_path_factory):
        """The folders of both runs, by the modules that verl was told to import."""
        made = {}
        for modules in ("", "capture.verl"):
            folder = tmp_path_factory.mktemp("ppo")
            verl_python.run(PROGRAM, folder, timeout=400, VERL_USE_EXTERNAL_MODULES=modules)
            made[modules] = folder
        return made

    @pytest.mark.slow
    def test_the_switch_changes_nothing_that_is_learned(runs):
        verls, captures = (metrics(folder) for folder in runs.values())
        assert len(verls) == STEPS
        assert {"actor/loss", "critic/loss", "actor/kl_loss"} <= verls[0].keys()
        assert captures == verls

    @pytest.mark.slow
    def test_the_same_files_are_written_and_a_manifest_for_every_worker(runs):
        names = [name for name in written(runs["capture.verl"]) if name.endswith(".gz")]
        assert names == written(runs[""])
        assert names == [
            f"actor-rollout-ref_train_step{step}_rank{rank}-of-2.json.gz" for step in PROFILED for rank in (0, 1)
        ]
        assert sorted(set(written(runs["capture.verl"])) - set(names)) == [
            f"capture_torch_{role}_rank{rank}.manifest"
            for role in ("actor-rollout-ref", "value-model")
            for rank in (0, 1)
        ]

    @pytest.mark.slow
    def test_the_same_ranges_are_in_the_traces(runs):
        def ranges(folder):
            (path,) = (folder / "profile").glob("*step2_rank0*.gz")
            host = load(path)["host_ops"]
            names = host["name"][(host["kind"] == "range").to_numpy()].astype(str)
            return Counter(name for name in names if not name.startswith(("gloo", "gc ")))

        verls, captures = map(ranges, runs.values())
        assert captures == verls
        stages = {"actor_compute_log_prob", "ref_compute_log_prob", "actor_update", "train_batch"}
        assert stages <= verls.keys()

    @pytest.mark.slow
    def test_analyze_knows_roles_ranks_and_steps(runs):
        for folder in runs.values():
            report = analyze(folder / "profile")
            assert "ranks 0, 1 of 2" in report.identity
            assert "actor-rollout-ref" in report.identity
            assert "steps 2, 4" in report.identity
            stages = {row[1] for row in report.overview.rows}
            assert {"update_actor", "update_critic", "old_log_prob", "ref"} <= stages
        comparison = compare_paths(*([folder / "profile"] for folder in runs.values())).comparison
        assert comparison.verdict != "not comparable"


# `make test-verls`: a third run takes too long for every change.
if verl_python.PYTHON and "TRACEKIT_VERLS" in os.environ:

    @pytest.mark.slow
    def test_a_run_that_profiles_nothing_is_profiled_on_demand_at_one_step(tmp_path):
        run = subprocess.Popen(
            [verl_python.PYTHON, PROGRAM, tmp_path, "global_profiler.tool=null", "global_profiler.steps=null"],
            env=verl_python.environment(VERL_USE_EXTERNAL_MODULES="capture.verl"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        log, until = tmp_path / "metrics.jsonl", time.monotonic() + 200
        while not (log.exists() and log.read_text()) and time.monotonic() < until:
            time.sleep(0.1)
        trigger(tmp_path / "profile", ranks=None, contents=["cpu"])
        assert run.wait(timeout=400) == 0
        names = [name for name in written(tmp_path) if name.endswith(".gz")]
        (step,) = {re.search(r"step(\d+)", name)[1] for name in names}
        assert names == [f"actor-rollout-ref_train_step{step}_rank{rank}-of-2.json.gz" for rank in (0, 1)]
        assert len(metrics(tmp_path)) == STEPS

    if nsys_tool.found():

        @pytest.mark.slow
        def test_reports_of_nsys_have_the_roles_ranks_and_steps_of_the_workers(tmp_path):
            places = (nsys_tool.found()[0].parent, verl_python.PYTHON.parent, os.environ["PATH"])
            # A short path, as Ray opens sockets in it; of two nsys that start in the same instant one often fails.
            with tempfile.TemporaryDirectory(prefix="ray") as short:
                verl_python.run(
                    *(PROGRAM, tmp_path, *NSYS, f"+ray_kwargs.ray_init._temp_dir={short}"),
                    timeout=400,
                    PATH=os.pathsep.join(map(str, places)),
                    VERL_USE_EXTERNAL_MODULES="capture.verl",
                )
                reports = Path(short, "session_latest", "logs", "nsight")
                assert len([*reports.glob("*.nsys-rep")]) == 2 * len(PROFILED)
                report = analyze(reports)
            assert "ranks 0, 1 of 2" in report.identity
            assert "actor-rollout-ref" in report.identity
            assert "steps 2, 4" in report.identity
            stages = {row[1] for row in report.overview.rows}
            assert {"update_actor", "update_critic", "old_log_prob", "ref"} == stages
