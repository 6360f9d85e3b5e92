"""Samples of rollout engines: the values of one line or scrape in one row, and the rates that counters give."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import Coded, Nullable
from tracekit.model.tables.frame import Frame, last_of

SAMPLED_LEVELS = (
    *("running", "waiting", "kv_ratio", "generation_tokens_per_s", "prompt_tokens_per_s", "prefix_hit_ratio"),
    "preemptions",
)
"""Columns of a sample; `preemptions` counts those since the sample before."""

Array = npt.NDArray[Any]


def make_engine_samples(rows: Frame) -> dict[str, Any]:
    """Put the values of one engine in one line or scrape into one row; settings are not samples."""
    rows = rows.filter(~rows.equals("kind", "setting"))
    groups = rows.group_by("system", "engine", "line")
    heads = groups.agg(ts_ns=last_of("ts_ns"))
    if not len(heads):
        return {}
    count = len(heads)
    value, keys = rows.number("value"), rows["key"]
    of_total = rows.equals("kind", "total")
    columns: dict[str, Array] = {name: np.full(count, np.nan) for name in SAMPLED_LEVELS}
    for name in SAMPLED_LEVELS:
        among = _mark_key(keys, name) & ~of_total
        columns[name][groups.number[among]] = value[among]
    engine = heads.group_by("system", "engine").number
    for name in ("preemptions", "generation_tokens", "prompt_tokens", "prefix_hits", "prefix_queries"):
        among = _mark_key(keys, name) & of_total
        if among.any():
            total = np.full(count, np.nan)
            total[groups.number[among]] = value[among]
            columns[f"{name}_since"] = _difference_totals(total, engine)
    _add_scraped_levels(columns, heads, engine)
    _fill_unprinted_preemptions(columns, heads)
    known = {name: Nullable(np.nan_to_num(columns[name]), np.isnan(columns[name])) for name in SAMPLED_LEVELS}
    order = np.lexsort((heads.integers("line"), engine))
    made = Frame({**heads.columns, **known}, count).take(order)
    return {name: made[name] for name in ("system", "engine", "line", "ts_ns", *SAMPLED_LEVELS)}


def _mark_key(keys: Coded, name: str) -> npt.NDArray[np.bool_]:
    """Mark the rows of one quantity."""
    return np.isin(keys.codes, [code for code, text in enumerate(keys.texts) if text == name])


def _difference_totals(total: Array, engine: Array) -> Array:
    """Difference a counter per engine; one that falls was reset and counts from 0. The first is unknown."""
    since = np.full(len(total), np.nan)
    known = np.flatnonzero(~np.isnan(total))
    known = known[np.argsort(engine[known], kind="stable")]
    step = np.diff(total[known])
    same = np.diff(engine[known]) == 0
    since[known[1:][same]] = np.where(step < 0, total[known[1:]], step)[same]
    return since


def _add_scraped_levels(columns: dict[str, Array], heads: Frame, engine: Array) -> None:
    """Add the rates and the hit ratio that counters of consecutive scrapes give."""
    seconds = np.full(len(heads), np.nan)
    timed = np.where(heads.is_missing("ts_ns"), np.nan, heads.integers("ts_ns") / 1e9)
    order = np.argsort(engine, kind="stable")
    same = np.diff(engine[order]) == 0
    seconds[order[1:][same]] = np.diff(timed[order])[same]
    with np.errstate(divide="ignore", invalid="ignore"):
        for name, source in (("generation", "generation_tokens_since"), ("prompt", "prompt_tokens_since")):
            if source in columns:
                rate = np.where(seconds > 0, columns[source] / seconds, np.nan)
                _fill_gaps(columns[f"{name}_tokens_per_s"], rate)
        if {"prefix_hits_since", "prefix_queries_since"} <= columns.keys():
            queries = columns["prefix_queries_since"]
            _fill_gaps(
                columns["prefix_hit_ratio"], np.where(queries > 0, columns["prefix_hits_since"] / queries, np.nan)
            )
    if "preemptions_since" in columns:
        _fill_gaps(columns["preemptions"], columns["preemptions_since"])


def _fill_gaps(level: Array, other: Array) -> None:
    """Fill the missing values of a level from another array, in place."""
    gaps = np.isnan(level)
    level[gaps] = other[gaps]


def _fill_unprinted_preemptions(columns: dict[str, Array], heads: Frame) -> None:
    """Set the preemptions of samples that print none to 0, where the log prints them if there are any.

    vLLM prints them only above 0; SGLang logs every retraction. A vLLM log without any does not show
    whether its version counts them.
    """
    unknown = np.isnan(columns["preemptions"]) & ~np.isnan(columns["running"])
    has_any = bool((~np.isnan(columns["preemptions"])).any()) and "preemptions_since" not in columns
    is_sglang_log = heads.equals("system", "sglang") & ("generation_tokens_since" not in columns)
    columns["preemptions"][unknown & (has_any | is_sglang_log)] = 0.0
