"""Sides that did other work: what is told, for one token, sample or image, and what is no longer said of whole times."""

import json

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, change_of, compared, made_side, row, step_rows, write_run
from hypothesis import given
from hypothesis import strategies as st

from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.gate_rules import GateRules, parse_rule_text
from tracekit.compare.gates.outcomes import summarize_gates
from tracekit.compare.judge import compare_sides
from tracekit.job.steps.throughput import parse_work_counts
from tracekit.model.errors import TracekitError
from tracekit.pipeline.comparing import compare_paths, read_step_logs
from tracekit.pipeline.run import Options
from tracekit.render import render

ONE = Options(jobs=1)


def counted(runs, *counts, name="tokens"):
    """The steps of these runs, and how much work each holds: one count for all, or one a step."""
    rows = step_rows(*runs)
    for number, values in enumerate(runs, 1):
        for at, _ in enumerate(values):
            rows.append(row(name, counts[at % len(counts)], run=f"run{number}", step=at + 1))
    return rows


def test_whole_times_of_other_work_are_not_compared_but_the_time_for_one_is():
    found = compared(counted(BASE_RUNS, 1000), counted(OPT_RUNS, 500))
    assert found.verdict == found.headline.word == "not comparable"
    # The steps are 1.112979 times faster with half of the tokens: 0.556490 for one of them.
    per = change_of(found, "time_per_token")
    assert (per.ratio, per.word) == (pytest.approx(0.5564897, abs=1e-6), "regression")
    (one,) = found.differences
    assert (one.name, one.base, one.opt, one.blocking) == ("tokens", "1,000 per step", "500 per step", True)  # fmt: skip
    assert found.warnings[0] == (
        "tokens differ (1,000 per step · 500 per step): steps contain different work: compare time per token instead"
    )
    assert found.warnings[1].startswith("time per token 10.3 ms → 18.4 ms: 1.80× slower [")
    assert found.warnings[1].endswith("], regression")
    assert found.needed == ""


def test_other_work_can_be_compared_all_the_same():
    found = compared(counted(BASE_RUNS, 1000), counted(OPT_RUNS, 500), force=True)
    assert found.verdict == "improvement"
    assert [one.name for one in found.differences] == ["tokens"]


@pytest.mark.parametrize(("name", "per"), [("samples", "time_per_sample"), ("images", "time_per_image")])  # fmt: skip
def test_samples_and_images_are_work_as_tokens_are(name, per):
    found = compared(counted(BASE_RUNS, 8, name=name), counted(OPT_RUNS, 4, name=name))
    assert found.verdict == "not comparable"
    assert change_of(found, per).ratio == pytest.approx(0.5564897, abs=1e-6)


@pytest.mark.parametrize(("after", "differ"), [(1029, False), (1031, True), (972, False), (970, True)])  # fmt: skip
def test_work_differs_where_it_does_by_more_than_matters(after, differ):
    """3 % more is 1,030; 3 % less on the log scale 970.9."""
    found = compared(counted(BASE_RUNS, 1000), counted(OPT_RUNS, after))
    assert bool(found.differences) is differ
    assert (found.verdict == "not comparable") is differ


def test_work_that_varies_by_chance_is_told_and_forbids_nothing():
    found = compared(
        counted([[10.0, 10.4, 10.2]] * 2, 1000, 3000, 800),
        counted([[5.0, 5.2, 5.1]] * 2, 1500, 700, 3600),
        assume_independent_steps=True,
    )
    # Two equal runs a side have no spread, so that the interval is missing: a single run shows how steps vary.
    single = compared(
        counted([[10.0, 10.4, 10.2]], 1000, 3000, 800),
        counted([[5.0, 5.2, 5.1]], 1500, 700, 3600),
        assume_independent_steps=True,
    )
    (one,) = single.differences
    assert (one.name, one.blocking) == ("tokens", False)
    assert one.meaning == "it may be chance: compare time per token as well"
    assert single.verdict == "improvement"
    assert found.differences[0].blocking, "runs that hold the very same tokens are no chance"


def test_work_of_one_side_alone_is_no_difference():
    assert compared(counted(BASE_RUNS, 1000), step_rows(*OPT_RUNS)).differences == ()


def test_stages_have_their_time_for_one_too():
    def rows(gen, tokens):
        stages = [row("stage_time", ns, run="run1", step=at, role="actor", stage="gen") for at, ns in enumerate(gen, 1)]  # fmt: skip
        return counted([[4.0, 4.0]], *tokens) + stages

    found = compared(rows([3e9, 1e9], (6000, 2000)), rows([2e9, 2e9], (4000, 4000)))
    # Σ 4 s / Σ 8,000 on both sides; the same work, however it is spread over the steps.
    per = change_of(found, "time_per_token", stage="gen", role="actor")
    assert (per.base, per.opt) == pytest.approx((5e5, 5e5))
    assert found.differences == ()


def test_rules_on_times_are_not_tested_with_other_work_but_rules_on_rates_are():
    rules = GateRules(tuple(map(parse_rule_text, ("step_time>3%", "time_per_token>3%", "gpu.idle_share>5%"))))  # fmt: skip
    found = compared(counted(BASE_RUNS, 1000), counted(OPT_RUNS, 500), gate=rules)
    assert [gate.outcome for gate in found.gates] == ["not comparable", "fail", "not tested"]
    assert summarize_gates(found.gates[:1]) == "not comparable"


def test_drivers_logs_tell_samples_and_images(tmp_path):
    def log(name, counts):
        lines = [{"step": at, "data": {"timing_s/step": 2.0, **one}} for at, one in enumerate(counts, 1)]  # fmt: skip
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return read_step_logs([tmp_path / name], ONE)

    both = [{"perf/total_num_images": 64, "train/global_valid_seqs": 16, "perf/throughput": 9}] * 2
    (found,) = log("a.jsonl", both)
    told = {(row["name"], row["step"]): row["value"] for row in found.recorded.rows()}
    assert {name for name, _ in told} == {"unprofiled_step_time", "images", "samples"}
    assert (told["images", 1], told["samples", 2]) == (64, 16)


def test_a_table_of_step_times_may_tell_the_work(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("step,seconds,tokens,images\n1,2.0,4096,\n2,2.5,8192,32\n")
    (found,) = read_step_logs([path], ONE)
    told = {(row["name"], row["step"]): row["value"] for row in found.recorded.rows()}
    assert told == {
        ("unprofiled_step_time", 1): 2e9, ("tokens", 1): 4096.0,
        ("unprofiled_step_time", 2): 2.5e9, ("tokens", 2): 8192.0, ("images", 2): 32.0,
    }  # fmt: skip
    path.write_text('{"step": 1, "seconds": 2.0, "samples": 8}\n')
    (found,) = read_step_logs([path], ONE)
    assert {row["name"]: row["value"] for row in found.recorded.rows()}["samples"] == 8


@pytest.mark.parametrize("cell", ["-1", "0", "many", "nan", "inf", "1e99"])
def test_a_count_that_is_none_is_refused(tmp_path, cell):
    path = tmp_path / "steps.csv"
    path.write_text(f"step,seconds,tokens\n1,2.0,{cell}\n")
    with pytest.raises(TracekitError, match="line 2: tokens of a step must be positive numbers"):
        read_step_logs([path], ONE)


def test_logs_with_other_work_are_told_apart_from_the_profiles(tmp_path):
    def log(name, tokens):
        path = tmp_path / name
        path.write_text("step,seconds,tokens\n" + "".join(f"{n},2.0,{tokens}\n" for n in (1, 2, 3)))
        return path

    runs = [write_run(tmp_path / name, [1000, 1100, 1000]) for name in ("one", "two")]
    logs = [log("a.csv", 100), log("b.csv", 200)]
    found = compare_paths([runs[0]], [runs[1]], ONE, base_steps=logs[:1], opt_steps=logs[1:]).comparison
    assert found.headline.name == "unprofiled_step_time"
    assert found.verdict == "not comparable"
    # 2 s for 100 and for 200 tokens.
    per = change_of(found, "time_per_token")
    assert (per.base, per.opt) == pytest.approx((2e7, 1e7))


def test_work_given_by_a_person_is_that_of_every_step(tmp_path, call):
    for name, dur in (("one", 1000), ("two", 1200)):
        write_run(tmp_path / name, [dur, dur + 20, dur], ranks=2)
    done = call("compare", str(tmp_path / "one"), str(tmp_path / "two"), "--tokens", "100,200", "--drop-first", "0", "-v")  # fmt: skip
    assert done.exit_code == 2, "not comparable"
    assert "tokens differ (100 per step · 200 per step)" in " ".join(done.stdout.split())
    # 3,020 µs / 300 and 3,620 µs / 600 tokens.
    assert "time per token 10.1 µs → 6.03 µs: 1.67× faster" in " ".join(done.stdout.split())
    # 300 tokens / 3,020 µs / 2 ranks = 49,669; 600 / 3,620 µs / 2 = 82,873.
    assert "49,668.9" in done.stdout
    assert "82,872.9" in done.stdout
    same = call("compare", str(tmp_path / "one"), str(tmp_path / "two"), "--tokens", "100", "-q")
    assert same.exit_code == 0


@pytest.mark.parametrize("text", ["", "x", "1,2,3", "0", "-4", "nan", "inf", "1e16", "100,"])
def test_work_that_is_no_number_is_refused(text):
    with pytest.raises(TracekitError, match="must be one or two positive numbers of tokens per step"):
        parse_work_counts({"tokens": text})


def test_one_side_alone_tells_its_rates(tmp_path, call):
    run = write_run(tmp_path / "run", [1000, 1020, 1000], ranks=2)
    saved, told = tmp_path / "a.tkm", tmp_path / "a.json"
    done = call("analyze", str(run), "--images", "10", "--save", str(saved), "-o", str(told), "-v")
    assert "time per image" in done.stdout
    # 20 images / 2,020 µs / 2 ranks.
    assert "images per s" in done.stdout
    assert "4,950.5" in done.stdout
    # What was told is kept by both forms that can be saved.
    for given_ in (saved, told):
        found = compare_paths([given_], [given_], ONE).comparison
        # The first step does not count: 2,020 µs / 20.
        assert change_of(found, "time_per_image").base == pytest.approx(101_000)
    with pytest.raises(TracekitError, match="the work of a saved report's steps is fixed"):
        compare_paths([told], [told], ONE, work=({"images": 5.0}, {"images": 5.0}))
    again = compare_paths([saved], [saved], ONE, work=({"images": 20.0}, {"images": 20.0}))
    assert change_of(again.comparison, "time_per_image").base == pytest.approx(50_500)


def test_a_rate_can_be_budgeted_without_a_baseline(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run", [1000, 1000, 1000, 1000], ranks=2)
    (tmp_path / "tracekit.toml").write_text('[[gate.rule]]\nmetric = "throughput"\nmin = "point:60000"\n')  # fmt: skip
    # 100 tokens / 1 ms / 2 ranks = 50,000.
    assert call("gate", str(run), "--tokens", "100").exit_code == 1
    assert call("gate", str(run), "--tokens", "130").exit_code == 0
    untold = call("gate", str(run))
    assert untold.exit_code == 3
    assert call("gate", str(run), "--allow-untested").exit_code == 0
    assert "not tested: throughput was not tested" in untold.stdout


@given(st.floats(0.2, 5), st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_time_for_one_does_not_see_how_much_work_there_was(slower, before, after):
    """Steps that take as long for each token are no change of that, whatever their number."""
    base = counted([[v * before for v in run] for run in BASE_RUNS], before)
    opt = counted([[v * after * slower for v in run] for run in BASE_RUNS], after)
    sides = (made_side(name, rows) for name, rows in (("base", base), ("opt", opt)))
    found = compare_sides(*sides, ComparisonChoices())
    assert change_of(found, "time_per_token").ratio == pytest.approx(1 / slower)


def test_what_is_said_of_work_is_the_same_every_time():
    texts = {render(compared(counted(BASE_RUNS, 1000), counted(OPT_RUNS, 500)).report(), "md") for _ in range(2)}
    assert len(texts) == 1
