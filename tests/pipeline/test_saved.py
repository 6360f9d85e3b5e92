import contextlib
import io
import json
import math
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.inputs.facts import Facts
from tracekit.model.inputs.note_codes import Data
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns, Nullable
from tracekit.model.trace import Failure, Measurements, Note, Source
from tracekit.pipeline.cache import saved_measurements

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NUMBERS = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": INT64,
    "Int64": st.one_of(st.none(), INT64),
    "Float64": st.one_of(st.none(), st.floats(allow_nan=False)),
    "bool": st.booleans(),
}
FORM = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)


def values_of(column):
    if column.dtype != "category":
        return NUMBERS[column.dtype]
    return st.sampled_from(column.values) if column.values else st.one_of(st.none(), TEXT)


@st.composite
def frames(draw, name):
    table = TABLES[name]
    rows = draw(st.integers(0, 5))
    data = {}
    for column_name, column in table.columns.items():
        values = draw(st.lists(values_of(column), min_size=rows, max_size=rows))
        if column.dtype in ("Int64", "Float64"):
            values = [pd.NA if value is None else value for value in values]
        data[column_name] = values
    return table.cast(data, rows)


NOTES = st.builds(
    Note,
    st.sampled_from(["info", "warning", "data_loss", "error"]),
    TEXT,
    TEXT,
    TEXT,
    st.integers(0, 2**63 - 1),
    st.one_of(st.none(), INT64),
)
MAYBE_TEXT, MAYBE_NUMBER = st.one_of(st.none(), TEXT), st.one_of(st.none(), INT64)
SOURCES = st.builds(
    Source,
    path=st.just(Path("/home/someone/secret/x.json")),
    name=TEXT,
    reader=TEXT,
    tool=st.sampled_from(["torch", "nsys", "torch_memory", "log"]),
    run=TEXT,
    role=MAYBE_TEXT,
    scope=MAYBE_TEXT,
    step=MAYBE_NUMBER,
    rank=MAYBE_NUMBER,
    world_size=MAYBE_NUMBER,
    replica=MAYBE_NUMBER,
    topology=MAYBE_TEXT,
    part=MAYBE_TEXT,
    host=MAYBE_TEXT,
    pid=MAYBE_NUMBER,
    size_bytes=st.integers(0, 2**63 - 1),
    notes=st.lists(NOTES, max_size=2).map(tuple),
)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
BY_NAME = st.dictionaries(TEXT, TEXT, max_size=3)
FACTS = st.builds(
    Facts,
    title=TEXT,
    versions=BY_NAME,
    options=BY_NAME,
    ignored=TEXTS,
    files=st.dictionaries(TEXT, INT64, max_size=3),
    simulated=st.booleans(),
    stages=TEXTS,
    questions=st.none() | TEXTS.filter(len),
    unasked=TEXTS,
    engine=TEXT,
    work=st.dictionaries(TEXT, INT64 | st.floats(0, 1e9), max_size=3),
    device_memory=st.none() | st.integers(1, 2**60),
    excluded_count=st.integers(0, 2**40),
)
MEASUREMENTS = st.builds(
    Measurements,
    st.sets(st.sampled_from(sorted(TABLES)), max_size=3).flatmap(
        lambda names: st.fixed_dictionaries({name: frames(name) for name in sorted(names)})
    ),
    st.lists(SOURCES, max_size=3).map(tuple),
    st.lists(st.builds(Failure, TEXT, TEXT, TEXT), max_size=2).map(tuple),
    st.lists(NOTES, max_size=2).map(tuple),
    FACTS,
)


def assert_same(loaded, original):
    assert set(loaded.arrays) == set(original.arrays)
    for name, columns in original.arrays.items():
        assert_frame_equal(loaded.arrays[name].frame(), columns.frame(), check_exact=True)
    assert loaded.sources == tuple(replace(s, path=Path(s.name)) for s in original.sources)
    assert loaded.failures == original.failures
    assert loaded.notes == original.notes
    assert loaded.facts == original.facts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


def sample():
    counters = TABLES["counters"].cast({"id": [1, 2], "ts_ns": [5, 6], "name": ["a", None], "value": [0.5, pd.NA]})
    windows = TABLES["windows"].cast()
    syncs = TABLES["syncs"].cast({"id": [0], "ts_ns": [1], "dur_ns": [2], "name": ["sync"], "device": [pd.NA]})
    source = Source(Path("/home/me/x.json"), "x.json", "chrome", rank=3, pid=77, host="node")
    return Measurements(
        {"counters": counters, "windows": windows, "syncs": syncs},
        (source.with_note("warning", "odd", "looks odd"),),
        (Failure("y.json", "broken", "throw it away", "archive", Data(what="a box")),),
        (Note("info", "seen", "ü", "x.json", 2, 9, Data(rows=3, sure=False, fields=("a", "b"))),),
        Facts(title="run", versions={"CUDA": "12.4"}),
    )


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "x.tkm"
    saved_measurements.save(sample(), target)
    return target


@FORM
@given(MEASUREMENTS)
def test_what_is_loaded_equals_what_was_saved(folder, measurements):
    target = folder / "any.tkm"
    saved_measurements.save(measurements, target)
    assert_same(saved_measurements.load(target), measurements)


def test_the_same_measurements_give_the_same_bytes(tmp_path, path):
    again = tmp_path / "again.tkm"
    saved_measurements.save(sample(), again)
    assert again.read_bytes() == path.read_bytes()
    saved_measurements.save(saved_measurements.load(path), again)
    assert again.read_bytes() == path.read_bytes()


def test_what_lies_under_missing_values_does_not_reach_the_file(tmp_path, path):
    measurements = sample()
    columns = measurements.columns("counters")
    hidden = Nullable(np.array([0.5, 123.0]), np.array([False, True]))
    other = tmp_path / "other.tkm"
    counters = Columns(2, {**columns.arrays, "value": hidden})
    tables = {**measurements.arrays, "counters": counters}
    saved_measurements.save(replace(measurements, arrays=tables), other)
    assert other.read_bytes() == path.read_bytes()


def test_numbers_that_are_not_finite_survive(tmp_path):
    data = {"id": [1, 2, 3], "ts_ns": [0, 0, 0], "name": ["a"] * 3}
    value = Nullable(np.array([math.inf, -math.inf, -0.0]), np.array([False] * 3))
    counters = TABLES["counters"].cast({**data, "value": value})
    saved_measurements.save(Measurements({"counters": counters}, ()), tmp_path / "x.tkm")
    values = saved_measurements.load(tmp_path / "x.tkm")["counters"]["value"]
    assert [str(value) for value in values] == ["inf", "-inf", "-0.0"]


def test_an_absent_table_stays_absent_and_an_empty_one_stays_empty(path):
    loaded = saved_measurements.load(path)
    assert loaded.has("windows")
    assert len(loaded["windows"]) == 0
    assert not loaded.has("flows")


def test_every_field_of_a_source_is_saved_but_where_it_lay_and_what_its_reader_was_told(path):
    names = {field.name for field in fields(Source)} - {"path", "node", "accounts"}
    assert set(manifest_of(path)["sources"][0]) == names


def test_no_path_of_the_machine_is_in_the_file(path):
    assert b"/home/me" not in path.read_bytes()
    assert saved_measurements.load(path).sources[0].path == Path("x.json")


def test_loaded_frames_can_be_changed(path):
    frame = saved_measurements.load(path)["counters"]
    frame.loc[0, "ts_ns"] = 9
    assert frame["ts_ns"].tolist() == [9, 6]


def test_the_head_tells_saved_measurements_from_other_files(path, tmp_path):
    assert saved_measurements.is_saved_measurements(path.read_bytes()[: saved_measurements.HEAD_BYTES])
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("manifest.json", '{"schema": "other/1"}')
    assert not saved_measurements.is_saved_measurements(other.read_bytes())
    assert not saved_measurements.is_saved_measurements(b"")
    assert not saved_measurements.is_saved_measurements(b'{"traceEvents": []}')


# --- damage ---------------------------------------------------------------------------------------


def test_a_file_cut_anywhere_is_refused(path):
    whole = path.read_bytes()
    for part in range(200):
        path.write_bytes(whole[: len(whole) * part // 200])
        with pytest.raises(TraceFormatError) as caught:
            saved_measurements.load(path)
        assert "\n" not in str(caught.value)
        assert caught.value.hint


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_changed_byte_is_refused_or_changes_nothing(path, step):
    whole = path.read_bytes()
    original = saved_measurements.load(path)
    places = range(0, len(whole), step)
    refused = 0
    for at in places:
        changed = bytearray(whole)
        changed[at] ^= (0x01, 0x80, 0xFF)[at % 3]
        path.write_bytes(changed)
        try:
            loaded = saved_measurements.load(path)
        except TraceFormatError:
            refused += 1
        else:
            assert_same(loaded, original)
    assert refused > len(places) / 2


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_spliced_files_are_refused_or_load(folder, data):
    target = folder / "spliced.tkm"
    saved_measurements.save(sample(), target)
    whole = target.read_bytes()
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    target.write_bytes(whole[:start] + data.draw(st.binary(max_size=40)) + whole[stop:])
    with contextlib.suppress(TraceFormatError):
        saved_measurements.load(target)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_after_the_right_head_are_refused(folder, tail):
    target = folder / "any-bytes.tkm"
    saved_measurements.save(sample(), target)
    target.write_bytes(target.read_bytes()[:70] + tail)
    with pytest.raises(TraceFormatError):
        saved_measurements.load(target)


# --- edges ----------------------------------------------------------------------------------------


def manifest_of(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("manifest.json"))


@pytest.mark.parametrize("missing", ["nowhere/x.tkm", "."])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path, missing):
    with pytest.raises(TraceFormatError, match="cannot be read"):
        saved_measurements.load(tmp_path / missing)


def test_facts_that_are_not_json_are_refused_and_leave_no_file(tmp_path):
    target = tmp_path / "x.tkm"
    with pytest.raises(TracekitError, match="facts"):
        saved_measurements.save(replace(sample(), facts=Facts(versions={"a": object()})), target)
    assert list(tmp_path.iterdir()) == []


def test_more_than_can_be_loaded_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_measurements, "MAX_SAVED_BYTES", 10)
    with pytest.raises(TracekitError, match="too much to save"):
        saved_measurements.save(sample(), tmp_path / "x.tkm")


def test_it_is_an_ordinary_zip_file_that_says_what_it_holds(path):
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
    assert names[0] == "manifest.json"
    assert manifest_of(path)["tables"]["counters"]["rows"] == 2
    assert "counters/name.categories" in names
