"""Rollout engines: what annotations say, running batches, tails, pace and replicas; findings R11, R12, R16."""

import os
from pathlib import Path

import pytest
from chrome_builder import annotation, kernel, launched, op, step, text, write
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.firing import write_sources
from rules.traces_rollout import FIRES, NEAR_MISSES, engine, falling, replicas, slow_first

import tracekit
from tracekit.analyses.rl import rollout
from tracekit.job.engines.rollout_generations import list_generations
from tracekit.model.tables.arrays import Columns
from tracekit.pipeline import run as pipeline
from tracekit.process import engine_iterations as derived

QUESTIONS = ("rollout",)

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def analyze(path, questions=QUESTIONS):
    return pipeline.analyze_uncached(path, pipeline.Options(jobs=1, questions=questions))


def frame_of(trace, table):
    """A measured table of one process as a frame."""
    arrays = rollout.measure(trace)[table]
    return Columns(len(arrays["ts_ns"]), arrays).frame()


def section(tmp_path, files):
    result = analyze(write_sources(tmp_path, files))
    return next(s for s in result.report.sections if s.id == "rollout")


def sheet(found, name):
    one = next(s for s in found.sheets if s.name == name)
    columns = [heading.name for heading in one.headings]
    return [dict(zip(columns, cells, strict=True)) for cells in one.rows]


def found_in(tmp_path, files):
    return list_generations(analyze(write_sources(tmp_path, files)).measurements)


def test_of_two_spellings_within_one_another_the_outer_counts(tmp_path):
    rows = [
        annotation("execute_32_context_0(sq0)_generation_32(sq32)", 0, 100),
        annotation("step[DECODE bs=32]", 10, 80),
    ]
    (one,) = found_in(tmp_path, rows)
    assert (one.iterations, one.tokens) == (1, 32)


# Times


def test_an_iteration_lasts_until_the_next_and_the_last_until_its_work_ends(tmp_path):
    """Starts 0, 40, 100; the last range ends at 130, the kernel launched in it at 175."""
    rows = [
        *(annotation("execute_context_0(0)_generation_4(4)", at, 30) for at in (0, 40, 100)),
        *launched("k", 110, 150, 25, 1),
        *launched("late", 140, 180, 90, 2),  # launched after it: no work of an iteration
    ]
    trace = tracekit.load(write(tmp_path / "rank0.json", rows))
    table = frame_of(trace, "iterations")
    assert table["pace_ns"].tolist() == [40_000, 60_000, 75_000]
    assert table["busy_ns"].tolist() == [0, 0, 25_000]
    spans = frame_of(trace, "generations")
    assert spans["dur_ns"].tolist() == [175_000]
    assert spans["longest_pause_ns"].tolist() == [30_000]


def test_without_a_gpu_its_time_is_unknown_and_not_nothing(tmp_path):
    found = section(tmp_path, falling(40))
    (row,) = sheet(found, "rollout_engines")
    assert "prefill_ratio" not in row
    assert any("no GPU activity" in caveat for caveat in found.caveats)


def test_prefill_and_decode_share_the_gpu_time(tmp_path):
    """A prefill that launches 30 and three decodes that launch 10 each: half of the GPU's time."""
    rows = engine([(2, 0, 50), (0, 8, 20), (0, 8, 20), (0, 8, 20)])
    for number, (at, dur) in enumerate(((5, 30), (55, 10), (75, 10), (95, 10)), start=1):
        rows += launched("k", at, at + 1, dur, number)
    (row,) = sheet(section(tmp_path, rows), "rollout_engines")
    assert row["prefill_ratio"] == 0.5
    assert row["prefill_time"] == 50 / 110
    assert (row["iterations"], row["peak"], row["pace_ns"]) == (4, 8, 20_000)
    assert row["tokens_per_s"] == pytest.approx(24 / 110e-6)


def test_steps_of_one_source_are_generations_of_their_own(tmp_path):
    """The time between the two steps belongs to none."""
    rows = [step(1, 0, 100), step(2, 1000, 100), *engine([(0, 4, 10)] * 5, 10)]
    rows += engine([(0, 4, 10)] * 7, 1010)
    found = found_in(tmp_path, rows)
    assert [(g.unit[2], g.iterations, g.dur_ns) for g in found] == [(1, 5, 50_000), (2, 7, 70_000)]


def test_a_profiler_that_counts_iterations_does_not_divide_a_generation(tmp_path):
    rows = [row for n in range(6) for row in (step(n, n * 10, 10), *engine([(0, 4, 8)], n * 10 + 1))]
    (one,) = found_in(tmp_path, rows)
    assert (one.iterations, one.unit[2]) == (6, None)


def test_very_many_iterations_are_joined_and_nothing_is_lost(tmp_path, monkeypatch):
    shape = [(1, 0, 9), *[(0, 8, 10)] * 40, *[(1, 8, 12), (0, 4, 10)] * 20]
    trace = tracekit.load(write(tmp_path / "rank0.json", engine(shape)))
    whole = frame_of(trace, "iterations")
    monkeypatch.setattr(derived, "MAX_ITERATIONS", 10)
    fewer = frame_of(trace, "iterations")
    assert len(whole) == len(shape)
    assert len(fewer) <= 2 * 10 + 2
    for prefill in (True, False):
        a, b = whole[whole["prefill"] == prefill], fewer[fewer["prefill"] == prefill]
        for name in ("count", "dur_ns", "pace_ns", "prefill_tokens", "decode_tokens"):
            assert a[name].sum() == b[name].sum()


# Tails


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 50)), min_size=1, max_size=30))  # fmt: skip
def test_shares_are_shares_and_what_is_saved_is_part_of_the_generation(tmp_path_factory, shape):
    (one,) = found_in(tmp_path_factory.mktemp("t"), engine(shape))
    assert one.dur_ns == 1000 * sum(dur for _, _, dur in shape)
    assert one.tokens == sum(running for _, running, _ in shape)
    for ratio in (one.tail_ratio, one.low_ratio):
        assert ratio is None or 0 <= ratio <= 1
    assert 0 <= one.gain_ns <= one.dur_ns


def test_a_steady_batch_needs_a_tenth_of_the_time_for_a_tenth_of_its_tokens(tmp_path):
    (one,) = found_in(tmp_path, engine([(0, 16, 10)] * 37))
    assert one.tail_ratio == pytest.approx(0.1)
    assert (one.low_ns, one.gain_ns) == (0, 0)


def test_low_batches_alone_make_a_tail_too(tmp_path):
    """70 iterations of 100, then 30 of 24: below a quarter, and 720 of 7720 tokens are less than a tenth.

    The last 772 tokens take 300 and 52 / 100 of an iteration of 10: 30.05 % of the generation.
    """
    rows = engine([(0, 100, 10)] * 70 + [(0, 24, 10)] * 30)
    (found,) = section(tmp_path, rows).findings
    values = {m.name: m.value for m in found.evidence}
    assert values["low_batch_ratio"] == 0.3
    assert values["tail_ratio"] == pytest.approx(0.3052)


def test_fewer_requests_at_the_end_are_counted_as_a_tail_below_half_of_the_largest_batch(tmp_path):
    """5120 and 192 tokens in 840, then 120 in 300: at the rate of the others these take 120 * 840 / 5312."""
    rows = engine([(0, 64, 10)] * 80 + [(0, 48, 10)] * 4 + [(0, 4, 10)] * 30)
    (finding,) = section(tmp_path, rows).findings
    assert finding.cost_ns == round((300 - 120 * 840 / 5312) * 1000)


def test_a_quarter_of_the_largest_batch_is_not_low(tmp_path):
    (one,) = found_in(tmp_path, engine([(0, 100, 10)] * 70 + [(0, 25, 10)] * 30))
    assert one.low_ns == 0


def test_prompts_processed_at_the_start_are_no_low_batch(tmp_path):
    (one,) = found_in(tmp_path, engine([(4, 0, 10)] * 50 + [(0, 64, 10)] * 50))
    assert one.low_ns == 0


def test_where_tokens_are_not_told_every_running_request_gets_one(tmp_path):
    rows = [annotation("execute_new_0_cached_8", 10 * n, 10) for n in range(30)]
    found = section(tmp_path, rows)
    assert any("request and iteration is assumed" in caveat for caveat in found.caveats)
    (row,) = sheet(found, "rollout_engines")
    assert row["tokens_per_s"] == pytest.approx(240 / 300e-6)


def test_too_few_iterations_say_nothing(tmp_path):
    found = section(tmp_path, engine([(0, 90, 10)] * 10 + [(0, 1, 10)] * 9))
    assert not found.findings
    told = {v.rule: (v.answer, v.reason) for v in found.verdicts}
    assert told["rollout-tail"] == ("insufficient data", "19 of at least 20 decode iterations")
    assert told["slow-first-iterations"][0] == "insufficient data"
    assert told["replica-imbalance"] == ("not applicable", "one engine only")


# Replicas


def test_what_only_one_replica_could_save_is_limited_by_the_others(tmp_path):
    """Replica 0 would end at 911 instead of 1000 without its tail, but replica 1 takes 950."""
    files = {
        "agent_loop_rollout_replica_0/rank0.json": falling(40),
        "agent_loop_rollout_replica_1/rank0.json": engine([(0, 64, 10)] * 95),
    }
    found = {f.rule: f for f in section(tmp_path, files).findings}
    assert found["rollout-tail"].cost_ns == 50_000


def test_ranks_that_ran_the_same_batches_are_one_engine(tmp_path):
    files = {
        f"agent_loop_rollout_replica_{replica}/rank{rank}.json": engine([(0, 64, wall // 20)] * 20)
        for replica, wall in enumerate((1000, 700))
        for rank in (0, 1)
    }
    found = section(tmp_path, files)
    assert [row["engine"] for row in sheet(found, "rollout_engines")] == ["replica 0", "replica 1"]
    (finding,) = found.findings
    assert finding.cost_ns == 150_000


def test_data_parallel_ranks_of_one_replica_are_engines_of_their_own(tmp_path):
    files = {
        "agent_loop_rollout_replica_0/rank0.json": engine([(0, 64, 10)] * 30),
        "agent_loop_rollout_replica_0/rank1.json": engine([(0, 32, 10)] * 30),
    }
    found = found_in(tmp_path, files)
    assert [g.engine for g in found] == ["replica 0 rank 0", "replica 0 rank 1"]


def test_replicas_that_wait_for_a_tail_are_told_once(tmp_path):
    """Without its last 20 iterations replica 0 would end at the same time as replica 1."""
    files = replicas(800, 800)
    first = next(iter(files))
    files[first] = engine([(0, 64, 10)] * 80 + [(0, 4, 10)] * 60)
    found = section(tmp_path, files)
    assert [f.rule for f in found.findings] == ["rollout-tail"]
    told = {v.rule: v for v in found.verdicts}
    assert told["replica-imbalance"].answer == "clear"
    assert "tail" in told["replica-imbalance"].reason


def test_replicas_without_annotations_are_known_by_their_last_gpu_op(tmp_path):
    """The host of both goes on until 2000; the GPUs end at 1000 and 600."""
    files = {
        f"agent_loop_rollout_replica_{n}/rank0.json": [op("a", 0, 2000), *launched("k", 1, 10, end - 10, 1)]
        for n, end in enumerate((1000, 600))
    }  # fmt: skip
    found = section(tmp_path, files)
    (finding,) = found.findings
    # Both begin at 10: 400 of 2 times 990.
    assert finding.rule == "replica-imbalance"
    assert finding.evidence[0].value == pytest.approx(200 / 990)
    assert any("last op" in caveat for caveat in finding.caveats)
    assert {v.rule: v.answer for v in found.verdicts} == {
        "rollout-tail": "not applicable", "slow-first-iterations": "not applicable",
    }  # fmt: skip


def test_one_replica_without_annotations_has_no_section(tmp_path):
    files = {"agent_loop_rollout_replica_0/rank0.json": [kernel("k", 0, 10)]}
    assert section(tmp_path, files).status == "skipped"


def test_engines_whose_clocks_cannot_be_compared_are_timed_from_their_own_start(tmp_path):
    """1000 and 500 of their own starts, wherever these lie: 250 of 1000 on average, 250 µs."""
    for number, (name, rows) in enumerate(replicas(1000, 500).items()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        moved = [row | {"ts": row["ts"] + 70_000 * number} for row in rows]
        (tmp_path / name).write_bytes(text(moved, base_ns=None))
    result = analyze(tmp_path)
    found = next(s for s in result.report.sections if s.id == "rollout")
    (finding,) = found.findings
    assert finding.cost_ns == 250_000
    assert any("timed from its own start" in caveat for caveat in finding.caveats)
    (row,) = sheet(found, "rollout_replicas")
    assert (row["first"], row["last"]) == (500_000, 1_000_000)


def sheet_names(found):
    return {s.name for s in found.sheets}


def test_replicas_that_were_not_recorded_are_counted(tmp_path):
    files = replicas(1000, 700, 700)
    del files["agent_loop_rollout_replica_1/rank0.json"]
    (finding,) = section(tmp_path, files).findings
    assert "2 of at least 3 replicas were recorded" in finding.caveats


# The first iterations


def test_a_larger_batch_at_the_start_is_no_slow_start(tmp_path):
    """The first ten are slower, but so are the later ones of their batch."""
    rows = engine([(0, 64, 30)] * 15 + [(0, 8, 10)] * 85)
    assert "slow-first-iterations" not in {f.rule for f in section(tmp_path, rows).findings}


def test_without_later_iterations_of_equal_batch_nothing_is_said(tmp_path):
    rows = engine([(0, 64, 30)] * 10 + [(0, 32, 10)] * 90)
    told = {v.rule: v for v in section(tmp_path, rows).verdicts}
    assert told["slow-first-iterations"].answer == "insufficient data"
    assert "equal batch" in told["slow-first-iterations"].reason


def test_prompts_between_the_first_iterations_do_not_count(tmp_path):
    shape = [(1, 64, 500)] * 10 + [(0, 64, 100)] * 90
    assert section(tmp_path, engine(shape)).findings == ()


def test_a_slow_start_is_not_called_a_tail_nor_the_other_way_round(tmp_path):
    assert [f.rule for f in section(tmp_path / "a", slow_first(400)).findings] == ["slow-first-iterations"]
    linear = engine([(0, 64 - n // 4, 10) for n in range(256)])
    assert [f.rule for f in section(tmp_path / "b", linear).findings] == ["rollout-tail"]


# Rules, charts, and what does not change


@pytest.mark.parametrize("rule", sorted(FIRES))
def test_each_rule_fires_alone_with_the_numbers_worked_out_by_hand(tmp_path, rule):
    expected = FIRES[rule]
    (found,) = analyze(write_sources(tmp_path, expected.rows), None).report.findings
    assert (found.rule, found.claim, found.severity) == (rule, expected.claim, expected.severity)
    assert found.cost_ns == expected.cost_ns
    assert found.cost_ratio == pytest.approx(expected.cost_ratio)
    assert {m.name: m.value for m in found.evidence} == pytest.approx(expected.evidence)
    assert found.places


@pytest.mark.parametrize("rule", sorted(NEAR_MISSES))
def test_a_near_miss_does_not_fire(tmp_path, rule):
    assert analyze(write_sources(tmp_path, NEAR_MISSES[rule]), None).report.findings == ()


@pytest.mark.parametrize("shift", [0, 10**9])
def test_a_later_start_of_all_changes_nothing(tmp_path, shift):
    files = {name: [row | {"ts": row["ts"] + shift} for row in rows] for name, rows in replicas(1000, 700).items()}
    found = section(tmp_path, files)
    assert [f.cost_ns for f in found.findings] == [150_000]
    ends = next(c for c in found.charts if c.id == "rollout-ends")
    assert ends.marks == ((0, 0, 1_000_000), (1, 0, 700_000), (1, 1, 300_000))


def test_charts_stay_small(tmp_path):
    files = {f"agent_loop_rollout_replica_{n}/rank0.json": engine([(0, n + 1, 10)] * 300) for n in range(30)}
    charts = section(tmp_path, files).charts
    for chart in charts:
        assert len(chart.marks) <= 2_000
        assert len(chart.series) <= 20
    batches = next(c for c in charts if c.id == "rollout-batch")
    assert len(batches.marks) + batches.omitted == 20 * 300


def test_an_engine_that_only_idles_and_one_without_length_have_a_row(tmp_path):
    rows = [annotation("step[idle]", 10, 0), annotation("step[idle]", 10, 0)]
    found = section(tmp_path, rows)
    assert found.status == "ok"
    assert found.findings == ()


REAL_ENGINES = {
    "b200/eager_trace.json.gz": (1, 888, 0, 87_412_863),
    "inference/vllm_decode_full/graph_execution.json.gz": (0, 0, 32, 19_114_059),
    "inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz": (0, 0, 32, 473_830_532),
}
"""(prompts, their tokens, running requests, ns until the iteration's work ends), read from the files."""


@pytest.mark.parametrize("name", REAL_ENGINES)
def test_real_engines_are_read(name):
    if REAL is None:
        pytest.skip("real profiles are not here")
    trace = tracekit.load(Path(REAL) / "chrome/tracelens" / name)
    table = frame_of(trace, "iterations")
    names = ["prefill_requests", "prefill_tokens", "decode_requests", "pace_ns"]
    assert [tuple(row) for row in table[names].to_numpy()] == [REAL_ENGINES[name]]
