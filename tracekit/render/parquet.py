"""The report's tables as Parquet: typed columns, with unit and title in their metadata."""

from __future__ import annotations

from io import BytesIO
from math import isfinite
from typing import Any

from tracekit.model.errors import TracekitError
from tracekit.model.report import Cell, Report, Sheet, Unit
from tracekit.render.options import Options
from tracekit.render.tables import column_names, tables

_WHOLE: tuple[Unit, ...] = ("ns", "bytes", "count", "id")


def render_parquet(report: Report, _options: Options) -> dict[str, bytes]:
    """The bytes of one Parquet file a table, by file name."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TracekitError("parquet needs pyarrow", "pip install 'tracekit[parquet]'") from None

    files = {}
    for name, sheet in tables(report).items():
        out = BytesIO()
        pq.write_table(_table(sheet, pa), out, compression="zstd")
        files[f"{name}.parquet"] = out.getvalue()
    return files


def _table(sheet: Sheet, pa: Any) -> Any:
    """The sheet as a pyarrow table."""
    columns, described = [], []
    for at, (name, heading) in enumerate(zip(column_names(sheet), sheet.headings, strict=True)):
        values = [row[at] for row in sheet.rows]
        columns.append(_array(values, heading.unit, pa))
        meta = {"unit": heading.unit, "title": _utf8(heading.title), "doc": _utf8(heading.doc)}
        described.append(pa.field(_utf8(name), columns[-1].type, metadata=meta))
    meta = {
        "title": _utf8(sheet.title),
        "caption": _utf8(sheet.caption),
        "omitted": str(sheet.omitted),
    }
    return pa.Table.from_arrays(columns, schema=pa.schema(described, metadata=meta))


def _array(values: list[Cell], unit: Unit, pa: Any) -> Any:
    """The column in the narrowest type that holds every value exactly: text where nothing else does."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        empty = pa.int64() if unit in _WHOLE else pa.string() if unit == "text" else pa.float64()
        return pa.array(values, empty)
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {int} and all(-(2**63) <= v < 2**63 for v in values if isinstance(v, int)):
        return pa.array(values, pa.int64())
    if kinds <= {int, float} and all(_fits(value) for value in values):
        floats = [_finite(value) for value in values]
        return pa.array(floats, pa.float64())
    return pa.array([None if v is None else _utf8(str(v)) for v in values], pa.string())


def _fits(value: Cell) -> bool:
    """Whether a float holds the number exactly."""
    return not isinstance(value, int) or abs(value) <= 2**53


def _finite(value: Cell) -> float | None:
    """The number as a float; what is missing or not finite is unknown."""
    if not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def _utf8(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, as escapes; otherwise as recorded."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
