"""GPU metrics of old exports, a JSON object a sample: named as recorded, on the clock of the file, damage counted."""

import json

import numpy as np
import pytest
from nsys_builder import BASE_NS, METRICS, execute, generic, generic_source, metric, metric_name, nvtx, write

from tracekit.model.trace import Source, Want
from tracekit.readers import nsys
from tracekit.readers.nsys import content as nsys_content
from tracekit.readers.nsys import metrics as nsys_metrics
from tracekit.readers.nsys import metrics_json as nsys_metrics_json
from tracekit.readers.nsys.sqlite.connection import open_export

SOURCE = generic_source("GpuMetrics", 5, (METRICS, METRICS | 1))
FTRACE = generic_source("FTrace", 6, (77,))


@pytest.fixture
def path(tmp_path):
    """A function: the path of an export of these rows, after the sources of generic events."""
    numbers = iter(range(1000))
    return lambda rows, source=SOURCE, schema="3.0", **more: write(
        tmp_path / f"{next(numbers)}.sqlite", [*source, *rows], schema=schema, **more
    )


def read(file):
    with open_export(file) as db:
        return nsys_metrics.read(db, nsys_content.read_export_clock(db)[0])


def told(found):
    """(start from the capture's own, name, value, GPU) of every sample."""
    columns = (found.ts_ns - BASE_NS, found.name, found.value, found.gpu)
    return [(ts, found.names[code], value, gpu)
            for ts, code, value, gpu in zip(*(c.tolist() for c in columns), strict=True)]  # fmt: skip


def counts(found):
    return {note.code: note.count for note in found.notes}


@pytest.mark.parametrize("schema", ["2.9", "3.0", "3.11"])
def test_samples_are_named_by_gpu_and_metric(path, schema):
    rows = [
        generic(20, {"SM Active": 55, "Tensor Active / FP16 Active": 7}),
        generic(-10, {"SM Active": 1, "Tensor Active / FP16 Active": 0}),
        generic(15, {"SM Active": 99}, METRICS | 1),
    ]
    found = read(path(rows, schema=schema))
    assert told(found) == [
        (-10, "GPU 0 SM Active", 1.0, 0),
        (-10, "GPU 0 Tensor Active / FP16 Active", 0.0, 0),
        (15, "GPU 1 SM Active", 99.0, 1),
        (20, "GPU 0 SM Active", 55.0, 0),
        (20, "GPU 0 Tensor Active / FP16 Active", 7.0, 0),
    ]
    assert found.notes == ()


def test_the_time_of_the_session_counts_before_the_raw_one_and_zero_is_none(path):
    rows = [generic(1000, {"a": 1}, timestamp=7), generic(2000, {"a": 2}, timestamp=0), generic(3000, {"a": 3})]
    assert [row[0] for row in told(read(path(rows)))] == [7, 2000, 3000]
    shifted = {"EXPORT_CONFIG_TIME_SHIFT": "1000"}
    assert told(read(path(rows[2:], exported=shifted.items())))[0][0] == 2000


def test_numbers_may_be_numbers_and_what_never_is_one_is_no_metric(path):
    rows = [
        generic(1, '{"a": 1.5, "b": -2e3, "type": 3, "GPU id": "0", "unit": "%", "c": null, "d": {"e": 1}}'),
        generic(2, '{"a": "2", "b": "x", "type": 3, "GPU id": "0", "unit": "%", "c": true, "d": [1]}'),
    ]  # fmt: skip
    found = read(path(rows))
    assert told(found) == [(1, "GPU 0 a", 1.5, 0), (1, "GPU 0 b", -2000.0, 0), (2, "GPU 0 a", 2.0, 0)]
    assert counts(found) == {"no-name": 1}


def test_events_of_other_sources_are_left_out_and_counted(path):
    rows = [*FTRACE, generic(1, {"a": 1}), generic(2, {"common_pid": 0, "irq": 66}, 77), generic(3, {"b": 1}, 99)]
    file = path(rows)
    assert [row[1] for row in told(read(file))] == ["GPU 0 a"]
    with open_export(file) as db:
        (note,) = nsys_metrics_json.note_unread_generic_events(db)
    assert (note.severity, note.code, note.count) == ("info", "generic-events", 2)
    (trace,) = nsys.read(Source(path([*rows, nvtx("x", 1, 2)]), "x", "nsys", "nsys"), Want())
    assert trace["counters"]["value"].tolist() == [1.0]
    assert "generic-events" in {n.code for n in trace.notes}


def test_without_metrics_among_the_generic_events_none_were_recorded(path):
    assert read(path([generic(2, {"irq": 66}, 77)], FTRACE)) is None
    assert read(path([generic(2, {"SM Active": 66})], ())) is None
    assert read(path([], tables=["GENERIC_EVENTS"])) is None


def test_the_table_of_newer_exports_counts_before_json(path):
    both = [metric_name("SM Active", 3), metric(20, 3, 5), generic(20, {"SM Active": 6})]
    assert [row[2] for row in told(read(path(both, schema="3.11")))] == [5.0]
    empty = path([metric_name("SM Active", 3), generic(20, {"SM Active": 6})], schema="3.11", tables=["GPU_METRICS"])
    assert [row[2] for row in told(read(empty))] == [6.0]


BAD = [
    "", "{", "[]", "5", "null", '{"a": NaN}', '{"a": 1e999}', '{"a": 1}, {"a": 2}', '{"a": 1', '"b": 2}',
    "[" * 5000, '{"a":' * 900 + "1" + "}" * 900, '{"a": ' + "9" * 5000 + "}", '{"a": "1,2"}', '{"": 4}', "{}",
    '{"a": "' + "x" * 9000 + '"}', '{"\\ud800": "x"}', '{"a\\u001fb": 1}', '{"a": -}', "\x00",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_a_damaged_sample_costs_itself_alone(path, text):
    rows = [generic(10 * i, {"a": i, "b": 2 * i}) for i in range(1, 4)]
    found = read(path([*rows[:2], generic(25, text), rows[2]]))
    kept = [row for row in told(found) if row[0] != 25]
    assert [(ts, value) for ts, _, value, _ in kept] == [
        (10, 1.0), (10, 2.0), (20, 2.0), (20, 4.0), (30, 3.0), (30, 6.0),
    ]  # fmt: skip
    assert np.isfinite(found.value).all()


def test_two_halves_of_a_sample_in_two_records_are_no_sample(path):
    found = read(path([generic(1, '{"a": 1'), generic(2, '"b": 2}'), generic(3, {"a": 9})]))
    assert told(found) == [(3, "GPU 0 a", 9.0, 0)]
    assert counts(found) == {"bad-json": 2}


def test_the_last_of_equal_keys_counts(path):
    assert told(read(path([generic(1, '{"a": 1, "a": "2"}')]))) == [(1, "GPU 0 a", 2.0, 0)]


def test_text_that_is_no_utf8_names_with_replacement_characters(path):
    file = path([generic(1, {"ab": 5})])
    execute(file, "UPDATE GENERIC_EVENTS SET data = CAST(x'7b2261ff223a2235227d' AS TEXT)")
    assert told(read(file)) == [(1, "GPU 0 a\ufffd", 5.0, 0)]


@pytest.mark.parametrize("value", ["'x'", "x'00'", "NULL", "1e300", "2.5", str(2**62), "zeroblob(9000)"])
@pytest.mark.parametrize("column", ["rawTimestamp", "timestamp", "typeId", "data"])
def test_a_value_of_any_type_is_read_or_left_out(path, column, value):
    file = path([generic(20, {"a": 55}), generic(30, {"a": 56})])
    execute(file, "CREATE TABLE other AS SELECT * FROM GENERIC_EVENTS",
            f"UPDATE other SET {column} = {value} WHERE rawTimestamp = 20", "DROP TABLE GENERIC_EVENTS",
            "ALTER TABLE other RENAME TO GENERIC_EVENTS")  # fmt: skip
    found = read(file)
    assert 56.0 in found.value
    assert np.isfinite(found.value).all()


@pytest.mark.parametrize("data", ["5", '{"Name": 5}', "{", '{"Name": "GpuMetrics2"}', '{"name": "GpuMetrics"}'])
def test_a_source_that_is_not_told_is_no_source_of_gpu_metrics(path, data):
    file = execute(path([generic(1, {"a": 1})]), ("UPDATE GENERIC_EVENT_SOURCES SET data = ?", [data]))
    assert read(file) is None
    with open_export(file) as db:
        assert [note.count for note in nsys_metrics_json.note_unread_generic_events(db)] == [1]


def test_sets_of_metrics_beyond_the_bound_are_counted(path, monkeypatch):
    monkeypatch.setattr(nsys_metrics_json, "MAX_SETS", 3)
    monkeypatch.setattr(nsys_metrics_json, "MAX_NAMES", 2)
    found = read(path([generic(i, {f"m{i}": i}) for i in range(5)]))
    assert [row[1] for row in told(found)] == ["GPU 0 m0", "GPU 0 m1"]
    assert counts(found) == {"too-many": 2}


def test_blocks_of_samples_are_one_series(path):
    count = 2 * nsys_metrics_json._BLOCK + 3
    found = read(path([generic(i, {"a": i % 101, "b": 1}) for i in range(count)]))
    values = found.value[found.name == found.names.index("GPU 0 a")]
    assert values.tolist() == [i % 101 for i in range(count)]
    assert len(found.value) == 2 * count


def test_a_set_of_names_is_told_from_another_that_reads_the_same_joined(path):
    rows = [generic(1, json.dumps({"a\x1fb": 1})), generic(2, {"a": 2, "b": 3})]
    assert [row[2] for row in told(read(path(rows)))] == [1.0, 2.0, 3.0]
