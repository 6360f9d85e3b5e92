"""Requests by their own traces: spans, SGLang's times, verl's samples; no prompt is kept, and nothing breaks it."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.errors import TraceFormatError
from tracekit.model.trace import Source, Want
from tracekit.readers import request_log
from tracekit.readers.loading import load

SECOND = 10**9
START = 1_756_720_800 * SECOND


def attribute(key, value):
    form = "intValue" if isinstance(value, int) else "stringValue" if isinstance(value, str) else "doubleValue"
    return {"key": key, "value": {form: str(value) if form == "intValue" else value}}


def span(name="llm_request", trace="a", start=0, end=10, events=(), **latency):
    return {
        "traceId": trace, "name": name, "startTimeUnixNano": str(START + start * SECOND),
        "endTimeUnixNano": str(START + end * SECOND),
        "attributes": [attribute(f"gen_ai.latency.{key}", value) for key, value in latency.items()],
        "events": [{"timeUnixNano": str(START + at * SECOND), "name": event} for at, event in events],
    }  # fmt: skip


def line(*spans):
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}) + "\n"


def read(tmp_path, text, name="traces.jsonl"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load(path)["engine_requests"]


FULL = {
    "e2e": 10.0,
    "time_in_queue": 2.0,
    "time_to_first_token": 3.0,
    "time_in_model_prefill": 1.0,
    "time_in_model_decode": 7.0,
}


def test_a_request_of_vllm_has_its_parts(tmp_path):
    (row,) = read(tmp_path, line(span(**FULL))).to_dict("records")
    assert (row["kind"], row["trajectory"], row["ts_ns"]) == ("request", 0, START)
    parts = [row[f"{name}_ns"] / SECOND for name in ("dur", "queue", "prefill", "decode")]
    assert parts == [10, 2, 1, 7]


def test_the_time_preempted_is_taken_from_the_part_in_which_it_lies(tmp_path):
    late = [(0, "QUEUED"), (2, "SCHEDULED"), (5, "PREEMPTED"), (7, "SCHEDULED"), (8, "PREEMPTED"), (9, "SCHEDULED")]
    (row,) = read(tmp_path, line(span(events=late, **FULL))).to_dict("records")
    assert (row["preempted_ns"], row["decode_ns"], row["prefill_ns"]) == (3 * SECOND, 4 * SECOND, SECOND)
    assert row["preemption_count"] == 2
    # Preempted before the first token (3 s), and never scheduled again.
    (row,) = read(tmp_path, line(span(events=[(2, "PREEMPTED")], **FULL)), "b.jsonl").to_dict("records")
    assert (row["preempted_ns"], row["prefill_ns"], row["decode_ns"]) == (8 * SECOND, 0, 7 * SECOND)


def test_tools_and_agents_are_known_by_their_operation_and_others_are_left_out(tmp_path):
    tool = span("search the web", start=10, end=14) | {
        "attributes": [attribute("gen_ai.operation.name", "execute_tool")]
    }
    rows = read(
        tmp_path, line(span(**FULL), tool, span("invoke_agent", end=20), span("http GET"), span(trace="b", **FULL))
    )
    assert rows["kind"].tolist() == ["request", "tool", "agent", "request"]
    assert rows["trajectory"].tolist() == [0, 0, 0, 1]
    assert rows["tool_ns"].tolist()[1] == 4 * SECOND


def test_no_text_of_a_prompt_is_kept(tmp_path):
    secret = span(**FULL)
    secret["attributes"] += [attribute("gen_ai.prompt", "my secret"), attribute("gen_ai.request.model", "my secret")]
    sample = {"input": "my secret", "output": "my secret", "score": 1.0, "step": 3, "generate_sequences": 2.5}
    for number, text in enumerate((line(secret), json.dumps(sample) + "\n")):
        rows = read(tmp_path, text, f"{number}.jsonl")
        assert len(rows) == 1
        assert "secret" not in rows.to_json()


def test_samples_of_verl_give_times_where_the_agent_loop_passes_them_on(tmp_path):
    samples = [
        {"input": "a", "output": "b", "score": 0.0, "step": 7, "generate_sequences": 2.5, "tool_calls": 1.5, "num_preempted": -1},
        {"input": "a", "output": "b", "score": 0.0, "step": 7, "metrics": {"generate_sequences": 1.0, "num_preempted": 2}},
        {"input": "a", "output": "b", "score": 0.0, "step": 7},
    ]  # fmt: skip
    rows = read(tmp_path, "".join(json.dumps(sample) + "\n" for sample in samples), "7.jsonl")
    assert rows["dur_ns"].tolist() == [4 * SECOND, SECOND]
    assert rows["forward_ns"].tolist() == [2.5 * SECOND, SECOND]
    assert rows["step"].tolist() == [7, 7]
    assert rows["preemption_count"].isna().tolist() == [True, False]  # -1: not available


def test_sglangs_log_has_the_queue_and_the_forward_time(tmp_path):
    text = (
        "[2026-09-13 16:06:00 TP0] Req Time Stats(rid=7f, input len=12, output len=345, type=unified): "
        "queue_duration=150.25ms, forward_duration=2000.00ms, start_time=1756720800.5\n"
    )
    (row,) = read(tmp_path, text, "sglang.log").to_dict("records")
    assert (row["queue_ns"], row["forward_ns"], row["dur_ns"]) == (150_250_000, 2 * SECOND, 2_150_250_000)
    assert (row["prompt_tokens"], row["response_tokens"]) == (12, 345)
    assert row["ts_ns"] == START + SECOND // 2


@pytest.mark.parametrize("text", [
    b"", b"{}", b'{"step": 1, "data": {"timing_s/gen": 1.0}}\n', b'{"traceEvents": []}', b'{"input": "a", "step": 1}\n',
    b'[{"resourceSpans": []}]', b'{"resource": {"resourceSpans": []}}',
])  # fmt: skip
def test_other_json_is_left_alone(text):
    assert not request_log.sniff(text)


PIECES = [
    b"",
    b"\0",
    b"\xff",
    b"9" * 30,
    b"\n",
    b"NaN",
    b"-",
    b"{",
    b'"',
    b"null",
    b"[]",
    b"1e999",
    b"true",
    b'"PREEMPTED"',
]


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_damaged_spans_give_rows_or_the_documented_error(tmp_path_factory, seed):
    rng = random.Random(seed)
    whole = line(span(events=[(5, "PREEMPTED"), (6, "SCHEDULED")], **FULL), span("execute_tool x"))
    data = bytearray((whole + json.dumps({"input": "", "output": "", "score": 0, "step": 1, "tool_calls": 3})).encode())
    for _ in range(rng.randrange(8)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(12)] = rng.choice(PIECES)
    path = tmp_path_factory.mktemp("fuzz") / "a.jsonl"
    path.write_bytes(bytes(data))
    try:
        (trace,) = request_log.read(Source(path, path.name, "request_log", "log"), Want(frozenset({"engine_requests"})))
    except TraceFormatError:
        return
    rows = trace["engine_requests"]
    for name in ("dur_ns", "queue_ns", "prefill_ns", "decode_ns", "preempted_ns"):
        assert (rows[name].dropna() >= 0).all()
