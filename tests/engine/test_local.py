import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

import tracekit
from tracekit.engine import local
from tracekit.model.errors import TracekitError
from tracekit.model.system.capacity import count_cores

EVERYWHERE = pytest.mark.parametrize("where", ["here", "processes"])
ROOT = Path(tracekit.__file__).parents[1]


def collect(*args, **options):
    return list(local.run_locally(*args, **{"jobs": 2, **options}))


@EVERYWHERE
def test_outcomes_come_in_the_order_of_the_sources_whatever_ends_first(work, make_sources, where):
    sources = make_sources("0", "1", "2", "3")
    outcomes = collect(work.name_late_if_first, sources, where=where)
    assert [o.source for o in outcomes] == sources
    assert [o.value for o in outcomes] == ["0", "1", "2", "3"]
    assert all(o.failure is None and not o.stack for o in outcomes)


@EVERYWHERE
def test_no_sources_give_no_outcomes(work, where):
    assert collect(work.name_of, [], where=where) == []


@EVERYWHERE
def test_a_source_that_fails_is_a_failure_and_the_others_go_on(work, make_sources, where):
    sources = make_sources("a", "format.json", "tracekit.json", "value.json", "missing.json", "b")
    first, form, known, value, missing, last = collect(work.fail_if_named, sources, where=where)
    assert (first.value, last.value) == ("a", "b")
    assert (form.failure.source, form.failure.problem) == ("format.json", "byte 7: not a trace")
    assert form.failure.hint == "check the copy"
    assert (known.failure.problem, known.failure.hint) == ("no such thing", "take another")
    assert value.failure.problem.startswith("internal error: ValueError: first line second line")
    assert "\n" not in value.failure.problem
    assert len(value.failure.problem) <= 300
    assert "fail_if_named" in value.stack
    assert missing.failure.problem == "cannot be read: No such file or directory"


@EVERYWHERE
@pytest.mark.parametrize(("jobs", "large", "cores"), [(1, 1, 1), (2, 1, 2), (2, 2, 1), (5, 2, 2)])
def test_large_files_share_the_cores_that_small_ones_leave_free(work, make_sources, where, jobs, large, cores):
    files = [f"large{n}" for n in range(large)]
    sources = make_sources(*files, size_bytes=2**20) + make_sources("a", "b", "c")
    outcomes = collect(work.cores_of, sources, where=where, jobs=jobs)
    assert {outcome.value for outcome in outcomes} == {min(cores, count_cores())}


@EVERYWHERE
def test_readers_have_the_environment_of_the_program_as_it_is_now(work, make_sources, where, monkeypatch):
    monkeypatch.setenv("BEFORE", "1")
    collect(work.environment_of, make_sources("BEFORE", "b"), where=where)
    monkeypatch.setenv("TRACEKIT_TRIED", "now")
    monkeypatch.delenv("BEFORE")
    found = collect(work.environment_of, make_sources("BEFORE", "b"), where=where)
    assert [o.value for o in found] == [("now", None)] * 2


def test_a_function_that_leaves_the_interpreter_fails_alone(work, make_sources):
    left, other = collect(work.fail_if_named, make_sources("exit.json", "a"), where="processes")
    assert left.failure is not None
    assert other.value == "a"


def test_a_killed_worker_costs_its_source_only_after_a_second_try_alone(work, make_sources, tmp_path):
    sources = make_sources("a", "die.json", "b", "c")
    outcomes = collect(work.die_always, sources, where="processes")
    assert [o.value for o in outcomes] == ["a", None, "b", "c"]
    assert "SIGKILL" in outcomes[1].failure.problem
    assert "--jobs 1" in outcomes[1].failure.hint
    assert len(list(tmp_path.glob("die.json.run*"))) == 2
    assert len(list(tmp_path.glob("a.run*"))) == 1


def test_every_killed_worker_is_replaced(work, make_sources):
    names = [f"die{n}" for n in range(5)] + ["a"]
    outcomes = collect(work.die_always, make_sources(*names), where="processes")
    assert [o.failure is None for o in outcomes] == [False] * 5 + [True]


def test_a_source_whose_worker_was_killed_once_succeeds_the_second_time(work, make_sources):
    told = []
    outcomes = collect(work.die_once, make_sources("die", "a"), where="processes", on_progress=told.append)
    assert [o.value for o in outcomes] == ["die", "a"]
    assert (told[-1].files_done, told[-1].bytes_done, told[-1].failure_count) == (2, 200, 0)


def test_a_source_that_ran_out_of_memory_is_tried_again_alone(work, make_sources):
    outcomes = collect(work.no_memory_once, make_sources("big", "a", "b"), where="processes")
    assert [o.value for o in outcomes] == ["big", "a", "b"]


def test_a_source_that_runs_out_of_memory_twice_is_given_up(work, make_sources, tmp_path):
    (outcome,) = collect(work.no_memory, make_sources("big"), where="processes")
    assert outcome.failure.problem == "memory ran out"
    assert len(list(tmp_path.glob("big.run*"))) == 2


def test_a_result_that_cannot_be_sent_is_a_failure(work, make_sources):
    outcomes = collect(work.unsendable, make_sources("a", "b"), where="processes")
    assert all(o.failure.problem.startswith("internal error: ") for o in outcomes)


def test_a_function_that_workers_cannot_import_is_a_failure(monkeypatch, make_sources):
    module = ModuleType("only_here")
    exec("def work(source, advance): return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    (outcome,) = collect(module.work, make_sources("a"), where="processes")
    assert "ModuleNotFoundError" in outcome.failure.problem


def test_no_more_sources_run_at_once_than_jobs(work, make_sources):
    outcomes = collect(work.running_at_once, make_sources(*"abcdef"), where="processes", jobs=2)
    assert max(o.value for o in outcomes) == 2


def test_no_more_sources_run_at_once_than_memory_holds(work, make_sources, monkeypatch):
    monkeypatch.setattr(local, "read_available_memory", lambda: 1000)
    outcomes = collect(work.running_at_once, make_sources(*"abcd"), where="processes", jobs=4, cost_bytes=lambda _: 400)
    assert [o.value for o in outcomes] == [1, 1, 1, 1]


def test_small_files_are_read_in_this_process_and_large_ones_are_not(work, make_sources):
    small = collect(work.pid, make_sources("a", "b", size_bytes=1000))
    large = collect(work.pid, make_sources("a", "b", size_bytes=10_000_000))
    single = collect(work.pid, make_sources("a", size_bytes=10_000_000))
    assert {o.value for o in (*small, *single)} == {os.getpid()}
    assert os.getpid() not in {o.value for o in large}


def test_fewer_than_one_job_is_refused_at_once(work):
    with pytest.raises(TracekitError, match="0 jobs"):
        local.run_locally(work.name_of, [], jobs=0)


@EVERYWHERE
def test_progress_ends_with_every_file_and_byte(work, make_sources, where):
    told = []
    collect(work.name_of, make_sources(*"abc"), where=where, on_progress=told.append)
    assert told[0].files_done == told[0].bytes_done == 0
    assert [p.bytes_done for p in told] == sorted(p.bytes_done for p in told)
    last = told[-1]
    assert (last.files_done, last.file_count, last.bytes_done, last.byte_count) == (3, 3, 300, 300)


def test_a_failed_source_counts_as_done_and_as_failed(work, make_sources):
    told = []
    collect(work.no_memory, make_sources("big"), where="here", on_progress=told.append)
    assert (told[-1].files_done, told[-1].failure_count, told[-1].bytes_done) == (1, 1, 100)


def test_closing_the_iterator_stops_what_still_runs(work, make_sources):
    outcomes = local.run_locally(work.sleep_long, make_sources("0", "1"), jobs=2, where="processes")
    assert next(outcomes).value == "0"
    started = time.monotonic()
    outcomes.close()
    assert time.monotonic() - started < 5
    assert multiprocessing.active_children() == []


def run_script(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(text)
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    return subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


SCRIPT = """
from pathlib import Path
import workloads
from tracekit.engine.local import run_locally
from tracekit.model.trace import Source
print("started", flush=True)
sources = [Source(Path({folder!r}) / n, n, "none") for n in ("0", "1", "2")]
print([o.value for o in run_locally(workloads.{function}, sources, jobs=2, where={where!r})])
"""


@pytest.mark.parametrize("whole_group", [True, False])
@EVERYWHERE
def test_an_interrupt_ends_the_run_within_seconds(tmp_path, where, whole_group):
    text = SCRIPT.format(folder=str(tmp_path), function="sleep_long", where=where)
    process = run_script(tmp_path, text)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("*.begun")) and time.monotonic() < deadline:
        time.sleep(0.05)
    started = time.monotonic()
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - started < 8
    assert process.returncode == -signal.SIGINT
    assert errors.count("KeyboardInterrupt") == 1
    assert errors.count("Traceback") == 1


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    text = SCRIPT.format(folder=str(tmp_path), function="name_of", where="processes")
    output, errors = run_script(tmp_path, text).communicate(timeout=60)
    assert output.splitlines() == ["started", "['0', '1', '2']"]
    assert errors == ""
