"""The comparison page of drivers' logs: steps and stages of both sides, read back and compared with the lines of the logs."""

import json
from pathlib import Path

import pytest
from page_reading import Page

from tracekit.compare.reports.comparison_report import build_comparison_report
from tracekit.model.inputs.page_blocks import unpack_page_blocks
from tracekit.pipeline.cache.page_checks import check_page_blocks
from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.options import Options
from tracekit.render import render
from tracekit.render.explorer.heads import LOG_NOTE, choose_page_program
from tracekit.render.explorer.template import read_page_assets

PROFILES = [Path(__file__).parents[2] / "examples" / "compare_cpu" / name for name in ("base", "opt")]
SECOND = 1_000_000_000


def write_log(path, gen, *, first=1, steps=6):
    """A log of verl whose step is gen and 2 s of training; step `first` takes 1 s longer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(first, first + steps):
        times = {"gen": gen + (number == first), "update_actor": 2}
        timers = {f"timing_s/{name}": seconds for name, seconds in {**times, "step": sum(times.values())}.items()}
        lines.append(json.dumps({"step": number, "data": timers}))
    path.write_text("\n".join(lines) + "\n")
    return path


def compare(base, opt, **more):
    return compare_paths(base, opt, Options(jobs=1, timeline=True), **more).comparison


def list_steps(page):
    """Per row: its side and run, and the steps that count, those that do not, and the stages of each with their times."""
    steps, ranges = page.started("steps", 10, 2), page.started("ranges", 6)
    listed = []
    for place, row in enumerate(page.head["rows"]):
        of_row = steps[:, steps[0] == place].T.tolist()
        stages = [
            (page.names[name], of_row[step - 1][1] - 1, start - of_row[step - 1][2], length)
            for at, start, length, name, _, step in ranges.T.tolist()
            if at == place
        ]
        counted = [step[1] - 1 for step in of_row if step[4]]
        listed.append((row["side"], row["run"], counted, [step[1] - 1 for step in of_row if not step[4]], stages))
    return listed


def test_both_logs_are_rows_with_the_stages_of_each_step(tmp_path):
    base, opt = write_log(tmp_path / "base.jsonl", 4), write_log(tmp_path / "opt.jsonl", 3, first=7, steps=4)
    comparison = compare([base], [opt])
    for side in comparison.timeline.sides:
        for process in side.processes:
            check_page_blocks(unpack_page_blocks(process, process.data))
    text = render(build_comparison_report(comparison), "html")
    page = Page(text)

    def stages(gen, numbers):
        for number in numbers:
            length = (gen + (number == numbers[0])) * SECOND
            yield from (("gen", number, 0, length), ("update_actor", number, length, 2 * SECOND))

    assert list_steps(page) == [
        (0, "base", [2, 3, 4, 5, 6], [1], list(stages(4, range(1, 7)))),
        (1, "opt", [8, 9, 10], [7], list(stages(3, range(7, 11)))),
    ]
    # The strip of base, 5 + 2 + 5 · (4 + 2) s, is the longer one.
    assert page.head["span"] == 37 * SECOND
    assert page.head["kernels"] == 0
    assert LOG_NOTE.replace("'", "&#x27;") in text
    assert read_page_assets(program="log_comparison").code in text


def test_logs_of_one_name_have_rows_of_their_own_and_a_copy_has_none(tmp_path):
    names = ("a/run.jsonl", "b/run.jsonl")
    base = [write_log(tmp_path / "base" / name, 4 + place) for place, name in enumerate(names)]
    opt = [write_log(tmp_path / "opt" / "run.jsonl", 3), write_log(tmp_path / "copy" / "run.jsonl", 3)]
    comparison = compare(base, opt)
    page = Page(render(build_comparison_report(comparison), "html"))
    rows = list_steps(page)
    assert [side for side, *_ in rows] == [0, 0, 1]
    assert len({run for side, run, *_ in rows if side == 0}) == 2
    # Each row counts the steps that the comparison counts.
    for side, run, counted, excluded, _ in rows:
        name = (comparison.base, comparison.opt)[side]
        assert excluded == [step.step for step in comparison.dropped if (step.side, step.run) == (name, run)] == [1]
        assert counted == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("options", [{}, {"base_steps": ["log"], "opt_steps": ["log"]}])
def test_a_log_beside_a_profile_is_not_a_row(tmp_path, options):
    log = str(write_log(tmp_path / "run.jsonl", 4))
    comparison = compare(PROFILES[:1], PROFILES[1:], **{side: [log] for side in options})
    processes = [process for side in comparison.timeline.sides for process in side.processes]
    assert len(processes) == 8
    assert choose_page_program([unpack_page_blocks(process, process.data) for process in processes]) == "page"


def test_a_table_of_step_times_has_no_strip(tmp_path):
    log, table = write_log(tmp_path / "base.jsonl", 4), tmp_path / "opt.csv"
    table.write_text("step,seconds\n" + "".join(f"{step},{5 + step % 2}\n" for step in range(1, 8)))
    page = Page(render(build_comparison_report(compare([log], [table])), "html"))
    assert page.head["rows"] == []


def test_json_of_compared_logs_is_the_same_with_a_timeline(tmp_path):
    sides = [[write_log(tmp_path / f"{name}.jsonl", gen)] for name, gen in (("base", 4), ("opt", 3))]
    plain = compare_paths(*sides, Options(jobs=1)).comparison
    assert plain.timeline is None
    assert render(plain, "json") == render(compare(*sides), "json")
