"""Known problems of captures, as data: severity, description, cause and remedy."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.records import dataclass
from tracekit.model.trace import NoteSeverity


@dataclass(frozen=True, slots=True)
class Problem:
    """One known problem. `what` is a format string with `{files}` ("3 files") and `{count}`.

    `what` is empty if the symptom provides the description.
    """

    severity: NoteSeverity
    what: str
    cause: str
    remedy: str


_EXPORT = "nsys export --type sqlite -o X.sqlite X.nsys-rep (from 2026.1 on with --include-blobs=true)"

PROBLEMS: Mapping[str, Problem] = {
    # Files that cannot be read.
    "no-profile": Problem(
        "error",
        "",
        "the profiler was not switched on, never came to its steps (a capture range that does not begin leaves "
        "no file, and nsys calls that a success), or wrote elsewhere",
        "check the profiler's steps and save path in the configuration of the run; tracekit inspect lists what is here",
    ),
    "no-nsys": Problem(
        "error",
        "{files}: reports that were not exported, and no nsys here that could",
        "a report (.nsys-rep) is nsys's own form; only nsys turns it into a database that others can read",
        f"install nsys here and repeat, or export where it is installed: {_EXPORT}",
    ),
    "newer-report": Problem(
        "error",
        "{files}: reports recorded by a version of nsys that the one here cannot read",
        "nsys reads reports of its own and of older versions only",
        f"install the version that recorded them or a newer one, or export where they were recorded: {_EXPORT}",
    ),
    "refused-report": Problem(
        "error",
        "{files}: reports with their whole length that the nsys here cannot export",
        "they were recorded by a version that it does not know, or some bytes in them are wrong",
        f"try a newer nsys, or export where they were recorded: {_EXPORT}; compare them with the originals",
    ),
    "archive": Problem(
        "warning",
        "",
        "archives with a password, of an unsupported format, or that unpack to far more than profiles do, are not "
        "read; profiles that are compressed one by one (.gz, .zst, .xz, .bz2, .zip) are",
        "unpack it, and give what comes out",
    ),
    "other-text": Problem(
        "warning",
        "",
        "written or saved anew by a program that uses another encoding; profilers write UTF-8",
        "convert it to UTF-8",
    ),
    "lfs-pointer": Problem(
        "error",
        "{files}: Git LFS pointers in place of the profiles",
        "the repository was cloned without Git LFS, or the files were never pulled",
        "git lfs install, then git lfs pull",
    ),
    "interrupted-export": Problem(
        "error",
        "{files}: databases whose export was interrupted",
        "nsys export writes the first page last; it was killed, or the disk was full, before it came to that",
        f"remove the database and export again: {_EXPORT}",
    ),
    "truncated-report": Problem(
        "error",
        "{files}: reports that are cut off or damaged",
        "nsys was killed while it wrote, is still writing, or the copy broke off",
        "compare the size with the original and copy again; let nsys end before the job or the node does",
    ),
    "wrong-session": Problem(
        "error",
        "",
        "every start of Ray makes a session directory, and session_latest leads to the one started last, "
        "which need not be the one that was profiled",
        "give the directory that holds the reports (session_*/logs/nsight), or gather them: "
        "tracekit collect ROOT -o DIR",
    ),
    "forbidden": Problem(
        "error",
        "{files} that the system does not let us read",
        "written by another user, often root in a container",
        "change the permissions, or copy them as their owner",
    ),
    "unreadable": Problem(
        "error",
        "{files} that could not be read",
        "the file is not what its name says, or is damaged",
        "copy or export it again; --exclude leaves it out",
    ),
    "broken-question": Problem(
        "error",
        "a question that could not be answered",
        "a fault of tracekit, not of the profile",
        "report it with this line; the rest of the report stands",
    ),
    # Recorded data that was lost.
    "empty-file": Problem(
        "data_loss",
        "{files} of 0 bytes",
        "still being written, the disk was full, or the process was killed before the profiler could write",
        "wait until the job has ended and look again; else make room (df -h) and stop the profiler before "
        "the workers are killed",
    ),
    "being-written": Problem(
        "data_loss",
        "{files} that seem to be written still",
        "changed within the last seconds, and not complete",
        "wait until the job, and nsys after it, has ended, then look again",
    ),
    "temporary-file": Problem(
        "data_loss",
        "{files} under a temporary name",
        "being written, or left by a profiler that died while it wrote",
        "wait until the job has ended; what is left then was not finished: profile fewer steps, or more time to stop",
    ),
    "stream-only": Problem(
        "data_loss",
        "{files}: raw streams (.qdstrm) without their reports",
        "nsys could not turn its stream into a report where it ran: its importer is missing there, or crashed",
        "QdstrmImporter -i X.qdstrm, of the very nsys version that recorded it; give nsys time to end",
    ),
    "truncated-database": Problem(
        "data_loss",
        "{files}: databases that are cut off or damaged",
        "a copy or a download broke off, or the disk was full",
        f"compare the size with the original and copy again, or export again: {_EXPORT}",
    ),
    "truncated-trace": Problem(
        "data_loss",
        "{files}: traces that are cut off or damaged",
        "the job was killed while the profiler wrote, the disk was full, or the copy broke off",
        "compare the size with the original and copy again; leave the profiler time to stop before the job ends",
    ),
    "interleaved-processes": Problem(
        "data_loss",
        "{files}: two processes wrote one file at the same time; no figure is shown",
        "ranks share one file name: the name has no rank, or every rank thinks it is rank 0",
        "put rank and pid into the file name (tensorboard_trace_handler does), and record again",
    ),
    "unusable-kernels": Problem(
        "data_loss",
        "",
        "the profiler stamped kernels long before their launch, as ROCm and CUPTI do before clocks are "
        "synchronized; these kernels are left out, so GPU time is too low there",
        "schedule(warmup=1) or more, so that recording starts later; use a newer driver or profiler",
    ),
    "lost-kernels": Problem(
        "data_loss",
        "",
        "the profiler dropped the first kernels: its buffers were not ready when recording began; GPU time is too "
        "low there",
        "schedule(warmup=1) or more, so that recording starts later; leave the first step out (--steps)",
    ),
    "impossible-times": Problem(
        "data_loss",
        "{count} rows in {files} at time zero, or days from all other rows, left out",
        "the profiler lost the times of these rows while it wrote (pytorch#188481), or its clock jumped",
        "record again with a newer torch; steps that lost rows are not counted",
    ),
    "no-times": Problem(
        "data_loss",
        "{files} without a usable event",
        "written by another program, or changed after it was recorded: an event needs a phase (ph), a start (ts) "
        "and, where its phase is X, a duration (dur)",
        "export it again from the profiler that recorded it",
    ),
    "lost-rows": Problem(
        "data_loss",
        "{files}: nsys says that it lost, or may have lost, part of what happened",
        "its buffers ran over, since too much was traced for too long, or the capture ended while the program went on",
        "record fewer steps, trace less (--trace=cuda,nvtx --sample=none --cpuctxsw=none), or flush more often "
        "(--cuda-flush-interval)",
    ),
    "empty-domains": Problem(
        "data_loss",
        "{files}: NVTX domains without a single range",
        "this nsys is too old for the nvtx package (0.2.12 and later ask whether a domain is enabled, which old "
        "nsys denies): every range of nvtx was dropped without a word",
        "use a newer nsys, or pip install nvtx==0.2.11",
    ),
    "lost-capture": Problem(
        "data_loss",
        "",
        "capture could not record or write these steps, for the reason that it gives; the run went on without",
        "remove the reason (make room on the disk: df -h; one profiler at a time; a GPU, or another tool) and record "
        "these steps again",
    ),
    "elsewhere": Problem(
        "warning",
        "",
        "nsys writes the reports of Ray's workers into Ray's session on each node (logs/nsight), not to save_path",
        "fetch them before Ray starts again: tracekit collect /tmp/ray -o DIR on each node, or "
        "tracekit collect --engine ray -o DIR; then tracekit analyze DIR",
    ),
    "never-closed": Problem(
        "data_loss",
        "{files}: processes that never finished profiling",
        "they died, were killed at the end of the job, had no room on the disk, or are still running",
        "stop the profiler before the workers are killed; wait for it before the job ends",
    ),
    "capture-problem": Problem(
        "warning",
        "",
        "the profiler of that process met it and said so in the worker's log; the run went on without that profile",
        "mend what it names (room on the disk, a path that may be written, the option) and record again",
    ),
    "no-effect": Problem(
        "info",
        "",
        "the configuration asks for something that the tool, or the program that was profiled, does not follow",
        "take it out of the configuration, or ask for it where it is followed: examples/capture.md",
    ),
    "missing-files": Problem(
        "data_loss",
        "{count} files that a process says it wrote are not here",
        "not copied along, or on the disk of another node",
        "gather the files of all nodes in one directory: tracekit collect ROOT -o DIR",
    ),
    "other-loss": Problem(
        "data_loss",
        "{files} of which part was lost",
        "part of the file could not be used",
        "copy or export it again, and compare sizes with the original",
    ),
    # Data that is present but misleading.
    "no-kernels": Problem(
        "warning",
        "{files}: CUDA was traced, or a GPU listed, but no kernel was recorded",
        "the capture missed the work, activities=[CPU], another profiler used CUPTI, a forked child ran the work, "
        "CUDA_VISIBLE_DEVICES hid the GPU, a CUDA graph hid its kernels, or CUPTI dropped the rows",
        "put the range around real steps; --trace-fork-before-exec=true; --cuda-graph-trace=node; in nsys's "
        "configuration CuptiUseRawGpuTimestamps=false",
    ),
    "unread-rows": Problem(
        "warning",
        "{files} with rows of categories that are not read",
        "an accelerator or a profiler extension that tracekit does not support wrote those rows; only the CPU side is "
        "analyzed",
        "see which they are, and use the vendor's own tool for the device side",
    ),
    "not-pytorch": Problem(
        "warning",
        "{files}: Chrome JSON that PyTorch's profiler did not write",
        "another program writes the same format, with other rows",
        "record the program with nsys or torch.profiler",
    ),
    "ran-on-cpu": Problem(
        "warning",
        "{files}: the model ran on the CPU although a GPU is listed",
        "the model or its inputs were never moved to the GPU, or a build of PyTorch without CUDA is installed",
        "move the model and its inputs to the GPU, and check torch.cuda.is_available()",
    ),
    "no-history": Problem(
        "warning",
        "{files}: memory snapshots without a history of allocations",
        "_record_memory_history was not called before the snapshot, or had been switched off",
        "record the history before the work; without it, peaks, leaks and call sites are unknown",
    ),
    "empty-trace": Problem(
        "warning",
        "{files}: empty captures, traces without a single event",
        "the profiler was stopped before its first active step, ran around nothing, or what it recorded was "
        "filtered out",
        "let the profiler's active steps lie around real work, and call its step() after each of them",
    ),
    "odd-times": Problem(
        "warning",
        "{count} events in {files} without a usable start or duration (missing, negative or impossible)",
        "written by another program, changed after it was recorded, or a clock that was set back while it ran",
        "times that rest on them are too short: export it again, and compare with the original",
    ),
    "filtered-rows": Problem(
        "warning",
        "",
        "a filter or a sampler of traces wrote the file, to make it small",
        "analyze the trace as the profiler wrote it; a sample does not show when a GPU is idle",
    ),
    "late-ends": Problem(
        "warning",
        "{count} device ops in {files} ended after the next op of their stream; cut to end before it",
        "the profiler stamps some ends too late, as ROCm does; a stream runs its work in order",
        "nothing for busy and idle times, which use the cut ops; use a newer ROCm for the durations of these kernels",
    ),
    "open-ranges": Problem(
        "warning",
        "{count} ranges in {files} never closed",
        "the capture ended inside them, or the code leaves a range open (an exception, a missing range_pop)",
        "end the capture between steps; close ranges in finally, or with a context manager",
    ),
    "missing-ranks": Problem(
        "warning",
        "",
        "the reports of other nodes were not collected, some ranks were not asked for (verl: ranks, all_ranks), "
        "or their workers died before they wrote",
        "gather the directories of all nodes; else compare ranks with care: a late rank that is not here is not seen",
    ),
    "few-ranks": Problem(
        "info",
        "",
        "only this rank was asked for (verl: ranks, all_ranks), or the others were not collected",
        "profile all ranks (all_ranks: true) to see who waits for whom",
    ),
    "missing-steps": Problem(
        "warning",
        "",
        "the worker died or was restarted, its report was not collected, or it was profiled at other steps",
        "look for its files on its node; compare those steps only that all ranks have (--steps)",
    ),
    "missing-ranges": Problem(
        "warning",
        "",
        "nsys numbers the capture ranges of a process: a number without a file was not collected, or is still "
        "being written",
        "look for it where the others came from; steps counted by range number are off after the gap",
    ),
    "several-sessions": Problem(
        "warning",
        "",
        "every start of Ray makes a session directory; a root that holds several mixes different runs",
        "give one session (session_*/logs/nsight), or name them as runs: a=DIR b=DIR",
    ),
    "latest-session": Problem(
        "warning",
        "",
        "Ray was started again after the run that was profiled, and its link leads to the session started last",
        "name the session itself instead of session_latest",
    ),
    "empty-capture": Problem(
        "warning",
        "{files}: reports without any NVTX range, CUDA call or GPU work",
        "a Ray worker that died while it started leaves such a report, one for every retry (often: python of the "
        "environment is not first on PATH); or nothing that is traced happened in the capture range",
        "they count as no rank and may be deleted; if no other report is here, put the environment's bin "
        "directory first on PATH and look into the worker's log",
    ),
    "pid-reuse": Problem(
        "warning",
        "",
        "the system gave the same process id to a later worker, or reports of two runs or containers lie in one directory",
        "keep one directory a run; take the reports of a process that died out of it",
    ),
    "nested-ranges": Problem(
        "warning",
        "",
        "roles that share a process (actor, rollout and reference of verl) each open a capture range, one within "
        "another: range numbers then are not steps, and time would count twice",
        "profile one role at a time, or let the capture cover whole steps (discrete: false)",
    ),
    "same-content": Problem(
        "warning",
        "",
        "a copy that was downloaded twice, collected from two places, or named twice",
        "nothing: a copy counts once, unless both were named as runs; --exclude chooses which of them is read",
    ),
    "same-identity": Problem(
        "warning",
        "{files} that claim the same role, step, rank and process as another",
        "two runs lie in one directory, or files were copied into it twice",
        "keep one directory a run",
    ),
    "shared-rank": Problem(
        "warning",
        "",
        "two runs lie in one directory, a restarted worker wrote again, or roles that the names do not tell",
        "keep one directory a run, and one sub-directory a role",
    ),
    "conflict": Problem(
        "warning",
        "{files} whose names say something else than what is in them",
        "files were renamed, or the name was made before the rank was known",
        "trust what the report used (the manifest, then the file); rename the files",
    ),
    "unknown-rank": Problem(
        "warning",
        "",
        "the profiler began before torch.distributed did, or the framework does not use it: the trace says "
        "nothing about its rank (distributedInfo)",
        "start the profiler after init_process_group, or put rank<N> into the file names",
    ),
    "no-device-rows": Problem(
        "warning",
        "",
        "another profiler (nsys, DCGM) held the GPU's counters there, or only CPU activities were asked for",
        "one profiler at a time; activities=[CPU, CUDA] on every rank",
    ),
    "no-common-clock": Problem(
        "warning",
        "",
        "their times count from the file's own zero (no baseTimeNanoseconds, no UTC start)",
        "who waits for whom cannot be told across them: record with torch 2.3 or later, or export with nsys again",
    ),
    "wal-missing": Problem(
        "warning",
        "{files}: databases whose write-ahead log (-wal) is not here: the last rows may be missing",
        "the database was copied while a program had it open, and without X.sqlite-wal",
        "copy X.sqlite-wal along, or close the program that has the database open and copy again",
    ),
    "open-database": Problem(
        "warning",
        "{files}: databases that a program was still writing, or died writing",
        "a journal of SQLite lies beside the database: it was read as it was before the last change",
        "close the program that writes it, or let nsys export end, and look again",
    ),
    "stale-export": Problem(
        "warning",
        "{files}: databases older than the reports beside them",
        "the report was recorded again, or copied later, and its database is from before",
        f"remove the database and export again: {_EXPORT}",
    ),
    "log-only": Problem(
        "warning",
        "a driver's log and no profile",
        "the profiler was not switched on for these steps, or wrote elsewhere",
        "check the profiler's steps and save path in the configuration of the run",
    ),
    "cpu-only": Problem(
        "info",
        "{files} with CPU activity only",
        "no GPU took part, or GPU activity was not asked for",
        "for a GPU program record GPU activity as well",
    ),
    "front-end": Problem(
        "info",
        "{files}: front ends of inference engines, without GPU work by design",
        "the engine's front end schedules requests; its workers run the model and write traces of their own",
        "analyze the traces of the workers",
    ),
    "merged-ranks": Problem(
        "info",
        "{files}: several ranks merged into one file",
        "SGLang merges the traces of its ranks (merge_profiles)",
        "nothing: each rank is analyzed as a process of its own",
    ),
    "flight-recorder": Problem(
        "info",
        "{files}: NCCL flight-recorder dumps",
        "torch.distributed dumps its last collectives on a timeout or on request",
        "read them with torchfrtrace",
    ),
    "ray-timeline": Problem(
        "info",
        "{files}: timelines of Ray's tasks",
        "ray timeline writes when tasks ran, in the format of Chrome traces",
        "open them in Perfetto",
    ),
    "ray-check": Problem(
        "info",
        "{files}: left by Ray's check that nsys works",
        "Ray runs nsys once on nothing (empty.nsys-rep) before it starts a worker",
        "delete it, if you like",
    ),
}
"""Problems by code, most severe first; within a severity in the order in which a user should look at them."""
