"""Processes that share CPU cores: their host time is not constant, so that no step is predicted."""

import json
import os
from dataclasses import replace

import nsys_builder as nsys
import pytest
from chrome_builder import op, step, write
from replay.graphs import issue, read_graphs

from capture.cores import format_cores, list_cores
from tracekit.pipeline.options import Options
from tracekit.pipeline.replaying import ask_what_if
from tracekit.replay.changes import ChangeError
from tracekit.replay.process_parts.host_load import HostLoad, judge_host_contention
from tracekit.replay.what_if import OVERHEAD

CHANGE = "scale host factor=0.5"


def write_ranks(folder, *cores, host="node1", device=False):
    """One trace per rank, each with a manifest that lists its cores."""
    for rank, usable in enumerate(cores):
        rows = [step(1, 0, 1_000), op("aten::mm", 100, 500)]
        if device:
            rows += issue("gemm", 700, 710, 200, 1)
        path = write(folder / f"rank{rank}.json", rows, rank=rank, world_size=len(cores))
        manifest = {
            "schema": "capture/2", "rank": rank, "world_size": len(cores), "host": host, "pid": 40 + rank, "tool": "torch",
            "steps": [1], "files": [{"path": path.name, "step": 1}], "status": "closed",
        }  # fmt: skip
        if usable is not None:
            manifest["cores"] = usable
        (folder / f"capture_torch_rank{rank}.manifest").write_text(json.dumps(manifest))
    return folder


def predict(path):
    return ask_what_if(path, [CHANGE], Options(jobs=1, cache=False))


@pytest.mark.parametrize("device", [False, True])
def test_no_step_is_predicted_for_ranks_that_share_cores(tmp_path, device):
    write_ranks(tmp_path, *["0-1"] * 3, device=device)
    with pytest.raises(ChangeError, match="3 processes on node1 share 2 cores: processes slow each other down"):
        predict(tmp_path)


def test_without_a_change_contended_ranks_have_a_ledger_and_no_prediction(tmp_path):
    report = ask_what_if(write_ranks(tmp_path, "0-1", "0-1", "0-1"), [], Options(jobs=1, cache=False))
    assert report.overview is None
    assert report.answer.endswith("as recorded; nothing is predicted")
    assert "nothing is predicted: 3 processes on node1 share 2 cores: processes slow each other down" in report.cautions
    assert OVERHEAD not in report.cautions
    assert [row["rank"] for row in report.tables["ledger.ranks"].to_dict("records")] == [0, 1, 2]


@pytest.mark.parametrize("cores", [("0-2", "0-2", "0-2"), ("0", "1", "2"), ("0-1", "0-1", "2")])
def test_ranks_with_a_core_each_are_predicted(tmp_path, cores):
    """Ranks that are pinned to cores of their own share none."""
    report = predict(write_ranks(tmp_path, *cores))
    assert "predicted step" in report.answer
    assert not any("cores" in caution for caution in report.cautions)


def test_ranks_of_several_hosts_are_counted_by_host(tmp_path):
    write_ranks(tmp_path / "a", "0-1", "0-1", host="a")
    sources = [graph.source for graph in read_graphs(tmp_path / "a")]
    loads = [HostLoad(frozenset({0, 1}), 0, None)] * 2
    both = [*sources, *sources], [*loads, *loads]
    assert judge_host_contention(*both, on_host=True).state == "free"


def test_work_on_the_cpu_with_unknown_cores_is_predicted_with_a_caveat(tmp_path):
    report = predict(write_ranks(tmp_path, None, None))
    assert "predicted step" in report.answer
    assert [caution for caution in report.cautions if "the number of cores is not recorded" in caution]


def test_work_on_devices_with_unknown_cores_is_predicted_without_a_caveat(tmp_path):
    report = predict(write_ranks(tmp_path, None, None, device=True))
    assert not any("cores" in caution for caution in report.cautions)


def test_the_profiler_overhead_is_stated_once(tmp_path):
    report = predict(write_ranks(tmp_path, "0-7"))
    assert [caution for caution in report.cautions if "overhead" in caution] == [OVERHEAD]


def write_report(folder, state, *, cores="0"):
    """A report of Nsight Systems in which a thread is off the CPU for a third of 30 ms."""
    ms = 1_000_000
    rows = [nsys.nvtx("step 1", 0, 30 * ms), nsys.nvtx("r", ms, 20 * ms)]
    for at in range(0, 30, 3):
        rows += nsys.off_cpu(at * ms, (at + 1) * ms, state=state)
    rows.append(nsys.system("CpuCores", cores))
    return nsys.write(folder / "a.sqlite", rows, schema="3.25", duration_ns=40 * ms)


@pytest.mark.parametrize(("state", "verdict"), [(1, "contended"), (7, "unknown")])
def test_threads_that_wait_for_a_core_are_contended(tmp_path, state, verdict):
    """State 1 is ready to run, state 7 waits for something."""
    (graph,) = read_graphs(write_report(tmp_path, state))
    assert graph.load.running_ns == pytest.approx(18e6)
    judged = judge_host_contention([graph.source], [graph.load], on_host=True)
    assert judged.state == verdict
    if verdict == "contended":
        assert judged.reason == "threads waited for a core 36 % of the time in which they could run"


def test_a_report_states_its_cores(tmp_path):
    (graph,) = read_graphs(write_report(tmp_path, 7, cores="4"))
    assert graph.load.cores == frozenset(range(4))
    sources = [graph.source, *(replace(graph.source, pid=pid) for pid in range(1, 5))]
    judged = judge_host_contention(sources, [graph.load] * 5, on_host=True)
    assert judged.reason.startswith("5 processes on ")
    assert judged.reason.endswith(" share 4 cores")


# The cores in a manifest


@pytest.mark.parametrize(
    ("text", "expected"), [("400000 100000", "0-3"), ("max 100000", "0-5,8"), ("50000 100000", "0")]
)
def test_a_process_lists_its_cores_as_many_as_its_quota_allows(tmp_path, monkeypatch, text, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5, 8}, raising=False)
    (tmp_path / "cpu.max").write_text(f"{text}\n")
    assert list_cores(tmp_path) == expected


def test_quotas_of_older_control_groups_count(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert list_cores(tmp_path) == "0-1"


def test_without_limits_all_cores_of_the_mask_are_listed(tmp_path):
    assert list_cores(tmp_path) == format_cores(sorted(os.sched_getaffinity(0)))
