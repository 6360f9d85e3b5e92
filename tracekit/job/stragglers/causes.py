"""Causes of lateness: clock, load, host or pause, found by comparing the steps of late ranks with those of others.

The comparison uses the rows of `slots`, which divide each step without overlap: time and calls by stage and kernel,
by stage and cause of idle time, and on a host without a device by stage and op.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import clear_parts_of_numbered_steps, find_canonical_stages, find_equal_rows, to_text_or_none
from tracekit.job.rank_groups import RankGroup
from tracekit.model.records import dataclass
from tracekit.model.report import Metric
from tracekit.model.tables.arrays import Columns, Nullable
from tracekit.model.tables.keys import CAPTURE, group_rows_by, left_join, mask_equal, number_frames_alike, sum_by_group
from tracekit.model.tables.slots import CAUSE_TITLES
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_COMPARED = 16
"""Most ranks that are not late whose steps are compared with those of the late ones."""

AGREEING_SHARE = 0.9
"""Share of the compute time that must be slower by one factor: more of some work leaves the other kernels as they are."""

NEAR_SHARE = 0.3
"""Largest difference of a kernel's factor from the common factor, as a share of the common factor's distance from 1."""

LEAST_NAMES = 3
"""Fewest distinct kernels or ops that show a common factor: more rows would not make all of them longer."""

SLOWER_RATIO = 1.02
"""Lowest factor that counts as slower: clocks of equal GPUs differ by less."""

SLOW_CALL_RATIO = 1.25
"""Lowest ratio of median call times that counts as a slow host: those of equal hosts differ by 10 %."""

PAUSE_NS = 1_000_000
"""Shortest mean length of idle pieces that count as a pause, not as Python between ops."""

LEAST_EXPLAINED_SHARE = 0.5
"""Smallest share of a pause that a place in the program must explain to be named."""

SLOT_ROW_KEYS = ["stage", "class", "cause", "name"]
"""Keys of the compared rows."""

PAUSES = {"host_loader": "waits for its data loader", "host_gc": "collects garbage"}
"""Verbs for recorded causes of a pause on the host."""

Kind = Literal["clock", "load", "host", "pause", "unknown"]


@dataclass(frozen=True, slots=True)
class LatenessCause:
    """Cause of lateness: words that follow a colon (empty if unknown), advice, and the numbers behind it.

    `pause_ns` is the extra idle time of a late step in pieces long enough to be seen one by one; 0 if there are none.
    `where` is the stage and the kernel, op or place of a load or pause. Late ranks with equal kind and place share a cause.
    """

    kind: Kind
    words: str
    advice: str
    evidence: tuple[Metric, ...] = ()
    pause_ns: int = 0
    is_seen: bool = False
    """Whether a load shows in the number of calls or of rows."""
    where: tuple[str, str] = ("", "")


UNKNOWN = LatenessCause(
    "unknown",
    "",
    "put one of its steps beside one of another rank: more tokens or longer sequences, slower clocks, other load on its host",
)


@dataclass(frozen=True, slots=True)
class RankComparison:
    """Work of late ranks (`late_ns`, `late_count`, by row of `keys`) and of the others (`usual_…`): means over steps."""

    keys: pd.DataFrame
    late_ns: Floats
    late_count: Floats
    usual_ns: Floats
    usual_count: Floats

    @property
    def more_ns(self) -> Floats:
        """Extra time of the late ranks, by row."""
        return self.late_ns - self.usual_ns

    def of_class(self, *names: str) -> Bools:
        """Find the rows of these classes."""
        return self.keys["class"].isin(names).to_numpy(np.bool_)


def find_lateness_cause(
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int], steps: pd.DataFrame
) -> LatenessCause:
    """Find why these ranks are late in these steps, compared with the first few of the others."""
    if not measured.has("slots"):
        return UNKNOWN
    both = _compare_rank_steps(measured, rank_group, late, usual_ranks[:MOST_COMPARED], steps)
    if both is None:
        return UNKNOWN
    working = both.of_class("compute", "memcpy", "memset", "host")
    more = np.maximum(both.more_ns, 0)
    in_work = float(both.more_ns[working].sum())
    waiting = both.of_class("idle", "no_op")
    in_pauses = float(both.more_ns[waiting].sum())
    if max(in_work, in_pauses) <= 0:
        return UNKNOWN
    if in_work >= in_pauses:
        return _explain_longer_work(measured, rank_group, both, late, usual_ranks)
    ratio = _compare_host_call_times(measured, rank_group, late, usual_ranks)
    if ratio is not None and ratio >= SLOW_CALL_RATIO:
        return _describe_slow_host(ratio)
    holder = _find_program_place_of_pause(measured, rank_group, late, usual_ranks[:MOST_COMPARED], steps)
    return _describe_longer_idle_time(both, np.where(waiting, more, 0), holder)


def _compare_rank_steps(
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int], steps: pd.DataFrame
) -> RankComparison | None:
    """Compare the steps of the late ranks with those of the others; None where one side was not recorded."""
    rows = _select_rank_slots(measured.columns("slots"), rank_group, [*late, *usual_ranks])
    rows = clear_parts_of_numbered_steps(rows)
    of_step, wanted = number_frames_alike(["step", "part"], rows, steps)
    rows = rows[np.isin(of_step, wanted)].reset_index(drop=True)
    return _compare_slot_rows(rows, rows["rank"].isin(late).to_numpy(np.bool_))


def find_slowdown_since(measured: Measurements, rank_group: RankGroup, since: int) -> tuple[float | None, str | None]:
    """Find (common factor by which kernels slow down from a step on, stage that gains most time); None if unknown."""
    ranks = np.unique(rank_group.by_step["rank"].to_numpy(np.int64))[:MOST_COMPARED]
    rows = _select_rank_slots(measured.columns("slots"), rank_group, ranks.tolist())
    rows = rows[rows["step"].notna()].reset_index(drop=True)
    both = _compare_slot_rows(
        clear_parts_of_numbered_steps(rows), (rows["step"] >= since).to_numpy(np.bool_, na_value=False)
    )
    if both is None:
        return None, None
    number, first = group_rows_by(both.keys, ["stage"])
    more = np.bincount(number, both.more_ns, len(first))
    stage = to_text_or_none(both.keys["stage"].iloc[first[int(more.argmax())]])
    factor, names = _find_common_factor(both, both.of_class("compute") & (both.usual_ns > 0))
    return (factor if len(names) >= LEAST_NAMES else None), stage


def _compare_slot_rows(rows: pd.DataFrame, is_late: Bools) -> RankComparison | None:
    """Compare the late rows with the others, by stage, class, cause and name; None where one side was not recorded."""
    if is_late.all() or not is_late.any():
        return None
    rows["stage"] = find_canonical_stages(rows, in_file=True)
    rows["name"] = rows["kernel"].where(rows["kernel"].notna(), rows["op"])
    key, first = group_rows_by(rows, SLOT_ROW_KEYS)
    side_ns, side_count = np.zeros((2, 2, len(first)))
    for place, mask in enumerate((is_late, ~is_late)):
        # Average over ranks and steps: work differs between steps, but hardly between ranks.
        ranks = len(group_rows_by(rows[mask], ["rank", "step", "part", "occurrence"])[1])
        for side, column in ((side_ns, "exclusive_ns"), (side_count, "count")):
            values = rows[column].to_numpy(np.int64)[mask]
            side[place] = sum_by_group(key[mask], values, len(first)) / ranks
    keys = rows[SLOT_ROW_KEYS].iloc[first].reset_index(drop=True)
    return RankComparison(keys, side_ns[0], side_count[0], side_ns[1], side_count[1])


def _select_rank_slots(slots: Columns, rank_group: RankGroup, ranks: list[int]) -> pd.DataFrame:
    """Select the slots of these ranks of a rank group, without making a frame of the other rows."""
    rank = slots["rank"]
    assert isinstance(rank, Nullable), "a rank may be unknown"
    is_chosen = np.isin(rank.values, ranks) & ~rank.missing
    rows = slots.where(is_chosen).judged()
    for name in ("run", "role", "replica"):
        rows = rows[mask_equal(rows[name], getattr(rank_group, name))]
    return rows.reset_index(drop=True)


def _explain_longer_work(
    measured: Measurements, rank_group: RankGroup, both: RankComparison, late: list[int], usual_ranks: list[int]
) -> LatenessCause:
    """Explain longer work: one factor in the same calls is a slow clock or a slow host; otherwise it is more work."""
    on_host = not both.of_class("compute").any()
    chosen = both.of_class("host" if on_host else "compute") & (both.usual_ns > 0)
    factor, names = _find_common_factor(both, chosen)
    if factor is not None:
        return _describe_common_factor(factor, names, on_host, len(late))
    more = _describe_more_work(measured, rank_group, both, late, usual_ranks)
    if on_host and not more.is_seen:
        return _describe_longer_calls(both, chosen, more)
    return more


def _find_common_factor(both: RankComparison, chosen: Bools) -> tuple[float | None, list[str]]:
    """Find (factor by which nearly all chosen work is slower in the same calls, its names); else (None, [])."""
    if not chosen.any():
        return None, []
    usual, late_ns = both.usual_ns[chosen], both.late_ns[chosen]
    same = np.abs(both.late_count - both.usual_count)[chosen] <= 0.02 * both.usual_count[chosen]
    factor = _find_weighted_median_ratio(late_ns / usual, usual)
    near = (np.abs(late_ns / usual - factor) <= NEAR_SHARE * (factor - 1)) & same
    if factor < SLOWER_RATIO or usual[near].sum() < AGREEING_SHARE * usual.sum():
        return None, []
    return factor, both.keys["name"][chosen][near].unique().tolist()


def _describe_common_factor(factor: float, names: list[str], on_host: bool, ranks: int) -> LatenessCause:
    """Describe a common factor. With few distinct kernels it may also be more work in each call."""
    if len(names) < LEAST_NAMES:
        words = f"the same calls of {_shorten_op_or_kernel(names[0])} take {factor:.2f} times as long, with more in each or slower"
        return LatenessCause("unknown", words, UNKNOWN.advice)
    if on_host:
        return _describe_slow_host(factor)
    gpus = "this GPU" if ranks == 1 else "these GPUs"
    return LatenessCause(
        "clock",
        f"the same kernels take {factor:.2f} times as long as on the others",
        f"look at the clocks, temperature and power limit of {gpus} (nvidia-smi -q -d CLOCK,PERFORMANCE)",
        (Metric("kernel_factor", factor, "", "lower", label="times as long, all kernels alike"),),
    )


def _describe_slow_host(ratio: float) -> LatenessCause:
    """Describe a host that takes longer for the same calls."""
    return LatenessCause(
        "host",
        f"the calls of its host take {ratio:.2f} times as long as on the others",
        "see what else runs on its cores: other processes, too few cores for the loaders, no pinning to a NUMA node",
        (Metric("call_factor", ratio, "", "lower", label="times as long, calls of the host"),),
    )


def _describe_more_work(
    measured: Measurements, rank_group: RankGroup, both: RankComparison, late: list[int], usual_ranks: list[int]
) -> LatenessCause:
    """Describe which work there is more of, and by how many more rows where they are known."""
    working = both.of_class("compute", "memcpy", "memset", "host")
    more = np.where(working, both.more_ns, -np.inf)
    place = int(more.argmax())
    stage = to_text_or_none(both.keys["stage"].iloc[place])
    name = str(both.keys["name"].iloc[place])
    count, usual = float(both.late_count[place]), float(both.usual_count[place])
    of_work = [Metric("work_ns", round(float(more[place])), "ns", "lower", label=f"more in {name}")]
    in_stage = f" in {stage}" if stage else ""
    words = f"more work, most of it {_shorten_op_or_kernel(name)}{in_stage}"
    if abs(count - usual) > 0.02 * usual:
        calls = choose_plural(round(count, 1), "call")
        words = f"{words}, {count:,.3g} {calls} a step instead of {usual:,.3g}"
    where = stage or "", name
    rows = _compare_forward_row_counts(measured, rank_group, late, usual_ranks, stage)
    if rows is not None and rows >= SLOWER_RATIO:
        words = f"its matrix products{in_stage} have {rows:.2f} times as many rows as those of the others"
        of_work.append(Metric("row_factor", rows, "", "lower", label="times as many rows"))
        where = "", "rows"
    advice = "balance tokens over ranks (dynamic batch sizes, balanced sequence lengths), or find why it is given more"
    is_seen = abs(count - usual) > 0.02 * usual or len(of_work) > 1
    return LatenessCause("load", words, advice, tuple(of_work), is_seen=is_seen, where=where)


def _describe_longer_calls(both: RankComparison, chosen: Bools, more: LatenessCause) -> LatenessCause:
    """Describe as many calls of a host that take longer unevenly: more work in each, or other load on its cores."""
    times = float(both.late_ns[chosen].sum()) / float(both.usual_ns[chosen].sum())
    if times < SLOWER_RATIO:
        return more
    _, _, largest = more.words.partition("more work, ")
    return LatenessCause(
        "unknown",
        f"the same calls of its host take {times:.2f} times as long, {largest}: more in each, or other load on its cores",
        "see what else runs on its cores, and whether it is given more (samples, longer sequences)",
        more.evidence,
    )


def _describe_longer_idle_time(both: RankComparison, more: Floats, holder: tuple[str, float] | None) -> LatenessCause:
    """Describe longer idle time by its largest part (stage and cause), or by the place in the program."""
    place = int(more.argmax())
    kind = to_text_or_none(both.keys["cause"].iloc[place]) or ""
    stage = to_text_or_none(both.keys["stage"].iloc[place])
    mean = both.late_ns[place] / max(both.late_count[place], 1.0)
    has_stages = bool(both.keys["stage"].notna().any())
    where = f" in {stage}" if stage else " outside its stages" if has_stages else ""
    title = CAUSE_TITLES.get(kind, ("no op was recorded",))[0]
    longer_ns = float(more[place])
    if holder is not None and holder[1] >= LEAST_EXPLAINED_SHARE * longer_ns:
        longer_ns = min(longer_ns, holder[1])
        words = f"its GPU waits {format_quantity(holder[1], 'ns')} a step longer while its host is in {holder[0]}"
    elif kind in PAUSES:
        words = f"its host {PAUSES[kind]}{where}"
    elif kind in ("host_none", "host_silent", "") and mean >= PAUSE_NS:
        words = f"nothing is recorded of its host for {format_quantity(float(more[place]), 'ns')} a step{where}"
    else:
        words = f"it idles longer{where} ({title})"
    pause = Metric("pause_ns", round(float(more[place])), "ns", "lower", label=f"longer idle, {title}")
    advice = (
        "look at what its host does there: garbage collection, logging or checkpoints on one rank, data loading, locks"
    )
    is_long = _estimate_pause_length(both, place) >= PAUSE_NS
    return LatenessCause(
        "pause", words, advice, (pause,), round(longer_ns) if is_long else 0, where=(stage or "", kind)
    )


def _estimate_pause_length(both: RankComparison, place: int) -> float:
    """Estimate the mean length of the late ranks' idle pieces at a row, or of those that the others do not have."""
    late_ns, late_count = float(both.late_ns[place]), float(both.late_count[place])
    more_count = late_count - float(both.usual_count[place])
    mean = late_ns / max(late_count, 1.0)
    if more_count <= 0:
        return mean
    return max(mean, float(both.more_ns[place]) / max(more_count, 1.0))


def _find_program_place_of_pause(
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int], steps: pd.DataFrame
) -> tuple[str, float] | None:
    """Find (the place in the program where late ranks idle longest beyond the others, by how much per step), or None."""
    rows = clear_parts_of_numbered_steps(
        _select_rank_slots(measured.columns("idle_blame"), rank_group, [*late, *usual_ranks])
    )
    frames = measured["idle_frames"]
    rows = rows[(rows["window"] == "step").to_numpy(np.bool_)].drop(columns="holder")
    if not len(rows) or not len(frames):
        return None
    of_step, wanted = number_frames_alike(["step", "part"], rows, steps)
    places = left_join(rows[np.isin(of_step, wanted)], frames[[*NODE, "frame", "holder"]], NODE)
    places = places[places["frame"].notna() & places["holder"].isin(TELLING_HOLDERS).to_numpy(np.bool_)]
    is_late = places["rank"].isin(late).to_numpy(np.bool_)
    number, first = group_rows_by(places, ["frame"])
    idle = places["idle_ns"].to_numpy(np.int64)
    more = sum_by_group(number[is_late], idle[is_late], len(first)) / (len(late) * len(steps))
    usual = sum_by_group(number[~is_late], idle[~is_late], len(first)) / (len(usual_ranks) * len(steps))
    if not len(first):
        return None
    place = int((more - usual).argmax())
    return str(places["frame"].iloc[first[place]]), float((more - usual)[place])


TELLING_HOLDERS = ("python", "gc", "system", "first_call", "call", "sync", "op")
"""Holders with a name that shows where to look."""

NODE = (*CAPTURE, "node")
"""Key of a place in the tree of idle time."""


def _compare_host_call_times(
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int]
) -> float | None:
    """Compare the median time of host calls: late ranks over the others."""
    rows = rank_group.select_rows(measured["host_counts"])
    rows = rows[(rows["window"] == "step") & rows["call_p50_ns"].notna()]
    return _divide_medians_of_ranks(rows, "call_p50_ns", late, usual_ranks)


def _compare_forward_row_counts(
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int], stage: str | None
) -> float | None:
    """Compare the rows of forward matrix products in a stage: late ranks over the others."""
    rows = rank_group.select_rows(measured["forward_batches"])
    rows = rows[rows["row_count"].notna()]
    rows = rows[find_equal_rows(pd.Series(find_canonical_stages(rows), rows.index), stage).to_numpy(np.bool_)]
    return _divide_medians_of_ranks(rows, "row_count", late, usual_ranks)


def _divide_medians_of_ranks(rows: pd.DataFrame, column: str, late: list[int], usual_ranks: list[int]) -> float | None:
    """Divide the median of a column over the late ranks by that over the others; None where either is unknown."""
    sides = []
    for ranks in (late, usual_ranks):
        values = rows[column][rows["rank"].isin(ranks).to_numpy(np.bool_)].to_numpy(float)
        if not len(values):
            return None
        sides.append(float(np.median(values)))
    return sides[0] / sides[1] if sides[1] > 0 else None


def _find_weighted_median_ratio(values: Floats, weights: Floats) -> float:
    """Find the value that splits the weight in half."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _shorten_op_or_kernel(name: str) -> str:
    """Shorten a kernel or op path to its last part, at most 60 characters."""
    last = name.rpartition(" > ")[2]
    return last if len(last) <= 60 else f"{last[:59]}…"
