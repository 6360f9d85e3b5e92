"""Whose the processes of an Nsight Systems export are, and that nothing else of the environment is ever read."""

import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from nsys_builder import PID, captured, launched, nvtx, system, variable, write

from tracekit.model.trace import Source, Want
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.readers import nsys
from tracekit.readers.nsys import identity as nsys_identity
from tracekit.readers.nsys.identity import ProcessIdentity, identify_processes, read_allowed_environment
from tracekit.readers.nsys.sqlite.connection import open_export
from tracekit.render import RENDERERS, RenderOptions

SECRET = "hf_abcdefSECRET"
SECRETS = {
    "HF_TOKEN": SECRET,
    "RANK_TOKEN": SECRET,
    "MY_RANK": SECRET,
    "WANDB_API_KEY": SECRET,
    "PASS": f"a;b RANKS=1 {SECRET}",
}
REAL = os.environ.get("TRACEKIT_REAL_DATA")


@pytest.fixture
def database(tmp_path):
    """A function: the export of these rows, opened."""
    open_files = []

    def make(rows, schema="3.11", **more):
        path = write(tmp_path / f"{len(open_files)}.sqlite", rows, schema=schema, **more)
        manager = open_export(path)
        open_files.append(manager)
        return manager.__enter__()

    yield make
    for manager in open_files:
        manager.__exit__(None, None, None)


def agent(separator, **values):
    return system("DeviceEnvironment", separator.join(f"{k}={v}" for k, v in values.items()))


def alone(db, pid=PID, **more):
    return identify_processes(db, [pid], **more)[pid]


def test_one_process_is_what_its_environment_says(database):
    rows = [variable("RANK", "3"), variable("WORLD_SIZE", "8"), variable("WG_PREFIX", "actor_rollout"),
            variable("WG_BACKEND", "fsdp")]  # fmt: skip
    found = alone(database(rows))
    assert found == ProcessIdentity("node-a", 3, 8, "actor_rollout", "fsdp", "the variable RANK")
    assert nsys_identity.note_rank_rules({PID: found}) == []
    assert nsys_identity.make_identity_facts(found, 7) == {
        "rank": 3, "world_size": 8, "host": "node-a", "pid": 7,
    }  # fmt: skip


@pytest.mark.parametrize("separator", [";", "\0"])
def test_old_captures_hold_the_environment_as_one_text(database, separator):
    db = database([agent(separator, HOME="/root", LOCAL_RANK=1, RANK=5, WORLD_SIZE=6, PATH="/bin")], schema="3.0")
    assert read_allowed_environment(db) == {"LOCAL_RANK": "1", "RANK": "5", "WORLD_SIZE": "6"}


@pytest.mark.parametrize("text", ["RANK=5", "A=1;RANK=5", "RANK=5;A=1", "XRANK=4;RANK=5;RANKS=6"])
def test_a_variable_is_found_first_last_and_alone(database, text):
    assert read_allowed_environment(database([system("DeviceEnvironment", text)])) == {"RANK": "5"}


@pytest.mark.parametrize(
    "text",
    ["RANK=5;A=x;RANK=6", "LOCAL=RANK=5", "RANK=", "RANK=five", "RANK=-1", "RANK=" + "1" * 80, "rank=5", ""],
)  # fmt: skip
def test_what_may_be_no_rank_is_none(database, text):
    assert alone(database([system("DeviceEnvironment", text)])).rank is None


def test_the_settings_of_the_capture_count_before_the_environment_of_its_agent(database):
    db = database([variable("RANK", "2"), agent(";", RANK=0, WORLD_SIZE=4)])
    assert (alone(db).rank, alone(db).world_size) == (2, 4)


def test_values_that_contradict_each_other_are_unknown(database):
    assert alone(database([variable("RANK", "2"), variable("RANK", "3", process=1)])).rank is None
    assert alone(database([variable("RANK", "9"), variable("WORLD_SIZE", "8")])).rank is None


def test_slurm_tells_the_rank_of_a_task_but_not_of_a_worker_that_ray_started(database):
    rows = [variable("SLURM_PROCID", "4"), variable("SLURM_NTASKS", "16")]
    assert (alone(database(rows)).rank, alone(database(rows)).world_size) == (4, 16)
    in_ray = alone(database([*rows, variable("RAY_JOB_ID", "01000000")]))
    assert (in_ray.rank, in_ray.world_size) == (None, None)


def test_a_random_prefix_of_a_worker_group_is_no_role(database):
    assert alone(database([variable("WG_PREFIX", "kgVFqS")])).role is None
    assert alone(database([variable("WG_PREFIX", "<b>actor</b>")])).role is None
    assert alone(database([variable("WG_PREFIX", "critic")])).role == "critic"


def launcher(*arguments):
    return [captured(f"PROCESS_0:ARGUMENT_{i}", text) for i, text in enumerate(arguments)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (launcher("--nnodes=1", "--nproc_per_node=2"), [(0, 2), (1, 2)]),
        (launcher("--nproc-per-node", "2", "train.py"), [(0, 2), (1, 2)]),
        (launcher("--nnodes=4", "--nproc_per_node=2", "--node_rank=3"), [(6, 8), (7, 8)]),
        (launcher("--nnodes", "4", "--nproc_per_node", "2"), [(None, None)] * 2),
        (launcher("--nnodes=1:4", "--nproc_per_node=2"), [(None, None)] * 2),
        (launcher("--nproc_per_node=4"), [(None, None)] * 2),
        ([variable("WORLD_SIZE", "2")], [(0, 2), (1, 2)]),
        ([variable("WORLD_SIZE", "16")], [(None, None)] * 2),
        ([variable("WORLD_SIZE", "16"), variable("LOCAL_WORLD_SIZE", "2"), variable("GROUP_RANK", "5")],
         [(10, 16), (11, 16)]),
        ([variable("LOCAL_WORLD_SIZE", "2")], [(None, None)] * 2),
        ([variable("RANK", "0")], [(None, None)] * 2),
    ],
)  # fmt: skip
def test_ranks_of_several_processes_are_told_by_their_order_only_where_all_of_a_node_are_there(
    database, rows, expected
):
    found = identify_processes(database(rows), [31, 30])
    assert [(found[pid].rank, found[pid].world_size) for pid in (30, 31)] == expected
    (note,) = nsys_identity.note_rank_rules(found)
    assert ("order of the process ids" if expected[0][0] is not None else "nothing in it tells") in note.message


def test_the_launcher_beside_its_workers_is_no_rank(database):
    db = database(launcher("--nproc_per_node=2"))
    found = identify_processes(db, [9, 30, 31], on_gpu=[30, 31])
    assert [found[pid].rank for pid in (9, 30, 31)] == [None, 0, 1]


def test_nccl_says_more_than_the_order_of_processes(database):
    db = database(launcher("--nproc_per_node=2"))
    found = identify_processes(db, [30, 31], {30: (1, 2), 31: (0, 2)})
    assert [(found[pid].rank, found[pid].world_size) for pid in (30, 31)] == [(1, 2), (0, 2)]
    same = identify_processes(db, [30, 31], {30: (0, 2), 31: (0, 2)})
    assert [same[pid].rank for pid in (30, 31)] == [0, 1]


class Watched:
    """A connection that keeps every value that leaves it."""

    def __init__(self, connection):
        self.connection, self.seen = connection, []

    def execute(self, sql, parameters=()):
        rows = self.connection.execute(sql, parameters).fetchall()
        self.seen += [value for row in rows for value in row]
        return iter(rows)


@pytest.mark.parametrize("schema", ["3.0", "3.11", "3.25"])
def test_no_value_of_any_other_variable_leaves_the_database(database, schema):
    settings = [variable(name, value) for name, value in {**SECRETS, "RANK": "1"}.items()]
    rows = [
        *(settings if schema != "3.0" else []),
        agent("\0" if schema == "3.0" else ";", **SECRETS, RANK="1", WORLD_SIZE="2"),
        *([captured("PROCESS_0:ARGUMENT_0", f"--token={SECRET}")] if schema != "3.0" else []),
    ]
    db = database(rows, schema=schema)
    watched = Watched(db.connection)
    found = identify_processes(replace(db, connection=watched), [PID], {})
    assert found[PID].rank == 1
    assert watched.seen
    assert not any(SECRET in str(value) for value in watched.seen)
    assert not any("HF_TOKEN" in str(value) for value in watched.seen)
    assert SECRET not in repr(found)


@pytest.fixture
def telling(tmp_path):
    """The path of an export that is full of secrets."""
    rows = [variable(name, value) for name, value in {**SECRETS, "RANK": "1", "WORLD_SIZE": "2"}.items()]
    rows += [agent(";", **SECRETS, RANK="1"), captured("PROCESS_0:ARGUMENT_0", f"--token={SECRET}"),
             captured("PROCESS_0:WORKING_DIR", f"/home/{SECRET}"), captured("PROCESS_0:USER_NAME", SECRET),
             nvtx("update_actor", 10, 90), *launched("gemm", 20, 40, 60, 1)]  # fmt: skip
    exported = {"EXPORT_USER": SECRET, "EXPORT_PARAM_INPUT_PATH_ABS": f"/home/{SECRET}/x.nsys-rep"}
    path = tmp_path / "in" / "worker_process_100.sqlite"
    return write(path, rows, schema="3.25", exported=exported.items())


def test_no_byte_of_the_environment_is_in_a_trace(telling):
    (trace,) = nsys.read(Source(telling, telling.name, "nsys", "nsys"), Want())
    assert trace.source.rank == 1
    shown = [repr(trace), repr(trace.meta), repr(trace.notes), *map(repr, trace.sparse.values())]
    shown += [frame.to_csv() for frame in trace.tables.values()]
    assert not any(SECRET in text or "HF_TOKEN" in text for text in shown)


@pytest.mark.slow
def test_no_byte_of_the_environment_is_in_a_report_or_what_is_saved(telling, tmp_path):
    reported = pipeline.analyze_uncached([telling.parent], pipeline.Options(jobs=1))
    shown = [repr(one.render(reported.report, RenderOptions())) for one in RENDERERS]
    saved_measurements.save(reported.measurements, tmp_path / "saved.tkm")
    with zipfile.ZipFile(tmp_path / "saved.tkm") as archive:
        shown += [repr(archive.read(name)) for name in archive.namelist()]
    assert len(shown) > len(RENDERERS) + 5
    assert not any(SECRET in text or "HF_TOKEN" in text for text in shown)


@pytest.mark.skipif(REAL is None, reason="no real data")
def test_real_workers_of_ray_are_told_apart():
    for folder, pids in (("ray_steps", {24151: 0, 24231: 1}), ("ray_whole", {24701: 0, 24799: 1})):
        files = sorted((Path(REAL) / "nsys/real_cpu" / folder).glob("*.sqlite"))
        assert files
        for file in files:
            pid = int(file.name.split("_")[2].split(".")[0])
            with open_export(file) as db:
                found = alone(db, pid)
            assert (found.rank, found.world_size, found.host) == (pids[pid], 2, "vm")


@pytest.mark.skipif(REAL is None, reason="no real data")
@pytest.mark.parametrize("year", ["22", "23", "24"])
def test_every_version_of_nsys_tells_the_rank(year):
    with open_export(Path(REAL) / f"nsys/real_cpu/steps_nsys{year}.sqlite") as db:
        assert (alone(db).rank, alone(db).world_size) == (0, 1)
    with open_export(Path(REAL) / f"nsys/real_cpu/spawn_nsys{year}.sqlite") as db:
        # Three processes under one environment that says WORLD_SIZE=1: nobody knows.
        assert {one.rank for one in identify_processes(db, [1, 2, 3]).values()} == {None}
