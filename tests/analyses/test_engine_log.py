"""Rollout engines by their logs: the truths of the made inputs, scrapes, gaps, tails, and silent controls."""

from pathlib import Path

import pytest
from analyses.rl_report import rows, section
from rules.firing import write_sources
from rules.traces_engines import FIRES, vllm

from tracekit.pipeline import analyze

CASES = Path(__file__).parents[1] / "data" / "cases"
RULES = ("kv-preemption", "engine-starved", "engine-queue")


def report(path):
    out = analyze(path, questions=("engine-log", "data-quality"))
    assert section(out, "engine-log").status == "ok"
    return out


def on(tmp_path, *samples, every=10):
    return report(write_sources(tmp_path, vllm(*samples, every=every)))


def fired(found):
    return [finding.rule for finding in found.findings if finding.rule in RULES]


def headline(found):
    return {metric.name: metric.value for metric in found.headline}


def test_the_vllm_case_is_named_a_preemption_thrash_with_the_scrapes_total():
    found = report(CASES / "rl_06_vllm_preemptions")
    assert fired(found) == ["kv-preemption"]
    (finding,) = found.findings
    # 190 is also the counter of the scrape beside the log; 3100 falls to about 1480.
    values = {metric.name: metric.value for metric in finding.evidence}
    assert values["preempted"] == 190
    assert values["kv_ratio"] == pytest.approx(0.998)
    assert values["lost_ratio"] == pytest.approx(1 - 1480 / 3100, abs=0.02)
    assert "max_num_seqs (default 256)" in finding.advice
    assert finding.severity == "high"
    totals = {row["quantity"]: row["last"] for row in rows(found, "engine-log", "engine_totals")}
    assert (totals["preemptions"], totals["generation_tokens"]) == (190, 812_345)


def test_the_sglang_case_is_named_a_retraction_thrash():
    found = report(CASES / "rl_11_sglang_retract")
    assert fired(found) == ["kv-preemption"]
    (finding,) = found.findings
    assert "9 requests retracted" in finding.claim
    # 2600 falls to about 1745.
    lost = next(metric.value for metric in finding.evidence if metric.name == "lost_ratio")
    assert lost == pytest.approx(1 - 1745 / 2600, abs=0.03)
    assert "max_running_requests" in finding.advice


def test_the_first_screen_has_the_engine_and_its_course():
    found = report(CASES / "rl_11_sglang_retract")
    assert "SGLang, 1 engine, 59.0 s" in found.identity
    assert headline(found)["preempted"] == 9
    assert found.overview is not None
    assert found.overview.title == "The engine over time"
    assert "ranks unknown" not in found.identity


def test_a_full_cache_without_preemptions_is_good(tmp_path):
    text = vllm(*[(10, 0, 100, 1000, 0)] * 20, (10, 0, 100, 1000, 1))
    found = report(write_sources(tmp_path, text))
    assert fired(found) == []


def test_a_log_that_never_counts_preemptions_is_not_called_clear(tmp_path):
    found = on(tmp_path, *[(10, 0, 100, 1000, 0)] * 20)
    assert fired(found) == []
    verdicts = {verdict.rule: verdict.reason for verdict in section(found, "engine-log").verdicts}
    assert "counts no preemptions" in verdicts["kv-preemption"]


def test_a_healthy_engine_is_silent(tmp_path):
    found = on(tmp_path, *[(200, 0, 70, 4000, 0), (190, 2, 75, 4100, 0)] * 20)
    assert found.findings == ()
    assert headline(found)["engine_running"] == pytest.approx(195)


def test_the_end_of_every_generation_is_left_out(tmp_path):
    # Two generations of 100 s, 200 s apart: 80 s of 200 requests, then 20 s of 3 requests.
    one = [(200, 0, 60, 4000, 0)] * 8 + [(3, 0, 1, 100, 0)] * 2
    first = vllm(*one)["engine/vllm.log"].decode()
    second = first.replace("10:00:", "10:05:").replace("10:01:", "10:06:")
    found = report(write_sources(tmp_path, {"vllm.log": (first + second).encode()}))
    assert fired(found) == []
    (row,) = rows(found, "engine-log", "engines")
    assert row["samples"] == 20
    # The gap of 200 s is idle: the mean is that of the two generations.
    assert row["running"] == pytest.approx((8 * 200 + 2 * 3) / 10)


def test_the_logged_limit_decides_whether_an_engine_is_starved(tmp_path):
    args = "INFO 09-01 09:59:00 [utils.py:1] non-default args: {'max_num_seqs': 32}\n"
    body = FIRES["engine-starved"].rows["engine/vllm.log"].decode()
    found = report(write_sources(tmp_path, {"vllm.log": (args + body).encode()}))
    assert fired(found) == []  # 10 of 32 are more than a quarter


def scrape(running, preempted, tokens):
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} 0\n'
        f'vllm:kv_cache_usage_perc{{engine="0"}} 0.99\nvllm:num_preemptions_total{{engine="0"}} {preempted}\n'
        f'vllm:generation_tokens_total{{engine="0"}} {tokens}\n'
    )


def test_two_timed_scrapes_give_rates_and_one_gives_totals_only(tmp_path):
    both = "".join(f"{1_756_720_800 + 10 * n}\n{scrape(5, 3 * n, 20_000 * n)}" for n in range(6))
    found = report(write_sources(tmp_path / "many", {"metrics.prom": both.encode()}))
    assert headline(found)["engine_generation_tokens_per_s"] == pytest.approx(2000)
    assert headline(found)["preempted"] == 15
    assert fired(found) == ["kv-preemption"]
    one = report(write_sources(tmp_path / "one", {"metrics.prom": scrape(5, 15, 7).encode()}))
    assert "engine_generation_tokens_per_s" not in headline(one)
    assert fired(one) == []


def test_a_counter_that_falls_was_reset(tmp_path):
    texts = [scrape(5, preempted, 1) for preempted in (10, 14, 3)]
    found = report(write_sources(tmp_path, {"metrics.prom": "".join(texts).encode()}))
    assert headline(found)["preempted"] == 4 + 3


def test_gpus_of_a_machine_have_a_row_each(tmp_path):
    text = (
        "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
        "2026/09/01 10:00:00.123, 0, 90 %, 1024 MiB\n2026/09/01 10:00:01.123, 0, 50 %, 3072 MiB\n"
        "2026/09/01 10:00:01.124, 1, [N/A], 100 MiB\n"
    )
    found = report(write_sources(tmp_path, {"smi.csv": text.encode()}))
    first, second = rows(found, "engine-log", "machine_gpus")
    assert (first["GPU"], first["busy"], first["least busy"]) == ("GPU 0", pytest.approx(0.7), 0.5)
    assert (first["memory used"], first["most"]) == (2 * 2**30, 3 * 2**30)
    assert second["busy"] is None
    assert found.findings == ()


def test_processes_of_gpus_have_a_row_each(tmp_path):
    """python is sampled at 80 and 90 % of time and not at all in between; its memory is 1,024, 1,024 and 3,072 MiB."""
    text = "# gpu         pid   type     sm    mem     fb   ccpm    command\n# Idx           #    C/G      %      %     MB     MB    name\n"
    for busy, size in (("80", 1024), ("-", 1024), ("90", 3072)):
        text += f"    0        5678     C     {busy:>2}     40   {size}      0    python\n"
        text += "    0        1234     G      -      -     97      0    chrome --type=g\n    1           -     -      -      -      -      -    -\n"
    found = report(write_sources(tmp_path, {"pmon.txt": text.encode()}))
    first, second = rows(found, "engine-log", "machine_processes")
    assert (first["GPU and process"], first["samples"], first["active"]) == ("GPU 0, python 5678", 3, 2)
    assert (first["busy"], first["most busy"]) == (pytest.approx(0.85), pytest.approx(0.9))
    assert (first["memory used"], first["most"]) == (pytest.approx(5120 / 3 * 2**20), 3 * 2**30)
    assert (second["GPU and process"], second["busy"]) == ("GPU 0, chrome --type=g 1234", None)
    assert found.findings == ()
    assert not any(sheet.name == "machine_gpus" for part in found.sections for sheet in part.sheets)
