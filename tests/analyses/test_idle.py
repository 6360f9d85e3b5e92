"""What is said of idle GPU time: by cause and stage, in charts and metrics, on hostile rows and real files."""

import os
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from chrome_builder import annotation, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import breakdown_of, breakdowns
from rules import traces_idle
from rules.idle_report import RULES, answers, result, rows_of, section
from rules.traces_idle import between_stages, synchronised

import tracekit
from tracekit.analyses import load_default_thresholds
from tracekit.analyses.time import idle
from tracekit.job.idle_time import pause_phrases
from tracekit.job.idle_time.causes import HostPauses
from tracekit.model.tables.frame import from_rows
from tracekit.model.tables.slots import CAUSES
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("idle", "launch-queues", "stage-edges", "syncs")

BREAKDOWNS = breakdowns()
REAL = os.environ.get("TRACEKIT_REAL_DATA")


# Sections


def test_causes_add_up_to_the_idle_share_of_every_row(tmp_path):
    """Idle 100 to 150 of 300, launched at 130; the stage is all of it."""
    rows = [
        step(1, 0, 300), annotation("gen", 0, 300), op("aten::sort", 100, 10),
        *launched("a", 0, 0, 100, 1), *launched("b", 130, 150, 150, 2),
    ]  # fmt: skip
    path = write(tmp_path / "rank0.json", rows)
    stage, capture = rows_of(section(path, "idle"), "idle_causes")
    assert (stage["stage"], capture["stage"]) == ("gen", "(first to last device op)")
    assert {k: v for k, v in stage.items() if k in CAUSES} == pytest.approx(
        {"host_op": 10 / 300, "host_none": 20 / 300, "kernel_wait": 20 / 300}
    )
    assert stage["idle_ratio"] == pytest.approx(50 / 300)
    shown = section(path, "idle")
    assert {m.name: m.value for m in shown.metrics} == {"host_wait_ratio": 0.1, "launch_unknown_ratio": 0.0}
    bars = next(chart for chart in shown.charts if chart.id == "idle-causes")
    assert [(bars.rows[r], bars.series[s], v) for r, s, v in bars.marks] == [
        ("gen", "host op", 10_000), ("gen", "between ops", 20_000), ("gen", "launch latency", 20_000),
    ]  # fmt: skip
    gaps = next(chart for chart in shown.charts if chart.id == "idle-gaps")
    assert sum(mark[-1] for mark in gaps.marks) == 50_000


def test_the_wait_for_the_host_is_a_metric_per_step_and_stage(tmp_path):
    rows = [
        step(1, 0, 300), annotation("gen", 0, 300), *launched("a", 0, 0, 100, 1), *launched("b", 130, 150, 150, 2),
    ]  # fmt: skip
    values = result(write(tmp_path / "rank0.json", rows)).measurements["metrics"]
    mine = values[values["name"] == "host_wait"]
    assert mine[["step", "value"]].to_numpy().tolist() == [[1, 30_000], [1, 30_000]]
    assert mine["stage"].isna().tolist() == [True, False]


def test_the_longest_gaps_are_shown_and_all_of_them_counted(tmp_path, monkeypatch):
    """Gaps of 10, 20, 30 and 40; the source keeps three, and two are shown."""
    monkeypatch.setattr("tracekit.process.idle_time.tables.MAX_GAPS", 3)
    monkeypatch.setattr(idle, "SHOWN_GAPS", 2)
    rows = [op("aten::sort", 0, 150)]
    for number, at in enumerate((0, 20, 50, 90, 140), 1):
        rows += launched("gemm", at, at, 10, number)
    shown = section(write(tmp_path / "rank0.json", rows), "idle")
    (gaps,) = [sheet for sheet in shown.sheets if sheet.name == "idle_gaps"]
    assert gaps.caption.startswith("The longest of 4 gaps;")
    assert (len(gaps.rows), gaps.omitted) == (2, 1)
    assert [(row["at_ns"], row["dur_ns"]) for row in rows_of(shown, "idle_gaps")] == [
        (100_000, 40_000),
        (60_000, 30_000),
    ]


def test_a_silent_host_is_not_judged_without_host_activity_or_marks(monkeypatch):
    """Runs of a device with no host, with no marks, and with both; and a run of a host alone."""
    rows = [("a", 5, 0), ("b", 5, 2), ("b", 5, 1), ("c", 5, 3), ("d", 0, 9), (None, 5, 0)]
    captures = from_rows(("run", "device_op_count", "host_op_count"), rows)
    windows = [SimpleNamespace(run="b", origin="file"), SimpleNamespace(run="c", origin="stage")]
    monkeypatch.setattr(idle, "list_stage_windows", lambda _: windows)
    monkeypatch.setattr(idle, "_price_silence_abstention", lambda _, run, why: (run, why))
    assert idle._list_host_silence_abstentions(SimpleNamespace(frame=lambda _: captures)) == [
        ("a", "no host activity was recorded"),
        ("b", "no stage and no counted step is annotated: a host may pause by design"),
    ]


@pytest.mark.parametrize(
    ("reward_ns", "outside_ns", "words"),
    [(91, 0, " in reward"), (80, 0, " in reward, gen"), (80, 51, ""), (0, 0, " in gen, reward")],
)
def test_pauses_without_a_place_are_told_with_the_stages_that_have_nearly_all(reward_ns, outside_ns, words):
    """Of 100 of silence, the rest is in gen."""
    windows = [SimpleNamespace(key=(name,), canonical=name) for name in ("gen", "reward")]
    stages = {("gen",): 89 if not reward_ns else 100 - reward_ns, ("reward",): reward_ns}
    lost = HostPauses(100, 0, 0, windows, stages, outside_ns)
    assert pause_phrases._phrase_stages_of_pauses(lost) == words


def test_pauses_cost_what_the_gpus_wait_and_what_other_ranks_wait_for_them(monkeypatch):
    """100 of silence and 60 of waits over two steps of 1000: 80 of each."""
    lost = HostPauses(100, 0, 0, [], {})
    steps = SimpleNamespace(mean=lambda ns: ns / 2, step_ns=1000.0)
    stand_ins = {
        "find_host_pauses": {("a", "actor"): lost}, "count_gpu_steps": {("a", "actor"): steps}, "phrase_run": "",
        "sum_waits_for_pauses": 60, "_select_pause_gaps": from_rows(("cause_ns",), []), "_locate_pauses": [], "_pick_pauses": (),
        "describe_host_pauses": ("nothing runs", "advice", ()), "_describe_pausing_steps": "",
    }  # fmt: skip
    for name, value in stand_ins.items():
        monkeypatch.setattr(idle, name, lambda *_, value=value: value)
    (found,) = idle._find_host_silence(None, load_default_thresholds())
    assert (found.cost_ns, found.cost_ratio, found.severity) == (80, 0.08, "medium")
    claim = "GPUs wait 50.0 ns of 1.00 µs per step while nothing runs, and 30.0 ns for ranks with longer pauses"
    assert found.claim == claim


def test_what_is_not_judged_is_priced_by_the_silence_of_the_steps_of_its_run(monkeypatch):
    rows = [
        ("a", "step", "host_silent", 300), ("a", "step", "host_silent", 100), ("a", "step", "host_op", 7),
        ("a", "stage", "host_silent", 300), ("b", "step", "host_silent", 50),
    ]  # fmt: skip
    table = from_rows(("run", "window", "cause", "idle_ns"), rows)
    table = table.with_columns(idle_ns=table.integers("idle_ns"))
    steps = SimpleNamespace(count=2, step_ns=1000.0)
    owners = {("a", "actor"): steps, ("a", "ref"): steps, ("b", "a"): SimpleNamespace(count=5, step_ns=500.0)}
    monkeypatch.setattr(idle, "list_undamaged_rows", lambda *_: table)
    monkeypatch.setattr(idle, "count_gpu_steps", lambda _: owners)
    monkeypatch.setattr(idle, "make_run_heading", lambda _: ("a heading",))
    verdict = idle._price_silence_abstention(None, "a", "why")
    assert (verdict.reason, verdict.run, verdict.price_ns, verdict.price_ratio) == ("why", "a", 100, 0.1)


def test_without_a_device_nothing_is_said_of_gpus(tmp_path):
    path = write(tmp_path / "rank0.json", [step(1, 0, 100), annotation("gen", 0, 100), op("a", 0, 50)])
    for name in ("idle", "syncs", "stage-edges", "launch-queues"):
        shown = section(path, name)
        assert (shown.status, shown.reason) == ("skipped", "no GPU activity was recorded")
    assert {answers(path, name)[0][0] for name in RULES} == {"not applicable"}


def test_a_damaged_file_is_not_judged(tmp_path):
    body = write(tmp_path / "rank0.json", synchronised()).read_bytes()
    (tmp_path / "rank0.json").write_bytes(body[:-40])
    for name in ("idle", "syncs", "stage-edges", "launch-queues"):
        shown = section(tmp_path, name)
        assert (shown.status, shown.findings) == ("skipped", ())
        assert "damaged" in shown.reason


def test_runs_are_judged_each_by_its_own_steps_and_named(tmp_path):
    write(tmp_path / "a/rank0.json", between_stages())
    write(tmp_path / "b/rank0.json", between_stages(29))
    report = result([tmp_path / "a", tmp_path / "b"]).report
    claims = [f.claim for f in report.findings if f.rule in RULES]
    assert claims == [traces_idle.FIRES["stage-edge-idle"].claim + " (run a)"]


def test_an_absurd_duration_does_not_swallow_the_gaps(tmp_path):
    """20 gaps of 3 µs in 2,000: the op is cut at the start of its successor, and takes the first of them alone."""
    rows = [*synchronised(), *launched("corrupt", 5, 10, 10**9, 9000)]
    write(tmp_path / "rank0.json", rows)
    idle = next(m for m in result(tmp_path).report.headline if m.name == "idle_ratio")
    assert idle.value == pytest.approx(57 / 2_000)


NUMBERS = st.sampled_from((0, 1, 7, 100, 20_000, -5, "5", None, 1e18))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.builds(lambda kind, name, ts, dur, key: {
    "ph": "X", "cat": kind, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
    "args": {"correlation": key, "stream": key, "device": 0},
}, st.sampled_from(("kernel", "cuda_runtime", "cpu_op", "cuda_sync", "user_annotation", "overhead")),
   st.sampled_from(("k", "cudaStreamSynchronize", "cudaMemcpy", "gen", "ref", "gc", "Stream Wait Event", "")),
   NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=12))  # fmt: skip
def test_hostile_rows_give_a_section_or_a_reason(tmp_path_factory, rows):
    path = write(tmp_path_factory.mktemp("t") / "rank0.json", rows)
    try:
        shown = analyze_uncached(path, Options(jobs=1, questions=QUESTIONS)).report
    except tracekit.TracekitError:
        return
    mine = [s for s in shown.sections if s.id in ("idle", "syncs", "stage-edges", "launch-queues")]
    assert len(mine) == 4
    assert [(s.id, s.reason) for s in mine if s.status == "failed"] == []
    failed = {f"failed:{s.id}" for s in mine}
    assert [r.message for r in shown.remarks if r.code in failed] == []


@pytest.mark.parametrize("name", ["idle-causes", *RULES])
def test_every_page_names_its_thresholds(name):
    if name != "idle-causes":
        for limit in load_default_thresholds().of(name):
            assert limit in tracekit.analyses.rules.read_rule_page(name)
    assert load_default_thresholds().values[name]


# Real files


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKDOWNS)
def test_the_causes_add_up_to_an_independent_brute_force_on_real_files(name):
    found = result(BREAKDOWNS[name]).measurements
    idle = found["idle"].astype({"window": object, "stage": object})
    capture = idle[idle["window"] == "capture"]
    assert int(capture["idle_ns"].sum()) == round(breakdown_of(name)["idle_us"] * 1000)
    assert int(found["idle_histogram"]["idle_ns"].sum()) == int(capture["idle_ns"].sum())
    by = ["window", "step", "stage"]
    whole = found["gpu_time"].astype({"window": object, "stage": object})
    both = pd.concat(
        [f.groupby(by, dropna=False)["idle_ns"].sum() for f in (idle, whole)], axis=1, keys=("a", "b")
    ).fillna(0)
    assert both["a"].tolist() == both["b"].tolist()
    assert len(found["idle_gaps"]) <= 200


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.parametrize(
    ("workers", "share"), [(0, (0.55, 0.75)), (4, (0.0, 0.02))]
)  # the loader of the one blocks the main thread, that of the other works ahead
def test_the_loader_of_a_real_pair_is_the_cause_only_without_workers(workers, share):
    folder = Path(REAL) / f"chrome/kineto_tb_plugin/samples/resnet50_num_workers_{workers}"
    idle = result(folder).measurements["idle"]
    idle = idle[idle["window"] == "capture"]
    ratio = idle["idle_ns"][idle["cause"] == "host_loader"].sum() / idle["idle_ns"].sum()
    assert share[0] <= ratio <= share[1]
