"""The report's tables as Parquet: typed columns, with unit and title in their metadata."""

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
    """The bytes of one Parquet file a table, by file name."""
    pa, pq = pyarrow_or_refuse()
    files = {}
    for name, sheet in tables(report).items():
        out = BytesIO()
        pq.write_table(arrow_table(sheet, pa), out, compression="zstd")
        files[f"{name}.parquet"] = out.getvalue()
    return files


def pyarrow_or_refuse() -> tuple[Any, Any]:
    """(pyarrow, its module for Parquet); raises where they are not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TracekitError("parquet needs pyarrow", install_command("parquet")) from None
    return pa, pq


def arrow_table(sheet: Sheet, pa: Any) -> Any:
    """The sheet as a pyarrow table."""
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
    """The column in the narrowest type that holds every value exactly: text where nothing else does."""
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
    """The type of a column without a value."""
    if unit in _WHOLE:
        return pa.int64()
    return {"text": pa.string()}.get(unit, pa.float64())


def _is_int64(value: Cell) -> bool:
    """Whether the number is none that 64 bits do not hold."""
    return not isinstance(value, int) or -(2**63) <= value < 2**63


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
