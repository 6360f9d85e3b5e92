"""The mean step: from completion to completion, over the ranks of the role that takes longest; worked by hand, in µs."""

from dataclasses import replace

import pytest
from chrome_builder import annotation, step, write
from replay.graphs import issue, read_graphs
from replay.rules import aten

from tracekit.replay.changes import make_change
from tracekit.replay.job_graph import join_processes
from tracekit.replay.predict import predict_changes
from tracekit.replay.steps import list_job_steps, list_whole_recordings, measure_step_times


def join_files(folder, *files):
    """Join the graphs of files, given as (fields of the source, rows)."""
    for number, (_, rows) in enumerate(files):
        write(folder / f"trace{number}.json", rows)
    graphs = read_graphs(folder)
    assert [graph.source.name for graph in graphs] == sorted(graph.source.name for graph in graphs)
    facts = [{"pid": None, "role": None, "rank": None, **fields} for fields, _ in files]
    return join_processes(
        [replace(graph, source=replace(graph.source, **fact)) for graph, fact in zip(graphs, facts, strict=True)]
    )


def mean_us(job, *numbers):
    """The mean of these steps (all without any)."""
    steps = list_job_steps(job, (lambda _, number: number in numbers) if numbers else None)
    return measure_step_times(steps, job.time).mean_ns / 1_000


LATE_WORK = [
    step(1, 0, 100), *issue("k", 50, 57, 73, 1), step(2, 100, 100), *issue("k", 150, 157, 133, 2),
    step(3, 200, 100), *issue("k", 250, 291, 30, 3), step(4, 300, 100),
]  # fmt: skip
"""Work of the four steps ends at 130, 290 and 321, each in the next step; the fourth launches none."""


@pytest.mark.parametrize(
    ("numbers", "mean"),
    [
        ((), 100),
        ((1,), 130),
        ((2,), 290 - 130),
        ((3,), 321 - 290),
        ((4,), 400 - 321),
        ((1, 2), 290 / 2),
        ((2, 3), (321 - 130) / 2),
        ((1, 3), (130 + 31) / 2),
        ((2, 4), (160 + 79) / 2),
        ((1, 3, 4), (130 + 400 - 290) / 3),
    ],
)
def test_a_step_lasts_from_completion_to_completion(tmp_path, numbers, mean):
    """Steps that are left out between others do not count."""
    assert mean_us(join_files(tmp_path, ({"rank": 0}, LATE_WORK)), *numbers) == mean


def test_work_of_one_stream_is_complete_when_the_last_op_of_all_streams_is(tmp_path):
    rows = [step(1, 0, 100), *issue("long", 0, 7, 193, 1, stream=9), *issue("k", 50, 57, 20, 2)]
    assert mean_us(join_files(tmp_path, ({"rank": 0}, rows))) == 200


def test_files_of_one_rank_add_up_to_its_step(tmp_path):
    """Rank 0 recorded step 1 in two files, of 100 and 30 µs, and step 2 in one of 80; rank 1 takes 150 and 170."""
    job = join_files(
        tmp_path,
        ({"rank": 0}, [step(1, 0, 100)]),
        ({"rank": 0}, [step(1, 400, 30)]),
        ({"rank": 0}, [step(2, 1_000, 80)]),
        ({"rank": 1}, [step(1, 0, 150), step(2, 150, 170)]),
    )
    assert mean_us(job) == ((100 + 30 + 80) / 2 + 160) / 2
    assert mean_us(job, 1) == (130 + 150) / 2
    assert mean_us(job, 2) == (80 + 170) / 2


def test_files_that_name_no_process_are_processes_of_their_own(tmp_path):
    """The same files without a rank: 100, 30 and 80 are means of three processes."""
    files = [({}, [step(1, 0, 100)]), ({}, [step(1, 400, 30)]), ({}, [step(2, 1_000, 80)])]
    assert mean_us(join_files(tmp_path, *files)) == 70


ROLES = [
    ({"role": "actor", "rank": 0}, [step(1, 0, 100)]),
    ({"role": "actor", "rank": 1}, [step(1, 0, 140)]),
    ({"role": "rollout", "rank": 0}, [step(1, 0, 150), aten("decode", 10, 80)]),
    ({"role": "rollout", "rank": 1}, [step(1, 0, 190), aten("decode", 10, 80)]),
]
"""Actors take 120 µs on average, rollouts 170, of which 80 decode."""


def test_the_role_that_takes_longest_counts(tmp_path):
    assert mean_us(join_files(tmp_path, *ROLES)) == 170


@pytest.mark.parametrize(("factor", "mean"), [(0.5, 130), (0.25, 120), (0, 120), (2, 250)])
def test_after_a_change_another_role_may_take_longest(tmp_path, factor, mean):
    job = join_files(tmp_path, *ROLES)
    change = make_change({"do": "scale", "on": "host", "row": "decode", "factor": factor})
    (prediction,) = predict_changes(job, list_job_steps(job), [change])
    assert prediction.step.mean_ns == mean * 1_000


def test_a_rank_is_another_process_in_another_role(tmp_path):
    """Rank 0 of both roles: 100 µs and 150 µs are not added."""
    assert mean_us(join_files(tmp_path, *ROLES[::2])) == 150


def test_whole_recordings_of_one_rank_count_each(tmp_path):
    """Two captures, of 50 and 70 µs, of rank 0, and one of 100 of rank 1."""
    job = join_files(
        tmp_path,
        ({"rank": 0}, [annotation("gen", 0, 50)]),
        ({"rank": 0}, [annotation("gen", 500, 70)]),
        ({"rank": 1}, [annotation("gen", 0, 100)]),
    )
    steps = list_whole_recordings(job)
    assert measure_step_times(steps, job.time).mean_ns == ((50 + 70) / 2 + 100) / 2 * 1_000


def test_without_steps_the_mean_is_none():
    job = join_processes([])
    assert measure_step_times(list_job_steps(job), job.time).mean_ns == 0
