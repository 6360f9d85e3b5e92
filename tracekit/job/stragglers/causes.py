"""Causes of lateness: clock, load, host or pause, found by comparing the steps of late ranks with those of others.

The comparison uses the rows of `slots`, which divide each step without overlap: time and calls by stage and kernel,
by stage and cause of idle time, and on a host without a device by stage and op.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from tracekit.job.frames import clear_redundant_parts, name_stages
from tracekit.job.rank_groups import RankGroup
from tracekit.model.records import dataclass
from tracekit.model.report import Metric
from tracekit.model.tables.arrays import Columns, Nullable, mask_value
from tracekit.model.tables.frame import Bools, Frame, choose, sum_of
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.tables.slots import CAUSE_TITLES
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

Floats = npt.NDArray[np.float64]

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

SLOT_ROW_KEYS = ("stage", "class", "cause", "name")
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

    @property
    def lasts(self) -> bool:
        """Whether it is a property of a GPU or host, which lasts: a slow clock, or calls that are clearly slower."""
        factors = [metric.value or 0.0 for metric in self.evidence if metric.name == "call_factor"]
        return self.kind == "clock" or (self.kind == "host" and max(factors, default=0.0) >= SLOW_CALL_RATIO)


UNKNOWN = LatenessCause(
    "unknown",
    "",
    "compare one of its steps with one of another rank: more tokens or longer sequences, slower clocks, other load on its host",
)


@dataclass(frozen=True, slots=True)
class RankComparison:
    """Work of late ranks (`late_ns`, `late_count`, by row of `keys`) and of the others (`usual_…`): means over steps."""

    keys: Frame
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
        return self.keys.is_in("class", names)


def find_lateness_cause(
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int], steps: Frame
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


def is_clock_slow(
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int], steps: Frame
) -> bool | None:
    """Whether all kernels of the late ranks are slower by one factor in these steps; None where one side is not recorded."""
    if not measured.has("slots"):
        return None
    both = _compare_rank_steps(measured, rank_group, late, usual_ranks[:MOST_COMPARED], steps)
    if both is None:
        return None
    _, names = _find_common_factor(both, both.of_class("compute") & (both.usual_ns > 0))
    return len(names) >= LEAST_NAMES


def _compare_rank_steps(
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int], steps: Frame
) -> RankComparison | None:
    """Compare the steps of the late ranks with those of the others; None where one side was not recorded."""
    rows = _select_rank_slots(measured.columns("slots"), rank_group, [*late, *usual_ranks])
    rows = rows.filter(rows.is_among(steps, ("step", "part"), optional=("step", "part")))
    return _compare_slot_rows(rows, np.isin(rows.integers("rank"), late))


def find_slowdown_since(measured: Measurements, rank_group: RankGroup, since: int) -> tuple[float | None, str | None]:
    """Find (common factor by which kernels slow down from a step on, stage that gains most time); None if unknown."""
    ranks = np.unique(rank_group.by_step.integers("rank"))[:MOST_COMPARED]
    rows = _select_rank_slots(measured.columns("slots"), rank_group, ranks.tolist())
    rows = rows.filter(~rows.is_missing("step"))
    both = _compare_slot_rows(rows, rows.integers("step") >= since)
    if both is None:
        return None, None
    by_stage = both.keys.group_by("stage").agg(more_ns=sum_of(both.more_ns))
    stage = by_stage.values("stage")[int(by_stage["more_ns"].argmax())]
    factor, names = _find_common_factor(both, both.of_class("compute") & (both.usual_ns > 0))
    return (factor if len(names) >= LEAST_NAMES else None), stage


def _compare_slot_rows(rows: Frame, is_late: Bools) -> RankComparison | None:
    """Compare the late rows with the others, by stage, class, cause and name; None where one side was not recorded."""
    if is_late.all() or not is_late.any():
        return None
    rows = rows.with_columns(
        stage=name_stages(rows, in_file=True), name=choose(~rows.is_missing("kernel"), rows["kernel"], rows["op"])
    )
    groups, sides = rows.group_by(*SLOT_ROW_KEYS), []
    for mask in (is_late, ~is_late):
        # Average over ranks and steps: work differs between steps, but hardly between ranks.
        count = len(rows.filter(mask).group_by("rank", "step", "part", "occurrence"))
        sums = groups.agg(
            time_ns=sum_of(np.where(mask, rows["exclusive_ns"], 0)), count=sum_of(np.where(mask, rows["count"], 0))
        )
        sides += [sums["time_ns"] / count, sums["count"] / count]
    return RankComparison(groups.agg(), *sides)


def _select_rank_slots(slots: Columns, rank_group: RankGroup, ranks: list[int]) -> Frame:
    """Select the slots of these ranks of a rank group, without making a frame of the other rows."""
    rank = slots["rank"]
    assert isinstance(rank, Nullable), "a rank may be unknown"
    is_chosen = np.isin(rank.values, ranks) & ~rank.missing
    return clear_redundant_parts(rank_group.select_rows(Frame.from_columns(slots.where(is_chosen))))


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
    return factor, list(dict.fromkeys(both.keys.filter(chosen).filter(near).values("name")))


def _describe_common_factor(factor: float, names: list[str], on_host: bool, ranks: int) -> LatenessCause:
    """Describe a common factor. With few distinct kernels it may also be more work in each call."""
    if len(names) < LEAST_NAMES:
        words = f"the same calls of {_shorten_op_or_kernel(names[0])} take {factor:.2f} times as long, with more work in each, or slower"
        return LatenessCause("unknown", words, UNKNOWN.advice)
    if on_host:
        return _describe_slow_host(factor)
    gpus = "this GPU" if ranks == 1 else "these GPUs"
    return LatenessCause(
        "clock",
        f"the same kernels take {factor:.2f} times as long as on the others",
        f"check clocks, temperature and power limit of {gpus} (nvidia-smi -q -d CLOCK,PERFORMANCE)",
        (Metric("kernel_factor", factor, "", "lower", label="times as long, same factor for all kernels"),),
    )


def _describe_slow_host(ratio: float) -> LatenessCause:
    """Describe a host that takes longer for the same calls."""
    return LatenessCause(
        "host",
        f"the calls of its host take {ratio:.2f} times as long as on the others",
        "check other load on its cores: other processes, too few cores for the data loaders, no pinning to a NUMA node",
        (Metric("call_factor", ratio, "", "lower", label="times as long, calls of the host"),),
    )


def _describe_more_work(
    measured: Measurements, rank_group: RankGroup, both: RankComparison, late: list[int], usual_ranks: list[int]
) -> LatenessCause:
    """Describe which work there is more of, and by how many more rows where they are known."""
    working = both.of_class("compute", "memcpy", "memset", "host")
    more = np.where(working, both.more_ns, -np.inf)
    place = int(more.argmax())
    stage, name = (both.keys.values(column)[place] for column in ("stage", "name"))
    count, usual = float(both.late_count[place]), float(both.usual_count[place])
    of_work = [Metric("work_ns", round(float(more[place])), "ns", "lower", label=f"more in {name}")]
    in_stage = f" in {stage}" if stage else ""
    words = f"more work, mostly {_shorten_op_or_kernel(name)}{in_stage}"
    if abs(count - usual) > 0.02 * usual:
        calls = choose_plural(round(count, 1), "call")
        words = f"{words}, {count:,.3g} {calls} per step instead of {usual:,.3g}"
    where = stage or "", name
    rows = _compare_forward_row_counts(measured, rank_group, late, usual_ranks, stage)
    if rows is not None and rows >= SLOWER_RATIO:
        words = f"its matrix products{in_stage} have {rows:.2f} times as many rows as those of the others"
        of_work.append(Metric("row_factor", rows, "", "lower", label="times as many rows"))
        where = "", "rows"
    advice = "balance tokens over ranks (dynamic batch sizes, balanced sequence lengths), or find out why it gets more"
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
        f"the same calls of its host take {times:.2f} times as long, {largest}: more work in each, or other load on its cores",
        "check other load on its cores, and whether it gets more work (samples, longer sequences)",
        more.evidence,
    )


def _describe_longer_idle_time(both: RankComparison, more: Floats, holder: tuple[str, float] | None) -> LatenessCause:
    """Describe longer idle time by its largest part (stage and cause), or by the place in the program."""
    place = int(more.argmax())
    kind, stage = both.keys.values("cause")[place] or "", both.keys.values("stage")[place]
    mean = both.late_ns[place] / max(both.late_count[place], 1.0)
    has_stages = not both.keys.is_missing("stage").all()
    where = f" in {stage}" if stage else " outside its stages" if has_stages else ""
    title = CAUSE_TITLES.get(kind, ("no op was recorded",))[0]
    longer_ns = float(more[place])
    if holder is not None and holder[1] >= LEAST_EXPLAINED_SHARE * longer_ns:
        longer_ns = min(longer_ns, holder[1])
        words = f"its GPU waits {format_quantity(holder[1], 'ns')} longer per step while its host is in {holder[0]}"
    elif kind in PAUSES:
        words = f"its host {PAUSES[kind]}{where}"
    elif kind in ("host_none", "host_silent", "") and mean >= PAUSE_NS:
        words = f"no host activity is recorded for {format_quantity(float(more[place]), 'ns')} per step{where}"
    else:
        words = f"it idles longer{where} ({title})"
    pause = Metric("pause_ns", round(float(more[place])), "ns", "lower", label=f"longer idle, {title}")
    advice = (
        "check its host's activity there: garbage collection, logging or checkpoints on one rank, data loading, locks"
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
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int], steps: Frame
) -> tuple[str, float] | None:
    """Find (the place in the program where late ranks idle longest beyond the others, by how much per step), or None."""
    rows = _select_rank_slots(measured.columns("idle_blame"), rank_group, [*late, *usual_ranks])
    rows = rows.filter(
        rows.equals("window", "step") & rows.is_among(steps, ("step", "part"), optional=("step", "part"))
    )
    frames = measured.frame("idle_frames").select(*NODE, "frame", "holder")
    frames = frames.filter(~frames.is_missing("frame") & frames.is_in("holder", TELLING_HOLDERS))
    places = rows.drop("holder").join(frames, NODE)
    if not len(places):
        return None
    is_late = np.isin(places.integers("rank"), late)
    idle, by_place = places["idle_ns"], places.group_by("frame")
    sums = by_place.agg(late=sum_of(np.where(is_late, idle, 0)), usual=sum_of(np.where(is_late, 0, idle)))
    more = sums["late"] / (len(late) * len(steps)) - sums["usual"] / (len(usual_ranks) * len(steps))
    place = int(more.argmax())
    return sums.values("frame")[place], float(more[place])


TELLING_HOLDERS = ("python", "gc", "system", "first_call", "call", "sync", "op")
"""Holders with a name that shows where to look."""

NODE = (*CAPTURE, "node")
"""Key of a place in the tree of idle time."""


def _compare_host_call_times(
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int]
) -> float | None:
    """Compare the median time of host calls: late ranks over the others."""
    rows = rank_group.select_rows(measured.frame("host_counts"))
    rows = rows.filter(rows.equals("window", "step") & ~rows.is_missing("call_p50_ns"))
    return _divide_medians_of_ranks(rows, "call_p50_ns", late, usual_ranks)


def _compare_forward_row_counts(
    measured: Measurements, rank_group: RankGroup, late: list[int], usual_ranks: list[int], stage: str | None
) -> float | None:
    """Compare the rows of forward matrix products in a stage: late ranks over the others."""
    rows = rank_group.select_rows(measured.frame("forward_batches"))
    rows = rows.filter(~rows.is_missing("row_count") & mask_value(name_stages(rows), stage))
    return _divide_medians_of_ranks(rows, "row_count", late, usual_ranks)


def _divide_medians_of_ranks(rows: Frame, column: str, late: list[int], usual_ranks: list[int]) -> float | None:
    """Divide the median of a column over the late ranks by that over the others; None where either is unknown."""
    sides = []
    for ranks in (late, usual_ranks):
        values = rows.number(column)[np.isin(rows.integers("rank", -1), ranks)]
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
