"""GPU memory and GPU metrics: running sums by hand, samples by name, and whose they are."""

import numpy as np
import pytest
from nsys_builder import BASE_NS, PID, execute, gpu, kernel, memory, metric, metric_name, nvtx, write

from tracekit.readers.nsys import content as nsys_content
from tracekit.readers.nsys import memory as nsys_memory
from tracekit.readers.nsys import metrics as nsys_metrics
from tracekit.readers.nsys.sqlite.connection import open_export

GB = 2**30


@pytest.fixture
def path(tmp_path):
    """A function: the path of an export of these rows."""
    numbers = iter(range(1000))
    return lambda rows, schema="3.11", **more: write(tmp_path / f"{next(numbers)}.sqlite", rows, schema=schema, **more)


def read(module, file):
    with open_export(file) as db:
        return module.read(db, nsys_content.read_export_clock(db)[0])


def rows_of(ops):
    """(start, device, size, held after it) of every row."""
    columns = (ops.ts_ns - BASE_NS, ops.device, ops.size_bytes, ops.reserved_bytes)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_memory_held_is_a_running_sum_a_device(path):
    rows = [memory(10, 5 * GB, 0xA), memory(20, GB, 0xB), memory(25, 3 * GB, 0xA, device=1),
            memory(30, 0, 0xA, free=True), memory(40, 2 * GB, 0xA), memory(50, 2 * GB, 0xA, free=True)]  # fmt: skip
    (mine,) = read(nsys_memory, path(rows[::-1])).values()
    assert rows_of(mine) == [
        (10, 0, 5 * GB, 5 * GB),
        (20, 0, GB, 6 * GB),
        (25, 1, 3 * GB, 3 * GB),
        (30, 0, -5 * GB, GB),
        (40, 0, 2 * GB, 3 * GB),
        (50, 0, -2 * GB, GB),
    ]
    assert mine.notes == ()


def test_a_free_of_what_was_taken_before_the_recording_is_left_out_and_counted(path):
    rows = [memory(10, 7, 0xA, free=True), memory(20, 5, 0xA), memory(30, 5, 0xA, free=True),
            memory(40, 5, 0xA, free=True)]  # fmt: skip
    (mine,) = read(nsys_memory, path(rows)).values()
    assert rows_of(mine) == [(20, 0, 5, 5), (30, 0, -5, 0)]
    assert [(n.severity, n.code, n.count) for n in mine.notes] == [("info", "memory-relative", 2)]


def test_an_address_that_is_handed_out_again_at_once_is_freed_first(path):
    rows = [memory(10, 5, 0xA), memory(20, 9, 0xA), memory(20, 5, 0xA, free=True)]
    (mine,) = read(nsys_memory, path(rows)).values()
    assert rows_of(mine) == [(10, 0, 5, 5), (20, 0, -5, 0), (20, 0, 9, 9)]


def test_processes_are_kept_apart_and_host_memory_is_left_out(path):
    rows = [memory(10, 5, 0xA), memory(11, 6, 0xA, pid=7), memory(12, 100, 0xC, kind=1)]
    found = read(nsys_memory, path(rows))
    assert {pid: rows_of(ops) for pid, ops in found.items()} == {7: [(11, 0, 6, 6)], PID: [(10, 0, 5, 5)]}
    assert [note.code for note in found[PID].notes] == ["host-memory"]


def test_memory_that_was_not_recorded_is_none(path):
    assert read(nsys_memory, path([nvtx("a", 1, 2)])) is None
    assert read(nsys_memory, path([], tables=["CUDA_GPU_MEMORY_USAGE_EVENTS"])) == {}


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [("start", "'x'", "no-time"), ("start", 2**62, "no-time"), ("bytes", -5, "bad-size"), ("bytes", 2**60, "bad-size"),
     ("bytes", "x'00'", "bad-size"), ("memoryOperationType", 9, "bad-size"), ("memKind", "'x'", None),
     ("deviceId", -(2**63), None), ("address", "'x'", None), ("globalPid", "'x'", None)],
)  # fmt: skip
def test_memory_operations_that_cannot_be_are_left_out(path, column, value, code):
    file = path([memory(10, 5, 0xA), memory(20, 6, 0xB)])
    execute(file, f"UPDATE CUDA_GPU_MEMORY_USAGE_EVENTS SET {column} = {value} WHERE address = 10")
    found = read(nsys_memory, file)
    assert sum(len(ops.ts_ns) for ops in found.values()) == (1 if code else 2)
    assert [note.code for ops in found.values() for note in ops.notes] == [code] * bool(code)


NAMES = [metric_name("SM Active [Throughput %]", 3), metric_name("Tensor Active [Throughput %]", 4),
         metric_name("SM Active [Throughput %]", 9, gpu=1)]  # fmt: skip


def test_samples_are_named_by_gpu_and_metric(path):
    rows = [*NAMES, metric(20, 3, 55), metric(20, 4, 7), metric(-10, 3, 1), metric(15, 9, 99, gpu=1)]
    found = read(nsys_metrics, path(rows[::-1]))
    told = [
        (int(ts) - BASE_NS, found.names[code], value, gpu)
        for ts, code, value, gpu in zip(found.ts_ns, found.name, found.value, found.gpu, strict=True)
    ]
    assert told == [
        (-10, "GPU 0 SM Active [Throughput %]", 1.0, 0),
        (15, "GPU 1 SM Active [Throughput %]", 99.0, 1),
        (20, "GPU 0 SM Active [Throughput %]", 55.0, 0),
        (20, "GPU 0 Tensor Active [Throughput %]", 7.0, 0),
    ]
    assert found.notes == ()


def test_samples_of_metrics_without_a_name_are_left_out_and_counted(path):
    found = read(nsys_metrics, path([*NAMES, metric(20, 3, 55), metric(20, 77, 7)]))
    assert len(found.ts_ns) == 1
    assert [(note.code, note.count) for note in found.notes] == [("no-name", 1)]
    nameless = read(nsys_metrics, path([metric(20, 3, 55)]))
    assert len(nameless.ts_ns) == 0


@pytest.mark.parametrize("value", ["'x'", "x'00'", "NULL", "1e300", "2.5", str(2**62), str(-(2**63))])
@pytest.mark.parametrize("column", ["timestamp", "typeId", "metricId", "value"])
def test_a_sample_of_any_type_is_read_or_left_out(path, column, value):
    file = path([*NAMES, metric(20, 3, 55), metric(30, 3, 56)])
    execute(
        file,
        "CREATE TABLE other AS SELECT * FROM GPU_METRICS",
        f"UPDATE other SET {column} = {value} WHERE timestamp = 20",
        "DROP TABLE GPU_METRICS",
        "ALTER TABLE other RENAME TO GPU_METRICS",
    )
    found = read(nsys_metrics, file)
    assert 56.0 in found.value
    assert np.isfinite(found.value).all()


def test_samples_go_with_the_process_that_alone_uses_the_gpu_else_with_the_first(path):
    rows = [*NAMES, metric(1, 3, 1), metric(2, 9, 2, gpu=1)]
    found = read(nsys_metrics, path(rows))

    def owners(gpus):
        return {pid: at.tolist() for pid, at in nsys_metrics.assign_samples_to_processes(found, gpus).items()}

    assert owners({30: {0}, 31: {1}}) == {30: [0], 31: [1]}
    assert owners({31: {0}, 30: {0, 1}}) == {30: [0, 1]}
    assert owners({30: {5}, 31: {6}}) == {30: [0, 1]}
    assert owners({}) == {}


def test_metrics_that_were_not_recorded_are_none(path):
    assert read(nsys_metrics, path([gpu(), kernel("k", 1, 2), nvtx("a", 1, 2)])) is None
    assert len(read(nsys_metrics, path(NAMES, "3.25", tables=["GPU_METRICS"])).ts_ns) == 0
