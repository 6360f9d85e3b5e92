"""Recorded waits: what the replay makes of them, and how well the rules infer them where they are hidden."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.inferred_waits import (
    TABLE,
    Score,
    format_line,
    list_fallen_figures,
    list_profiles,
    read_table,
    score_profile,
)
from chrome_builder import step
from jobsim.faults import job_of
from replay.graphs import issue, replay_rows, runtime
from replay.rules import recorded_event, recorded_wait
from replay.simulations import simulate_job

from tracekit.replay.edges import STREAM_WAIT, SYNC_RETURN

REAL = os.environ.get("TRACEKIT_REAL_DATA")
FIGURES = read_table(TABLE.read_text("utf-8"))
HERE = dict(list_profiles(Path(REAL).parent if REAL else None))
FAST = ("SIMULATED straggler_clock", "SIMULATED hot_expert", "tests/data/gpu/pairs/item_sync_events")


def measure_gain_error(kind, **settings):
    """The error of the predicted gain, as a share of it."""
    simulation = simulate_job(replace(job_of(kind, "small", 0), **settings, _behaviours={}))
    gain = simulation.truth["step_ns"] - simulation.truth["step_ns_without"]
    return abs(simulation.predict() - simulation.truth["step_ns_without"]) / gain


def test_recorded_events_end_the_largest_error_of_inferred_ones():
    """The host is late, so that none of its event waits shows what it waits for: the rule takes the copy just before each."""
    assert measure_gain_error("eager_decode") > 0.02
    assert measure_gain_error("eager_decode", sync_rows=True) <= 0.01


def test_recorded_waits_of_a_pipeline_are_predicted():
    assert measure_gain_error("slow_pipeline_stage") > 0.02
    assert measure_gain_error("slow_pipeline_stage", sync_rows=True) <= 0.002


def list_edges(job, kind):
    """(inferred, count) of the edges of a kind."""
    return sorted(bool(inferred) for inferred in job.edges.inferred[job.edges.kind == kind])


def make_rows(**event):
    """`y` of stream 9 begins 2 µs after `k` of stream 7 ends, and its record says for what it waits."""
    rows = [step(1, 0, 200), *issue("k", 10, 17, 100, 1), runtime("cudaEventRecord", 15, 2, 2)]
    rows += [runtime("cudaStreamWaitEvent", 18, 2, 3), recorded_wait(18, 2, 3, 9, "Stream Wait Event", **event)]
    return [*rows, *issue("y", 25, 119, 20, 4, stream=9)]


def test_a_recorded_wait_replaces_the_inferred_one(tmp_path):
    assert list_edges(replay_rows(tmp_path, make_rows(**recorded_event(7, 2))).job, STREAM_WAIT) == [False]


@pytest.mark.parametrize(
    "event",
    [
        recorded_event(-1, -1),  # neither the stream nor the call is known
        recorded_event(7, 99),  # the call that recorded the event is not in the trace
        {},
    ],
)
def test_a_wait_without_its_event_is_inferred(tmp_path, event):
    run = replay_rows(tmp_path, make_rows(**event))
    assert list_edges(run.job, STREAM_WAIT) == [True]
    assert not run.job.processes[0].records_waits


def test_an_event_recorded_before_any_work_is_waited_for_by_nobody(tmp_path):
    rows = [step(1, 0, 200), runtime("cudaEventRecord", 2, 2, 9), *issue("k", 10, 17, 100, 1)]
    rows += [
        runtime("cudaEventSynchronize", 60, 10, 3),
        recorded_wait(60, 10, 3, -1, "Event Sync", **recorded_event(7, 9)),
    ]
    assert list_edges(replay_rows(tmp_path, rows).job, SYNC_RETURN) == []


# The table of the rules


def list_figures():
    names = sorted({profile for profile, _ in FIGURES} & set(HERE))
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", list_figures())
def test_precision_and_recall_of_the_rules_only_rise(name):
    scores = {(name, rule): score for rule, score in score_profile(HERE[name]).items()}
    assert scores
    assert list_fallen_figures(FIGURES, scores) == []
    assert set(scores) == {key for key in FIGURES if key[0] == name}


def test_a_figure_that_fell_is_reported():
    before = {("a", "event"): (90.0, 50.0), ("b", "event"): (None, 10.0)}
    after = {("a", "event"): Score(4, 4, 3, 2), ("b", "event"): Score(10, 1, 1, 1)}
    assert list_fallen_figures(before, after) == ["a, event: precision 90.0 % → 75.0 %"]


def test_the_table_reads_back_as_written():
    line = format_line("a b", "event, done", Score(1_000, 800, 600, 500))
    assert read_table(line) == {("a b", "event, done"): (75.0, 50.0)}
    assert read_table(format_line("a", "event", Score(3, 0, 0, 0))) == {("a", "event"): (None, 0.0)}


def test_most_waits_that_decided_are_inferred():
    """Waits between streams that decided: each that is inferred is recorded, and each that is recorded is inferred."""
    assert {figures for (_, rule), figures in FIGURES.items() if rule == "between streams"} == {(100.0, 100.0)}
