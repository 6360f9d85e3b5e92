"""Stages by role, step and rank: the RL matrix, from traces and the driver's log (Q1–Q3; R43).

Each cell has a state: in a trace, only timed by the driver, not applicable, or missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.driver_log import describe_unused_logs, find_logged_steps, map_run_driver_logs
from tracekit.job.frames import list_stage_ranges, make_label_headings, phrase_run
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import list_stage_runs, pick_instances
from tracekit.job.report.ranks_to_plot import choose_rows_to_plot
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.durations import measure_stage_durations
from tracekit.job.stages.matrix import average_stages_by_rank, list_stage_cells, list_units_with_cells
from tracekit.job.stages.periodic import (
    CHECKPOINT,
    MOST_NAMED,
    PeriodicStage,
    describe_periodic_stages,
    find_logged_periodic_stages,
    list_periodic_stages,
)
from tracekit.job.stages.windows import STAGE_KEY
from tracekit.model.report import Chart, Finding, Heading, Metric, Place, Section, Sheet
from tracekit.model.stages import VALIDATION
from tracekit.model.tables.frame import (
    Frame,
    choose,
    concat,
    count_of,
    divide,
    max_of,
    mean_of,
    narrow_whole_numbers,
    sum_of,
    texts,
    where,
)
from tracekit.model.text.changes import write_change
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity

MAX_COLUMNS = 6
"""Maximum number of steps or ranks in columns."""

MAX_SERIES = 12
"""Maximum number of stages in the chart."""

RESIDUAL = "(outside any stage)"


def measure(_trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads steps, stages and logged timers."""
    return {}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report stages by role, step and rank with the state of every cell, and the residual outside any stage; judge R43."""
    if not len(list_stage_ranges(measured)) and not map_run_driver_logs(measured):
        return ANALYSIS.skipped("no stage is annotated and no driver log was given")
    return ANALYSIS.answered(
        metrics=lambda: _list_matrix_metrics(list_stage_cells(measured), list_units_with_cells(measured)),
        sheets=lambda: select_filled_sheets(*_make_rl_matrix_tables(measured)),
        findings=tuple(_find_periodic_stages(measured, thresholds)),
        caveats=lambda: _list_matrix_caveats(measured),
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
            CHORE_ADVICE.get(stage.canonical, "run it less often, or in parallel with training"),
            (
                make_evidence_metric("stage_ns", round(stage.wall_ns), "each time, on the longest rank"),
                make_evidence_metric("step_count", stage.present, "steps with it", better="neither"),
            ),
            (Place(role=stage.role, stage=stage.canonical, run=stage.run),),
            round(stage.per_step_ns),
            stage.share,
            ("a planned stage: the saving depends on how much less often or shorter it can run",),
            changes=(write_change("remove", "range", stage=stage.canonical),),
            instances=pick_instances(list_stage_runs(measured, stage.canonical, stage.run, role={stage.role})),
        )


def _name_periodic_stage(measured: Measurements, stage: PeriodicStage) -> str:
    """Name the stage, with its recorded name where that differs."""
    rows = list_stage_ranges(measured)
    names = rows.filter(rows.equals("canonical", stage.canonical)).head(1).values("stage")
    recorded = names[0] if names else stage.canonical
    return stage.canonical if recorded == stage.canonical else f"{stage.canonical} ({recorded})"


def _make_rl_matrix_tables(measured: Measurements) -> Iterator[Sheet]:
    """Make the tables of the matrix, of stages by rank, and of cells that no trace has."""
    yield _make_stage_matrix_table(measured)
    yield _make_rank_stage_table(measured)
    yield _make_missing_stage_table(measured)


CELL_STATE_TITLES = {
    "measured": "in trace",
    "log": "only in log",
    "not applicable": "not applicable",
    "missing": "missing",
}
"""States of a cell, in words."""


def _add_step_labels(rows: Frame) -> Frame:
    """Add the column `unit`: the label of each row's step or capture."""
    units = [(row["step"], row["part"]) for row in rows.rows("step", "part")]
    return rows.with_columns(
        unit=texts([f"step {step}" if step is not None else part or "capture" for step, part in units])
    )


def _list_steps_in_words(group: Frame) -> str:
    """List steps or captures in words, up to four by name."""
    names = group.distinct("unit").values("unit")
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _make_stage_matrix_table(measured: Measurements) -> Sheet:
    """Make the table of stages by step, longest first.

    Shows logged times only in rows of stages that no trace has.
    """
    walls, cells = _add_step_labels(list_units_with_cells(measured)), _add_step_labels(list_stage_cells(measured))
    by_stage = cells.group_by(*STAGE_KEY)
    in_trace = by_stage.each(count_of("wall_ns")) > 0
    shown_ns = choose(in_trace, cells["wall_ns"], cells["logged_ns"])
    cells = cells.with_columns(shown_ns=shown_ns, traced_ns=cells["wall_ns"])
    states = [_describe_cell_states(of_stage) for of_stage in by_stage.frames()]
    matrix = _average_stage_cells(cells).with_columns(state=texts(states), last=False)
    rest_cells = _compute_residual_cells(walls)
    rest_states = [_describe_residual_state(of_run) for of_run in rest_cells.group_by("run").frames()]
    rest = _average_stage_cells(rest_cells).with_columns(state=texts(rest_states), last=True)
    columns, caption = _choose_matrix_columns(walls, cells)
    caption = f"{caption} {_describe_stage_periods(measured)}".strip()
    cut = concat([rows.select(*STAGE_KEY, "unit", "shown_ns") for rows in (cells, rest_cells)])
    both, chosen = _add_columns_by_step(concat([matrix, rest]), cut, "shown_ns", columns)
    both = both.join(walls.group_by("run").agg(step_ns=mean_of("wall_ns")), ["run"], "left", optional=["run"])
    # Missing where no trace has the stage.
    shares = measure_stage_durations(measured).select(*STAGE_KEY, "share_ratio")
    both = both.join(shares, STAGE_KEY, "left", optional=STAGE_KEY)
    of_mean = divide(both["traced_ns"], both["step_ns"])
    both = both.with_columns(
        share_ratio=choose(both["last"], of_mean, both["share_ratio"]), mean_ns=narrow_whole_numbers(both["shown_ns"])
    )
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


def _average_stage_cells(rows: Frame) -> Frame:
    """Average the shown and traced times of every stage."""
    return rows.group_by(*STAGE_KEY).agg(shown_ns=mean_of("shown_ns"), traced_ns=mean_of("traced_ns"))


def _compute_residual_cells(walls: Frame) -> Frame:
    """Compute the time of each step outside any stage of any process, as cells of the stage `RESIDUAL` (Q3)."""
    is_known = ~walls.is_missing("attributed_ns") & ~walls.equals("origin", "stage")
    rest_ns = where(is_known, walls["wall_ns"] - walls.integers("attributed_ns"))
    return walls.with_columns(role=None, canonical=RESIDUAL, shown_ns=rest_ns, traced_ns=rest_ns)


def _add_columns_by_step(rows: Frame, cells: Frame, value: str, columns: list[str]) -> tuple[Frame, list[Heading]]:
    """Add a column per unit with the longest value of each stage: (rows, headings of the new columns)."""
    headings = []
    cells = cells.filter(cells.is_in("unit", columns))
    longest = cells.group_by(*STAGE_KEY, "unit").agg(longest=max_of(value))
    for name in columns:
        key = f"in_{name.replace(' ', '_')}"
        of_unit = longest.filter(longest.equals("unit", name)).drop("unit")
        values = rows.select(*STAGE_KEY).join(of_unit, STAGE_KEY, "left", optional=STAGE_KEY)["longest"]
        rows = rows.with_columns(**{key: narrow_whole_numbers(values)})
        headings.append(Heading(key, name, "ns"))
    return rows, headings


def _sort_matrix_rows(rows: Frame, by: str) -> Frame:
    """Sort the rows by run, longest first, with the residual last."""
    return rows.with_columns(place=rows.group_by("run").number).sort("place", "last", by, descending=[by])


def _choose_matrix_columns(walls: Frame, cells: Frame) -> tuple[list[str], str]:
    """Choose the units that get a column: (their names, caption).

    These are all units in order, or the longest `MAX_COLUMNS`, longest first; the first ones where no length is known.
    """
    in_order = (walls if len(walls) else cells).distinct("unit").values("unit")
    caption = "Host wall of the longest rank."
    if len(in_order) <= MAX_COLUMNS:
        return in_order, caption
    longest = walls.group_by("unit").agg(wall_ns=max_of("wall_ns")).sort("wall_ns", descending=["wall_ns"])
    if not len(longest):
        return in_order[:MAX_COLUMNS], f"{caption} The first {MAX_COLUMNS} of {len(in_order)} steps."
    more = f"The {MAX_COLUMNS} longest of {len(in_order)} steps, the longest first."
    return longest.values("unit")[:MAX_COLUMNS], f"{caption} {more}"


def _describe_cell_states(cells: Frame) -> str:
    """Describe how one stage is known over all units of its run."""
    counts = Counter(cells.values("state"))
    states = []
    for state, word in CELL_STATE_TITLES.items():
        if counts[state]:
            states.append(word if counts[state] == len(cells) else f"{counts[state]} of {len(cells)} {word}")
    is_validation = cells.equals("canonical", VALIDATION).all()
    return "; ".join(states) + (" (validation, not part of a training step)" if is_validation else "")


def _describe_residual_state(walls: Frame) -> str:
    """Describe how the residual is known, or why it is not."""
    if walls.equals("origin", "stage").all():
        return "not recorded: stages were captured one by one"
    if walls.is_missing("attributed_ns").all():
        return "no stage is annotated in the traces"
    return "step less all stages of all processes"


def _list_rank_walls(measured: Measurements) -> Frame:
    """List the walls of `average_stages_by_rank`, the time outside all stages as `RESIDUAL` (`last`)."""
    walls = measured.derived(average_stages_by_rank)
    stages = texts([stage or RESIDUAL for stage in walls.values("canonical")])
    return walls.with_columns(canonical=stages, last=walls.is_missing("canonical"))


def _make_rank_stage_table(measured: Measurements) -> Sheet:
    """Make the table of stages by rank with the residual of each rank; shows the ranks with most time."""
    walls = _list_rank_walls(measured)
    walls = walls.with_columns(
        unit=texts([f"rank {rank}" if rank is not None else "rank unknown" for rank in walls.values("rank")])
    )
    total = walls.group_by("unit").agg(wall_ns=sum_of("wall_ns"))
    by_total = total.sort("wall_ns", descending=["wall_ns"]).values("unit")
    chosen = sorted(by_total[:MAX_COLUMNS], key=lambda name: (len(name), name))
    caption = "Host wall per step of each rank, waiting for other ranks included."
    if walls["last"].any():
        caption += f" {RESIDUAL}: of the rank's own step; other roles may work meanwhile."
    if len(by_total) > MAX_COLUMNS:
        caption += f" The {MAX_COLUMNS} of {len(by_total)} ranks with most time."
    longest = walls.group_by(*STAGE_KEY, "last").agg(wall_ns=max_of("wall_ns"))
    rows, headings = _add_columns_by_step(longest, walls, "wall_ns", chosen)
    rows = rows.with_columns(wall_ns=narrow_whole_numbers(rows["wall_ns"]))
    by_rank_rows = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            wall_ns | longest rank | ns
        """),
        *headings,
    )
    return make_sheet("ranks", "Stages by rank", by_rank_rows, _sort_matrix_rows(rows, "wall_ns"), caption=caption)


def _draw_stages_by_rank(measured: Measurements) -> list[Chart]:
    """Draw the step of every rank as a bar of its stages, the residual last."""
    walls = _list_rank_walls(measured)
    if not len(walls):
        return []
    several = len(walls.group_by("run")) > 1
    labels = [
        _label_rank_bar(row["run"] if several else None, row["role"], row["rank"])
        for row in walls.rows("run", "role", "rank")
    ]
    walls = walls.with_columns(bar=texts(labels))
    by_stage = walls.filter(~walls["last"]).group_by("canonical").agg(wall_ns=sum_of("wall_ns"))
    series = by_stage.sort("wall_ns", descending=["wall_ns"]).head(MAX_SERIES).values("canonical")
    series += [RESIDUAL] if walls["last"].any() else []
    total = walls.group_by("bar").agg(wall_ns=sum_of("wall_ns"))
    totals = dict(zip(total.values("bar"), total.number("wall_ns").tolist(), strict=True))
    chosen = choose_rows_to_plot(totals, "the time of all stages")
    bars = [bar for bar in totals if bar in chosen.rows]
    drawn_walls = walls.filter(walls.is_in("canonical", series) & walls.is_in("bar", bars))
    marks = tuple(
        (bars.index(row["bar"]), series.index(row["canonical"]), round(row["wall_ns"]))
        for row in drawn_walls.rows("bar", "canonical", "wall_ns")
        if row["wall_ns"] is not None
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


def _label_rank_bar(run: str | None, role: str | None, rank: int | None) -> str:
    """Label the bar of a rank."""
    names = " · ".join(part for part in (run, role) if part is not None)
    return f"{names} {'rank unknown' if rank is None else f'rank {rank}'}".strip()


def _make_missing_stage_table(measured: Measurements) -> Sheet:
    """Make the table of cells that no trace has, with the reason and the logged time."""
    cells = list_stage_cells(measured)
    is_measured = cells.equals("state", "measured")
    of_traces = cells.filter(is_measured)
    seen = set(zip(of_traces.values("run"), of_traces.values("canonical"), strict=True))
    groups = _add_step_labels(cells.filter(~is_measured)).group_by("run", "role", "canonical", "state")
    rows = groups.agg(logged_ns=mean_of("logged_ns"))
    why = [
        _explain_missing_cell(row["state"], row["canonical"], is_known=(row["run"], row["canonical"]) in seen)
        for row in rows.rows()
    ]
    states = rows.values("state")
    rows = rows.with_columns(
        where=texts([_list_steps_in_words(group) for group in groups.frames()]),
        why=texts(why),
        at=np.array([list(CELL_STATE_TITLES).index(state) for state in states], np.int64),
        state=texts([CELL_STATE_TITLES[state] for state in states]),
    )
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
    rows = rows.sort("at", "logged_ns", descending=["logged_ns"])
    return make_sheet("not_measured", "Stages missing from the traces", headings, rows)


def _explain_missing_cell(state: str, stage: str, *, is_known: bool) -> str:
    """Explain why no trace has a cell; `is_known` is whether other cells of the stage were measured."""
    if state == "log":
        if is_known:
            return "the driver timed it; no capture of that role and step contains it"
        return "the driver timed it; the processes that ran it were not captured, or not annotated"
    if state == "missing":
        return "other steps contain it; it may have been skipped or not captured: there is no log"
    return {
        "old_log_prob": "not timed by the driver: log-probs of the rollout are used (bypass), or of the update",
        "ref": "not timed by the driver: no reference policy, or the actor's own pass serves as reference",
        "values": "not timed by the driver: no critic (GRPO and similar)",
        "update_critic": "not timed by the driver: no critic (GRPO and similar)",
        "update_weights": "not timed by the driver: rollout and training share their weights, or there is no timer",
    }.get(stage, "not timed by the driver in this step: it did not run")


def _list_matrix_metrics(cells: Frame, walls: Frame) -> list[Metric]:
    """List the number of cells by state, and the residual per step."""
    counts = Counter(cells.values("state"))
    metrics = [
        Metric(f"cells_{state.replace(' ', '_')}", counts[state], "count", label=f"cells {word}")
        for state, word in CELL_STATE_TITLES.items()
        if counts[state]
    ]
    timed = walls.filter(~walls.is_missing("attributed_ns") & ~walls.equals("origin", "stage"))
    if len(timed):
        rest_ns = timed.number("wall_ns") - timed.number("attributed_ns")
        low = high = None
        if len(rest_ns) > 1:
            low, high = float(rest_ns.min()), float(rest_ns.max())
        metrics.append(
            Metric("residual", float(rest_ns.mean()), "ns", "lower", low, high, "outside any stage, per step")
        )
    return metrics


def _list_matrix_caveats(measured: Measurements) -> list[str]:
    """List the caveats on the matrix."""
    walls, known_logs = list_units_with_cells(measured), map_run_driver_logs(measured)
    caveats = []
    if not known_logs:
        caveats.append("no driver log was given: a stage missing from the traces may have run elsewhere, or not at all")
    for run, log in known_logs.items():
        of_run = walls.filter(walls.equals("run", run))
        if len(of_run) and not find_logged_steps(of_run, log):
            caveats.append(
                f"the traces do not identify their steps in {log.source}: medians of the log are used for each{phrase_run(measured, run)}"
            )
    caveats += describe_unused_logs(measured)
    if walls.equals("origin", "stage").any():
        caveats.append("some steps were captured stage by stage: the time between their stages is unknown")
    if list_stage_cells(measured).equals("canonical", VALIDATION).any():
        caveats.append(f"{VALIDATION} is validation: it is in the capture but not part of a training step")
    return caveats


ANALYSIS = Analysis(
    id="rl-matrix",
    title="Which role, stage and rank takes the step's time?",
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
