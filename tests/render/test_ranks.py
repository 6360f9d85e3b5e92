"""Tables of many ranks: what text, Markdown and HTML show of them, and that nothing is lost elsewhere."""

from dataclasses import replace

import pytest

from tracekit.model.report import Heading, Ranked, Report, Section, Sheet
from tracekit.render.csv import render_csv
from tracekit.render.html import render_html
from tracekit.render.json import read_report_json, write_report_json
from tracekit.render.markdown import render_markdown
from tracekit.render.options import RenderOptions
from tracekit.render.ranks import merge_similar_ranks
from tracekit.render.text import render_text

RANK, WORK = Heading("rank", "rank", "id"), Heading("own_ns", "own work", "ns")


def sheet(rows, *headings, ranked=Ranked("own_ns"), **more):  # noqa: B008
    return Sheet("ranks", "Own work", headings or (RANK, WORK), tuple(rows), ranked=ranked, **more)


def thousand():
    """1,000 ranks of 50 to 50.1 ms, but rank 7 of 90 and ranks 504 to 511 of 70 ms."""
    slow = {7: 90_000_000, **dict.fromkeys(range(504, 512), 70_000_000)}
    return sheet((rank, slow.get(rank, 50_000_000 + 100_000 * (rank % 2))) for rank in range(1000))


def test_the_worst_and_those_that_differ_stand_before_the_others():
    found = merge_similar_ranks(thousand(), 10)
    assert [h.title for h in found.headings] == ["rank", "own work", "lowest", "highest"]
    assert found.rows == (
        ("7", 90_000_000, 90_000_000, 90_000_000),
        ("504–511 (8 rows)", 70_000_000, 70_000_000, 70_000_000),
        # 496 even ranks of 50 ms and 495 odd ones of 50.1: the 496th of 991 is an even one.
        ("0–6, 8–503, 512–999 (991 rows)", 50_000_000, 50_000_000, 50_100_000),
    )
    assert found.ranked is None
    assert found.caption == (
        "1,000 rows in 3: those with similar own work are grouped, with medians; lowest and highest "
        "are of own work. JSON and CSV reports have every row."
    )


def test_so_many_ranks_as_are_shown_are_shown_as_they_are():
    few = replace(thousand(), rows=thousand().rows[:10])
    assert merge_similar_ranks(few, 10) is few
    assert merge_similar_ranks(thousand(), None) == thousand()
    plain = replace(thousand(), ranked=None)
    assert merge_similar_ranks(plain, 10) is plain
    # 12 rows, but of 2 ranks in 6 stages: nothing to put together.
    stages = sheet(
        ((f"s{at}", rank, 5) for at in range(6) for rank in (0, 1)),
        Heading("stage", "stage"), RANK, WORK, ranked=Ranked("own_ns", apart=("stage",)),
    )  # fmt: skip
    assert merge_similar_ranks(stages, 10) is stages
    files = sheet((rank, step) for rank in (0, 1) for step in range(20))
    assert merge_similar_ranks(files, 10) is files


def test_where_less_is_worse_the_least_comes_first():
    low = replace(thousand(), ranked=Ranked("own_ns", "low"))
    assert merge_similar_ranks(low, 10).rows[-1][0] == "7"


def test_ranks_of_two_stages_are_not_put_together():
    both = sheet(
        ((stage, rank, 10 if stage == "ref" else 20) for stage in ("ref", "gen") for rank in range(50)),
        Heading("stage", "stage"), RANK, WORK, ranked=Ranked("own_ns", apart=("stage", "not there")),
    )  # fmt: skip
    rows = [row[:3] for row in merge_similar_ranks(both, 10).rows]
    assert rows == [("ref", "0–49 (50 rows)", 10), ("gen", "0–49 (50 rows)", 20)]


def test_more_stages_than_there_is_room_for_are_counted():
    every = sheet(
        ((f"s{at}", rank, 10) for at in range(9) for rank in range(20)),
        Heading("stage", "stage"), RANK, WORK, ranked=Ranked("own_ns", apart=("stage",)),
    )  # fmt: skip
    found = merge_similar_ranks(every, 10)
    assert [row[0] for row in found.rows] == [f"s{at}" for at in range(5)]
    assert "80 further rows are not shown." in found.caption


def test_what_is_not_a_number_of_one_rank_is_told_of_all():
    names = ("rank", "own_ns", "device", "stage", "source", "odd")
    units = ("id", "ns", "id", "text", "text", "text")
    headings = tuple(Heading(n, n, u) for n, u in zip(names, units, strict=True))
    rows = [(r, 5, r % 8, "gen", f"rank{r}.json", "x" * (r % 3)) for r in range(40)]
    (one,) = merge_similar_ranks(sheet(rows, *headings), 10).rows
    assert one == ("0–39 (40 rows)", 5, 5, 5, "0–7", "gen", "rank0–39.json", "3 different")


def test_processes_are_named_by_what_they_have_in_common():
    who, memory = Heading("who", "process"), Heading("memory", "memory of")
    rows = [(f"rank {r} actor", f"GPU {r % 4}", 5) for r in range(20)]
    rows += [(f"rank {r} actor", "CPU", 5) for r in range(20)] + [("median of 20", "GPU 0", 5)]
    ranked = Ranked("own_ns", member="who", apart=(), kind="memory")
    found = merge_similar_ranks(sheet(rows, who, memory, WORK, ranked=ranked), 10)
    assert [row[:2] for row in found.rows] == [
        ("rank 0–19 actor (20 rows)", "GPU 0–3"),
        ("rank 0–19 actor (20 rows)", "CPU"),
        ("median of 20", "GPU 0"),
    ]


def test_ranks_of_which_nothing_is_known_stand_last():
    rows = [(rank, None if rank % 2 else 5) for rank in range(20)] + [(None, None)]
    shown = merge_similar_ranks(sheet(rows), 10).rows
    assert shown[0] == ("0, 2, 4, 6 … (10 rows)", 5, 5, 5)
    assert shown[1] == ("1, 3, 5, 7 …, unknown (11 rows)", None, None, None)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 10**400, True, "high", -(10**400)])
def test_hostile_values_are_unknown(odd):
    rows = [(rank, 5) for rank in range(20)] + [(20, odd), (10**400, 5)]
    shown = merge_similar_ranks(sheet(rows), 10).rows
    assert shown[-1][0] == "20"
    assert shown[0][1] == 5


def test_a_heading_that_is_not_there_leaves_the_table_alone():
    for ranked in (Ranked("lost_ns"), Ranked("own_ns", member="who")):
        many = replace(thousand(), ranked=ranked)
        assert merge_similar_ranks(many, 10) is many


def test_pages_are_short_and_json_and_csv_have_every_rank():
    report = Report("t", "0", sections=(Section("s", "S", sheets=(thousand(),)),))
    for page in (
        render_text(report, RenderOptions(verbose=True)),
        render_markdown(report, RenderOptions()),
        render_html(report, RenderOptions()),
    ):
        assert "0–6, 8–503, 512–999 (991 rows)" in page
        assert "JSON and CSV reports have every row" in page
        assert "998" not in page
    again = read_report_json(write_report_json(report))
    assert again == report
    (table,) = (data for name, data in render_csv(report, RenderOptions()).items() if "ranks" in name)
    assert table.count(b"\n") == 1001
