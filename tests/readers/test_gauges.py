"""Scrapes of rl-insight's gauges as a training log: a record per step, names of verl, and gauges that keep their value."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.trace import Source, Want
from tracekit.pipeline.run import discover_sources
from tracekit.readers import READERS, driver_log
from tracekit.readers.driver_log.gauges import restore_metric_name
from tracekit.readers.loading import load

SECOND = 10**9


def scrape(step, at=None, labels='{project="p"}', **gauges):
    """One answer of the endpoint, after its time where `at` is given."""
    lines = [] if at is None else [str(at)]
    for name, value in {"training_global_step": step, **gauges}.items():
        lines += [f"# TYPE rl_insight_monitor_{name} gauge", f"rl_insight_monitor_{name}{labels} {value}"]
    return "\n".join(lines) + "\n"


def records(tmp_path, text):
    """{step: {name: value}} of the text, by the registry."""
    path = tmp_path / "metrics.prom"
    path.write_text(text)
    trace = load(path)
    assert trace.source.reader == "driver_log"
    rows = trace["log_values"]
    return {
        step: dict(zip(of_step["name"], of_step["value"], strict=True)) for step, of_step in rows.groupby("step")
    }, rows


def test_the_last_scrape_of_a_step_counts(tmp_path):
    text = (
        scrape(1, 1_756_720_800, timing_s_gen=30.0, timing_s_step=50.0)
        + scrape(1, 1_756_720_815, timing_s_gen=30.0, timing_s_step=51.0)
        + scrape(2, 1_756_720_830, timing_s_gen=31.0, timing_s_step=52.0)
    )
    by_step, rows = records(tmp_path, text)
    assert by_step == {
        1: {"timing_s/gen": 30.0, "timing_s/step": 51.0}, 2: {"timing_s/gen": 31.0, "timing_s/step": 52.0},
    }  # fmt: skip
    assert rows["ts_ns"].unique().tolist() == [1_756_720_815 * SECOND, 1_756_720_830 * SECOND]
    assert rows["part"].unique().tolist() == [0]


def test_a_timer_that_keeps_its_value_was_not_set_again(tmp_path):
    text = "".join(
        scrape(step, timing_s_step=50.0 + step, perf_mfu_actor=0.3, **({"timing_s_testing": 80.0} if step > 1 else {}))
        for step in (1, 2, 3, 4)
    )
    by_step, _ = records(tmp_path, text)
    assert [step for step, values in by_step.items() if "timing_s/testing" in values] == [2]
    # Other gauges may be equal in two steps.
    assert [values["perf/mfu/actor"] for values in by_step.values()] == [0.3] * 4


def test_a_lower_step_is_a_restart(tmp_path):
    text = "".join(scrape(step, timing_s_step=50.0 + n, timing_s_gen=n) for n, step in enumerate((5, 6, 4, 5)))
    _, rows = records(tmp_path, text)
    assert rows.groupby("part")["step"].unique().apply(list).tolist() == [[5, 6], [4, 5]]


def test_the_endpoints_own_time_is_used_and_no_label_is_kept(tmp_path):
    text = 'rl_insight_monitor_training_global_step{user="secret"} 3 1756720800123\nrl_insight_monitor_timing_s_gen{user="secret"} 2.5 1756720800123\n'
    by_step, rows = records(tmp_path, text)
    assert by_step == {3: {"timing_s/gen": 2.5}}
    assert rows["ts_ns"].unique().tolist() == [1_756_720_800_123 * 10**6]
    assert "secret" not in rows.to_json()


@pytest.mark.parametrize(("gauge", "name"), [
    ("timing_s_update_actor", "timing_s/update_actor"), ("timing_per_token_ms_gen", "timing_per_token_ms/gen"),
    ("perf_total_num_tokens", "perf/total_num_tokens"), ("actor_perf_cpu_memory_used_gb", "actor/perf/cpu_memory_used_gb"),
    ("response_length_non_aborted_mean", "response_length_non_aborted/mean"), ("response_length_max", "response_length/max"),
    ("response_aborted_ratio", "response/aborted_ratio"), ("global_seqlen_balanced_max", "global_seqlen/balanced_max"),
    ("training_off_policy_trajectory_staleness_worst_max", "training/off_policy/trajectory_staleness_worst/max"),
    ("training_off_policy_trajectory_staleness_max", "training/off_policy/trajectory_staleness/max"),
    ("timing_s_agent_loop_generate_sequences_max", "timing_s/agent_loop/generate_sequences/max"), ("own_metric", "own_metric"),
])  # fmt: skip
def test_gauges_have_their_names_in_verl_back(gauge, name):
    assert restore_metric_name(gauge) == name


@pytest.mark.parametrize("text", [
    b"rl_insight_monitor_timing_s_gen 1.0\n", b"# rl_insight_monitor_training_global_step\n",
    b"vllm:num_requests_running 3\n", b"python_gc 1\n",
])  # fmt: skip
def test_a_scrape_without_the_step_is_no_training_log(text):
    assert not driver_log.sniff(text)


def test_a_scrape_is_claimed_by_one_reader():
    head = scrape(1, 1_756_720_800, timing_s_gen=3.0).encode()
    assert next(reader.name for reader in READERS if reader.claims(head)) == "driver_log"


@settings(deadline=None, max_examples=120)
@given(seed=st.integers(0, 2**32))
def test_damaged_scrapes_give_rows_or_the_documented_error(tmp_path_factory, seed):
    rng = random.Random(seed)
    text = "".join(scrape(step, 1_756_720_800 + step, timing_s_gen=1.5, timing_s_step=2.5) for step in range(6))
    data = bytearray(text.encode())
    pieces = [b"", b"\0", b"\xff", b"9" * 400, b"\n", b"NaN", b"-", b"{", b"1e999", b"}", b"+Inf", b" "]
    for _ in range(rng.randrange(12)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(4)] = rng.choice(pieces)
    path = tmp_path_factory.mktemp("fuzz") / "metrics.prom"
    path.write_bytes(bytes(data))
    try:
        (trace,) = driver_log.read(Source(path, path.name, "driver_log", "log"), Want(frozenset({"log_values"})))
    except TraceFormatError:
        return
    rows = trace["log_values"]
    assert rows["step"].ge(0).all()
    assert rows["value"].abs().lt(float("inf")).all()


@pytest.mark.parametrize("indent", [None, 2])
def test_events_that_rl_insight_gathered_are_named_and_left_aside(tmp_path, indent):
    """The form of its documents: a list of rows with role, name, rank_id and times in ms."""
    row = {
        "name": "actor_update", "role": "actor_update", "domain": "default", "start_time_ms": 1773285899045.8768,
        "end_time_ms": 1773285902987.04, "duration_ms": 3941.16325, "rank_id": 3, "tid": 3550589859,
    }  # fmt: skip
    (tmp_path / "summary_event_data.json").write_text(json.dumps([row, row], indent=indent))
    with pytest.raises(TracekitError, match="not read: 1 × events that rl-insight gathered from traces"):
        discover_sources(tmp_path)
