"""Counters that nsys sampled: their levels by stage and over time; shares of SM and tensor activity are compared."""

import nsys_builder as nsys
import pytest

import tracekit

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
