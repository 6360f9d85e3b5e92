"""Attribution of tables of slots made by hand: titles, effects of calls, replaced names, and which stages are shown."""

import numpy as np
import pytest

from tracekit.compare.wall_time.attribution import attribute_slot_table
from tracekit.compare.wall_time.slot_table import SLOT_KEYS, SlotHalf, SlotTable
from tracekit.model.tables.frame import from_rows

BACKWARD = "autograd::engine::evaluate_function: "


def half(ns, count, wall=None):
    """One side of a table, of one step."""
    ns = np.array(ns, float).reshape(-1, 1)
    count = np.array(count, float).reshape(-1, 1)
    wall = ns.sum(axis=0) if wall is None else np.array([wall], float)
    return SlotHalf(ns, count, np.array([0]), wall)


def attributed(slots, walls=(None, None)):
    """The attribution of {(stage, class, cause, op, kernel): (ns before, after, calls before, after)}."""
    keys = sorted(slots)
    before, after, calls_before, calls_after = zip(*(slots[key] for key in keys), strict=True)
    halves = half(before, calls_before, walls[0]), half(after, calls_after, walls[1])
    return attribute_slot_table(SlotTable(from_rows(SLOT_KEYS, keys), *halves), 0.95)


def compute(op, kernel="", stage="", kind="compute"):
    return stage, kind, "", op, kernel


def shown(rows):
    return {(row.stage, row.what): (row.base, row.opt) for row in rows}


# Titles


@pytest.mark.parametrize(
    ("slot", "of_class", "of_op", "leaf"),
    [
        (compute("aten::linear > aten::mm", "gemm"), "compute", "aten::linear", "aten::linear > aten::mm · gemm"),
        (compute(f"{BACKWARD}MulBackward0 > aten::mul", "mul"), "compute", "MulBackward0", "MulBackward0 > aten::mul · mul"),
        (compute("(unlinked)", "gemm<128>(int)"), "compute", "matrix product (gemm, int32)", "(unlinked) · gemm<128>(int)"),
        (compute("(unlinked)"), "compute", "(unlinked)", "(unlinked)"),
        (compute("(no op)", "gemm_12"), "compute", "matrix product (gemm)", "(no op) · gemm_12"),
        (compute("", "gemm_12"), "compute", "matrix product (gemm)", "(no op) · gemm_12"),
        (compute("(other)", "(other)"), "compute", "(other)", "(other) · (other)"),
        (compute("", "(other)"), "compute", "(other)", "(no op) · (other)"),
        (compute("aten::add", kind="host"), "host ops", "aten::add", "aten::add"),
        (
            compute("c10d::reduce > nccl:reduce", "ncclKernel", kind="collective"), "communication",
            "communication: nccl:reduce", "c10d::reduce > nccl:reduce · ncclKernel",
        ),
        (
            compute("aten::to > aten::copy_", "Memcpy HtoD", kind="memcpy"), "copies", "copies: aten::to",
            "aten::to > aten::copy_ · Memcpy HtoD",
        ),
        (compute("(no op)", "Memcpy HtoD", kind="memcpy"), "copies", "copies: Memcpy HtoD", "(no op) · Memcpy HtoD"),
        (compute("", kind="memset"), "fills", "fills", "fills"),
        (compute("(no op)", kind="no_op"), *["no op (Python)"] * 3),
        (("", "idle", "sync", "", ""), *["idle: stream wait"] * 3),
        (("", "step_end", "", "", ""), *["wait at step end"] * 3),
        (("", "twice", "", "", ""), *["recorded twice (subtracted)"] * 3),
    ],
)  # fmt: skip
def test_a_row_is_titled_by_its_class_its_op_and_its_kernel(slot, of_class, of_op, leaf):
    found = attributed({slot: (2_000, 3_000, 1, 1)})
    assert [row.what for row in (*found.stages, *found.ops, *found.leaves)] == [of_class, of_op, leaf]


def test_time_outside_stages_has_a_name_where_others_are_in_one():
    """The wait at the end of the step belongs to no stage, named or not."""
    slots = {
        compute("aten::mm", stage="gen"): (5, 5, 1, 1), compute("aten::add"): (7, 7, 1, 1),
        ("", "step_end", "", "", ""): (3, 3, 0, 0),
    }  # fmt: skip
    assert shown(attributed(slots).ops).keys() == {
        ("gen", "aten::mm"), ("(outside any stage)", "aten::add"), ("", "wait at step end"),
    }  # fmt: skip
    del slots[compute("aten::mm", stage="gen")]
    assert shown(attributed(slots).ops).keys() == {("", "aten::add"), ("", "wait at step end")}


# Rows


@pytest.mark.parametrize(
    ("numbers", "by_count"),
    [
        ((3_000, 2_000, 3, 1), -3_000),  # 1,000 and 2,000 a call: (1 − 3)(1,000 + 2,000)/2
        ((0, 100, 3, 2), -25),  # calls of no time become calls of 50: (2 − 3)(0 + 50)/2
        ((100, 0, 2, 0), -100),
        ((0, 100, 0, 2), 100),
        ((100, 200, 0, 4), 0),
        ((200, 100, 4, 0), 0),
        ((0, 100, 3, 0), 0),
        ((100, 0, 0, 3), 0),
        ((0, 100, 0, 0), 100),
        ((100, 0, 0, 0), -100),
        ((1, 100, 0, 0), 0),
        ((100, 1, 0, 0), 0),
        ((0, 100, 1, 0), 0),
        ((100, 0, 0, 1), 0),
        ((50, 100, 1, 2), 50),
        ((100, 50, 2, 1), -50),
    ],
)
def test_calls_explain_the_part_of_a_change_that_their_number_makes(numbers, by_count):
    (row,) = attributed({compute("aten::mm", "gemm"): numbers}).leaves
    before, after, calls_before, calls_after = numbers
    assert (row.base, row.opt, row.difference) == (before, after, after - before)
    assert (row.base_count, row.opt_count) == (calls_before, calls_after)
    assert (row.by_count, row.by_duration) == (by_count, after - before - by_count)
    assert row.waiting is False


def test_time_that_only_waits_has_no_calls_to_explain_it():
    for cause in ("sync", "other"):
        (row,) = attributed({("", "idle", cause, "", ""): (100, 50, 2, 1)}).leaves
        assert (row.by_count, row.by_duration, row.waiting) == (0, -50, True)


def test_only_the_finest_rows_have_counts():
    found = attributed({compute("aten::mm", "gemm"): (30, 20, 3, 1)})
    assert [(row.base_count, row.opt_count) for row in (*found.stages, *found.ops)] == [(None, None)] * 2
    assert [(row.base_count, row.opt_count) for row in found.leaves] == [(3, 1)]


def test_a_row_is_gone_or_new_where_one_side_spends_no_time_in_it():
    presence = {}
    for numbers in ((5, 6, 1, 1), (5, 0, 1, 0), (0, 6, 0, 1)):
        (row,) = attributed({compute("aten::mm", kind="memcpy"): numbers}).leaves
        presence[numbers[:2]] = row.presence
    assert presence == {(5, 6): "both", (5, 0): "gone", (0, 6): "new"}


def test_the_largest_change_comes_first_whichever_its_sign():
    slots = {
        compute("aten::a"): (10, 20, 1, 1), compute("aten::b"): (50, 20, 1, 1), compute("aten::c"): (10, 35, 1, 1),
        compute("aten::d"): (0, 0, 1, 1),
    }  # fmt: skip
    assert [row.difference for row in attributed(slots).leaves] == [-30, 25, 10, 0]


# Sums


@pytest.mark.parametrize(
    ("wall", "most"), [(1_000_000, 1_000), (10**13, 10_000)], ids=["a microsecond", "rounding of long steps"]
)
@pytest.mark.parametrize("side", [0, 1])
def test_rows_that_do_not_add_up_to_the_step_are_an_error(wall, most, side):
    """A microsecond is missing, or a billionth of a step of hours."""
    slots = {compute("aten::mm"): (wall, wall, 1, 1)}
    for off in (-most, most):
        walls = [wall, wall]
        walls[side] = wall + off - off // 10
        attributed(slots, walls)
        walls[side] = wall + off + off // 10
        with pytest.raises(AssertionError):
            attributed(slots, walls)


def test_the_rounding_of_the_longer_side_is_allowed_on_both():
    for walls in ((10**13 + 9_000, 10**6), (10**6, 10**13 + 9_000)):
        sizes = [wall - 9_000 * (wall > 10**6) for wall in walls]
        assert attributed({compute("aten::mm"): (*sizes, 1, 1)}, walls).leaves


# Replaced names


def test_kernels_of_one_op_replace_one_another_and_the_op_keeps_its_row():
    """Of mm: `a` and `b` of 40 and 20 before, `c` of 10 after; the largest name comes first."""
    slots = {
        compute("aten::mm", "shared"): (5, 5, 1, 1), compute("aten::mm", "alpha"): (20, 0, 1, 0),
        compute("aten::mm", "beta"): (40, 0, 1, 0), compute("aten::mm", "gamma"): (0, 10, 0, 1),
    }  # fmt: skip
    found = attributed(slots)
    assert shown(found.ops) == {("", "aten::mm"): (65, 15)}
    assert [row.presence for row in found.ops] == ["both"]
    (row,) = found.replaced
    assert (row.what, row.base, row.opt) == ("aten::mm: beta, alpha → gamma", 60, 10)
    assert row.presence == "replaced"


def test_the_names_of_a_place_are_ordered_by_their_sums():
    """`a` takes 30 and 30 in two kernels, `b` 50 in one."""
    slots = {
        compute("aten::b", "k"): (50, 0, 1, 0), compute("aten::a", "k"): (30, 0, 1, 0),
        compute("aten::a", "l"): (30, 0, 1, 0), compute("aten::fused", "m"): (0, 60, 0, 1),
    }  # fmt: skip
    found = attributed(slots)
    assert shown(found.ops) == {("", "replaced: aten::a, aten::b → aten::fused"): (110, 60)}
    assert {row.presence for row in found.ops} == {"replaced"}


def test_a_place_in_backward_is_titled_without_the_engine_s_prefix():
    path = f"{BACKWARD}MulBackward0"
    slots = {
        compute(path, "shared"): (5, 5, 1, 1), compute(f"{path} > aten::mul", "k"): (20, 0, 1, 0),
        compute(f"{path} > aten::div", "k"): (0, 10, 0, 1),
    }  # fmt: skip
    (row,) = attributed(slots).replaced
    assert row.what == "MulBackward0: aten::mul → aten::div"


@pytest.mark.parametrize(
    ("gone", "new"),
    [
        (compute("aten::copy_", "Memcpy HtoD", kind="memcpy"), compute("aten::copy_", "Memcpy DtoH", kind="memcpy")),
        (compute("(unlinked)", "a"), compute("(unlinked)", "b")),
        (compute("(no op)", "a"), compute("(no op)", "b")),
        (compute("(other)", "a"), compute("(other)", "b")),
        (compute("aten::mm", "(other)"), compute("aten::mm", "b")),
        (compute("aten::mm", "a"), compute("aten::mm", "(other)")),
        (compute(""), compute("aten::mm", "a")),
        (("", "idle", "sync", "", ""), ("", "idle", "other", "", "")),
    ],
)
def test_what_has_no_name_of_its_own_replaces_nothing(gone, new):
    assert attributed({gone: (20, 0, 1, 0), new: (0, 10, 0, 1)}).replaced == ()


@pytest.mark.parametrize("numbers", [(20, 0, 1, 1), (20, 1, 1, 0), (20, 5, 1, 1)])
def test_what_both_sides_have_replaces_nothing(numbers):
    """Called on both sides, or some time on both."""
    slots = {compute("aten::mm", "a"): numbers, compute("aten::mm", "b"): (0, 10, 0, 1)}
    assert attributed(slots).replaced == ()


def test_what_both_sides_have_in_some_of_their_steps_replaces_nothing():
    """Two steps a side; `a` is in the first before and in the second after."""
    keys = from_rows(SLOT_KEYS, [compute("aten::mm", "a"), compute("aten::mm", "b")])
    before, after = np.array([[20.0, 0], [0, 0]]), np.array([[0, 10.0], [10, 10]])
    halves = [SlotHalf(ns, np.sign(ns), np.array([0, 0]), ns.sum(axis=0)) for ns in (before, after)]
    found = attribute_slot_table(SlotTable(keys, *halves), 0.95)
    assert found.replaced == ()
    assert shown(found.leaves) == {("", "aten::mm · a"): (10, 5), ("", "aten::mm · b"): (0, 10)}


@pytest.mark.parametrize("kind", ["compute", "collective", "host"])
def test_ops_without_kernels_and_kernels_without_ops_may_replace_one_another(kind):
    for gone, new in ((("aten::a", ""), ("aten::b", "")), (("", "a"), ("", "b"))):
        slots = {compute(*gone, kind=kind): (20, 0, 1, 0), compute(*new, kind=kind): (0, 10, 0, 1)}
        (row,) = attributed(slots).replaced
        assert (row.base, row.opt) == (20, 10)


# Stages by op


def stages(**changes):
    """Two ops in each stage, of 100 each before; the first takes so much more after."""
    slots = {}
    for stage, change in changes.items():
        slots[compute("aten::mm", "k", stage)] = (100, 100 + change, 1, 1)
        slots[compute("aten::add", "k", stage)] = (100, 100, 1, 1)
    return slots


def within(slots):
    return [(one.stage, one.base, one.opt) for one in attributed(slots).within]


def test_two_stages_that_change_are_shown_by_op():
    assert within(stages(gen=10, update=20)) == [("update", 200, 220), ("gen", 200, 210)]


def test_a_stage_with_less_than_a_twentieth_of_all_changes_is_not_shown():
    assert within(stages(gen=95, update=5)) == [("gen", 200, 295), ("update", 200, 205)]
    assert within(stages(gen=96, update=4)) == [("gen", 200, 296)]
    assert within(stages(gen=-96, update=4)) == [("gen", 200, 104)]


def test_at_most_three_stages_are_shown():
    assert [stage for stage, *_ in within(stages(a=40, b=30, c=20, d=10))] == ["a", "b", "c"]


def test_stages_that_do_not_change_are_not_shown():
    assert within(stages(gen=0, update=0)) == []
    assert within(stages(gen=1, update=0)) == [("gen", 200, 201)]


def test_a_step_of_one_stage_is_not_shown_by_stage():
    assert within(stages(gen=10)) == []


def test_a_stage_of_one_op_is_not_shown_by_op():
    slots = stages(gen=10, update=20)
    del slots[compute("aten::add", "k", "update")]
    assert within(slots) == [("gen", 200, 210)]
