"""Which kernels changed: a machine that is slower as a whole is told as such and hides no kernel that changed."""

import numpy as np
import pytest

from tracekit.compare.comparison import Change
from tracekit.compare.reports.attribution_tables import build_attribution_sections
from tracekit.compare.wall_time.attribution_rows import Attribution
from tracekit.compare.wall_time.kernels import find_kernel_changes
from tracekit.compare.wall_time.slot_table import SLOT_KEYS, SlotHalf, SlotTable
from tracekit.model.report import Sheet
from tracekit.model.tables.frame import concat, from_rows

STEPS = 8


def table(times, factors, *, kind="compute", kernel="elementwise_kernel_{}", noise=0.002, seed=1):
    """Slots of kernels of these times a step on both sides, after with these factors, each with its own noise."""
    random = np.random.default_rng(seed)
    times, factors = np.array(times, float), np.array(factors, float)
    names = [kernel.format(chr(97 + n // 26) + chr(97 + n % 26)) for n in range(len(times))]
    host = kind == "host"
    rows = [["gen", kind, "", f"aten::x > {name}" if host else "aten::x", "" if host else name] for name in names]
    halves = []
    for scale in (np.ones(len(times)), factors):
        ns = (times * scale)[:, None] * (1 + noise * random.standard_normal((len(times), STEPS)))
        run = np.zeros(STEPS, int)
        halves.append(SlotHalf(ns, np.ones(ns.shape), run, ns.sum(axis=0)))
    return SlotTable(from_rows(SLOT_KEYS, rows), *halves)


def test_a_shift_that_all_kernels_share_is_one_warning_and_no_kernel():
    found = find_kernel_changes(table([1e6] * 30, [1.011] * 30))
    (warning,) = found.warnings
    assert warning.startswith("memory-bound kernels and copies uniformly take 1.1 % more time (30 of 30)")
    assert "another node?" in warning
    assert found.changed == ()
    assert (found.tested, found.seen, found.on_host) == (30, 30, False)


def test_the_one_kernel_that_changed_is_told_beside_the_shift():
    """1.2 times slower as measured, 1.2 / 1.02 without what all share; before over after, as everywhere."""
    found = find_kernel_changes(table([1e6] * 30, [1.02] * 29 + [1.2]))
    (one,) = found.changed
    assert one.name == "elementwise_kernel_bd"
    assert one.ratio == pytest.approx(1 / 1.2, abs=0.005)
    assert one.corrected == pytest.approx(1.02 / 1.2, abs=0.005)
    assert one.q < 0.05
    assert len(found.warnings) == 1


def test_kernels_that_move_either_way_are_no_shift():
    found = find_kernel_changes(table([1e6] * 30, [1.01, 0.99] * 15))
    assert found.warnings == ()


def test_a_shift_too_small_to_matter_is_not_told():
    assert find_kernel_changes(table([1e6] * 30, [1.004] * 30)).warnings == ()


def test_few_kernels_tell_nothing_of_the_machine():
    assert find_kernel_changes(table([1e6] * 19, [1.02] * 19)).warnings == ()
    assert find_kernel_changes(table([1e6] * 20, [1.02] * 20)).warnings != ()


def test_where_most_changed_by_much_it_is_no_clock():
    found = find_kernel_changes(table([1e6] * 30, [1.3] * 30))
    assert found.warnings == ()
    assert len(found.changed) == 30


def test_each_class_has_a_shift_of_its_own():
    one = table([1e6] * 24, [1.02] * 24)
    two = table([1e6] * 24, [1.0] * 24, kernel="ampere_sgemm_{}", seed=2)
    halves = [
        SlotHalf(np.concatenate([a.ns, b.ns]), np.concatenate([a.count, b.count]), a.run, a.wall + b.wall)
        for a, b in ((one.base, two.base), (one.opt, two.opt))
    ]  # fmt: skip
    both = SlotTable(concat([one.keys, two.keys]), *halves)
    (warning,) = find_kernel_changes(both).warnings
    assert warning.startswith("memory-bound kernels")


def test_without_a_device_ops_are_compared_and_that_is_said():
    found = find_kernel_changes(table([1e6] * 30, [1.03] * 30, kind="host", kernel="aten::{}"))
    assert found.on_host
    (warning,) = found.warnings
    assert warning.startswith("host ops uniformly take 3.0 % more time")
    assert "load of the machine" in warning
    step = Change("step_time", "step", None, None, "ns", "lower", "improvement", 1.0, 1.0)
    shown = list(build_attribution_sections(Attribution(kernels=found), Sheet("s", "S", (), ()), step))[-1]
    assert shown.title == "Which host ops changed?"
    assert shown.caveats[0].startswith("no device was recorded")


@pytest.mark.parametrize(
    ("change", "changed", "one_sided"),
    [([1.0] * 30, False, False), ([1.0] * 29 + [2.0], True, False), ([1.0] * 29 + [0.0], True, True)],
)
def test_the_caption_of_kernels_explains_only_marks_that_the_table_has(change, changed, one_sided):
    found = find_kernel_changes(table([1e6] * 30, change))
    step = Change("step_time", "step", None, None, "ns", "lower", "improvement", 1.0, 1.0)
    shown = list(build_attribution_sections(Attribution(kernels=found), Sheet("s", "S", (), ()), step))[-1]
    (sheet,) = (sheet for sheet in shown.sheets if sheet.name == "kernels")
    assert ("beyond chance" in sheet.caption) == changed
    assert ("New and removed" in sheet.caption) == one_sided


def test_kernels_of_one_side_carry_their_full_time_and_no_ratio():
    made = table([1e6] * 21, [1.0] * 20 + [0.0])
    (gone,) = find_kernel_changes(made).changed
    assert (gone.presence, gone.opt, gone.ratio, gone.q) == ("gone", 0.0, None, None)
    assert gone.difference == pytest.approx(-1e6, rel=0.01)
    (new,) = find_kernel_changes(SlotTable(made.keys, made.opt, made.base)).changed
    assert (new.presence, new.base, new.ratio) == ("new", 0.0, None)


def test_of_several_runs_a_side_runs_are_the_sample():
    """The same steps as four runs of two: a change that is one run's alone is beyond no chance."""
    made = table([1e6] * 30, [1.0] * 30)
    run = np.repeat(np.arange(4), 2)
    after = made.opt.ns.copy()
    after[0, 6:] *= 2
    halves = [SlotHalf(ns, h.count, run, ns.sum(axis=0)) for ns, h in ((made.base.ns, made.base), (after, made.opt))]
    found = find_kernel_changes(SlotTable(made.keys, *halves))
    assert found.unit == "run"
    assert found.changed == ()
    assert find_kernel_changes(made).unit == "step"


def test_one_step_a_side_tests_nothing_and_still_tells_what_is_new():
    made = table([1e6] * 3, [1.0, 1.5, 0.0])
    halves = [SlotHalf(h.ns[:, :1], h.count[:, :1], h.run[:1], h.wall[:1]) for h in (made.base, made.opt)]
    found = find_kernel_changes(SlotTable(made.keys, *halves))
    assert found.tested == 0
    assert [one.presence for one in found.changed] == ["gone"]
