"""What only a process of its own can show: imports, pipes, full disks, signals."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chrome_builder import step, write

import tracekit

ROOT = Path(tracekit.__file__).parents[1]
HEAVY = {"pandas", "numpy", "rich", "pyarrow", "multiprocessing"}
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
TRACEKIT = [sys.executable, "-m", "tracekit"]


def run(*args, **options):
    command = [*TRACEKIT, *args]
    return subprocess.run(command, env=ENVIRONMENT, text=True, timeout=60, check=False, **options)


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["analyze", "--help"], ["nope"]])
def test_what_needs_no_data_imports_nothing_heavy(args):
    code = (
        "import sys\n"
        "from tracekit.cli import main\n"
        "try:\n"
        f"    main({args!r})\n"
        "except SystemExit:\n"
        f"    print('heavy:', sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_the_version_is_told_at_once():
    costs = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run("--version", capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert done.stdout == f"tracekit {tracekit.__version__}\n"
    assert min(costs) <= 0.15


@pytest.mark.parametrize("args", [["tables"], ["--help"], ["--version"], ["explain"]])
def test_a_reader_that_leaves_early_is_no_error(args):
    process = subprocess.Popen(
        [*TRACEKIT, *args], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (0, "")


@pytest.mark.parametrize("args", [["tables"], ["--help"], ["--version"]])
def test_a_full_disk_behind_standard_output_is_an_error(args):
    with Path("/dev/full").open("w") as full:
        done = run(*args, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_closed_streams_are_no_error():
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m tracekit tables >&- 2>&-"], env=ENVIRONMENT, timeout=60, check=False
    )
    assert done.returncode == 0


def test_characters_that_the_terminal_lacks_are_no_error():
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*TRACEKIT, "tables", "counters"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("counters ? one row")


STAND_IN = """
from pathlib import Path
from tracekit.pipeline import run as pipeline
from tracekit.cli import main
from tracekit.engine.local import run_locally
from tracekit.model.trace import Source
import workloads

def analyze_uncached(paths, options, discovery):
    folder = Path(paths[0])
    sources = [Source(folder / n, n, "none") for n in ("1", "2")]
    return list(run_locally(workloads.sleep_long, sources, jobs=options.jobs, where="processes"))

pipeline.analyze_uncached = analyze_uncached
main()
"""


@pytest.mark.parametrize("whole_group", [True, False])
@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_ends_a_run_with_its_status_within_seconds(tmp_path, number, status, word, whole_group):
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    engine_tests = str(Path(__file__).parents[1] / "engine")
    process = subprocess.Popen(
        [sys.executable, str(script), "analyze", str(tmp_path), "-j", "2"],
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), engine_tests])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("*.begun"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    started = time.monotonic()
    (os.killpg if whole_group else os.kill)(process.pid, number)
    output, errors = process.communicate(timeout=20)
    assert time.monotonic() - started < 5
    assert process.returncode == status
    assert errors.strip() == f"tracekit: {word}"
    assert output == ""


def test_what_an_export_needs_is_asked_for_before_the_work(call, pipeline, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = call("analyze", "x", "--export", f"parquet={tmp_path / 'tables'}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "tracekit: parquet needs pyarrow",
        "          try: pip install '.[parquet]' (in a checkout of tracekit)",
    ]
    assert pipeline.calls == []


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
def test_processes_that_read_import_no_pandas(tmp_path):
    for rank in (0, 1):
        path = write(tmp_path / f"rank{rank}.json", [step(1, 0, 100 + rank)], rank=rank, world_size=2)
        with path.open("a") as file:
            file.write(" " * 2_000_000)  # too large for one process, and nothing to read
    done = subprocess.run(
        [*TRACEKIT, "analyze", str(tmp_path), "-q"],
        env={**ENVIRONMENT, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert imported.count("numpy") == 1
    assert "pandas" not in imported
    assert "multiprocessing.popen_fork" in imported
