"""What-ifs about memory: read the snapshots at a path, replay their histories, and predict the peak with changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.inputs.sources import Source
from tracekit.model.report import Report
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Trace, Want
from tracekit.pipeline.measure_source import read_parts
from tracekit.pipeline.options import Options, parse_optional_numbers
from tracekit.process.memory.allocator.beginning import UnreplayableError
from tracekit.process.memory.allocator.identity import replay_history
from tracekit.process.memory.replay import replay_all_devices
from tracekit.replay.changes import ChangeError
from tracekit.replay.memory.applying import ReplayedMemory
from tracekit.replay.memory.batches import LargestBatch, find_largest_batch, fit_largest_batch
from tracekit.replay.memory.memory_changes import AllocatorChange, make_memory_change, parse_memory_change
from tracekit.replay.memory.memory_reports import MemoryAnswer, build_memory_report
from tracekit.replay.memory.predicting_memory import MemoryPlan, plan_memory_changes, predict_memory_changes

_NAME_SNAPSHOTS = "name snapshots of torch.cuda.memory._dump_snapshot, recorded with _record_memory_history"

GivenChange = str | Mapping[str, Any] | AllocatorChange


def predict_memory(
    sources: Sequence[Source],
    changes: Sequence[GivenChange],
    options: Options,
    micro_batches: Sequence[int] = (),
) -> Report:
    """Replay the memory snapshots among sources with changes; without changes, with each that applies.

    `micro_batches` has the recorded micro-batch, or those of two snapshots (the larger is that of the higher
    peak), and asks for the largest that fits. Raises `TracekitError`.
    """
    if options.steps:
        raise TracekitError(
            "--steps selects no part of an allocator's history", "leave --steps out: histories are replayed whole"
        )
    parsed = [read_memory_change(change) for change in changes]
    memories, unreplayed = _replay_snapshots(sources, options)
    if not memories:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unreplayed[:3])
        raise TracekitError(f"no history can be replayed: {reasons or 'no memory snapshot is here'}", _NAME_SNAPSHOTS)
    memories.sort(key=lambda memory: -memory.run.peak_reserved)
    plan, largest, problem = MemoryPlan(()), None, ""
    if memories[0].match.is_sufficient:
        plan = predict_memory_changes(memories[0], parsed) if parsed else plan_memory_changes(memories[0])
        try:
            largest = _answer_batch_question(memories, micro_batches)
        except ChangeError as error:
            problem = f"largest micro-batch: {error.problem}: {error.hint}"
    elif parsed:
        raise ChangeError(
            "the replay differs from the record by more than 3 % of the peak: nothing is predicted",
            "run without --change for the difference",
        )
    answer = MemoryAnswer(tuple(memories), tuple(unreplayed), plan, largest, problem)
    return build_memory_report(answer, f"Memory: {memories[0].name}")


def read_memory_change(change: GivenChange) -> AllocatorChange:
    """Read a change given as a text, as fields, or as itself. Raises `ChangeError`."""
    if isinstance(change, AllocatorChange):
        return change
    return parse_memory_change(change) if isinstance(change, str) else make_memory_change(change)


def _answer_batch_question(memories: Sequence[ReplayedMemory], micro_batches: Sequence[int]) -> LargestBatch | None:
    if not micro_batches:
        return None
    if len(micro_batches) == 1:
        return find_largest_batch(memories[0], micro_batches[0])
    if len(micro_batches) != 2 or len(memories) != 2:
        given = ",".join(map(str, micro_batches))
        histories = choose_plural(len(memories), "history was", "histories were")
        raise ChangeError(
            f"--micro-batch {given} needs one history for each of two micro-batches, and {len(memories)} {histories} replayed",
            "name one snapshot of each, or give one micro-batch",
        )
    return fit_largest_batch(memories, sorted(micro_batches, reverse=True))


def _replay_snapshots(
    sources: Sequence[Source], options: Options
) -> tuple[list[ReplayedMemory], list[tuple[str, str]]]:
    """Replay every device of every snapshot: (histories, reasons for files without any)."""
    memories: list[ReplayedMemory] = []
    unreplayed: list[tuple[str, str]] = []
    for source in sources:
        if source.tool != "torch_memory":
            continue
        try:
            for trace in _read_snapshots(source, options):
                for replayed in _replay_trace(trace, options.device_memory):
                    if isinstance(replayed, ReplayedMemory):
                        memories.append(replayed)
                    else:
                        unreplayed.append((source.name, replayed))
        except TraceFormatError as error:
            unreplayed.append((source.name, error.problem))
    return memories, unreplayed


def _read_snapshots(source: Source, options: Options) -> Iterator[Trace]:
    parts = read_parts(source, lambda _: None, Want(), ranks=parse_optional_numbers(options.ranks))
    for _, trace, _ in parts:
        if trace is not None:
            yield trace


def _replay_trace(trace: Trace, device_memory: int | None) -> Iterator[ReplayedMemory | str]:
    """Replay the history of each device: its replay, or the reason why there is none."""
    for replay in trace.derived(replay_all_devices):
        if replay.memory != "device":
            continue
        try:
            program, run, match = replay_history(trace, replay)
        except UnreplayableError as error:
            yield str(error)
            continue
        name = trace.source.name if replay.device is None else f"{trace.source.name} · GPU {replay.device}"
        yield ReplayedMemory(name, trace, replay, program, run, match, device_memory)
