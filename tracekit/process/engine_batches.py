"""What a serving engine's name of one iteration says of the batch that it runs."""

from __future__ import annotations

import re
from typing import NamedTuple

from tracekit.model.patterns import expression
from tracekit.model.remembered import remembered

MAX_COUNT = 10**9
"""A batch of more requests or tokens than this is no number that an engine wrote."""


class Batch(NamedTuple):
    """What one iteration runs: requests whose prompt is processed, requests that generate, their tokens."""

    prefill_requests: int
    prefill_tokens: int | None
    decode_requests: int
    decode_tokens: int | None


_CONTEXT = expression(
    r"execute_(?:\d+_)?context_(\d+)\(([^()]*)\)_generation_(\d+)\(([^()]*)\)", re.ASCII
)
_NEW = expression(r"execute_new_(\d+)_cached_(\d+)\Z", re.ASCII)
_STEP = expression(r"step\[(\w+)((?: \w+=\d+)*)\]\Z", re.ASCII)
_FIRST = expression(r"(?:sq)?(\d+)", re.ASCII)


@remembered
def batch(name: str) -> Batch | None:
    """What a range of this name says of its iteration; None where it is none.

    >>> batch("execute_context_1(512)_generation_63(63)")
    Batch(prefill_requests=1, prefill_tokens=512, decode_requests=63, decode_tokens=63)
    >>> batch("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)")
    Batch(prefill_requests=0, prefill_tokens=0, decode_requests=32, decode_tokens=32)
    >>> batch("step[EXTEND bs=2 toks=1025]"), batch("step[DECODE bs=8]").decode_tokens
    (Batch(prefill_requests=2, prefill_tokens=1025, decode_requests=0, decode_tokens=0), 8)
    """
    if not name.startswith(("execute_", "step[")):
        return None
    if match := _CONTEXT.match(name):
        parsed = Batch(int(match[1]), _tokens(match[2]), int(match[3]), _tokens(match[4]))
    elif match := _NEW.match(name):
        # Requests of earlier iterations: nearly all generate, some may still be in their prompt.
        parsed = Batch(int(match[1]), None, int(match[2]), None)
    elif match := _STEP.match(name):
        pairs = dict(pair.split("=") for pair in match[2].split())
        by_step = _step(match[1].upper(), {key: int(value) for key, value in pairs.items()})
        if by_step is None:
            return None
        parsed = by_step
    else:
        return None
    return parsed if all((n or 0) <= MAX_COUNT for n in parsed) else None


def _tokens(text: str) -> int | None:
    """The tokens that are run, which come first in all spellings of the parentheses."""
    match = _FIRST.match(text)
    return int(match[1]) if match else None


def _step(mode: str, told: dict[str, int]) -> Batch | None:
    """SGLang's `step[MODE bs=… …]`; the steps of a draft model are part of an iteration, not one."""
    size = told.get("bs", 0)
    if mode == "IDLE":
        return Batch(0, 0, 0, 0)
    if mode == "DECODE":
        return Batch(0, 0, size, told.get("g_sq", size))
    if mode == "TARGET_VERIFY":
        return Batch(0, 0, size, None)
    if mode in ("EXTEND", "PREFILL"):
        return Batch(size, told.get("toks", told.get("c_sq")), 0, 0)
    if mode == "MIXED":
        decode = told.get("g", told.get("dec", 0))
        prefill = told.get("c", max(size - decode, 0))
        return Batch(prefill, told.get("ext", told.get("c_sq")), decode, told.get("g_sq", decode))
    return None


_EXECUTE = expression(r"execute_\w", re.ASCII)


@remembered
def names_iteration(name: str) -> bool:
    """Whether a range of this name is one iteration of an engine, whatever it says of its batch.

    >>> [names_iteration(n) for n in ("execute_model", "step[DECODE bs=8]", "step[DRAFT bs=8]", "executor")]
    [True, True, False, False]
    """
    return batch(name) is not None or _EXECUTE.match(name) is not None
