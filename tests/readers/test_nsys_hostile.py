"""Exports that are damaged, foreign or hostile: Traces or one line that says why, and nothing left behind."""

import random
import sqlite3

import nsys_builder as nsys
import pytest

from tracekit.model.errors import TraceFormatError
from tracekit.model.trace import Source, Want
from tracekit.readers.nsys import read, sniff


def export(path, count=40, schema="3.25", **options):
    """A file with a little of everything."""
    rows = [
        nsys.metric_name("SM Active", 1), nsys.gpu(), nsys.context(1, 0), nsys.process(),
        nsys.thread("main"), nsys.variable("RANK", "3"), nsys.variable("WORLD_SIZE", "8"),
        nsys.diagnostic("Not all NVTX events might have been collected."), nsys.domain("NCCL", 1),
        nsys.graph(90_000, 90_010), nsys.overhead("flush", 1, 2),
    ]  # fmt: skip
    for i in range(count):
        at = i * 1000
        rows += nsys.launched(f"k{i % 5}<int>(float)", at, at + 500, at + 800, i + 1)
        rows += [
            nsys.nvtx(f"range {i % 3}", at, at + 900), nsys.memcpy(at, at + 20, 64, i + 100),
            nsys.sync(at, at + 30, i + 200), nsys.memory(at, 512, 4096 + i), nsys.metric(at, 1, 5),
            nsys.os_call("poll", at, at + 7),
        ]  # fmt: skip
    return nsys.write(path, rows, schema=schema, duration_ns=count * 1000 + 100_000, **options)


def older(path):
    """What old exporters write: GPU metrics and payloads as JSON, and generic events of another kind."""
    rows = [
        *nsys.generic_source("GpuMetrics", 1, (nsys.METRICS, nsys.METRICS | 1)),
        *nsys.generic_source("FTrace", 2, (77,)),
    ]
    calls = ("ncclGroupStart", "ncclAllReduce", "ncclAllReduce", "ncclGroupEnd")
    for i in range(40):
        at, told = i * 1000, f'{{"NCCL communicator ID": 7, "Message size [bytes]": {i}}}'
        rows += nsys.launched("ncclDevKernel_AllReduce(args)", at, at + 500, at + 800, i + 1)
        rows += [
            nsys.generic(at, {"SM Active": i, "GR Active (GE/CE)": 1}, nsys.METRICS | i % 2),
            nsys.generic(at, {"common_pid": i}, 77),
            nsys.nvtx(calls[i % 4], at, at + 900, jsonText=told if i % 2 else None),
            nsys.nvtx("mine", at, at + 5, jsonTextId=nsys.Text(told)),
        ]
    return nsys.write(path, rows, schema="3.0", duration_ns=100_000)


def traces(path):
    return read(Source(path, path.name, "nsys", "nsys"), Want())


def refused(path):
    """The error that refuses a file: always one line, with one line of advice."""
    with pytest.raises(TraceFormatError) as caught:
        traces(path)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert "\n" not in caught.value.hint
    return caught.value.problem


def beside(path):
    return {p.name: (p.stat().st_size, p.stat().st_mtime_ns) for p in path.parent.iterdir()}


def codes(trace):
    return {note.code for note in trace.notes}


def test_an_empty_file_is_called_so(tmp_path):
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"")
    assert refused(path).startswith("empty file (0 bytes)")


def test_a_git_lfs_pointer_is_called_so(tmp_path):
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    assert refused(path).startswith("Git LFS pointer")


def test_an_interrupted_export_is_called_so(tmp_path):
    path = export(tmp_path / "x.sqlite")
    data = path.read_bytes()
    path.write_bytes(bytes(4096) + data[4096:])
    assert sniff(path.read_bytes()[:65536])
    assert "first page was never written" in refused(path)


@pytest.mark.parametrize("data", [b"SQLite format 3\0", b"SQLite format 3\0" + bytes(60), b"{}", b"\0"])
def test_a_few_bytes_are_no_database(tmp_path, data):
    path = tmp_path / "x.sqlite"
    path.write_bytes(data)
    assert refused(path)


def test_a_database_of_another_program_is_told_from_an_export(tmp_path):
    path = tmp_path / "x.sqlite"
    nsys.execute(path, "CREATE TABLE StringIds (id, value)", "CREATE TABLE visits (url)")
    assert refused(path) == "an SQLite database, but no export of Nsight Systems"


def test_tables_of_other_programs_in_an_export_do_no_harm(tmp_path):
    path = export(tmp_path / "x.sqlite", 3)
    nsys.execute(path, "CREATE TABLE _x (a)", "CREATE INDEX _i ON NVTX_EVENTS (start)")
    (trace,) = traces(path)
    assert len(trace["device_ops"]) == 7


def test_what_is_before_a_cut_is_read_and_the_rest_is_counted(tmp_path):
    path = export(tmp_path / "x.sqlite", 150)
    whole = len(traces(path)[0]["device_ops"])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 7 // 10])
    before = beside(path)
    (trace,) = traces(path)
    assert beside(path) == before
    told = {note.code: note for note in trace.notes}
    assert f"{len(data) - len(data) * 7 // 10:,} of {len(data):,} bytes are missing" in told["opened"].message
    assert told["damaged"].severity == "data_loss"
    rows = sum(len(trace.get_or_empty(name)) for name in ("device_ops", "host_ops", "syncs", "memory_ops"))
    assert rows > 0
    assert len(trace.get_or_empty("device_ops")) <= whole


def test_a_cut_that_leaves_nothing_says_how_much_is_missing(tmp_path):
    path = export(tmp_path / "x.sqlite", 150)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:4096])
    assert f"{size - 4096:,} of {size:,} bytes are missing at its end" in refused(path)


def test_rows_on_both_sides_of_a_damaged_page_are_read(tmp_path):
    rows = [nsys.nvtx(f"range {i % 3}", i * 1000, i * 1000 + 900) for i in range(2000)]
    path = nsys.write(tmp_path / "x.sqlite", rows)
    data = bytearray(path.read_bytes())
    pages = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    leaves = [i for i, page in enumerate(pages) if page[0] == 13 and b"range 1" in page]
    middle = leaves[len(leaves) // 2]
    lost = int.from_bytes(pages[middle][3:5], "big")
    assert lost > 50
    data[middle * 4096 : (middle + 1) * 4096] = bytes(4096)
    path.write_bytes(data)
    (trace,) = traces(path)
    assert len(trace["host_ops"]) == 2000 - lost
    (note,) = [n for n in trace.notes if n.code == "damaged"]
    assert f"{2000 - lost:,} rows were read" in note.message


@pytest.mark.parametrize(
    "name", ["a?b#c%d.sqlite", "new\nline.sqlite", "-rf.sqlite", 'it\'s "x".sqlite', "&mode=rw.sqlite"]
)
def test_hostile_names_of_files_name_that_file_alone(tmp_path, name):
    path = export(tmp_path / name, 2)
    before = beside(path)
    assert len(traces(path)[0]["device_ops"]) == 5
    assert beside(path) == before


def test_nothing_is_written_beside_a_file_with_a_write_ahead_log(tmp_path):
    path = export(tmp_path / "x.sqlite", 2, journal="wal")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL")
    copy = tmp_path / "copy" / "y.sqlite"
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    log = copy.with_name("y.sqlite-wal")
    log.write_bytes(path.with_name("x.sqlite-wal").read_bytes())
    writer.close()
    before = beside(copy)
    (trace,) = traces(copy)
    assert len(trace["device_ops"]) == 7  # two kernels twice, two copies, a graph
    assert beside(copy) == before
    log.unlink()
    (trace,) = traces(copy)
    assert len(trace["device_ops"]) == 5
    assert "opened" in codes(trace)
    assert list(beside(copy)) == ["y.sqlite"]


def test_an_interrupted_writer_is_undone_in_a_copy_and_no_other_file_is_touched(tmp_path):
    path = export(tmp_path / "x.sqlite", 200)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN")
    writer.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start + 7")
    data, journal = path.read_bytes(), path.with_name("x.sqlite-journal").read_bytes()
    writer.execute("ROLLBACK")
    writer.close()
    # What ends a journal of several databases: the name of the file that lists them, which SQLite deletes.
    name = str(victim).encode()
    total = sum(name) & 0xFFFFFFFF
    tail = name + len(name).to_bytes(4, "big") + total.to_bytes(4, "big") + journal[:8]
    copy = tmp_path / "copy" / "y.sqlite"
    copy.parent.mkdir()
    copy.write_bytes(data)
    copy.with_name("y.sqlite-journal").write_bytes(journal + bytes(4) + tail)
    before = beside(copy)
    (trace,) = traces(copy)
    assert trace["device_ops"]["ts_ns"].min() == nsys.BASE_NS
    assert len(trace["device_ops"]) == 401
    assert "opened" in codes(trace)
    assert beside(copy) == before
    assert victim.read_bytes() == b"precious"


def spoil(path, value):
    """Add a row to every table for each of its columns, with this value there and all else as in the last row."""
    loosen = "UPDATE sqlite_master SET sql = replace(replace(sql, ' NOT NULL', ''), ' INTEGER', '')"
    nsys.execute(path, "PRAGMA writable_schema = ON", f"{loosen} WHERE name <> 'StringIds'")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'StringIds'"
    for (table,) in connection.execute(query).fetchall():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        last = connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0]
        for column in columns:
            cells = ", ".join(value if name == column else f'"{name}"' for name in columns)
            connection.execute(f"INSERT INTO {table} SELECT {cells} FROM {table} WHERE rowid = {last}")
    if value != "NULL":
        connection.execute(f"UPDATE StringIds SET value = {value} WHERE value = 'poll'")
    connection.execute("COMMIT")
    connection.close()


WRONG = [
    "NULL",
    "'text'",
    "''",
    "x'00ff'",
    "1.5",
    "9e999",
    "-9e999",
    "9223372036854775807",
    "-9223372036854775808",
    "'1,2'",
    "zeroblob(100000)",
]


@pytest.mark.parametrize("value", WRONG)
def test_a_value_of_the_wrong_kind_in_any_column_costs_at_most_its_row(tmp_path, value):
    path = export(tmp_path / "x.sqlite", 3)
    spoil(path, value)
    found = traces(path)
    kernels = sum(int((t.get_or_empty("device_ops")["kind"] == "kernel").sum()) for t in found)
    assert kernels >= 4
    for trace in found:
        for name, frame in trace.tables.items():
            assert name == "threads" or frame["ts_ns"].is_monotonic_increasing


@pytest.mark.parametrize("value", WRONG)
def test_a_value_of_the_wrong_kind_in_an_old_export_costs_at_most_its_row(tmp_path, value):
    path = older(tmp_path / "x.sqlite")
    spoil(path, value)
    counters = [trace["counters"] for trace in traces(path) if trace.has("counters")]
    # Two metrics a sample; of a source or type told twice the sounder row counts.
    assert sum(map(len, counters)) >= 80


def test_views_triggers_and_computed_columns_are_not_run(tmp_path):
    path = export(tmp_path / "x.sqlite", 2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i"
    nsys.execute(
        path,
        "DROP TABLE NVTX_EVENTS",
        f"CREATE VIEW NVTX_EVENTS AS {endless} AS start, i AS end, 59 AS eventType, 0 AS domainId FROM n",
        "DROP TABLE OSRT_API",
        "CREATE TABLE OSRT_API (start, end, nameId GENERATED ALWAYS AS (1) VIRTUAL)",
        "INSERT INTO OSRT_API VALUES (1, 2)",
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END",
        "CREATE VIRTUAL TABLE GPU_METRICS2 USING fts5(x)",
    )
    (trace,) = traces(path)
    assert len(trace["device_ops"]) == 5
    assert not (trace["host_ops"]["kind"] == "range").any()


def test_a_table_that_refers_to_its_own_pages_ends(tmp_path):
    rows = [nsys.kernel("k", i, i + 1, i) for i in range(1500)]
    path = nsys.write(tmp_path / "x.sqlite", rows)
    connection = sqlite3.connect(path)
    root = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
    ).fetchone()[0]
    connection.close()
    data = bytearray(path.read_bytes())
    at = (root - 1) * 4096
    assert data[at] == 5
    first = data[at + int.from_bytes(data[at + 12 : at + 14], "big") :][:4]
    for place in range(int.from_bytes(data[at + 3 : at + 5], "big")):
        cell = at + int.from_bytes(data[at + 12 + 2 * place : at + 14 + 2 * place], "big")
        data[cell : cell + 4] = first
    path.write_bytes(data)
    (trace,) = traces(path)
    assert len(trace["device_ops"]) < 20_000


def test_a_name_of_a_hundred_megabytes_is_not_read(tmp_path):
    path = export(tmp_path / "x.sqlite", 2)
    nsys.execute(path, "UPDATE StringIds SET value = hex(zeroblob(3000000)) WHERE value LIKE 'k0%'")
    (trace,) = traces(path)
    assert max(map(len, trace["device_ops"]["name"].cat.categories)) == 4096


def test_names_that_are_no_text_are_shown_with_replacement_characters(tmp_path):
    path = export(tmp_path / "x.sqlite", 2)
    nsys.execute(path, "UPDATE StringIds SET value = CAST(x'6bff6b' AS TEXT) WHERE value LIKE 'k0<%'")
    (trace,) = traces(path)
    assert "k\ufffdk" in set(trace["device_ops"]["name"])


def test_a_row_id_that_is_shadowed_hides_the_table_alone(tmp_path):
    path = export(tmp_path / "x.sqlite", 2)
    nsys.execute(
        path,
        "DROP TABLE OSRT_API",
        "CREATE TABLE OSRT_API (start, end, rowid, oid, _rowid_, nameId)",
        "DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start PRIMARY KEY, end) WITHOUT ROWID",
        "DROP TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, rowid, graphId)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (70, 80, 'x', 4)",
    )
    names = [str(n) for trace in traces(path) for n in trace.get_or_empty("device_ops")["name"]]
    assert sorted(names) == ["CUDA graph 4", "k0<int>(float)", "k1<int>(float)"]


def mutated(data, rng):
    """The file with one to thirty things changed as bad disks and bad people do."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        at = rng.randrange(len(data))
        page = at // 4096 * 4096
        kind = rng.randrange(6)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[page + rng.randrange(12)] = rng.randrange(256)
        elif kind == 2:
            other = rng.randrange(len(data) // 4096) * 4096
            data[page : page + 4096] = data[other : other + 4096]
        elif kind == 3:
            data[page : page + 4096] = bytes(4096)
        elif kind == 4:
            data[at : at + 4] = rng.choice((b"\xff" * 4, bytes(4), rng.randbytes(4)))
        elif rng.random() < 0.2 and page:
            del data[page + rng.randrange(4096) :]
            if len(data) % 4096:
                break
    return bytes(data)


def survive(tmp_path, seed, rounds, whole):
    rng, path = random.Random(seed), tmp_path / "mutated.sqlite"
    read_count = 0
    for _ in range(rounds):
        path.write_bytes(mutated(whole, rng))
        try:
            found = traces(path)
        except TraceFormatError as error:
            lines = str(error).splitlines()
        else:
            lines = ["read"]
            read_count += 1
            assert found
        assert len(lines) == 1
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("mutated")] == [path.name]
    # Most of the changes hit one table of many.
    assert read_count > rounds // 3


@pytest.mark.parametrize("seed", range(5))
def test_mutated_files_give_traces_or_one_line(tmp_path, seed):
    made = older if seed % 2 else export
    survive(tmp_path, seed, 4, made(tmp_path / "x.sqlite").read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_thousands_of_mutated_files_give_traces_or_one_line(tmp_path, seed):
    made = older if seed % 2 else export
    survive(tmp_path, seed, 300, made(tmp_path / "x.sqlite").read_bytes())
