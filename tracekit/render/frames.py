"""Tables of a report as pandas frames: the same raw values as in CSV and Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tracekit.model.errors import TracekitError
from tracekit.model.labels import did_you_mean
from tracekit.render.tables import list_report_tables, name_columns_with_units

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.model.report import Report, Sheet


class ReportTables(Mapping[str, "pd.DataFrame"]):
    """Frames by table name, made on first access; `TracekitError` lists the existing names."""

    def __init__(self, sheets: Mapping[str, Sheet]) -> None:
        """Wrap sheets by name."""
        self._sheets = dict(sheets)

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Make the frame of one table; `attrs` has its title, caption, and the units and docs of its columns."""
        if name not in self._sheets:
            near = did_you_mean(name, self._sheets)
            raise TracekitError(f"no table {name!r} in the report{near}", f"there are: {', '.join(self._sheets)}")
        return _make_sheet_frame(self._sheets[name])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the tables."""
        return iter(self._sheets)

    def __len__(self) -> int:
        """Count the tables."""
        return len(self._sheets)

    def __contains__(self, name: object) -> bool:
        """Check whether there is a table of this name."""
        return name in self._sheets

    def __repr__(self) -> str:
        """List the names of the tables."""
        return f"<ReportTables {', '.join(self._sheets)}>"


def make_report_tables(report: Report) -> ReportTables:
    """Make frames of the tables of a report, by the names of the files that `--export csv` writes."""
    return ReportTables(list_report_tables(report))


def _make_sheet_frame(sheet: Sheet) -> pd.DataFrame:
    """Convert a sheet to a frame: integers with gaps are `Int64`, unknown values are missing."""
    import pandas as pd

    names = name_columns_with_units(sheet)
    columns, units, docs = {}, {}, {}
    for index, (name, heading) in enumerate(zip(names, sheet.headings, strict=True)):
        values = [row[index] for row in sheet.rows]
        columns[name] = pd.Series(values, dtype=_choose_pandas_dtype(values))
        units[name], docs[name] = heading.unit, heading.doc or heading.title
    frame = pd.DataFrame(columns)
    frame.attrs.update(title=sheet.title, caption=sheet.caption, omitted=sheet.omitted)
    frame.attrs.update(units=units, docs=docs)
    return frame


def _choose_pandas_dtype(values: list[object]) -> str:
    """Choose the pandas type that holds these values unchanged."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int} and all(abs(value) < 2**63 for value in values if isinstance(value, int)):
        return "Int64"
    if kinds and kinds <= {int, float}:
        return "Float64"
    return "str" if kinds == {str} else "object"
