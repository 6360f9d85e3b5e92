"""Samples of the CPU, and threads on it and off it, as exports of Nsight Systems have them."""

import contextlib
import random

import nsys_builder as nsys
import pytest

import tracekit
from tracekit.model.errors import TraceFormatError
from tracekit.pipeline.table_reading import Options, query_rows

TABLES = ("host_ops", "cpu_samples", "thread_states", "threads")


def export(tmp_path, *rows, **options):
    """A file with a range of the process that has everything, so that it gets a Trace."""
    every = [row for of_row in rows for row in ([of_row] if isinstance(of_row, tuple) else of_row)]
    options = {"schema": "3.25", "duration_ns": 20_000} | options
    return nsys.write(tmp_path / "a.sqlite", [nsys.nvtx("r", 0, 10), *every], **options)


def loaded(path):
    return tracekit.load(path, tables=TABLES)


def samples(trace):
    """(µs, thread, name, path) of each sample."""
    table = trace["cpu_samples"].astype(object).where(trace["cpu_samples"].notna(), None)
    at = (table["ts_ns"] - nsys.BASE_NS) // 1_000
    return list(zip(at, tids(trace, table), table["name"], table["path"], strict=True))


def states(trace):
    """(start, duration, thread, state) of each interval, in µs."""
    table = trace["thread_states"]
    at = (table["ts_ns"] - nsys.BASE_NS) // 1_000
    return list(zip(at, table["dur_ns"] // 1_000, tids(trace, table), table["state"], strict=True))


def tids(trace, table):
    return [int(trace["threads"]["tid"][thread]) for thread in table["thread"]]


def notes(trace):
    return {note.code: note.count for note in trace.notes}


def test_a_sample_has_its_innermost_function_and_the_path_to_it(tmp_path):
    trace = loaded(
        export(
            tmp_path, nsys.sampled(7, 5_000, "sort", "main"), nsys.sampled(3, 2_000, None, "main"),
            nsys.sampled(4, 3_000, tid=101), nsys.sampled(9, 9_000, "sort", "main", tid=101),
        )
    )  # fmt: skip
    assert samples(trace) == [
        (2, 100, "(libx.so, name unknown)", "main > (libx.so, name unknown)"),
        (3, 101, None, None), (5, 100, "sort", "main > sort"), (9, 101, "sort", "main > sort"),
    ]  # fmt: skip


def test_of_deep_and_long_functions_a_part_is_read(tmp_path):
    names = [f"{depth:02}{'x' * 500}" for depth in range(40)]
    ((_, _, name, path),) = samples(loaded(export(tmp_path, nsys.sampled(1, 1_000, *names))))
    assert name == names[0][:200]
    assert len(path) == 1_000
    assert path.endswith(f" > {name}")


def test_what_the_profiler_says_of_a_stack_is_no_function(tmp_path):
    rows = nsys.sampled(1, 1_000, "f", "[Broken backtraces]", module="[Broken backtraces]")
    rows += nsys.sampled(2, 2_000, None, module="[Unknown]")
    assert samples(loaded(export(tmp_path, rows))) == [
        (1, 100, "f", "f"), (2, 100, None, None),
    ]  # fmt: skip


def test_a_thread_is_off_the_cpu_until_it_enters_it_or_to_the_end_of_the_capture(tmp_path):
    rows = [
        nsys.switch(1_000, True), *nsys.off_cpu(2_000, 5_000, state=7),
        *nsys.off_cpu(6_000, 7_000, state=1), *nsys.off_cpu(8_000, 9_000, state=6),
        nsys.switch(11_000, False, state=2), nsys.switch(3_000, False, state=5, tid=101),
    ]  # fmt: skip
    assert states(loaded(export(tmp_path, rows))) == [
        (2, 3, 100, "waiting"), (6, 1, 100, "ready"), (8, 1, 100, "unknown"), (11, 9, 100, "waiting"),
    ]  # fmt: skip


def test_until_when_a_thread_was_off_the_cpu_is_not_guessed(tmp_path):
    """It left twice, at 2 and at 4: when it entered in between is not known; nor when the capture ended."""
    rows = [
        nsys.switch(2_000, False), nsys.switch(4_000, False), nsys.switch(5_000, True),
        nsys.switch(7_000, False),
    ]  # fmt: skip
    trace = loaded(export(tmp_path, rows, duration_ns=None))
    assert states(trace) == [(4, 1, 100, "unknown")]
    assert notes(trace)["cpu-rows"] == 2


def test_states_are_unknown_in_exports_that_have_none(tmp_path):
    path = export(tmp_path, nsys.off_cpu(2_000, 5_000, state=7), schema="3.11")
    assert states(loaded(path)) == [(2, 3, 100, "unknown")]


@pytest.mark.parametrize(
    ("table", "column", "missing"),
    [
        ("COMPOSITE_EVENTS", "globalTid", "cpu_samples"), ("COMPOSITE_EVENTS", "start", "cpu_samples"),
        ("SCHED_EVENTS", "isSchedIn", "thread_states"), ("SCHED_EVENTS", "start", "thread_states"),
    ],
)  # fmt: skip
def test_a_table_without_a_column_that_it_needs_is_not_read_and_that_is_said(tmp_path, table, column, missing):
    path = export(tmp_path, nsys.sampled(1, 1_000, "f"), nsys.off_cpu(2_000, 3_000))
    nsys.execute(path, f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
    trace = loaded(path)
    assert not trace.has(missing)
    assert [n.data["table"] for n in trace.notes if n.code == "cpu-columns"] == [table]
    assert trace.has(*{"cpu_samples", "thread_states"} - {missing})


@pytest.mark.parametrize("column", ["id", "symbol", "stackDepth"])
def test_samples_without_their_functions_are_samples_all_the_same(tmp_path, column):
    path = export(tmp_path, nsys.sampled(1, 1_000, "f"))
    nsys.execute(path, f"ALTER TABLE SAMPLING_CALLCHAINS RENAME COLUMN {column} TO other")
    assert samples(loaded(path)) == [(1, 100, None, None)]


@pytest.mark.parametrize("value", [None, "x", b"\xff", 2**62, -(2**62), 1.5])
@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("COMPOSITE_EVENTS", name) for name in ("start", "globalTid")),
        *(("SAMPLING_CALLCHAINS", name) for name in ("symbol", "module", "unresolved", "stackDepth")),
        *(("SCHED_EVENTS", name) for name in ("start", "isSchedIn", "globalTid", "threadState")),
    ],
)  # fmt: skip
def test_a_value_of_any_type_costs_at_most_its_rows(tmp_path, table, column, value):
    rows = [nsys.sampled(n, 1_000 * n, "f", "main") for n in (1, 2)]
    path = export(tmp_path, rows[0], rows[1], nsys.off_cpu(3_000, 4_000), nsys.off_cpu(5_000, 6_000))
    nsys.execute(
        path,
        f"CREATE TABLE loose AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE loose RENAME TO {table}",
        (f"UPDATE {table} SET {column} = ? WHERE rowid = 2", (value,)),
    )
    trace = loaded(path)
    assert len(samples(trace)) >= 1
    assert len(states(trace)) >= 1


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_give_traces_or_a_reason(tmp_path, seed):
    """Bytes overwritten anywhere behind the first page, or a cut."""
    rows = [row for n in range(300) for row in nsys.sampled(n, 1_000 * n, f"f{n % 7}", "main")]
    rows += [row for n in range(300) for row in nsys.off_cpu(1_000 * n, 1_000 * n + 500, state=n % 9)]
    path = export(tmp_path, rows, duration_ns=400_000)
    draw, data = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 20, 400))):
        data[draw.randrange(4096, len(data))] = draw.randrange(256)
    path.write_bytes(data[: draw.choice((len(data), draw.randrange(4096, len(data))))])
    with contextlib.suppress(TraceFormatError):
        trace = loaded(path)
        assert len(trace.get_or_empty("cpu_samples")) <= 300
        assert (trace.get_or_empty("thread_states")["dur_ns"] > 0).all()


def test_they_are_read_only_where_they_are_asked_for(tmp_path):
    path = export(tmp_path, nsys.sampled(1, 1_000, "f"), nsys.off_cpu(2_000, 3_000))
    assert not {"cpu_samples", "thread_states"} & {*tracekit.load(path).tables}
    found = query_rows(["cpu_samples", "thread_states"], [str(path)], Options()).tables
    assert [len(rows) for rows in found.values()] == [1, 1]
    assert tracekit.load(path, tables=("cpu_samples",)).source.pid == nsys.PID
