"""Every capture ends in the manifest as a file, as elsewhere or as lost with a reason; `doctor` says where to go."""

import contextlib
import errno
import json
import os
import sys
import types

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiled_worker import Worker

from capture import endings, manifest, other_profiles

FULL = OSError(errno.ENOSPC, "No space left on device")


def captures(folder, role="actor"):
    """The captures in the manifest of a role."""
    (path,) = folder.glob(f"capture_*_{role}_rank*.manifest")
    return json.loads(path.read_text())["captures"]


def outcomes(folder, role="actor"):
    """(outcome, where, reasons) of each capture of a role."""
    return [(one["outcome"], one["where"], one["because"]) for one in captures(folder, role)]


def test_a_trace_that_was_written_is_a_file(tmp_path):
    Worker(tmp_path).step(1)
    assert outcomes(tmp_path) == [("file", None, [])]


def test_a_trace_that_found_a_full_disk_is_lost_and_the_next_one_is_not(tmp_path, torch, call):
    worker = Worker(tmp_path)
    torch.export = FULL
    worker.step(2)
    torch.export = None
    worker.step(4)
    (lost, none, reasons), written = outcomes(tmp_path)
    assert (lost, none) == ("lost", None)
    assert "No space left on device" in reasons[0]
    assert reasons[0].startswith("the trace was not written: ")
    assert written == ("file", None, [])
    said = call("doctor", tmp_path).output
    assert "nothing wrong was found" not in said
    assert "lost: actor rank 0" in said
    assert "step 2 was lost" in said
    assert "No space left on device" in said
    assert call("doctor", tmp_path, "--strict").exit_code == 2


def test_a_ledger_that_finds_no_room_is_written_in_its_place(tmp_path, torch, monkeypatch, call):
    worker = Worker(tmp_path)
    torch.export = FULL

    @contextlib.contextmanager
    def full(path):
        yield path.with_name("none")
        raise OSError(errno.ENOSPC, "No space left on device")

    worker.profiler.start(profile_step=2)
    monkeypatch.setattr("capture.manifest.written_whole", full)
    worker.profiler.stop()
    assert [one[0] for one in outcomes(tmp_path)] == ["lost"]
    said = call("doctor", tmp_path).output
    assert "step 2 was lost: the trace was not written" in said
    assert "never finished" not in said


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_a_ledger_that_does_not_fit_in_its_place_stays_as_it_was(tmp_path, monkeypatch, size):
    path = tmp_path / "one.manifest"
    path.write_text("before")
    full = OSError(errno.ENOSPC if size else errno.EACCES, "no")
    monkeypatch.setattr("capture.manifest.written_whole", lambda _: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="no"):
        manifest._write(path, "x" * size)
    assert path.read_text() == "before"


def test_when_every_trace_is_lost_doctor_says_so_and_not_that_the_profiler_was_off(tmp_path, torch, call):
    torch.export = FULL
    worker = Worker(tmp_path)
    worker.step(2)
    worker.step(3)
    said = call("doctor", tmp_path).output
    assert "steps 2, 3 were lost" in said
    assert "was not switched on" not in said
    done = call("analyze", tmp_path)
    assert done.exit_code != 0
    assert "tracekit doctor" in done.output + done.stderr


def test_a_stage_that_is_lost_leaves_the_others(tmp_path, torch, monkeypatch, call):
    worker = Worker(tmp_path, discrete=True)
    worker.profiler.start(profile_step=3)
    worker.update()
    torch.export = FULL
    worker.log_prob()
    worker.profiler.stop()
    ((outcome, _, reasons),) = outcomes(tmp_path)
    assert outcome == "file"
    assert len(reasons) == 1
    assert "step 3 is not complete" in call("doctor", tmp_path).output


def test_a_step_without_a_stage_has_no_trace_in_discrete_mode(tmp_path):
    worker = Worker(tmp_path, discrete=True)
    worker.profiler.start(profile_step=1)
    worker.profiler.stop()
    assert outcomes(tmp_path) == [
        ("lost", None, ["no annotated stage ran, and with `discrete` only stages are recorded"])
    ]


def test_the_trace_of_another_role_in_this_process_holds_it(tmp_path, call):
    first, second = Worker(tmp_path), Worker(tmp_path, role="critic")
    first.profiler.start(role="train", profile_step=1)
    second.profiler.start(profile_step=1)
    second.update()
    second.profiler.stop()
    first.profiler.stop()
    ((outcome, where, reasons),) = outcomes(tmp_path, "critic")
    (trace,) = tmp_path.glob("*.gz")
    assert (outcome, f"{where}.json.gz", reasons) == ("elsewhere", trace.name, [])
    said = call("doctor", tmp_path).output
    assert "lost" not in said
    assert "elsewhere" not in said


def test_another_profiler_costs_the_trace_and_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(other_profiles, "under_way", lambda: True)
    Worker(tmp_path).step(1)
    assert outcomes(tmp_path) == [("lost", None, ["another torch.profiler was running in this process"])]


@pytest.mark.parametrize("what", ["start", "stage"])
def test_what_the_tool_cannot_do_is_the_reason(tmp_path, torch, what):
    torch.start = RuntimeError("no profiler here")
    Worker(tmp_path, discrete=what == "stage").step(1)
    ((outcome, _, reasons),) = outcomes(tmp_path)
    assert outcome == "lost"
    assert "RuntimeError: no profiler here" in reasons[0]


def test_without_torch_every_capture_is_lost(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.profiler", None)
    Worker(tmp_path).step(1)
    ((outcome, _, _),) = outcomes(tmp_path)
    assert outcome == "lost"
    told = json.loads(next(tmp_path.glob("*.manifest")).read_text())
    assert "torch" in told["problems"][0]


def test_snapshots_without_cuda_are_lost(tmp_path, torch, call):
    torch.cuda_available = False
    Worker(tmp_path, tool="torch_memory").step(1)
    reason = "torch_memory needs CUDA, and torch finds no CUDA device"
    assert outcomes(tmp_path) == [("lost", None, [reason])]
    assert f"step 1 was lost: {reason}" in call("doctor", tmp_path).output


def test_a_window_of_steps_is_one_file(tmp_path):
    worker = Worker(tmp_path, tool="torch_memory", memory_snapshot_num_steps=2)
    for step, expected in ((1, ["waiting"]), (2, ["file"] * 2), (3, ["file"] * 2 + ["waiting"])):
        worker.step(step)
        assert [one[0] for one in outcomes(tmp_path)] == expected
    endings.close_all()
    assert [one[0] for one in outcomes(tmp_path)] == ["file"] * 3


def test_a_window_that_cannot_be_written_is_lost_as_a_whole(tmp_path, torch):
    torch.dump = FULL
    worker = Worker(tmp_path, tool="torch_memory", memory_snapshot_num_steps=2)
    worker.step(1)
    worker.step(2)
    assert [one[0] for one in outcomes(tmp_path)] == ["lost", "lost"]
    assert all("No space left on device" in " ".join(one[2]) for one in outcomes(tmp_path))


@pytest.fixture
def session(tmp_path, monkeypatch):
    """The folder where nsys writes in the Ray session of this process."""
    path = tmp_path / "session_2026-01-01_1"
    node = types.SimpleNamespace(get_session_dir_path=lambda: str(path))
    private = types.SimpleNamespace(worker=types.SimpleNamespace(_global_node=node))
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(_private=private, is_initialized=lambda: False))  # fmt: skip
    (path / "logs" / "nsight").mkdir(parents=True)
    return path / "logs" / "nsight"


@pytest.fixture
def under_nsys(monkeypatch):
    """This process was started by nsys."""
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")


def test_a_process_that_nsys_did_not_start_loses_its_captures(tmp_path, torch, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    Worker(tmp_path, tool="nsys").step(1)
    assert outcomes(tmp_path) == [("lost", None, ["this process was not started under nsys"])]
    torch.cuda_available = False
    Worker(tmp_path, tool="nsys", role="critic").step(1)
    ((outcome, _, reasons),) = outcomes(tmp_path, "critic")
    assert outcome == "lost"
    assert reasons[1].startswith("no capture range: AssertionError: Torch not compiled with CUDA")


@pytest.mark.parametrize(
    "variables",
    [
        {"NSYS_PROFILING_SESSION_ID": "1"},
        {"NSYSDK_INJECTION64_PATH": "/x"},
        {"CUDA_INJECTION64_PATH": "/x"},
        {"LD_PRELOAD": "/opt/nvidia/Nsight-systems/target/libToolsInjectionProxy64.so"},
    ],
)
def test_reports_of_nsys_are_elsewhere(tmp_path, session, monkeypatch, variables, call):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    profile = tmp_path / "profile"
    worker = Worker(profile, tool="nsys")
    worker.step(1)
    worker.step(2)
    assert outcomes(profile) == [("elsewhere", str(session), [])] * 2
    done = call("doctor", profile)
    assert done.exit_code == 2
    assert "was not switched on" not in done.output
    assert "nsys wrote the reports of 2 captures" in done.output
    assert str(session) in done.output
    assert "tracekit collect" in done.output


def test_reports_that_are_here_are_not_elsewhere(tmp_path, session, under_nsys, call):
    Worker(tmp_path / "profile", tool="nsys").step(1)
    (session / f"worker_process_{os.getpid()}.1.nsys-rep").write_bytes(b"NVIDIA" + bytes(900))
    said = call("doctor", tmp_path / "profile", session).output
    assert "nsys wrote the reports" not in said


def test_a_report_that_was_moved_is_a_file(tmp_path, session, under_nsys):
    worker = Worker(tmp_path / "profile", tool="nsys")
    worker.step(1)
    worker.step(2)
    (session / f"worker_process_{os.getpid()}.1.nsys-rep").write_bytes(b"report")
    worker.profiler._backend.relocate(tmp_path / "profile")
    worker.profiler.close()
    assert [one[0] for one in outcomes(tmp_path / "profile")] == ["file", "elsewhere"]


EVENTS = st.lists(st.sampled_from(["start", "stop", "update", "full", "room", "other", "alone", "close"]), max_size=25)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    tool=st.sampled_from(["torch", "torch_memory", "nsys"]),
    discrete=st.booleans(),
    window=st.integers(1, 3),
    cuda=st.booleans(),
    events=EVENTS,
)
def test_whatever_happens_every_capture_has_an_end(tmp_path_factory, torch, tool, discrete, window, cuda, events):
    """Nothing is lost without a reason, and nothing counts as a file without one."""
    folder = tmp_path_factory.mktemp("ledger")
    manifest._OF_PROCESS.clear()
    endings.live.clear()
    torch.cuda_available, torch.export, torch.dump, torch.start = cuda, None, None, None
    config = {"discrete": discrete} if tool != "torch_memory" else {"memory_snapshot_num_steps": window}  # fmt: skip
    worker = Worker(folder, tool=tool, **config)
    step = 0
    for event in [*events, "stop", "close"]:
        match event:
            case "start":
                step += 1
                worker.profiler.start(role="train", profile_step=step)
            case "full" | "room":
                torch.export = torch.dump = FULL if event == "full" else None
            case "other" | "alone":
                torch.start = RuntimeError("another") if event == "other" else None
            case "update":
                worker.update()
            case "stop" | "close":
                getattr(worker.profiler, event)()
    if step == 0:
        return
    (path,) = folder.glob("*.manifest")
    told = json.loads(path.read_text())
    assert told["status"] == "closed"
    for one in told["captures"]:
        assert one["outcome"] in {"file", "elsewhere", "lost"}
        assert one["because"] or one["outcome"] != "lost"
        assert told["files"] or one["outcome"] != "file"
