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
        "the profiler was off, never reached its steps (a capture range that does not start leaves no file, and nsys reports success), or wrote elsewhere",
        "check the profiler's steps and save path in the run's configuration; tracekit inspect lists the files here",
    ),
    "no-nsys": Problem(
        "error",
        "{files}: reports that were not exported, and no nsys here to export them",
        "a report (.nsys-rep) is in nsys's own format; only nsys can convert it to a readable database",
        f"install nsys here and repeat, or export where it is installed: {_EXPORT}",
    ),
    "newer-report": Problem(
        "error",
        "{files}: reports of a newer nsys than the one here",
        "nsys reads reports of its own and of older versions only",
        f"install the version that recorded them or a newer one, or export where they were recorded: {_EXPORT}",
    ),
    "refused-report": Problem(
        "error",
        "{files}: complete reports that the nsys here cannot export",
        "they were recorded by an unknown version, or contain wrong bytes",
        f"try a newer nsys, or export where they were recorded: {_EXPORT}; compare them with the originals",
    ),
    "archive": Problem(
        "warning",
        "",
        "archives with a password, of an unsupported format, or that unpack to far more than profiles do, are not "
        "read; profiles that are compressed one by one (.gz, .zst, .xz, .bz2, .zip) are",
        "unpack it, and pass the result",
    ),
    "other-text": Problem(
        "warning",
        "",
        "written or saved again in another encoding; profilers write UTF-8",
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
        "nsys export writes the first page last; it was killed, or the disk was full, before that",
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
        "every start of Ray creates a session directory; session_latest points to the last one, which may not be the profiled one",
        "pass the directory with the reports (session_*/logs/nsight), or gather them: tracekit collect ROOT -o DIR",
    ),
    "forbidden": Problem(
        "error",
        "{files} without read permission",
        "written by another user, often root in a container",
        "change the permissions, or copy them as their owner",
    ),
    "unreadable": Problem(
        "error",
        "{files} that could not be read",
        "the content does not match the name, or is damaged",
        "copy or export it again; --exclude leaves it out",
    ),
    "broken-question": Problem(
        "error",
        "a question that could not be answered",
        "a bug of tracekit, not of the profile",
        "report it with this line; the rest of the report is valid",
    ),
    # Recorded data that was lost.
    "empty-file": Problem(
        "data_loss",
        "{files} of 0 bytes",
        "still being written, the disk was full, or the process was killed before the profiler could write",
        "wait until the job has ended and retry; otherwise free disk space (df -h) and stop the profiler before the workers are killed",
    ),
    "being-written": Problem(
        "data_loss",
        "{files} that are probably still being written",
        "changed within the last seconds, and not complete",
        "wait until the job, and nsys after it, has ended, then retry",
    ),
    "temporary-file": Problem(
        "data_loss",
        "{files} under a temporary name",
        "being written, or left by a profiler that died while it wrote",
        "wait until the job has ended; remaining files were not finished: profile fewer steps, or allow more time to stop",
    ),
    "stream-only": Problem(
        "data_loss",
        "{files}: raw streams (.qdstrm) without their reports",
        "nsys could not convert its stream to a report where it ran: its importer is missing there, or crashed",
        "run QdstrmImporter -i X.qdstrm of the same nsys version; allow nsys time to end",
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
        "compare the size with the original and copy again; allow the profiler time to stop before the job ends",
    ),
    "interleaved-processes": Problem(
        "data_loss",
        "{files}: two processes wrote one file at the same time; no figure is shown",
        "ranks share one file name: the name has no rank, or every rank reports rank 0",
        "put rank and pid into the file name (tensorboard_trace_handler does), and record again",
    ),
    "unusable-kernels": Problem(
        "data_loss",
        "",
        "the profiler stamped kernels long before their launch, as ROCm and CUPTI do before clocks are "
        "synchronized; these kernels are left out, and GPU time is too low there",
        "start recording later: schedule(warmup=1) or more; use a newer driver or profiler",
    ),
    "lost-kernels": Problem(
        "data_loss",
        "",
        "the profiler dropped the first kernels: its buffers were not ready when recording began; GPU time is too "
        "low there",
        "start recording later: schedule(warmup=1) or more; leave out the first step (--steps)",
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
        "written by another program, or changed after it was recorded: an event needs a phase (ph), a start (ts) and, for phase X, a duration (dur)",
        "export it again from the profiler that recorded it",
    ),
    "lost-rows": Problem(
        "data_loss",
        "{files}: nsys reports lost, or possibly lost, rows",
        "its buffers overflowed (too many rows for too long), or the capture ended while the program continued",
        "record fewer steps, trace less (--trace=cuda,nvtx --sample=none --cpuctxsw=none), or flush more often "
        "(--cuda-flush-interval)",
    ),
    "empty-domains": Problem(
        "data_loss",
        "{files}: NVTX domains without a single range",
        "this nsys is too old for the nvtx package (0.2.12 and later ask whether a domain is enabled, which old nsys denies): all nvtx ranges were dropped silently",
        "use a newer nsys, or pip install nvtx==0.2.11",
    ),
    "lost-capture": Problem(
        "data_loss",
        "",
        "capture could not record or write these steps, for the given reason; the run continued without them",
        "remove the reason (free disk space: df -h; one profiler at a time; a GPU, or another tool) and record these steps again",
    ),
    "elsewhere": Problem(
        "warning",
        "",
        "nsys writes the reports of Ray's workers into Ray's session on each node (logs/nsight), not to save_path",
        "collect them before Ray restarts: tracekit collect /tmp/ray -o DIR on each node, or "
        "tracekit collect --engine ray -o DIR; then tracekit analyze DIR",
    ),
    "never-closed": Problem(
        "data_loss",
        "{files}: processes that never finished profiling",
        "they died, were killed at the end of the job, had no disk space, or are still running",
        "stop the profiler before the workers are killed; wait for it before the job ends",
    ),
    "capture-problem": Problem(
        "warning",
        "",
        "the profiler of that process failed and logged it in the worker's log; the run continued without that profile",
        "fix the named problem (disk space, a writable path, the option) and record again",
    ),
    "no-effect": Problem(
        "info",
        "",
        "the configuration has an option that the tool, or the profiled program, ignores",
        "remove it from the configuration, or set it where it has an effect: examples/capture.md",
    ),
    "missing-files": Problem(
        "data_loss",
        "{count} files that a process wrote are missing",
        "not copied, or on the disk of another node",
        "gather the files of all nodes in one directory: tracekit collect ROOT -o DIR",
    ),
    "other-loss": Problem(
        "data_loss",
        "{files} with lost parts",
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
        "{files} with rows of unread categories",
        "an accelerator or a profiler extension that tracekit does not support wrote those rows; only the CPU side is "
        "analyzed",
        "list them, and use the vendor's tool for the device side",
    ),
    "not-pytorch": Problem(
        "warning",
        "{files}: Chrome JSON of another program than PyTorch's profiler",
        "another program writes the same format with other rows",
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
        "_record_memory_history was not called before the snapshot, or was off",
        "record the history before the work; without it, peaks, leaks and call sites are unknown",
    ),
    "empty-trace": Problem(
        "warning",
        "{files}: empty captures, traces without a single event",
        "the profiler was stopped before its first active step, ran without work, or its rows were filtered out",
        "put the profiler's active steps around real work, and call its step() after each one",
    ),
    "odd-times": Problem(
        "warning",
        "{count} events in {files} without a usable start or duration (missing, negative or impossible)",
        "written by another program, changed after recording, or a clock was set back during it",
        "times based on them are too short: export it again, and compare with the original",
    ),
    "filtered-rows": Problem(
        "warning",
        "",
        "a trace filter or sampler wrote the file",
        "analyze the trace as the profiler wrote it; a sample does not show when a GPU is idle",
    ),
    "late-ends": Problem(
        "warning",
        "{count} device ops in {files} ended after the next op of their stream; cut to end before it",
        "the profiler stamps some ends too late, as ROCm does; a stream runs its work in order",
        "none needed for busy and idle times, which use the cut ops; use a newer ROCm for the durations of these kernels",
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
        "the reports of other nodes were not collected, some ranks were not requested (verl: ranks, all_ranks), or their workers died before writing",
        "gather the directories of all nodes; otherwise compare ranks with caution: a missing straggler is not visible",
    ),
    "few-ranks": Problem(
        "info",
        "",
        "only this rank was requested (verl: ranks, all_ranks), or the others were not collected",
        "profile all ranks (all_ranks: true) to see who waits for whom",
    ),
    "missing-steps": Problem(
        "warning",
        "",
        "the worker died or was restarted, its report was not collected, or it was profiled at other steps",
        "look for its files on its node; compare only steps that all ranks have (--steps)",
    ),
    "missing-ranges": Problem(
        "warning",
        "",
        "nsys numbers the capture ranges of a process: a number without a file was not collected, or is still "
        "being written",
        "look for it at the source of the others; step numbers by range are wrong after the gap",
    ),
    "several-sessions": Problem(
        "warning",
        "",
        "every start of Ray creates a session directory; a root with several ones mixes different runs",
        "pass one session (session_*/logs/nsight), or name them as runs: a=DIR b=DIR",
    ),
    "latest-session": Problem(
        "warning",
        "",
        "Ray was restarted after the profiled run, and its link points to the last session",
        "pass the session itself instead of session_latest",
    ),
    "empty-capture": Problem(
        "warning",
        "{files}: reports without any NVTX range, CUDA call or GPU work",
        "a Ray worker that died while it started leaves such a report, one for every retry (often: python of the "
        "environment is not first on PATH); or the capture range contained no traced activity",
        "they do not count as ranks and may be deleted; if no other report is here, put the environment's bin "
        "directory first on PATH and check the worker's log",
    ),
    "pid-reuse": Problem(
        "warning",
        "",
        "the system reused the process id for a later worker, or one directory contains reports of two runs or containers",
        "keep one directory per run; remove the reports of a dead process",
    ),
    "nested-ranges": Problem(
        "warning",
        "",
        "roles that share a process (actor, rollout and reference of verl) each open a capture range, one within "
        "another: then range numbers are not steps, and time would count twice",
        "profile one role at a time, or let the capture cover whole steps (discrete: false)",
    ),
    "same-content": Problem(
        "warning",
        "",
        "a copy that was downloaded twice, collected from two places, or named twice",
        "none needed: a copy counts once, unless both were named as runs; --exclude selects the one to read",
    ),
    "same-identity": Problem(
        "warning",
        "{files} that claim the same role, step, rank and process as another",
        "one directory contains two runs, or files were copied into it twice",
        "keep one directory per run",
    ),
    "shared-rank": Problem(
        "warning",
        "",
        "one directory contains two runs, a restarted worker wrote again, or names do not identify the roles",
        "keep one directory per run, and one sub-directory per role",
    ),
    "conflict": Problem(
        "warning",
        "{files} whose names contradict their content",
        "files were renamed, or the name was chosen before the rank was known",
        "the report uses the manifest, then the content; rename the files",
    ),
    "unknown-rank": Problem(
        "warning",
        "",
        "the profiler started before torch.distributed, or the framework does not use it: the trace has no rank (distributedInfo)",
        "start the profiler after init_process_group, or put rank<N> into the file names",
    ),
    "no-device-rows": Problem(
        "warning",
        "",
        "another profiler (nsys, DCGM) used the GPU's counters there, or only CPU activities were recorded",
        "one profiler at a time; activities=[CPU, CUDA] on every rank",
    ),
    "no-common-clock": Problem(
        "warning",
        "",
        "their times count from the file's own zero (no baseTimeNanoseconds, no UTC start)",
        "stragglers cannot be found across them: record with torch 2.3 or later, or export again with nsys",
    ),
    "wal-missing": Problem(
        "warning",
        "{files}: databases without their write-ahead log (-wal): the last rows may be missing",
        "the database was copied while open, and without X.sqlite-wal",
        "copy X.sqlite-wal too, or close the program that uses the database and copy again",
    ),
    "open-database": Problem(
        "warning",
        "{files}: databases with an unfinished write",
        "SQLite left a journal next to the database: it was read in its state before the last change",
        "close the writing program, or let nsys export finish, and retry",
    ),
    "stale-export": Problem(
        "warning",
        "{files}: databases older than the reports next to them",
        "the report was recorded again, or copied later than its database",
        f"remove the database and export again: {_EXPORT}",
    ),
    "log-only": Problem(
        "warning",
        "a driver's log and no profile",
        "the profiler was off for these steps, or wrote elsewhere",
        "check the profiler's steps and save path in the run's configuration",
    ),
    "cpu-only": Problem(
        "info",
        "{files} with CPU activity only",
        "no GPU was used, or GPU activity was not requested",
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
        "none needed: each rank is analyzed as a separate process",
    ),
    "saved-by-tracekit": Problem(
        "info",
        "{files} that tracekit saved, not a profile",
        "tracekit writes its results with --save and -o; they are not captures",
        "pass it to the command that reads it, or pass the profiles here",
    ),
    "ray-check": Problem(
        "info",
        "{files}: left by Ray's check for nsys",
        "Ray runs nsys once without a program (empty.nsys-rep) before it starts a worker",
        "safe to delete",
    ),
}
"""Problems by code, most severe first; within a severity in the order in which a user should look at them."""
