"""Ranges of time as users write them: `1.250s:1.310s`, `12ms:40ms`, `0:2500` (ns) or `step 3`."""

from __future__ import annotations

import re

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.units import format_quantity, parse_time

_STEP = re.compile(r"step[ =]?(\d{1,15})", re.ASCII | re.IGNORECASE)
_PLAIN = re.compile(r"\d{1,18}", re.ASCII)
_EXAMPLES = "write it like 1.250s:1.310s, 12ms:40ms or 'step 3'; times count from the start of the recording"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time [start_ns, end_ns) since the start of the recording, or the step of this number."""

    start_ns: int = 0
    end_ns: int = 0
    step: int | None = None

    def __str__(self) -> str:
        """Format the range for messages."""
        if self.step is not None:
            return f"step {self.step}"
        return f"{format_quantity(self.start_ns, 'ns')}:{format_quantity(self.end_ns, 'ns')}"


def parse_time_range(text: str) -> TimeRange:
    """Parse a range of time; raises `TracekitError` if it is malformed or empty.

    >>> parse_time_range("1.5ms:2ms")
    TimeRange(start_ns=1500000, end_ns=2000000, step=None)
    >>> parse_time_range("step 3").step
    3
    """
    if match := _STEP.fullmatch(text.strip()):
        return TimeRange(step=int(match[1]))
    start, colon, end = text.partition(":")
    if not colon:
        raise TracekitError(f"not a range of time: {text[:40]!r}", _EXAMPLES)
    window = TimeRange(_parse_moment(start), _parse_moment(end))
    if not 0 <= window.start_ns < window.end_ns:
        raise TracekitError(f"an empty range of time: {text[:40]!r}", _EXAMPLES)
    return window


def _parse_moment(text: str) -> int:
    """Parse a time; a number without a unit is in ns."""
    plain = text.strip().replace(",", "")
    return int(plain) if _PLAIN.fullmatch(plain) else parse_time(text)
