"""Steps that differ: by their devices where the host runs ahead, and by pauses of the host that a rule of its own counts."""

from pathlib import Path

import changed_jobs
import pytest
from chrome_builder import kernel, launch, op, step, write
from jobsim.job import Fault, Job

from tracekit.pipeline.run import Options, analyze_uncached

MS = 1_000_000


def ahead(works, *, sync_every=3, kernels=10):
    """Steps whose host launches in 1 ms, and waits for the device in every third: `works` are the µs of a kernel of each step."""
    rows, now, free, number = [], 0, 0, 0
    for place, work in enumerate(works):
        start = now
        for _ in range(kernels):
            number += 1
            rows.append(launch(now, number))
            begin = max(free, now + 5)
            rows.append(kernel("k", begin, work, number))
            free, now = begin + work, now + 100
        if place % sync_every == sync_every - 1:
            rows.append(op("cudaStreamSynchronize", now, free - now) | {"cat": "cuda_runtime"})
            now = free
        rows.append(step(place + 1, start, now - start))
    return rows


def variance(tmp_path, rows):
    write(tmp_path / "rank0.json", rows)
    report = analyze_uncached(tmp_path, Options(jobs=1, cache=False)).report
    return [f for f in report.findings if f.rule in ("step-variance", "drift")]


def test_a_host_that_waits_in_every_third_step_has_even_steps_where_its_gpu_never_pauses(tmp_path):
    """Nine steps of 10 ms of work each: host windows of 1, 1 and 28 ms, one step's work ending 10 ms after the last's."""
    assert variance(tmp_path, ahead([1_000] * 9)) == []


def test_a_step_with_more_work_is_longer_by_its_device_whatever_its_host_window_is(tmp_path):
    """Step 5 works for 30 ms and its host for 1 ms; steps 6 and 9 have the longest windows."""
    (finding,) = variance(tmp_path, ahead([1_000] * 4 + [3_000] + [1_000] * 4))
    assert finding.rule == "step-variance"
    assert finding.claim.startswith("the longest step takes 3.00 times the median")
    assert finding.places[0].step == 5
    # 20 ms more in one of the nine, or of the eight that are left without warm-up step.
    assert finding.cost_ns in (pytest.approx(20 * MS / 9, rel=0.01), pytest.approx(20 * MS / 8, rel=0.01))  # fmt: skip


def report_on(tmp_path, change, at, *, ranks=None, more=None, **settings):
    job = Job("longer", faults=(Fault("longer", change, ranks, at),), seed=5, **settings)
    documents = [(more or dict)(each) for each in changed_jobs.documents_of(job)]
    changed_jobs.write(documents, tmp_path)
    return analyze_uncached(Path(tmp_path), Options(jobs=1, cache=False)).report


COLLECTS = {"gc_at": ("update_actor",), "gc_ns": 40 * MS}


def test_one_pause_of_the_host_is_a_silent_host_in_its_step_and_counts_once(tmp_path):
    """40 ms in step 6 of steps 4 to 8: 8 ms a step."""
    report = report_on(tmp_path, COLLECTS, (6,), ranks=None, steps=6)
    first, *others = report.findings
    assert first.rule == "host-silence"
    assert first.claim.endswith(", nearly all in step 6")
    assert first.cost_ns == pytest.approx(8 * MS, rel=0.01)
    (variance,) = [finding for finding in others if finding.rule == "step-variance"]
    assert ": in step 6, no host activity is recorded for 40.0 ms more in update_actor" in variance.claim
    assert (variance.cost_ns, variance.severity) == (0, "info")
    assert not [f for f in report.findings if f.rule == "drift"]


@pytest.mark.slow
def test_compiling_that_leaves_no_mark_is_no_drift_though_it_is_in_the_last_steps(tmp_path):
    """20 ms in steps 6, 7 and 8 of six: all of them are longer than all before, by a pause of the host and not by its GPU."""
    report = report_on(tmp_path, {"recompile_ns": 20 * MS}, (6, 7, 8), steps=6, more=changed_jobs.without_compiling)  # fmt: skip
    loud = [finding for finding in report.findings if finding.severity != "info"]
    assert [finding.rule for finding in loud] == ["host-silence"]
    (drift,) = [finding for finding in report.findings if finding.rule == "drift"]
    assert "no host activity is recorded for 20" in drift.claim
    assert drift.cost_ns == 0


@pytest.mark.slow
def test_a_pause_of_one_rank_is_its_rank_s_and_counts_once(tmp_path):
    report = report_on(tmp_path, COLLECTS, (6,), ranks=(1,), steps=6)
    loud = [finding for finding in report.findings if finding.severity != "info"]
    assert [finding.rule for finding in loud] == ["straggler"]


@pytest.mark.slow
def test_slower_clocks_from_some_step_on_stay_a_drift(tmp_path):
    report = report_on(tmp_path, {"clock": 1.08}, (6, 7, 8), steps=6)
    first = report.findings[0]
    assert first.rule == "drift"
    assert "the same kernels take 1.0" in first.claim
    assert first.cost_ns > 2 * MS
