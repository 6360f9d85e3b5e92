"""capture with the real torch, Ray and verl: in verl's worker groups, in a process that dies, at the end of one.

Needs a Python that has them: `TRACEKIT_VERL_PYTHON`. Without one nothing here is collected.
"""

import json
import re
import shutil
import signal
import subprocess

import pytest
import verl_group_modes as modes
import verl_python

from tracekit.discover import discover
from tracekit.readers.loading import load, sniff

UNLIKE = re.compile(r"_pid\d+_\d{17}")

STEPS = """
import os, signal, sys
from capture import DistProfiler, ProfilerConfig

class Worker:
    def __init__(self, rank, folder):
        config = ProfilerConfig(tool="torch", enable=True, all_ranks=True, save_path=folder, tool_config={"contents": ["cpu"]})
        self.profiler = DistProfiler(rank, config, save_file_prefix="actor")

    @DistProfiler.annotate(role="actor_update")
    def update(self):
        import torch
        return torch.ones(3).sum()
"""


def named(folder):
    """The traces below a folder, without process and time."""
    return sorted(UNLIKE.sub("", str(path.relative_to(folder))) for path in folder.rglob("*.gz"))


if verl_python.PYTHON:

    @pytest.fixture(scope="module")
    def groups(tmp_path_factory):
        """What verl's worker groups wrote, by who profiled them."""
        folder = tmp_path_factory.mktemp("groups")
        verl_python.run(modes.PROGRAM, folder)
        return folder

    @pytest.mark.slow
    @pytest.mark.parametrize("who", ["target", "capture"])
    def test_in_verls_worker_group_the_files_are_verls(groups, who):
        expected = named(groups / "verl")
        assert len(expected) == 4 + 8 + 12
        assert named(groups / who) == expected

    @pytest.mark.slow
    @pytest.mark.parametrize("mode", modes.MODES)
    def test_tracekit_reads_role_rank_step_and_stages_of_them(groups, mode):
        found = discover(groups / "capture" / mode, sniff=sniff)
        assert {(s.role, s.rank, s.world_size, s.step) for s in found.sources} == {
            ("actor-rollout-ref", rank, 2, step) for rank in (0, 1) for step in modes.STEPS
        }
        assert {note.severity for source in found.sources for note in source.notes} == {"info"}
        stages = {"ref_compute_log_prob", "actor_update"}
        if mode == "step":
            ranges = load(found.sources[0].path)["host_ops"]["name"]
            assert stages <= set(ranges)
        else:
            assert {source.scope for source in found.sources} == stages

    @pytest.mark.slow
    @pytest.mark.parametrize("who", ["target", "capture"])
    @pytest.mark.parametrize("mode", modes.MODES)
    def test_the_report_has_role_ranks_steps_and_stages(groups, tmp_path, call, who, mode):
        written = tmp_path / "report.json"
        done = call("analyze", groups / who / mode, "-q", "-o", written)
        assert done.exit_code == 0, done.output
        report = json.loads(written.read_text(encoding="utf-8"))
        steps = ", ".join(map(str, modes.STEPS))
        assert {"ranks 0, 1 of 2", "actor-rollout-ref", f"steps {steps}"} <= set(report["identity"])
        rows = {(row[0], row[1], row[4]) for row in report["overview"]["rows"]}
        assert rows == {("actor-rollout-ref", stage, 2) for stage in ("ref", "update_actor")}

    @pytest.mark.slow
    def test_a_trace_that_nobody_stopped_is_written_when_the_process_ends(tmp_path):
        code = STEPS + (
            "worker = Worker(0, sys.argv[1])\nworker.profiler.start(role='train', profile_step=1)\nworker.update()\n"
        )
        verl_python.run("-c", code, tmp_path)
        (source,) = discover(tmp_path, sniff=sniff).sources
        assert (source.role, source.rank, source.step) == ("actor", 0, 1)
        assert "actor_update" in set(load(source.path)["host_ops"]["name"])

    @pytest.mark.slow
    def test_a_killed_process_leaves_its_manifest_and_no_half_trace(tmp_path):
        code = STEPS + (
            "for rank in (0, 1):\n"
            "    worker = Worker(rank, sys.argv[1])\n"
            "    worker.profiler.start(role='train', profile_step=1)\n"
            "    worker.update()\n"
            "    if rank:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    worker.profiler.stop()\n"
        )
        done = verl_python.run("-c", code, tmp_path, check=False)
        assert done.returncode == -signal.SIGKILL
        found = discover(tmp_path, sniff=sniff)
        assert [source.rank for source in found.sources] == [0]
        assert [note.message.split(" (")[0] for note in found.notes if note.code == "open"] == ["actor rank 1"]

    @pytest.mark.slow
    @pytest.mark.parametrize("limit", [100_000, 4_000])
    def test_without_room_for_a_trace_the_training_goes_on_and_later_ones_are_whole(tmp_path, limit):
        code = STEPS + (
            "import resource\n"
            "soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
            "worker = Worker(0, sys.argv[1])\n"
            "for step in (1, 2):\n"
            "    size = int(sys.argv[2]) if step == 1 else soft\n"
            "    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))\n"
            "    worker.profiler.start(role='train', profile_step=step)\n"
            "    assert [float(worker.update()) for _ in range(500)] == [3.0] * 500\n"
            "    worker.profiler.stop()\n"
        )
        verl_python.run("-c", code, tmp_path, limit)
        assert [source.step for source in discover(tmp_path, sniff=sniff).sources] == [2]
        assert list(tmp_path.glob(".*")) == []

    FULL = """
import gzip, os, sys
from pathlib import Path
from {whose} import DistProfiler
from {configs} import ProfilerConfig, TorchProfilerToolConfig
import torch

folder = Path(sys.argv[1])

class Worker:
    def __init__(self):
        tool = TorchProfilerToolConfig(contents=["cpu"])
        config = ProfilerConfig(tool="torch", enable=True, all_ranks=True, save_path=str(folder), tool_config=tool)
        self.profiler = DistProfiler(0, config, tool, save_file_prefix="actor")

    @DistProfiler.annotate(role="actor_update")
    def update(self):
        return float(torch.ones(3).sum())

worker, filler = Worker(), folder / "filler"
for step in (1, 2):
    if step == 1:
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(512)):
                    pass
            except OSError:
                pass
    else:
        filler.unlink()
    worker.profiler.start(role="train", profile_step=step)
    assert [worker.update() for _ in range(50)] == [3.0] * 50
    worker.profiler.stop()
(path,) = folder.glob("*.gz")
assert "_step2_" in path.name and b"actor_update" in gzip.open(path).read(), path
print("whole")
"""

    def on_a_small_disk(folder, whose, configs):
        """The finished program, with a file system of 64 KiB for its profiles."""
        program = FULL.format(whose=whose, configs=configs)
        mounted = 'mount -t tmpfs -o size=64k tmpfs "$1" && exec "$2" -c "$3" "$1"'
        command = ["unshare", "-r", "-m", "sh", "-c", mounted, "-", folder]
        return subprocess.run(
            [*command, verl_python.PYTHON, program],
            capture_output=True,
            text=True,
            timeout=200,
            env=verl_python.environment(),
            check=False,
        )


def may_mount():
    """Whether this user may have file systems of its own; where not, the test with a limit of file size remains."""
    if not verl_python.PYTHON or shutil.which("unshare") is None:
        return False
    command = ["unshare", "-r", "-m", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if may_mount():

    @pytest.mark.slow
    def test_a_full_disk_ends_training_under_verl_and_costs_a_trace_under_capture(tmp_path):
        ours = on_a_small_disk(tmp_path, "capture", "capture")
        assert (ours.returncode, ours.stdout.strip()) == (0, "whole"), ours.stderr[-3000:]
        assert "the training goes on" in ours.stderr or "was not written" in ours.stderr
        theirs = on_a_small_disk(tmp_path, "verl.utils.profiler", "verl.utils.profiler.config")
        assert theirs.returncode == 1
        assert "OSError" in theirs.stderr
