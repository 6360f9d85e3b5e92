"""Counters that nsys sampled: their levels by stage and over time; shares of SM and tensor activity are compared."""

from pathlib import Path

import nsys_builder as nsys
import pytest
from made_tables import make_measured

import tracekit
from tracekit.analyses import load_default_thresholds
from tracekit.analyses.trust import counters
from tracekit.model.trace import Source

QUESTIONS = ("counters", "steps")

SM, TENSOR, PCIE = "SMs Active [Throughput %]", "Tensor Active [Throughput %]", "PCIe RX [Bytes]"
NAMES = (SM, TENSOR, PCIE)
SAMPLES = {SM: [(5, 20), (25, 20), (45, 80), (65, 100), (90, 0)], TENSOR: [(45, 30), (65, 50)], PCIE: [(45, 12345)]}


def recording(path, *, top=100, gpu=0, annotated=True, names=NAMES):
    """gen at 20 % twice, update_actor at 80 % and `top` %, nothing at all after it; times in µs."""
    stages = [
        nsys.nvtx("step 1", 0, 100_000), nsys.nvtx("generate_sequences", 0, 40_000),
        nsys.nvtx("update_actor", 40_000, 80_000),
    ]  # fmt: skip
    rows = [
        *(stages if annotated else ()), *nsys.launched("gemm", 41_000, 44_000, 60_000, 1, device=gpu),
        *(nsys.metric_name(name, number, gpu=gpu) for number, name in enumerate(NAMES)),
    ]  # fmt: skip
    for name in names:
        for at, value in SAMPLES[name]:
            seen = top if (name, at) == (SM, 65) else value
            rows.append(nsys.metric(at * 1000, NAMES.index(name), seen, gpu=gpu))
    return nsys.write(path, rows, schema="3.11", duration_ns=200_000)


@pytest.fixture
def report(tmp_path):
    recording(tmp_path / "worker_process_100.sqlite")
    return tracekit.analyze(tmp_path, questions=QUESTIONS)


def section(report):
    return next((s for s in report.sections if s.id == "counters"), None)


def rows(report, name):
    table = next(s for s in section(report).sheets if s.name == name)
    return [dict(zip([h.name for h in table.headings], row, strict=True)) for row in table.rows]


def test_a_counter_has_the_mean_and_the_highest_of_its_samples(report):
    found = {row["name"]: row for row in rows(report, "counters")}
    sm = found[f"GPU 0 {SM}"]
    assert sm["mean"] == pytest.approx(44)
    assert (sm["max"], sm["sample_count"], sm["zero_ratio"]) == (100, 5, 0.2)
    assert found[f"GPU 0 {PCIE}"]["mean"] == 12345


def test_stages_have_their_own_levels_under_their_known_names(report):
    found = {(row["canonical"], row["name"]): row["mean"] for row in rows(report, "counters_by_stage")}
    gpu_sm, gpu_tensor = f"GPU 0 {SM}", f"GPU 0 {TENSOR}"
    assert found == {
        ("gen", gpu_sm): 20, ("update_actor", gpu_sm): 90, ("update_actor", gpu_tensor): 40,
    }  # fmt: skip


def test_the_activity_of_sms_and_tensor_cores_is_told_as_a_share(report):
    found = {metric.name: metric.value for metric in section(report).metrics}
    assert found == {"sm_active": pytest.approx(0.44), "tensor_active": pytest.approx(0.40)}


def test_counters_are_shown_where_none_of_them_is_activity_of_the_gpu(tmp_path):
    path = recording(tmp_path / "worker_process_100.sqlite", names=(PCIE,))
    report = tracekit.analyze(path, questions=QUESTIONS)
    assert [row["mean"] for row in rows(report, "counters")] == [12345]
    assert (section(report).metrics, section(report).charts) == ((), ())


def test_the_curve_of_a_short_recording_is_its_samples(report):
    chart = next(c for c in section(report).charts if c.id == "counter-sm_active")
    assert [mark[2] for mark in chart.marks] == [20, 20, 80, 100, 0]
    assert len(chart.series) == 1
    assert chart.series[0].endswith(SM)


def test_shares_are_compared_step_by_step(tmp_path):
    """Per step 44 % and 32 % of SMs active, the same in both runs of a side."""
    for side, top in (("base", 100), ("opt", 40)):
        for run in range(2):
            recording(tmp_path / side / f"run{run}" / "worker_process_100.sqlite", top=top)
    result = tracekit.compare(tmp_path / "base", tmp_path / "opt")
    text = tracekit.render(result, "md")
    row = next(line for line in text.splitlines() if "SMs active" in line)
    assert "44.0 %" in row
    assert "32.0 %" in row


def test_without_nsys_the_question_does_not_arise_and_without_samples_it_says_how_to_take_some(tmp_path):
    plain = nsys.write(tmp_path / "worker_process_1.sqlite", [nsys.nvtx("gen", 0, 10)], duration_ns=100)
    found = section(tracekit.analyze(plain, questions=QUESTIONS))
    assert (found.status, "--gpu-metrics" in found.reason) == ("skipped", True)
    assert section(tracekit.analyze("examples/verl_cpu/outputs/profile", questions=QUESTIONS)) is None


SOURCES = (Source(Path("a.sqlite"), "a.sqlite", "nsys", "nsys"),)
OF_A = {"run": "r", "source": "a.sqlite", "host": "node1", "pid": 1}


def level(name, count, total, most, zeros=0, **more):
    """A row of `counter_levels` of a whole recording."""
    return {**OF_A, "name": name, "sample_count": count, "sum": total, "max": most, "zero_count": zeros} | more


def judged(levels=(), curve=(), captures=(OF_A,), sources=SOURCES):
    tables = {"counter_levels": list(levels), "captures": [{"absolute_time": True, **of} for of in captures]}
    measured = make_measured(sources, **tables, counter_curve=[{**OF_A, **row} for row in curve])
    return counters.judge(measured, load_default_thresholds())


def cells(found, name):
    table = next(s for s in found.sheets if s.name == name)
    return [dict(zip([h.name for h in table.headings], row, strict=True)) for row in table.rows]


def test_samples_of_all_processes_have_the_same_weight():
    """3 samples of 90 in all and one of 10: 25 on average, one of four at 0."""
    rows = [level(SM, 3, 90, 60, 1), level(SM, 1, 10, 10, pid=2), level(PCIE, 2, 5, 4)]
    steps = [level(SM, 9, 9, 9, window="step", step=1)]
    found = judged(rows + steps)
    assert cells(found, "counters") == [
        {"name": PCIE, "mean": 2.5, "max": 4, "zero_ratio": 0, "sample_count": 2},
        {"name": SM, "mean": 25, "max": 60, "zero_ratio": 0.25, "sample_count": 4},
    ]
    (metric,) = found.metrics
    assert (metric.name, metric.value, metric.unit, metric.better) == ("sm_active", 0.25, "ratio", "higher")
    assert metric.label == "sm active"
    assert [sheet.name for sheet in found.sheets] == ["counters"]
    assert found.charts == ()


def test_activity_is_averaged_over_the_gpus_of_a_run_and_told_of_each_run():
    names = [f"GPU {gpu} {SM}" for gpu in (0, 1)]
    rows = [level(name, 2, 2 * mean, mean, run=run) for run, means in (("b", (10, 30)), ("a", (50, 70)))
            for name, mean in zip(names, means, strict=True)]  # fmt: skip
    rows.append(level("GPU 0 DRAM Read Bandwidth", 2, 4, 2, run="a"))
    found = judged(rows, captures=[OF_A | {"run": run} for run in ("a", "b")])
    assert [(metric.label, metric.value) for metric in found.metrics] == [
        ("sm active (run a)", 0.6), ("sm active (run b)", 0.2),
    ]  # fmt: skip


def test_stages_of_one_kind_are_one_row_and_unknown_counters_have_none():
    rows = [level(SM, 1, 50, 50)]
    rows += [level(SM, 1, mean, mean, window="stage", stage=stage, step=1) for stage, mean in
             (("update_actor", 80), ("actor_update", 40), ("gen", 10), ("mini_batch 3", 5))]  # fmt: skip
    rows += [level(PCIE, 1, 10, 10, window="stage", stage="gen", step=1)]
    found = cells(judged(rows), "counters_by_stage")
    assert [(row["canonical"], row["name"], row["mean"], row["max"]) for row in found] == [
        ("gen", SM, 10, 10), ("mini_batch 3", SM, 5, 5), ("update_actor", SM, 60, 80),
    ]  # fmt: skip


def curve(name, *points, **more):
    return [{"name": name, "ts_ns": ts, "mean": mean, **more} for ts, mean in points]


def test_a_chart_has_a_line_per_gpu_on_one_clock():
    """The second GPU was sampled 50 ns later."""
    rows = curve(f"GPU 1 {SM}", (150, 7), (250, 8)) + curve(f"GPU 0 {SM}", (100, 5), (200, 6))
    rows += curve(f"GPU 0 {TENSOR}", (120, 1)) + curve(PCIE, (100, 9))
    sm, tensor = judged([level(SM, 1, 1, 1)], rows).charts
    assert sm.marks == ((0, 0, 5), (0, 100, 6), (1, 50, 7), (1, 150, 8))
    assert sm.series == (f"node1 GPU 0 {SM}", f"node1 GPU 1 {SM}")
    assert (sm.id, sm.title, sm.omitted) == ("counter-sm_active", "sm active over time", 0)
    assert sm.caption == "Mean of each stretch of time, in the counter's own unit."
    assert (tensor.id, tensor.marks) == ("counter-tensor_active", ((0, 0, 1),))


def test_lines_on_clocks_of_their_own_begin_at_zero():
    rows = curve(f"GPU 1 {SM}", (150, 7), (250, 8)) + curve(f"GPU 0 {SM}", (100, 5), (200, 6))
    (chart,) = judged([level(SM, 1, 1, 1)], rows, captures=[{**OF_A, "absolute_time": False}]).charts
    assert chart.marks == ((0, 0, 5), (0, 100, 6), (1, 0, 7), (1, 100, 8))
    assert chart.caption.endswith("Clocks cannot be compared: every line starts at its own zero.")


def test_lines_are_named_by_their_run_where_there_are_several():
    rows = curve(SM, (1, 5), run="a") + curve(SM, (1, 6), run="b", host=None)
    (chart,) = judged([level(SM, 1, 1, 1)], rows, captures=[OF_A | {"run": run} for run in ("a", "b")]).charts
    assert chart.series == (f"a node1 {SM}", f"b {SM}")


def test_at_most_twelve_lines_are_drawn_and_the_points_of_others_are_counted():
    rows = [row for gpu in range(14) for row in curve(f"GPU {gpu:02} {SM}", (1, 5), (2, 5), (3, 5))]
    (chart,) = judged([level(SM, 1, 1, 1)], rows).charts
    assert (len(chart.series), len(chart.marks), chart.omitted) == (12, 36, 6)


def test_a_source_of_nsys_among_others_is_enough():
    torch = Source(Path("b.json"), "b.json", "chrome")
    assert judged(sources=(torch,)) is None
    assert judged(sources=(torch, *SOURCES)).status == "skipped"
