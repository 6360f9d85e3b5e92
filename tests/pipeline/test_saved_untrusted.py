"""Saved files that somebody has tampered with, or that another version has written."""

import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tracekit.model.errors import TraceFormatError
from tracekit.model.inputs.note_codes import NO_DATA, UNKNOWN
from tracekit.model.tables import TABLES
from tracekit.model.trace import Failure, Measurements, Note, Source
from tracekit.pipeline.cache import saved_measurements


@pytest.fixture
def path(tmp_path):
    counters = {"id": [1, 2], "ts_ns": [5, 6], "name": ["a", None], "value": [0.5, 1.5]}
    syncs = {"id": [0], "ts_ns": [1], "dur_ns": [2], "name": ["sync"]}
    tables = {"counters": counters, "windows": None, "syncs": syncs}
    measurements = Measurements(
        {name: TABLES[name].cast(data) for name, data in tables.items()},
        (Source(Path("x.json"), "x.json", "chrome", rank=3),),
        (Failure("y.json", "broken"),),
        (Note("info", "seen", "once"),),
    )
    target = tmp_path / "x.tkm"
    saved_measurements.save(measurements, target)
    return target


def manifest_of(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("manifest.json"))


def rewrite(path, change=None, entries=None, drop=(), raw=None):
    """Write the file again with its manifest changed and entries replaced, checksums being right."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents["manifest.json"])
    if change:
        change(manifest)
    contents["manifest.json"] = raw or json.dumps(manifest).encode()
    contents |= entries or {}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            if name not in drop:
                kind = zipfile.ZIP_STORED if name == "manifest.json" else zipfile.ZIP_DEFLATED
                archive.writestr(name, data, kind)


def column(manifest, table, name):
    return next(c for c in manifest["tables"][table]["columns"] if c["name"] == name)


MANIFESTS = {
    "unknown table": lambda m: m["tables"].update(nonsense={"rows": 0, "columns": []}),
    "unknown column": lambda m: m["tables"]["counters"]["columns"].append({"name": "nonsense", "dtype": "int64"}),
    "unknown dtype": lambda m: column(m, "counters", "id").update(dtype="object"),
    "other dtype": lambda m: column(m, "counters", "id").update(dtype="int64"),
    "repeated column": lambda m: m["tables"]["counters"]["columns"].append({"name": "id", "dtype": "int32"}),
    "column lacking": lambda m: m["tables"]["counters"]["columns"].pop(0),
    "too many rows": lambda m: m["tables"]["counters"].update(rows=3),
    "too few rows": lambda m: m["tables"]["counters"].update(rows=1),
    "negative rows": lambda m: m["tables"]["counters"].update(rows=-1),
    "rows of another kind": lambda m: m["tables"]["counters"].update(rows=2.0),
    "true rows": lambda m: m["tables"]["windows"].update(rows=False),
    "absurd rows": lambda m: m["tables"]["counters"].update(rows=10**18),
    "enormous rows": lambda m: m["tables"]["counters"].update(rows=10**30),
    "columns of another kind": lambda m: m["tables"]["counters"].update(columns=None),
    "column of another kind": lambda m: m["tables"]["counters"].update(columns=[3]),
    "tables of another kind": lambda m: m.update(tables=[]),
    "table of another kind": lambda m: m["tables"].update(counters=7),
    "no sources": lambda m: m.pop("sources"),
    "source of another kind": lambda m: m.update(sources=["x"]),
    "source without name": lambda m: m["sources"][0].pop("name"),
    "source with path for rank": lambda m: m["sources"][0].update(rank="3"),
    "source with true for rank": lambda m: m["sources"][0].update(rank=True),
    "source with enormous rank": lambda m: m["sources"][0].update(rank=2**63),
    "source of unknown tool": lambda m: m["sources"][0].update(tool="perf"),
    "negative size": lambda m: m["sources"][0].update(size_bytes=-1),
    "note of unknown severity": lambda m: m["notes"][0].update(severity="fatal"),
    "note without code": lambda m: m["notes"][0].pop("code"),
    "data of another kind": lambda m: m["notes"][0].update(data=[3]),
    "data that are no plain values": lambda m: m["notes"][0].update(data={"a": {"b": 1}}),
    "data under the name of an argument": lambda m: m["notes"][0].update(data={"a": [1]}),
    "failure of another kind": lambda m: m.update(failures={"a": 1}),
    "facts of another kind": lambda m: m.update(facts=[]),
    "no schema": lambda m: m.update(schema="tracekit.measurements/"),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_does_not_fit_is_refused(path, change):
    rewrite(path, change)
    with pytest.raises(TraceFormatError):
        saved_measurements.load(path)


def codes(*values):
    return np.array(values, "<i4").tobytes()


ENTRIES = {
    "a code past the list": {"counters/name.codes": codes(0, 1)},
    "a negative code": {"counters/name.codes": codes(0, -2)},
    "a truth value of 2": {"counters/value.mask": b"\0\2"},
    "too few bytes": {"counters/ts_ns.data": b"12345678"},
    "too many bytes": {"counters/ts_ns.data": b"1" * 17},
    "categories that are no list": {"counters/name.categories": b'{"a": 1}'},
    "categories that are no text": {"counters/name.categories": b"[1]"},
    "a repeated category": {"counters/name.categories": b'["a", "a"]'},
    "half a character as category": {"counters/name.categories": b'["\\ud800"]'},
    "categories that are no JSON": {"counters/name.categories": b'["a"'},
    "categories nested too deeply": {"counters/name.categories": b"[" * 100_000},
    "a number of too many digits": {"counters/name.categories": b"1" * 10_000},
    "an unknown entry": {"../../etc/passwd": b"x"},
    "an entry of an absolute path": {"/etc/passwd": b"x"},
}


@pytest.mark.parametrize("entries", ENTRIES.values(), ids=ENTRIES)
def test_a_block_that_does_not_fit_is_refused(path, entries):
    rewrite(path, entries=entries)
    with pytest.raises(TraceFormatError):
        saved_measurements.load(path)


def test_a_missing_block_is_named(path):
    rewrite(path, drop=["syncs/dur_ns.data"])
    with pytest.raises(TraceFormatError, match=r"syncs/dur_ns\.data.* is missing"):
        saved_measurements.load(path)


def test_a_value_outside_a_closed_set_is_refused(tmp_path):
    target = tmp_path / "x.tkm"
    flows = TABLES["flows"].cast({"id": [1], "ts_ns": [1], "cat": ["a"], "phase": ["end"], "flow": [1], "thread": [0]})
    saved_measurements.save(Measurements({"flows": flows}, ()), target)
    rewrite(target, entries={"flows/phase.codes": codes(-1)})
    with pytest.raises(TraceFormatError, match="not one of start, step, end"):
        saved_measurements.load(target)
    rewrite(target, entries={"flows/phase.codes": codes(0), "flows/phase.categories": b'["up"]'})
    with pytest.raises(TraceFormatError, match="not one of"):
        saved_measurements.load(target)


def test_the_order_of_a_closed_set_may_differ_between_versions(tmp_path):
    target = tmp_path / "x.tkm"
    flows = TABLES["flows"].cast({"id": [1], "ts_ns": [1], "cat": ["a"], "phase": ["end"], "flow": [1], "thread": [0]})
    saved_measurements.save(Measurements({"flows": flows}, ()), target)
    changed = {"flows/phase.codes": codes(1), "flows/phase.categories": b'["new", "end"]'}
    rewrite(target, entries=changed)
    assert saved_measurements.load(target)["flows"]["phase"].tolist() == ["end"]


def test_two_entries_of_one_name_are_refused(path):
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("counters/ts_ns.data", b"\0" * 16)
    with pytest.raises(TraceFormatError, match="two entries"):
        saved_measurements.load(path)


def test_notes_and_failures_that_were_saved_without_codes_or_data_are_loaded(path):
    def forget(manifest):
        del manifest["failures"][0]["code"]

    rewrite(path, forget)
    loaded = saved_measurements.load(path)
    assert [(f.problem, f.code, f.data) for f in loaded.failures] == [("broken", UNKNOWN, NO_DATA)]
    assert [(n.code, n.data) for n in loaded.notes] == [("seen", NO_DATA)]


def test_a_manifest_that_repeats_a_key_is_refused(path):
    text = json.dumps(manifest_of(path))[:-1] + ', "facts": {}}'
    rewrite(path, raw=text.encode())
    with pytest.raises(TraceFormatError, match="repeated"):
        saved_measurements.load(path)


def test_an_unknown_compression_is_refused(path):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("more", b"x", zipfile.ZIP_BZIP2)
    with pytest.raises(TraceFormatError, match="compressed in an unknown way"):
        saved_measurements.load(path)


def test_a_block_larger_than_it_says_is_refused(path):
    rewrite(path, entries={"counters/ts_ns.data": b"\0" * 10_000_000})
    whole = path.read_bytes()
    assert whole.count(struct.pack("<I", 10_000_000)) == 2
    path.write_bytes(whole.replace(struct.pack("<I", 10_000_000), struct.pack("<I", 16)))
    with pytest.raises(TraceFormatError):
        saved_measurements.load(path)


def test_a_small_file_cannot_ask_for_much_memory(path):
    rows = 10_000_000
    zeros = b"\0" * (rows * 8)
    entries = {"windows/ts_ns.data": zeros, "windows/dur_ns.data": zeros}
    entries |= {"windows/id.data": zeros[: rows * 4], "windows/name.codes": zeros[: rows * 4]}
    rewrite(path, lambda m: m["tables"]["windows"].update(rows=rows), entries)
    with pytest.raises(TraceFormatError, match="windows would take more memory"):
        saved_measurements.load(path, max_bytes=200_000_000)


def test_the_memory_of_lists_counts_more_than_their_text(path):
    rewrite(path, entries={"counters/name.categories": b"[" + b'"",' * 1_000_000 + b'""]'})
    with pytest.raises(TraceFormatError, match="would take more memory"):
        saved_measurements.load(path, max_bytes=10_000_000)


def test_another_version_is_refused_by_its_name(path):
    rewrite(path, lambda m: m.update(schema="tracekit.measurements/2"))
    assert saved_measurements.is_saved_measurements(path.read_bytes()[: saved_measurements.HEAD_BYTES])
    with pytest.raises(TraceFormatError, match="measurements/2"):
        saved_measurements.load(path)


def test_additions_of_a_later_version_are_passed_over(path):
    def add(manifest):
        manifest["made_by"] = "later"
        manifest["tables"]["counters"]["doc"] = "later"
        column(manifest, "counters", "id")["unit"] = "later"
        for kind in ("sources", "failures", "notes"):
            manifest[kind][0]["later"] = [1]

    before = saved_measurements.load(path)
    rewrite(path, add)
    after = saved_measurements.load(path)
    assert after["counters"].equals(before["counters"])
    assert (after.sources, after.failures, after.notes) == (before.sources, before.failures, before.notes)


def test_a_nullable_column_that_came_later_is_all_missing(path):
    def lack(manifest):
        columns = manifest["tables"]["counters"]["columns"]
        columns[:] = [c for c in columns if c["name"] != "value"]

    rewrite(path, lack, drop=["counters/value.data", "counters/value.mask"])
    assert saved_measurements.load(path)["counters"]["value"].isna().all()
