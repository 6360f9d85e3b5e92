"""Exports that real versions of Nsight Systems wrote: every row is read, and known figures come out."""

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from tracekit.model.errors import TraceFormatError
from tracekit.model.trace import Source, Want
from tracekit.process.calls.launches import find_launches
from tracekit.readers.nsys import read

REAL = os.environ.get("TRACEKIT_REAL_DATA")
pytestmark = pytest.mark.skipif(REAL is None, reason="real profiles are not here")
ROOT = Path(REAL or ".") / "nsys"
PAIR = "GindaChen_nsys-ai/mfu_2gpu_before.sqlite"
POINTER = "sidvijay10_ml_cloud_hw2/nsys_report.405936.sqlite"


def exports():
    found = sorted(str(p.relative_to(ROOT)) for p in ROOT.rglob("*.sqlite")) if REAL else []
    return [name for name in found if name != POINTER]


def traces(name):
    path = ROOT / name
    return read(Source(path, path.name, "nsys", "nsys"), Want())


def asked(name, query):
    connection = sqlite3.connect(f"file:{ROOT / name}?mode=ro&immutable=1", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def counts(name):
    """Rows by table, counted by SQLite alone."""
    tables = {t for (t,) in asked(name, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    return {t: asked(name, f"SELECT count(*) FROM {t}")[0][0] for t in tables}


DEVICE = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")


@pytest.mark.parametrize("name", exports())
def test_every_row_of_every_file_is_read(name):
    found, has = traces(name), counts(name)
    device = sum(has.get(f"CUPTI_ACTIVITY_KIND_{kind}", 0) for kind in DEVICE)
    assert sum(len(t.get_or_empty("device_ops")) for t in found) == device
    assert sum(len(t.get_or_empty("syncs")) for t in found) == has.get("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", 0)
    host = [t.get_or_empty("host_ops") for t in found]
    calls = has.get("CUPTI_ACTIVITY_KIND_RUNTIME", 0)
    assert sum(int((h["kind"] == "runtime").sum()) for h in host) == calls
    ranges = 0
    if "NVTX_EVENTS" in has:
        ranges = asked(name, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60, 70, 71)")[0][0]
    complete = sum(int(h["kind"].isin(("range", "op")).sum()) for h in host)
    assert complete + sum(len(t.get_or_empty("open_ranges")) for t in found) == ranges
    pids = {t.source.pid for t in found} - {None}
    if "OSRT_API" in has:
        kept = ",".join(map(str, pids))
        where = f"WHERE (globalTid >> 24) & 16777215 IN ({kept})" if pids else ""
        expected = asked(name, f"SELECT count(*) FROM OSRT_API {where}")[0][0]
        assert sum(int((h["cat"] == "os_runtime").sum()) for h in host) == expected
    for trace in found:
        assert not {"damaged", "no-time", "not-a-number", "no-name"} & {n.code for n in trace.notes}
        for table, frame in trace.tables.items():
            assert table == "threads" or frame["ts_ns"].is_monotonic_increasing


def test_the_pointer_is_refused():
    with pytest.raises(TraceFormatError, match="Git LFS pointer"):
        traces(POINTER)


def test_two_processes_of_one_file_keep_their_gpus_and_launches_apart():
    one, two = traces(PAIR)
    assert [t.source.pid for t in (one, two)] == [144, 145]
    assert [t.source.rank for t in (one, two)] == [0, 1]
    assert [set(t["device_ops"]["device"]) for t in (one, two)] == [{0}, {1}]
    kernels = linked = 0
    for trace in (one, two):
        ops = trace["device_ops"]
        is_kernel = ops["kind"].isin(("kernel", "collective")).to_numpy()
        kernels += int(is_kernel.sum())
        linked += int((trace.derived(find_launches).call[is_kernel] >= 0).sum())
    assert (linked, kernels) == (3986, 4010)


def test_sums_by_kernel_are_those_that_nsys_prints():
    found = [t["device_ops"] for t in traces(PAIR)]

    def total(part):
        picked = [ops[ops["name"].astype(str).str.contains(part, regex=False)] for ops in found]
        return sum(int(p["dur_ns"].sum()) for p in picked), sum(map(len, picked))

    assert total("flash_fwd_kernel") == (272_317_378, 68)
    assert total("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN") == (38_226_009, 235)
    assert total("ncclDevKernel_SendRecv") == (25_401_752, 66)
    by_device = [int(ops.loc[ops["kind"] == "collective", "dur_ns"].sum()) for ops in found]
    assert by_device == [17_172_652, 8_229_100]


def test_waits_are_on_the_device_of_their_context():
    assert [set(t["syncs"]["device"]) for t in traces(PAIR)] == [{0}, {1}]
    assert [len(t["syncs"]) for t in traces(PAIR)] == [178, 188]


def test_ranges_of_one_process_are_in_unix_time():
    (trace,) = traces("real_cpu/ray_steps/worker_process_24151.1.sqlite")
    (start,) = asked(
        "real_cpu/ray_steps/worker_process_24151.1.sqlite", "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
    )[0]
    first = asked(
        "real_cpu/ray_steps/worker_process_24151.1.sqlite",
        "SELECT min(start) FROM NVTX_EVENTS WHERE eventType IN (59, 60)",
    )[0][0]
    assert trace["host_ops"]["ts_ns"].min() == start + first
    assert (trace.source.rank, trace.source.world_size, trace.source.pid) == (0, 2, 24151)


@pytest.mark.parametrize("name", [PAIR, "real_cpu/ray_steps/worker_process_24151.1.sqlite"])
def test_a_cut_file_gives_what_is_before_the_cut(tmp_path, name):
    data, path = (ROOT / name).read_bytes(), tmp_path / "cut.sqlite"
    whole = sum(sum(map(len, t.tables.values())) for t in traces(name))
    read_rows = []
    for share in np.linspace(0.1, 0.999, 6):
        path.write_bytes(data[: int(len(data) * share)])
        try:
            found = read(Source(path, "cut", "nsys", "nsys"), Want())
        except TraceFormatError as error:
            read_rows.append(0)
            message = str(error)
        else:
            read_rows.append(sum(sum(map(len, t.tables.values())) for t in found))
            message = "; ".join(n.message for n in found[0].notes)
        assert "bytes are missing at its end" in message
    assert max(read_rows) <= whole
    assert read_rows[-1] > 0
