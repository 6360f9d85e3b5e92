"""Two Ray workers profiled by the installed nsys, and their reports analysed by one command.

The Python with Ray and nvtx is $TRACEKIT_RAY_PYTHON, or this one if it has both. nvtx 0.2.12 and later
records nothing under nsys 2024.2 and before: 0.2.11 does.
"""

import json
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import nsys_ray_run
import nsys_tool
import pytest

STEPS = 3
CANONICAL = {"generate_sequences": "gen", "actor_compute_log_prob": "old_log_prob", "actor_update": "update_actor"}


def ray_python():
    """The Python to run Ray with, None where there is none."""
    named = os.environ.get("TRACEKIT_RAY_PYTHON")
    if named:
        return Path(named)
    return Path(sys.executable) if find_spec("ray") and find_spec("nvtx") else None


PYTHON = ray_python()


def capture(program, folder):
    """The folder with one report of each rank and step, as Ray and nsys leave it."""
    places = (program.parent, PYTHON.parent, os.environ["PATH"])
    environment = os.environ | {"PATH": os.pathsep.join(map(str, places)), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [PYTHON, nsys_ray_run.__file__, folder, STEPS]
    done = nsys_tool.run(command, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return Path(done.stdout.splitlines()[-1])


def listing(folder):
    """What a folder holds: names, sizes and times."""
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


if nsys_tool.found() and PYTHON:  # else not even collected: no parameters would count as a skipped test

    @pytest.fixture(scope="module", params=nsys_tool.found(), ids=nsys_tool.version)
    def analysed(request, tmp_path_factory):
        """(the report, all that was printed, the folder before and after) of one command."""
        scratch = tmp_path_factory.mktemp("nsys")
        written = scratch / "report.json"
        environment = os.environ | {"TRACEKIT_NSYS": str(request.param), "TRACEKIT_CACHE": str(scratch / "cache")}
        with tempfile.TemporaryDirectory(prefix="ray") as short:
            reports = capture(request.param, Path(short))
            before = listing(reports)
            command = [Path(sys.executable).with_name("tracekit"), "analyze", reports]
            done = nsys_tool.run([*command, "-o", written], env=environment)
            after = listing(reports)
        assert done.returncode == 0, done.stderr
        text = written.read_text(encoding="utf-8")
        return json.loads(text), done.stdout + done.stderr + text, before, after

    @pytest.mark.slow
    def test_both_ranks_and_their_stages_are_reported(analysed):
        report, _, before, _ = analysed
        assert len(before) == 2 * STEPS
        assert "ranks 0, 1 of 2" in report["identity"]
        assert any(part.startswith("6 files") for part in report["identity"])
        walls = {row[1]: (row[0], row[2], row[4]) for row in report["overview"]["rows"]}
        for stage, milliseconds in nsys_ray_run.STAGES.items():
            role, wall_ns, ranks = walls[CANONICAL[stage]]
            assert (role, ranks) == ("actor_rollout", 2)
            assert milliseconds * 1e6 <= wall_ns < 100e6

    @pytest.mark.slow
    def test_the_reports_are_left_as_they_were_and_the_environment_is_not_told(analysed):
        _, told, before, after = analysed
        assert after == before
        assert nsys_ray_run.SECRET not in told
