"""Numbers that support a finding."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.report import Better, Metric, Unit

UNITS_BY_SUFFIX: Mapping[str, Unit] = {
    "_ns": "ns",
    "_bytes": "bytes",
    "_ratio": "ratio",
    "_count": "count",
    "gb_per_s": "gb_per_s",
}
"""Unit of a number by the suffix of its name."""


def make_evidence_metric(name: str, value: float | None, label: str = "", *, better: Better = "lower") -> Metric:
    """Make a number that supports a finding, in the unit that its name ends with.

    >>> make_evidence_metric("wait_ns", 5, "per step")
    Metric(name='wait_ns', value=5, unit='ns', better='lower', low=None, high=None, label='per step', bounds='')
    """
    unit = next(unit for suffix, unit in UNITS_BY_SUFFIX.items() if name.endswith(suffix))
    return Metric(name, value, unit, better, label=label)
