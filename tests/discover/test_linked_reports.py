"""A report of nsys says little of whose it is: what its process wrote of itself gives it role, rank and steps."""

import json

import nsys_builder as made
import pytest

from tracekit.discover import discover
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options
from tracekit.readers.loading import sniff

MS = 1_000_000
BASE = made.BASE_NS


def account(folder, *steps, pid=made.PID, rank=3, host=made.HOST, **changes):
    """The manifest of a process that captured these steps: (number, first ms, last ms)."""
    captures = [
        {
            "step": number,
            "scope": "train",
            "start": {"unix_ns": BASE + first * MS, "monotonic_ns": first},
            "stop": None if last is None else {"unix_ns": BASE + last * MS, "monotonic_ns": last},
        }
        for number, first, last in steps
    ]
    written = {
        "schema": "capture/2", "role": "actor-rollout-ref", "rank": rank, "world_size": 8, "host": host,
        "pid": pid, "tool": "nsys", "steps": [number for number, _, _ in steps], "captures": captures, "files": [],
        "asked": {"tool_config": {"discrete": False}}, "status": "closed",
    }  # fmt: skip
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / f"capture_nsys_actor-rollout-ref_rank{rank}_pid{pid}.manifest"
    path.write_text(json.dumps(written | changes))
    return path


def step(first, pid=made.PID):
    """The two stages of a step that begins at this ms, 90 ms in all."""
    return [
        made.nvtx("actor_compute_log_prob", first * MS, (first + 30) * MS, kind=60, pid=pid),
        made.nvtx("actor_update", (first + 40) * MS, (first + 90) * MS, kind=60, pid=pid),
    ]


def steps_of(folder):
    """(role, rank, step, start in ms, length in ms) of all steps that were measured."""
    measured = pipeline.measure(discover(folder, sniff=sniff), Options(jobs=1))
    rows = measured["steps"]
    known = rows.astype(object).where(rows.notna(), None)
    columns = (known[name] for name in ("role", "rank", "step", "ts_ns", "dur_ns"))
    return sorted(
        (role, rank, number, (start - BASE) // MS, length // MS)
        for role, rank, number, start, length in zip(*columns, strict=True)
    )


ACTOR = "actor-rollout-ref"


@pytest.mark.parametrize("name", [f"worker_process_{made.PID}.sqlite", "report.sqlite"])
def test_two_profiled_steps_of_one_report_are_two_steps(tmp_path, name):
    account(tmp_path, (2, 90, 250), (4, 490, 610))
    made.write(tmp_path / name, [*step(100), *step(500)])
    assert steps_of(tmp_path) == [(ACTOR, 3, 2, 100, 90), (ACTOR, 3, 4, 500, 90)]


def test_what_nobody_captured_is_in_no_step(tmp_path):
    account(tmp_path, (2, 90, 250))
    made.write(tmp_path / f"worker_process_{made.PID}.sqlite", [*step(100), *step(500)])
    assert steps_of(tmp_path) == [(ACTOR, 3, 2, 100, 90)]


def test_a_capture_of_several_steps_is_divided_where_its_stages_begin_anew(tmp_path):
    account(tmp_path, (2, 90, 450))
    made.write(tmp_path / f"worker_process_{made.PID}.sqlite", [*step(100), *step(300)])
    assert steps_of(tmp_path) == [(ACTOR, 3, 2, 100, 200), (ACTOR, 3, 3, 300, 90)]


def test_a_process_that_died_in_a_capture_has_that_step(tmp_path):
    account(tmp_path, (2, 90, None), status="open")
    made.write(tmp_path / f"worker_process_{made.PID}.sqlite", step(100))
    assert steps_of(tmp_path) == [(ACTOR, 3, 2, 100, 90)]


def test_each_of_several_ranges_has_its_step(tmp_path):
    account(tmp_path, (2, 90, 250), (4, 490, 610))
    made.write(tmp_path / f"worker_process_{made.PID}.1.sqlite", step(100))
    made.write(tmp_path / f"worker_process_{made.PID}.2.sqlite", step(500))
    assert steps_of(tmp_path) == [(ACTOR, 3, 2, 100, 90), (ACTOR, 3, 4, 500, 90)]


def test_every_process_of_one_report_has_its_own(tmp_path):
    other = made.PID + 1
    account(tmp_path, (2, 90, 250))
    account(tmp_path, (2, 90, 260), pid=other, rank=4, role="critic")
    made.write(tmp_path / "node.sqlite", [*step(100), *step(110, other)])
    assert steps_of(tmp_path) == [(ACTOR, 3, 2, 100, 90), ("critic", 4, 2, 110, 90)]


def test_a_driver_that_says_nothing_has_the_steps_of_its_workers_and_no_other(tmp_path):
    account(tmp_path, (2, 90, 250), (4, 490, 610))
    account(tmp_path, (2, 80, 240), (4, 480, 640), pid=made.PID + 1, rank=4)
    driver = made.PID + 2
    rows = [
        made.nvtx(name, first * MS, last * MS, kind=60, pid=driver)
        for name, first, last in (("gen", 5, 60), ("update_actor", 85, 230), ("adv", 300, 400), ("gen", 481, 600))
    ]  # fmt: skip
    made.write(tmp_path / f"worker_process_{driver}.sqlite", rows)
    assert steps_of(tmp_path) == [(None, None, 2, 85, 145), (None, None, 4, 481, 119)]
    stages = pipeline.measure(discover(tmp_path, sniff=sniff), Options(jobs=1))["stages"]
    assert [*zip(stages["step"], stages["stage"], strict=True)] == [(2, "update_actor"), (4, "gen")]


def test_a_process_that_did_nothing_meanwhile_has_no_step(tmp_path):
    account(tmp_path, (2, 90, 250))
    rows = [made.nvtx("loading", 0, 50 * MS, kind=60, pid=made.PID + 2)]
    made.write(tmp_path / f"worker_process_{made.PID + 2}.sqlite", rows)
    assert steps_of(tmp_path) == []


def test_the_account_of_a_process_of_another_host_is_anothers(tmp_path):
    account(tmp_path, (2, 90, 250), host="elsewhere")
    made.write(tmp_path / f"worker_process_{made.PID}.sqlite", step(100))
    ((role, rank, number, _, _),) = steps_of(tmp_path)
    assert (role, rank, number) == (None, None, None)


def test_by_name_alone_a_report_has_rank_and_role_before_it_is_read(tmp_path):
    account(tmp_path, (2, 90, 250))
    made.write(tmp_path / f"worker_process_{made.PID}.sqlite", step(100))
    (source,) = discover(tmp_path, sniff=sniff).sources
    assert (source.role, source.rank, source.world_size, source.step) == (ACTOR, 3, 8, 2)


def test_a_report_without_a_clock_is_one_step_all_the_same(tmp_path):
    account(tmp_path, (2, 90, 250), (4, 490, 610))
    rows = [*step(100), *step(500)]
    made.write(tmp_path / f"worker_process_{made.PID}.sqlite", rows, utc_ns=None)
    measured = pipeline.measure(discover(tmp_path, sniff=sniff), Options(jobs=1))
    # Divided by its stages, and which steps they are cannot be told.
    assert measured["steps"]["step"].isna().tolist() == [True, True]


def test_what_the_program_numbers_within_a_captured_step_is_a_piece_of_it(tmp_path):
    account(tmp_path, (2, 90, 250), (4, 490, 610))
    rows = [*step(100), *step(500), made.nvtx("step 7", 95 * MS, 195 * MS)]
    made.write(tmp_path / f"worker_process_{made.PID}.sqlite", rows)
    assert [row[2] for row in steps_of(tmp_path)] == [2, 4]
