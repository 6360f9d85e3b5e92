"""The answer of the page: its numbers are those of the report."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracekit.model.report import Heading, Metric, Report, Section, Sheet
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.render.explorer.plain.answer import write_answer
from tracekit.render.explorer.report_values import NO_RANKS, RankDelays, RankKey, RankTable, read_rank_delays
from tracekit.render.json import render_json
from tracekit.render.options import RenderOptions

EXAMPLES = Path(__file__).parents[2] / "examples"
NONE = RankDelays(NO_RANKS, NO_RANKS)


def analyze(path):
    report = analyze_uncached(path, Options(jobs=1)).report
    return report, json.loads(render_json(report, RenderOptions()))


def list_shares(answer):
    """The parts of an answer as (percent, name)."""
    return [
        (int(share), name)
        for share, name in re.findall(r"(\d+) % (?:by )?([^,.(]+(?:\.[^,.( ]+)*[^,.(]*?) ?(?=[,(]|\.$)", answer)
    ]


def test_a_log_alone_says_the_mean_step_its_stages_and_their_notes(tmp_path):
    """Ten steps: 6 s of gen, 3 s of update_actor, 1 s in no timer; every second one has 2 s of saving more."""
    lines = [
        {"timing_s/gen": 6.0, "timing_s/update_actor": 3.0, "timing_s/step": 10.0 + 2.0 * (number % 2 == 0)}
        | ({"timing_s/save_checkpoint": 2.0} if number % 2 == 0 else {})
        for number in range(1, 11)
    ]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": number, "data": line}) + "\n" for number, line in enumerate(lines, 1))
    )
    report, values = analyze(tmp_path)
    answer = write_answer(report, NONE)
    (_, mean, *_), *stages = values["overview"]["rows"]
    assert answer.startswith(f"A step takes {mean / 1e9:.1f} s on average (median ")
    shares = list_shares(answer)
    assert shares[:2] == [(round(share * 100), name) for name, _, share, *_ in stages[:2]]
    assert [name for _, name in shares[:2]] == ["gen", "update_actor"]
    assert "every 2 steps" in answer


def test_several_logs_or_other_tables_have_no_such_sentence():
    report, _ = analyze(EXAMPLES / "verl_cpu" / "metrics.jsonl")
    assert "on average" in write_answer(report, NONE)
    twice = replace(report, headline=report.headline * 2)
    assert write_answer(twice, NONE) == report.title
    assert write_answer(replace(report, overview=None), NONE) == report.title


def test_several_logs_say_the_mean_step_of_each():
    report, values = analyze(Path(__file__).parents[1] / "data" / "cases" / "rl_runs" / "03_length_drift")
    names = [heading["title"] for heading in values["overview"]["headings"][1:]]
    assert names == ["after_faster", "after_same_code", "before"]
    answer = write_answer(report, NONE)
    expected = [
        f"{ns / 1e9:.0f} s in {name}" for ns, name in zip(values["overview"]["rows"][0][1:], names, strict=True)
    ]
    assert answer == f"A step takes {', '.join(expected)}."


def test_snapshots_say_the_peak_and_where_it_was_allocated():
    report, values = analyze(EXAMPLES / "simulated_memory" / "leaking")
    peak = next(metric for metric in values["headline"] if metric["name"] == "peak_requested")
    rows = values["overview"]["rows"]
    assert sum(size for _, size, *_ in rows) == peak["value"]
    answer = write_answer(report, NONE)
    assert answer.startswith(f"The {peak['label']} is {peak['value'] / 2**20:.0f} MiB: ")
    for where, _, share, *_ in rows[:4]:
        assert f"{share:.0%}".replace("%", " %") + f" by {where}" in answer


def test_a_run_without_a_device_says_what_its_hosts_did():
    report, values = analyze(EXAMPLES / "verl_cpu")
    shares = {metric["name"]: metric["value"] for metric in values["headline"] if metric["name"].startswith("host_")}
    answer = write_answer(report, NONE)
    assert len(shares) >= 3
    assert [int(share) for share in re.findall(r"(\d+) %", answer)] == [round(share * 100) for share in shares.values()]


def make_table(times):
    """A table of times by (role, rank)."""
    return RankTable(
        frozenset({"role"}), {RankKey(None, role, None, rank): time for (role, rank), time in times.items()}
    )


def answer_with(late_ns, beyond_ns=None):
    """The answer for a step of 100 ms, half compute and half idle, without copies."""
    metrics = {"step_wall": 100e6, "compute_ratio": 0.5, "copy_ratio": 0.0, "idle_ratio": 0.5}
    headline = tuple(Metric(name, value, "ns" if name == "step_wall" else "ratio") for name, value in metrics.items())
    delays = RankDelays(make_table(late_ns), make_table(beyond_ns or {}))
    return write_answer(Report("a run", "1.0", headline=headline), delays)


def test_the_answer_names_the_rank_that_others_wait_for():
    """More than 1 % of the step counts; of two ranks, what one waits more than the other."""
    begin = "A step takes 100 ms: 50 % compute, 50 % idle."
    assert answer_with({}) == begin
    assert (
        answer_with({(None, 0): 0.0, (None, 1): 5e6, (None, 2): 0.0}) == f"{begin} Other ranks wait 5.00 ms for rank 1."
    )
    assert answer_with({(None, 0): 0.2e6, (None, 1): 5e6}) == f"{begin} Rank 0 waits 5.00 ms for rank 1."
    assert answer_with({(None, 0): 4.5e6, (None, 1): 5e6}) == begin
    assert answer_with({(None, 1): 5e6}) == begin
    late = {("actor", 0): 0.0, ("actor", 1): 0.1e6, ("critic", 0): 9e6, ("critic", 1): 0.0}
    assert answer_with(late) == f"{begin} Rank 1 waits 9.00 ms for rank 0 of critic."
    beyond = {(None, rank): 3e6 * (rank == 2) for rank in range(3)}
    assert (
        answer_with(dict.fromkeys(beyond, 0.0), beyond) == f"{begin} Rank 2 works 3.00 ms longer than the median rank."
    )


def test_ranks_of_two_roles_have_delays_of_their_own():
    report, values = analyze(EXAMPLES / "verl_cpu" / "outputs" / "profile")
    (section,) = (section for section in values["sections"] if section["id"] == "stragglers")
    (sheet,) = (sheet for sheet in section["sheets"] if sheet["name"] == "waits")
    names = [heading["name"] for heading in sheet["headings"]]
    late = read_rank_delays(report).late_ns
    assert {key.role for key in late.values} == {"actor-rollout-ref", "value-model"}
    for key, late_ns in late.values.items():
        rows = [dict(zip(names, row, strict=True)) for row in sheet["rows"]]
        waits = [row["each_ns"] for row in rows if (row["role"], row["late_rank"]) == (key.role, key.rank)]
        assert late_ns == pytest.approx(sum(waits))
        assert late.get_value(SimpleNamespace(run="", role=key.role, rank=key.rank)) == late_ns
    assert late.get_value(SimpleNamespace(run="", role="reward", rank=0)) is None


@pytest.mark.parametrize("answer", ["", "Run 2 is 3 % slower."])
def test_a_report_without_numbers_has_its_title_or_its_own_answer(answer):
    assert write_answer(Report("a run", "1.0", answer=answer), NONE) == (answer or "a run")


def make_delays(*rows):
    """A report whose steps take 100 ns, with rows of (role, rank, time that others wait, time beyond the median)."""
    waits = Sheet(
        "waits",
        "",
        tuple(Heading(name, "") for name in ("role", "late_rank", "each_ns")),
        tuple(row[:3] for row in rows),
    )
    work = Sheet(
        "ranks",
        "",
        tuple(Heading(name, "") for name in ("role", "rank", "beyond_ns")),
        tuple((*row[:2], row[3]) for row in rows),
    )
    section = Section("stragglers", "", sheets=(waits, work))
    return Report("a run", "1.0", headline=(Metric("step_wall", 100, "ns"),), sections=(section,))


def test_a_rank_of_one_role_is_not_summed_with_the_same_rank_of_another():
    """Ranks 0 to 2 of two roles: 5 and 7 ns for their ranks 1 are not 12 ns for one rank 1."""
    rows = [
        ("actor", 0, 0, 0),
        ("actor", 1, 5, 6),
        ("actor", 2, 1, 0),
        ("critic", 0, 0, 0),
        ("critic", 1, 7, 4),
        ("critic", 2, 0, 0),
    ]
    report = make_delays(*rows)
    assert (
        write_answer(report, read_rank_delays(report))
        == "A step takes 100 ns. Other ranks wait 7.00 ns for rank 1 of critic."
    )
    report = make_delays(*((role, rank, 0, beyond) for role, rank, _, beyond in rows))
    assert (
        write_answer(report, read_rank_delays(report))
        == "A step takes 100 ns. Rank 1 of actor works 6.00 ns longer than the median rank."
    )


def test_of_two_ranks_the_one_that_is_waited_for_more_is_named():
    """The critic's rank 1 is 40 ns later than the other, the actor's rank 0 45 ns: the net time decides which is named."""
    rows = [("actor", 0, 50, 9), ("actor", 1, 5, 0), ("critic", 0, 20, 0), ("critic", 1, 60, 9)]
    report = make_delays(*rows)
    assert (
        write_answer(report, read_rank_delays(report))
        == "A step takes 100 ns. Rank 1 waits 50.0 ns for rank 0 of actor."
    )
    report = make_delays(*((role, rank, 50, beyond) for role, rank, _, beyond in rows))
    assert write_answer(report, read_rank_delays(report)) == "A step takes 100 ns."
