"""Logs of rollout engines on both sides: throughput, requests, KV cache and preemptions, with intervals and gates."""

import random

import pytest

from tracekit.cli import main
from tracekit.model.stats.differences import compare_means
from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.options import Options

ONE = Options(jobs=1)
CONFIG = "INFO 11-20 10:00:00 [core.py:58] Initializing a V1 LLM engine (v0.11.0) with config: x=1"


def write_vllm(path, seed, throughput=2000.0, preempted=0.0, lines=60, settings=""):
    """Statistics every 10 s; each window has preemptions with the probability `preempted`, 2 on average."""
    rng = random.Random(seed)
    level, away = 1 + rng.gauss(0, 0.004), 0.0
    rows = [f"INFO 11-20 10:00:00 non-default args: {{'max_num_seqs': {settings}}}"] if settings else []
    for at in range(lines):
        away = 0.5 * away + rng.gauss(0, 0.02)
        clock = f"{10 + at // 360:02d}:{at // 6 % 60:02d}:{at % 6 * 10:02d}"
        count = rng.randint(1, 3) if rng.random() < preempted else 0
        rows.append(
            f"(APIServer pid=12) INFO 11-20 {clock} [loggers.py:127] Engine 000: Avg prompt throughput: 150.0 tokens/s, "
            f"Avg generation throughput: {throughput * level * (1 + away):.1f} tokens/s, Running: {rng.randint(60, 70)} reqs, "
            f"Waiting: {rng.randint(0, 9)} reqs, Preemptions: {count}, GPU KV cache usage: {60 + rng.random():.1f}%, "
            "Prefix cache hit rate: 40.0%"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n")
    return path


def write_side(folder, first, runs=4, **facts):
    for number in range(runs):
        write_vllm(folder / f"run{number}" / "vllm.log", first + number, **facts)
    return folder


def changes_of(before, after):
    comparison = compare_paths([before], [after], ONE).comparison
    return comparison, {change.name: change for change in comparison.changes}


def test_faster_engines_with_preemptions_are_found_by_run(tmp_path):
    before, after = write_side(tmp_path / "a", 1), write_side(tmp_path / "b", 11, throughput=2200, preempted=0.5)
    found, changes = changes_of(before, after)
    assert found.verdict == "improvement"
    assert found.headline.name == "engine_throughput"
    throughput = changes["engine_throughput"]
    assert 1 / throughput.ratio - 1 == pytest.approx(0.1, abs=0.015)
    assert throughput.difference_low < 200 < throughput.difference_high
    preempted = changes["engine_preemptions"]
    # Half of the windows of 10 s have 2 preemptions: 6 per minute.
    assert (preempted.base, preempted.word) == (0.0, "regression")
    assert preempted.difference_low < 6 < preempted.difference_high
    assert changes["engine_waiting"].word in ("inconclusive", "no change")
    assert changes["engine_running"].word == "no change"
    text = found.report().answer
    assert "faster: +10 %" in text or "+1" in text
    assert found.report().overview.title == "Rollout engines"


def test_equal_engines_have_no_verdict_of_faster(tmp_path):
    words = set()
    for seed in range(5):
        found, _ = changes_of(
            write_side(tmp_path / f"a{seed}", 100 * seed), write_side(tmp_path / f"b{seed}", 100 * seed + 50)
        )
        words.add(found.verdict)
    assert words <= {"no change", "inconclusive"}


def test_one_log_per_side_gives_the_interval_without_a_verdict(tmp_path):
    found, changes = changes_of(
        write_vllm(tmp_path / "a" / "vllm.log", 1), write_vllm(tmp_path / "b" / "vllm.log", 2, throughput=2400)
    )
    assert found.verdict == "inconclusive"
    assert changes["engine_throughput"].difference_low > 300
    assert any("same requests" in warning for warning in found.warnings)


def test_a_setting_that_differs_is_named(tmp_path):
    before = write_side(tmp_path / "a", 1, runs=2, settings="256")
    after = write_side(tmp_path / "b", 5, runs=2, settings="512")
    found, _ = changes_of(before, after)
    assert ("max_num_seqs", "256", "512") in [(one.name, one.base, one.opt) for one in found.differences]


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ("engine.throughput>5%", 0),
        ("engine.preemptions>3", 1),
        ("engine.preemptions>20", 0),
        ("engine.waiting>4", 0),
        ("engine.kv_cache>5%", 0),
    ],
)
def test_gates_on_engines(tmp_path, capsys, rule, status):
    before, after = write_side(tmp_path / "a", 1), write_side(tmp_path / "b", 11, throughput=2200, preempted=0.5)
    arguments = ["compare", str(before), str(after), "--fail-on", rule, "--jobs", "1", "--isolated"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status, capsys.readouterr()


def test_slower_engines_fail_a_gate(tmp_path):
    before, after = write_side(tmp_path / "a", 1), write_side(tmp_path / "b", 11, throughput=1600)
    arguments = ["compare", str(before), str(after), "--fail-on", "engine.throughput>5%", "--jobs", "1", "--isolated"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1


def test_engines_next_to_training_logs_are_further_rows(tmp_path):
    from compare.test_several_logs import write_log

    for number in range(2):
        for side in "ab":
            write_log(tmp_path / side / f"run{number}" / "metrics.jsonl", number + 10 * (side == "b"))
            write_vllm(tmp_path / side / f"run{number}" / "vllm.log", number + 5 * (side == "b"))
    found, changes = changes_of(tmp_path / "a", tmp_path / "b")
    assert found.headline.name == "unprofiled_step_time"
    assert changes["engine_throughput"].base_runs == 2
    titles = [sheet.title for section in found.report().sections for sheet in section.sheets]
    assert "Rollout engines" in titles


def test_a_difference_from_zero_has_an_interval():
    # By hand: runs' means 0 and 0, 4 and 6: difference 5, error 1, one degree of freedom: 5 ± 12.706.
    found = compare_means([[0.0], [0.0]], [[4.0], [6.0]])
    assert (found.base, found.opt, found.difference) == (0.0, 5.0, 5.0)
    assert (found.low, found.high) == pytest.approx((5 - 12.7062, 5 + 12.7062), abs=1e-3)
