"""Number types of the matmuls of a run."""

from __future__ import annotations

from tracekit.model.tables.frame import sum_of
from tracekit.model.trace import Measurements

_TYPE_SHARE = 0.05
"""A type with a smaller share of the matmul FLOPs does not characterize a run."""


def list_number_types(measured: Measurements) -> str:
    """List the number types of the matmuls, if operand types were recorded."""
    if not measured.row_count("matrix_products"):
        return ""
    rows = measured.frame("matrix_products")
    rows = rows.filter(~rows.is_missing("type") & (rows.integers("flop_count") > 0))
    types = rows.group_by("type").agg(flops=sum_of(rows.number("flop_count")))
    types = types.filter(types["flops"] >= _TYPE_SHARE * types["flops"].sum())
    return ", ".join(sorted(types.values("type")))
