"""Every category of every era in its table: what Kineto wrote from 2021 on, by either scanner."""

import numpy as np
import pandas as pd
import pytest
from chrome_builder import (
    BASE_NS,
    HOST_PID,
    MAIN,
    annotation,
    kernel,
    launch,
    memcpy,
    memory,
    memset,
    op,
    step,
    write,
)  # fmt: skip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.model.inputs.note_codes import NO_TIMES
from tracekit.model.tables import RAW, TABLES
from tracekit.readers.chrome.classes import CLASS_OF_CATEGORY
from tracekit.readers.chrome.scan import Codes
from tracekit.readers.chrome.tables import number_threads


@pytest.fixture(autouse=True, params=["native", "pure"])
def scanner(request, monkeypatch):
    monkeypatch.setenv("TRACEKIT_PURE", str(int(request.param == "pure")))


@pytest.fixture
def load(tmp_path):
    def read(rows, *, meta=None, **wants):
        return tracekit.load(write(tmp_path / "trace.json", rows, **(meta or {})), **wants)

    return read


def row(cat, name="x", ts=0, dur=1, pid=HOST_PID, tid=MAIN, ph="X", **args):
    return {
        "ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args,
    }  # fmt: skip


def column(frame, name):
    return [None if pd.isna(value) else value for value in frame[name]]


def kinds(trace, table):
    frame = trace[table]
    return dict(zip(frame["name"], frame["kind"], strict=True))


HOST_KINDS = {
    "op": ("cpu_op", "Operator", "hpu_op"),
    "range": ("user_annotation",),
    "runtime": (
        "cuda_runtime", "cuda_driver", "Runtime", "glow_runtime", "mtia_runtime", "xpu_runtime",
        "xpu_driver", "privateuse1_runtime", "privateuse1_driver",
    ),
    "overhead": ("overhead",),
    "other": (
        "external_correlation", "cuda_profiler_range", "collective_comm", "mtia_ccp_events",
        "mtia_insight", "mtia_counters", "xpu_scope_profiler", "hardware_counters", "async",
        "a category of tomorrow",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_host_categories_of_every_era_have_their_kind(load, kind):
    cats = HOST_KINDS[kind]
    host = load([row(cat, ts=i) for i, cat in enumerate(cats)])["host_ops"]
    assert host["kind"].tolist() == [kind] * len(cats)
    assert host["cat"].tolist() == list(cats)


DEVICE_KINDS = {"kernel": ("kernel", "Kernel"), "memcpy": ("gpu_memcpy", "Memcpy"), "memset": ("gpu_memset", "Memset")}


@pytest.mark.parametrize("kind", DEVICE_KINDS)
def test_device_categories_of_every_era_have_their_kind(load, kind):
    rows = [row(cat, pid=0, tid=7, bytes=64, stream=7, device=0) for cat in DEVICE_KINDS[kind]]
    device = load(rows)["device_ops"]
    assert device["kind"].tolist() == [kind] * 2
    assert device["size_bytes"].tolist() == [64, 64]


def test_a_trace_of_2021_has_its_steps_launches_and_work(load):
    """Steps are operators, ids are in lower case, kernels of duration 0 occur."""
    rows = [
        row("Operator", "ProfilerStep#5", 0, 100, **{"external id": 1}),
        row("Operator", "aten::conv2d", 5, 20, **{"external id": 2}),
        row("Runtime", "cudaLaunchKernel", 10, 3, correlation=9, **{"external id": 2}),
        row("Kernel", "volta_sgemm", 30, 0, 0, 7, correlation=9, device=0, stream=7, **{"external id": 2}),
        row("Memset", "Memset (Device)", 40, 2, 0, 7, correlation=10, device=0, stream=7),
        {"ph": "i", "s": "t", "name": "[memory]", "pid": HOST_PID, "tid": MAIN, "ts": 50,
         "args": {"Bytes": 512, "Device Type": 1, "Device Id": 0}},
        row("async", "enumerate(DataLoader)", 60, 5),
    ]  # fmt: skip
    trace = load(rows)
    host = trace["host_ops"]
    assert host["kind"].tolist() == ["range", "op", "runtime", "other"]
    assert host["external_id"].tolist()[:3] == [1, 2, 2]
    assert trace["device_ops"]["dur_ns"].tolist() == [0, 2_000]
    assert trace["device_ops"]["external_id"].fillna(-1).tolist() == [2, -1]
    allocated = trace["memory_ops"].iloc[0]
    assert (allocated["size_bytes"], allocated["device_type"]) == (512, 1)
    assert trace["memory_ops"]["allocated_bytes"].isna().all()


@pytest.mark.parametrize(
    "form",
    [
        {"ph": "i", "s": "t"},
        {"ph": "I"},
        {"ph": "i", "cat": "cpu_instant_event"},
        {"ph": "X", "cat": "cpu_instant_event", "dur": 10**12},
        {"ph": "X", "cat": "cpu_op", "dur": 10**12},
    ],
    ids=["2021", "capital I", "today", "torch 2.13 with a bogus duration", "as an op"],
)
def test_allocator_instants_of_every_form_are_memory_and_have_no_length(load, form):
    args = {"Bytes": -256, "Total Allocated": 1024, "Total Reserved": 2048, "Device Type": 0}
    rows = [op("aten::empty", 0, 10), {**form, "name": "[memory]", "pid": HOST_PID, "tid": MAIN, "ts": 4, "args": args}]
    trace = load(rows)
    assert trace["host_ops"]["name"].tolist() == ["aten::empty"]
    found = trace["memory_ops"].iloc[0]
    assert found["ts_ns"] == BASE_NS + 4_000
    assert (found["size_bytes"], found["allocated_bytes"], found["reserved_bytes"]) == (
        -256, 1024, 2048,
    )  # fmt: skip
    assert "dur_ns" not in trace["memory_ops"]


def test_times_written_as_text_are_times(load):
    """torch_npu writes absolute microseconds in quotes."""
    rows = [{**op("aten::add", 0, 0), "ts": "1700000000000001.125", "dur": "2.5"}]
    host = load(rows, meta={"baseTimeNanoseconds": 0})["host_ops"]
    # The builder's own base comes last in the head, so these are relative to it.
    assert (host["ts_ns"].iloc[0] - BASE_NS) == 1_700_000_000_000_001_125
    assert host["dur_ns"].iloc[0] == 2_500


def test_absolute_fractions_keep_their_nanosecond(load):
    """A float of 64 bits would lose up to 250 ns of these."""
    stamps = [1_712_195_515_387_123_457 + 1_000 * i for i in range(5)]
    rows = [{**op("a", 0, 0), "ts": f"{ns // 1000}.{ns % 1000:03}"} for ns in stamps]
    host = load(rows)["host_ops"]
    assert (host["ts_ns"] - BASE_NS).tolist() == stamps


def test_rocm_streams_and_devices_are_taken_as_recorded(load):
    rows = [
        kernel("Cijk_gemm", 0, 5, 1, device=1, stream=0), kernel("Cijk_gemm", 5, 5, 2, device=2, stream=0),
        kernel("Cijk_gemm", 9, 5, 3, device=9, stream=3), launch(0, 1, name="hipLaunchKernel"),
    ]  # fmt: skip
    trace = load(rows, meta={"deviceProperties": [{"id": 0, "name": "AMD Instinct MI210"}]})
    assert trace["device_ops"]["device"].tolist() == [1, 2, 9]
    assert trace["device_ops"]["stream"].tolist() == [0, 0, 3]
    assert trace["device_ops"]["stream"].notna().all()


def test_device_and_stream_come_from_where_a_row_was_drawn_if_not_from_its_args(load):
    rows = [
        {"ph": "X", "cat": "kernel", "name": "bare", "pid": 3, "tid": 21, "ts": 0, "dur": 1},
        kernel("full", 1, 1, device=5, stream=6),
        {"ph": "X", "cat": "kernel", "name": "text", "pid": "GPU", "tid": "stream 7", "ts": 2},
    ]
    device = load(rows)["device_ops"]
    assert device["device"].fillna(-1).tolist() == [3, 5, -1]
    assert device["stream"].fillna(-1).tolist() == [21, 6, -1]


def test_process_and_thread_ids_that_are_words_are_unknown_numbers_but_threads_of_their_own(load):
    rows = [
        row("Trace", "PyTorch Profiler (0)", 0, 9, "Spans", "PyTorch Profiler"),
        op("a", 1, 1), {**op("b", 2, 1), "pid": str(HOST_PID), "tid": "T1"}, {**op("c", 3, 1), "tid": ""},
    ]  # fmt: skip
    trace = load(rows)
    host, threads = trace["host_ops"], trace["threads"]
    assert host["pid"].tolist() == [HOST_PID] * 3
    assert host["tid"].fillna(-1).tolist() == [MAIN, -1, -1]
    assert host["thread"].nunique() == 3
    assert len(threads) == 4
    assert trace["windows"]["dur_ns"].tolist() == [9_000]


def test_threads_have_the_names_that_metadata_gives_them_the_last_one_counts(load):
    def named(kind, label, pid=HOST_PID, tid=MAIN):
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": label}}

    rows = [
        named("process_name", "python"), named("thread_name", "first"), named("thread_name", "main"),
        {"ph": "M", "name": "thread_sort_index", "pid": HOST_PID, "tid": MAIN, "args": {"sort_index": 3}},
        op("a", 0, 1), op("b", 0, 1, tid=7),
    ]  # fmt: skip
    trace = load(rows)
    threads = trace["threads"]
    assert column(threads, "name") == ["main", None]
    assert column(threads, "process_name") == ["python", "python"]
    assert not trace.notes


def test_synchronisation_records_are_a_table_of_their_own(load):
    rows = [
        row("cuda_sync", "Stream Wait Event", 0, 1, 0, 7, stream=7, device=0, correlation=4),
        row("cuda_sync", "Context Sync", 5, 2, 0, 1_000_007, correlation=5),
        row("cuda_event", "cudaEventRecord", 9, 0, 0, 7, stream=7, device=0),
    ]
    syncs = load([op("a", 0, 9), *rows])["syncs"]
    assert syncs["name"].tolist() == ["Stream Wait Event", "Context Sync", "cudaEventRecord"]
    assert syncs["stream"].tolist() == [7, 1_000_007, 7]
    assert syncs["correlation"].fillna(-1).tolist() == [4, 5, -1]


def test_annotations_on_a_device_are_no_device_work(load):
    rows = [
        annotation("update", 0, 50), row("gpu_user_annotation", "update", 20, 60, 0, 7),
        kernel("k", 21, 5),
    ]  # fmt: skip
    trace = load(rows)
    assert trace["device_ops"]["name"].tolist() == ["k"]
    ranges = trace["device_ranges"].iloc[0]
    assert (ranges["name"], ranges["device"], ranges["stream"]) == ("update", 0, 7)


def test_each_argument_of_a_counter_is_a_series(load):
    rows = [
        {"ph": "C", "name": "GPU 0 Counters", "pid": "GPU 0 Counters", "tid": "", "ts": 2,
         "args": {"power": 300.5, "clock": 1700, "state": "P0", "on": True}},
        {"ph": "C", "name": "GPU 0 Counters", "pid": 1, "tid": "", "ts": 1, "args": {"power": 2}},
        {"ph": "C", "pid": 1, "tid": 1, "ts": 3, "args": {"nameless": -1.25}},
        {"ph": "C", "name": "empty", "pid": 1, "tid": 1, "ts": 4, "args": {}},
    ]  # fmt: skip
    counters = load(rows)["counters"]
    found = set(zip(counters["id"], counters["name"], counters["value"], strict=True))
    assert found == {
        (0, "GPU 0 Counters.power", 300.5), (0, "GPU 0 Counters.clock", 1700.0),
        (1, "GPU 0 Counters.power", 2.0), (2, "nameless", -1.25),
    }  # fmt: skip


def test_arrows_are_read_on_request_only(load):
    rows = [
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 12, "pid": HOST_PID, "tid": MAIN, "ts": 1},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 12, "pid": 0, "tid": 7, "ts": 5, "bp": "e"},
        {"ph": "t", "cat": "fwdbwd", "name": "fwdbwd", "id": "x", "pid": HOST_PID, "tid": MAIN, "ts": 6},
        op("a", 0, 9),
    ]  # fmt: skip
    assert not load(rows).has("flows")
    flows = load(rows, tables=("flows", "host_ops"))["flows"]
    assert flows["phase"].tolist() == ["start", "end", "step"]
    assert flows["flow"].fillna(-1).tolist() == [12, 12, -1]
    assert flows["cat"].tolist() == ["ac2g", "ac2g", "fwdbwd"]


def test_python_calls_and_call_stacks_are_read_on_request_only(load):
    rows = [
        op("aten::add", 1, 2, **{"Call stack": "a.py(1): f", "External id": 3}),
        row("python_function", "a.py(1): f", 0, 9, **{"Python id": 1}),
    ]
    light = load(rows)
    assert light["host_ops"]["kind"].tolist() == ["op"]
    assert "Call stack" not in light.sparse
    assert light.meta["skipped_count"] == {"python_function": 1}
    assert light.meta["element_count"] == 2
    full = load(rows, python=True, stacks=True)
    assert full["host_ops"]["kind"].tolist() == ["op", "python"]
    assert full.arg("Call stack", "host_ops").tolist() == ["a.py(1): f", None]


def test_only_the_tables_asked_for_are_built(load):
    rows = [op("a", 0, 9), launch(1, 1), kernel("k", 2, 2, 1), memory(3, 8, 8)]
    assert set(load(rows, tables=("device_ops",)).tables) == {"device_ops"}
    assert set(load(rows).tables) == {"host_ops", "device_ops", "memory_ops", "threads"}


def test_devices_alone_have_no_host_table_and_hosts_alone_no_device_table(load):
    """Absent is "not recorded": an idle GPU and an unprofiled one must not look alike."""
    on_device = load([kernel("k", 0, 5), memset(6, 1, 8)])
    assert on_device.has("device_ops")
    assert not on_device.has("host_ops")
    on_host = load([op("a", 0, 5)])
    assert on_host.has("host_ops")
    assert not on_host.has("device_ops")
    assert {"memory_ops", "counters", "syncs", "device_ranges", "windows"}.isdisjoint(on_host.tables)


def test_a_capture_of_nothing_at_all_recorded_an_empty_host(load):
    trace = load([])
    assert len(trace["host_ops"]) == 0
    assert set(trace.tables) == {"host_ops", "threads"}


COLLECTIVES = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long)", "ncclKernel_Broadcast",
    "void rcclGenericKernel<1>", "hcclAllReduce", "nvshmem_barrier_all", "deep_ep::intranode::dispatch",
    "deepep_combine", "void vllm::cross_device_reduce_1stage<float>", "all_reduce_two_shot_kernel",
    "allreduce_kernel", "one_shot_all_reduce_kernel", "multimem_all_gather_Kernel", "TWO_SHOT_KERNEL",
)  # fmt: skip
COMPUTE = (
    "ampere_sgemm_128x64_tn", "void at::native::reduce_kernel<512>", "one_shot_softmax",
    "multimem_copy", "all_reduce", "Memcpy DtoD (Device -> Device)",
)  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_kernel_is_a_collective_by_its_name(load, name):
    assert kinds(load([kernel(name, 0, 1)]), "device_ops") == {name: "collective"}


@pytest.mark.parametrize("name", COMPUTE)
def test_a_kernel_that_only_resembles_a_collective_computes(load, name):
    assert kinds(load([kernel(name, 0, 1)]), "device_ops") == {name: "kernel"}


def test_a_kernel_is_a_collective_by_its_metadata_and_nothing_else_is(load):
    known = {"Collective name": "allreduce", "In msg nelems": 4}
    rows = [
        kernel("anonymous", 0, 1, **known), memcpy("Memcpy PtoP nccl", 2, 1, 8),
        op("nccl:all_reduce", 0, 3, **known), memset(4, 1, 8),
    ]  # fmt: skip
    trace = load(rows)
    assert trace["device_ops"]["kind"].tolist() == ["collective", "memcpy", "memset"]
    assert trace["host_ops"]["kind"].tolist() == ["op"]


def test_metadata_tells_collectives_also_when_few_arguments_are_read(load):
    trace = load([kernel("anonymous", 0, 1, **{"Collective name": "x"})], args=())
    assert trace["device_ops"]["kind"].tolist() == ["collective"]


def test_every_frame_has_exactly_the_types_of_the_schema(load):
    rows = [
        step(1, 0, 100), op("a", 1, 5), launch(2, 1), kernel("k", 5, 5, 1), memory(6, 8, 8),
        row("cuda_sync", "s", 7, 1), row("gpu_user_annotation", "r", 7, 1), row("Trace", "w", 0, 99),
        {"ph": "C", "name": "c", "pid": 1, "tid": 1, "ts": 1, "args": {"v": 1}},
        {"ph": "s", "cat": "ac2g", "name": "f", "id": 1, "pid": 1, "tid": 1, "ts": 1},
    ]  # fmt: skip
    of_traces = {
        "counters",
        "device_ops",
        "device_ranges",
        "flows",
        "host_ops",
        "memory_ops",
        "syncs",
        "threads",
        "windows",
    }
    trace = load(rows, tables=sorted(of_traces))
    assert set(trace.tables) == of_traces
    for name, frame in trace.tables.items():
        table = TABLES[name]
        assert {n: str(t) for n, t in frame.dtypes.items()} == {n: c.dtype for n, c in table.columns.items()}
        for n, c in table.columns.items():
            if c.values:
                assert tuple(frame[n].cat.categories) == c.values
            elif c.dtype == "category":
                assert frame[n].cat.categories.dtype == pd.Index([], dtype="str").dtype


cats = st.sampled_from([*CLASS_OF_CATEGORY, "Kernel", "Operator", "odd", None])
events = st.lists(st.tuples(st.sampled_from("XiIMCsft?"), cats, st.integers(0, 9), st.integers(0, 3)), max_size=25)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events)
def test_no_element_is_in_two_tables_and_none_is_lost_unsaid(tmp_path, drawn):
    rows = [
        {"ph": ph, "cat": cat, "name": "n", "pid": 1, "tid": 1, "ts": ts, "dur": d, "args": {"v": 1}}
        for ph, cat, ts, d in drawn
    ]
    path = write(tmp_path / "trace.json", rows)
    trace = tracekit.load(path, python=True, tables=[t.name for t in RAW if t.name != "threads"])
    ids = [i for frame in trace.tables.values() for i in frame["id"].tolist()]
    assert len(set(ids)) == len(ids)
    unread = sum(ph == "?" for ph, *_ in drawn)
    silent = sum(ph == "M" for ph, *_ in drawn) + sum(
        ph in "iI" or (ph == "X" and cat == "cpu_instant_event") for ph, cat, *_ in drawn
    )
    assert len(ids) == len(drawn) - unread - silent
    counts = {note.code: note.count for note in trace.notes}
    if NO_TIMES in counts:  # one note for a trace of which nothing can be used
        assert ids == []
        assert counts[NO_TIMES] >= unread
    else:
        assert counts.get("phase", 0) == unread


@pytest.mark.parametrize(("pids", "tids"), [(0, 127), (1, 126), (3, 40), (1, 300), (200, 200)])
def test_threads_are_numbered_by_pid_and_tid_however_many_they_are(pids, tids):
    pid = np.arange(400) % (pids + 1) - 1
    tid = np.arange(400) * 7 % (tids + 1) - 1
    columns = [
        Codes(codes.astype(np.min_scalar_type(-count - 1)), list(range(count)))
        for codes, count in ((pid, pids), (tid, tids))
    ]
    thread, (thread_pid, thread_tid) = number_threads(*columns)
    pairs, number = np.unique(pid * 1000 + tid, return_inverse=True)
    assert thread.tolist() == number.tolist()
    assert (thread_pid * 1000 + thread_tid).tolist() == pairs.tolist()


def test_the_process_of_most_host_rows_is_that_of_the_trace_in_blocks_of_any_size(load, monkeypatch):
    monkeypatch.setattr("tracekit.readers.chrome.COUNTED_ROWS", 3)
    rows = [row("cpu_op", ts=i, pid=HOST_PID + (i % 5 == 0)) for i in range(20)]
    rows += [row("python_function", ts=i, pid=HOST_PID + 1) for i in range(40)]
    assert load(rows, python=True).source.pid == HOST_PID
    assert load(rows[40:], python=True).source.pid is None
