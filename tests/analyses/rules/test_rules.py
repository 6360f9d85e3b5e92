"""Every rule on a trace on which it fires and on a near miss; rules, pages and thresholds belong together."""

import ast
import inspect
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from chrome_builder import annotation, kernel, launched, memcpy, memset, op, step, write
from rules.firing import write_sources
from rules.traces import FIRES, MIB, NEAR_MISSES, busy_in_gen, exposed_in_update, pageable, steps_of, unlinked

import tracekit
from tracekit.analyses import ANALYSES, load_default_thresholds, rules
from tracekit.model.report import SEVERITIES
from tracekit.model.thresholds import Thresholds, load_shared_thresholds
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = tuple(analysis.id for analysis in ANALYSES if analysis.rules)

ROOT = Path(__file__).parents[3]
IDS = sorted({rule for analysis in ANALYSES for rule in analysis.rules})
"""All rules, as the records name them: what each needs is asked of each by its name."""


def that_judge(rule):
    """The questions that judge a rule."""
    return tuple(analysis.id for analysis in ANALYSES if rule in analysis.rules)


@pytest.fixture
def findings(tmp_path):
    """A function that gives the findings of these rows; of one rule, where only that is asked for."""

    def found_in(rows, rule=None):
        options = Options(jobs=1, questions=QUESTIONS if rule is None else that_judge(rule))
        found = analyze_uncached(write_sources(tmp_path, rows), options).report.findings
        return found if rule is None else [f for f in found if f.rule == rule]

    return found_in


def evidence(finding):
    return {metric.name: metric.value for metric in finding.evidence}


@pytest.mark.slow
@pytest.mark.parametrize("rule", IDS)
def test_on_its_trace_no_other_rule_fires(findings, rule):
    (found,) = findings(FIRES[rule].rows)
    assert found.rule == rule


@pytest.mark.parametrize("rule", IDS)
def test_it_fires_with_the_numbers_worked_out_by_hand(findings, rule):
    assert rule in FIRES, f"no trace on which {rule} fires: tests/support/rules has one for each"
    expected = FIRES[rule]
    (found,) = findings(expected.rows, rule)
    assert found.rule == rule
    assert found.claim == expected.claim
    assert found.severity == expected.severity
    assert found.cost_ns == expected.cost_ns
    assert found.cost_ratio == pytest.approx(expected.cost_ratio)
    assert evidence(found) == pytest.approx(expected.evidence)
    assert found.advice
    assert found.places


@pytest.mark.parametrize("rule", IDS)
def test_a_near_miss_does_not_fire(findings, rule):
    assert rule in NEAR_MISSES, f"no near miss of {rule}: tests/support/rules has one for each"
    assert findings(NEAR_MISSES[rule], rule) == []


def emitted():
    """The rule ids that the code gives findings, and those whose thresholds it asks for."""
    ids, asked = set(), set()
    judging = (ROOT / "tracekit" / package for package in ("job", "analyses"))
    for path in [path for package in judging for path in package.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            first = node.args[0]
            text = first.value if isinstance(first, ast.Constant) else None
            if isinstance(node.func, ast.Name) and node.func.id == "Finding":
                ids.add(text)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "of" and text:
                asked.add(text)
    return ids, asked


DEFINITIONS = {"idle-causes"}
"""Thresholds that tell causes apart, before any rule looks at them."""


EMITTED, ASKED = emitted()


@pytest.mark.parametrize("rule", IDS)
def test_every_rule_gives_findings_and_has_thresholds_that_it_asks_for(rule):
    assert rule in EMITTED
    assert rule in ASKED
    assert load_default_thresholds().of(rule)
    (path,) = (ROOT / "tracekit" / "analyses").rglob(f"{rule}.md")
    assert rules.find_rule(rule).page == path.read_text()


def test_nothing_is_of_a_rule_that_no_question_judges():
    pages = {path.stem for path in (ROOT / "tracekit" / "analyses").rglob("*.md")}
    assert {*EMITTED, *ASKED, *pages, *FIRES, *NEAR_MISSES} <= {*IDS}
    assert {*load_default_thresholds().values} == {"severity", *IDS, *DEFINITIONS}


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.id)
def test_thresholds_stand_in_the_record_of_the_one_question_that_judges_the_rule(analysis):
    assert {*analysis.thresholds} <= {*analysis.rules}
    assert not {*analysis.thresholds} & {*load_shared_thresholds().values}
    for rule in analysis.thresholds:
        assert that_judge(rule) == (analysis.id,)


@pytest.mark.parametrize("rule", IDS)
def test_every_page_gives_a_summary_then_cause_measure_fixes_limits_and_source(rule):
    page = rules.read_rule_page(rule)
    heads = re.findall(r"^\*\*(.+?)\.\*\* \S", page, re.MULTILINE)
    assert heads == ["Cause", "How it is measured", "What to try", "When it is wrong", "Source"]
    _, summary, cause, *_ = page.split("\n\n")
    assert re.match(r"[A-Z`]", summary)
    assert summary.endswith(".")
    assert cause.startswith("**Cause.**")


@pytest.mark.parametrize("rule", IDS)
def test_every_page_names_every_threshold_of_its_rule(rule):
    for name in load_default_thresholds().of(rule):
        assert name in rules.read_rule_page(rule)


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.id)
def test_every_threshold_of_a_record_has_a_comment_before_it(analysis):
    lines = Path(inspect.getfile(analysis.judge)).read_text().splitlines()
    names = [name for limits in analysis.thresholds.values() for name in limits]
    commented = [
        name
        for before, line in pairwise(lines[lines.index("ANALYSIS = Analysis(") :])
        if before.lstrip().startswith("#")
        for name in re.findall(r'^ +"(\w+)": ', line)
    ]
    assert commented == names


def test_every_shared_threshold_has_a_comment_before_it():
    text = (ROOT / "tracekit" / "model" / "thresholds.toml").read_text()
    for block in re.split(r"^\[", text, flags=re.MULTILINE)[1:]:
        assert block.split("\n")[1].startswith("#")
    assert tomllib.loads(text)["severity"] == {"high": 0.10, "medium": 0.03, "low": 0.01}


def test_a_rule_is_found_by_id_and_by_number_in_any_case():
    for rule in rules.RULES:
        assert rules.find_rule(rule.number.lower()) is rules.find_rule(rule.id.upper()) is rule
    with pytest.raises(tracekit.TracekitError) as caught:
        rules.find_rule("R99")
    assert "tracekit explain" in caught.value.hint


@pytest.mark.parametrize(
    ("share", "severity"),
    [(None, "info"), (0.0099, "info"), (0.01, "low"), (0.0299, "low"), (0.03, "medium"),
     (0.0999, "medium"), (0.10, "high"), (3.0, "high")],
)  # fmt: skip
def test_severity_is_the_share_of_the_step_that_would_be_given_back(share, severity):
    assert load_default_thresholds().severity(share) == severity


def test_thresholds_may_be_others(tmp_path):
    """The near miss at 80 % fires once 90 % are asked for."""
    measured = analyze_uncached(write(tmp_path / "rank0.json", busy_in_gen(40)), Options(jobs=1)).measurements
    values = {name: dict(block) for name, block in load_default_thresholds().values.items()}
    values["low-gpu-utilization"]["busy_ratio"] = 0.90
    from tracekit.pipeline.run import judge

    assert [f.rule for f in judge(measured, Thresholds(values)).findings] == ["low-gpu-utilization"]


# R01


def test_a_stage_below_two_per_cent_of_the_step_is_not_worth_a_finding(findings):
    """Busy half of a stage of 199 (then 200) in a step of 10,000."""
    assert findings(busy_in_gen(100, 199, 10_000), "low-gpu-utilization") == []
    (found,) = findings(busy_in_gen(100, 200, 10_000), "low-gpu-utilization")
    assert (found.cost_ns, found.severity) == (100_000, "low")


def test_a_stage_in_which_no_device_op_runs_is_idle_by_design(findings):
    """In `reward` the GPU is left alone; `gen` is all busy."""
    rows = [
        step(1, 0, 100), annotation("gen", 0, 50), annotation("reward", 60, 40),
        *launched("k", 0, 0, 50, 1),
    ]  # fmt: skip
    assert findings(rows, "low-gpu-utilization") == []


def test_without_stages_the_steps_that_a_profiler_counted_are_judged(findings):
    """Busy 70 of each step of 100."""
    rows = [*steps_of(100, 100)]
    rows += [*launched("k", 1, 2, 70, 1), *launched("k", 101, 102, 70, 2)]
    (found,) = findings(rows, "low-gpu-utilization")
    assert found.claim == "GPUs are busy 70 % of the step; idle time by kind: nothing recorded 97 %, runtime call 3.3 %"
    assert (found.cost_ns, found.places[0].stage) == (30_000, None)


def test_a_capture_that_nobody_divided_may_be_idle_by_design(findings):
    rows = [op("aten::mm", 0, 1000), *launched("k", 1, 2, 70, 1)]
    assert findings(rows, "low-gpu-utilization") == []


def test_a_stage_without_length_is_not_judged(tmp_path):
    """An empty range while a kernel runs: no window, no ratio."""
    rows = [step(1, 0, 100), annotation("gen", 20, 0), *launched("k", 1, 10, 50, 1)]
    report = analyze_uncached(write(tmp_path / "rank0.json", rows), Options(jobs=1, questions=QUESTIONS)).report
    assert [s.id for s in report.sections if s.status == "failed"] == []


def test_the_idle_time_of_two_gpus_is_what_one_of_them_idles(tmp_path):
    """Rank 0 idles 11 of its gen, rank 1 idles 21: 16 on average, whatever their process ids are."""
    for rank, busy in ((0, 39), (1, 29)):
        write(tmp_path / f"rank{rank}.json", busy_in_gen(busy), rank=rank, world_size=2)
    (found,) = analyze_uncached(tmp_path, Options(jobs=1, questions=QUESTIONS)).report.findings
    assert (found.claim, found.cost_ns) == (
        "GPUs are busy 68 % of gen; idle time by kind: nothing recorded 94 %, runtime call 6.2 %",
        16_000,
    )


def test_each_run_is_judged_by_its_own_steps_and_named(tmp_path):
    """Idle 11 of steps of 100, and 51 of steps of 200; neither run is divided by the other's steps."""
    write(tmp_path / "a/rank0.json", busy_in_gen(39))
    write(tmp_path / "b/rank0.json", busy_in_gen(49, 100, 200))
    found = analyze_uncached([tmp_path / "a", tmp_path / "b"], Options(jobs=1, questions=QUESTIONS)).report.findings
    assert [(f.claim, f.cost_ns, f.cost_ratio) for f in found] == [
        (
            "GPUs are busy 49 % of gen (run b); idle time by kind: nothing recorded 98 %, runtime call 2.0 %",
            51_000,
            0.255,
        ),
        (
            "GPUs are busy 78 % of gen (run a); idle time by kind: nothing recorded 91 %, runtime call 9.1 %",
            11_000,
            0.11,
        ),
    ]


# R05


def test_communication_behind_compute_is_no_finding(findings):
    assert findings(exposed_in_update(0, hidden=60), "exposed-communication") == []


def test_without_stages_exposed_communication_is_a_share_of_the_step(findings):
    rows = [*steps_of(100), *launched("gemm", 0, 0, 80, 1)]
    rows += launched("ncclDevKernel_AllReduce", 1, 70, 30, 2, stream=9)
    (found,) = findings(rows, "exposed-communication")
    assert found.claim == "20 % of the step is exposed communication"
    assert found.cost_ns == 20_000


def test_one_stage_is_found_although_the_other_hides_its_communication(findings):
    """The collective of `ref` runs alone for 20 of 50; that of `actor_update` behind compute."""
    rows = [
        step(1, 0, 100), annotation("ref", 0, 50), annotation("actor_update", 50, 50),
        *launched("gemm", 0, 0, 30, 1), *launched("ncclKernel", 1, 30, 20, 2, stream=9),
        *launched("gemm", 50, 50, 50, 3), *launched("ncclKernel", 51, 60, 20, 4, stream=9),
    ]  # fmt: skip
    found = findings(rows)
    assert [(f.rule, f.places[0].stage) for f in found] == [("exposed-communication", "ref")]


# R08


@pytest.mark.parametrize(("dur", "fires"), [(1000, True), (999, False)])
def test_few_bytes_count_by_their_time(findings, dur, fires):
    """1 % of a step of 100 ms."""
    found = findings(pageable(64_001, dur), "pageable-copies")
    assert bool(found) == fires


def test_small_copies_to_the_device_do_not_count(findings):
    assert findings(pageable(64_000, 5000), "pageable-copies") == []


def test_pinned_and_device_copies_and_fills_are_not_meant(findings):
    rows = [*steps_of(100_000), op("aten::copy_", 0, 10)]
    rows += [memcpy("Memcpy HtoD (Pinned -> Device)", 100, 20_000, 100 * MIB)]
    rows += [memcpy("Memcpy DtoD (Device -> Device)", 30_000, 20_000, 100 * MIB)]
    rows += [memset(60_000, 20_000, 100 * MIB)]
    assert findings(rows, "pageable-copies") == []


def test_without_a_pinned_copy_the_rate_of_pinned_ones_is_assumed(findings):
    """1 MiB at 25 GB/s takes 41,943 of the 500,000 ns."""
    (found,) = findings(pageable(MIB, 500, pinned=False), "pageable-copies")
    assert found.cost_ns == 458_057
    assert found.caveats == ("no pinned copy of 1 MiB was recorded: assumes 25 GB/s for pinned copies",)
    assert evidence(found)["pinned_gb_per_s"] is None


def test_copies_are_counted_per_process_and_run(tmp_path):
    """1 MiB a step and process is the limit: two ranks of two runs reach it each, not together."""
    for run in ("a", "b"):
        for rank in (0, 1):
            write(tmp_path / run / f"rank{rank}.json", pageable(MIB, 500), rank=rank, world_size=2)
    found = analyze_uncached([tmp_path / "a", tmp_path / "b"], Options(jobs=1, questions=QUESTIONS)).report.findings
    assert [f.claim for f in found if f.rule == "pageable-copies"] == [
        f"4 H2D copies use pageable host memory (run {run})" for run in ("a", "b")
    ]
    assert {(evidence(f)["pageable_bytes"], f.cost_ns) for f in found if f.rule == "pageable-copies"} == {(MIB, 400_000)}  # fmt: skip


# R30


@pytest.mark.parametrize(("half", "fires"), [(9, True), (8, False)])
def test_steps_may_vary_by_ten_per_cent(findings, half, fires):
    """Two steps of 100 − d, two of 100 + d: the variation is d·√(4/3) per cent, 10.4 or 9.2."""
    rows = steps_of(100 - half, 100 - half, 100 + half, 100 + half)
    assert bool(findings(rows, "step-variance")) == fires


@pytest.mark.parametrize(("count", "fires"), [(3, False), (4, True)])
def test_fewer_than_four_steps_say_nothing(findings, count, fires):
    rows = steps_of(*[100] * (count - 1), 1000)
    assert bool(findings(rows, "step-variance")) == fires


@pytest.mark.parametrize(("first", "warm"), [(301, True), (300, False)])
def test_a_first_step_over_three_medians_is_called_warm_up(findings, first, warm):
    (found,) = findings(steps_of(first, *[100] * 9), "step-variance")
    assert any("warm-up" in text for text in (found.claim, *found.caveats)) == warm
    assert found.places[0].step == 1


def test_steps_without_any_length_are_no_variance(tmp_path):
    report = analyze_uncached(
        write(tmp_path / "rank0.json", steps_of(0, 0, 0, 0)), Options(jobs=1, questions=QUESTIONS)
    ).report
    assert report.findings == ()
    assert [s.id for s in report.sections if s.status == "failed"] == []


# R32


def artefacts(tmp_path, files):
    for name, rows in files.items():
        write(tmp_path / name, rows)
    found = analyze_uncached(tmp_path, Options(jobs=1, questions=QUESTIONS)).report.findings
    return [(f.severity, f.claim, [p.source for p in f.places]) for f in found if f.rule == "profiling-artefact"]  # fmt: skip


def test_ops_of_one_stream_that_overlap_by_design_are_no_artefact(tmp_path):
    rows = [op("a", 0, 500), *launched("one", 1, 10, 100, 1), *launched("two", 2, 60, 100, 2)]
    assert artefacts(tmp_path, {"rank0.json": rows}) == []


def test_an_op_ten_times_longer_than_the_capture_is_high(tmp_path):
    rows = [op("a", 0, 100), *launched("k", 1, 10, 5, 1), *launched("corrupt", 2, 20, 1001, 2)]
    (found,) = artefacts(tmp_path, {"rank0.json": rows})
    assert found[0] == "high"
    assert "impossible times" in found[1]
    assert artefacts(tmp_path, {"rank0.json": [*rows[:-1], kernel("k", 20, 100, 2)]}) == []


def test_a_rank_without_gpu_activity_among_others_with_it(tmp_path):
    files = {"rank0.json": [op("a", 0, 9), *launched("k", 1, 2, 3, 1)], "rank1.json": [op("a", 0, 9)]}
    (found,) = artefacts(tmp_path, files)
    assert found == ("info", "1 of 2 sources has no GPU activity while others do", ["rank1.json"])


def test_files_that_cannot_be_read_or_are_cut_off_are_high_and_named(tmp_path):
    write(tmp_path / "rank0.json", [op("a", 0, 9)])
    body = write(tmp_path / "rank1.json", [op("a", 0, 9), op("b", 9, 9)]).read_bytes()
    (tmp_path / "rank1.json").write_bytes(body[:-10])
    (tmp_path / "rank2.json").write_bytes(b'{"traceEvents": 5, "schemaVersion": 1}')
    found = artefacts(tmp_path, {})
    assert ("high", ["rank1.json"]) in [(severity, places) for severity, _, places in found]
    assert all(severity in SEVERITIES for severity, _, _ in found)


# Traces without a GPU


GPU_RULES = {"low-gpu-utilization", "exposed-communication", "pageable-copies"}


def test_a_trace_without_a_gpu_fires_no_rule_about_gpus(findings):
    rows = [
        step(1, 0, 1000), annotation("actor_update", 0, 1000),
        annotation("gloo:all_reduce", 10, 900), op("c10d::allreduce_", 10, 900),
        op("aten::copy_", 920, 60), op("Memcpy HtoD (Pageable -> Device)", 930, 40),
    ]  # fmt: skip
    assert findings(rows) == ()


def test_a_real_run_without_a_gpu_fires_no_rule_about_gpus():
    found = analyze_uncached(ROOT / "examples" / "verl_cpu" / "outputs" / "profile").report.findings
    assert not {f.rule for f in found} & GPU_RULES


def test_findings_come_in_the_order_of_what_they_would_give_back(findings):
    rows = [*busy_in_gen(39), *(r | {"ts": r["ts"] + 200} for r in unlinked(50))]
    found = findings(rows)
    given = [(not f.is_catch_all, f.cost_ns or 0) for f in found]
    given = [weight for weight in given if weight[1]]
    assert given == sorted(given, reverse=True)
    assert len(found) > 1
