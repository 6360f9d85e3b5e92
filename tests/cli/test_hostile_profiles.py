"""No profile harms the whole command: reading, every question, and every form of the report."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import long_names
import pytest
from snapshot_references import references, small

MOST_MB, MOST_TIMES_FILE, MOST_SECONDS = 100, 30, 10.0
OUTPUTS = ("html", "md", "json", "txt", "tkm", "csv", "prom")

PROGRAM = textwrap.dedent(
    """
    import json, os, resource, sys
    from pathlib import Path
    import tracekit.analyses, tracekit.pipeline, tracekit.readers.torch_memory, tracekit.render
    from tracekit.cli import main

    def taken(path, folder):
        out = Path(folder, "out")
        asked = [f"-o{out}.{kind}" for kind in ("html", "md", "json", "txt")]
        exports = ["--export", f"csv={out}.csv", "--export", f"openmetrics={out}.prom"]
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
            resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.argv = ["tracekit", "analyze", str(path), "-q", "-j1", "--save", f"{out}.tkm", *asked, *exports]
            try:
                main()
            except SystemExit as end:
                os._exit(end.code or 0)
        _, status, usage = os.wait4(child, 0)
        sizes = [file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()]
        seconds = usage.ru_utime + usage.ru_stime
        return status, usage.ru_maxrss * 1024 / 1e6, seconds, sum(sizes) / 1e6, len(sizes)

    tracekit.analyses.ANALYSES
    results = {}
    for path in sorted(Path(sys.argv[1]).iterdir()):
        folder = Path(sys.argv[2], path.name)
        folder.mkdir()
        results[path.name] = taken(path, folder)
    print(json.dumps(results))
    """
)


def outcomes_of(profiles, outputs):
    """(exit status, peak MB, CPU seconds, MB written, files written) of analysing each file of a folder."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, profiles, outputs],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    profiles, outputs = tmp_path_factory.mktemp("profiles"), tmp_path_factory.mktemp("outputs")
    for name, data in {"small": small(), **references()}.items():
        (profiles / f"{name}.pickle").write_bytes(data)
    return outcomes_of(profiles, outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", references())
def test_the_whole_command_takes_little_for_what_is_referred_to_often(name, outcomes):
    status, megabytes, seconds, written_mb, files = outcomes[f"{name}.pickle"]
    _, idle_megabytes, _, _, least_files = outcomes["small.pickle"]
    size_mb = len(references()[name]) / 1e6
    assert status == 0
    assert files >= min(least_files, len(OUTPUTS))
    assert megabytes - idle_megabytes < MOST_TIMES_FILE * size_mb + MOST_MB
    assert seconds < MOST_SECONDS
    assert written_mb < 2 + size_mb


@pytest.fixture(scope="module")
def outcomes_of_long_names(tmp_path_factory):
    """The outcomes, and the unpacked size of each file in MB."""
    profiles, outputs = tmp_path_factory.mktemp("profiles"), tmp_path_factory.mktemp("outputs")
    (profiles / "small.pickle").write_bytes(small())
    sizes = {name: make(profiles / name) / 1e6 for name, make in long_names.MADE.items()}
    return outcomes_of(profiles, outputs), sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", long_names.MADE)
def test_the_whole_command_takes_little_for_long_names(name, outcomes_of_long_names):
    outcomes, sizes = outcomes_of_long_names
    status, megabytes, seconds, written_mb, _ = outcomes[name]
    packed_times = 2 if name.endswith(".gz") else MOST_TIMES_FILE
    assert status == 0
    assert megabytes - outcomes["small.pickle"][1] < packed_times * sizes[name] + MOST_MB
    assert seconds < MOST_SECONDS
    assert written_mb < 12
