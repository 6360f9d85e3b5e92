"""Several logs per side: seeds in one directory, restarts, copies; the pooled verdict is by run."""

import json

import numpy as np
import pytest

from tracekit.job.log_files import group_log_files
from tracekit.model.tables.frame import Frame, from_rows
from tracekit.pipeline.comparing import compare_paths, read_step_logs
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

ONE = Options(jobs=1)


def write_log(path, seed, *, steps=40, first=1, shift=0.0, slower=1.0, gpus=8, run_noise=0.01):
    """A log whose step takes 60 s and 0.06 s per token of the mean answer, plus noise of the run and of its steps."""
    rng = np.random.default_rng(seed)
    level = slower * (1 + rng.normal(0, run_noise))
    lines = []
    for step in range(first, first + steps):
        length = 1_200 + shift + 500 * (step - first) / steps + rng.normal(0, 60)
        gen, train = (0.04 * length + 20) * level, (0.02 * length + 40) * level * (1 + rng.normal(0, 0.01))
        total, tokens = gen + train, 256 * (length + 300)
        data = {
            "timing_s/gen": gen, "timing_s/update_actor": train, "timing_s/step": total, "perf/time_per_step": total,
            "perf/total_num_tokens": tokens, "perf/throughput": tokens / total / gpus,
            "response_length/mean": length, "prompt_length/mean": 300.0, "training/global_step": step,
        }  # fmt: skip
        lines.append(json.dumps({"step": step, "data": data}) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


def write_side(folder, seeds, **facts):
    for seed in seeds:
        write_log(folder / f"seed{seed}" / "metrics.jsonl", seed, **facts)
    return folder


def compare(before, after):
    return compare_paths([before], [after], ONE).comparison


def test_longer_answers_of_the_same_code_are_not_slower(tmp_path):
    found = compare(
        write_side(tmp_path / "a", range(3), run_noise=0.003),
        write_side(tmp_path / "b", range(3, 6), shift=250, run_noise=0.003),
    )
    assert found.verdict == "no change"
    step = found.lengths.changes[0]
    assert step.raw > 0.09
    assert step.per_token < -0.03
    assert abs(step.change) < 0.02
    assert step.low < step.change < step.high
    assert found.lengths.by_run


def test_slower_training_of_three_seeds_is_found_by_run(tmp_path):
    before, after = write_side(tmp_path / "a", range(4)), write_side(tmp_path / "b", range(4, 8), slower=1.1)
    found = compare(before, after)
    assert found.verdict == "regression"
    assert found.lengths.changes[0].word == "regression"
    assert found.lengths.changes[0].change == pytest.approx(0.1, abs=0.02)
    assert [(log.side, log.run) for log in found.logs] == [
        (side, f"{side}/seed{seed}") for side, seeds in (("a", range(4)), ("b", range(4, 8))) for seed in seeds
    ]
    assert {log.gpus for log in found.logs} == {8}
    for log in found.logs:
        assert log.at_equal_length == pytest.approx(log.step, rel=0.1)
    sheet = next(s for section in found.report().sections for s in section.sheets if s.name == "logs")
    assert len(sheet.rows) == 8


def test_lengths_that_hardly_overlap_give_no_verdict(tmp_path):
    before, after = write_side(tmp_path / "a", range(4)), write_side(tmp_path / "b", range(4, 8), shift=900, slower=0.8)
    found = compare(before, after)
    assert found.lengths.overlap < 0.05
    assert found.verdict == "not comparable"
    assert {change.word for change in found.lengths.changes} == {"not comparable"}


def test_logs_of_one_side_with_other_gpus_are_not_comparable(tmp_path):
    before = write_side(tmp_path / "a", range(2))
    write_log(before / "seed9" / "metrics.jsonl", 9, gpus=16)
    found = compare(before, write_side(tmp_path / "b", range(4, 7)))
    assert found.verdict == "not comparable"
    assert ("gpus", "16, 8", "8") in [(one.name, one.base, one.opt) for one in found.differences]


def test_seeds_in_one_directory_are_runs(tmp_path):
    for seed in range(3):
        write_log(tmp_path / "runs" / f"seed{seed}.jsonl", seed)
    report = analyze_uncached(tmp_path / "runs", ONE).report
    assert "each 40 steps" in report.identity[1]
    assert [heading.title for heading in report.overview.headings[1:]] == ["seed0", "seed1", "seed2"]
    assert any("shown as 3 runs (seed0, seed1, seed2)" in remark.message for remark in report.remarks)
    assert len(read_step_logs([tmp_path / "runs"], ONE)) == 3


def test_a_copy_of_a_log_counts_once(tmp_path):
    write_log(tmp_path / "a" / "metrics.jsonl", 1)
    rows = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    printed = (f"step:{row['step']} - " + " - ".join(f"{k}:{v:.3f}" for k, v in row["data"].items()) for row in rows)
    (tmp_path / "a" / "train.log").write_text("".join(f"(TaskRunner pid=1) {line}\n" for line in printed))
    (log,) = read_step_logs([tmp_path / "a"], ONE)
    assert log.logged.counted.steady_count == 37


def test_a_restart_with_its_own_file_is_a_part(tmp_path):
    write_log(tmp_path / "a" / "first.jsonl", 1, steps=30)
    write_log(tmp_path / "a" / "second.jsonl", 2, steps=30, first=26)
    result = analyze_uncached(tmp_path / "a", ONE)
    (log,) = read_step_logs([tmp_path / "a"], ONE)
    assert log.logged.log.part.tolist() == [0] * 25 + [1] * 30
    # The first 3 steps of each start warm up; steps 26 to 30 of the first ran again.
    assert log.logged.counted.steady_count == 49
    assert any("starts of one run" in remark.message for remark in result.report.remarks)
    assert not any("were not used" in caveat for section in result.report.sections for caveat in section.caveats)


def rows_of(**files):
    """Rows of a file: its steps, and a value in each."""
    return from_rows(
        ("source", "part", "step", "name", "value"),
        [
            (source, 0, step, "timing_s/step", float(value))
            for source, values in files.items()
            for step, value in values.items()
        ],
    )


@pytest.mark.parametrize(
    ("second", "groups"),
    [
        ({step: step for step in range(1, 9)}, [["a", "b"]]),  # a copy
        ({step: step + 1 for step in range(1, 11)}, [["a"], ["b"]]),  # another seed
        ({step: step + 1 for step in range(9, 30)}, [["a", "b"]]),  # a restart that repeats two steps
        ({step: step for step in range(11, 20)}, [["a", "b"]]),  # a continuation
        ({step: step + 1 for step in range(4, 11)}, [["a"], ["b"]]),  # most steps in common: no restart
    ],
)
def test_files_are_related_by_their_values(second, groups):
    rows: Frame = rows_of(a={step: step for step in range(1, 11)}, b=second)
    assert [group.sources for group in group_log_files(rows)] == groups


def test_event_files_of_one_directory_are_one_run():
    first = {step: step for step in range(1, 11)}
    rows = rows_of(
        **{"events.out.tfevents.2.host": {s: v + 1 for s, v in first.items()}, "events.out.tfevents.1.host": first}
    )
    (group,) = group_log_files(rows)
    assert group.parts == ["events.out.tfevents.1.host", "events.out.tfevents.2.host"]
