"""Tables of a report as Parquet: typed columns with unit and title in their metadata."""

from __future__ import annotations

from io import BytesIO
from math import isfinite
from types import NoneType
from typing import Any

from tracekit.model.errors import TracekitError
from tracekit.model.report import Cell, Report, Sheet, Unit
from tracekit.model.system.installed import install_command
from tracekit.render.options import RenderOptions
from tracekit.render.tables import list_report_tables, name_columns_with_units

_WHOLE: tuple[Unit, ...] = ("ns", "bytes", "count", "id")


def render_parquet(report: Report, _options: RenderOptions) -> dict[str, bytes]:
    """Render one Parquet file per table, by file name."""
    pa, pq = import_pyarrow()
    files = {}
    for name, sheet in list_report_tables(report).items():
        out = BytesIO()
        pq.write_table(make_arrow_table(sheet, pa), out, compression="zstd")
        files[f"{name}.parquet"] = out.getvalue()
    return files


def import_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and its Parquet module; raises TracekitError if they are not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TracekitError("parquet needs pyarrow", install_command("parquet")) from None
    return pa, pq


def make_arrow_table(sheet: Sheet, pa: Any) -> Any:
    """Convert a sheet to a pyarrow table."""
    columns, described = [], []
    for index, (name, heading) in enumerate(zip(name_columns_with_units(sheet), sheet.headings, strict=True)):
        values = [row[index] for row in sheet.rows]
        columns.append(_make_arrow_array(values, heading.unit, pa))
        meta = {
            "unit": heading.unit,
            "title": _escape_surrogates(heading.title),
            "doc": _escape_surrogates(heading.doc),
        }
        described.append(pa.field(_escape_surrogates(name), columns[-1].type, metadata=meta))
    meta = {"title": _escape_surrogates(sheet.title), "caption": _escape_surrogates(sheet.caption)}
    meta["omitted"] = str(sheet.omitted)
    return pa.Table.from_arrays(columns, schema=pa.schema(described, metadata=meta))


def _make_arrow_array(values: list[Cell], unit: Unit, pa: Any) -> Any:
    """Convert a column to the narrowest type that holds every value exactly, or to text."""
    kinds = {type(value) for value in values} - {NoneType}
    if not kinds:
        return pa.array(values, _choose_empty_type(unit, pa))
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values if isinstance(value, int)):
        return pa.array(values, pa.int64())
    if kinds <= {int, float} and all(abs(value) <= 2**53 for value in values if isinstance(value, int)):
        return pa.array([_to_arrow_float(value) for value in values], pa.float64())
    texts = [None if value is None else _escape_surrogates(str(value)) for value in values]
    return pa.array(texts, pa.string())


def _choose_empty_type(unit: Unit, pa: Any) -> Any:
    """Choose the type of a column without values."""
    if unit in _WHOLE:
        return pa.int64()
    return {"text": pa.string()}.get(unit, pa.float64())


def _to_arrow_float(value: Cell) -> float | None:
    """Convert a number to a float; None if it is missing or not finite."""
    if not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
