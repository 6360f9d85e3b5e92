"""A simulated rollout server: agents' runs with queueing, preemptions and tools, as OTLP JSON lines, and their truth.

Nothing here is shared with the reader. Requests arrive at random, wait for one of `slots`, are processed and may be
preempted; between two turns of a run a tool works. The truth is what the simulation spent, in seconds per part.
"""

from __future__ import annotations

import heapq
import json
import random
from dataclasses import dataclass, field

START = 1_756_720_800


@dataclass
class Truth:
    """Seconds by part, over all runs, and the names of the parts of each run."""

    parts: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("queue", "prefill", "decode", "preempted", "tool"), 0.0)
    )
    total: float = 0.0
    requests: int = 0


def _attribute(key, value):
    form = {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}
    return {"key": key, "value": form if not isinstance(value, str) else {"stringValue": value}}


def _span(trace, name, start, end, attributes, events=()):
    return {
        "traceId": f"{trace:032x}", "spanId": f"{random.Random(start).getrandbits(64):016x}", "name": name,
        "startTimeUnixNano": str(round((START + start) * 1e9)), "endTimeUnixNano": str(round((START + end) * 1e9)),
        "attributes": [_attribute(key, value) for key, value in attributes.items()],
        "events": [{"timeUnixNano": str(round((START + at) * 1e9)), "name": event} for at, event in events],
    }  # fmt: skip


def simulate(requests=2000, slots=48, rate=7.0, preempted=0.15, tools=0.6, seed=0):
    """The spans of so many requests, and the truth."""
    rng = random.Random(seed)
    truth, spans = Truth(), []
    free = [0.0] * slots  # when each slot is free
    arrivals: list[tuple[float, int, int, float]] = []  # (arrival, run, turns left, start of the run)
    at, run = 0.0, 0
    while truth.requests + sum(turns for _, _, turns, _ in arrivals) < requests:
        at += rng.expovariate(rate / 2)
        left = requests - truth.requests - sum(turns for _, _, turns, _ in arrivals)
        arrivals.append((at, run, min(rng.randint(1, 4), left), at))
        run += 1
    heapq.heapify(arrivals)
    while arrivals:
        arrival, number, turns, begin = heapq.heappop(arrivals)
        slot = heapq.heappop(free)
        queue = max(0.0, slot - arrival)
        prefill, decode = rng.uniform(0.05, 0.4), rng.lognormvariate(1.2, 0.7)
        pause = rng.uniform(2, 12) if rng.random() < preempted else 0.0
        started = arrival + queue
        first = started + prefill
        end = first + decode + pause
        heapq.heappush(free, end)
        broken = first + decode * rng.random()
        events = [(started, "SCHEDULED"), *([(broken, "PREEMPTED"), (broken + pause, "SCHEDULED")] if pause else [])]
        spans.append(_span(number, "llm_request", arrival, end, {
            "gen_ai.request.id": f"cmpl-{len(spans)}", "gen_ai.latency.e2e": end - arrival,
            "gen_ai.latency.time_in_queue": queue, "gen_ai.latency.time_to_first_token": first - arrival,
            "gen_ai.latency.time_in_model_prefill": prefill, "gen_ai.latency.time_in_model_decode": decode + pause,
            "gen_ai.usage.prompt_tokens": rng.randint(50, 900), "gen_ai.usage.completion_tokens": rng.randint(10, 4000),
            "gen_ai.prompt": "the secret prompt",
        }, events))  # fmt: skip
        truth.requests += 1
        for part, value in (("queue", queue), ("prefill", prefill), ("decode", decode), ("preempted", pause)):
            truth.parts[part] += value
        if turns > 1:
            works = rng.uniform(0.5, 3) if rng.random() > 0.05 else rng.uniform(30, 60)
            works = works if rng.random() < tools else 0.0
            if works:
                spans.append(
                    _span(number, "execute_tool python", end, end + works, {"gen_ai.operation.name": "execute_tool"})
                )
                truth.parts["tool"] += works
            heapq.heappush(arrivals, (end + works, number, turns - 1, begin))
        else:
            truth.total += end - begin
    return spans, truth


def write_spans(path, spans, batch=50):
    """Write the spans in batches, as the collector's file exporter does."""
    with path.open("w") as file:
        for at in range(0, len(spans), batch):
            scope = {"scope": {"name": "vllm.llm_engine"}, "spans": spans[at : at + batch]}
            file.write(json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [scope]}]}) + "\n")
    return path
