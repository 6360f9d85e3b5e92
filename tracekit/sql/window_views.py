"""Views of tables with a row per window: captures, steps and stages overlap, so only one kind may be summed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tracekit.model.records import dataclass
from tracekit.model.tables.table import Table
from tracekit.sql.schema import quote_sql_name
from tracekit.sql.statements import collect_words, strip_literals

WINDOW = "window"
KINDS = ("step", "stage")
"""Windows that have a view each: `idle_by_step` and `idle_by_stage`."""

_SUM = re.compile(r"\b(?:sum|avg|mean|median|quantile\w*)\s*\(", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WindowView:
    """A view of the rows of one kind of window; `table` documents it."""

    table: Table
    base: str
    kind: str

    @property
    def statement(self) -> str:
        """The statement that makes it."""
        columns = ", ".join(map(quote_sql_name, self.table.columns))
        return (
            f"CREATE OR REPLACE VIEW {quote_sql_name(self.table.name)} AS SELECT {columns}"
            f" FROM {quote_sql_name(self.base)} WHERE {quote_sql_name(WINDOW)} = '{self.kind}'"
        )


def list_window_views(tables: Iterable[Table]) -> dict[str, WindowView]:
    """List the views of these tables by name."""
    views = {}
    for table in tables:
        if WINDOW not in table.columns or not set(KINDS) <= set(table.columns[WINDOW].values):
            continue
        columns = {name: column for name, column in table.columns.items() if name != WINDOW}
        for kind in KINDS:
            name = f"{table.name}_by_{kind}"
            views[name] = WindowView(Table(name, f"{table.row}; {kind}s only", columns), table.name, kind)
    return views


def list_mixed_tables(statement: str, views: Mapping[str, WindowView]) -> list[str]:
    """List the tables whose windows a statement sums together, in order of names."""
    words = collect_words(statement)
    if not _SUM.search(strip_literals(statement)) or WINDOW in words:
        return []
    return sorted({view.base for view in views.values()} & words)


def describe_mixed_table(name: str) -> str:
    """Describe the mistake, with the views to use instead."""
    return (
        f"{name}: its windows (captures, steps, stages) overlap, and the statement sums them:"
        f" use {name}_by_step or {name}_by_stage, or WHERE \"window\" = 'capture'"
    )
