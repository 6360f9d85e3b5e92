"""The explorer page of a driver's log alone: its steps and stages, read back and compared with the lines of the log."""

import json
from html import escape
from pathlib import Path

import pytest
from page_reading import Page
from sample_report import HOSTILE

from tracekit.model.inputs.page_blocks import unpack_page_blocks
from tracekit.model.stages import get_canonical_stage
from tracekit.model.tables.slots import PAGE_CAUSES
from tracekit.pipeline.cache.page_checks import check_page_blocks
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.render.explorer.heads import LOG_NOTE
from tracekit.render.explorer.page import write_explorer_page
from tracekit.render.explorer.template import PageAssets

LOG = Path(__file__).parents[2] / "examples" / "verl_cpu" / "metrics.jsonl"
TEMPLATE = '<p>{{identity}}</p>{{basis}}<script type="application/json" id="head">{{head}}</script>{{blocks}}'
ASSETS = PageAssets(TEMPLATE, "", "")


def analyze(path, **options):
    return analyze_uncached(path, Options(jobs=1, **options)).report


def write_page(path):
    """The page of a log, and its text."""
    report = analyze(path)
    processes = [unpack_page_blocks(process, process.data) for process in report.timeline.processes]
    for blocks in processes:
        check_page_blocks(blocks)
    text = write_explorer_page(report, processes, ASSETS, PAGE_CAUSES).text
    return Page(text), text


def write_log(folder, *steps):
    """A log of verl with the timers of each step, in seconds."""
    lines = [
        json.dumps({"step": number, "data": {f"timing_s/{name}": seconds for name, seconds in timers.items()}})
        for number, timers in steps
    ]
    path = folder / "metrics.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def list_stages(page):
    """Step number → stages as (name, start in the step, length), in the order of their starts."""
    steps, ranges = page.started("steps", 10, 2), page.started("ranges", 6)
    found = {int(number) - 1: [] for number in steps[1]}
    for start, length, name, depth, step in zip(*ranges[1:], strict=True):
        assert depth == 0
        place = int(step) - 1
        found[int(steps[1][place]) - 1].append((page.names[name], int(start - steps[2][place]), int(length)))
    return found


def test_lengths_are_those_of_the_lines_of_the_log():
    page, _ = write_page(LOG)
    lines = [json.loads(line) for line in LOG.read_text().splitlines()]
    stages, steps = list_stages(page), page.started("steps", 10, 2)
    assert [number - 1 for number in steps[1]] == [line["step"] for line in lines] == sorted(stages)
    for line, length in zip(lines, steps[3].tolist(), strict=True):
        timers = {name.removeprefix("timing_s/"): value for name, value in line["data"].items() if "timing_s" in name}
        assert length == round(timers.pop("step") * 1e9)
        expected = {
            (get_canonical_stage(name), round(seconds * 1e9))
            for name, seconds in timers.items()
            if "profile" not in name
        }
        assert {(name, ns) for name, _, ns in stages[line["step"]]} == expected
    assert (steps[4:] == [[1] * len(lines), *[[0] * len(lines)] * 5]).all()


def test_stages_follow_each_other_in_the_order_of_the_pipeline_and_steps_too(tmp_path):
    """Step 4 has a stage of its own at the end; step 7, whose time is not logged, is not one of the steps."""
    first = {"update_actor": 3.0, "gen": 2.0, "adv": 0.5, "testing": 1.0, "step": 10.0}
    last = {"gen": 1.0, "step": 3.0}
    page, _ = write_page(write_log(tmp_path, (4, first), (7, {"ref": 1.0, "gen": 2.0}), (8, last)))
    second = 10**9
    assert list_stages(page) == {
        4: [
            ("gen", 0, 2 * second), ("adv", 2 * second, second // 2), ("update_actor", 5 * second // 2, 3 * second),
            ("test", 11 * second // 2, second),
        ],
        8: [("gen", 0, second)],
    }  # fmt: skip
    steps = page.started("steps", 10, 2)
    assert steps[2:4].tolist() == [[0, 10 * second], [10 * second, 3 * second]]
    assert page.head["span"] == 13 * second


def test_steps_of_a_log_that_times_no_step_are_as_long_as_their_stages(tmp_path):
    page, _ = write_page(write_log(tmp_path, (4, {"update_actor": 3.0, "gen": 2.0}), (7, {"ref": 1.0, "gen": 2.0})))
    second = 10**9
    assert list_stages(page) == {
        4: [("gen", 0, 2 * second), ("update_actor", 2 * second, 3 * second)],
        7: [("gen", 0, 2 * second), ("ref", 2 * second, second)],
    }
    steps = page.started("steps", 10, 2)
    assert steps[2:4].tolist() == [[0, 5 * second], [5 * second, 3 * second]]
    assert page.head["span"] == 8 * second


def test_stages_that_are_longer_than_their_step_overlap_inside_it(tmp_path):
    page, _ = write_page(
        write_log(tmp_path, (1, {"gen": 6.0, "update_actor": 7.0, "step": 10.0}), (2, {"gen": 1.0, "step": 2.0}))
    )
    second = 10**9
    assert list_stages(page)[1] == [("gen", 0, 6 * second), ("update_actor", 3 * second, 7 * second)]
    assert page.started("steps", 10, 2)[2].tolist() == [0, 10 * second]


def test_the_table_of_stages_is_that_of_the_report_where_the_number_of_gpus_is_unknown(tmp_path):
    steps = [(number, {"gen": 6.0, "update_actor": 3.0, "step": 10.0}) for number in range(1, 13)]
    page, _ = write_page(write_log(tmp_path, *steps))
    second = 10**9
    assert page.head["overview"]["rows"] == [
        ["(step, wall)", 10 * second, 1.0, None, ""],
        ["gen", 6 * second, 0.6, None, ""],
        ["update_actor", 3 * second, 0.3, None, ""],
        ["(in no timer)", second, 0.1, None, ""],
    ]


def test_the_page_says_where_lengths_and_places_are_from(tmp_path):
    page, text = write_page(write_log(tmp_path, (1, {"gen": 1.0, "step": 2.0})))
    assert escape(LOG_NOTE) in text[: text.index("<script")]
    assert LOG_NOTE not in page.head["identity"]
    (row,) = page.head["rows"]
    assert (row["kind"], row["thread"], row["lanes"], row["rank"]) == ("log", "driver log", [], None)
    assert page.head["kernels"] == page.columns("sums", 8).size == 0


def test_the_page_of_a_log_has_every_table_of_the_report():
    page, _ = write_page(LOG)
    report = analyze(LOG)
    expected = [(section.title, sheet.title) for section in report.sections for sheet in section.sheets]
    assert len(expected) > 3
    assert [(sheet["section"], sheet["title"]) for sheet in page.head["sheets"]] == expected
    stages = next(sheet for sheet in page.head["sheets"] if sheet["title"] == "Stages of the step")
    (rows,) = [sheet.rows for section in report.sections for sheet in section.sheets if sheet.title == stages["title"]]
    assert [row[0] for row in stages["rows"]] == [row[0] for row in rows]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_timers_are_inert(tmp_path, name):
    page, text = write_page(write_log(tmp_path, (1, {name: 1.0, "gen": 1.0, "step": 2.0})))
    assert all(text.isprintable() for text in page.names)
    assert text.count("<script") == len(page.raw) + 1


def test_a_profile_with_its_log_has_no_row_of_the_log():
    report = analyze(LOG.parent, timeline=True)
    assert len(report.timeline.processes) == 12
    assert analyze(LOG.parent).timeline is None


def test_tries_that_ran_again_are_no_stage_of_the_page(tmp_path):
    """Steps 4 to 6 ran again: the table of the report has a row of their GPU-hours, the page has steps only."""
    steps = [(number, {"gen": 6.0, "step": 10.0}) for number in (*range(1, 7), *range(4, 13))]
    page, _ = write_page(write_log(tmp_path, *steps))
    assert [row[0] for row in page.head["overview"]["rows"]] == ["(step, wall)", "gen", "(in no timer)"]
    assert len(list_stages(page)) == 12
