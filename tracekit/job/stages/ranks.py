"""Chart of many ranks by stage: the own work of each beyond the median rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from tracekit.job.frames import (
    divide_or_none,
    phrase_run,
    select_distinct_rows,
    sum_columns_by_keys,
    summarize_job_steps,
    to_text_or_none,
)
from tracekit.job.rank_groups import MEMBER, RankGroup, list_rank_groups, phrase_rank_group
from tracekit.model.keys import group_rows_by, iterate_records
from tracekit.model.labels import format_numbered_word, join_phrase, make_natural_key
from tracekit.model.report import Chart
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

LEAST_RANKS = 32
"""Fewest ranks that get a chart; fewer are read from a table."""

MOST_ROWS, MOST_STAGES, MOST_CHARTS = 128, 12, 4
"""Most rows and columns of one chart, and most charts."""

MOST_RANKS = 64
"""Most ranks with a row each; with more, a row is a host or several neighbouring ranks."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def draw_rank_stage_matrices(measured: Measurements) -> tuple[Chart, ...]:
    """Draw a matrix for each rank group with so many ranks that a table shows only some of them."""
    hosts = measured.derived(map_ranks_to_hosts)
    large = (group for group in list_rank_groups(measured) if group.members >= LEAST_RANKS)
    charts = []
    for number, rank_group in enumerate(islice(large, MOST_CHARTS), 1):
        of_group = hosts.get(rank_group.labels, {})
        charts.append(_draw_rank_stage_matrix(measured, rank_group, of_group, f"-{number}" if number > 1 else ""))
    return tuple(charts)


def map_ranks_to_hosts(measured: Measurements) -> Mapping[tuple[str | None, str | None, int | None], Mapping[int, str]]:
    """Map each rank to its host, as far as it is known, by rank group."""
    captures = measured["captures"]
    captures = captures[captures["rank"].notna() & captures["host"].notna()]
    columns = ("run", "role", "replica", "rank", "host")
    hosts: dict[tuple[str | None, str | None, int | None], dict[int, str]] = {}
    for run, role, replica, rank, host in iterate_records(select_distinct_rows(captures, columns), columns):
        hosts.setdefault((run, role, replica), {})[rank] = host
    return hosts


def _draw_rank_stage_matrix(
    measured: Measurements, rank_group: RankGroup, hosts: Mapping[int, str], suffix: str
) -> Chart:
    """Draw the matrix of one rank group: the stages with most own work, the largest first."""
    ranks, stages, own_ns = _sum_own_work_by_rank_and_stage(rank_group)
    by_work = np.argsort(-np.nansum(own_ns, axis=0), kind="stable")[:MOST_STAGES]
    columns = by_work.tolist()
    beyond = (own_ns - np.nanmedian(own_ns, axis=0))[:, columns]
    rows = _group_ranks_into_rows(ranks, hosts)
    marks = []
    for row, places in enumerate(rows.values()):
        for column, value in enumerate(np.fmax.reduce(beyond[places], axis=0).tolist()):
            marks.append((row, column, None if np.isnan(value) else round(value)))
    is_single = len(rows) == len(ranks)
    most_ns = float(np.nanmax(beyond, initial=0.0))
    return Chart(
        f"rank-stages{suffix}",
        f"Own work beyond the median rank, by {'rank' if is_single else 'ranks'} and stage"
        f"{phrase_rank_group(measured, rank_group)}{phrase_run(measured, rank_group.run)}",
        "matrix",
        tuple(marks),
        tuple(map(stages.__getitem__, columns)),
        tuple(rows),
        caption=_describe_rank_stage_cells(measured, rank_group, most_ns, None if is_single else len(rows)),
        omitted=len(rows) * (len(stages) - len(columns)),
        run=to_text_or_none(rank_group.run),
        roles=(rank_group.role,) * len(ranks) if is_single else (),
        ranks=tuple(int(ranks[places[0]]) for places in rows.values()) if is_single else (),
    )


def _sum_own_work_by_rank_and_stage(rank_group: RankGroup) -> tuple[Ints, list[str], Floats]:
    """Sum own work per step: (ranks, stages, work of each rank in each stage, NaN where none); the busiest device."""
    sums = sum_columns_by_keys(rank_group.work, [*MEMBER, "canonical"], ["own_ns"])
    ranks, row = np.unique(sums["rank"].to_numpy(np.int64), return_inverse=True)
    column, first = group_rows_by(sums, ["canonical"])
    stages = [to_text_or_none(name) or "the step" for name in sums["canonical"].iloc[first]]
    own_ns = np.full((len(ranks), len(stages)), np.nan)
    values = sums["own_ns"].to_numpy(np.int64) / rank_group.steps
    np.fmax.at(own_ns, (row, column), values)
    return ranks, stages, own_ns


def _group_ranks_into_rows(ranks: Ints, hosts: Mapping[int, str]) -> dict[str, list[int]]:
    """Group the places of ranks into named rows: a rank, a host, or several neighbours."""
    numbers = ranks.tolist()
    on_hosts = len(set(hosts.values())) > 1
    if len(numbers) <= MOST_RANKS:
        by_name = sorted(range(len(numbers)), key=lambda place: make_natural_key(hosts.get(numbers[place], "")))
        return {
            join_phrase(hosts.get(numbers[place], "") * on_hosts, format_numbered_word("rank", numbers[place])): [place]
            for place in by_name
        }
    if on_hosts and hosts.keys() >= set(numbers):
        of_host: dict[str, list[int]] = {}
        for place, rank in enumerate(numbers):
            of_host.setdefault(hosts[rank], []).append(place)
        names = sorted(of_host, key=make_natural_key)
        return _join_neighbouring_rows(names, list(map(of_host.__getitem__, names)), MOST_ROWS)
    return _join_neighbouring_rows(
        [f"rank {rank}" for rank in numbers], [[place] for place in range(len(numbers))], MOST_RANKS
    )


def _join_neighbouring_rows(names: Sequence[str], places: Sequence[list[int]], max_rows: int) -> dict[str, list[int]]:
    """Join neighbours into at most this many rows of equal size."""
    size = -(-len(names) // max_rows)
    rows = {}
    for start in range(0, len(names), size):
        of_row = names[start : start + size]
        name = of_row[0] if len(of_row) == 1 else f"{of_row[0]} – {of_row[-1]}"
        rows[name] = list(chain.from_iterable(places[start : start + size]))
    return rows


def _describe_rank_stage_cells(measured: Measurements, rank_group: RankGroup, most_ns: float, rows: int | None) -> str:
    """Describe what a cell shows, and the longest one as a share of a step."""
    step_ns = summarize_job_steps(measured).select_run(rank_group.run).step_ns
    share = divide_or_none(most_ns, step_ns)
    of_step = f" ({format_quantity(share, 'ratio')} of it)" if share is not None else ""
    parts = [
        "Per step; wall of the stage less time blocked in collectives, less the median of all ranks.",
        f"The longest is {format_quantity(most_ns, 'ns')} a step{of_step} beyond it.",
        "All numbers are in the table of own work by stage and rank.",
    ]
    if rows is not None:
        parts.insert(1, f"{rank_group.members:,} ranks in {rows} rows: a cell is the longest of its ranks.")
    return " ".join(parts)
