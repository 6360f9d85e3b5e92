"""Which steps count: left out by what they held, never by how long they took, and every one is listed."""

import pytest
from compare.made import made_side, row, step_rows

from tracekit.compare.changes import STEP


def left_out(side):
    return [(one.run, one.step, one.reason) for one in side.dropped]


def counting(side):
    return [[step for _, step, _ in run] for run in side.samples[STEP].steps]


def marks(name, *steps, run="run1"):
    return [row(name, 1, run=run, step=s) for s in steps]


FIRST, COMPILES = "warm-up step", "compiles or loads code"


def test_by_rule_the_first_step_after_the_profiler_began_does_not_count():
    rows = [*step_rows([9, 1, 1], [8, 1, 1]), *marks("first_of_window", 1), *marks("first_of_window", 1, run="run2")]
    side = made_side("base", rows, None)
    assert counting(side) == [[2, 3], [2, 3]]
    assert left_out(side) == [("run1", 1, FIRST), ("run2", 1, FIRST)]


def test_by_rule_steps_that_compile_do_not_count():
    rows = [*step_rows([9, 1, 5, 1]), *marks("first_of_window", 1), *marks("compilations", 1, 3)]
    side = made_side("base", rows, None)
    assert counting(side) == [[2, 4]]
    assert left_out(side) == [("run1", 1, FIRST), ("run1", 3, COMPILES)]


def test_how_long_a_step_takes_is_no_reason():
    side = made_side("base", step_rows([1, 1, 900, 1]), None)
    assert counting(side) == [[1, 2, 3, 4]]
    assert side.dropped == ()


def test_where_every_step_compiles_all_of_them_count():
    side = made_side("base", [*step_rows([1, 1, 1]), *marks("compilations", 1, 2, 3)], None)
    assert counting(side) == [[1, 2, 3]]


def test_where_every_step_after_the_first_compiles_those_count():
    rows = [*step_rows([9, 1, 1]), *marks("first_of_window", 1), *marks("compilations", 2, 3)]
    side = made_side("base", rows, None)
    assert counting(side) == [[2, 3]]
    assert left_out(side) == [("run1", 1, FIRST)]


def test_the_only_step_of_a_run_counts():
    side = made_side("base", [*step_rows([9]), *marks("first_of_window", 1), *marks("compilations", 1)], None)
    assert counting(side) == [[1]]


def test_a_mark_of_one_run_says_nothing_of_another():
    rows = [*step_rows([1, 1], [1, 1]), *marks("compilations", 2, run="run2")]
    assert counting(made_side("base", rows, None)) == [[1, 2], [1]]


@pytest.mark.parametrize(("first", "left"), [(0, [[1, 2, 3], [1, 2]]), (1, [[2, 3], [2]]), (2, [[3]])])
def test_so_many_first_steps_are_left_out_of_every_run_as_were_asked_for(first, left):
    """A run that has no more of them is gone, and all that is left out is listed."""
    rows = [*step_rows([9, 1, 1], [8, 1]), *marks("compilations", 3)]
    side = made_side("base", rows, first)
    assert counting(side) == left
    assert len(side.dropped) == 5 - sum(map(len, left))
    assert {one.reason for one in side.dropped} <= {f"one of the first {first}"}


def test_a_step_that_does_not_count_counts_for_no_metric():
    rows = [*step_rows([9, 1]), *step_rows([8, 2], name="gpu_busy", rank=0), *marks("first_of_window", 1)]
    side = made_side("base", rows, None)
    assert {key[0]: one.values for key, one in side.samples.items()} == {
        "step_time": ((1e9,),), "gpu_busy": ((2e9,),),
    }  # fmt: skip


def test_marks_of_steps_without_a_number_leave_nothing_out():
    rows = [row("step_time", 5.0, part="a"), row("step_time", 6.0, part="b"), row("first_of_window", 1)]
    assert made_side("base", rows, None).dropped == ()


def test_a_mark_of_one_capture_says_nothing_of_the_same_number_in_another():
    steps = [row("step_time", 5.0, step=s, part=f"capture{c}") for c in (1, 2) for s in (1, 2, 3)]
    side = made_side("base", [*steps, row("first_of_window", 1, step=2, part="capture2")], None)
    assert counting(side) == [[1, 2, 3], [1, 3]]
    both = made_side("base", [*steps, row("first_of_window", 1, step=2)], None)
    assert counting(both) == [[1, 3], [1, 3]]
