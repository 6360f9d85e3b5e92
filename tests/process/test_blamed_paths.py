"""Idle time by path, worked out by hand: which thread is blamed, which neighbors are named, what small nodes fold into.

Each test runs with the compiled sweeps and without them.
"""

import pytest
from chrome_builder import annotation, kernel, launch, launched, op, step
from process.blame_traces import held, kinds, paths, python, tables, traced
from process.idle_traces import between, stream_wait

from tracekit.model import sweeps
from tracekit.process.idle_time import attribution

LAUNCH = "cudaLaunchKernel"
LOCK = "<built-in method acquire of _thread.lock object at 0x7f01>"
WAIT = {"start": 150, "at": 150}
"""Idle from 100 to 150, all of it before the launch."""


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def _both_sweeps(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(sweeps, "native", None)


def rows_of(trace, window):
    """(step, path) → (gaps, ns) of one kind of window."""
    found, frames = tables(trace)
    names = paths(frames)
    found = found[found["window"] == window]
    columns = (found[name] for name in ("step", "node", "gap_count", "idle_ns"))
    return {(step, names[node]): (gaps, ns) for step, node, gaps, ns in zip(*columns, strict=True)}


# The thread to blame


def test_without_a_gap_nothing_is_blamed(tmp_path):
    assert held(traced(tmp_path, [kernel("a", 0, 10), kernel("b", 10, 10)])) == {}


def test_before_work_of_an_unknown_launch_the_thread_of_the_next_known_one_is_blamed(tmp_path):
    """`b` tells of no launch; `c` is launched by thread 77, `a` by main."""
    rows = [
        *launched("a", 0, 0, 100, 1), kernel("b", 150, 10), *launched("c", 155, 160, 10, 3, tid=77),
        op("aten::main", 100, 50), op("aten::other", 90, 70, tid=77),
    ]  # fmt: skip
    assert held(traced(tmp_path, rows)) == {"aten::other": 50}
    last = [*rows[:3], *launched("c", 40, 40, 10, 3, tid=77, stream=9), *rows[5:]]
    # `c` began before `b`: no known launch follows, and `a` began first.
    assert held(traced(tmp_path, last, "last.json")) == {"aten::other": 50}


def test_after_the_last_op_its_thread_is_blamed(tmp_path):
    """The step goes on to 300; `b` ended at 200 and was launched by thread 77."""
    rows = [
        step(1, 0, 300), *launched("a", 0, 0, 100, 1), *launched("b", 50, 100, 100, 2, tid=77),
        op("aten::main", 200, 50), op("aten::other", 200, 100, tid=77),
    ]  # fmt: skip
    assert {path: us for path, us in held(traced(tmp_path, rows), "step").items() if us > 1} == {"aten::other": 100}


def test_the_launch_that_is_recorded_first_is_as_good_as_any(tmp_path):
    """The launches are rows 0 and 1 of the file's host rows; the last row is of another thread."""
    rows = [
        launch(95, 2, 55), kernel("b", 150, 50, 2), *launched("a", 94, 96, 4, 1), op("aten::other", 90, 100, tid=77),
    ]  # fmt: skip
    assert held(traced(tmp_path, rows)) == {LAUNCH: 50}


def test_a_launch_of_no_duration_on_a_thread_without_any_rows_is_blamed_on_nothing(tmp_path):
    rows = [*launched("a", 0, 0, 100, 1), launch(150, 2, 0, tid=999), kernel("b", 150, 50, 2)]
    assert held(traced(tmp_path, rows)) == {"(nothing recorded)": 50}


def test_a_launch_that_returns_late_is_blamed_until_the_device_begins(tmp_path):
    """It takes from 110 to 190; the device begins at 150, or at 195, far later than starting up takes."""
    for at, expected in ((150, {LAUNCH: 40}), (195, {LAUNCH: 80, "(launched but not started, cause unknown)": 5})):
        rows = [*launched("a", 0, 0, 100, 1), op("aten::x", 100, 10), launch(110, 2, 80), kernel("b", at, 5, 2)]
        assert held(traced(tmp_path, rows, f"{at}.json")) == {"aten::x": 10, **expected}


def test_a_launch_that_only_its_op_tells_of_has_returned_when_the_op_begins(tmp_path):
    rows = [
        *launched("a", 0, 0, 100, 1), op("aten::x", 90, 30), op("aten::y", 120, 20, **{"External id": 5}),
        kernel("b", 150, 50, **{"External id": 5}),
    ]  # fmt: skip
    assert held(traced(tmp_path, rows)) == {"aten::x": 20, "(launched but not started, cause unknown)": 30}


def test_where_all_other_threads_wait_the_first_of_them_is_blamed(tmp_path):
    """Nothing is recorded of the thread that launches."""
    rows = [
        *launched("a", 0, 0, 100, 1, tid=999), *launched("b", 150, 150, 50, 2, tid=999),
        python(LOCK, 90, 60, tid=70), op("aten::x", 160, 5, tid=70),
        python("queue.py(154): get", 90, 60, tid=71), op("aten::y", 160, 5, tid=71),
    ]  # fmt: skip
    assert held(traced(tmp_path, rows)) == {"<built-in method acquire of _thread.lock object>": 50}


def waiting(*workers):
    """Main waits from 100 to 150; each worker is (thread, its rows from 100 to 150, whether it launches work)."""
    rows = [python(LOCK, 100, 50), *between(**WAIT)]
    for tid, names, feeds in workers:
        length = 50 / len(names)
        rows += [op(name, 100 + length * place, length, tid=tid) for place, name in enumerate(names)]
        if feeds:
            rows += launched("c", 10, 20, 10, tid, tid=tid, stream=9)
    return rows


def test_a_waiting_thread_is_followed_to_the_one_that_launches_work_then_to_the_busiest(tmp_path):
    fewer, more = ["aten::a"], ["aten::b", "aten::c"]
    found = held(traced(tmp_path, waiting((77, more, False), (78, fewer, True))))
    assert found == {"aten::a": 50}
    found = held(traced(tmp_path, waiting((77, fewer, False), (78, more, False)), "busiest.json"))
    assert found == {"aten::b": 25, "aten::c": 25}
    found = held(traced(tmp_path, waiting((77, fewer, False), (78, ["aten::d"], False)), "first.json"))
    assert found == {"aten::a": 50}


def test_a_thread_whose_only_launch_is_the_first_recorded_row_launches_work_too(tmp_path):
    rows = [
        launch(0, 78, tid=78), kernel("c", 20, 10, 78, stream=9), *launched("a", 5, 8, 92, 1), python(LOCK, 100, 50),
        op("aten::a", 100, 50, tid=78), op("aten::b", 100, 25, tid=77), op("aten::c", 125, 25, tid=77),
        *launched("b", 150, 150, 50, 2),
    ]  # fmt: skip
    assert held(traced(tmp_path, rows)) == {"aten::a": 50}


def test_only_some_other_threads_are_examined(tmp_path, monkeypatch):
    """The busiest thread works from 100 to 110 only; another one until 150."""
    rows = [*waiting((77, ["aten::long"], False)), *(op(f"aten::{n}", 100 + n, 1, tid=78) for n in range(10))]
    assert held(traced(tmp_path, rows))["aten::long"] == 40
    monkeypatch.setattr(attribution, "MAX_THREADS", 2)  # the launching thread counts too
    found = held(traced(tmp_path, rows, "one.json"))
    assert "aten::long" not in found
    assert found["<built-in method acquire of _thread.lock object>"] == 40


def test_a_thread_that_only_waits_or_is_in_a_step_explains_nothing(tmp_path):
    wait = "<built-in method acquire of _thread.lock object>"
    other = [python(LOCK, 90, 100, tid=77), annotation("ProfilerStep#4", 90, 100, tid=78)]
    assert held(traced(tmp_path, [*waiting(), *other])) == {wait: 50}


def test_the_thread_that_waits_does_not_explain_itself(tmp_path):
    """Its own rows are no work of another thread, however many they are; between them 77 works from 120 on."""
    rows = [op(f"aten::before{n}", n, 1) for n in range(10, 20)]
    found = held(traced(tmp_path, [*waiting(), *rows, op("aten::work", 120, 50, tid=77)]))
    assert found == {"<built-in method acquire of _thread.lock object>": 20, "aten::work": 30}


# Neighbors of what is not recorded


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([], ""),
        ([op("aten::first", 80, 20)], ", after aten::first"),
        ([op("aten::second", 150, 5)], ", before aten::second"),
        ([op("aten::first", 80, 20), op("aten::second", 150, 5)], ", after aten::first, before aten::second"),
        ([op("aten::first", 80, 20, tid=7), op("aten::second", 150, 5, tid=7)], ""),
        ([op("aten::outer", 60, 40), op("aten::inner", 80, 20)], ", after aten::outer"),
        ([op("aten::outer", 60, 40), op("aten::mid", 70, 30), op("aten::in", 80, 20)], ", after aten::outer"),
        ([python("a.py(1): f", 60, 40), op("aten::inner", 80, 20)], ", after aten::inner"),
        ([python("a.py(1): f", 60, 40), python("a.py(2): g", 80, 20)], ", after a.py(2): g"),
        ([op("aten::early", 10, 5), op("aten::late", 50, 5)], ", after aten::late"),
        ([launch(60, 9, 10, name="cudaMalloc")], ", after cudaMalloc"),
        ([launch(60, 9, 10, name="hipModuleLaunchKernel")], ""),
    ],
)
def test_the_rows_of_the_thread_around_a_silence_are_named_but_launches_are_not(tmp_path, rows, named):
    found = held(traced(tmp_path, between(*rows, start=155, at=150)))
    assert found == {f"(nothing recorded{named})": 50}


def test_several_silences_have_neighbors_of_their_own(tmp_path):
    rows = [op("aten::a", 110, 10), op("aten::b", 130, 10), op("aten::a", 145, 1)]
    found = held(traced(tmp_path, between(*rows, **WAIT)))
    assert found == {
        "(nothing recorded, before aten::a)": 10, "aten::a": 11, "(nothing recorded, after aten::a, before aten::b)": 10,
        "aten::b": 10, "(nothing recorded, after aten::b, before aten::a)": 5, "(nothing recorded, after aten::a)": 4,
    }  # fmt: skip


# Windows


def test_idle_time_is_split_at_the_edges_of_windows_and_its_gaps_are_counted(tmp_path):
    """The first gap is in both steps, 20 in each; the second, of 10, is in step 2."""
    rows = [
        step(1, 0, 120), step(2, 120, 120), *launched("a", 0, 0, 100, 1), *launched("b", 140, 140, 40, 2),
        *launched("c", 190, 190, 10, 3), python("f", 100, 20), python("g", 120, 20), python("g", 180, 10),
    ]  # fmt: skip
    found = rows_of(traced(tmp_path, rows), "step")
    assert {key: value for key, value in found.items() if key[1][-1] in "fg"} == {
        (1, "ProfilerStep# > f"): (1, 20_000), (2, "ProfilerStep# > g"): (2, 30_000),
    }  # fmt: skip


def test_a_gap_counts_once_for_a_function_that_runs_twice_in_it(tmp_path):
    """`f` runs twice in the gap from 100 to 150, and once in that from 200 to 220."""
    rows = [
        *between(python("f", 100, 10), python("g", 110, 20), python("f", 130, 20), **WAIT),
        python("f", 200, 20), *launched("c", 220, 220, 10, 3),
    ]  # fmt: skip
    found = rows_of(traced(tmp_path, rows), "capture")
    assert {path: value for (_, path), value in found.items()} == {"f": (2, 50_000), "g": (1, 20_000)}


# Folding


def in_main(*functions, total=500):
    """Main is idle from 100 on for `total`; each function is (name, its start after that, its length)."""
    rows = [python("main", 0, total + 200), *(python(name, 100 + at, length) for name, at, length in functions)]
    return between(*rows, start=100 + total, at=100 + total)


def test_a_node_with_less_than_a_share_of_the_idle_time_is_folded_into_its_parent_s_rest(tmp_path):
    """500 µs are idle, of which 0.2 % are 1 µs."""
    rows = in_main(("enough", 0, 1), ("little", 10, 0.999), ("less", 20, 0.5))
    found = held(traced(tmp_path, rows))
    assert found == pytest.approx({"main": 497.501, "main > enough": 1, "main > (other)": 1.499})


def test_a_node_counts_with_what_is_within_it(tmp_path):
    """`outer` has 0.5 of its own and 0.6 in `inner`, which alone is too little."""
    rows = in_main(("outer", 0, 1.1), ("inner", 0.2, 0.6))
    found = held(traced(tmp_path, rows))
    assert found == pytest.approx({"main": 498.9, "main > outer": 0.5, "main > outer > (other)": 0.6})


def test_a_node_counts_with_all_that_is_within_it_however_deep(tmp_path):
    """`a` has 0.3 of its own, `b` in it 0.3, and `c` in that 0.6: `a` alone has enough in it."""
    rows = in_main(("a", 0, 1.2), ("b", 0.1, 0.9), ("c", 0.2, 0.6))
    found = held(traced(tmp_path, rows))
    assert found == pytest.approx({"main": 498.8, "main > a": 0.3, "main > a > (other)": 0.9})


def test_small_nodes_in_small_nodes_fold_into_the_nearest_that_is_kept(tmp_path):
    rows = in_main(("outer", 0, 0.9), ("inner", 0.2, 0.4))
    found = held(traced(tmp_path, rows))
    assert found == pytest.approx({"main": 499.1, "main > (other)": 0.9})


def test_small_nodes_without_a_parent_fold_into_one_at_the_top_by_kind(tmp_path):
    rows = [python("large", 100, 498), python("f", 598, 0.5), python("g", 598.5, 0.25), op("aten::x", 599, 0.75)]
    trace = traced(tmp_path, between(*rows, start=600, at=600))
    found, frames = tables(trace)
    others = [(path, holder) for path, holder in zip(paths(frames), frames["holder"], strict=True) if path == "(other)"]
    assert sorted(others) == [("(other)", "nothing"), ("(other)", "op"), ("(other)", "python")]
    assert held(trace) == pytest.approx({"large": 498, "(other)": 2})
    assert kinds(trace) == pytest.approx({"python": 498.75, "op": 0.75, "nothing": 0.5})
    assert int(found[found["window"] == "capture"]["idle_ns"].sum()) == 500_000


def test_of_a_few_nanoseconds_all_nodes_stay(tmp_path):
    rows = [python("f", 100, 0.002), python("g", 100.002, 0.001)]
    found = held(traced(tmp_path, between(*rows, start=100.003, at=100.003)))
    assert found == pytest.approx({"f": 0.002, "g": 0.001})


def test_at_most_so_many_nodes_stay_those_with_most_time_in_them(tmp_path, monkeypatch):
    monkeypatch.setattr(attribution, "MAX_NODES", 3)
    rows = in_main(("a", 0, 30), ("b", 30, 50), ("c", 80, 20), ("d", 100, 40))
    assert held(traced(tmp_path, rows)) == {"main": 360, "main > b": 50, "main > d": 40, "main > (other)": 50}


def test_deep_rows_count_as_their_ancestor_at_the_greatest_depth(tmp_path, monkeypatch):
    """f0 to f5 are within one another, each shorter by 10; those below f2 are part of it."""
    monkeypatch.setattr(attribution, "MAX_DEPTH", 2)
    rows = [python(f"f{n}", 100, 50 - 8 * n) for n in range(6)]
    found = held(traced(tmp_path, between(*rows, **WAIT)))
    assert found == {"f0": 8, "f0 > f1": 8, "f0 > f1 > f2": 34}
    monkeypatch.setattr(attribution, "MAX_DEPTH", 5)
    found = held(traced(tmp_path, between(*rows, **WAIT), "all.json"))
    assert found["f0 > f1 > f2 > f3 > f4 > f5"] == 10


def test_the_largest_rows_stay_and_the_others_are_summed_by_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(attribution, "MAX_ROWS", 4)  # of two windows
    rows = [
        python("f", 100, 20),
        op("aten::a", 120, 15),
        op("aten::b", 135, 8),
        python("g", 143, 4),
        op("aten::c", 147, 3),
    ]
    trace = traced(tmp_path, between(*rows, **WAIT))
    assert held(trace) == {"f": 20, "aten::a": 15, "(other)": 15}
    assert kinds(trace) == {"python": 24, "op": 26}
    assert set(tables(trace)[1]["parent"]) == {-1}
    monkeypatch.setattr(attribution, "MAX_ROWS", 10)
    assert held(trace) == {"f": 20, "aten::a": 15, "aten::b": 8, "g": 4, "aten::c": 3}


# Names


def test_ranges_that_differ_in_their_numbers_share_a_name_and_others_keep_theirs(tmp_path):
    rows = [annotation("a 1", 100, 10), annotation("a 2", 110, 10), annotation("b 3", 120, 10), python("a 4", 130, 20)]
    assert held(traced(tmp_path, between(*rows, **WAIT))) == {"a #": 20, "b 3": 10, "a 4": 20}


@pytest.mark.parametrize(("length", "shown"), [(160, "x" * 160), (161, "x" * 159 + "…"), (400, "x" * 159 + "…")])
def test_long_names_are_cut(length, shown):
    assert attribution.shorten_frame_name("x" * length) == shown


def test_an_address_far_into_a_name_is_removed_before_it_is_cut():
    assert attribution.shorten_frame_name("x" * 150 + " at 0x7f" + "y" * 10) == "x" * 150 + "y" * 10


# After the launch


def test_two_devices_have_their_own_reasons_and_share_nodes(tmp_path):
    """Device 0 waits for another stream from 100 to 150; device 1 starts up from 100 to 120."""
    rows = [
        *launched("a", 0, 0, 100, 1), stream_wait(90, 7), *launched("b", 95, 150, 50, 2),
        *launched("c", 0, 0, 100, 3, device=1), *launched("d", 96, 120, 50, 4, device=1),
    ]  # fmt: skip
    found, frames = tables(traced(tmp_path, rows))
    names = paths(frames)
    found = found[found["window"] == "capture"]
    columns = (found[name] for name in ("device", "node", "idle_ns"))
    assert {(device, names[node]): ns for device, node, ns in zip(*columns, strict=True)} == {
        (0, "(waiting for another stream)"): 50_000, (1, "(starting up)"): 20_000,
    }  # fmt: skip
