"""Memory snapshots that somebody wrote as JSON: the same tables as of pickles, bounded, refused where they are none."""

import gzip
import json

import pytest
from memory_builder import VERSIONS, as_written_by, pickled, snapshot
from memory_reading import read, same, small_program

from tracekit.model.errors import TraceFormatError
from tracekit.readers import READERS
from tracekit.readers.loading import sniff
from tracekit.readers.torch_memory import json as snapshot_json


def put(tmp_path, made, name="snapshot.json"):
    path = tmp_path / name
    path.write_bytes(made if isinstance(made, bytes) else json.dumps(made).encode())
    return path


def claims(data):
    return next((r.name for r in READERS if r.claims(data[: 2**16])), None)


@pytest.mark.parametrize("version", VERSIONS)
def test_json_of_any_version_gives_the_tables_of_its_pickle(tmp_path, tables_of, version):
    made = as_written_by(version, snapshot(small_program(), small_program(2)))
    path = put(tmp_path, made)
    assert sniff(path).reader == "torch_memory"
    trace = read(path)
    same(tables_of(pickled(made)), trace)
    assert trace.meta["allocator_settings"] == read(path).meta["allocator_settings"]


def test_the_list_of_segments_alone_is_told_from_a_trace(tmp_path, tables_of):
    made = snapshot(small_program())["segments"]
    for text in (json.dumps(made), json.dumps(made, indent=2)):
        assert claims(text.encode()) == "torch_memory"
    same(tables_of(pickled(made)), read(put(tmp_path, made)))
    assert claims(b'[{"device": 1, "ph": "X", "name": "total_size", "total_size": 1}]') == "chrome"


def test_gzip_is_inflated(tmp_path, tables_of):
    made = snapshot(small_program())
    path = put(tmp_path, gzip.compress(json.dumps(made).encode()), "s.json.gz")
    assert sniff(path).reader == "torch_memory"
    same(tables_of(pickled(made)), read(path))


def test_addresses_from_2_to_63_on_survive(tmp_path):
    made = snapshot(small_program())
    made["device_traces"][0][0]["addr"] = 2**63 + 5
    made["device_traces"][0][1]["addr"] = 2**64 - 1
    assert read(put(tmp_path, made))["allocations"]["address"].tolist()[:2] == [5 - 2**63, -1]
    made["device_traces"][0][1]["addr"] = 2**64
    with pytest.raises(TraceFormatError, match="expected an integer of 64 bits"):
        read(put(tmp_path, made))


def test_frames_written_again_and_again_are_one_object():
    frames = [{"name": "f", "filename": "a.py", "line": 1}, {"name": "g", "filename": "a.py", "line": 2}]  # fmt: skip
    made = {"device_traces": [[{"action": "alloc", "frames": frames}] * 50]}
    root, most = snapshot_json.load_json_snapshot(json.dumps(made).encode(), None)
    every = [frame for entry in root["device_traces"][0] for frame in entry["frames"]]
    assert len({id(frame) for frame in every}) == 2
    assert most == 151


def test_frames_that_only_look_equal_stay_apart():
    lines = [1, 1.0, True, None, 2**70]
    frames = [{"name": "f", "filename": "a.py", "line": line} for line in lines]
    root, _ = snapshot_json.load_json_snapshot(json.dumps({"segments": frames}).encode(), None)
    assert [(type(f["line"]), f["line"]) for f in root["segments"]] == [(type(n), n) for n in lines]


def test_of_equal_keys_the_last_counts(tmp_path):
    trace = read(put(tmp_path, b'{"device_traces": 5, "segments": [], "device_traces": [[{"action": "snapshot"}]]}'))  # fmt: skip
    assert trace["allocations"]["action"].tolist() == ["snapshot"]


TOO_DEEP = "nested too deeply|expected a (list|dictionary), found"
"""From 3.12 on Python's json follows 3,000 levels, and what it finds there is refused."""
START = b'{"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": '


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"segments": ' + b"[" * 3000 + b"]" * 3000 + b" " * 10**5 + b"}", TOO_DEEP),
        (b'{"segments": ' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"}", TOO_DEEP),
        (b'{"segments": [' + b"{}," * 10**5 + b"{}]}", "objects and arrays in"),
        (b'{"segments": ' + b"[" * 10**6, "objects and arrays in"),
        (START + b"9" * 10**6 + b"}]]}", "not sound JSON"),
        (START + b"NaN}]]}", "NaN is no number of a snapshot"),
        (START + b"-Infinity}]]}", "-Infinity is no number"),
        (START + b"1.5}]]}", "expected an integer, found a number"),
        (START + b"1e999}]]}", "expected an integer, found a number"),
        (START + b"true}]]}", "expected an integer, found a truth value"),
        (START + b'"7"}]]}', "expected an integer, found text"),
        (START + b"-1}]]}", "expected a number of bytes"),
        (START + b"%d}]]}" % 2**80, "expected a number of bytes"),
        (START + b"1}]]} {}", "damaged: Extra data"),
        (START + b"1}]", "ends early or is damaged"),
        (START, "ends early or is damaged"),
        (START + b'1, "frames": ["\xff"]}]]}', "not sound JSON"),
        (b'{"segments": {}}', "expected a list, found a dictionary"),
        (b'{"segments": [5]}', "expected a dictionary"),
        (b'{"lr": 1}', "no dictionary with segments"),
        (b"[1, 2]", "2 entries, but the file has 0 dictionaries"),
        (b"{", "ends early"),
    ],
)
def test_what_is_no_snapshot_is_refused(tmp_path, text, problem):
    with pytest.raises(TraceFormatError, match=problem):
        read(put(tmp_path, text))


def test_a_large_text_is_refused_before_it_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_json, "MAX_BYTES", 100)
    with pytest.raises(TraceFormatError, match="bytes: over 100"):
        read(put(tmp_path, snapshot(small_program())))


@pytest.mark.parametrize(
    "text",
    [
        b'{"segments": [{"id": 0, "start": 0.0, "text": "hello"}], "language": "en"}', b'{"step": 1, "total_size": 5}',
        b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "device_traces": 1}]}', b'[{"address": "a street"}]', b"[[1]]", b"",
    ],
)  # fmt: skip
def test_other_json_is_none(text):
    assert not snapshot_json.is_json_snapshot(text)


def test_every_piece_of_a_snapshot_that_was_cut_off_is_an_error(tmp_path):
    data = json.dumps(snapshot(small_program())).encode()
    for at in range(1, len(data), len(data) // 60):
        with pytest.raises(TraceFormatError):
            read(put(tmp_path, data[:at]))
