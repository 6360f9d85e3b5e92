"""Facts of several runs in the first lines: GPUs of each run, and the run of a step that does not count."""

import chrome_builder as chrome
import pytest

from tracekit.job.steps.warm_up import DroppedStep
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached
from tracekit.pipeline.summary.screen import explain_left_out_steps
from tracekit.render import render

WARM, CUT = "warm-up step", "cut off"


@pytest.mark.parametrize(
    ("left_out", "runs", "text"),
    [
        ([("a", 1, WARM), ("a", 6, CUT)], ["a"], "1: warm-up step; 6: cut off"),
        ([("a", 1, WARM), ("b", 1, WARM)], ["a", "b"], "1: warm-up step"),
        ([("a", 1, WARM)], ["a", "b"], "1 in a: warm-up step"),
        ([("a", 1, WARM), ("b", 1, WARM), ("b", 2, WARM)], ["a", "b"], "1: warm-up step; 2 in b: warm-up step"),
        ([(run, 3, CUT) for run in "abcd"], list("abcde"), "3 in a, b, c …: cut off"),
    ],
)
def test_a_step_that_does_not_count_is_named_with_its_run(left_out, runs, text):
    dropped = [DroppedStep(run, step, None, reason) for run, step, reason in left_out]
    assert explain_left_out_steps(dropped, runs) == text


@pytest.mark.parametrize(("devices", "text"), [((1, 1), "1 × GPU per run"), ((1, 3), "1–3 × GPU per run")])
def test_the_gpus_of_several_runs_are_counted_per_run(tmp_path, devices, text):
    for number, count in enumerate(devices):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        for rank in range(count):
            rows = [chrome.step(1, 0, 90), *chrome.launched("gemm", 5, 10, 20, 1)]
            chrome.write(folder / f"rank{rank}.json", rows, rank=rank, world_size=count)
    report = analyze_uncached([tmp_path / "run0", tmp_path / "run1"], Options(questions=("gpu-time", "kernels")))
    assert text in report.report.identity


@pytest.mark.parametrize(
    ("worlds", "text"), [((4, 4), "ranks 0, 2 of 4"), ((2, 2), "ranks 0, 2"), ((4, 2), "ranks 0, 2")]
)
def test_no_rank_is_beyond_the_number_of_ranks(tmp_path, worlds, text):
    for rank, world in zip((0, 2), worlds, strict=True):
        chrome.write(tmp_path / f"rank{rank}.json", [chrome.step(1, 0, 90)], rank=rank, world_size=world)
    assert text in analyze_uncached(tmp_path, Options(questions=("gpu-time",))).report.identity


def test_tables_of_total_times_name_what_they_cover(tmp_path):
    rows = [chrome.step(1, 0, 90), chrome.op("aten::mm", 1, 50), *chrome.launched("gemm", 5, 10, 20, 1)]
    chrome.write(tmp_path / "rank0.json", rows, rank=0)
    report = analyze_uncached(tmp_path, Options(questions=("kernels", "operators"))).report
    text = render(report, "text", width=200, verbose=True)
    assert "Whole recording, warm-up included. Share: of the summed time of all device ops." in text
    assert "Whole recording, warm-up included. Share: of the own time of all host ops." in text
