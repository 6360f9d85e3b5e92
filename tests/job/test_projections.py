"""In how many steps a device is full: worked out by hand from room and slope, and when nothing may be said."""

from dataclasses import replace

import numpy as np
import pytest

from tracekit.job.memory.device_size import DeviceSize
from tracekit.job.memory.forecast import Projection, project_stacks, project_trend
from tracekit.job.memory.survivors import KeptStack
from tracekit.job.memory.trend import Allocator, Series
from tracekit.model.stats.trend import Growth, Slope

MIB = 2**20
PROCESS = ("run", None, 0, None, 1, None, 0)
CARD = DeviceSize(1000 * MIB, "given")


def series(**changes):
    """Grows by 10 MiB a step, from 8 to 12; 600 MiB were reserved of 1,000."""
    of = Allocator("run", None, 0, None, 1, None, 102, 0)
    slope = Slope(10.0 * MIB, 8.0 * MIB, 12.0 * MIB, 9)
    steps = np.arange(9.0)
    made = Series(
        of, "end of the step", relative=False, x=steps, level=steps, floor=slope, point=slope,
        found=Growth(slope), taken_bytes=600 * MIB, cached=True, card=CARD, numbered=True,
        quantity="requested", logged=True,
    )  # fmt: skip
    return replace(made, **changes)


def stack(levels=(0, 5, 10), at=(1.0, 2.0, 3.0), site="a", process=PROCESS):
    levels = tuple(int(level * MIB) for level in levels)
    return KeptStack(
        process, "snapshot", site, site, levels[-1] - levels[0], at[-1] - at[0], True, 3, 4, 1, 3, levels, at
    )  # fmt: skip


def test_the_room_over_the_slope_with_the_ends_of_its_interval():
    """400 MiB are left: 40 steps, at 12 MiB a step 33, at 8 MiB 50."""
    found = project_trend(series(), "strong")
    assert (found.steps, found.soonest, found.latest) == (40, 33, 50)
    assert found.claim() == "; the GPU is full in 40 steps (33–50)"
    (metric,) = found.evidence()
    assert (metric.value, metric.low, metric.high) == (40, 33, 50)
    assert "1,000 MiB, given" in found.why
    assert "peak reserved (600 MiB)" in found.why


def test_an_interval_that_reaches_no_growth_has_no_latest_step():
    flat = Growth(Slope(10.0 * MIB, 0.0, 20.0 * MIB, 9))
    found = project_trend(series(found=flat), "likely")
    assert (found.steps, found.soonest, found.latest) == (40, 20, None)
    assert found.claim().endswith("40 steps (20 or more)")


@pytest.mark.parametrize("answer", ["none", "flat", "saturating", "shift", "too few", None])
def test_what_does_not_clearly_grow_is_not_projected(answer):
    found = project_trend(series(), answer)
    assert found.steps is None
    assert (found.claim(), found.evidence()) == ("", ())
    assert found.why.startswith("not projected: ")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"card": None}, "not projected: device size unknown, give --device-memory"),
        ({"taken_bytes": 1001 * MIB}, "not projected: 1,001 MiB exceed GPU memory (1,000 MiB, given)"),
        ({"relative": True}, "not projected: levels are relative to the start of the recording"),
    ],
)  # fmt: skip
def test_why_nothing_is_foretold(changes, why):
    assert project_trend(series(**changes), "strong") == Projection(why=why)


def test_a_full_card_has_no_step_left():
    assert project_trend(series(taken_bytes=1000 * MIB), "strong").steps == 0


def test_where_only_what_is_in_use_is_known_the_basis_says_so():
    assert "peak in use" in project_trend(series(cached=False), "strong").why


def test_of_host_memory_nothing_is_said():
    host = Allocator("run", None, 0, None, 1, None, 0, -1)
    assert project_trend(series(of=host), "strong") == Projection()


def test_all_stacks_that_a_process_keeps_count_together():
    """5 and 3 MiB a step: 400 MiB last 50 steps. Stacks of other processes and other files do not count."""
    mine = [stack(), stack((0, 3, 6), site="b")]
    others = [stack(process=(*PROCESS[:-1], 1)), stack(at=(1.0, 2.0, 4.0))]
    found = project_stacks([*mine, *others], mine[0], series(), "too few")
    assert (found.steps, found.soonest, found.latest) == (50, 50, 50)


def test_where_all_memory_grows_its_slope_counts():
    assert project_stacks([stack()], stack(), series(), "strong").steps == 40


@pytest.mark.parametrize("answer", ["none", "flat", "saturating", "shift"])
def test_stacks_are_not_projected_where_all_memory_does_not_grow(answer):
    found = project_stacks([stack()], stack(), series(), answer)
    assert found.steps is None
    assert "all memory together" in found.why


def test_without_a_series_of_all_memory_nothing_is_foretold():
    assert project_stacks([stack()], stack(), None, None).steps is None
