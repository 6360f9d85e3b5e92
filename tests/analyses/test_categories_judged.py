"""Categories of tensors judged from tables made by hand: the highest peak, its stage and step, and the chart over time."""

import pytest
from analyses.memory_sections import sheet
from made_tables import make_measured

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import memory_categories
from tracekit.model.tables.snapshots import CATEGORIES

OWNER = {"run": "r", "rank": 0, "pid": 7, "source": "a", "host": "node1"}
UNKNOWN = CATEGORIES[-1]
TRACE = {**OWNER, "source": "trace"}


def timeline(source="a", at=50, begin=10, end=90, levels=None, **more):
    """The rows of one timeline: its peak at a time, and {category: bytes then}."""
    levels = levels or {"parameter": 60, "activation": 30, UNKNOWN: 10}
    who = {**OWNER, "source": source, **more}
    peak = {"peak_bytes": sum(levels.values()), "peak_ts_ns": at, "begin_ns": begin, "end_ns": end, "change_count": 5}
    rows = [
        {**who, "category": name, "peak_bytes": size, "most_bytes": 2 * size, "start_bytes": size // 2, "end_bytes": 1}
        for name, size in levels.items()
    ]
    return {"category_peaks": [{**who, **peak}], "category_levels": rows}


def judged(*timelines, absolute=True, **tables):
    rows = {name: [row for one in timelines for row in one[name]] for name in timelines[0]}
    sources = {row["source"] for name in ("category_peaks", "steps", "stages") for row in (rows | tables).get(name, ())}
    captures = [{**OWNER, "source": name, "absolute_time": absolute and name != "relative"} for name in sorted(sources)]
    measured = make_measured(captures=captures, **rows, **tables)
    return memory_categories.judge(measured, load_default_thresholds())


def shown(section, name, *columns):
    return [tuple(row.get(column) for column in columns) for row in sheet(section, name)]


def test_the_highest_peak_is_told_with_the_share_in_a_category():
    section = judged(timeline("b", levels={"gradient": 20}), timeline())
    assert [(m.name, m.value, m.better) for m in section.metrics] == [
        ("peak_tensors", 100, "lower"), ("placed_ratio", 0.9, "higher"),
    ]  # fmt: skip
    nothing = judged(timeline(levels={"gradient": 0}))
    assert [m.name for m in nothing.metrics] == ["peak_tensors"]
    one = judged(timeline(levels={"gradient": 1}))
    assert [m.value for m in one.metrics] == [1, 1]
    assert memory_categories.judge(make_measured(), load_default_thresholds()) is None


def test_timelines_are_listed_with_the_highest_peak_first():
    section = judged(
        timeline("b", levels={"gradient": 20, "input": 11}, rank=1),
        timeline(),
        timeline("c", at=None, begin=None),
        timeline("d", at=None),
    )
    columns = ("who", "source", "peak_bytes", "after_ns", "span_ns", "start_bytes", "end_bytes", "change_count")
    assert shown(section, "category_peaks", *columns) == [
        ("rank 0", "a", 100, 40, 80, 50, 3, 5),
        ("rank 0", "c", 100, None, None, 50, 3, 5),
        ("rank 0", "d", 100, None, 80, 50, 3, 5),
        ("rank 1", "b", 31, 40, 80, 15, 2, 5),
    ]


def test_categories_are_listed_by_timeline_with_the_largest_first():
    section = judged(timeline("b", levels={"input": 11, "gradient": 20, "temporary": 0}), timeline())
    assert shown(section, "category_levels", "source", "category", "peak_bytes", "share_ratio", "most_bytes") == [
        ("a", "parameter", 60, 0.6, 120),
        ("a", "activation", 30, 0.3, 60),
        ("a", UNKNOWN, 10, 0.1, 20),
        ("b", "gradient", 20, 20 / 31, 40),
        ("b", "input", 11, 11 / 31, 22),
    ]


@pytest.mark.parametrize("column", ["most_bytes", "least_bytes", "peak_bytes"])
def test_a_category_that_ever_held_anything_is_listed(column):
    made = timeline(levels={"parameter": 60, "input": 0})
    made["category_levels"][1] |= {"start_bytes": 0, column: 5} | ({"peak_bytes": 0} if column != "peak_bytes" else {})
    if column == "peak_bytes":
        made["category_levels"][0]["peak_bytes"] = 55
    assert len(shown(judged(made), "category_levels", "category")) == 2


def test_a_category_that_falls_below_nothing_is_said_of_each_timeline():
    def below(source, *least):
        made = timeline(source)
        for row, value in zip(made["category_levels"], least, strict=False):
            row["least_bytes"] = value
        return made

    assert len(judged(below("a", 0, 0)).caveats) == 3
    assert judged(below("a", -1, -5), below("b", 0), below("c", -1)).caveats[3].startswith("2 timelines have")


def window(begin, dur, **more):
    return {**TRACE, "ts_ns": begin, "dur_ns": dur} | more


STEPS = [window(0, 40, step=3), window(40, 40, step=4)]
STAGES = [window(0, 45, stage="gen", step=3), window(45, 20, stage="actor_update", step=4)]


def place(peak, **more):
    """The stage and the step of the peak of one timeline."""
    (row,) = shown(judged(peak, **({"steps": STEPS, "stages": STAGES} | more)), "category_peaks", "stage", "step")
    return row


def test_the_stage_and_the_step_of_a_peak_are_those_of_the_trace_of_its_process():
    assert place(timeline(at=44)) == ("gen", 4)
    assert place(timeline(at=45)) == ("update_actor", 4)
    assert place(timeline(at=0)) == ("gen", 3)
    assert place(timeline(at=70)) == (None, 4)
    assert place(timeline(at=80)) == (None, None)
    assert place(timeline(at=None)) == (None, None)


def test_a_peak_has_no_place_in_the_trace_of_another_process():
    assert place(timeline(rank=1)) == (None, None)
    assert place(timeline(run="other")) == (None, None)
    assert place(timeline(role="actor")) == (None, None)
    assert place(timeline(replica=1)) == (None, None)
    # Of no rank: that of the only process.
    assert place(timeline(rank=None)) == ("update_actor", 4)
    two = [*STEPS, *(row | {"rank": 1, "source": "other"} for row in STEPS)]
    for at, stage in ((50, "update_actor"), (20, "gen")):
        assert place(timeline(rank=None, at=at), steps=two) == (stage, None)
    assert place(timeline(), steps=two) == ("update_actor", 4)


def test_clocks_that_may_differ_give_no_place():
    for at in (20, 50):
        assert place(timeline(at=at), absolute=False) == (None, None)
        assert place(timeline("relative", at=at)) == (None, None)


def point(at, source="a", dur=10, **levels):
    who = {**OWNER, "source": source, "ts_ns": at, "dur_ns": dur}
    return [{**who, "category": name, "level_bytes": size} for name, size in levels.items()]


def test_each_stage_has_the_categories_at_its_highest_point():
    """gen is highest at 20, the update at 50; what is at 70 is in no stage."""
    curve = [*point(10, parameter=5, input=1), *point(20, parameter=5, input=9), *point(30, parameter=5, input=2)]
    curve += [*point(50, parameter=6), *point(60, gradient=4), *point(70, gradient=99), *point(20, "b", input=500)]
    section = judged(timeline(), steps=STEPS, stages=STAGES, category_curve=curve)
    columns = ("stage", "total_bytes", "parameter", "input", "gradient")
    assert shown(section, "category_stages", *columns) == [("gen", 14, 5, 9, 0), ("update_actor", 6, 6, 0, 0)]


def test_the_chart_has_a_bar_for_each_stretch_and_a_series_for_each_category_in_use():
    curve = [*point(110, gradient=0, parameter=5, input=1), *point(120, parameter=6, input=0), *point(10, "b", input=1)]
    (chart,) = judged(timeline(), category_curve=curve).charts
    assert chart.series == ("parameter", "input")
    assert chart.marks == ((0, 0, 10, 5), (0, 10, 20, 6), (1, 0, 10, 1))
    assert judged(timeline(), category_curve=point(10, "b", input=1)).charts == ()


def test_a_chart_of_many_stretches_shows_the_highest_of_neighbours():
    """151 stretches are drawn two by two: 76 bars, the last of one."""
    curve = [row for n in range(151) for row in point(10 * n, input=n % 2 + 1)]
    (chart,) = judged(timeline(), category_curve=curve).charts
    assert len(chart.marks) == 76
    assert chart.marks[0] == (0, 0, 20, 2)
    assert chart.marks[-1] == (0, 1500, 1510, 1)
    (chart,) = judged(timeline(), category_curve=curve[:150]).charts
    assert len(chart.marks) == 150
    assert chart.marks[0] == (0, 0, 10, 1)
