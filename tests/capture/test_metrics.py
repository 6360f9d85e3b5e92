"""The logs hold what the guide's classes meant to tell, and tracekit reads them."""

import json
import sys
import threading
import types

import fake_torch
import pytest

from capture.metrics import MemoryProfiler, MetricsLogger, PerformanceCounter, profile_model
from capture.metrics import counters as counters_module
from capture.metrics import memory_log as memory_module
from tracekit.model.trace import Source, Want
from tracekit.readers import driver_log, memory_log
from tracekit.readers.loading import sniff


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    time = types.SimpleNamespace(now=0.0)
    time.time = time.perf_counter = lambda: time.now
    for module in (memory_module, counters_module):
        monkeypatch.setattr(module, "time", time)
    return time


def test_the_memory_of_every_gpu_in_use_is_logged_and_read_by_tracekit(tmp_path, torch):
    path = tmp_path / "logs" / "memory.jsonl"
    profiler = MemoryProfiler(path, rank=3)
    torch.used = {0: (2_000, 3_000, 5_000, 6_000), 1: (20, 30, 50, 60)}
    profiler.log_memory_stats(1, "after update")
    torch.used = {0: (2_500, 3_000, 5_000, 6_000)}
    profiler.log_memory_stats(2, "after update")
    logged = [(row["step"], row["device"], row["allocated_bytes"]) for row in rows(path)]
    assert logged == [(1, 0, 2_000), (1, 1, 20), (2, 0, 2_500)]
    assert sniff(path).reader == "memory_log"
    (trace,) = memory_log.read(Source(path, path.name, "memory_log", "log"), Want(frozenset({"memory_log"})))
    assert trace.source.rank == 3
    frame = trace["memory_log"]
    first = frame[(frame["step"] == 1) & (frame["device"] == 0)]
    assert dict(zip(first["quantity"], first["size_bytes"], strict=True)) == {
        "allocated": 2_000,
        "reserved": 3_000,
        "peak allocated": 5_000,
        "peak reserved": 6_000,
    }
    assert set(frame["point"]) == {"after update"}
    assert [note.severity for note in trace.notes] == []


def test_means_are_over_time_and_peaks_are_the_allocators(torch, clock):
    profiler = MemoryProfiler()
    for now, allocated in ((0, 100), (1, 300), (4, 0)):
        clock.now = float(now)
        torch.used = {0: (allocated, 400, 350, 400)}
        profiler.log_memory_stats(now)
    assert profiler.analyze_memory_patterns() == {
        0: {
            "peak_allocated": 350,
            "peak_reserved": 400,
            "avg_allocated": (100 * 1 + 300 * 3) / 4,
            "avg_reserved": 400.0,
            "memory_efficiency": 250 / 400,
        }
    }
    assert MemoryProfiler().analyze_memory_patterns() == {}


def test_peaks_begin_anew_on_request_only(torch):
    MemoryProfiler().log_memory_stats(1)
    assert "reset peaks" not in torch.log
    MemoryProfiler(reset_peaks=True).log_memory_stats(1)
    assert torch.log == ["reset peaks"]


def series(torch, sizes):
    profiler = MemoryProfiler()
    for step, size in enumerate(sizes):
        for description, own in (("start", size), ("end", 50_000_000)):
            torch.used = {0: (own, own, own, own or 1)}
            profiler.log_memory_stats(step, description)
    return profiler.detect_memory_leaks()


def test_growth_at_one_point_of_the_step_is_a_leak(torch):
    (leak,) = series(torch, [3_000_000 * step for step in range(12)])
    assert (leak.device, leak.description, leak.bytes_per_step) == (0, "start", 3_000_000)
    assert leak.low == leak.high == 3_000_000


@pytest.mark.parametrize(
    "sizes",
    [
        [3_000_000 * step for step in range(9)],  # too few
        [900_000 * step for step in range(12)],  # below the threshold
        [0] * 6 + [90_000_000] * 6,  # a step up is no growth
        [90_000_000 * (step * 7 % 12) for step in range(12)],  # ups and downs
    ],
)
def test_what_is_not_surely_growth_is_no_leak(torch, sizes):
    assert series(torch, sizes) == []


def test_without_cuda_nothing_is_logged_and_nothing_raised(tmp_path, torch, monkeypatch, caplog):
    torch.cuda_available = False
    profiler = MemoryProfiler(tmp_path / "memory.jsonl")
    assert profiler.log_memory_stats(1) == profiler.log_memory_stats(2) == []
    assert caplog.text.count("no CUDA device") == 1
    fake_torch.without(monkeypatch, "torch")
    assert MemoryProfiler().log_memory_stats(1) == []
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_written_is_told_once(tmp_path, torch, caplog):
    (tmp_path / "file").touch()
    profiler = MemoryProfiler(tmp_path / "file" / "memory.jsonl")
    assert len(profiler.log_memory_stats(1)) == len(profiler.log_memory_stats(2)) == 1
    assert caplog.text.count("is not written") == 1


def test_time_adds_up_over_repetitions(clock):
    counter = PerformanceCounter()
    for seconds in (1.0, 3.0):
        counter.start("gen")
        clock.now += seconds
        counter.end("gen")
    assert counter.get_counter_stats("gen") == {"total_time": 4.0, "count": 2, "avg_time": 2.0}
    assert counter.get_counter_stats("none") == {"total_time": 0.0, "count": 0, "avg_time": None}
    assert counter.get_all_stats() == {"gen": counter.get_counter_stats("gen")}
    assert counter.reset() == {"gen": 4.0}
    assert counter.get_all_stats() == {}


def test_pieces_of_one_name_may_lie_within_one_another_and_raise(clock):
    counter = PerformanceCounter()

    @counter.measure("outer")
    def work():
        clock.now += 1
        with counter.measure("outer"):
            clock.now += 2
        raise ValueError

    with pytest.raises(ValueError):
        work()
    assert counter.get_counter_stats("outer") == {"total_time": 5.0, "count": 2, "avg_time": 2.5}


def test_an_end_without_a_start_in_its_thread_is_told_and_not_counted(caplog):
    counter = PerformanceCounter()
    counter.start("gen")
    thread = threading.Thread(target=counter.end, args=("gen",))
    thread.start()
    thread.join()
    assert "without a start" in caplog.text
    assert counter.get_all_stats() == {}
    counter.end("gen")
    counter.end("gen")
    assert counter.get_counter_stats("gen")["count"] == 1


def test_the_log_of_steps_is_one_that_tracekit_reads(tmp_path, monkeypatch):
    fake_torch.without(monkeypatch, "psutil", "pynvml")
    path = tmp_path / "metrics.jsonl"
    logger = MetricsLogger(path)
    for step in (1, 2):
        logger.log_metrics(step, learning_rate=1e-5, batch_size=64, timings={"gen": 0.5 * step}, loss=float("nan"))
    assert sniff(path).reader == "driver_log"
    (trace,) = driver_log.read(Source(path, path.name, "driver_log", "log"), Want())
    frame = trace["log_values"]
    assert set(frame["step"]) == {1, 2}
    second = frame[frame["step"] == 2].set_index("name")["value"]
    assert second["timing_s/gen"] == 1.0
    assert 0 <= second["timing_s/step"] < 60
    assert second["training/batch_size"] == 64
    assert "loss" not in second.index
    assert frame["ts_ns"].notna().all()
    report = logger.generate_report()
    assert (report["total_steps"], report["avg"]["timing_s/gen"], report["max"]["timing_s/gen"]) == (2, 0.75, 1.0)  # fmt: skip


def test_all_gpus_and_the_cpu_are_told_where_they_can_be_read(monkeypatch):
    closed = []

    def rates(device):
        if device == 1:
            raise RuntimeError("not supported")
        return types.SimpleNamespace(gpu=40 + device)

    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: closed.append(True),
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUtilizationRates=rates,
        nvmlDeviceGetMemoryInfo=lambda device: types.SimpleNamespace(used=1_000 + device),
    )
    psutil = types.SimpleNamespace(
        cpu_percent=lambda: 12.5, virtual_memory=lambda: types.SimpleNamespace(percent=50.0, total=100, available=40)
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    told = MetricsLogger().log_metrics(1)
    assert told.pop("timing_s/step") >= 0
    assert told == {
        "cpu/utilisation_percent": 12.5,
        "cpu/memory_used_percent": 50.0,
        "cpu/memory_used_bytes": 60,
        "gpu/0/memory_used_bytes": 1_000,
        "gpu/0/utilisation_percent": 40,
        "gpu/1/memory_used_bytes": 1_001,
        "gpu/2/memory_used_bytes": 1_002,
        "gpu/2/utilisation_percent": 42,
    }
    assert closed == [True]


def train(folder, batches, **options):
    """The batches that were trained on, and the traces."""
    seen = []
    value = types.SimpleNamespace(backward=lambda: seen.append("backward"))
    optimizer = types.SimpleNamespace(step=lambda: None, zero_grad=lambda: None)
    traces = profile_model(
        seen.append, batches, loss=lambda outputs, batch: value, optimizer=optimizer, folder=folder, **options
    )  # fmt: skip
    return [one for one in seen if one != "backward"], traces


def test_a_few_batches_are_traced_and_no_more_are_trained_on(tmp_path):
    batches = iter(range(100))
    seen, traces = train(tmp_path, batches, warmup=1, active=2)
    assert seen == [0, 1, 2]
    assert next(batches) == 3
    assert traces == list(tmp_path.glob("train_rank0_pid*.json.gz"))
    assert len(traces) == 1


def test_fewer_batches_than_wanted_are_still_traced(tmp_path):
    assert len(train(tmp_path, range(2), warmup=1, active=3)[1]) == 1


def test_a_trace_of_batches_that_cannot_be_written_is_told(tmp_path, torch, caplog):
    torch.export = OSError(28, "No space left on device")
    assert train(tmp_path, range(9))[1] == []
    assert "No space left" in caplog.text
