"""Device work, calls and threads of an export, by numbers worked out by hand."""

import nsys_builder as nsys
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.model.inputs.note_codes import OVERLONG
from tracekit.model.tables import ASKED_COLUMNS
from tracekit.model.trace import Source, Want
from tracekit.process.calls.launches import find_launches
from tracekit.process.device.transfers import parse_copy_direction
from tracekit.readers.nsys import read

BASE = nsys.BASE_NS


def traces(tmp_path, rows, tables=None, args=None, **options):
    path = nsys.write(tmp_path / "x.sqlite", rows, **options)
    want = Want(None if tables is None else frozenset(tables), args)
    return read(Source(path, "x", "nsys", "nsys"), want)


def only(tmp_path, rows, **options):
    (trace,) = traces(tmp_path, rows, **options)
    return trace


def notes(trace):
    return {note.code: note.count for note in trace.notes}


def test_the_number_of_a_thread_stands_with_each_row_only_where_it_is_asked_for(tmp_path):
    rows = nsys.launched("gemm", 100, 2_500, 4_000, 11)
    path = nsys.write(tmp_path / "x.sqlite", rows)
    source = Source(path, "x", "nsys", "nsys")
    (whole,), (asked,) = read(source, Want()), read(source, Want(columns=ASKED_COLUMNS))
    assert whole["host_ops"]["tid"].notna().all()
    assert asked["host_ops"]["tid"].isna().all()
    assert whole["host_ops"].drop(columns="tid").equals(asked["host_ops"].drop(columns="tid"))
    assert whole["threads"].equals(asked["threads"])


@pytest.mark.parametrize("schema", nsys.SCHEMAS)
def test_a_kernel_is_the_same_in_every_version_of_the_schema(tmp_path, schema):
    rows = nsys.launched("gemm<float>(int)", 100, 2_500, 4_000, 11, device=1, stream=13)
    trace = only(tmp_path, rows, schema=schema, duration_ns=9_000 if schema != "2021" else None)
    (kernel,) = trace["device_ops"].to_dict("records")
    assert (kernel["ts_ns"], kernel["dur_ns"]) == (BASE + 2_500, 1_500)
    assert (kernel["name"], kernel["kind"]) == ("gemm<float>(int)", "kernel")
    assert (kernel["device"], kernel["stream"], kernel["correlation"]) == (1, 13, 11)
    (call,) = trace["host_ops"].to_dict("records")
    assert (call["name"], call["kind"], call["cat"]) == ("cudaLaunchKernel", "runtime", "cuda_runtime")
    assert (call["ts_ns"], call["dur_ns"], call["correlation"]) == (BASE + 100, 2_000, 11)
    assert (call["pid"], call["tid"], call["thread"]) == (nsys.PID, nsys.TID, 0)
    assert trace.derived(find_launches).call.tolist() == [0]
    assert trace.meta["absolute_time"] is True
    assert (trace.source.pid, trace.source.host) == (nsys.PID, nsys.HOST)
    if schema != "2021":
        assert trace["windows"].iloc[0].to_dict() == {"id": 2, "ts_ns": BASE, "dur_ns": 9_000, "name": "nsys capture"}


def test_every_row_of_a_trace_has_an_id_of_its_own(tmp_path):
    rows = [
        *nsys.launched("a", 0, 10, 20, 1), nsys.nvtx("r", 0, 30), nsys.nvtx("open", 50, 100),
        nsys.sync(1, 2, 5), nsys.memory(3, 8, 64), nsys.metric_name("SM", 1), nsys.metric(5, 1, 50),
    ]  # fmt: skip
    trace = only(tmp_path, rows, duration_ns=100)
    ids = np.concatenate([f["id"] for name, f in trace.tables.items() if name != "threads"])
    assert sorted(ids) == list(range(8))
    assert trace.arg("grid", "device_ops").tolist() == ["[16, 1, 1]"]
    assert trace.meta["element_count"] == 8


def test_kernels_of_collectives_are_told_by_name(tmp_path):
    names = ["ncclDevKernel_AllReduce_Sum(x)", "gemm(x)", "void nvshmem_put()", "cross_device_reduce_1stage"]
    trace = only(tmp_path, [nsys.kernel(name, i, i + 1) for i, name in enumerate(names)])
    assert trace["device_ops"]["kind"].tolist() == ["collective", "kernel", "collective", "collective"]
    lost = nsys.kernel("x", 0, 1, demangledName=10**6, shortName=10**6)
    assert only(tmp_path / "lost", [lost])["device_ops"]["kind"].tolist() == ["kernel"]


def test_a_kernel_without_its_long_name_has_its_short_one(tmp_path):
    path = nsys.write(tmp_path / "x.sqlite", [nsys.kernel("gemm(int)", 0, 5)])
    nsys.execute(
        path,
        "CREATE TABLE k AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "UPDATE k SET demangledName = NULL",
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "ALTER TABLE k RENAME TO CUPTI_ACTIVITY_KIND_KERNEL",
    )
    (trace,) = read(Source(path, "x", "nsys", "nsys"), Want())
    assert trace["device_ops"]["name"].tolist() == ["gemm"]


def test_copies_and_fills_have_the_names_and_sizes_that_other_readers_give_them(tmp_path):
    rows = [
        nsys.memcpy(0, 1, 10, kind=1, source=0, target=2), nsys.memcpy(1, 2, 20, kind=2, source=2, target=1),
        nsys.memcpy(2, 3, 30, kind=8, source=2, target=2), nsys.memcpy(3, 4, 40, kind=10, source=2, target=2),
        nsys.memcpy(4, 5, 50, kind=11, source=4, target=4), nsys.memcpy(5, 6, 60, kind=99, source=None, target=None),
        nsys.memset(6, 7, 70), nsys.memset(7, 8, 80, kind=None), nsys.memcpy(8, 9, 90, source=None),
    ]  # fmt: skip
    ops = only(tmp_path, rows)["device_ops"]
    assert ops["name"].tolist() == [
        "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memcpy DtoD (Device -> Device)",
        "Memcpy PtoP (Device -> Device)", "Memcpy HtoD (Unified Memory)", "Memcpy", "Memset (Device)", "Memset",
        "Memcpy HtoD",
    ]  # fmt: skip
    assert ops["kind"].tolist() == ["memcpy"] * 6 + ["memset"] * 2 + ["memcpy"]
    assert ops["size_bytes"].tolist() == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert parse_copy_direction(ops["name"][0]) == ("HtoD", "Pageable -> Device")
    assert parse_copy_direction(ops["name"][3]) == ("PtoP", "Device -> Device")


def test_a_graph_traced_as_a_whole_is_device_work(tmp_path):
    trace = only(tmp_path, [nsys.api("cudaGraphLaunch_v10000", 0, 5, 3), nsys.graph(10, 90, 3, graph_id=7)])
    (graph,) = trace["device_ops"].to_dict("records")
    assert (graph["name"], graph["kind"], graph["dur_ns"]) == ("CUDA graph 7", "kernel", 80)
    assert trace.arg("graph id", "device_ops").tolist() == [7]
    assert trace.derived(find_launches).call.tolist() == [0]


def test_arguments_are_written_as_kineto_writes_them_and_only_those_wanted_are_read(tmp_path):
    rows = [
        nsys.kernel("k", 0, 1, 1, grid=(2**31 - 1, 65535, 3), block=(1024, 1, 1), graphNodeId=5),
        nsys.memcpy(1, 2, 3),
    ]
    trace = only(tmp_path, rows)
    assert trace.arg("grid", "device_ops").tolist() == ["[2147483647, 65535, 3]", None]
    assert trace.arg("block", "device_ops").tolist() == ["[1024, 1, 1]", None]
    assert trace.arg("registers per thread", "device_ops")[0] == 32
    assert trace.arg("shared memory", "device_ops")[0] == 1536
    assert trace.arg("graph node id", "device_ops")[0] == 5
    assert trace.arg("context", "device_ops").tolist() == [1, 1]
    assert trace.arg("src", "device_ops").tolist() == [None, "Pageable"]
    (few,) = traces(tmp_path / "few", rows, args=("block",))
    assert set(few.sparse) == {"block"}


def test_kernels_copies_fills_and_graphs_are_one_table_in_order_of_time(tmp_path):
    rows = [nsys.memset(6, 7, 70), nsys.graph(4, 5, 3), nsys.memcpy(2, 3, 30), nsys.kernel("k", 0, 1)]
    ops = only(tmp_path, rows)["device_ops"]
    assert ops["kind"].tolist() == ["kernel", "memcpy", "kernel", "memset"]
    assert ops["size_bytes"].astype(object).where(ops["size_bytes"].notna(), None).tolist() == [None, 30, None, 70]


def test_correlations_are_read_where_calls_are_not_and_sizes_only_where_they_are_asked_for(tmp_path):
    path = nsys.write(tmp_path / "x.sqlite", [*nsys.launched("k", 0, 1, 2, 11), nsys.memcpy(2, 3, 30, 12)])
    source = Source(path, "x", "nsys", "nsys")
    (alone,) = read(source, Want(frozenset({"device_ops"})))
    assert alone["device_ops"]["correlation"].tolist() == [11, 12]
    (few,) = read(source, Want(columns=frozenset()))
    assert few["device_ops"]["size_bytes"].isna().all()
    assert few["device_ops"]["device"].isna().all()
    assert few["device_ops"]["stream"].isna().all()


def test_an_op_as_long_as_the_capture_is_kept_and_a_longer_one_is_left_out(tmp_path):
    rows = [
        nsys.kernel("whole", 0, 1_000),
        nsys.kernel("more", 1, 1_002, stream=8),
        nsys.kernel("less", 2, 900, stream=9),
    ]
    trace = only(tmp_path, rows, tables=("device_ops",), duration_ns=1_000)
    assert trace["device_ops"]["name"].tolist() == ["whole", "less"]
    assert notes(trace)[OVERLONG] == 1
    assert len(only(tmp_path / "unknown", rows, tables=("device_ops",))["device_ops"]) == 3


def test_equal_correlation_ids_of_two_processes_are_kept_apart(tmp_path):
    rows = [
        *nsys.launched("a", 0, 10, 20, 1, pid=100, tid=100), *nsys.launched("b", 1, 11, 31, 1, pid=200, tid=201, device=1),
        nsys.kernel("early", 2, 3, 77, pid=200, device=1),
    ]  # fmt: skip
    one, two = traces(tmp_path, rows)
    assert (one.source.pid, two.source.pid) == (100, 200)
    assert one["device_ops"]["name"].tolist() == ["a"]
    assert two["device_ops"]["name"].tolist() == ["early", "b"]
    assert two["device_ops"]["device"].tolist() == [1, 1]
    assert two.derived(find_launches).call.tolist() == [-1, 0]
    assert "unmatched-launches" not in notes(one)
    assert notes(two)["unmatched-launches"] == 1


def test_a_wait_is_on_the_device_of_its_context_not_on_the_one_recorded(tmp_path):
    rows = [
        nsys.kernel("k", 0, 1, device=1, context=2), nsys.sync(1, 2, kind=1, device=0, context=2, stream=2**32 - 1),
        nsys.sync(2, 3, kind=2, device=0, context=2), nsys.sync(3, 4, kind=3, device=0, context=9),
        nsys.sync(4, 5, kind=4, device=0, context=2), nsys.sync(5, 6, kind=55, device=0, context=2),
    ]  # fmt: skip
    for more in ([], [nsys.context(2, 1)]):
        syncs = only(tmp_path / str(len(more)), [*rows, *more])["syncs"]
        assert syncs["name"].tolist() == [
            "Event Sync",
            "Stream Wait Event",
            "Stream Sync",
            "Context Sync",
            "Unknown Sync",
        ]
        assert syncs["device"].tolist() == [1, 1, 0, 1, 1]
        assert syncs["stream"].isna().tolist() == [True, False, False, False, False]


def test_the_device_of_a_wait_does_not_depend_on_what_else_is_read(tmp_path):
    path = tmp_path / "waits.sqlite"
    rows = [
        nsys.kernel("k", 0, 1, device=1, context=2), nsys.kernel("k", 1, 2, device=3, context=2),
        nsys.memset(0, 1, 8, device=4, context=5), nsys.sync(2, 3, kind=3, device=0, context=2),
        nsys.sync(3, 4, kind=3, device=0, context=5), nsys.sync(4, 5, kind=3, device=0, context=9),
        nsys.nvtx("range", 0, 9),
    ]  # fmt: skip
    nsys.write(path, rows)
    for tables in (("syncs", "host_ops"), ("syncs", "device_ops"), None):
        assert tracekit.load(path, tables=tables)["syncs"]["device"].tolist() == [1, 4, 0]


def test_rows_that_no_clock_can_place_are_left_out_and_odd_ends_count_as_zero(tmp_path):
    rows = [
        nsys.kernel("good", 100, 150), nsys.kernel("backwards", 200, 190), nsys.kernel("endless", 300, 2**62),
        nsys.kernel("never", 2**62, 2**62 + 1), nsys.kernel("long ago", -(2**62), 5), nsys.kernel("unknown", 0, 0),
        nsys.kernel("before", -50, 10),
    ]  # fmt: skip
    trace = only(tmp_path, rows)
    ops = trace["device_ops"]
    assert list(zip(ops["name"], ops["ts_ns"] - BASE, ops["dur_ns"], strict=True)) == [
        ("before", -50, 60), ("good", 100, 50), ("backwards", 200, 0), ("endless", 300, 0),
    ]  # fmt: skip
    assert notes(trace) == {"no-time": 3, "bad-duration": 2, "negative-time": 1}


def test_calls_lose_the_version_of_their_interface_and_nothing_else(tmp_path):
    names = {
        "cudaLaunchKernel_v7000": "cudaLaunchKernel", "cudaMemcpyAsync_v3020_ptsz": "cudaMemcpyAsync",
        "cudaStreamGetCaptureInfo_v2_v11030": "cudaStreamGetCaptureInfo_v2", "cuMemAlloc_v2": "cuMemAlloc_v2",
        "cuLaunchKernelEx": "cuLaunchKernelEx",
    }  # fmt: skip
    rows = [nsys.api(n, i, i + 1, i + 1, driver=n.startswith("cu") and n[2].isupper()) for i, n in enumerate(names)]
    host = only(tmp_path, rows)["host_ops"]
    assert host["name"].tolist() == [*names.values()]
    assert host["cat"].tolist() == ["cuda_runtime"] * 3 + ["cuda_driver"] * 2
    assert set(host["kind"]) == {"runtime"}


def test_calls_of_the_system_and_the_profilers_own_work_lie_beside_the_calls_of_cuda(tmp_path):
    rows = [nsys.api("cudaFree_v3020", 0, 9, 1), nsys.os_call("poll", 2, 8, tid=7), nsys.overhead("flush", 3, 4)]
    trace = only(tmp_path, rows)
    host = trace["host_ops"]
    assert list(zip(host["name"], host["kind"], host["cat"], host["tid"], strict=True)) == [
        ("cudaFree", "runtime", "cuda_runtime", nsys.TID), ("poll", "other", "os_runtime", 7),
        ("flush", "overhead", "overhead", nsys.TID),
    ]  # fmt: skip
    assert trace["threads"][["thread", "pid", "tid"]].to_numpy().tolist() == [[0, 100, 7], [1, 100, 100]]
    assert host["thread"].tolist() == [1, 0, 1]


def test_calls_that_begin_together_are_in_order_of_length_thread_and_name(tmp_path):
    rows = [
        nsys.api("b", 0, 5), nsys.api("a", 0, 5), nsys.api("x", 0, 5, nameId=10**6), nsys.api("long", 0, 9),
        nsys.api("first", 0, 5, tid=7),
    ]  # fmt: skip
    host = only(tmp_path, rows)["host_ops"]
    names = host["name"].astype(object).where(host["name"].notna(), None)
    assert names.tolist() == ["long", "first", None, "a", "b"]
    assert host["correlation"].isna().all()


def test_ranges_lie_between_calls_and_keep_their_arguments(tmp_path):
    rows = [
        nsys.api("call", 10, 15, 4), nsys.nvtx("late", 20, 30, int64Value=7), nsys.nvtx("early", 0, 40, int64Value=5),
        nsys.os_call("poll", 12, 13),
    ]  # fmt: skip
    trace = only(tmp_path, rows)
    host = trace["host_ops"]
    assert host["name"].tolist() == ["early", "call", "poll", "late"]
    assert host["correlation"].isna().tolist() == [True, False, True, True]
    payload = trace.arg("payload", "host_ops")
    assert payload.dropna().to_dict() == {0: 5, 3: 7}


def test_a_process_with_calls_of_the_system_alone_is_counted_and_left_out(tmp_path):
    rows = [*nsys.launched("a", 0, 10, 20, 1), nsys.os_call("poll", 2, 8, pid=300), nsys.os_call("poll", 2, 8, pid=301)]
    trace = only(tmp_path, rows)
    assert trace.source.pid == nsys.PID
    assert notes(trace)["other-processes"] == 2
    assert "poll" not in set(trace["host_ops"]["name"])
    alone = only(tmp_path / "alone", [nsys.os_call("poll", 2, 8, pid=300)])
    assert (alone.source.pid, len(alone["host_ops"])) == (300, 1)
    several = only(tmp_path / "several", rows[2:])
    assert (several.source.pid, len(several["host_ops"])) == (None, 2)


def test_names_of_threads_are_the_programs_own_then_the_systems(tmp_path):
    rows = [
        nsys.api("a", 0, 1, tid=1), nsys.api("a", 1, 2, tid=2), nsys.api("a", 2, 3, tid=3),
        nsys.thread("python", tid=1), nsys.thread("pt_autograd_0", tid=1), nsys.thread("python", tid=2),
        nsys.thread("worker", tid=3), nsys.nvtx("loader", 0, None, kind=39, tid=3),
        nsys.thread("other", tid=1, pid=9), nsys.process("python"), nsys.process("bash", pid=9),
    ]  # fmt: skip
    threads = only(tmp_path, rows)["threads"]
    assert threads["name"].tolist() == ["pt_autograd_0", "python", "loader"]
    assert set(threads["process_name"]) == {"python"}


def test_of_several_names_the_first_by_the_alphabet_that_is_not_the_processes_is_taken(tmp_path):
    rows = [
        nsys.api("a", 0, 1, tid=1), nsys.thread("b", tid=1), nsys.thread("c", tid=1), nsys.thread("a", tid=1),
        nsys.process("zsh"), nsys.process("a"), nsys.process(""), nsys.nvtx("other", 0, None, kind=39, pid=9, tid=1),
    ]  # fmt: skip
    threads = traces(tmp_path, rows)[0]["threads"]
    assert threads["name"].tolist() == ["b"]
    assert threads["process_name"].tolist() == ["a"]


def test_rows_of_an_unknown_process_are_those_of_the_only_one(tmp_path):
    rows = [*nsys.launched("a", 0, 10, 20, 1), nsys.kernel("b", 30, 40, 2, globalPid=None)]
    assert only(tmp_path, rows)["device_ops"]["name"].tolist() == ["a", "b"]
    two = [*rows, *nsys.launched("c", 0, 10, 20, 1, pid=200)]
    first, second, unknown = traces(tmp_path / "two", two)
    assert [t["device_ops"]["name"].tolist() for t in (first, second, unknown)] == [["a"], ["c"], ["b"]]
    assert unknown.source.pid is None


def test_what_was_not_recorded_is_absent_and_what_recorded_nothing_is_empty(tmp_path):
    trace = only(tmp_path, [nsys.nvtx("r", 0, 5)])
    assert set(trace.tables) == {"host_ops", "open_ranges", "threads"}
    assert len(trace["open_ranges"]) == 0
    (device,) = traces(tmp_path / "d", nsys.launched("a", 0, 1, 2, 1), tables=("device_ops",))
    assert set(device.tables) == {"device_ops"}


def test_memory_and_metrics_go_to_the_process_that_uses_the_gpu(tmp_path):
    rows = [
        nsys.kernel("a", 0, 1, pid=100, device=0), nsys.kernel("b", 0, 1, pid=200, device=1),
        nsys.memory(5, 100, 1, pid=200, device=1), nsys.memory(6, 50, 2, pid=200, device=1),
        nsys.memory(7, 100, 1, pid=200, device=1, free=True),
        nsys.metric_name("SM Active", 3, gpu=1), nsys.metric(9, 3, 42, gpu=1),
    ]  # fmt: skip
    one, two = traces(tmp_path, rows)
    assert not one.has("memory_ops")
    assert not one.has("counters")
    memory = two["memory_ops"]
    assert memory["size_bytes"].tolist() == [100, 50, -100]
    assert memory["reserved_bytes"].tolist() == [100, 150, 50]
    assert memory["device"].tolist() == [1, 1, 1]
    assert memory["allocated_bytes"].isna().all()
    assert two["threads"].set_index("thread")["tid"].loc[memory["thread"]].isna().all()
    assert two["counters"][["name", "value"]].to_numpy().tolist() == [["GPU 1 SM Active", 42.0]]


def test_memory_is_of_a_thread_without_a_number_beside_those_with_one(tmp_path):
    rows = [*nsys.launched("a", 0, 10, 20, 1, tid=5), nsys.api("b", 3, 4, tid=6), nsys.memory(5, 100, 1)]
    threads = only(tmp_path, rows)["threads"]
    assert threads["tid"].isna().tolist() == [True, False, False]
    assert threads["tid"].tolist()[1:] == [5, 6]


def test_metrics_of_the_first_gpu_go_to_the_process_that_uses_it(tmp_path):
    rows = [
        nsys.kernel("a", 0, 1, pid=100, device=1), nsys.kernel("b", 0, 1, pid=200, device=0),
        nsys.metric_name("SM Active", 3, gpu=0), nsys.metric(9, 3, 42, gpu=0),
    ]  # fmt: skip
    one, two = traces(tmp_path, rows)
    assert not one.has("counters")
    assert two["counters"]["value"].tolist() == [42.0]


def test_progress_is_told_up_to_the_size_of_the_file(tmp_path):
    path = nsys.write(tmp_path / "x.sqlite", nsys.launched("a", 0, 1, 2, 1))
    told = []
    read(Source(path, "x", "nsys", "nsys", size_bytes=1000), Want(), told.append)
    assert told == sorted(told)
    assert told[-1] == 1000


KERNELS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(0, 1), st.sampled_from("abc")),
    min_size=1,
    max_size=12,
)


@given(KERNELS, st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_order_of_rows_in_the_file_means_nothing(tmp_path, kernels, shuffler):
    rows = [nsys.kernel(name, start, start + dur, device=device) for start, dur, device, name in kernels]
    mixed = [*rows]
    shuffler.shuffle(mixed)
    frames = []
    for number, some in enumerate((rows, mixed)):
        path = tmp_path / f"{number}.sqlite"
        path.unlink(missing_ok=True)
        nsys.write(path, some)
        frames.append(read(Source(path, "x", "nsys", "nsys"), Want())[0]["device_ops"])
    assert frames[0].equals(frames[1])
    expected = sorted((start, dur, device, name) for start, dur, device, name in kernels)
    columns = ("ts_ns", "dur_ns", "device", "name")
    found = zip(*(frames[0][column].tolist() for column in columns), strict=True)
    assert [(ts - BASE, *rest) for ts, *rest in found] == expected
