"""Tables of a report as Parquet: typed columns with unit and title in their metadata."""

from __future__ import annotations

from io import BytesIO
from math import isfinite
from operator import itemgetter
from types import NoneType
from typing import Any

from tracekit.model.errors import TracekitError
from tracekit.model.installed import install_command
from tracekit.model.report import Cell, Report, Sheet, Unit
from tracekit.render.options import Options
from tracekit.render.tables import column_names, tables

_WHOLE: tuple[Unit, ...] = ("ns", "bytes", "count", "id")


def render_parquet(report: Report, _options: Options) -> dict[str, bytes]:
    """Render one Parquet file per table, by file name."""
    pa, pq = pyarrow_or_refuse()
    files = {}
    for name, sheet in tables(report).items():
        out = BytesIO()
        pq.write_table(arrow_table(sheet, pa), out, compression="zstd")
        files[f"{name}.parquet"] = out.getvalue()
    return files


def pyarrow_or_refuse() -> tuple[Any, Any]:
    """Import pyarrow and its Parquet module; raises TracekitError if they are not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TracekitError("parquet needs pyarrow", install_command("parquet")) from None
    return pa, pq


def arrow_table(sheet: Sheet, pa: Any) -> Any:
    """Convert a sheet to a pyarrow table."""
    columns, described = [], []
    for index, (name, heading) in enumerate(zip(column_names(sheet), sheet.headings, strict=True)):
        values = list(map(itemgetter(index), sheet.rows))
        columns.append(_array(values, heading.unit, pa))
        meta = {"unit": heading.unit, "title": _utf8(heading.title), "doc": _utf8(heading.doc)}
        described.append(pa.field(_utf8(name), columns[-1].type, metadata=meta))
    meta = {"title": _utf8(sheet.title), "caption": _utf8(sheet.caption)}
    meta["omitted"] = str(sheet.omitted)
    return pa.Table.from_arrays(columns, schema=pa.schema(described, metadata=meta))


def _array(values: list[Cell], unit: Unit, pa: Any) -> Any:
    """Convert a column to the narrowest type that holds every value exactly, or to text."""
    kinds = set(map(type, values)) - {NoneType}
    if not kinds:
        return pa.array(values, _empty_type(unit, pa))
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {int} and all(map(_is_int64, values)):
        return pa.array(values, pa.int64())
    if kinds <= {int, float} and all(map(_fits, values)):
        return pa.array(list(map(_finite, values)), pa.float64())
    texts = [None if value is None else _utf8(str(value)) for value in values]
    return pa.array(texts, pa.string())


def _empty_type(unit: Unit, pa: Any) -> Any:
    """Choose the type of a column without values."""
    if unit in _WHOLE:
        return pa.int64()
    return {"text": pa.string()}.get(unit, pa.float64())


def _is_int64(value: Cell) -> bool:
    """Check whether a number is not an integer beyond 64 bits."""
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _fits(value: Cell) -> bool:
    """Check whether a float represents the number exactly."""
    return not isinstance(value, int) or abs(value) <= 2**53


def _finite(value: Cell) -> float | None:
    """Convert a number to a float; None if it is missing or not finite."""
    if not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def _utf8(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
