"""What travels from workers and how it is put together: the same rows, whichever way they came."""

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from columns import columns_of

from tracekit.analyses import ANALYSES
from tracekit.model import tables
from tracekit.model.tables import KEYS, TABLES, Column, Table, concatenate_table_parts
from tracekit.model.tables.arrays import Columns, Keyed
from tracekit.model.trace import KEY_KINDS, KeyLabels, Source
from tracekit.pipeline.measure_source import measure_trace
from tracekit.pipeline.wire_format.worker_tables import MeasuredSource
from tracekit.readers.loading import load

EXAMPLE = "examples/simulated_gpu/outputs/profile/simulated_rank{}.pt.trace.json.gz"
OPS = Table(
    "ops",
    "a few rows with texts, a closed set, and numbers that may be missing",
    {
        "name": Column("category", "Any text."),
        "kind": Column("category", "Of a closed set.", ("kernel", "copy")),
        "ts_ns": Column("int64", "A number."),
        "stream": Column("Int64", "A number that may be missing."),
        "share": Column("Float64", "Another."),
    },
)


SOURCE = Source(Path("a.json"), "a.json", "chrome")


def ops(names, kinds, values, streams):
    shares = [None if stream is None else stream / 10 for stream in streams]
    columns = {"name": names, "kind": kinds, "ts_ns": values, "stream": streams, "share": shares}
    return OPS.cast(columns)


@pytest.fixture
def parts():
    first = ops(["a", None], ["kernel", "copy"], [1, 2], [7, None])
    second = ops(["c", "a", "b"], ["kernel"] * 3, [3, 4, 5], [None, 8, 9])
    return [first, OPS.cast(), second]


def test_rows_are_the_same_when_their_columns_have_travelled(parts):
    joined = concatenate_table_parts(OPS, pickle.loads(pickle.dumps(parts))).frame()
    OPS.check(joined)
    assert joined["name"].astype(object).where(joined["name"].notna(), None).tolist() == ["a", None, "c", "a", "b"]
    assert joined["kind"].tolist() == ["kernel", "copy", "kernel", "kernel", "kernel"]
    assert joined["ts_ns"].tolist() == [1, 2, 3, 4, 5]
    assert joined["stream"].tolist() == [7, pd.NA, pd.NA, 8, 9]
    assert joined["share"].tolist() == [0.7, pd.NA, pd.NA, 0.8, 0.9]
    pd.testing.assert_frame_equal(joined, concatenate_table_parts(OPS, parts).frame())
    pd.testing.assert_frame_equal(columns_of(joined).frame(), joined)


def test_one_part_alone_and_one_without_rows_are_as_they_were(parts):
    assert concatenate_table_parts(OPS, parts[:1]) is parts[0]
    assert concatenate_table_parts(OPS, [OPS.cast()]).frame().equals(OPS.empty())


def test_only_the_rows_that_are_asked_for_are_kept(parts):
    rows = parts[2].where(np.array([True, False, True])).frame()
    assert rows["name"].tolist() == ["c", "b"]
    assert rows["stream"].tolist() == [pd.NA, 9]


def test_texts_that_are_missing_stay_missing_and_codes_are_narrow(parts):
    many = ops([f"name {at}" for at in range(300)], ["kernel"] * 300, [*range(300)], [1] * 300)
    joined = concatenate_table_parts(OPS, [parts[0], many]).frame()
    assert joined["name"].tolist()[-1] == "name 299"
    assert joined["name"].array.codes.dtype == np.int16
    assert joined["name"].isna().tolist() == [False, True] + [False] * 300


def test_a_measured_source_travels_as_columns_and_nothing_of_it_is_lost(request):
    root = request.config.rootpath
    parts = [measure_trace(load(root / EXAMPLE.format(rank)), ANALYSES) for rank in (0, 1)]
    there = [pickle.loads(pickle.dumps(part)) for part in parts]
    for here, came in zip(parts, there, strict=True):
        assert isinstance(came, MeasuredSource)
        assert (came.source, came.notes, came.versions) == (here.source, here.notes, here.versions)
        assert (came.simulated, came.options) == (here.simulated, here.options)
        assert came.faults == here.faults
        assert {id_: set(of) for id_, of in came.tables.items()} == {id_: set(of) for id_, of in here.tables.items()}
    for id_, of in parts[0].tables.items():
        for name in of:
            came = concatenate_table_parts(TABLES[name], [part.tables[id_][name] for part in there])
            apart = concatenate_table_parts(TABLES[name], [part.tables[id_][name] for part in parts])
            assert isinstance(came, Columns)
            pd.testing.assert_frame_equal(came.frame(), apart.frame())


@pytest.fixture
def registered(monkeypatch):
    """A registered table with key columns."""
    table = Table("mine", "a row of a test", {**KEYS, **OPS.columns})
    monkeypatch.setitem(tables._BY_NAME, table.name, table)
    return table


def ranked(rank):
    return KeyLabels(dataclasses.replace(SOURCE, rank=rank)).values


@pytest.mark.parametrize(
    ("sources", "is_made", "ranks"),
    [
        pytest.param(((ranked(3), 3),), False, [3, 3, 3], id="of the source itself"),
        pytest.param(((ranked(3), 1), (ranked(4), 2)), False, [3, 4, 4], id="of two sources"),
        pytest.param(((ranked(5), 3),), True, [5, 5, 5], id="as columns"),
    ],
)
def test_key_columns_travel_and_what_travelled_can_be_written_to(parts, registered, sources, is_made, ranks):
    keyed = Keyed(KEY_KINDS, sources, dict(parts[2].arrays))
    given = Columns(3, {**keyed} if is_made else keyed)
    source = dataclasses.replace(SOURCE, rank=3)
    part = MeasuredSource(source, {"own": {"mine": given}}, (), {"CUDA": "13"}, simulated=True)
    after = pickle.loads(pickle.dumps(part))
    assert dataclasses.replace(after, tables={}) == dataclasses.replace(part, tables={})
    came = after.tables["own"]["mine"]
    registered.fits(came)
    pd.testing.assert_frame_equal(came.frame(), given.frame())
    assert came.frame()["rank"].tolist() == ranks
    came.arrays["ts_ns"][0] = 9
    assert came.arrays["ts_ns"].tolist() == [9, 4, 5]
    assert given.arrays["ts_ns"].tolist() == [3, 4, 5]
