"""The comparison page, read back: rows of both sides, the steps that count, and parts that add up to the change."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from compared import MS, change, comparison
from explorer_page import build_blocks, list_traces
from page_reading import Page
from sample_report import HOSTILE

import tracekit
from tracekit.compare.reports.comparison_report import build_comparison_report
from tracekit.model.inputs.timeline import PathPieces
from tracekit.model.report import Gate
from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.options import Options
from tracekit.render import render
from tracekit.render.escape import make_printable
from tracekit.render.explorer.template import read_page_assets

SIDES = [Path(__file__).parents[2] / "examples" / "compare_cpu" / name for name in ("base", "opt")]


@pytest.fixture(scope="module")
def compared():
    """The comparison of two real programs, with the data of the page."""
    return compare_paths(SIDES[:1], SIDES[1:], Options(timeline=True))


@pytest.fixture(scope="module")
def page(compared):
    return Page(render(build_comparison_report(compared.comparison), "html"))


def test_rows_of_both_sides_have_the_times_of_their_traces(page):
    sides = [row["side"] for row in page.head["rows"]]
    assert sides == sorted(sides)
    assert set(sides) == {0, 1}
    row, *_, ns = page.columns("sums", 8)
    for side, folder in enumerate(SIDES):
        found = sum(value for at, value in zip(row.tolist(), ns.tolist(), strict=True) if sides[at] == side)
        assert found == sum(int(build_blocks(trace).numbers["sum.ns"].sum()) for trace in list_traces(folder))


def test_every_run_begins_at_zero_and_its_excluded_steps_do_not_count(page, compared):
    row, number, start, _, counted, *_ = page.started("steps", 10, 2)
    rows = page.head["rows"]
    # Four runs a side; step 3 of each is warm-up.
    dropped = {(step.side, step.run, step.step) for step in compared.comparison.dropped}
    assert len(dropped) == 8
    names = page.head["comparison"]["sides"]
    keys = [(names[rows[at]["side"]], rows[at]["run"], step - 1) for at, step in zip(row.tolist(), number.tolist(), strict=True)]  # fmt: skip
    assert {key for key, counts in zip(keys, counted.tolist(), strict=True) if not counts} == dropped
    # The traces were recorded minutes apart; on the page, each begins in the first millisecond.
    begins = {key[:2]: time for key, time in zip(keys, start.tolist(), strict=True) if key[2] == 3}
    assert len(begins) == 8
    assert all(0 <= time < MS for time in begins.values())


def test_parts_add_up_to_the_change_of_the_step(page, compared):
    step = compared.comparison.headline
    parts = page.head["comparison"]["parts"]
    for name, total in (("base", step.base), ("opt", step.opt), ("difference", step.opt - step.base)):
        assert sum(part[name] for part in parts) == pytest.approx(total, abs=1)
    addmm = next(part for part in parts if part["path"] == ["aten::linear", "aten::addmm"])
    assert addmm["stage"] == "gen"
    assert addmm["low"] < addmm["difference"] < addmm["high"] < 0
    stages = {stage["title"]: stage for stage in page.head["comparison"]["stages"]}
    changes = {change.title: change for change in compared.comparison.changes}
    assert stages["gen"]["stage"] == "gen"
    assert stages["gen"]["ratio"] == changes["gen"].ratio
    assert [stages["gen"][end] for end in ("low", "high")] == [changes["gen"].low, changes["gen"].high]


@pytest.fixture(scope="module")
def traced():
    """The same comparison with the graphs of its runs."""
    return compare_paths(SIDES[:1], SIDES[1:], Options(timeline=True, graphs=True)).comparison


def test_the_critical_path_of_each_run_is_in_its_rows_and_takes_the_time_of_the_table(traced):
    """The path of a run has no hole, begins and ends in its counted steps, and the means of both sides are the table's."""
    page = Page(render(build_comparison_report(traced), "html"))
    row, start, length, kind, _ = page.started("critical", 5)
    of_step, number, begin, wall, counted, *_ = page.started("steps", 10, 2)
    assert number[counted == 1].min() > 0
    means = {0: [], 1: []}
    for at, described in enumerate(page.head["rows"]):
        own = row == at + 1
        if not own.any():
            continue
        steps = (of_step == at) & (counted == 1)
        assert start[own][1:].tolist() == (start[own] + length[own])[:-1].tolist()
        assert start[own][0] >= begin[steps].min()
        assert (start[own] + length[own])[-1] <= (begin[steps] + wall[steps]).max()
        means[described["side"]].append(int(length[own].sum()) / int(steps.sum()))
    assert [len(of_side) for of_side in means.values()] == [4, 4]
    for side, expected in enumerate((traced.critical.base, traced.critical.opt)):
        assert sum(means[side]) / 4 == pytest.approx(expected)
    assert {page.names[number] for number in kind} >= {part.kind for part in traced.critical.kinds if part.base > 1_000}


def test_pieces_of_equal_files_are_on_the_rows_of_their_side_and_pieces_without_a_row_are_counted(traced):
    base, opt = traced.timeline.sides
    name, pid = base.processes[0].name, base.processes[0].pid
    assert opt.processes[0].name == name
    begin = base.critical.ts_ns[-1]
    pieces = PathPieces(("other", name), (None, pid), (begin + 9, begin), (3, 7), ("gap", "host"), (None, "step"))
    own = PathPieces((name,), (opt.processes[0].pid,), (opt.critical.ts_ns[-1],), (5,), ("call",), (None,))
    sides = replace(base, critical=pieces), replace(opt, critical=own)
    text = render(build_comparison_report(replace(traced, timeline=replace(traced.timeline, sides=sides))), "html")
    page = Page(text)
    row, _, length, kind, _ = page.columns("critical", 5)
    assert [page.head["rows"][at - 1]["side"] for at in row.astype(int)] == [0, 1]
    assert length.tolist() == [7, 5]
    assert [page.names[number] for number in kind] == ["host", "call"]
    assert "<li>critical path: 1 piece of a process without a row is not on the page</li>" in text


def test_without_an_attribution_the_parts_are_the_stages_of_the_waterfall():
    report = build_comparison_report(comparison(change("gen", 60, 30), change("actor", 30, 40)))
    page = Page(render(report, "html"))
    parts = [(part["stage"], part["difference"] / MS) for part in page.head["comparison"]["parts"]]
    # The step goes from 100 to 80 ms.
    assert parts == [("gen", -30), ("actor", 10), ("rest of the step", 0)]
    assert page.head["rows"] == []


def test_the_gate_and_all_tables_but_that_of_the_parts_are_on_the_page(compared):
    gates = compare_paths(SIDES[:1], SIDES[1:]).comparison
    report = build_comparison_report(replace(gates, warnings=tuple(f"warning {at}" for at in range(8))))
    text = render(report, "html")
    titles = [sheet["title"] for sheet in Page(text).head["comparison"]["sheets"]]
    assert "By op path and kernel" not in titles
    assert {"By stage and class", "Step and stages", "Host ops by change"} <= set(titles)
    assert text.count("<p>Note: warning") == 6
    assert "<li>warning 7</li>" in text


def test_the_first_table_has_no_bars_of_characters_and_no_note_repeats_the_basis():
    """The console shows both; on the page, the tables next to it draw bars."""
    report = build_comparison_report(comparison(change("gen", 60, 30), change("actor", 30, 40)))
    assert report.overview.headings[-1].name == "bar"
    assert report.basis
    repeated = report.basis[0][:1].lower() + report.basis[0][1:]
    text = render(replace(report, cautions=(repeated, "another caution")), "html")
    overview = Page(text).head["comparison"]["overview"]
    assert [title for title, _ in overview["columns"]][-1] != "size"
    assert all(len(row) == len(overview["columns"]) for row in overview["rows"])
    assert not any(mark in cell for row in overview["rows"] for cell in row for mark in "█▒")
    basis = re.search(r'<div id="basis"[^>]*>(.*?)</div>', text, re.DOTALL)[1]
    assert re.findall(r"<p>Note: (.*?)</p>", basis) == ["another caution"]


def test_the_gate_is_beside_the_headline_and_what_did_not_pass_comes_first():
    gates = [
        Gate(f"{metric}: at most +3 %", metric, outcome, "error", "claim", 0.03, "ratio", unit)
        for metric, outcome, unit in (
            ("step_time", "pass", "ns"),
            (HOSTILE[0], "fail", "bytes"),
            ("gen", "accepted", ""),
        )
    ]
    text = render(build_comparison_report(comparison(gates=tuple(gates))), "html")
    beside = re.search(r'<div class="verdict">\n<h1>(.*)</h1>\n<div id="gate">(.*)</div>\n</div>', text)
    assert beside[1].endswith("gate: fail (1 accepted)")
    badges = [
        (style, unescape(words)) for style, words in re.findall(r'<span class="([a-z ]+)">(.*?)</span>', beside[2])
    ]
    assert badges == [
        ("badge failed", make_printable(f"fail: {HOSTILE[0]}: at most +3 %", 300)),
        ("badge", "pass: step_time: at most +3 %"),
        ("badge", "accepted: gen: at most +3 %"),
    ]
    assert 'id="gate"' not in render(build_comparison_report(comparison()), "html")


def test_hostile_names_stay_text():
    stages = (change(name, 9, 8 - at % 4, low=0.9, high=3.0) for at, name in enumerate(HOSTILE))
    text = render(build_comparison_report(comparison(*stages, warnings=HOSTILE[:3], needed=HOSTILE[0])), "html")
    body = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    elements = set(re.findall(r"<(\w+)", body))
    of_template = re.findall(r"<(\w+)", read_page_assets("comparison").template)
    assert elements <= {*of_template, "details", "summary", "ul", "li", "td"}
    assert text.count("<script") == 2 + len(Page(text).raw)


def test_damaged_data_is_an_error_that_names_the_process(compared):
    base, opt = compared.comparison.timeline.sides
    damaged = replace(base, processes=(replace(base.processes[0], data=b"no data"), *base.processes[1:]))
    timeline = replace(compared.comparison.timeline, sides=(damaged, opt))
    report = build_comparison_report(replace(compared.comparison, timeline=timeline))
    with pytest.raises(tracekit.TracekitError, match=r"rank0\.pt\.trace\.json\.gz: not readable as a timeline"):
        render(report, "html")


def test_json_of_a_comparison_is_the_same_with_a_timeline(compared):
    plain = compare_paths(SIDES[:1], SIDES[1:]).comparison
    assert render(plain, "json") == render(compared.comparison, "json")
    assert plain.timeline is None
