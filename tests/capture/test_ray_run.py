"""capture in a real Ray job: the example, a worker killed while it is profiled, and one that ends in good order.

Needs a Python with Ray and torch (`TRACEKIT_VERL_PYTHON`); without one nothing here is collected.
"""

import json

import pytest
import verl_python

from tracekit import analyze
from tracekit.discover import discover
from tracekit.model.trace import Source, Want
from tracekit.readers import driver_log
from tracekit.readers.loading import load, sniff

DYING = """
import json, os, signal, sys, time
import ray
import capture.ray
from capture import DistProfiler, ProfilerConfig

config = ProfilerConfig(tool="torch", enable=True, all_ranks=True, save_path=sys.argv[1], tool_config={"contents": ["cpu"]})

class Worker:
    def __init__(self, rank):
        import torch
        self.rank, self.torch = rank, torch

    @DistProfiler.annotate(role="actor_update")
    def update(self):
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return float(self.torch.ones(3).sum())

ray.init(num_cpus=3, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
kind = ray.remote(max_restarts=0)(capture.ray.profiled(config, role="actor")(Worker))
workers = [kind.remote(rank) for rank in range(3)]
ray.get([worker.__ray_ready__.remote() for worker in workers])
begun = capture.ray.start(workers, 1, timeout_s=60)
for worker in workers:
    try:
        ray.get(worker.update.remote())
    except ray.exceptions.RayActorError:
        pass
gone = workers.pop()
gone.__ray_terminate__.remote()
start = time.monotonic()
ended = capture.ray.stop(workers, timeout_s=30)
seconds = time.monotonic() - start
for _ in range(100):
    if any("rank2" in name and name.endswith("gz") and name[0] != "." for name in os.listdir(sys.argv[1])):
        break
    time.sleep(0.1)
print(json.dumps([len(begun), [[one.worker, one.problem] for one in ended], seconds]))
ray.shutdown()
"""

# An nsys that only starts what it is given, and a python on the PATH that is not the environment's.
NSYS = """#!/bin/bash
shift
while [ $# -gt 0 ]; do case "$1" in --*) shift;; -?) shift 2;; *) break;; esac; done
exec "$@"
"""
WRONG = """#!/bin/bash
export WRONG_PYTHON=1
exec "$RIGHT_PYTHON" "$@"
"""
BARE = """
import json, os, sys
import ray
from capture.ray import nsight_runtime_env

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")

@ray.remote
def wrong():
    return os.environ.get("WRONG_PYTHON")

nsight = nsight_runtime_env({"t": "cuda"})
path = {"env_vars": {"PATH": os.path.dirname(sys.executable) + ":${PATH}"}}
print(json.dumps([ray.get(wrong.options(runtime_env=env).remote(), timeout=90) for env in (nsight, {**nsight, **path})]))
ray.shutdown()
"""

if verl_python.PYTHON:

    @pytest.mark.slow
    def test_the_path_in_the_warning_has_ray_start_the_right_python_under_nsys(tmp_path):
        for name, text in (("nsys", NSYS), ("python", WRONG)):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        done = verl_python.run(
            "-c", BARE, timeout=180, PATH=f"{tmp_path}:/usr/bin:/bin", RIGHT_PYTHON=str(verl_python.PYTHON)
        )  # fmt: skip
        assert json.loads(done.stdout.splitlines()[-1]) == ["1", None]
        assert f'"env_vars": {{"PATH": "{verl_python.PYTHON.parent}:${{PATH}}"}}' in done.stderr

    @pytest.mark.slow
    def test_the_example_gives_a_profile_of_every_rank_the_times_of_all_steps_and_its_straggler(tmp_path):
        verl_python.run(verl_python.ROOT / "examples" / "ray_cpu.py", tmp_path, timeout=180)
        found = discover(tmp_path / "outputs" / "profile", sniff=sniff)
        traces = [source for source in found.sources if source.reader == "chrome"]
        assert {(s.role, s.rank, s.world_size, s.step) for s in traces} == {
            ("actor-rollout", rank, 3, step) for rank in (0, 1, 2) for step in (2, 3, 4, 5)
        }
        ranges = set(load(traces[0].path)["host_ops"]["name"])
        assert {"rollout_generate", "actor_compute_log_prob", "actor_update", "mini_batch1"} <= ranges
        log = tmp_path / "metrics.jsonl"
        (trace,) = driver_log.read(Source(log, log.name, "driver_log", "log"), Want())
        report = analyze(tmp_path / "outputs" / "profile")
        (straggler,) = [finding for finding in report.findings if finding.rule == "straggler"]
        assert {place.rank for place in straggler.places} == {1}
        times = trace["log_values"]
        assert set(times[times["name"] == "timing_s/update_actor"]["step"]) == set(range(1, 7))

    @pytest.mark.slow
    def test_a_killed_worker_is_named_and_one_that_ray_ends_in_good_order_loses_nothing(tmp_path):
        done = verl_python.run("-c", DYING, tmp_path, timeout=180)
        begun, ended, seconds = json.loads(done.stdout.splitlines()[-1])
        assert begun == 0
        assert [number for number, _ in ended] == [1]
        assert "ActorDied" in ended[0][1]
        assert seconds < 30
        found = discover(tmp_path, sniff=sniff)
        assert sorted(source.rank for source in found.sources) == [0, 2]
        assert [note.message.split(" (")[0] for note in found.notes if note.code == "open"] == ["actor rank 1"]
