"""Exports are read alike by Python's own SQLite and by apsw, which is quicker."""

import nsys_builder as nsys
import pandas as pd
import pytest

from tracekit.model.trace import Source, Want
from tracekit.readers import nsys as reader
from tracekit.readers.nsys.sqlite import connection as nsys_connection
from tracekit.readers.nsys.sqlite.connection import fetch_one_row, open_export


@pytest.fixture
def export(tmp_path):
    rows = [
        nsys.nvtx("gen", 0, 9_000_000), nsys.nvtx("Grüße", 10, 20, registered=True), nsys.gpu(0),
        nsys.memcpy(100, 200, 4096, 7), nsys.memory(5, 512, 0x100),
        *(row for n in range(1, 300) for row in nsys.launched(f"kernel {n % 7}", n * 1000, n * 1000 + 300, n * 1000 + 900, n)),
    ]  # fmt: skip
    return nsys.write(tmp_path / "x.sqlite", rows, duration_ns=10_000_000)


def read(path, **want):
    return reader.read(Source(path, "x", "nsys", "nsys"), Want(**want))


def test_both_libraries_give_the_same_trace(export, monkeypatch):
    with open_export(export) as db:
        assert db.quick is not None
    (quick,) = read(export)
    monkeypatch.setattr(nsys_connection, "apsw", None)
    with open_export(export) as db:
        assert db.quick is None
    (plain,) = read(export)
    assert quick.tables.keys() == plain.tables.keys()
    for name, frame in quick.tables.items():
        pd.testing.assert_frame_equal(frame, plain[name])
    assert (quick.notes, quick.meta, quick.source) == (plain.notes, plain.meta, plain.source)


@pytest.mark.parametrize("damage", [
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = x'ff' WHERE rowid = 5",
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET \"end\" = 'later' WHERE rowid = 6",
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 1e300 WHERE rowid = 7",
])  # fmt: skip
def test_what_is_no_number_is_told_alike(export, monkeypatch, damage):
    nsys.execute(export, damage)
    (quick,) = read(export)
    monkeypatch.setattr(nsys_connection, "apsw", None)
    (plain,) = read(export)
    pd.testing.assert_frame_equal(quick["device_ops"], plain["device_ops"])
    assert quick.notes == plain.notes


def test_the_quicker_library_may_not_run_for_ever_either(export):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(nsys_connection.TraceFormatError, match="interrupted"), open_export(export) as db:
        fetch_one_row(db, endless)


def test_columns_that_nobody_needs_are_not_read_and_the_others_are_whole(export):
    (every,) = read(export, tables=frozenset({"device_ops"}))
    (some,) = read(export, tables=frozenset({"device_ops"}), columns=frozenset({"device"}))
    ops = some["device_ops"]
    assert ops[["stream", "correlation", "size_bytes"]].isna().all(axis=None)
    same = ["id", "ts_ns", "dur_ns", "name", "kind", "device"]
    pd.testing.assert_frame_equal(ops[same], every["device_ops"][same])
