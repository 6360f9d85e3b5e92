"""Options of an output, shared by all renderers."""

from __future__ import annotations

from tracekit.model.records import dataclass


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Rows per table, details beyond the first screen, and the terminal's width and colour."""

    top: int = 10
    verbose: bool = False
    width: int | None = None
    color: bool = False

    @property
    def overview_rows(self) -> int | None:
        """Number of rows in the first table; None for all."""
        return None if self.verbose else self.top
