"""Stages by role, step and rank: the RL matrix, from traces and the driver's log (Q1–Q3; R43).

Each cell has a state: in a trace, only timed by the driver, not applicable, or missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.driver_log import map_run_driver_logs, match_logged_steps
from tracekit.job.frames import (
    aggregate_by_keys,
    find_equal_rows,
    list_stage_rows,
    make_label_headings,
    narrow_exact_floats,
    phrase_run,
    split_by_keys,
    stack_frames,
    to_text_or_none,
)
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.ranks_to_plot import choose_rows_to_plot
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.durations import compute_stage_shares_of_step, measure_stage_walls
from tracekit.job.stages.matrix import average_stage_walls_by_rank, build_stage_cells, list_timed_units
from tracekit.job.stages.periodic import (
    CHECKPOINT,
    MOST_NAMED,
    PeriodicStage,
    describe_periodic_stages,
    find_logged_periodic_stages,
    list_periodic_stages,
)
from tracekit.model.report import Chart, Finding, Heading, Metric, Place, Section, Sheet
from tracekit.model.stages import VALIDATION
from tracekit.model.tables.keys import group_rows_by, left_join, number_frames_alike
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

MAX_COLUMNS = 6
"""Maximum number of steps or ranks in columns."""

MAX_SERIES = 12
"""Maximum number of stages in the chart."""

RESIDUAL = "(in no stage)"


def measure(_trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads steps, stages and logged timers."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report stages by role, step and rank with the state of every cell, and the residual outside any stage; judge R43."""
    walls, known_logs = list_timed_units(measured), map_run_driver_logs(measured)
    if not len(list_stage_rows(measured)) and not known_logs:
        return ANALYSIS.skipped("no stage is annotated and no driver's log was given")
    all_cells = cache(lambda: build_stage_cells(measured))
    return ANALYSIS.answered(
        metrics=lambda: _list_matrix_metrics(all_cells(), walls),
        sheets=lambda: select_filled_sheets(*_make_rl_matrix_tables(measured, all_cells(), walls)),
        findings=tuple(_find_periodic_stages(measured, thresholds)),
        caveats=lambda: _list_matrix_caveats(measured, all_cells(), walls),
        charts=lambda: _draw_stages_by_rank(measured),
    )


CHORE_ADVICE = {
    CHECKPOINT: "write checkpoints asynchronously (torch.distributed.checkpoint.async_save), or less often",
    VALIDATION: "validate less often, on fewer samples, or on other GPUs",
}


def _find_periodic_stages(measured: Measurements, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R43: validation, checkpoints and other scheduled stages that take much of the time."""
    limit = thresholds.of("periodic-stage")["step_ratio"]
    for stage in list_periodic_stages(measured):
        if not stage.is_chore or stage.share < limit:
            continue
        # Without a period it is unknown how often the stage runs: its share of this recording may be chance.
        is_known = stage.every is not None
        yield Finding(
            "periodic-stage",
            thresholds.severity(stage.share) if is_known else "info",
            f"{_name_periodic_stage(measured, stage)} takes {format_quantity(stage.wall_ns, 'ns')} {stage.how_often}: "
            f"{format_quantity(stage.share, 'ratio')} of the time{phrase_run(measured, stage.run)}",
            CHORE_ADVICE.get(stage.canonical, "run it less often, or beside training"),
            (
                make_evidence_metric("stage_ns", round(stage.wall_ns), "each time, on the longest rank"),
                make_evidence_metric("step_count", stage.present, "steps with it", better="neither"),
            ),
            (Place(role=stage.role, stage=stage.canonical, run=to_text_or_none(stage.run)),),
            round(stage.per_step_ns),
            stage.share,
            ("a planned stage: the saving depends on how much less often or shorter it can run",),
        )


def _name_periodic_stage(measured: Measurements, stage: PeriodicStage) -> str:
    """Name the stage, with its recorded name where that differs."""
    rows = list_stage_rows(measured)
    names = rows["stage"][(rows["canonical"] == stage.canonical).to_numpy(np.bool_)]
    recorded = str(names.iloc[0]) if len(names) else stage.canonical
    return stage.canonical if recorded == stage.canonical else f"{stage.canonical} ({recorded})"


def _make_rl_matrix_tables(measured: Measurements, all_cells: pd.DataFrame, walls: pd.DataFrame) -> Iterator[Sheet]:
    """Make the tables of the matrix, of stages by rank, and of cells that no trace has."""
    yield _make_stage_matrix_table(measured, all_cells, walls)
    yield _make_rank_stage_table(measured)
    if (all_cells["state"] != "measured").any():
        yield _make_missing_stage_table(measured, all_cells)


CELL_STATE_TITLES = {
    "measured": "in trace",
    "log": "only in log",
    "not applicable": "not applicable",
    "missing": "missing",
}
"""States of a cell, in words."""


def _label_step(step: object, part: object) -> str:
    """Label a step or capture at the head of a column."""
    return f"step {int(step)}" if pd.notna(step) else str(part) if pd.notna(part) else "capture"  # type: ignore[call-overload]


def _list_steps_in_words(group: pd.DataFrame) -> str:
    """List steps or captures in words, up to four by name."""
    names = list(dict.fromkeys(group["unit"]))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


_STAGE_KEYS = ["run", "role", "canonical"]


def _make_stage_matrix_table(measured: Measurements, all_cells: pd.DataFrame, walls: pd.DataFrame) -> Sheet:
    """Make the table of stages by step, longest first.

    Shows logged times only in rows of stages that no trace has.
    """
    all_cells, rest_cells = _add_step_labels(all_cells), _compute_residual_cells(walls)
    stage, first = group_rows_by(all_cells, _STAGE_KEYS)
    in_trace = np.isin(stage, stage[all_cells["wall_ns"].notna().to_numpy()])
    all_cells["shown_ns"] = all_cells["wall_ns"].where(in_trace, all_cells["logged_ns"])
    all_cells["traced_ns"] = all_cells["wall_ns"]
    counts: list[Counter[str]] = [Counter() for _ in first]
    for number, state in zip(stage.tolist(), all_cells["state"], strict=True):
        counts[number][state] += 1
    states = list(map(_describe_cell_states, counts, all_cells["canonical"].array[first]))
    rest_states = [_describe_residual_state(rows) for rows in split_by_keys(rest_cells, _STAGE_KEYS)]
    matrix = _average_stage_cells(all_cells).assign(state=states, last=False)
    both = stack_frames([matrix, _average_stage_cells(rest_cells).assign(state=rest_states, last=True)])
    columns, caption = _choose_matrix_columns(walls, all_cells)
    caption = f"{caption} {_describe_stage_periods(measured)}".strip()
    cut = pd.concat([frame[[*_STAGE_KEYS, "unit", "shown_ns"]] for frame in (all_cells, rest_cells)])
    both, chosen = _add_columns_by_step(both, cut, "shown_ns", columns)
    mean = aggregate_by_keys(walls, ["run"], step=("wall_ns", "mean"))
    both = left_join(both, mean, ["run"], optional=["run"])
    step_ns = both["step"].astype("Float64")
    of_mean = both["traced_ns"].astype("Float64") / step_ns.where(step_ns > 0)
    both["share_ratio"] = of_mean.where(both["last"], _compute_stage_shares(measured, both))
    both["mean_ns"] = narrow_exact_floats(both["shown_ns"])
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            mean_ns | mean | ns | Over the steps that have the stage, of the longest rank.
            share_ratio | of step | ratio | Of all steps, including steps without it; roles may overlap.
        """),
        *chosen,
        Heading("state", "known from"),
    )
    return make_sheet("matrix", "Stages by step", headings, _sort_matrix_rows(both, "shown_ns"), caption=caption)


def _compute_stage_shares(measured: Measurements, rows: pd.DataFrame) -> pd.Series[Any]:
    """Compute each row's stage as a share of the step; missing where no trace has the stage."""
    walls = measure_stage_walls(measured)
    shares = walls[_STAGE_KEYS].assign(share=compute_stage_shares_of_step(walls))
    share: pd.Series[Any] = left_join(rows[_STAGE_KEYS], shares, _STAGE_KEYS, optional=_STAGE_KEYS)["share"]
    return share.set_axis(rows.index)


def _describe_stage_periods(measured: Measurements) -> str:
    """Describe the period of stages that only some steps have: from the traces, else from the driver's log."""
    stages = list_periodic_stages(measured)
    in_traces = {(stage.run, stage.canonical) for stage in stages}
    in_logs = []
    for run, log in map_run_driver_logs(measured).items():
        for stage in find_logged_periodic_stages(log, run):
            if (run, stage.canonical) not in in_traces:
                in_logs.append(f"{stage.sentence(measured)} (driver's log).")
    return " ".join((describe_periodic_stages(measured), *in_logs[:MOST_NAMED])).strip()


def _average_stage_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Average the shown and traced times of every stage."""
    times = {name: (name, "mean") for name in ("shown_ns", "traced_ns")}
    return aggregate_by_keys(rows, _STAGE_KEYS, **times)


def _add_step_labels(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the column `unit`: the label of each row's step or capture."""
    labels = [_label_step(*key) for key in zip(frame["step"], frame["part"], strict=True)]
    return frame.assign(unit=pd.Series(labels, index=frame.index, dtype=object))


def _compute_residual_cells(walls: pd.DataFrame) -> pd.DataFrame:
    """Compute the time of each step outside any stage of any process, as cells of the stage `RESIDUAL` (Q3)."""
    rest_rows = _add_step_labels(walls).assign(role=None, canonical=RESIDUAL)
    gap = rest_rows["wall_ns"].astype("Int64") - rest_rows["attributed_ns"]
    rest_rows["shown_ns"] = rest_rows["traced_ns"] = gap.where((rest_rows["origin"] != "stage").to_numpy())
    return rest_rows


def _add_columns_by_step(
    rows: pd.DataFrame, cells_of: pd.DataFrame, value: str, columns: list[str]
) -> tuple[pd.DataFrame, list[Heading]]:
    """Add a column per unit with the longest value of each stage: (rows, headings of the new columns)."""
    headings, rows = [], rows.copy(deep=False)
    of_columns = cells_of[cells_of["unit"].isin(columns)]
    longest = aggregate_by_keys(of_columns, [*_STAGE_KEYS, "unit"], longest=(value, "max"))
    of_row, of_longest = number_frames_alike(_STAGE_KEYS, rows, longest)
    for name in columns:
        key = f"in_{name.replace(' ', '_')}"
        of_unit = np.flatnonzero((longest["unit"] == name).to_numpy(np.bool_))
        place = np.full(int(max(of_row.max(initial=0), of_longest.max(initial=0))) + 1, -1)
        place[of_longest[of_unit]] = of_unit
        values = longest["longest"].array.take(place[of_row], allow_fill=True)
        rows[key] = narrow_exact_floats(pd.Series(values, copy=False))
        headings.append(Heading(key, name, "ns"))
    return rows, headings


def _sort_matrix_rows(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Sort the rows by run, longest first, with the residual last."""
    value = rows[by].to_numpy(np.float64, na_value=-np.inf)
    is_last = rows["last"].to_numpy(np.bool_)
    return rows.iloc[np.lexsort((-value, is_last, group_rows_by(rows, ["run"])[0]))]


def _choose_matrix_columns(walls: pd.DataFrame, all_cells: pd.DataFrame) -> tuple[list[str], str]:
    """Choose the units that get a column: (their names, caption).

    These are all units in order, or the longest `MAX_COLUMNS`, longest first.
    """
    walls = _add_step_labels(walls)
    in_order = list(dict.fromkeys(walls["unit"] if len(walls) else all_cells["unit"]))
    caption = "Host wall of the longest rank."
    if len(in_order) <= MAX_COLUMNS:
        return in_order, caption
    longest = walls.groupby("unit", sort=False)["wall_ns"].max()
    chosen = list(longest.sort_values(ascending=False, kind="stable").index) or in_order
    more = f"The {MAX_COLUMNS} longest of {len(in_order)} steps, the longest first."
    return chosen[:MAX_COLUMNS], f"{caption} {more}"


def _describe_cell_states(counts: Counter[str], stage: object) -> str:
    """Describe how one stage is known over all units of its run."""
    total = counts.total()
    states = []
    for state, word in CELL_STATE_TITLES.items():
        if counts[state]:
            states.append(word if counts[state] == total else f"{counts[state]} of {total} {word}")
    return "; ".join(states) + (" (validation, no part of a training step)" if stage == VALIDATION else "")


def _describe_residual_state(group: pd.DataFrame) -> str:
    """Describe how the residual is known, or why it is not."""
    if (group["origin"] == "stage").all():
        return "not recorded: stages were captured one by one"
    if group["attributed_ns"].isna().all():
        return "no stage is annotated in the traces"
    return "step less all stages of all processes"


def _make_rank_stage_table(measured: Measurements) -> Sheet:
    """Make the table of stages by rank with the residual of each rank; shows the ranks with most time."""
    walls = measured.derived(average_stage_walls_by_rank).copy(deep=False)
    walls["unit"] = [f"rank {r}" if pd.notna(r) else "rank unknown" for r in walls["rank"]]
    walls["last"] = walls["canonical"].isna().to_numpy()
    walls["canonical"] = walls["canonical"].astype(object).fillna(RESIDUAL)
    total = walls.groupby("unit", sort=False)["wall_ns"].sum()
    by_total = list(total.sort_values(ascending=False, kind="stable").index)
    chosen = sorted(by_total[:MAX_COLUMNS], key=lambda name: (len(name), name))
    caption = (
        "Host wall per step of each rank, waiting for other ranks included. "
        f"{RESIDUAL}: of the rank's own step; other roles may work meanwhile."
    )
    if len(by_total) > MAX_COLUMNS:
        caption += f" The {MAX_COLUMNS} of {len(by_total)} ranks with most time."
    out = aggregate_by_keys(walls, [*_STAGE_KEYS, "last"], wall_ns=("wall_ns", "max"))
    out, headings = _add_columns_by_step(out, walls, "wall_ns", chosen)
    out["wall_ns"] = narrow_exact_floats(out["wall_ns"])
    by_rank_rows = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            wall_ns | longest rank | ns
        """),
        *headings,
    )
    return make_sheet("ranks", "Stages by rank", by_rank_rows, _sort_matrix_rows(out, "wall_ns"), caption=caption)


def _draw_stages_by_rank(measured: Measurements) -> list[Chart]:
    """Draw the step of every rank as a bar of its stages, the residual last."""
    walls = measured.derived(average_stage_walls_by_rank).copy(deep=False)
    if not len(walls):
        return []
    walls["canonical"] = walls["canonical"].astype(object).fillna(RESIDUAL)
    several = len(walls["run"].unique()) > 1
    walls["bar"] = [
        _label_rank_bar(run if several else None, role, rank).strip()
        for run, role, rank in zip(walls["run"], walls["role"], walls["rank"], strict=True)
    ]
    by_stage = walls.groupby("canonical", sort=False)["wall_ns"].sum()
    by_stage = by_stage.sort_values(ascending=False, kind="stable").drop(RESIDUAL, errors="ignore")
    series = [*by_stage.index[:MAX_SERIES], *([RESIDUAL] if (walls["canonical"] == RESIDUAL).any() else [])]
    bars = list(dict.fromkeys(walls["bar"]))
    total = walls.groupby("bar", sort=False)["wall_ns"].sum()
    chosen = choose_rows_to_plot({str(bar): float(ns) for bar, ns in total.items()}, "the time of all stages")
    bars = [bar for bar in bars if bar in chosen.rows]
    place = {bar: number for number, bar in enumerate(bars)}
    drawn_walls = walls[walls["canonical"].isin(series) & walls["bar"].isin(bars)]
    marks = tuple(
        (place[bar], series.index(stage), round(wall))
        for bar, stage, wall in zip(drawn_walls["bar"], drawn_walls["canonical"], drawn_walls["wall_ns"], strict=True)
        if pd.notna(wall)
    )
    return [
        Chart(
            "stages_by_rank",
            "The step of every rank by stage",
            "bars",
            marks,
            tuple(series),
            tuple(chosen.rows[bar] for bar in bars),
            caption=f"Host wall per step, mean over steps. {chosen.note}".strip(),
            omitted=len(walls) - len(drawn_walls),
        )
    ]


def _label_rank_bar(run: object, role: object, rank: object) -> str:
    """Label the bar of a rank."""
    names = [str(part) for part in (run, role) if to_text_or_none(part) is not None]
    number = "rank unknown" if to_text_or_none(rank) is None else f"rank {rank}"
    return f"{' · '.join(names)} {number}"


def _make_missing_stage_table(measured: Measurements, all_cells: pd.DataFrame) -> Sheet:
    """Make the table of cells that no trace has, with the reason and the logged time."""
    missing_cells = _add_step_labels(all_cells[all_cells["state"] != "measured"])
    by = ["run", "role", "canonical", "state"]
    grouped = missing_cells.groupby(by, dropna=False, sort=False)
    out = grouped["logged_ns"].mean().reset_index()
    out["where"] = [_list_steps_in_words(group) for _, group in grouped]
    seen = {
        run: set(all_cells[find_equal_rows(all_cells["run"], run) & (all_cells["state"] == "measured")]["canonical"])
        for run in all_cells["run"].unique()
    }
    out["why"] = [
        _explain_missing_cell(state, canonical, is_known=canonical in seen[run])
        for run, canonical, state in zip(out["run"], out["canonical"], out["state"], strict=True)
    ]
    order = list(CELL_STATE_TITLES)
    out["at"] = out["state"].map(order.index)
    out = out.sort_values(["at", "logged_ns"], ascending=[True, False], kind="stable")
    out["state"] = out["state"].map(CELL_STATE_TITLES)
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            state | state
            where | in
            logged_ns | in log | ns | As the driver timed it, mean over these steps.
            why | why
        """),
    )
    return make_sheet("not_measured", "Stages that the traces do not hold", headings, out)


def _explain_missing_cell(state: str, stage: str, *, is_known: bool) -> str:
    """Explain why no trace has a cell; `is_known` is whether other cells of the stage were measured."""
    if state == "log":
        if is_known:
            return "the driver timed it; no capture of that role and step holds it"
        return "the driver timed it; the processes that ran it were not captured, or not annotated"
    if state == "missing":
        return "other steps hold it; it may have been skipped or not captured: no log tells"
    return {
        "old_log_prob": "the driver timed none: log-probs of the rollout are used (bypass), or of the update",
        "ref": "the driver timed none: no reference policy, or the actor's own pass serves as reference",
        "values": "the driver timed none: no critic (GRPO and its like)",
        "update_critic": "the driver timed none: no critic (GRPO and its like)",
        "update_weights": "the driver timed none: rollout and training share their weights, or it is not timed",
    }.get(stage, "the driver timed none in this step: it did not run")


def _list_matrix_metrics(all_cells: pd.DataFrame, walls: pd.DataFrame) -> list[Metric]:
    """List the number of cells by state, and the residual per step."""
    counts = all_cells["state"].value_counts()
    out = [
        Metric(f"cells_{state.replace(' ', '_')}", int(counts[state]), "count", label=f"cells {word}")
        for state, word in CELL_STATE_TITLES.items()
        if state in counts
    ]
    timed = walls[walls["attributed_ns"].notna() & (walls["origin"] != "stage")]
    if len(timed):
        rest_ns = (timed["wall_ns"].astype("Int64") - timed["attributed_ns"]).astype(float)
        low = high = None
        if len(rest_ns) > 1:
            low, high = float(rest_ns.min()), float(rest_ns.max())
        out.append(Metric("residual", float(rest_ns.mean()), "ns", "lower", low, high, "in no stage, per step"))
    return out


def _list_matrix_caveats(measured: Measurements, all_cells: pd.DataFrame, walls: pd.DataFrame) -> list[str]:
    """List the caveats on the matrix."""
    known_logs = map_run_driver_logs(measured)
    caveats = []
    if not known_logs:
        caveats.append("no driver's log was given: a stage that no trace holds may have run elsewhere, or not at all")
    for run, log in known_logs.items():
        of_run = walls[find_equal_rows(walls["run"], run)]
        if len(of_run) and not match_logged_steps(of_run, log):
            caveats.append(
                f"the traces do not say which steps of {log.source} they are: medians of the log stand for each{phrase_run(measured, run)}"
            )
    unused = set(measured["logged"]["source"].dropna()) - {log.source for log in known_logs.values()}
    if unused:
        caveats.append(f"{len(unused)} more logs of the same runs were not used")
    if (walls["origin"] == "stage").any():
        caveats.append("some steps were captured stage by stage: the time between their stages is not known")
    if len(all_cells) and (all_cells["canonical"] == VALIDATION).any():
        caveats.append(f"{VALIDATION} is validation: it lies in the capture but is no part of a training step")
    return caveats


ANALYSIS = Analysis(
    id="rl-matrix",
    title="Which role and stage costs the step, on which rank?",
    reads=("host_ops",),
    rests_on=("logged",),
    rules=("periodic-stage",),
    thresholds={
        "periodic-stage": {
            # Its time over all steps, as a share of theirs.
            "step_ratio": 0.02
        }
    },
    measure=measure,
    judge=judge,
)
