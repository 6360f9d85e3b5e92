import re
from dataclasses import replace

import pytest
from any_report import reports
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from sample_report import HOSTILE

from tracekit.model.report import (
    Finding,
    Heading,
    Instance,
    Metric,
    Place,
    Report,
    RunReplay,
    Saving,
    Section,
    Sheet,
    Verdict,
)
from tracekit.render import phrases, render, text
from tracekit.render.grid import make_grid


@pytest.mark.parametrize("width", [100, 60])
def test_the_first_screen_is_the_golden_one(sample, golden, width):
    golden(f"text_{width}.txt", render(sample, "text", width=width))


def test_the_whole_report_is_the_golden_one(sample, golden):
    golden("text_100_verbose.txt", render(sample, "text", width=100, verbose=True))


def test_the_answer_is_in_the_first_three_lines(sample):
    assert "Step 1,842 ms (1,795–1,910)" in render(sample, "text").splitlines()[:4]


@settings(max_examples=40, deadline=None)
@given(reports, st.integers(40, 180), st.booleans())
def test_no_line_is_wider_than_asked_nor_ends_in_blanks_nor_holds_a_control(report, width, verbose):
    for line in render(report, "text", width=width, verbose=verbose).split("\n"):
        assert cell_len(line) <= width
        assert line == line.rstrip()
        assert line.isprintable()


@settings(max_examples=200, deadline=None)
@given(st.text("ab …·界é\u3000-", min_size=5, max_size=60), st.integers(4, 20))
def test_lines_break_where_rich_breaks_them(sentence, width):
    wrapped = text._wrap_text(sentence, width, "bold")
    if not sentence.strip():
        assert wrapped == []
    elif cell_len(sentence) <= width:
        assert wrapped == [[(sentence, "bold")]]
    else:
        assert wrapped == text._wrap_long_words(sentence, width, "bold")


def test_colour_adds_codes_and_changes_no_character(sample):
    plain = render(sample, "text", verbose=True)
    coloured = render(sample, "text", verbose=True, color=True)
    assert "\x1b[" in coloured
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in stripped.split("\n")] == plain.split("\n")


def test_markup_in_a_name_is_text(sample):
    text = render(sample, "text", verbose=True, width=160, color=True)
    assert HOSTILE[3] in text
    assert r"\x1b[31mred" in text


@pytest.mark.parametrize("width", [40, 50, 60, 70])
def test_a_narrow_terminal_keeps_name_wall_and_share(sample, width):
    lines = render(sample, "text", width=width).splitlines()
    head = next(line for line in lines if "wall ms" in line)
    assert "share" in head
    row = next(line for line in lines if line.startswith("rollout") and "1,021.4" in line)
    assert "55.4 %" in row


def test_columns_that_do_not_fit_are_named(sample):
    words = " ".join(render(sample, "text", width=50).split())
    assert "Not shown at this width: GPU busy, slowest by own work" in words


def test_unknown_is_a_dash_and_a_tiny_share_is_not_zero(sample):
    lines = render(sample, "text", verbose=True, width=100).splitlines()
    assert re.search(r"compute_reward +12\.0 +0\.65 % +— +—$", next(x for x in lines if "compute_reward" in x))
    assert "<0.01 %" in next(line for line in lines if line.startswith("rollout  sleep"))


def test_rows_left_out_are_counted(sample):
    text = render(sample, "text", top=4)
    assert "… 4 of 11 rows shown" in text
    assert "sync_weights" not in text.split("Top issues")[0]


def test_a_grave_finding_without_a_time_is_on_the_first_screen(sample):
    text = render(sample, "text", top=1)
    assert "high: 78.9 of 79.1 GiB" in text
    assert "small-kernels" not in text


def test_findings_not_shown_are_counted(sample):
    assert "… 5 more in the sections" in render(sample, "text", top=1)


def test_the_worst_instance_is_shown_in_full_output_alone():
    """It begins 2 ms into the run and takes 3 ms, 1.5 ms of it idle; a rank stands for its file."""
    start_ns = 10**18
    place = Place(
        source="rank5.json", rank=5, step=3, start_ns=start_ns + 2_000_000, end_ns=start_ns + 5_000_000, run="r"
    )
    instances = (Instance("worst", place, 1_500_000), Instance("median", place, 1))
    finding = Finding("host-silence", "high", "claim", "advice", cost_ns=1, instances=instances)
    report = Report(
        "t", "0", sections=(Section("s", "S", findings=(finding,)),), spans=(("r", start_ns, start_ns + 10**9),)
    )
    line = "       worst: 1.50 ms, rank 5 · step 3 · at +0.002000 s for 3.00 ms"
    assert line in render(report, "text", width=100, verbose=True).splitlines()
    assert "worst" not in render(report, "text", width=100)


def test_sections_without_an_answer_are_named_with_their_reason(sample):
    text = render(sample, "text", width=200, verbose=True)
    assert "memory (skipped: no memory snapshots found)" in text
    assert text.count("no memory snapshots found") == 1
    assert "power (failed: KeyError" in text


def test_a_section_without_tables_has_the_answers_of_its_rules():
    verdicts = (Verdict("b", "clear"), Verdict("a", "clear", run="x"))
    found = Finding("a", "low", "claim", "advice", cost_ns=1)
    sections = (Section("s", "S", findings=(found,), verdicts=verdicts), Section("t", "T"))
    lines = render(Report("t", "0", sections=sections), "text", verbose=True).splitlines()
    assert lines[lines.index("S") + 2] == "a: found · b: clear"
    assert lines[lines.index("T") + 2] == "no finding"


def test_the_first_screen_names_what_failed_and_counts_what_was_not_recorded(sample):
    text = render(sample, "text", width=200)
    assert "power (failed: KeyError" in text
    assert "memory (skipped" not in text
    assert "need more than was recorded (-v)" in text or "needs more than was recorded (-v)" in text


def test_a_report_of_nothing_is_still_a_report():
    assert render(Report("empty", "0.1.0")) == "empty\n"


def test_an_analysis_that_found_nothing_says_so():
    sections = (Section("idle", "Idle"), Section("rules", "Which rules were checked?"))
    assert "No findings." in render(Report("quiet", "0.1.0", sections=sections))


def test_the_amount_stands_near_its_claim_on_a_very_wide_terminal():
    found = Finding("rule", "low", "claim", "advice", cost_ns=1_000_000, cost_ratio=0.01)
    report = Report("wide", "0.1.0", sections=(Section("s", "S", findings=(found,)),))
    assert max(map(len, render(report, width=400).splitlines())) <= 120


def test_long_identities_break_between_facts(sample):
    report = replace(sample, identity=tuple(f"fact number {i}" for i in range(20)))
    for line in render(report, width=60).splitlines()[:4]:
        assert re.fullmatch(r"fact number \d+( · fact number \d+)*", line)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 150, 200])
def test_no_column_is_left_out_that_there_is_room_for(width):
    """30 columns of names and numbers of many widths; what is left out would not fit beside what is shown."""
    headings = tuple(
        Heading(f"c{n}", f"c{n}" + "x" * (7 * n % 23), "text" if n % 5 == 0 else "count") for n in range(30)
    )
    row = tuple("name" * 9 if n % 5 == 0 else n for n in range(30))
    table = make_grid(Sheet("t", "T", headings, (row,)))
    columns, widths = text._fit_columns(table, width)
    natural = text._measure_column_widths(table, text._NAME_WIDTH)
    assert text._sum_column_widths(widths) <= width
    room = width - text._sum_column_widths([natural[at] for at in columns])
    assert all(natural[at] + 2 > room for at in range(30) if at not in columns)
    lines = text._format_text_table(table, width, titled=True)
    words = " ".join("".join(piece for piece, _ in line) for line in lines)
    whole = text._sum_column_widths(text._measure_column_widths(table, text._SHRUNK))
    assert f"(COLUMNS={whole} shows all, or -o report.html)" in words
    assert len(text._fit_columns(table, whole)[0]) == 30
    assert len(text._fit_columns(table, whole - 1)[0]) < 30


@pytest.mark.parametrize(
    ("width", "shown"), [(21, [0, 1, 4]), (22, [0, 1, 2, 3]), (28, [0, 1, 2, 3]), (29, [0, 1, 2, 3, 4])]
)
def test_the_ends_of_an_interval_are_shown_together_or_not_at_all(width, shown):
    """Columns of 4, 5, 3, 4 and 5 cells, 2 apart: four need 16 + 6, five 21 + 8. In 21 the last returns: 14 + 4."""
    names = ("name", "value", "low", "high", "notes")
    headings = tuple(Heading(name, name, "text" if name in ("name", "notes") else "count") for name in names)
    table = make_grid(Sheet("t", "T", headings, (("a", 1, 2, 3, "b"),)))
    assert table.intervals == ((2, 3),)
    columns, _ = text._fit_columns(table, width)
    assert columns == shown


def test_columns_before_and_after_have_one_unit_and_zeros_that_of_the_others():
    headings = (
        Heading("level", "level"), Heading("base", "before", "bytes"), Heading("opt", "after", "bytes"),
        Heading("cache", "cached", "bytes"), Heading("gone", "gone", "ns"),
    )  # fmt: skip
    rows = (("peak", 512 * 2**20, 2 * 2**30, 0, 0), ("end", 256 * 2**20, 2**30, 0, None))
    grid = make_grid(Sheet("t", "T", headings, rows))
    assert [column.title for column in grid.columns] == ["level", "before GiB", "after GiB", "cached GiB", "gone ns"]
    assert grid.rows == (("peak", "0.500", "2.000", "0", "0"), ("end", "0.250", "1.000", "0", "—"))


def test_names_that_would_look_alike_are_folded_and_others_shortened():
    """`snapshot_with_a_…ep_1.pickle` would stand for two files."""
    files = [
        "steps/snapshot_of_batch_100_run_a.pickle",
        "steps/snapshot_of_batch_200_run_a.pickle",
        "steps/another_name_of_a_snapshot.pickle",
    ]
    headings = (Heading("file", "file"), Heading("n", "n", "count"))
    grid = make_grid(Sheet("t", "T", headings, tuple((file, n) for n, file in enumerate(files))))
    lines = ["".join(part for part, _ in line).rstrip() for line in text._format_text_table(grid, 27, titled=True)]
    assert lines[2:] == [
        "steps/snapshot_of_batch_  0",
        "100_run_a.pickle",
        "steps/snapshot_of_batch_  1",
        "200_run_a.pickle",
        "steps/anothe…shot.pickle  2",
    ]


def test_the_price_of_an_abstention_is_shown_once():
    verdict = Verdict("r", "insufficient data", price_ns=5_000_000, price_ratio=0.05, needs="3 steps would show it")
    claims = ["rank 1 is busier", "no op runs for 5.00 ms of 100 ms per step"]
    verdicts = tuple(replace(verdict, claim=claim) for claim in claims)
    report = Report("t", "1", sections=(Section("s", "S", verdicts=verdicts),))
    assert phrases.list_unproven_claims(report, []) == [
        "rank 1 is busier (5.00 ms of 100 ms); 3 steps would show it",
        "no op runs for 5.00 ms of 100 ms per step; 3 steps would show it",
    ]


def test_bounds_that_are_called_steps_have_their_unit():
    metric = Metric("step", 220_000_000, "ns", low=177_000_000, high=274_000_000, bounds="steps")
    assert phrases.format_metric(metric) == "step 220 ms (steps 177–274 ms)"
    assert phrases.format_metric(replace(metric, bounds="")) == "step 220 ms (177–274)"
    share = Metric("idle", 0.5, "ratio", low=0.25, high=0.75, bounds="steps")
    assert phrases.format_metric(share) == "idle 50 % (steps 25–75 %)"


def test_advice_and_care_that_were_said_already_are_not_said_again():
    def finding(rule, claim, advice, *caveats):
        return Finding(rule, "high", claim, advice, caveats=caveats, cost_ns=9)

    same = [finding("slow", claim, "go faster", "mind the gap") for claim in ("one", "two")]
    found = (
        *same,
        finding("slow", "three", "go faster", "mind the gap", "and the step"),
        finding("slow", "four", "go slower"),
        finding("other", "five", "go faster"),
    )
    text = render(Report("t", "1", sections=(Section("s", "s", findings=found),)))
    lines = [line.strip() for line in text.splitlines()]
    assert [line for line in lines if line.startswith("→")] == [
        "→ go faster", "→ go slower", "→ go faster", "→ same fix as #3", "→ same fix as #3",
    ]  # fmt: skip
    assert sum("mind the gap" in line for line in lines) == 1
    assert sum("and the step" in line for line in lines) == 1


@pytest.mark.parametrize("width", [24, 40])
def test_a_remark_in_a_narrow_column_wraps_at_its_depth(width):
    remark = "(nothing recorded, after aten::mm, before at::native::rms_norm<float>)"
    rows = ((f"· · {remark}", 3), ("· void at::native::cunn_SoftMaxForward<float>(float*)", 4))
    sheet = Sheet("x", "T", (Heading("place", "place"), Heading("n", "n", "count")), rows)
    lines = [
        "".join(part for part, _ in line) for line in text._format_text_table(make_grid(sheet, 10), width, titled=False)
    ]
    assert max(map(len, lines)) <= width + 2, "with the gap at the end"
    remarks = [line for line in lines[1:] if line.startswith(("· · ", "    "))]
    assert len(remarks) > 1
    assert remarks[0].startswith("· · (nothing")
    words = " ".join(line.removesuffix("3  ").strip("· ") for line in remarks).replace(" 3", "")
    assert words.startswith("(nothing recorded, after aten::mm, before ")
    assert any(line.startswith("· soft") for line in lines)


PROSE = (
    "idle while the host runs Python code of the data loader",
    "step less all stages of all processes",
    "rank 3 waits for rank 0 in update_actor",
)


@pytest.mark.parametrize("width", [60, 80, 100, 130])
def test_no_cell_of_prose_is_cut_and_names_keep_both_ends(width):
    name = "nvjet_sm90_tst_128x192_64x5_2x1_v_bz_coopA_bias_TNT"
    headings = (Heading("why", "why"), Heading("kernel", "kernel"), Heading("n", "n", "count"), Heading("how", "how"))
    rows = tuple((prose, name, 1_000 + place, "; ".join([prose] * 5)) for place, prose in enumerate(PROSE))
    grid = make_grid(Sheet("x", "T", headings, rows))
    assert all(len(row[3]) > 160 and "…" not in row[3] for row in grid.rows)
    columns, widths = text._fit_columns(grid, width)
    lines = ["".join(part for part, _ in line) for line in text._format_text_table(grid, width, titled=True)]
    assert max(map(len, lines)) <= width + 2
    starts = [sum(widths[:place]) + 2 * place for place in range(len(widths))]
    for index, start, size in zip(columns, starts, widths, strict=True):
        column = " ".join(" ".join(line[start : start + size].split()) for line in lines[2:])
        for row in grid.rows:
            if index in (0, 3):
                assert row[index] in " ".join(column.split())
    assert "nvjet_" in "\n".join(lines)
    assert "_TNT" in "\n".join(lines)


def test_savings_have_a_sign_and_steps_one_unit(sample):
    """Of a step of 225 ms."""
    first = Saving(1, 161e6, 161e6, 150e6, 225e6, 64e6, 225e6, 160e6, 162e6)
    small = Saving(2, 0.31e6, 0.31e6, 0.3e6, 64e6, 63.7e6, 225e6, 0.3e6, 0.32e6)
    behind = Saving(3, 4.4e6, 0.0, 0.0, 63.7e6, 63.7e6, 225e6, 4e6, 5e6, behind=1)
    longer = Saving(4, -2e6, -1e6, -1e6, 63.7e6, 64.7e6, 225e6, -2e6, -2e6)
    only_after = Saving(5, -0.2e6, 40e6, 40e6, 64.7e6, 24.7e6, 225e6, -1e6, 0.0)
    savings = (first, small, behind, longer, only_after)
    findings = tuple(replace(sample.findings[0], saving=saving, rank=saving.number) for saving in savings)
    report = replace(sample, sections=(replace(sample.sections[0], findings=findings),))
    assert phrases.format_savings(findings, report) == [
        ("−161 ms", "225 → 64 ms"),
        ("−310 µs", "64.0 → 63.7 ms"),
        ("−4.40 ms", "behind #1"),
        ("+2.00 ms", "63.7 → 64.7 ms"),
        ("nothing", "64.7 → 24.7 ms"),
    ]


def test_a_finding_about_time_without_a_prediction_is_not_predicted(sample):
    finding = replace(sample.findings[0], saving=None, cost_ns=1_000, severity="low")
    replay = RunReplay(None, "step", 1e6, None, 0.0, 0.0)
    assert phrases.format_savings([finding], replace(sample, replays=(replay,))) == [("", "not predicted")]
    assert phrases.format_savings([finding], replace(sample, replays=())) == [("", "")]
    assert phrases.format_savings([replace(finding, cost_ns=None)], replace(sample, replays=(replay,))) == [("", "")]


def test_the_plan_is_one_line_with_the_first_steps_and_the_last(sample):
    steps = [100e6 - 10e6 * number for number in range(9)]
    savings = [Saving(n, 10e6, 10e6, 10e6, steps[n - 1], steps[n], 100e6, 1e7, 1e7) for n in range(1, 9)]
    findings = tuple(replace(sample.findings[0], saving=saving, rank=saving.number) for saving in savings)
    replay = RunReplay(None, "step", 100e6, 20e6, 0.0, 0.0)
    report = replace(sample, sections=(replace(sample.sections[0], findings=findings),), replays=(replay,))
    assert phrases.describe_plans(report) == ["With all 8 fixes: 100 → 90 → 80 → 70 → 60 → 50 → … → 20 ms (−80 %)"]
    refused = replace(report, replays=(replace(replay, step_ns=None, refusal="41 % is unexplained"),))
    assert phrases.describe_plans(refused) == ["No step is predicted: 41 % is unexplained"]


def test_hints_name_an_option_that_shows_more(sample):
    caption = "5 of 33 rows; more in section kernels"
    shortened = replace(sample, overview=replace(sample.overview, caption=caption))
    assert f"{caption} (-v)" in render(shortened, "text", width=200)
    verbose = render(shortened, "text", width=200, verbose=True)
    assert caption in verbose
    assert f"{caption} (-v)" not in verbose
    for form in ("md", "html"):
        assert "(-v)" not in render(shortened, form)
    many = replace(sample, sections=tuple(replace(part, findings=part.findings * 4) for part in sample.sections))
    assert "more in the sections; -v for the first 10" in render(many, "text", width=200)
    assert "more in the sections; -v for all" in render(many, "text", width=200, top=100)
    assert "more in the sections; --top for more" in render(many, "text", width=200, verbose=True)
