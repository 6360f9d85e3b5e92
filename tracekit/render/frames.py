"""The tables of a report as pandas frames: the same that CSV and Parquet write, with raw values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING

from tracekit.model.errors import TracekitError
from tracekit.model.labels import did_you_mean
from tracekit.render.tables import column_names, tables

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.model.report import Report, Sheet


class ReportTables(Mapping[str, "pd.DataFrame"]):
    """Frames by the names of the tables, each made when it is asked for; `TracekitError` names those there are."""

    def __init__(self, sheets: Mapping[str, Sheet]) -> None:
        """Of sheets by name."""
        self._sheets = dict(sheets)

    def __getitem__(self, name: str) -> pd.DataFrame:
        """The frame of one table: `attrs` hold its title, its caption, and the units and meanings of its columns."""
        if name not in self._sheets:
            near = did_you_mean(name, self._sheets)
            raise TracekitError(
                f"no table {name!r} in the report{near}", f"there are: {', '.join(self._sheets)}"
            )
        return _frame(self._sheets[name])

    def __iter__(self) -> Iterator[str]:
        """The names of the tables."""
        return iter(self._sheets)

    def __len__(self) -> int:
        """The number of tables."""
        return len(self._sheets)

    def __contains__(self, name: object) -> bool:
        """Whether there is a table of this name."""
        return name in self._sheets

    def __repr__(self) -> str:
        """The names of the tables."""
        return f"<ReportTables {', '.join(self._sheets)}>"


def make_frames(report: Report) -> ReportTables:
    """The tables of a report as frames, by the names of the files that `--export csv` writes."""
    return ReportTables(tables(report))


def _frame(sheet: Sheet) -> pd.DataFrame:
    """A sheet as a frame: whole numbers with gaps are `Int64`, text is text, what is unknown is missing."""
    import pandas as pd

    names = column_names(sheet)
    columns, units, docs = {}, {}, {}
    for index, (name, heading) in enumerate(zip(names, sheet.headings, strict=True)):
        values = list(map(itemgetter(index), sheet.rows))
        columns[name] = pd.Series(values, dtype=_dtype(values))
        units[name], docs[name] = heading.unit, heading.doc or heading.title
    frame = pd.DataFrame(columns)
    frame.attrs.update(title=sheet.title, caption=sheet.caption, omitted=sheet.omitted)
    frame.attrs.update(units=units, docs=docs)
    return frame


def _dtype(values: list[object]) -> str:
    """The type of pandas that holds these values without changing one."""
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int} and all(abs(value) < 2**63 for value in values if isinstance(value, int)):
        return "Int64"
    if kinds and kinds <= {int, float}:
        return "Float64"
    return "str" if kinds == {str} else "object"
