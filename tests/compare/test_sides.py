"""One side of a comparison: runs of several inputs stay apart, and what is no value is refused."""

import itertools
from math import inf, nan
from pathlib import Path

import pytest
from compare.made import made_side, report, row, step_rows

from tracekit import compare
from tracekit.compare.changes import STEP
from tracekit.compare.sides import ComparedInput, build_side
from tracekit.model.errors import TracekitError
from tracekit.model.report import Report


def made(*inputs):
    return build_side("base", [ComparedInput(label, given, None) for label, given in inputs], 0)


def runs_of(side):
    found = side.samples[STEP]
    return dict(zip(found.runs, found.values, strict=True))


def test_runs_of_several_inputs_keep_their_names_where_these_differ():
    found = made(("a", report(step_rows([1], label="x"))), ("b", report(step_rows([2], label="y"))))
    assert runs_of(found) == {"x1": (1e9,), "y1": (2e9,)}


def test_runs_with_equal_names_are_called_by_their_label():
    found = made(("a", report(step_rows([1]))), ("b", report(step_rows([2]))))
    assert runs_of(found) == {"a": (1e9,), "b": (2e9,)}


def test_of_several_runs_each_keeps_its_name_below_the_label():
    found = made(("a", report(step_rows([1], [2]))), ("b", report(step_rows([3], [4]))))
    assert runs_of(found) == {"a/run1": (1e9,), "a/run2": (2e9,), "b/run1": (3e9,), "b/run2": (4e9,)}


def test_inputs_with_equal_names_and_labels_are_different_runs_still():
    found = made(*(("a", report(step_rows([value]))) for value in (1, 2, 3)))
    assert sorted(runs_of(found).values()) == [(1e9,), (2e9,), (3e9,)]


def test_a_label_that_is_the_name_of_another_run_is_not_taken_twice():
    found = made(
        ("x1", report(step_rows([1]))), ("b", report(step_rows([2]))), ("c", report(step_rows([3], label="x")))
    )
    assert sorted(runs_of(found).values()) == [(1e9,), (2e9,), (3e9,)]


def test_the_order_of_inputs_changes_nothing():
    inputs = [
        ("a", report(step_rows([1]), gpu="H100")),
        ("a", report(step_rows([2]), gpu="A100")),
        ("b", report(step_rows([3, 4]))),
    ]
    first, *others = (made(*order) for order in itertools.permutations(inputs))
    for other in others:
        assert other == first


def test_facts_on_which_inputs_disagree_are_all_told():
    found = made(("a", report(step_rows([1]), gpu="H100", ranks="0")), ("b", report(step_rows([2]), gpu="A100")))
    assert found.fingerprint == {"gpu": "A100 / H100", "ranks": "0"}


def test_simulated_data_stay_so():
    assert made(("a", report(step_rows([1]), identity=("SIMULATED DATA",)))).simulated
    assert not made(("a", report(step_rows([1]), identity=("run",)))).simulated


def test_a_report_without_values_is_refused():
    with pytest.raises(TracekitError, match="a: has no values by step"):
        made(("a", Report("made", "0")))


@pytest.mark.parametrize(
    "wrong",
    [row("step_time", "long", step=1), row("step_time", 1.0, step="first"), row("step_time", 1.0, step=1.5),
     row("step_time", 1.0, step=2**63)],
)  # fmt: skip
def test_text_where_numbers_belong_is_refused_in_one_line(wrong):
    with pytest.raises(TracekitError, match=r"a: has a (step|value) that is not") as error:
        made(("a", report([wrong])))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [inf, -inf, nan, 1e200, 10**400, 1e-200])
def test_what_no_clock_could_measure_is_not_known(value):
    found = made(("a", report([row("step_time", value, step=1), row("step_time", 5.0, step=2)])))
    assert runs_of(found) == {"run": (5.0,)}


def test_numbers_where_text_belongs_are_text():
    found = made(
        (
            "a",
            report(
                [row("step_time", 5.0, run=7, part=3, step=1), row("stage_time", 5.0, run=7, step=1, stage=2, role=4)]
            ),
        )
    )
    assert runs_of(found) == {"7": (5.0,)}
    assert ("stage_time", "4", "2") in found.samples


def test_of_a_report_that_lost_values_only_those_of_the_whole_job_are_used():
    """Some ranks of a step would stand for all of them."""
    rows = [*step_rows([5, 6]), *step_rows([1, 2], name="gpu_busy", rank=0)]
    found = made_side("base", rows)
    assert {key[0] for key in found.samples} == {"step_time", "gpu_busy"}
    found = made(("a", report(rows, omitted=1)))
    assert {key[0] for key in found.samples} == {"step_time"}
    assert found.notes == ("base: a saved report of this many ranks has values of the whole job only",)


def test_files_without_anything_to_compare_are_refused_with_what_can_be_compared():
    hang = Path(__file__).parents[2] / "examples" / "hang"
    with pytest.raises(TracekitError, match="base: nothing in it can be compared") as error:
        compare(hang, hang)
    assert error.value.hint == "name profiles with steps, memory snapshots, or logs of runs or rollout engines"
