"""Resume points: where reading can continue after damage (rule 15 of `RECOVERY.md`).

Every pattern is bounded in length. A search can therefore drop the text it has passed, and its result does
not depend on block boundaries.
"""

from __future__ import annotations

from tracekit.model.records import dataclass
from tracekit.model.text.patterns import compile_lazily

LONGEST_SPACE = 64
SPACE = rb"[ \t\n\r]{0,%d}+" % LONGEST_SPACE
EVENT_KEYS = rb"ph|cat|name|pid|tid|ts|dur|id|args|s|bp"
TOP_LEVEL_KEYS = (
    rb"schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds|traceName"
    rb"|trace_id|host_name|record_shapes|with_stack|with_modules|with_flops|profile_memory"
    rb"|cu(?:pti|da_runtime|da_driver)_version|hip_(?:runtime|driver)_version|roctracer_version"
    rb"|PT_PROFILER_[A-Z_]+|DISABLE_CUPTI_LAZY_REINIT|otherData|metadata|stackFrames|samples"
    rb"|systemTraceEvents|powerTraceAsString|controllerTraceDataKey"
)

CONTEXT_BYTES = LONGEST_SPACE + 1
"""Bytes before a position in which `find_resume_point` looks for the colon that makes an object a value."""

PH_WITHIN_BYTES = 2**16
"""Bytes from its start within which an event must name its phase."""

_LONGEST_TOKEN_BYTES = 320
_START = rb"(?P<start>\{" + SPACE + rb'"(?P<key>' + EVENT_KEYS + rb')"' + SPACE + rb":)"
_END = rb"(?P<end>\]" + SPACE + rb"," + SPACE + rb'"(?:' + TOP_LEVEL_KEYS + rb')"' + SPACE + rb":)"
_TOKENS = compile_lazily(_START + rb"|" + _END + rb'|"ph"' + SPACE + rb":")
_FINAL_BRACKETS = compile_lazily(rb"\]" + SPACE + rb"\}" + SPACE + rb"\Z")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Position where an event starts, or where the event array ends."""

    position: int
    ends_array: bool = False


def find_resume_point(data: memoryview, start: int, *, at_end: bool) -> ResumePoint | int:
    """Find the first resume point at or after `start`; else return the position before which there is none.

    The search starts at `start`, but looks at up to `CONTEXT_BYTES` before it as context.
    """
    candidate = None
    for token in _TOKENS.finditer(data, start):
        position = token.start()
        starts = token["start"] is not None and not _is_after_colon(data, position)
        if starts and token["key"] == b"ph":
            return ResumePoint(position)
        if starts:
            candidate = position
        elif token["end"] is not None:
            return ResumePoint(position, ends_array=True)
        elif candidate is not None and token["key"] in (None, b"ph"):
            if position - candidate <= PH_WITHIN_BYTES:
                return ResumePoint(candidate)
            candidate = None
    if at_end:
        return len(data)
    undecided = max(start, len(data) - _LONGEST_TOKEN_BYTES)
    if candidate is not None and undecided - candidate <= PH_WITHIN_BYTES:
        return candidate
    return undecided


def find_final_array_end(data: memoryview) -> int | None:
    """Find the bracket that closes the array if the text ends in `]}`; else None."""
    first = max(0, len(data) - _LONGEST_TOKEN_BYTES)
    end_match = _FINAL_BRACKETS.search(data[first:])
    return None if end_match is None else first + end_match.start()


def _is_after_colon(data: memoryview, position: int) -> bool:
    """Check whether the last byte before a position, except whitespace, is a colon."""
    before = bytes(data[max(0, position - CONTEXT_BYTES) : position])
    return before.rstrip(b" \t\n\r").endswith(b":")
