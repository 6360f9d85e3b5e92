"""State of console output while it is read: values so far, and earlier lines that later ones depend on."""

from __future__ import annotations

from dataclasses import field

from tracekit.model.records import dataclass
from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.driver_log.values import LoggedValues

NUMBER = compile_lazily(
    r"['\"]?(?:[A-Za-z_][\w.]{0,60}\()?"
    r"([-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?|[-+]?(?:nan|inf))"
    r"(?:,[^()]{0,200})?\)?['\"]?"
)
"""A number as printed: bare, quoted, or within a call such as `np.float64(…)` or `tensor(…, device='cuda:0')`."""


@dataclass(slots=True)
class ConsoleLog:
    """Values parsed so far, and the state of lines that belong together.

    `wrapped` has the pieces of a step's line of verl, which began in line `wrapped_at`. `heading` is the step of the
    last heading, `bar` the step that the last progress bar showed, `pid` the driver's process. `config` has the lines
    of a configuration that is being printed, `config_foreign` counts other lines between them.
    """

    values: LoggedValues = field(default_factory=LoggedValues)
    pid: str | None = None
    heading: int | None = None
    bar: int | None = None
    last_numbered: int = 0
    wrapped: list[str] = field(default_factory=list[str])
    wrapped_at: int = 0
    wrapped_chars: int = 0
    config: list[str] = field(default_factory=list[str])
    config_depth: int = 0
    config_chars: int = 0
    config_foreign: int = 0


def parse_printed_number(text: str) -> float | None:
    """Parse a number as a console prints it; None for other text.

    >>> [parse_printed_number(text) for text in ("np.float64(0.5)", "'tensor(2., device=x)'", "1e-3", "abc")]
    [0.5, 2.0, 0.001, None]
    """
    printed = NUMBER.fullmatch(text.strip())
    return float(printed[1]) if printed else None
