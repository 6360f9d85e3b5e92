"""Why ranks are late, from what was recorded of their steps beside those of the others: clock, load, host, or a pause.

What is set side by side are the rows of `slots`, which share out each step: time and calls by stage and kernel, by
stage and cause of idleness, on a host alone by stage and op.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import canonical_stages, same_text, text_or_none, units
from tracekit.job.rank_groups import RankGroup
from tracekit.model.keys import CAPTURE, equal, looked_up, numbered_alike, of_keys, summed
from tracekit.model.labels import plural
from tracekit.model.records import dataclass
from tracekit.model.report import Metric
from tracekit.model.tables.arrays import Columns, Nullable
from tracekit.model.tables.slots import CAUSE_TITLES
from tracekit.model.trace import Measurements
from tracekit.model.units import show

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_COMPARED = 16
"""Most ranks that are not late whose steps are set beside those of the late ones."""

AGREEING = 0.9
"""Share of the compute time that has to be slower by one factor: work of which there is more leaves the rest as it is."""

NEAR = 0.3
"""One factor: by how much of its distance from 1 the factor of a kernel may differ from it."""

LEAST_NAMES = 3
"""Kernels, or ops, of so many names at least are slower alike: more rows would not make all of them longer."""

SLOWER = 1.02
"""Kernels that take less than so many times as long are not slower: clocks of equal GPUs differ by that."""

HELD_UP = 1.25
"""Calls of a host that take so many times as long, in their median, are held up: those of equal hosts differ by 10 %."""

PAUSE_NS = 1_000_000
"""Idle time in pieces of this mean length is a pause, not Python between ops."""

APART = 0.5
"""A place in the program is told of that explains at least this share of a pause."""

EACH = ["stage", "class", "cause", "name"]
"""What is set side by side."""

PAUSES = {"host_loader": "waits for its data loader", "host_gc": "collects garbage"}
"""What a host does in a pause, where that was recorded."""

Kind = Literal["clock", "load", "host", "pause", "unknown"]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why ranks are late: in words behind a colon (empty: nothing tells), what to do, and the numbers behind it.

    `pause_ns` is how much longer a late step idles in pieces long enough to be seen one by one; 0 where there are none.
    `where` is the stage and the kernel, op or place of a load or a pause: late ranks of one kind and place have one cause.
    """

    kind: Kind
    words: str
    advice: str
    evidence: tuple[Metric, ...] = ()
    pause_ns: int = 0
    is_seen: bool = False
    """Of a load: that there are more calls, or more rows."""
    where: tuple[str, str] = ("", "")


UNKNOWN = Cause(
    "unknown",
    "",
    "put one of its steps beside one of another rank: more tokens or longer sequences, slower clocks, other load on its host",
)


@dataclass(frozen=True, slots=True)
class Beside:
    """What late ranks do (`late_ns`, `late_count` by row of `keys`), and what the others do: means over steps."""

    keys: pd.DataFrame
    late_ns: Floats
    late_count: Floats
    usual_ns: Floats
    usual_count: Floats

    @property
    def more_ns(self) -> Floats:
        """How much longer."""
        return self.late_ns - self.usual_ns

    def of_class(self, *names: str) -> Bools:
        """The rows of these classes."""
        return self.keys["class"].isin(names).to_numpy(np.bool_)


def cause_of(
    measured: Measurements,
    rank_group: RankGroup,
    late: list[int],
    others: list[int],
    steps: pd.DataFrame,
) -> Cause:
    """Why these ranks are late in these steps, set beside others, of which the first few are looked at."""
    if not measured.has("slots"):
        return UNKNOWN
    both = _beside(measured, rank_group, late, others[:MOST_COMPARED], steps)
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
        return _of_work(measured, rank_group, both, late, others)
    ratio = _call_ratio(measured, rank_group, late, others)
    if ratio is not None and ratio >= HELD_UP:
        return _held_up(ratio)
    holder = _held_in(measured, rank_group, late, others[:MOST_COMPARED], steps)
    return _of_pause(both, np.where(waiting, more, 0), holder)


def _beside(
    measured: Measurements,
    rank_group: RankGroup,
    late: list[int],
    others: list[int],
    steps: pd.DataFrame,
) -> Beside | None:
    """The steps of the late ranks beside those of the others; None where one side was not recorded."""
    rows = _rows(measured.columns("slots"), rank_group, [*late, *others])
    rows = units(rows)
    of_step, wanted = numbered_alike(["step", "part"], rows, steps)
    rows = rows[np.isin(of_step, wanted)].reset_index(drop=True)
    return _sides(rows, rows["rank"].isin(late).to_numpy(np.bool_))


def slower_since(
    measured: Measurements, rank_group: RankGroup, since: int
) -> tuple[float | None, str | None]:
    """(by which one factor all kernels take longer from a step on, the stage in which most time is added), as far as known."""
    ranks = np.unique(rank_group.by_step["rank"].to_numpy(np.int64))[:MOST_COMPARED]
    rows = _rows(measured.columns("slots"), rank_group, ranks.tolist())
    rows = rows[rows["step"].notna()].reset_index(drop=True)
    both = _sides(units(rows), (rows["step"] >= since).to_numpy(np.bool_, na_value=False))
    if both is None:
        return None, None
    number, first = of_keys(both.keys, ["stage"])
    more = np.bincount(number, both.more_ns, len(first))
    stage = text_or_none(both.keys["stage"].iloc[first[int(more.argmax())]])
    factor, names = _one_factor(both, both.of_class("compute") & (both.usual_ns > 0))
    return (factor if len(names) >= LEAST_NAMES else None), stage


def _sides(rows: pd.DataFrame, is_late: Bools) -> Beside | None:
    """The late rows beside the others, by `EACH`; None where one side was not recorded."""
    if is_late.all() or not is_late.any():
        return None
    rows["stage"] = canonical_stages(rows, in_file=True)
    rows["name"] = rows["kernel"].where(rows["kernel"].notna(), rows["op"])
    key, first = of_keys(rows, EACH)
    side_ns, side_count = np.zeros((2, 2, len(first)))
    for place, mask in enumerate((is_late, ~is_late)):
        # Means of ranks and steps: the work of a step is not the same in all of them, that of ranks is, nearly.
        ranks = len(of_keys(rows[mask], ["rank", "step", "part", "occurrence"])[1])
        for side, column in ((side_ns, "exclusive_ns"), (side_count, "count")):
            values = rows[column].to_numpy(np.int64)[mask]
            side[place] = summed(key[mask], values, len(first)) / ranks
    keys = rows[EACH].iloc[first].reset_index(drop=True)
    return Beside(keys, side_ns[0], side_count[0], side_ns[1], side_count[1])


def _rows(slots: Columns, rank_group: RankGroup, ranks: list[int]) -> pd.DataFrame:
    """The slots of these ranks of a rank group; of many others no frame is made."""
    rank = slots["rank"]
    assert isinstance(rank, Nullable), "a rank may be unknown"
    is_chosen = np.isin(rank.values, ranks) & ~rank.missing
    rows = slots.where(is_chosen).judged()
    for name in ("run", "role", "replica"):
        rows = rows[equal(rows[name], getattr(rank_group, name))]
    return rows.reset_index(drop=True)


def _of_work(
    measured: Measurements, rank_group: RankGroup, both: Beside, late: list[int], others: list[int]
) -> Cause:
    """Slower by one factor in the same calls: a clock, or other load on the host; else more work."""
    on_host = not both.of_class("compute").any()
    chosen = both.of_class("host" if on_host else "compute") & (both.usual_ns > 0)
    factor, names = _one_factor(both, chosen)
    if factor is not None:
        return _by_factor(factor, names, on_host, len(late))
    more = _more_work(measured, rank_group, both, late, others)
    if on_host and not more.is_seen:
        return _longer_calls(both, chosen, more)
    return more


def _one_factor(both: Beside, chosen: Bools) -> tuple[float | None, list[str]]:
    """(the factor by which the same calls of nearly all that is chosen take longer, the names of these); None without."""
    if not chosen.any():
        return None, []
    usual, late_ns = both.usual_ns[chosen], both.late_ns[chosen]
    same = np.abs(both.late_count - both.usual_count)[chosen] <= 0.02 * both.usual_count[chosen]
    factor = _weighted_median(late_ns / usual, usual)
    near = (np.abs(late_ns / usual - factor) <= NEAR * (factor - 1)) & same
    if factor < SLOWER or usual[near].sum() < AGREEING * usual.sum():
        return None, []
    return factor, both.keys["name"][chosen][near].unique().tolist()


def _by_factor(factor: float, names: list[str], on_host: bool, ranks: int) -> Cause:
    """All that is done takes longer by one factor; of few kinds of work it may as well be more work in each call."""
    if len(names) < LEAST_NAMES:
        words = f"the same calls of {_short(names[0])} take {factor:.2f} times as long, with more in each or slower"
        return Cause("unknown", words, UNKNOWN.advice)
    if on_host:
        return _held_up(factor)
    gpus = "this GPU" if ranks == 1 else "these GPUs"
    return Cause(
        "clock",
        f"the same kernels take {factor:.2f} times as long as on the others",
        f"look at the clocks, temperature and power limit of {gpus} (nvidia-smi -q -d CLOCK,PERFORMANCE)",
        (Metric("kernel_factor", factor, "", "lower", label="times as long, all kernels alike"),),
    )


def _held_up(ratio: float) -> Cause:
    """The host takes longer for the same calls."""
    return Cause(
        "host",
        f"the calls of its host take {ratio:.2f} times as long as on the others",
        "see what else runs on its cores: other processes, too few cores for the loaders, no pinning to a NUMA node",
        (Metric("call_factor", ratio, "", "lower", label="times as long, calls of the host"),),
    )


def _more_work(
    measured: Measurements, rank_group: RankGroup, both: Beside, late: list[int], others: list[int]
) -> Cause:
    """More of some work: what it is, and by how much more rows its products have where they are known."""
    working = both.of_class("compute", "memcpy", "memset", "host")
    more = np.where(working, both.more_ns, -np.inf)
    place = int(more.argmax())
    stage = text_or_none(both.keys["stage"].iloc[place])
    name = str(both.keys["name"].iloc[place])
    count, usual = float(both.late_count[place]), float(both.usual_count[place])
    of_work = [Metric("work_ns", round(float(more[place])), "ns", "lower", label=f"more in {name}")]
    in_stage = f" in {stage}" if stage else ""
    words = f"more work, most of it {_short(name)}{in_stage}"
    if abs(count - usual) > 0.02 * usual:
        calls = plural(round(count, 1), "call")
        words = f"{words}, {count:,.3g} {calls} a step instead of {usual:,.3g}"
    where = stage or "", name
    rows = _row_ratio(measured, rank_group, late, others, stage)
    if rows is not None and rows >= SLOWER:
        words = f"its matrix products{in_stage} have {rows:.2f} times as many rows as those of the others"
        of_work.append(Metric("row_factor", rows, "", "lower", label="times as many rows"))
        where = "", "rows"
    advice = "balance tokens over ranks (dynamic batch sizes, balanced sequence lengths), or find why it is given more"
    is_seen = abs(count - usual) > 0.02 * usual or len(of_work) > 1
    return Cause("load", words, advice, tuple(of_work), is_seen=is_seen, where=where)


def _longer_calls(both: Beside, chosen: Bools, more: Cause) -> Cause:
    """As many calls of a host that take longer, some more than others: with more in each, or while others have its cores."""
    times = float(both.late_ns[chosen].sum()) / float(both.usual_ns[chosen].sum())
    if times < SLOWER:
        return more
    _, _, largest = more.words.partition("more work, ")
    return Cause(
        "unknown",
        f"the same calls of its host take {times:.2f} times as long, {largest}: more in each, or other load on its cores",
        "see what else runs on its cores, and whether it is given more (samples, longer sequences)",
        more.evidence,
    )


def _of_pause(both: Beside, more: Floats, holder: tuple[str, float] | None) -> Cause:
    """What its GPU, or its thread, waits for: the largest part by stage and cause, or the place in the program."""
    place = int(more.argmax())
    kind = text_or_none(both.keys["cause"].iloc[place]) or ""
    stage = text_or_none(both.keys["stage"].iloc[place])
    mean = both.late_ns[place] / max(both.late_count[place], 1.0)
    has_stages = bool(both.keys["stage"].notna().any())
    where = f" in {stage}" if stage else " outside its stages" if has_stages else ""
    title = CAUSE_TITLES.get(kind, ("no op was recorded",))[0]
    longer_ns = float(more[place])
    if holder is not None and holder[1] >= APART * longer_ns:
        longer_ns = min(longer_ns, holder[1])
        words = (
            f"its GPU waits {show(holder[1], 'ns')} a step longer while its host is in {holder[0]}"
        )
    elif kind in PAUSES:
        words = f"its host {PAUSES[kind]}{where}"
    elif kind in ("host_none", "host_silent", "") and mean >= PAUSE_NS:
        words = (
            f"nothing is recorded of its host for {show(float(more[place]), 'ns')} a step{where}"
        )
    else:
        words = f"it idles longer{where} ({title})"
    pause = Metric(
        "pause_ns", round(float(more[place])), "ns", "lower", label=f"longer idle, {title}"
    )
    advice = "look at what its host does there: garbage collection, logging or checkpoints on one rank, data loading, locks"
    is_long = _piece_ns(both, place) >= PAUSE_NS
    return Cause(
        "pause",
        words,
        advice,
        (pause,),
        round(longer_ns) if is_long else 0,
        where=(stage or "", kind),
    )


def _piece_ns(both: Beside, place: int) -> float:
    """The mean length of the pieces in which the late ranks idle at a row, or of those that the others have not."""
    late_ns, late_count = float(both.late_ns[place]), float(both.late_count[place])
    more_count = late_count - float(both.usual_count[place])
    mean = late_ns / max(late_count, 1.0)
    if more_count <= 0:
        return mean
    return max(mean, float(both.more_ns[place]) / max(more_count, 1.0))


def _held_in(
    measured: Measurements,
    rank_group: RankGroup,
    late: list[int],
    others: list[int],
    steps: pd.DataFrame,
) -> tuple[str, float] | None:
    """(the place in the program that holds the late ranks back longer than the others, by how much per step); None without."""
    rows = units(_rows(measured.columns("idle_blame"), rank_group, [*late, *others]))
    frames = measured["idle_frames"]
    rows = rows[(rows["window"] == "step").to_numpy(np.bool_)].drop(columns="holder")
    if not len(rows) or not len(frames):
        return None
    of_step, wanted = numbered_alike(["step", "part"], rows, steps)
    places = looked_up(rows[np.isin(of_step, wanted)], frames[[*NODE, "frame", "holder"]], NODE)
    places = places[places["frame"].notna() & places["holder"].isin(TELLING).to_numpy(np.bool_)]
    is_late = places["rank"].isin(late).to_numpy(np.bool_)
    number, first = of_keys(places, ["frame"])
    idle = places["idle_ns"].to_numpy(np.int64)
    more = summed(number[is_late], idle[is_late], len(first)) / (len(late) * len(steps))
    usual = summed(number[~is_late], idle[~is_late], len(first)) / (len(others) * len(steps))
    if not len(first):
        return None
    place = int((more - usual).argmax())
    return str(places["frame"].iloc[first[place]]), float((more - usual)[place])


TELLING = ("python", "gc", "system", "first_call", "call", "sync", "op")
"""Holders whose name says where to look."""

NODE = (*CAPTURE, "node")
"""A place in the tree of what holds devices back."""


def _call_ratio(
    measured: Measurements, rank_group: RankGroup, late: list[int], others: list[int]
) -> float | None:
    """How many times as long the median call of the host takes on the late ranks."""
    rows = rank_group.of(measured["host_counts"])
    rows = rows[(rows["window"] == "step") & rows["call_p50_ns"].notna()]
    return _ratio(rows, "call_p50_ns", late, others)


def _row_ratio(
    measured: Measurements,
    rank_group: RankGroup,
    late: list[int],
    others: list[int],
    stage: str | None,
) -> float | None:
    """How many times as many rows the forward products of the late ranks have in a stage."""
    rows = rank_group.of(measured["forward_batches"])
    rows = rows[rows["row_count"].notna()]
    rows = rows[same_text(pd.Series(canonical_stages(rows), rows.index), stage).to_numpy(np.bool_)]
    return _ratio(rows, "row_count", late, others)


def _ratio(rows: pd.DataFrame, column: str, late: list[int], others: list[int]) -> float | None:
    """The median of a column over the late ranks, by that over the others; None where either is not known."""
    sides = []
    for ranks in (late, others):
        values = rows[column][rows["rank"].isin(ranks).to_numpy(np.bool_)].to_numpy(float)
        if not len(values):
            return None
        sides.append(float(np.median(values)))
    return sides[0] / sides[1] if sides[1] > 0 else None


def _weighted_median(values: Floats, weights: Floats) -> float:
    """The value below which half of the weight lies."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _short(name: str) -> str:
    """A kernel or op path by its last part, at most 60 characters."""
    last = name.rpartition(" > ")[2]
    return last if len(last) <= 60 else f"{last[:59]}…"
