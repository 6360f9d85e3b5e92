"""Memory in use at the ends of steps, shown from tables made by hand: which ends, in which order, and what is unknown."""

import pytest
from made_tables import make_measured

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import live_steps

OWNER = {"run": "r", "rank": 0, "pid": 7, "source": "a", "memory": "device", "device": 0}


def end(number, sites, rest=None, **more):
    """The rows of the end of one step: bytes by site, and of the smaller ones."""
    of_end = {**OWNER, "step": number, "at_ns": 100 * number, "source": f"step{number}", "untold": "none", **more}
    rows = [{**of_end, "site": site, "size_bytes": size} for site, size in sites.items()]
    return rows if rest is None else [*rows, {**of_end, "untold": "rest", "size_bytes": rest}]


def judged(*ends, levels=({},)):
    rows = [row for of_end in ends for row in of_end]
    measured = make_measured(snapshot_levels=[{**OWNER, "peak_bytes": 9, **row} for row in levels], live_steps=rows)
    return live_steps.judge(measured, load_default_thresholds())


def shown(section):
    """Titles of the columns, and the cells of each row."""
    (sheet,) = section.sheets
    return [heading.title for heading in sheet.headings], [list(row) for row in sheet.rows]


def test_two_ends_are_enough_and_all_that_is_in_use_comes_first():
    section = judged(end(3, {"a.py:1 f": 10, "b.py:2 g": 5}), end(4, {"a.py:1 f": 12, "b.py:2 g": 30}))
    titles, rows = shown(section)
    assert titles == ["place in the program", "first to last", "step 3", "step 4"]
    assert rows == [["in use", 27, 15, 42], ["b.py:2 g", 25, 5, 30], ["a.py:1 f", 2, 10, 12]]
    (sheet,) = section.sheets
    assert sheet.title == "In use at the end of each step, rank 0, GPU 0"
    assert sheet.caption == "Requested bytes."
    assert [(metric.name, metric.value) for metric in section.metrics] == [("step_ends", 2)]
    assert judged(end(3, {"a.py:1 f": 10})).status == "skipped"


@pytest.mark.parametrize(("a", "b", "c"), [("a", "b", "c"), ("x", "y", "z")])
def test_a_place_that_may_be_among_the_smaller_ones_has_no_number_there(a, b, c):
    """At step 1 the smaller ones are 1 byte, which may be of b; at step 2 they are none, so c has nothing."""
    one = end(1, {a: 10, c: 4}, rest=1)
    two = end(2, {a: 10, b: 20}, rest=0)
    _, rows = shown(judged(one, two))
    assert rows == [
        ["in use", 15, 15, 30], [b, None, None, 20], [a, 0, 10, 10], [c, -4, 4, 0], ["all others", -1, 1, 0],
    ]  # fmt: skip


def test_the_change_is_known_if_the_first_and_the_last_end_are():
    ends = [end(1, {"a": 10, "b": 5}, rest=1), end(2, {"a": 10}, rest=1), end(3, {"a": 12, "b": 8}, rest=1)]
    _, rows = shown(judged(*ends))
    assert rows[:3] == [["in use", 5, 16, 11, 21], ["a", 2, 10, 10, 12], ["b", 3, 5, None, 8]]
    _, rows = shown(judged(*ends[:2], end(3, {"a": 12}, rest=9)))
    assert rows[2] == ["b", None, 5, None, None]


def test_without_smaller_ones_a_place_that_is_not_listed_holds_nothing():
    _, rows = shown(judged(end(1, {"a": 10}), end(2, {"a": 10, "b": 2})))
    assert rows == [["in use", 2, 10, 12], ["a", 0, 10, 10], ["b", 2, 0, 2]]


def test_the_twenty_largest_places_are_listed_and_the_others_are_one_row():
    sites = {f"f.py:{size} f": size for size in range(1, 23)}
    _, rows = shown(judged(end(1, sites), end(2, sites)))
    assert [row[0] for row in rows] == ["in use", *(f"f.py:{size} f" for size in range(22, 2, -1)), "all others"]
    assert rows[-1][2] == 1 + 2
    del sites["f.py:1 f"], sites["f.py:2 f"]
    assert shown(judged(end(1, sites), end(2, sites)))[1][-1][0] == "f.py:3 f"


@pytest.mark.parametrize(
    ("count", "steps"), [(10, range(1, 11)), (11, (1, 2, 3, 4, 5, 7, 8, 9, 10, 11)), (19, range(1, 20, 2))]
)
def test_at_most_ten_steps_are_shown(count, steps):
    """Of 11 places 0 to 10, those at 0, 1.1, 2.2 and so on."""
    section = judged(*(end(number, {"a": number}) for number in range(1, count + 1)))
    titles, rows = shown(section)
    assert titles[2:] == [f"step {step}" for step in steps]
    assert rows[1][1] == count - 1
    (sheet,) = section.sheets
    told = "" if count == 10 else f" 10 of {count} steps: the first, the last and some in between."
    assert sheet.caption == "Requested bytes." + told


def test_the_process_with_the_highest_peak_is_shown():
    """The other process, and the pinned memory of the first, have rows of their own."""
    mine, other = end(1, {"a": 1}) + end(2, {"a": 2}), end(1, {"b": 50}, rank=1, pid=8)
    pinned = end(1, {"c": 70}, memory="host")
    levels = [{"peak_bytes": 5, "rank": 1, "pid": 8}, {}, {"memory": "host", "peak_bytes": 99}]
    section = judged(mine, other, pinned, levels=levels)
    assert [row[0] for row in shown(section)[1]] == ["in use", "a"]
    assert section.sheets[0].caption == "Requested bytes. The process with the highest peak, of 3."
    section = judged(mine, other, levels=levels[:2])
    assert section.sheets[0].caption == "Requested bytes. The process with the highest peak, of 2."


def test_ends_are_in_order_of_time_and_a_step_recorded_again_counts_once():
    ends = [end(2, {"a": 2}, at_ns=300), end(1, {"a": 1}, at_ns=100), end(1, {"a": 5}, at_ns=200, source="again")]
    titles, rows = shown(judged(*ends))
    assert titles[2:] == ["step 1", "step 2"]
    assert rows[0][2:] == [5, 2]


def test_ends_without_times_are_in_order_of_steps():
    titles, _ = shown(judged(end(2, {"a": 2}, at_ns=None), end(1, {"a": 1}, at_ns=None), end(3, {"a": 1}, at_ns=4)))
    assert titles[2:] == ["step 1", "step 2", "step 3"]


def test_ends_without_steps_are_numbered():
    titles, _ = shown(judged(end(1, {"a": 2}, step=None), end(2, {"a": 1}, step=None)))
    assert titles[2:] == ["end 1", "end 2"]


def test_ends_of_unknown_order_are_shown_of_one_file_only():
    unknown = {"step": None, "at_ns": None}
    one = [end(1, {"a": 2}, **unknown, source="x"), end(1, {"a": 3}, **unknown, source="x", position=1)]
    assert shown(judged(*one))[0][2:] == ["end 1", "end 2"]
    assert judged(*one, end(1, {"a": 3}, **unknown, source="y")).status == "skipped"


NOBODY = {"rank": None, "pid": None}


@pytest.mark.parametrize(
    ("whose", "ends"),
    [
        ({}, 3),  # a known process: its files go together
        ({"pid": None}, 3),
        ({"rank": None}, 3),
        (NOBODY, 2),  # of nobody known: one file only
    ],
)
def test_steps_within_files_of_unknown_processes_are_not_put_together(whose, ends):
    rows = [end(1, {"a": 1}, **whose, source="a"), end(2, {"a": 1}, **whose, source="a", position=1)]
    section = judged(*rows, end(3, {"a": 1}, **whose, source="b"), levels=[whose])
    assert len(shown(section)[0]) == 2 + ends


def test_files_of_unknown_processes_that_have_each_their_step_go_together():
    rows = [end(number, {"a": 1}, **NOBODY) for number in (1, 2, 3)]
    assert shown(judged(*rows, levels=[NOBODY]))[0][2:] == ["step 1", "step 2", "step 3"]


def test_files_of_unknown_processes_of_which_one_has_no_step_are_not_put_together():
    rows = [end(1, {"a": 1}, **NOBODY, source="a"), end(2, {"a": 2}, **NOBODY | {"step": None}, source="b")]
    assert judged(*rows, levels=[NOBODY]).status == "skipped"
