"""The stage table of the summary: wall time, GPU utilization and slowest rank of each stage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracekit.job.frames import make_label_headings, summarize_step_walls
from tracekit.job.rank_groups import MEMBER, RankGroup, list_rank_groups
from tracekit.job.report.tables import make_sheet
from tracekit.job.stages.durations import measure_stage_durations
from tracekit.job.stages.periodic import describe_periodic_stages
from tracekit.job.stages.windows import STAGE_KEY, sum_gpu_time_by_stage
from tracekit.model import failed_questions
from tracekit.model.report import Heading, Sheet
from tracekit.model.tables.frame import Frame, mean_of, median_of, texts
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity
from tracekit.pipeline.summary.run_logs import append_log_only_stages


def make_stage_table(measured: Measurements) -> Sheet | None:
    """Make the main table: stages by wall time, with their GPU utilization."""
    stage_sheet = failed_questions.judge_without_faults(
        measured, lambda whom: failed_questions.judge_if_asked(whom, _make_stage_sheet, None)
    )
    if stage_sheet.value is None or not stage_sheet.faults:
        return stage_sheet.value
    whom = failed_questions.describe_sound_captures(measured, stage_sheet.faults)
    return replace(stage_sheet.value, title=f"{stage_sheet.value.title} (of {whom})")


def _make_stage_sheet(measured: Measurements) -> Sheet | None:
    stages = measure_stage_durations(measured)
    if not len(stages) or summarize_step_walls(measured).step_ns is None:
        return None
    # Leave out a column with a failed part: it would cover other ranks than the rest of its row.
    busy = failed_questions.judge_if_sound_and_asked(measured, _measure_stage_busy, None)
    if busy is not None:
        stages = stages.join(busy, STAGE_KEY, "left", optional=STAGE_KEY)
    headings = [*make_label_headings(measured), *_STAGE_HEADINGS]
    if busy is not None:
        headings.append(_GPU_BUSY)
    headings.append(Heading("ranks", "ranks", "count"))
    slowest = failed_questions.judge_if_sound_and_asked(measured, _name_slowest_ranks, None)
    if slowest is not None:
        names = [slowest.get((row["run"], row["role"], row["canonical"])) for row in stages.rows(*STAGE_KEY)]
        stages = stages.with_columns(slowest=texts(names))
        headings.append(_SLOWEST_RANK_HEADING)
    stages = failed_questions.judge_if_sound_and_asked(
        measured, lambda whom: append_log_only_stages(whom, stages), stages
    )
    stages = stages.sort("spread_ns", descending=["spread_ns"])
    caption = describe_periodic_stages(measured)
    return make_sheet("overview", "Where the step goes", headings, stages, caption=caption)


_SHARE_DOC = "Of all steps, including steps without it; stages of different roles may overlap."
_STAGE_HEADINGS = (
    Heading("canonical", "stage"),
    Heading("wall_ns", "wall", "ns", "Host wall per step: longest rank, mean over steps with it."),
    Heading("share_ratio", "share", "ratio", _SHARE_DOC),
)
_GPU_BUSY = Heading("busy_ratio", "GPU busy", "ratio", "Of the stage's wall, over its GPUs.")


def _measure_stage_busy(measured: Measurements) -> Frame | None:
    """Measure the GPU utilization of every stage; None if no GPU was recorded."""
    if not measured.row_count("gpu_time"):
        return None
    return sum_gpu_time_by_stage(measured).select(*STAGE_KEY, "busy_ratio")


_SLOWEST_RANK_DOC = (
    "The rank that is busy longest in it, waits in collectives excluded, and its excess over the median of the others."
)
_SLOWEST_RANK_HEADING = Heading("slowest", "slowest rank", doc=_SLOWEST_RANK_DOC)

WORTH_NAMING, WORTH_OF_STEP = 0.05, 0.01
"""Minimum excess over the others' median, and minimum share of the step, for a rank to be named."""


def _name_slowest_ranks(measured: Measurements) -> dict[tuple[str | None, str | None, str], str]:
    """For each (run, role, stage), name the slowest rank by own work per step, if it stands out."""
    slowest: dict[tuple[str | None, str | None, str], tuple[float, str]] = {}
    steps = summarize_step_walls(measured)
    for rank_group in list_rank_groups(measured):
        if rank_group.members < 2:
            continue
        worth_ns = WORTH_OF_STEP * (steps.select_run(rank_group.run).step_ns or 0.0)
        ranks = _find_slowest_ranks(rank_group, worth_ns)
        for row in ranks.rows("canonical", "rank", "over"):
            key, over = (rank_group.run, rank_group.role, row["canonical"]), row["over"]
            if over > slowest.get(key, (0.0, ""))[0]:
                slowest[key] = (over, f"rank {row['rank']} (+{format_quantity(over, 'ratio')} busy)")
    return {key: text for key, (_, text) in slowest.items()}


def _find_slowest_ranks(rank_group: RankGroup, least_ns: float) -> Frame:
    """Find the ranks that exceed the median of the others by at least `least_ns`, per stage: canonical, rank, over."""
    work = rank_group.work.group_by("canonical", *MEMBER).agg(own_ns=mean_of("own_ns"))
    work = work.filter(~work.is_missing("canonical"))
    work = work.sort("canonical", "own_ns", *MEMBER, descending=["own_ns"])
    is_longest = work.group_by("canonical").position() == 0
    usual = work.filter(~is_longest).group_by("canonical").agg(usual_ns=median_of("own_ns"))
    longest = work.filter(is_longest).join(usual, ["canonical"], "left")
    own_ns, usual_ns = longest.number("own_ns"), longest.number("usual_ns", missing=0.0)
    over = np.divide(own_ns, usual_ns, out=np.ones(len(usual_ns)), where=usual_ns > 0) - 1
    stands_out = (over >= WORTH_NAMING) & (own_ns - usual_ns >= least_ns)
    return longest.with_columns(over=over).filter(stands_out)
