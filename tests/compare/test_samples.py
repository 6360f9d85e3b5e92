"""From recorded values to one value a step: ranks are parts of a measurement, captures repeat it."""

import numpy as np
import pytest
from compare.made import COLUMNS, row
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.job.steps.metric_samples import collect_samples
from tracekit.model.metrics import METRICS
from tracekit.model.tables.frame import Frame, from_rows, numbers, texts


def frame(rows):
    values = numbers([one[COLUMNS.index("value")] for one in rows])
    return from_rows(COLUMNS, rows).with_columns(value=values)


def values_of(rows, name, stage=None, role=None):
    return collect_samples(frame(rows))[name, role, stage].values


@pytest.mark.parametrize(
    ("name", "reduced"),
    [
        ("step_time", (7.0, 8.0)),  # the slowest rank
        ("gpu_busy", (6.0, 6.0)),  # the mean of ranks: (5 + 7) / 2, (4 + 8) / 2
        ("comm_count", (12.0, 12.0)),  # the sum of ranks
    ],
)
def test_the_ranks_of_a_step_become_one_value_by_the_registry(name, reduced):
    rows = [row(name, v, rank=r, step=s) for s, r, v in [(1, 0, 5), (1, 1, 7), (2, 0, 4), (2, 1, 8)]]
    assert values_of(rows, name) == (reduced,)


@pytest.mark.parametrize(
    ("name", "reduced"),
    [
        ("gpu_busy", 9.0),  # two pieces of rank 0 last 3 + 7, rank 1 is busy for 8: (10 + 8) / 2
        ("device_peak_allocated", 8.0),  # a peak is the highest, never 3 + 7
    ],
)
def test_the_pieces_of_one_rank_are_put_together_before_the_ranks(name, reduced):
    rows = [row(name, v, rank=r, step=1) for r, v in [(0, 3), (0, 7), (1, 8)]]
    assert values_of(rows, name) == ((reduced,),)


@pytest.mark.parametrize("name", [n for n, kind in METRICS.items() if kind.ranks != "sum"])
def test_as_many_identical_ranks_again_change_nothing(name):
    def rows(ranks):
        return [row(name, 10.0 + s, rank=r, step=s) for s in (1, 2, 3) for r in range(ranks)]

    assert collect_samples(frame(rows(8))) == collect_samples(frame(rows(4)))


def test_steps_stand_in_the_order_of_their_numbers_and_unnumbered_ones_last():
    rows = [
        row("step_time", v, step=s, part=p) for s, p, v in [(10, None, 1), (2, None, 2), (None, "b", 3), (None, "a", 4)]
    ]
    found = collect_samples(frame(rows))["step_time", None, None]
    assert found.steps == ((("run", 2, None), ("run", 10, None), ("run", None, "a"), ("run", None, "b")),)
    assert found.values == ((2.0, 1.0, 4.0, 3.0),)


def test_captures_of_one_process_are_runs_of_their_own():
    rows = [
        row("step_time", v, step=s, part=p) for s, p, v in [(1, "capture1", 5), (2, "capture1", 6), (1, "capture2", 7)]
    ]
    found = collect_samples(frame(rows))["step_time", None, None]
    assert found.runs == ("run capture1", "run capture2")
    assert found.values == ((5.0, 6.0), (7.0,))


def test_pieces_of_a_step_that_is_one_are_no_runs_whatever_their_captures():
    rows = [row("gpu_busy", v, step=1, rank=0, part=p) for p, v in [("capture1", 5), ("capture2", 6)]]
    assert values_of(rows, "gpu_busy") == ((5.0,), (6.0,))
    assert values_of([*rows, row("step_time", 9, step=1)], "gpu_busy") == ((11.0,),)


def test_captures_without_step_numbers_are_runs_of_one_step_each():
    rows = [row("step_time", v, part=p) for p, v in [("capture1", 5), ("capture2", 6)]]
    assert values_of(rows, "step_time") == ((5.0,), (6.0,))


def test_a_part_that_is_no_capture_does_not_split_a_numbered_step():
    rows = [row("gpu_busy", v, step=1, rank=0, part=p) for p, v in [("actor", 5), ("critic", 6)]]
    assert values_of(rows, "gpu_busy") == ((11.0,),)


def test_names_that_are_no_metric_and_unknown_values_are_left_out():
    rows = [row("made_up", 1.0, step=1), row("step_time", None, step=1)]
    assert collect_samples(frame(rows)) == {}
    assert collect_samples(frame([])) == {}


def test_roles_and_stages_are_metrics_of_their_own():
    rows = [
        row("stage_time", v, step=1, role=r, stage=s)
        for r, s, v in [("actor", "gen", 1), (None, "gen", 2), ("actor", None, 3)]
    ]
    found = collect_samples(frame(rows))
    assert {key: one.values for key, one in found.items()} == {
        ("stage_time", "actor", "gen"): ((1.0,),),
        ("stage_time", None, "gen"): ((2.0,),),
        ("stage_time", "actor", None): ((3.0,),),
    }


KEYS = st.tuples(
    st.sampled_from(["a", "b"]), st.sampled_from([None, 0, 1]), st.sampled_from([None, 1, 2, 30]),
    st.sampled_from([None, "capture1", "x"]), st.sampled_from([None, "gen"]),
    st.sampled_from(["step_time", "gpu_busy", "comm_count", "device_peak_reserved"]),
    st.integers(0, 1000),
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.lists(KEYS, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_changes_nothing(keys, random):
    rows = [row(n, v, run=r, rank=k, step=s, part=p, stage=g) for r, k, s, p, g, n, v in keys]
    mixed = random.sample(rows, len(rows))
    assert collect_samples(frame(mixed)) == collect_samples(frame(rows))


def test_the_values_of_a_thousand_ranks_are_grouped():
    """1,000 ranks × 5 steps × 20 metrics and stages: 100,000 rows."""
    stages = np.tile(np.array(["gen", "adv", "old_log_prob", "update_actor", "reward"], object), 20_000)
    ranks, steps, names = (
        np.repeat(np.arange(1_000), 100), np.tile(np.repeat(np.arange(5), 20), 1_000),
        np.tile(np.repeat(np.array(["gpu_busy", "gpu_idle", "host_ops", "comm"], object), 5), 5_000),
    )  # fmt: skip
    constant = {"run": "run", "role": None, "part": None, "value": 1.0}
    columns = {"stage": texts(stages.tolist()), "name": texts(names.tolist()), "rank": ranks, "step": steps}
    rows = Frame.from_columns(columns).with_columns(**constant)
    found = collect_samples(rows)
    assert {len(one.values[0]) for one in found.values()} == {5}
    assert len(found) == 20
