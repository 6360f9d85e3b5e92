"""Kinds of recordings: what a source is, in one sentence with one command to type.

`process.recording_kind` classifies a trace, readers the files that no reader takes. Texts from traces stay out of
commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tracekit.model.inputs.sources import NoteSeverity
from tracekit.model.records import dataclass
from tracekit.model.text.labels import choose_plural, join_first_few, make_displayable, make_natural_key
from tracekit.model.units import format_quantity

SAVED = "saved-by-tracekit"
"""The kind of files that tracekit wrote, which are expected next to profiles."""

MAX_LABELS, MAX_LABEL_LENGTH = 4, 40
"""Maximum number of labels of a trace in one sentence, and maximum length of each."""


@dataclass(frozen=True, slots=True)
class RecordingCount:
    """One count of a recording; `label` separates several counts of one name (a category, a device, an op)."""

    name: str
    count: int
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Classification:
    """The kind of one process in one source, and the counts behind it."""

    kind: str
    counts: tuple[RecordingCount, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordingGroup:
    """All sources of one kind: their counts by name and by label, and the total number of sources."""

    sources: tuple[str, ...]
    tools: frozenset[str]
    counts: Mapping[str, int]
    labels: Mapping[str, Mapping[str, int]]
    total: int

    def count(self, name: str) -> int:
        """Sum the counts of that name."""
        return self.counts.get(name, 0)

    def listed(self, name: str, *, with_counts: bool = True) -> str:
        """Format the labels of that name, most frequent first: `npu_kernel 32, npu_runtime 32`."""
        most = sorted(self.labels.get(name, {}).items(), key=make_count_key)
        texts = []
        for label, count in most:
            text = shorten_label(label)
            texts.append(f"{text} {count:,}" if with_counts else text)
        return join_first_few(texts, MAX_LABELS)

    @property
    def files(self) -> str:
        """`1 of 5 files`, or `5 files` for all of them."""
        count = len(self.sources)
        if count == self.total:
            return f"{count:,} {choose_plural(count, 'file')}"
        return f"{count:,} of {self.total:,} files"

    @property
    def share(self) -> str:
        """` (1 of 5 files)` for the end of a sentence; empty if there is only one source."""
        return "" if self.total == len(self.sources) == 1 else f" ({self.files})"

    @property
    def is_nsys(self) -> bool:
        """Whether Nsight Systems recorded all of them."""
        return self.tools == {"nsys"}


@dataclass(frozen=True, slots=True)
class Remedy:
    """The remedy for a kind: advice, and the command or code to type."""

    advice: str
    command: str


@dataclass(frozen=True, slots=True)
class RecordingKind:
    """One kind of recording.

    `title` is a short name. `severity` is None for a normal recording, which `doctor` does not mention. `problem` is its
    entry in `health.problems`. `read` states how much of it tracekit reads.
    """

    code: str
    title: str
    read: str
    sentence: Callable[[RecordingGroup], str]
    remedy: Callable[[RecordingGroup], Remedy] | Remedy | None = None
    severity: NoteSeverity | None = None
    problem: str = ""


def make_count_key(labelled: tuple[str, int]) -> tuple[object, ...]:
    """Make a sort key that orders labels by count, most frequent first."""
    return -labelled[1], make_natural_key(labelled[0])


def shorten_label(text: str) -> str:
    """Shorten a text from a trace for one sentence."""
    text = make_displayable(text)
    return text if len(text) <= MAX_LABEL_LENGTH else f"{text[: MAX_LABEL_LENGTH - 1]}…"


def _format_count(count: int, noun: str, nouns: str = "") -> str:
    return f"{count:,} {choose_plural(count, noun, nouns)}"


_TORCH_GPU = Remedy(
    "record GPU activity as well", "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
)
_NSYS_CUDA = Remedy("trace CUDA over real steps", "nsys profile --trace=cuda,nvtx -o run python train.py")
_NSYS_KERNELS = Remedy(
    "record the kernels of child processes and CUDA graphs as well",
    "nsys profile --trace=cuda,nvtx --trace-fork-before-exec=true --cuda-graph-trace=node -o run python train.py",
)
_NSYS_LATER = Remedy(
    "record later, around real steps", "nsys profile --trace=cuda,nvtx --delay=60 -o run python train.py"
)
_SCHEDULE = Remedy(
    "record later, around real steps, and call prof.step() after each",
    "torch.profiler.schedule(wait=1, warmup=1, active=3)",
)
_NSYS_ANY = Remedy(
    "record the program with nsys, which tracekit reads", "nsys profile --trace=cuda,nvtx -o run python train.py"
)
_UNMERGED_RANKS = Remedy(
    "to keep one file per rank, start SGLang's profiler with",
    "curl http://HOST:30000/start_profile --json '{\"merge_profiles\": false}'",
)
_SEPARATE_FILES = Remedy("give each rank a file of its own", 'prof.export_chrome_trace(f"trace_rank{rank}.json.gz")')
_HISTORY = Remedy("before the work, call", "torch.cuda.memory._record_memory_history(max_entries=100_000)")
_PROFILING = Remedy(
    "profile some steps too; in verl",
    "global_profiler.tool=torch 'global_profiler.steps=[2,4]' global_profiler.save_path=outputs/profile",
)
_PROFILES = Remedy("give the profiles as well: the directory of both", "tracekit analyze DIR")
_PROFILING_NEMO_RL = Remedy(
    "profile some steps too; in NeMo-RL",
    "NRL_NSYS_PROFILE_STEP_RANGE=3:5 NRL_NSYS_WORKER_PATTERNS='*policy*,*vllm*'",
)
_NEW_EXPORT = Remedy("export it again where it was recorded", 'prof.export_chrome_trace("trace.json")')


def _describe_gpu_rows(group: RecordingGroup) -> str:
    return f"GPU work was recorded: {_format_count(group.count('kernels'), 'kernel')}{group.share}."


def _describe_launches_only(group: RecordingGroup) -> str:
    copies = group.count("device_ops")
    others = f" (only {_format_count(copies, 'copy or fill', 'copies and fills')})" if copies else ""
    cause = "CUPTI failed, or the capture missed the work"
    if not group.is_nsys:
        cause = "CUPTI failed, or activities=[CPU]"
    launches = _format_count(group.count("launches"), "launch", "launches")
    return f"{launches} but no kernels were recorded{others}: {cause}{group.share}."


def _suggest_gpu_recording(group: RecordingGroup) -> Remedy:
    return _NSYS_KERNELS if group.is_nsys else _TORCH_GPU


def _describe_cpu_only(group: RecordingGroup) -> str:
    devices = group.listed("devices", with_counts=False)
    what = "Only host activity was recorded" if group.is_nsys else "Only CPU activity was recorded"
    if devices:
        return f"{what}: {devices} is listed, but nothing was launched on it{group.share}."
    return f"{what}: no GPU is listed and nothing was launched{group.share}."


def _suggest_cpu_recording(group: RecordingGroup) -> Remedy:
    if group.is_nsys:
        return _NSYS_CUDA
    return Remedy("for a GPU program, record GPU activity as well", _TORCH_GPU.command)


def _describe_ran_on_cpu(group: RecordingGroup) -> str:
    devices = group.listed("devices", with_counts=False) or "a GPU"
    op, whole_ns = group.listed("top_op_ns", with_counts=False), group.count("whole_ns")
    share = format_quantity(group.count("top_op_ns") / whole_ns, "ratio") if whole_ns else ""
    detail = f": {op} takes {share} of the time" if op and share else ""
    return f"The model ran on the CPU although {devices} is listed{detail}{group.share}."


def _describe_start_up(group: RecordingGroup) -> str:
    calls, ops = group.count("calls"), group.count("ops")
    parts = [_format_count(calls, "CUDA call")] if calls else []
    if ops:
        parts.append(_format_count(ops, "operator"))
    copies = group.count("device_ops")
    if copies:
        parts.append(_format_count(copies, "copy or fill", "copies and fills"))
    parts.append("no launch and no kernel")
    return f"Only start-up was recorded: {', '.join(parts)}{group.share}."


def _describe_empty_recording(group: RecordingGroup) -> str:
    return f"The recording is empty: it has no events{group.share}."


def _describe_unusable_events(group: RecordingGroup) -> str:
    lacking = [
        f"{count:,} have no {what}"
        for count, what in ((group.count("no_start"), "start (ts)"), (group.count("no_phase"), "phase (ph)"))
        if count
    ]
    reason = " and ".join(lacking) or "tracekit does not read these kinds of events"
    return f"No event can be used: {reason}{group.share}."


def _make_foreign_sentence(name: str) -> Callable[[RecordingGroup], str]:
    def sentence(group: RecordingGroup) -> str:
        rows = group.count("rows")
        return f"A trace of {name}, not of PyTorch: its {_format_count(rows, 'row')} {choose_plural(rows, 'is', 'are')} not analyzed{group.share}."

    return sentence


def _describe_unread_rows(group: RecordingGroup) -> str:
    unread, rows = group.count("unread"), group.count("rows")
    return (
        f"{unread:,} of {rows:,} rows have categories that tracekit does not read: "
        f"{group.listed('unread')}{group.share}."
    )


def _suggest_unread_rows(group: RecordingGroup) -> Remedy:
    if any(_is_ascend(label) for label in group.labels.get("unread", {})):
        return Remedy("analyze Ascend profiles with", "msprof-analyze advisor all -d DIR")
    statement = "SELECT cat, kind, count(*) AS rows FROM host_ops GROUP BY ALL"
    return Remedy("see which rows those are", f'tracekit sql PATH "{statement}"')


def _is_ascend(label: str) -> bool:
    return any(word in label.lower() for word in ("npu", "cann", "ascend", "hccl"))


def _describe_merged_ranks(group: RecordingGroup) -> str:
    ranks = group.count("ranks")
    labels = group.listed("ranks", with_counts=False)
    parts = f"{ranks:,} ranks" if ranks else "Several ranks"
    if labels:
        parts += f" ({labels})"
    return f"{parts} were merged into one file: each is analyzed as a separate process{group.share}."


def _describe_interleaved(group: RecordingGroup) -> str:
    return f"Two processes wrote one file: rows are mixed, and some are lost{group.share}."


def _describe_front_end(group: RecordingGroup) -> str:
    if group.total == len(group.sources) == 1:
        return "This is the front end of a vLLM engine (async_llm): it has no GPU work by design."
    verb, has = ("is", "has") if len(group.sources) == 1 else ("are", "have")
    what = "the front end of a vLLM engine" if verb == "is" else "front ends of vLLM engines"
    return f"{group.files} {verb} {what} (async_llm), which {has} no GPU work by design."


def _suggest_worker_traces(group: RecordingGroup) -> Remedy:
    if len(group.sources) == group.total:
        return Remedy("give the directory with the traces of its workers", "tracekit analyze DIR")
    return Remedy("to leave it out", "tracekit analyze DIR --exclude '*async_llm*'")


def _describe_snapshot(group: RecordingGroup) -> str:
    return f"Memory snapshots with a history of allocations{group.share}."


def _describe_no_history(group: RecordingGroup) -> str:
    reserved, used = group.count("reserved_bytes"), group.count("active_bytes")
    detail = ""
    if reserved:
        unused = format_quantity(1 - used / reserved, "ratio")
        detail = f": {unused} of {format_quantity(reserved, 'bytes')} reserved is unused"
    return f"No allocation history was recorded in the memory snapshot{detail}{group.share}."


def _describe_memory_timeline(group: RecordingGroup) -> str:
    return f"A memory timeline of the profiler: levels by category, no stacks{group.share}."


def _describe_driver_log(group: RecordingGroup) -> str:
    steps = group.count("steps")
    detail = f": {_format_count(steps, 'step')}, no profile" if steps else ", no profile"
    profiled = group.listed("profiled", with_counts=False)
    known = f" By its configuration, a profiler recorded steps {profiled}." if profiled else ""
    return f"Only the driver's log was given{detail}{group.share}.{known}"


def _suggest_profiled_steps(group: RecordingGroup) -> Remedy:
    """Suggest how to profile, in the framework that wrote the logs."""
    frameworks = group.labels.get("framework", {}).keys()
    if group.labels.get("profiled"):
        return _PROFILES
    if frameworks == {"nemo_rl"}:
        return _PROFILING_NEMO_RL
    if frameworks <= {"verl", "verl_omni"}:
        return _PROFILING
    return Remedy("profile some steps too, and call prof.step() after each", _SCHEDULE.command)


def _describe_memory_log(group: RecordingGroup) -> str:
    return f"A log of memory by step{group.share}."


def _describe_engine_log(group: RecordingGroup) -> str:
    return f"A log of a rollout engine, its requests or a machine{group.share}."


def _describe_hang_evidence(group: RecordingGroup) -> str:
    return f"Collectives, stacks or watchdog lines of a job that hangs{group.share}."


def _describe_ray_timeline(group: RecordingGroup) -> str:
    return f"A timeline of Ray's tasks{group.share}."


_SAVED_FORMS: Mapping[str, str] = {
    "measurements": "measurements",
    "report": "report",
    "compare": "comparison",
    "noise": "run-to-run noise",
}
"""Contents of files that tracekit saved, by form; other forms are listings of commands."""


def _describe_saved_files(group: RecordingGroup) -> str:
    count = len(group.sources)
    forms = dict.fromkeys(_SAVED_FORMS.get(form, "listing") for form in group.labels.get("form", {}))
    noun = choose_plural(count, "file")
    return f"{count:,} {noun} that tracekit saved ({', '.join(forms)}), not a profile."


def _suggest_saved_use(group: RecordingGroup) -> Remedy:
    forms = group.labels.get("form", {}).keys()
    if forms <= {"measurements"}:
        return Remedy("analyze, compare, sql and export read it in place of the profiles", "tracekit analyze FILE")
    if forms <= {"noise"}:
        return Remedy("compare widens its intervals by it", "tracekit compare BASE OPT --noise FILE")
    if forms <= {"report", "compare", "measurements"}:
        return Remedy("export shows it", "tracekit export FILE")
    return Remedy("name the directory of the profiles", "tracekit analyze DIR")


def _suggest_later_recording(group: RecordingGroup) -> Remedy:
    return _NSYS_LATER if group.is_nsys else _SCHEDULE


_NOT_PYTORCH = {
    "jax": ("JAX or XLA", "JAX/XLA (jax.profiler)"),
    "tensorflow": ("TensorFlow", "TensorFlow"),
    "ebpf": ("an eBPF tool", "eBPF tools"),
    "chrome-json": ("another program", "Other Chrome JSON"),
}
"""Other producers of Chrome JSON: their name in a sentence, and as a title."""

FOREIGN = frozenset(_NOT_PYTORCH)
"""Kinds of traces written by programs other than PyTorch's profiler and nsys."""

KINDS: Mapping[str, RecordingKind] = {
    kind.code: kind
    for kind in (
        RecordingKind(
            "interleaved-processes",
            "Two processes in one file",
            "the rows that are whole",
            _describe_interleaved,
            _SEPARATE_FILES,
            "data_loss",
            "interleaved-processes",
        ),
        RecordingKind(
            "merged-ranks",
            "Merged ranks in one file",
            "each rank as its own process",
            _describe_merged_ranks,
            _UNMERGED_RANKS,
            "info",
            "merged-ranks",
        ),
        RecordingKind("gpu", "GPU rows", "all", _describe_gpu_rows),
        RecordingKind(
            "launches-only",
            "Launches without kernels",
            "CPU side only",
            _describe_launches_only,
            _suggest_gpu_recording,
            "warning",
            "no-kernels",
        ),
        RecordingKind(
            "unread-accelerator",
            "Accelerator rows that are not read",
            "CPU side only",
            _describe_unread_rows,
            _suggest_unread_rows,
            "warning",
            "unread-rows",
        ),
        *(
            RecordingKind(
                code,
                title,
                "recognized, not read",
                _make_foreign_sentence(name),
                _NSYS_ANY,
                "warning",
                "not-pytorch",
            )
            for code, (name, title) in _NOT_PYTORCH.items()
        ),
        RecordingKind(
            "ran-on-cpu",
            "Ran on the CPU although a GPU is listed",
            "all",
            _describe_ran_on_cpu,
            Remedy("move the model and its inputs to the GPU", 'model.to("cuda")'),
            "warning",
            "ran-on-cpu",
        ),
        RecordingKind(
            "cpu-only", "CPU activity only", "all", _describe_cpu_only, _suggest_cpu_recording, "info", "cpu-only"
        ),
        RecordingKind(
            "front-end",
            "Front end of an inference engine",
            "all",
            _describe_front_end,
            _suggest_worker_traces,
            "info",
            "front-end",
        ),
        RecordingKind(
            "start-up", "Start-up only", "all", _describe_start_up, _suggest_later_recording, "warning", "no-kernels"
        ),
        RecordingKind(
            "unusable",
            "Events without times",
            "nothing",
            _describe_unusable_events,
            _NEW_EXPORT,
            "data_loss",
            "no-times",
        ),
        RecordingKind(
            "empty",
            "Empty recording",
            "nothing",
            _describe_empty_recording,
            _suggest_later_recording,
            "warning",
            "empty-trace",
        ),
        RecordingKind("snapshot", "Memory snapshot", "all", _describe_snapshot),
        RecordingKind(
            "snapshot-without-history",
            "Memory snapshot without history",
            "blocks and segments",
            _describe_no_history,
            _HISTORY,
            "warning",
            "no-history",
        ),
        RecordingKind("memory-timeline", "Memory timeline", "all", _describe_memory_timeline),
        RecordingKind("memory-log", "Log of memory by step", "all", _describe_memory_log),
        RecordingKind("engine-log", "Log of an engine or a machine", "all", _describe_engine_log),
        RecordingKind("hang", "Flight recorder, stacks or watchdog of a hang", "all", _describe_hang_evidence),
        RecordingKind("ray-timeline", "Ray timeline", "all", _describe_ray_timeline),
        RecordingKind(
            "driver-log",
            "Driver log only",
            "stages by step",
            _describe_driver_log,
            _suggest_profiled_steps,
            "warning",
            "log-only",
        ),
        RecordingKind(
            SAVED,
            "File that tracekit saved",
            "recognized, not read as a profile",
            _describe_saved_files,
            _suggest_saved_use,
            "info",
            "saved-by-tracekit",
        ),
    )
}
"""All kinds by code; if the processes of a file differ, the first of them in this order is the file's kind."""

NORMAL = frozenset(code for code, kind in KINDS.items() if kind.severity is None)
"""Kinds that need no sentence."""
