"""Samples of verl's `trainer.rollout_data_dir`: one JSON line each. Their texts are never kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.readers.request_log.spans import parse_line
from tracekit.readers.request_rows import RequestRows, convert_seconds

_MARKS = ("input", "output", "score", "step")
"""Keys of every dumped sample."""

_PREFIXES = ("", "timing_s/agent_loop/", "agent_loop/", "metrics/")
"""Prefixes under which agent loops pass times on to the dump."""


def is_rollout_line(line: str) -> bool:
    """Check whether a line is a sample of a dumped rollout; a line cut off by the head is judged by its first keys."""
    logged = parse_line(line)
    if logged is None:
        return line.startswith('{"input": "') and '"output": "' in line
    return all(mark in logged for mark in _MARKS)


def add_dumped_sample(logged: Mapping[str, Any], number: int, rows: RequestRows) -> None:
    """Add the times of one sample; a sample without any adds nothing.

    `generate_sequences` contains the time in the engine's queue, so it is not split into parts.
    """
    nested = logged.get("metrics")
    values = {**logged, **nested} if isinstance(nested, dict) else logged
    generate, tools = (_find_time(values, name) for name in ("generate_sequences", "tool_calls"))
    if generate is None and tools is None:
        return
    preempted = _find_number(values, "num_preempted")
    step = _find_number(values, "step")
    rows.add(
        number,
        "request",
        step=None if step is None else int(step),
        dur_ns=(generate or 0) + (tools or 0),
        forward_ns=generate,
        tool_ns=tools,
        preemption_count=None if preempted is None or preempted < 0 else int(preempted),  # -1: not available
        response_tokens=_find_count(values, "response_length"),
        prompt_tokens=_find_count(values, "prompt_length"),
    )


def _find_number(values: Mapping[str, Any], name: str) -> float | None:
    """Find a number under one of the prefixes; None for other values."""
    for prefix in _PREFIXES:
        value = values.get(prefix + name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
            return value
    return None


def _find_count(values: Mapping[str, Any], name: str) -> int | None:
    """Find a count under one of the prefixes; None for other values."""
    number = _find_number(values, name)
    return None if number is None or number < 0 else int(number)


def _find_time(values: Mapping[str, Any], name: str) -> int | None:
    """Find a time in seconds under one of the prefixes, in ns."""
    return convert_seconds(_find_number(values, name))
