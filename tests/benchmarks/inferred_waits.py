"""How well do the rules about who waits for whom infer the waits that the profiler recorded? Figures may only rise.

    python tests/benchmarks/inferred_waits.py [--write] [--only WORD]

Each profile with records of synchronization is read twice: as it is, and as if there were none, so that the rules infer all waits. Of
the waits that a rule infers, `precision` is the share that the records confirm; of the recorded waits, `recall` is the share that
the rules find. A wait of one stream for another is confirmed if the recorded waits and the order of streams imply it.

- `between streams`: waits that decided when an op began. `same place`: waits that did not, inferred from other steps and ranks.
- `event`, `event, done`: calls that wait for an event that has yet to happen, or has happened; `stream`: for a stream.

SIMULATED profiles are jobs of the simulator; `real/` is next to `TRACEKIT_REAL_DATA`. `--write` writes the table to
`inferred_waits.txt`; lines of profiles that are not here stay.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

if __name__ == "__main__":
    TESTS = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "support")]

import numpy as np
from jobsim.faults import job_of
from jobsim.truth import make
from replay.graphs import read_graphs

from tracekit.replay import call_waits, process_graph
from tracekit.replay.edges import STREAM_WAIT, SYNC_RETURN
from tracekit.replay.job_graph import JobGraph, join_processes
from tracekit.replay.recorded_waits import RecordedWaits

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_suffix(".txt")
HEADER = (
    "# Waits inferred by the rules beside those recorded, in per cent. Figures may only rise.",
    "# Written by `python tests/benchmarks/inferred_waits.py --write`; `real/` is next to TRACEKIT_REAL_DATA.",
    f"{'# profile':62}{'rule':18}{'recorded':>9}{'inferred':>9}{'precision':>10}{'recall':>8}",
)
KINDS = (
    *("straggler_clock", "exposed_communication", "item_in_loop", "pageable_copies", "eager_decode", "resharding"),
    *("slow_pipeline_stage", "hot_expert", "frequent_reduction", "slow_weight_sync", "slow_link", "layer_offload"),
)
"""Kinds of simulated jobs: those that differ in their waits."""
COMMITTED = ("item_sync_events", "wait_side_sync_events")
REAL = (
    "data/chrome/hta/critical_path/simple_add/benchmark_result_493459_1694039959_trace.json.gz",
    "more/chrome/hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
    "more/chrome/hta/critical_path/cuda_event_sync/event_sync_trace.json.gz",
    *("data/nsys/GindaChen_nsys-ai/mfu_2gpu_before.sqlite", "data/nsys/GindaChen_nsys-ai/mfu_2gpu_after.sqlite"),
)

Clock = dict[int, int]
"""Per stream: the last op, by its place on the stream, that has ended before another begins."""


class Score(NamedTuple):
    """Waits of one rule: recorded, inferred, those of the inferred that are confirmed, and of the recorded that are found."""

    recorded: int
    inferred: int
    confirmed: int
    found: int

    @property
    def precision(self) -> float | None:
        """Share of the inferred waits that are confirmed; None without any."""
        return self.confirmed / self.inferred if self.inferred else None

    @property
    def recall(self) -> float | None:
        """Share of the recorded waits that are found; None without any."""
        return self.found / self.recorded if self.recorded else None


def list_profiles(real: Path | None) -> Iterator[tuple[str, Path | str]]:
    """(name in the table, path or kind of a simulated job) of every profile that is here."""
    for kind in KINDS:
        yield f"SIMULATED {kind}", kind
    for name in COMMITTED:
        yield f"tests/data/gpu/pairs/{name}", ROOT / f"tests/data/gpu/pairs/{name}.pt.trace.json.xz"
    for name in REAL if real else ():
        path = real / name
        yield f"real/{Path(name).parent.name}/{Path(name).name[:24]}", path


def score_profile(profile: Path | str) -> dict[str, Score]:
    """Score the rules on a profile, or on a simulated job of a kind."""
    if isinstance(profile, Path):
        return _score_path(profile)
    with tempfile.TemporaryDirectory() as folder:
        make(replace(job_of(profile, "small", 0), sync_rows=True, _behaviours={}), Path(folder))
        return _score_path(Path(folder) / "profile")


def _score_path(path: Path) -> dict[str, Score]:
    recorded = join_processes(read_graphs(path))
    with (
        patch.object(process_graph, "read_recorded_waits", _read_no_waits),
        patch.object(call_waits, "_look_up_streams", lambda trace, rows, ops: np.full(len(rows), -1, np.int64)),
    ):
        inferred = join_processes(read_graphs(path))
    scores = {**_score_streams(recorded, inferred), **_score_calls(recorded, inferred)}
    return {rule: score for rule, score in scores.items() if score.recorded}


def _read_no_waits(*_: object) -> RecordedWaits:
    none = np.empty(0, np.int64)
    return RecordedWaits(none, none, none, none, is_complete=False)


# Waits between streams


def _list_stream_waits(job: JobGraph, *, inferred: bool) -> list[tuple[int, int, int]]:
    """(edge, waiting op, awaited op) of the waits between streams."""
    rows = np.flatnonzero((job.edges.kind == STREAM_WAIT) & (job.edges.inferred == inferred))
    op_of = _find_ops(job)
    return [
        (edge, op_of[target], op_of[source - 1])
        for edge, target, source in zip(
            rows.tolist(), job.edges.target[rows].tolist(), job.edges.source[rows].tolist(), strict=True
        )
    ]


def _find_ops(job: JobGraph) -> dict[int, int]:
    """The op that starts at an instant."""
    return {
        int(job.first[place]) + graph.host_count + 2 * number: int(job.first_op[place]) + number
        for place, graph in enumerate(job.processes)
        for number in range(len(graph.ops))
    }


def _join_streams(job: JobGraph) -> tuple[list[int], list[int]]:
    """The stream of each op of the job, and its place on that stream."""
    streams, places, above = [], [], 0
    seen: Counter[int] = Counter()
    for graph in job.processes:
        for stream in graph.ops.stream.tolist():
            number = above + stream
            streams.append(number)
            places.append(seen[number])
            seen[number] += 1
        above += int(graph.ops.stream.max(initial=-1)) + 1
    return streams, places


def _count_clocks(job: JobGraph, waits: list[tuple[int, int, int]]) -> list[Clock]:
    """What has ended before each op begins, by the order of its stream and by these waits."""
    streams, places = _join_streams(job)
    awaited: dict[int, list[int]] = {}
    for _, op, other in waits:
        awaited.setdefault(op, []).append(other)
    starts = np.concatenate([graph.ops.start for graph in job.processes])
    clocks: list[Clock] = [{} for _ in streams]
    latest: dict[int, int] = {}
    for op in np.argsort(starts, kind="stable").tolist():
        clock = clocks[op]
        previous = latest.get(streams[op])
        for other in (*awaited.get(op, ()), *(() if previous is None else (previous,))):
            for stream, place in (*clocks[other].items(), (streams[other], places[other])):
                clock[stream] = max(clock.get(stream, -1), place)
        latest[streams[op]] = op
    return clocks


def _score_streams(recorded: JobGraph, inferred: JobGraph) -> dict[str, Score]:
    streams, places = _join_streams(recorded)
    truth, guesses = _list_stream_waits(recorded, inferred=False), _list_stream_waits(inferred, inferred=True)
    confirmed_by, found_by = _count_clocks(recorded, truth), _count_clocks(inferred, guesses)

    def is_implied(clocks: list[Clock], wait: tuple[int, int, int]) -> bool:
        return clocks[wait[1]].get(streams[wait[2]], -1) >= places[wait[2]]

    decides = set(recorded.settled.timing.decider.tolist())
    waited = {
        (int(recorded.first_op[number]) + op, int(recorded.first_op[number] + graph.ops.waited_for[op]))
        for number, graph in enumerate(inferred.processes)
        for op in np.flatnonzero(graph.ops.waited_for >= 0).tolist()
    }
    scores = {}
    for rule, decided in (("between streams", True), ("same place", False)):
        of_truth = [wait for wait in truth if (wait[0] in decides) == decided]
        of_rule = [wait for wait in guesses if (wait[1:] in waited) == decided]
        scores[rule] = Score(
            len(of_truth),
            len(of_rule),
            sum(is_implied(confirmed_by, wait) for wait in of_rule),
            sum(is_implied(found_by, wait) for wait in of_truth),
        )
    return scores


# Waits of calls


def _list_call_waits(job: JobGraph) -> dict[int, tuple[int, str, bool]]:
    """By the instant at which a call returns: the op it waited for, the name of the call, and whether that is inferred."""
    edges, names = job.edges, {}
    rows = np.flatnonzero(edges.kind == SYNC_RETURN)
    for source, target, owner, inferred in zip(
        *(column[rows].tolist() for column in (edges.source, edges.target, edges.owner, edges.inferred)), strict=True
    ):
        place = int(np.searchsorted(job.first_path, owner, side="right")) - 1
        name = job.processes[place].paths.name
        code = int(name.codes[owner - int(job.first_path[place])])
        names[target] = source, name.texts[code] if code >= 0 else "", inferred
    return names


def _score_calls(recorded: JobGraph, inferred: JobGraph) -> dict[str, Score]:
    truth = {at: wait for at, wait in _list_call_waits(recorded).items() if not wait[2]}
    guesses, time, begin = _list_call_waits(inferred), recorded.time, {}
    for at in truth:
        begin[at] = int(time[at - 1])
    scores: dict[str, list[int]] = {}
    for at, (op, name, _) in truth.items():
        rule = "event" if "Event" in name else "stream"
        if rule == "event" and time[op] <= begin[at]:
            rule = "event, done"
        score = scores.setdefault(rule, [0, 0, 0])
        score[0] += 1
        if at in guesses:
            score[1] += 1
            score[2] += guesses[at][0] == op
    return {rule: Score(count, guessed, hit, hit) for rule, (count, guessed, hit) in scores.items()}


# The table


def format_line(profile: str, rule: str, score: Score) -> str:
    """The line of a rule on a profile."""
    shares = "".join(
        f"{'—' if share is None else f'{100 * share:.1f}':>{width}}"
        for share, width in ((score.precision, 10), (score.recall, 8))
    )
    return f"{profile:62}{rule:18}{score.recorded:9,}{score.inferred:9,}{shares}"


def read_table(text: str) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    """(profile, rule) → (precision, recall) in per cent."""
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    return {
        (line[:62].strip(), line[62:80].strip()): tuple(
            None if word == "—" else float(word) for word in line[80:].split()[2:]
        )
        for line in rows
    }


def list_fallen_figures(
    before: Mapping[tuple[str, str], tuple[float | None, float | None]], after: Mapping[tuple[str, str], Score]
) -> list[str]:
    """The rules whose precision or recall is below that of the table, by more than its rounding."""
    fallen = []
    for key, figures in before.items():
        if key not in after:
            continue
        for label, old, new in zip(("precision", "recall"), figures, _get_shares(after[key]), strict=True):
            if old is not None and (new is None or 100 * new < old - 0.051):
                fallen.append(
                    f"{key[0]}, {key[1]}: {label} {old} % → {'none' if new is None else f'{100 * new:.1f} %'}"
                )
    return fallen


def _get_shares(score: Score) -> tuple[float | None, float | None]:
    return score.precision, score.recall


def main() -> int:
    """Print or write the table; 1 where a figure fell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    real = os.environ.get("TRACEKIT_REAL_DATA")
    text = TABLE.read_text("utf-8") if TABLE.exists() else ""
    lines = {(line[:62].strip(), line[62:80].strip()): line for line in text.splitlines() if not line.startswith("#")}
    measured = {}
    for name, profile in list_profiles(Path(real).parent if real else None):
        if options.only in name:
            for rule, score in score_profile(profile).items():
                measured[name, rule] = score
                lines[name, rule] = format_line(name, rule, score)
                print(lines[name, rule], flush=True)
    fallen = list_fallen_figures(read_table(text), measured)
    for line in fallen:
        print(f"fell: {line}")
    if options.write:
        TABLE.write_text("\n".join([*HEADER, *(lines[key] for key in sorted(lines)), ""]), "utf-8")
        return 0
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
