"""Rollout generations: work, batch sizes and tails of each engine (Q8 to Q11), and their charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.job.collectives.clock_offsets import Capture, CaptureClock, map_capture_clocks
from tracekit.job.frames import clear_redundant_parts, divide_or_none, phrase_run
from tracekit.job.steps.metric_samples import make_missing_last_key
from tracekit.model.records import dataclass
from tracekit.model.report import Chart
from tracekit.model.tables.frame import Frame, count_rows, median_of
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.text.labels import format_numbered_word
from tracekit.model.trace import Measurements, derive_once

TOKENS_DONE = 0.9
"""The tail of a generation begins when this share of its tokens is generated (Q9)."""

LOW_BATCH = 0.25
"""A batch below this share of the largest one is low (Q9)."""

HALF_BATCH = 0.5
"""Iterations of a tail below this share of the largest batch could run together with other requests.

Any generation ends with fewer requests than it began with. A tail that ends at three quarters of the batch cost 3 to
15 % more in simulation than it really does.
"""

FIRST_SHARE = 0.1
"""Share of the decode-only iterations of a generation that count as its first ones (Q10)."""

CLASSES_PER_OCTAVE = 8
"""Classes of batch size per doubling. Batches of one class, which spans some 9 %, count as equal when comparing pace."""

MIN_ALIKE = 3
"""Fewest later iterations of a class that the first ones can be compared with."""

UNIT = ("run", "role", "step", "part", "occurrence")


@dataclass(frozen=True, slots=True)
class EngineGeneration:
    """One engine in one generation. Times are ns; None is unknown.

    - `tail_ns`: time in which the last tenth of the tokens was generated; `low_ns`: time of low batches without prefill.
    - `gain_ns`: time saved if low batches, and those of the tail below half of the largest, were as fast as the others.
    - `context`: mean tokens that a decoding request attends to; `prompt_context`: the same per token of prefill iterations.
    - `first_over_steady`: pace of the first decode iterations over later ones of equal batch; `compared_ratio` of them
      have such later ones, and `first_excess_ns` is their extra time.
    - `mates`: number of ranks that ran the same batches (tensor parallel).
    """

    unit: tuple[Any, ...]
    engine: str
    source: str
    pid: int | None
    mates: int
    basis: str
    ts_ns: int
    dur_ns: int
    rank: int | None = None
    iterations: int = 0
    decode_iterations: int = 0
    tokens: int = 0
    counted: bool = True
    peak_requests: int = 0
    mean_requests: float | None = None
    context: float | None = None
    prompt_context: float | None = None
    tail_ns: int | None = None
    low_ns: int | None = None
    gain_ns: int = 0
    pace_ns: float | None = None
    busy_ns: int | None = None
    prefill_busy_ns: int | None = None
    prefill_ns: int = 0
    pause_ns: int | None = None
    first_over_steady: float | None = None
    compared_ratio: float = 0.0
    first_excess_ns: int = 0
    first_pace_ns: float | None = None
    clock: CaptureClock | None = None

    @property
    def end_ns(self) -> int:
        """End of its last work, on its own clock."""
        return self.ts_ns + self.dur_ns

    @property
    def begin_ns(self) -> int:
        """Start of its first work, on the clock of its group."""
        return self.ts_ns - (self.clock.fast_ns if self.clock else 0)

    @property
    def tail_ratio(self) -> float | None:
        """τ: share of the tail in the generation."""
        return divide_or_none(self.tail_ns, self.dur_ns)

    @property
    def low_ratio(self) -> float | None:
        """Share of the generation with a low batch."""
        return divide_or_none(self.low_ns, self.dur_ns)


@derive_once
def list_generations(measured: Measurements) -> list[EngineGeneration]:
    """List the work of every engine in every generation, in order of units and engines.

    Ranks of one replica that ran exactly the same batches (tensor parallel) are one engine.
    """
    generations = clear_redundant_parts(measured.frame("generations"))
    iterations_by_key, clocks = measured.derived(_split_iterations_by_generation), map_capture_clocks(measured)
    engines: list[EngineGeneration] = []
    for of_replica in generations.group_by(*UNIT, "replica").frames():
        by_work: dict[tuple[Any, ...], list[Mate]] = {}
        for row in of_replica.sort("rank", *CAPTURE).rows():
            iterations = iterations_by_key.get(tuple(row[name] for name in _KEY))
            by_work.setdefault(_make_engine_signature(row, iterations), []).append((row, iterations))
        several = len(by_work) > 1
        engines += [_build_engine_generation(mates, clocks, several=several) for mates in by_work.values()]
    return sorted(engines, key=_make_generation_sort_key)


Mate = tuple[Mapping[str, Any], Frame | None]
"""A row of `generations` with its iterations, if they are known."""

_KEY = (*CAPTURE, "step", "occurrence")
"""Key of one generation of one process."""


def list_generation_iterations(measured: Measurements, generation: EngineGeneration) -> Frame:
    """List the rows of `iterations` of one generation, in order of start."""
    return measured.derived(_split_iterations_by_generation)[
        generation.source, generation.pid, generation.unit[2], generation.unit[4]
    ]


def _split_iterations_by_generation(measured: Measurements) -> dict[tuple[Any, ...], Frame]:
    """Split the iterations by generation, in order of start."""
    by_generation = measured.frame("iterations").sort("ts_ns").group_by(*_KEY)
    return {tuple(next(part.rows(*_KEY)).values()): part for part in by_generation.frames()}


def _make_generation_sort_key(generation: EngineGeneration) -> tuple[Any, ...]:
    """Make the sort key of a generation: its unit (missing parts last), then its engine."""
    engine = generation.engine
    return (*make_missing_last_key(generation.unit), len(engine), engine, generation.source)


def _make_engine_signature(row: Mapping[str, Any], iterations: Frame | None) -> tuple[Any, ...]:
    """Make the key that ranks of one engine share: the batches they ran; their replica where these are unknown."""
    if iterations is not None:
        sums = [int(iterations[name].sum()) for name in ("count", "prefill_requests", "decode_requests")]
        return (*sums, int(iterations["decode_requests"].max()))
    return () if row["replica"] is not None else (row["source"], row["pid"])


def _build_engine_generation(
    mates: Sequence[Mate], clocks: Mapping[Capture, CaptureClock], *, several: bool
) -> EngineGeneration:
    """Build the generation of one engine from its first rank; without iterations it ends when the last rank ends."""
    row, iterations = mates[0]
    if iterations is not None:
        work, start, end = _summarize_iterations(iterations), row["ts_ns"], row["ts_ns"] + row["dur_ns"]
    else:
        work, (start, end) = {}, _measure_span_of_mates([mate for mate, _ in mates], clocks)
    return EngineGeneration(
        tuple(row[name] for name in UNIT),
        _name_rollout_engine(row, several=several),
        row["source"],
        row["pid"],
        len(mates),
        row["basis"],
        start,
        end - start,
        row["rank"],
        pause_ns=row["longest_pause_ns"],
        clock=clocks.get((row["source"], row["pid"])),
        **work,
    )


def _measure_span_of_mates(
    mates: Sequence[Mapping[str, Any]], clocks: Mapping[Capture, CaptureClock]
) -> tuple[int, int]:
    """Measure (first start, last end) on the clock of the first rank; without common clocks, of the longest rank."""
    own = [clocks.get((mate["source"], mate["pid"])) for mate in mates]
    starts, durs = ([mate[name] for mate in mates] for name in ("ts_ns", "dur_ns"))
    known = [clock for clock in own if clock is not None]
    if len(known) < len(mates) or len({clock.group for clock in known}) > 1:
        return starts[0], starts[0] + max(durs)
    moved = [start - clock.fast_ns for start, clock in zip(starts, known, strict=True)]
    last = max(start + dur for start, dur in zip(moved, durs, strict=True))
    return min(moved) + known[0].fast_ns, last + known[0].fast_ns


def _name_rollout_engine(row: Mapping[str, Any], *, several: bool) -> str:
    """Name an engine: `replica 0`, `replica 0 rank 1`, `rank 3`, `process 4711`, else its file."""
    process = format_numbered_word("rank", row["rank"]) or format_numbered_word("process", row["pid"])
    if row["replica"] is None:
        return process or row["source"]
    return f"replica {row['replica']} {process}".strip() if several else f"replica {row['replica']}"


def _summarize_iterations(iterations: Frame) -> dict[str, Any]:
    """Summarize iterations into the fields of a generation."""
    pace, count, running = iterations["pace_ns"], iterations["count"], iterations["decode_requests"]
    prefill, counted = iterations["prefill"], ~iterations.is_missing("decode_tokens")
    # Without a count every running request gets one token; speculative decoding gets more.
    tokens = np.where(counted, iterations.integers("decode_tokens"), running * count)
    wall, total, peak = int(pace.sum()), int(tokens.sum()), int(running.max())
    decode = ~prefill & (running > 0)
    low = ~prefill & (running < LOW_BATCH * peak)
    low_ns, tail_ns = int(pace[low].sum()), None
    gain = 0.0
    if total:
        tail_ns = wall - _measure_time_until_tokens(pace, tokens, TOKENS_DONE * total)
        in_tail = ~prefill & (np.cumsum(tokens) > TOKENS_DONE * total)
        thin = low | (in_tail & (running < HALF_BATCH * peak))
        if others := int(tokens[~thin].sum()):
            rate = int(pace[~thin].sum()) / others
            gain = int(pace[thin].sum()) - int(tokens[thin].sum()) * rate
    busy_ns = prefill_busy_ns = None
    if not iterations.is_missing("busy_ns").any():
        busy = iterations.integers("busy_ns")
        busy_ns, prefill_busy_ns = int(busy.sum()), int(busy[prefill].sum())
    each = pace / count
    decodes = iterations.with_columns(requests=running * count).filter(decode)
    return {
        "iterations": int(count.sum()),
        "decode_iterations": int(count[decode].sum()),
        "tokens": total,
        "counted": bool(counted.all()),
        "peak_requests": peak,
        "mean_requests": divide_or_none(float((running * pace).sum()), wall),
        "context": _divide_known_sums(decodes, "context_tokens", "requests"),
        "prompt_context": _divide_known_sums(
            iterations.filter(prefill), "attention_pairs", "prefill_tokens", "decode_tokens"
        ),
        "tail_ns": tail_ns,
        "low_ns": low_ns if peak else None,
        "gain_ns": max(round(gain), 0),
        "pace_ns": _compute_median_or_none(each[decode]),
        "busy_ns": busy_ns,
        "prefill_busy_ns": prefill_busy_ns,
        "prefill_ns": int(pace[prefill].sum()),
        **_compare_first_iterations(each[decode], count[decode], running[decode]),
    }


def estimate_full_batch_share(
    measured: Measurements, generations: Sequence[EngineGeneration], below: float
) -> float | None:
    """Estimate the share of their time that the tokens of iterations below a number of requests take in the others.

    Returns None without such iterations.
    """
    few_ns = full_ns = 0.0
    for generation in generations:
        iterations = list_generation_iterations(measured, generation)
        pace, running = iterations["pace_ns"], iterations["decode_requests"]
        is_counted = ~iterations.is_missing("decode_tokens")
        tokens = np.where(is_counted, iterations.integers("decode_tokens"), running * iterations["count"])
        few = ~iterations["prefill"] & (running > 0) & (running < below)
        own_ns, others = float(pace[few].sum()), int(tokens[~few].sum())
        few_ns += own_ns
        full_ns += min(own_ns, int(tokens[few].sum()) * float(pace[~few].sum()) / others) if others else own_ns
    return full_ns / few_ns if few_ns else None


def _divide_known_sums(iterations: Frame, above: str, *below: str) -> float | None:
    """Divide the sum of one column by that of others; None without rows, and where any value is unknown."""
    if not len(iterations) or any(iterations.is_missing(name).any() for name in (above, *below)):
        return None
    total = sum(int(iterations.integers(name).sum()) for name in below)
    return divide_or_none(int(iterations.integers(above).sum()), total)


def _compute_median_or_none(values: npt.NDArray[np.float64]) -> float | None:
    """Compute the median, None without values."""
    return float(np.median(values)) if len(values) else None


def _measure_time_until_tokens(pace: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64], need: float) -> int:
    """Measure the time until `need` tokens are generated, evenly within an iteration."""
    done = np.cumsum(tokens)
    place = int(np.searchsorted(done, need, "left"))
    before = float(done[place] - tokens[place])
    return round(int(pace[:place].sum()) + float(pace[place]) * (need - before) / float(tokens[place]))


def _compare_first_iterations(
    each: npt.NDArray[np.float64], count: npt.NDArray[np.int64], running: npt.NDArray[np.int64]
) -> dict[str, Any]:
    """Compare the first tenth of the decode iterations with later ones of equal batch (Q10)."""
    number = np.cumsum(count)
    first = number <= max(int(number.max(initial=0) * FIRST_SHARE), 1)
    classes = np.round(np.log2(running) * CLASSES_PER_OCTAVE).astype(np.int64)
    later = Frame.from_columns({"size_class": classes[~first], "pace_ns": each[~first]}).group_by("size_class")
    yardstick = later.agg(steady_ns=median_of("pace_ns"), count=count_rows())
    yardstick = yardstick.filter(yardstick["count"] >= MIN_ALIKE)
    steady = (
        Frame.from_columns({"size_class": classes[first]}).join(yardstick, ["size_class"], "left").number("steady_ns")
    )
    compared = ~np.isnan(steady)
    if not compared.any():
        return {}
    first_pace, steady = each[first][compared], steady[compared]
    excess = np.maximum(first_pace - steady, 0) * count[first][compared]
    over = first_pace[steady > 0] / steady[steady > 0]
    return {
        "first_over_steady": _compute_median_or_none(over),
        "compared_ratio": float(compared.mean()),
        "first_excess_ns": round(float(excess.sum())),
        "first_pace_ns": float(np.median(first_pace)),
    }


def group_generations_by_role(
    engine_generations: Sequence[EngineGeneration],
) -> dict[tuple[Any, Any], list[list[EngineGeneration]]]:
    """Group generations by run and role, then by unit: engines that ran at the same time."""
    sides: dict[tuple[Any, ...], list[EngineGeneration]] = {}
    for generation in engine_generations:
        sides.setdefault(generation.unit, []).append(generation)
    roles: dict[tuple[Any, Any], list[list[EngineGeneration]]] = {}
    for unit, side_by_side in sides.items():
        roles.setdefault((unit[0], unit[1]), []).append(side_by_side)
    return roles


def is_on_one_clock(unit: Sequence[EngineGeneration]) -> bool:
    """Check whether the times of all engines can be compared."""
    groups = {generation.clock and generation.clock.group for generation in unit}
    return len(groups) == 1 and None not in groups


def measure_end_times(unit: Sequence[EngineGeneration]) -> list[int]:
    """Measure the time from the start of the first engine to the end of each.

    Engines start together: where clocks cannot be compared, each is timed from its own start.
    """
    if not is_on_one_clock(unit):
        return [generation.dur_ns for generation in unit]
    start = min(g.begin_ns for g in unit)
    return [g.begin_ns + g.dur_ns - start for g in unit]


def find_last_engine(unit: Sequence[EngineGeneration]) -> EngineGeneration:
    """Find the engine that ended last."""
    times = measure_end_times(unit)
    return unit[times.index(max(times))]


def measure_rollout_bubble(unit: Sequence[EngineGeneration], *, without_tails: bool = False) -> tuple[float, float]:
    """Measure the bubble of engines that started together: (B, time saved if all ended together) (Q8)."""
    after = [end - (g.gain_ns if without_tails else 0) for g, end in zip(unit, measure_end_times(unit), strict=True)]
    window = max(after)
    saved = window - sum(after) / len(after)
    return divide_or_none(saved, window) or 0.0, saved


def describe_unseen_replicas(engine_generations: Sequence[EngineGeneration]) -> str:
    """Describe how many replicas were not recorded, judging by the numbers of the others; empty if none is missing."""
    numbers = {int(g.engine.split()[1]) for g in engine_generations if g.engine.startswith("replica ")}
    expected = max(numbers, default=-1) + 1
    if len(numbers) == expected:
        return ""
    return f"{len(numbers)} of at least {expected} replicas were recorded"


MAX_MARKS, MAX_LINES, MAX_ROWS = 2_000, 20, 64
"""Most marks, lines and rows of one chart."""


def draw_rollout(measured: Measurements, engine_generations: Sequence[EngineGeneration]) -> Iterator[Chart]:
    """Draw the unit with the longest generation: running batches over time, and the end of each engine."""
    units = chain.from_iterable(group_generations_by_role(engine_generations).values())
    unit = max(units, key=lambda unit: max(g.dur_ns for g in unit))
    run, _, number = unit[0].unit[:3]
    step = format_numbered_word(", step", number)
    title = f"{step}{phrase_run(measured, run)}"
    same_clock = is_on_one_clock(unit)
    batches = _draw_running_batches(measured, unit, title, same_clock=same_clock)
    if batches.marks:
        yield batches
    if len(unit) > 1:
        yield _draw_engine_ends(unit, title, same_clock=same_clock)


def _draw_running_batches(
    measured: Measurements, unit: Sequence[EngineGeneration], title: str, *, same_clock: bool
) -> Chart:
    """Draw a line per engine: the largest batch of neighbouring iterations."""
    first = min(g.begin_ns for g in unit)
    engines = sorted((g for g in unit if g.iterations), key=lambda g: -g.dur_ns)[:MAX_LINES]
    marks: list[tuple[int, int, int]] = []
    left_out = 0
    for number, engine in enumerate(engines):
        rows = list_generation_iterations(measured, engine)
        since_start = rows["ts_ns"] - engine.ts_ns + (engine.begin_ns - first if same_clock else 0)
        most = MAX_MARKS // len(engines)
        bins = np.arange(len(since_start)) * most // max(len(since_start), most)
        begin = np.flatnonzero(np.diff(bins, prepend=-1))
        highest = np.maximum.reduceat(rows["decode_requests"], begin)
        marks += zip(repeat(number), since_start[begin].tolist(), highest.tolist(), strict=False)
        left_out += len(since_start) - len(begin)
    caption = "The longest generation; the largest batch of neighbouring iterations."
    if not same_clock:
        caption += " Clocks cannot be compared: every engine starts at its own zero."
    return Chart(
        "rollout-batch",
        f"Requests that generate, over time{title}",
        "lines",
        tuple(marks),
        tuple(g.engine for g in engines),
        unit="count",
        caption=caption,
        omitted=left_out,
    )


def _draw_engine_ends(unit: Sequence[EngineGeneration], title: str, *, same_clock: bool) -> Chart:
    """Draw a bar per engine, the last one first: its generation time, then its wait for the last engine (bubble)."""
    ended = sorted(zip(measure_end_times(unit), unit, strict=True), key=lambda pair: -pair[0])[:MAX_ROWS]
    longest = ended[0][0]
    worked: list[tuple[int, int, int]] = []
    waited: list[tuple[int, int, int]] = []
    for row, (after, _) in enumerate(ended):
        worked.append((row, 0, after))
        if after < longest:
            waited.append((row, 1, longest - after))
    return Chart(
        "rollout-ends",
        f"When each engine ended{title}",
        "bars",
        (*worked, *waited),
        ("until its end", "waiting for the last"),
        tuple(engine.engine for _, engine in ended),
        caption="" if same_clock else "Clocks cannot be compared: every engine starts at its own zero.",
        omitted=len(unit) - len(ended),
    )
