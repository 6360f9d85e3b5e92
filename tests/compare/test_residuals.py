"""What no lane accounts for: steps without any recording, and time that several files tell of."""

import pytest
from chrome_builder import op, write

from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.wall_time.attribution import attribute_sides
from tracekit.pipeline.comparing import read_side
from tracekit.pipeline.run import Options

ALONE = Options(jobs=1)


def recorded(path, *files):
    """A folder of files as verl names them: (role, pid, step, part, start, length of its op), in µs."""
    for role, pid, step, part, start, length in files:
        name = f"{role}_train_step{step}_rank0-of-1_pid{pid}_20261120082159373{part}.json"
        write(path / name, [op("aten::mm", start, length)])
    return path


def attribution(base, opt):
    sides = [read_side(p.name, [p], ALONE, ComparisonChoices(drop_first=0)) for p in (base, opt)]
    return attribute_sides(*sides, 0.95)


def told(found):
    """Base and opt of every row, by what it is."""
    return {row.what: (row.base, row.opt) for row in found.ops}


def test_steps_of_which_nothing_was_recorded_are_told_as_such(tmp_path):
    """Step 1: the actor from 0 to 60 and the critic beside it. Step 2: the critic alone, 30.

    Roles at the same time: the actor tells the step. Of step 2 it tells nothing, so 30/2 are unknown.
    """
    one = recorded(
        tmp_path / "a", ("actor", 1, 1, "", 0, 60), ("critic", 2, 1, "", 10, 30), ("critic", 2, 2, "", 100, 30)
    )  # fmt: skip
    two = recorded(
        tmp_path / "b", ("actor", 1, 1, "", 0, 60), ("critic", 2, 1, "", 10, 30), ("actor", 1, 2, "", 100, 30)
    )  # fmt: skip
    found = attribution(one, two)
    assert (found.base, found.opt) == (45_000, 45_000)
    rows = told(found)
    assert rows["steps without any recording"] == (15_000, 0)
    # 60/2 before, (60 + 30)/2 after.
    assert rows["aten::mm"] == (30_000, 45_000)
    assert sum(row.difference for row in found.ops) == pytest.approx(0, abs=1e-3)


def test_what_two_files_of_a_process_tell_of_is_taken_off_once(tmp_path):
    """0 to 60 and 30 to 90 of one process are a step of 90, of which 30 are in both files."""
    twice = recorded(tmp_path / "a", ("actor", 1, 1, "_mb0", 0, 60), ("actor", 1, 1, "_mb1", 30, 60))
    once = recorded(tmp_path / "b", ("actor", 1, 1, "_mb0", 0, 60), ("actor", 1, 1, "_mb1", 60, 30))
    found = attribution(twice, once)
    assert (found.base, found.opt) == (90_000, 90_000)
    rows = told(found)
    assert rows["recorded twice (subtracted)"] == (-30_000, 0)
    assert rows["aten::mm"] == (120_000, 90_000)
    assert sum(row.difference for row in found.ops) == pytest.approx(0, abs=1e-3)
