"""OpenTelemetry spans: requests of vLLM (`llm_request`), tools and agents, by OTLP's JSON form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import islice
from typing import Any

from tracekit.model.records import dataclass
from tracekit.readers.request_rows import MAX_REQUESTS, RequestRows, convert_seconds

MAX_ATTRIBUTES = 200
"""Most attributes and events looked at in one span."""

_LATENCY = "gen_ai.latency."
_PREEMPTED, _RESUMED = "PREEMPTED", ("SCHEDULED", "RESUMED")
"""Names of the events of a request, as in vLLM's `EngineCoreEventType`."""

Json = Mapping[str, Any]


@dataclass(slots=True)
class SpanRows:
    """Requests parsed so far, the numbers of the traces, and counts of skipped lines."""

    rows: RequestRows = field(default_factory=RequestRows)
    traces: dict[str, int] = field(default_factory=dict[str, int])
    too_long: int = 0
    damaged: int = 0

    def number_trace(self, trace: object) -> int | None:
        """Number the trace of a span; None without an id."""
        if not isinstance(trace, str) or not trace or len(self.traces) >= MAX_REQUESTS:
            return self.traces.get(trace) if isinstance(trace, str) else None
        return self.traces.setdefault(trace[:64], len(self.traces))


def parse_line(line: str) -> dict[str, Any] | None:
    """Parse a line that is one JSON object; None for other values."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def add_spans(logged: Json, number: int, log: SpanRows) -> None:
    """Add the requests, tools and agents of one batch of spans; other spans add nothing."""
    for resource in _list_objects(logged.get("resourceSpans")):
        for scope in _list_objects(resource.get("scopeSpans")):
            for span in _list_objects(scope.get("spans")):
                _add_span(span, number, log)


def _list_objects(value: object) -> Iterator[Json]:
    """List the objects of a JSON array; empty for other values."""
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _add_span(span: Json, number: int, log: SpanRows) -> None:
    """Add one span."""
    attributes = _read_attributes(span.get("attributes"))
    kind = _classify_span(span.get("name"), attributes)
    if kind is None:
        return
    start, end = _read_unix_ns(span.get("startTimeUnixNano")), _read_unix_ns(span.get("endTimeUnixNano"))
    dur = end - start if start is not None and end is not None else None
    trajectory = log.number_trace(span.get("traceId"))
    if kind == "request":
        latency = {
            name.removeprefix(_LATENCY): convert_seconds(_to_number(value))
            for name, value in attributes.items()
            if name.startswith(_LATENCY)
        }
        dur = latency.get("e2e", dur)
        parts = _split_request(latency, span.get("events"), start, dur)
        parts["prompt_tokens"] = _to_count(attributes, "prompt_tokens", "input_tokens")
        parts["response_tokens"] = _to_count(attributes, "completion_tokens", "output_tokens")
    else:
        parts = {"tool_ns": dur if kind == "tool" else None}
    log.rows.add(number, kind, trajectory=trajectory, ts_ns=start, dur_ns=dur, **parts)


def _split_request(
    latency: Mapping[str, int | None], events: object, start: int | None, dur: int | None
) -> dict[str, int | None]:
    """Split the time of a request into its parts; the time preempted is taken from the part that contains it."""
    prefill, decode = latency.get("time_in_model_prefill"), latency.get("time_in_model_decode")
    first = latency.get("time_to_first_token")
    pauses = _list_preemptions(events, None if start is None or dur is None else start + dur)
    early = sum(stop - begin for begin, stop in pauses if _is_before_first_token(begin, start, first))
    late = sum(stop - begin for begin, stop in pauses) - early
    is_split = prefill is not None or decode is not None
    return {
        "queue_ns": latency.get("time_in_queue"),
        "prefill_ns": None if prefill is None else max(prefill - early, 0),
        "decode_ns": None if decode is None else max(decode - late, 0),
        "forward_ns": None if is_split else latency.get("time_in_model_inference"),
        "preempted_ns": early + late if pauses else None,
        "preemption_count": len(pauses) if pauses else None,
    }


def _is_before_first_token(begin: int, start: int | None, first: int | None) -> bool:
    """Whether a preemption began before the request's first token."""
    return start is not None and first is not None and begin < start + first


def _classify_span(name: object, attributes: Mapping[str, object]) -> str | None:
    """Classify a span by its name and operation; None for other spans."""
    operation = attributes.get("gen_ai.operation.name")
    title = name if isinstance(name, str) else ""
    if title == "llm_request" or f"{_LATENCY}e2e" in attributes or f"{_LATENCY}time_in_queue" in attributes:
        return "request"
    if operation == "execute_tool" or title.startswith("execute_tool"):
        return "tool"
    return "agent" if operation == "invoke_agent" or title.startswith("invoke_agent") else None


def _read_attributes(attributes: object) -> dict[str, object]:
    """Read the attributes of a span: numbers, and the name of the operation. Other texts may quote prompts."""
    known: dict[str, object] = {}
    for item in islice(_list_objects(attributes), MAX_ATTRIBUTES):
        key, value = item.get("key"), item.get("value")
        if not isinstance(key, str) or not key.startswith("gen_ai.") or not isinstance(value, dict):
            continue
        forms = ("stringValue",) if key == "gen_ai.operation.name" else ("doubleValue", "intValue")
        known[key] = next((value[form] for form in forms if form in value), None)
    return known


def _to_number(value: object) -> float | None:
    """Convert a JSON number, or the text of an integer as OTLP writes it, to float; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _to_count(attributes: Mapping[str, object], *names: str) -> int | None:
    """Find the first count of tokens under one of the names; None without any."""
    for name in names:
        number = _to_number(attributes.get(f"gen_ai.usage.{name}"))
        if number is not None and 0 <= number < 2**53:
            return int(number)
    return None


def _read_unix_ns(value: object) -> int | None:
    """Read a time in ns since the Unix epoch, a number or its text; None for other values."""
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**62:
        return None
    return value


def _list_preemptions(events: object, end: int | None) -> list[tuple[int, int]]:
    """List the intervals from each preemption to the next time that the request is scheduled, or to its end."""
    named: list[tuple[int, str]] = []
    for event in islice(_list_objects(events), MAX_ATTRIBUTES):
        at, name = _read_unix_ns(event.get("timeUnixNano")), event.get("name")
        if at is not None and isinstance(name, str):
            named.append((at, name.upper()[:40]))
    pauses: list[tuple[int, int]] = []
    begin: int | None = None
    for at, name in sorted(named):
        if name == _PREEMPTED and begin is None:
            begin = at
        elif name in _RESUMED and begin is not None:
            pauses.append((begin, at))
            begin = None
    if begin is not None and end is not None and end > begin:
        pauses.append((begin, end))
    return pauses
