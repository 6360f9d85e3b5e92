"""What a person may choose about an output, the same for all of them."""

from __future__ import annotations

from tracekit.model.records import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The choices: rows per table, everything or the first screen, and the terminal's width and colour."""

    top: int = 10
    verbose: bool = False
    width: int | None = None
    color: bool = False

    @property
    def overview_rows(self) -> int | None:
        """How many rows of the overview are shown; None where all are."""
        return None if self.verbose else self.top
