"""What torch is asked to record beside the contents, by what it knows; and ranges around garbage collections."""

import gc
import sys
import threading
import types

import pytest

from capture import DistProfiler, ProfilerConfig, extra_recording, torch_trace
from capture.gc_ranges import GcRanges
from tracekit.process.calls.activity import COLLECTION


@pytest.fixture
def knows(monkeypatch, torch):
    """A function that makes torch know these keywords of `_ExperimentalConfig`; each value is what it was given."""

    def know(*names):
        def config(**options):
            if options.keys() - set(names):
                raise TypeError("unexpected keyword argument")
            return options

        extra_recording._is_known.cache_clear()
        module = types.ModuleType("torch._C._profiler")
        module._ExperimentalConfig = config
        monkeypatch.setitem(sys.modules, "torch._C", types.ModuleType("torch._C"))
        monkeypatch.setitem(sys.modules, "torch._C._profiler", module)

    yield know
    extra_recording._is_known.cache_clear()


ALL = ("profile_all_threads", "enable_cuda_sync_events", "record_python_gc_info")


@pytest.mark.parametrize(
    ("known", "contents", "all_threads", "expected"),
    [
        (ALL, set(), False, {"enable_cuda_sync_events"}),
        (ALL, {"cpu"}, False, set()),
        (ALL, {"cuda", "stack"}, False, {"enable_cuda_sync_events", "record_python_gc_info"}),
        (ALL, {"cpu"}, True, {"profile_all_threads"}),
        (("enable_cuda_sync_events",), {"cuda", "stack"}, True, {"enable_cuda_sync_events"}),
        ((), {"cuda", "stack"}, True, set()),
    ],
)
def test_only_keywords_that_suit_the_contents_and_that_torch_knows_are_used(
    knows, known, contents, all_threads, expected
):
    knows(*known)
    options = extra_recording.extra_recording(contents, all_threads=all_threads)
    assert options == dict.fromkeys(expected, True)
    config = extra_recording.experimental_config(options)
    assert config == ({"experimental_config": options} if options else {})


def started(tmp_path, contents):
    """The keywords of the profile that a step starts, and the profiler."""
    config = {"tool": "torch", "enable": True, "save_path": str(tmp_path), "tool_config": {"torch": {"contents": contents}}}  # fmt: skip
    profiler = DistProfiler(0, config)
    profiler.start(role="train", profile_step=1)
    capture = torch_trace.TorchTrace.owner._capture
    return profiler, capture, capture.profiler.options


def test_a_step_started_on_the_main_thread_records_that_thread_only(tmp_path, knows, monkeypatch):
    knows(*ALL)
    profiler, _, options = started(tmp_path, ["cpu"])
    assert "experimental_config" not in options
    profiler.stop()
    monkeypatch.setenv("CAPTURE_ALL_THREADS", "1")
    profiler, capture, options = started(tmp_path, ["cpu"])
    assert options["experimental_config"] == {"profile_all_threads": True}
    assert capture._gc_ranges is None
    monkeypatch.setattr(type(capture), "_turn_off", lambda self: None)
    profiler.stop()
    assert len([*tmp_path.glob("*.gz")]) == 2


def test_a_step_started_on_another_thread_records_all_of_them(tmp_path, knows, monkeypatch):
    knows(*ALL)
    made = []
    thread = threading.Thread(target=lambda: made.append(started(tmp_path, ["cpu"])))
    thread.start()
    thread.join()
    profiler, capture, options = made[0]
    assert options["experimental_config"] == {"profile_all_threads": True}
    monkeypatch.setattr(type(capture), "_turn_off", lambda self: None)
    profiler.stop()


def test_memory_and_all_threads_are_refused_together(tmp_path, knows, monkeypatch, caplog):
    knows(*ALL)
    monkeypatch.setenv("CAPTURE_ALL_THREADS", "1")
    profiler, capture, options = started(tmp_path, ["cpu", "memory"])
    assert (options["profile_memory"], options["record_shapes"]) == (False, False)
    assert "`memory` is left out of contents" in caplog.text
    monkeypatch.setattr(type(capture), "_turn_off", lambda self: None)
    profiler.stop()


def test_a_capture_that_cannot_end_is_ended_by_the_next_start(tmp_path, knows, monkeypatch, caplog):
    knows(*ALL)
    monkeypatch.setenv("CAPTURE_ALL_THREADS", "1")
    monkeypatch.setattr("capture.gate.WAIT_S", 0.05)
    monkeypatch.setattr(torch_trace._Capture, "_turn_off", lambda self: None)
    inside, leave = threading.Event(), threading.Event()
    profiler, _, _ = started(tmp_path, ["cpu"])

    def stage():
        token = torch_trace.TorchTrace.gate.enter()
        inside.set()
        leave.wait(5)
        torch_trace.TorchTrace.gate.leave(token)

    thread = threading.Thread(target=stage)
    thread.start()
    inside.wait(5)
    profiler.stop()
    assert "stages still run on other threads" in caplog.text
    assert [*tmp_path.glob("*.gz")] == []
    leave.set()
    thread.join()
    profiler.start(role="train", profile_step=2)
    profiler.stop()
    assert len([*tmp_path.glob("*.gz")]) == 2


def test_collections_have_ranges_that_the_reader_recognises(torch):
    ranges = GcRanges(sys.modules["torch.profiler"].record_function)
    ranges.start()
    try:
        gc.collect(0)
        gc.collect(1)
        gc.collect()
    finally:
        ranges.stop()
    gc.collect()
    assert torch.log == ["+gc gen1", "-gc gen1", "+gc gen2", "-gc gen2"]
    assert all(COLLECTION.search(name[1:]) for name in torch.log)


def test_a_trace_without_stacks_has_collections_and_then_no_more(tmp_path, torch):
    config = ProfilerConfig(tool="torch", enable=True, save_path=str(tmp_path), tool_config={})
    profiler, before = DistProfiler(0, config), [*gc.callbacks]
    profiler.start(role="train", profile_step=1)
    gc.collect()
    profiler.stop()
    assert "+gc gen2" in torch.log
    assert gc.callbacks == before


def test_a_collection_under_way_when_marking_ends_has_its_range_ended(torch):
    ranges = GcRanges(sys.modules["torch.profiler"].record_function)
    ranges.start()
    ranges._collects("start", {"generation": 2})
    ranges.stop()
    ranges._collects("stop", {"generation": 2})
    assert torch.log == ["+gc gen2", "-gc gen2"]
