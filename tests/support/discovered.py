"""Trees of files that are looked for, and what is found of them."""

from __future__ import annotations

import gzip
import json
import os
import zlib

import pytest

from tracekit.discover import Sniffed, discover
from tracekit.model.inputs.note_codes import Reason

TRACE = b'{"schemaVersion": 1, "traceEvents": []}'
T1, T2, T3 = "20261120073304048", "20261120073305048", "20261120073306048"
REAL = os.environ.get("TRACEKIT_REAL_DATA")
real = pytest.mark.skipif(REAL is None, reason="TRACEKIT_REAL_DATA names no directory of real profiles")


def sniff(path):
    with path.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(b"\x1f\x8b"):
        head = zlib.decompressobj(31).decompress(head, 4096)
    found = b'"traceEvents"' in head or b'"schemaVersion"' in head
    return Sniffed("chrome") if found else Sniffed(None, reason=Reason("no-format", "not a trace"))


def put(folder, *names, data=None):
    """Files of these names that hold `data`, or each a trace that no other holds."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = TRACE[:-1] + b', "traceName": ' + json.dumps(str(path)).encode() + b"}"
        text = text if data is None else data
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return folder


def find(*paths, **options):
    return discover(list(paths), sniff=sniff, **options)


def by_run(discovery):
    runs = {}
    for source in discovery.sources:
        runs.setdefault(source.run, []).append(source.name)
    return runs


def codes(source):
    return [note.code for note in source.notes]


def reasons(discovery):
    """Why each file is passed over, as its code."""
    return {ignored.path.name: ignored.reason.code for ignored in discovery.ignored}


def manifest(folder, name="capture_actor_rank1_pid7.json", **changes):
    data = {
        "schema": "capture/1", "run_id": "r1", "role": "actor", "rank": 1, "world_size": 2,
        "host": "node1", "pid": 7, "tool": "torch", "steps": [2], "stages": ["train"],
        "files": [{"path": "trace.json", "step": 2, "stage": "train", "start_unix_ns": 1, "stop_unix_ns": 2}],
        "clock": {"unix_ns": 5, "monotonic_ns": 3}, "versions": {"torch": "2.13"}, "status": "closed",
    }  # fmt: skip
    put(folder, name, data=json.dumps({**data, **changes}).encode())
    return folder
