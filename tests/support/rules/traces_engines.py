"""Logs of rollout engines on which their rules fire, and near misses just beyond the thresholds."""

from __future__ import annotations

import json

from rules.firing import Firing, Sources


def vllm(*samples: tuple[int, int, float, float, int], every: int = 10) -> Sources:
    """A log of vLLM with (running, waiting, KV cache in %, generated tokens/s, preemptions) at equal intervals."""
    lines = []
    for number, (running, waiting, kv, rate, preempted) in enumerate(samples):
        at = every * number
        lines.append(
            f"INFO 09-01 10:{at // 60:02d}:{at % 60:02d} [loggers.py:259] Engine 000: Avg prompt throughput: 100.0 tokens/s, "
            f"Avg generation throughput: {rate:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
            + (f"Preemptions: {preempted}, " if preempted else "")
            + f"GPU KV cache usage: {kv:.1f}%, Prefix cache hit rate: 41.2%"
        )
    return {"engine/vllm.log": ("\n".join(lines) + "\n").encode()}


def requests(*waits: float) -> Sources:
    """Spans of requests that wait so many seconds and then generate for one."""
    spans = [
        {
            "name": "llm_request", "startTimeUnixNano": "1756720800000000000",
            "attributes": [
                {"key": f"gen_ai.latency.{key}", "value": {"doubleValue": value}}
                for key, value in (("e2e", 1.0 + wait), ("time_in_queue", wait), ("time_in_model_decode", 1.0))
            ],
        }
        for wait in waits
    ]  # fmt: skip
    return {"traces.jsonl": json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()}


FIRES: dict[str, Firing] = {
    # 100 s, of which 40 s with 8 preemptions: 12 a minute. 500 tokens/s against 1000: half of 40 % is 20 %.
    "kv-preemption": Firing(
        vllm(*[(10, 0, 90, 1000, 0)] * 6, *[(10, 0, 100, 500, 2)] * 4),
        "8 requests preempted as the KV cache is full, 12 per minute; generation throughput 50 % lower meanwhile",
        "high", None, None,
        {"preempted": 8, "per_minute": 12.0, "time_ratio": 0.4, "kv_ratio": 1.0, "lost_ratio": 0.5},
    ),
    # 200 s, of which the last 40 s are left out; 80 of the other 160 s run 10 of 256.
    "engine-starved": Firing(
        vllm(*[(10, 0, 10, 300, 0)] * 8, *[(100, 0, 10, 3000, 0)] * 12),
        "the engine runs 10 of 256 possible requests and none wait, for 50 % of its time with requests",
        "medium", None, None, {"time_ratio": 0.5, "running": 10, "limit": 256, "kv_ratio": 0.1},
    ),
    "engine-queue": Firing(
        vllm(*[(8, 4, 50, 300, 0)] * 5, *[(8, 0, 50, 300, 0)] * 5),
        "4 requests wait while 8 run and the KV cache is 50 % full, for 50 % of the time with requests",
        "medium", None, None, {"time_ratio": 0.5, "waiting": 4, "running": 8, "kv_ratio": 0.5},
    ),
    # 94 of 1 s and 6 of 5 s: the slowest 5 wait 4 s; of the other 95 one does.
    "request-tail": Firing(
        requests(*[0.0] * 94, *[4.0] * 6),
        "the slowest 5 % of 100 requests take over 5,000 ms, 5.0 times the median; 100 % of the difference is waiting in the engine's queue",
        "medium", None, None,
        {"p95": 5 * 10**9, "median": 10**9, "cause_ratio": 1.0, "tail_part": 4 * 10**9},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # One preemption every minute.
    "kv-preemption": vllm(*([(10, 0, 100, 500, 1)] + [(10, 0, 90, 1000, 0)] * 5) * 5),
    # 250 s, the last 50 s left out: exactly 30 % of 200 s.
    "engine-starved": vllm(*[(10, 0, 10, 300, 0)] * 6, *[(100, 0, 10, 3000, 0)] * 19),
    # Exactly 30 %.
    "engine-queue": vllm(*[(8, 4, 50, 300, 0)] * 3, *[(8, 0, 50, 300, 0)] * 7),
    # 2.4 times the median.
    "request-tail": requests(*[0.0] * 94, *[1.4] * 6),
}
