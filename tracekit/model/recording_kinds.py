"""Kinds of recordings: what a source is, in one sentence with one command to type.

`process.recording_kind` classifies a trace, readers the files that no reader takes. Texts from traces stay out of
commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tracekit.model.labels import first_few, natural, plural, shown
from tracekit.model.records import dataclass
from tracekit.model.sources import NoteSeverity
from tracekit.model.units import show

MAX_LABELS, MAX_LABEL_LENGTH = 4, 40
"""Maximum number of labels of a trace in one sentence, and maximum length of each."""


@dataclass(frozen=True, slots=True)
class Count:
    """One count of a recording; `label` separates several counts of one name (a category, a device, an op)."""

    name: str
    count: int
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Classified:
    """The kind of one process in one source, and the counts behind it."""

    kind: str
    counts: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
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
        most = sorted(self.labels.get(name, {}).items(), key=by_count)
        texts = []
        for label, count in most:
            text = short_label(label)
            texts.append(f"{text} {count:,}" if with_counts else text)
        return first_few(texts, MAX_LABELS)

    @property
    def files(self) -> str:
        """`1 of 5 files`, or `5 files` for all of them."""
        count = len(self.sources)
        if count == self.total:
            return f"{count:,} {plural(count, 'file')}"
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
class Kind:
    """One kind of recording.

    `title` is a short name. `severity` is None for a normal recording, which `doctor` does not mention. `problem` is its
    entry in `health.problems`. `read` states how much of it tracekit reads.
    """

    code: str
    title: str
    read: str
    sentence: Callable[[Group], str]
    remedy: Callable[[Group], Remedy] | None = None
    severity: NoteSeverity | None = None
    problem: str = ""


def by_count(labelled: tuple[str, int]) -> tuple[object, ...]:
    """Make a sort key that orders labels by count, most frequent first."""
    return -labelled[1], natural(labelled[0])


def short_label(text: str) -> str:
    """Shorten a text from a trace for one sentence."""
    text = shown(text)
    return text if len(text) <= MAX_LABEL_LENGTH else f"{text[: MAX_LABEL_LENGTH - 1]}…"


def _counted(count: int, noun: str, nouns: str = "") -> str:
    return f"{count:,} {plural(count, noun, nouns)}"


_TORCH_GPU = Remedy(
    "record GPU activity as well",
    "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
)
_NSYS_CUDA = Remedy(
    "trace CUDA over real steps", "nsys profile --trace=cuda,nvtx -o run python train.py"
)
_NSYS_KERNELS = Remedy(
    "record the kernels of child processes and CUDA graphs as well",
    "nsys profile --trace=cuda,nvtx --trace-fork-before-exec=true --cuda-graph-trace=node -o run python train.py",
)
_NSYS_LATER = Remedy(
    "record later, around real steps",
    "nsys profile --trace=cuda,nvtx --delay=60 -o run python train.py",
)
_SCHEDULE = Remedy(
    "record later, around real steps, and call prof.step() after each",
    "torch.profiler.schedule(wait=1, warmup=1, active=3)",
)
_NSYS_ANY = Remedy(
    "record the program with nsys, which tracekit reads",
    "nsys profile --trace=cuda,nvtx -o run python train.py",
)


def _gpu(group: Group) -> str:
    return f"GPU work was recorded: {_counted(group.count('kernels'), 'kernel')}{group.share}."


def _launches_only(group: Group) -> str:
    copies = group.count("device_ops")
    others = f" (only {_counted(copies, 'copy or fill', 'copies and fills')})" if copies else ""
    cause = "CUPTI failed, or the capture missed the work"
    if not group.is_nsys:
        cause = "CUPTI failed, or activities=[CPU]"
    launches = _counted(group.count("launches"), "launch", "launches")
    return f"{launches} but no kernels were recorded{others}: {cause}{group.share}."


def _gpu_remedy(group: Group) -> Remedy:
    return _NSYS_KERNELS if group.is_nsys else _TORCH_GPU


def _cpu_only(group: Group) -> str:
    devices = group.listed("devices", with_counts=False)
    what = "Only host activity was recorded" if group.is_nsys else "Only CPU activity was recorded"
    if devices:
        return f"{what}: {devices} is listed, but nothing was launched on it{group.share}."
    return f"{what}: no GPU is listed and nothing was launched{group.share}."


def _cpu_remedy(group: Group) -> Remedy:
    if group.is_nsys:
        return _NSYS_CUDA
    return Remedy("for a GPU program, record GPU activity as well", _TORCH_GPU.command)


def _ran_on_cpu(group: Group) -> str:
    devices = group.listed("devices", with_counts=False) or "a GPU"
    op, whole_ns = group.listed("top_op_ns", with_counts=False), group.count("whole_ns")
    share = show(group.count("top_op_ns") / whole_ns, "ratio") if whole_ns else ""
    detail = f": {op} takes {share} of the time" if op and share else ""
    return f"The model ran on the CPU although {devices} is listed{detail}{group.share}."


def _start_up(group: Group) -> str:
    calls, ops = group.count("calls"), group.count("ops")
    parts = [_counted(calls, "CUDA call")] if calls else []
    if ops:
        parts.append(_counted(ops, "operator"))
    copies = group.count("device_ops")
    if copies:
        parts.append(_counted(copies, "copy or fill", "copies and fills"))
    parts.append("no launch and no kernel")
    return f"Only start-up was recorded: {', '.join(parts)}{group.share}."


def _empty(group: Group) -> str:
    return f"The recording is empty: it has no events{group.share}."


def _unusable(group: Group) -> str:
    lacking = [
        f"{count:,} have no {what}"
        for count, what in (
            (group.count("no_start"), "start (ts)"),
            (group.count("no_phase"), "phase (ph)"),
        )
        if count
    ]
    reason = " and ".join(lacking) or "tracekit reads no event of these kinds"
    return f"No event can be used: {reason}{group.share}."


def _foreign(name: str) -> Callable[[Group], str]:
    def sentence(group: Group) -> str:
        rows = group.count("rows")
        return f"A trace of {name}, not of PyTorch: its {_counted(rows, 'row')} {plural(rows, 'is', 'are')} not analyzed{group.share}."

    return sentence


def _unread_rows(group: Group) -> str:
    unread, rows = group.count("unread"), group.count("rows")
    return (
        f"{unread:,} of {rows:,} rows have categories that tracekit does not read: "
        f"{group.listed('unread')}{group.share}."
    )


def _unread_remedy(group: Group) -> Remedy:
    if any(_is_ascend(label) for label in group.labels.get("unread", {})):
        return Remedy("analyze Ascend profiles with", "msprof-analyze advisor all -d DIR")
    statement = "SELECT cat, kind, count(*) AS rows FROM host_ops GROUP BY ALL"
    return Remedy("see which rows those are", f'tracekit sql PATH "{statement}"')


def _is_ascend(label: str) -> bool:
    return any(word in label.lower() for word in ("npu", "cann", "ascend", "hccl"))


def _merged_ranks(group: Group) -> str:
    ranks = group.count("ranks")
    labels = group.listed("ranks", with_counts=False)
    parts = f"{ranks:,} ranks" if ranks else "Several ranks"
    if labels:
        parts += f" ({labels})"
    return (
        f"{parts} were merged into one file: each is analyzed as a process of its own{group.share}."
    )


def _merged_remedy(_: Group) -> Remedy:
    return Remedy(
        "to keep one file per rank, start SGLang's profiler with",
        "curl http://HOST:30000/start_profile --json '{\"merge_profiles\": false}'",
    )


def _interleaved(group: Group) -> str:
    return f"Two processes wrote one file: their rows are mixed, and some are lost{group.share}."


def _interleaved_remedy(_: Group) -> Remedy:
    return Remedy(
        "give each rank a file of its own",
        'prof.export_chrome_trace(f"trace_rank{rank}.json.gz")',
    )


def _front_end(group: Group) -> str:
    if group.total == len(group.sources) == 1:
        return "This is the front end of a vLLM engine (async_llm): it has no GPU work by design."
    verb, has = ("is", "has") if len(group.sources) == 1 else ("are", "have")
    what = "the front end of a vLLM engine" if verb == "is" else "front ends of vLLM engines"
    return f"{group.files} {verb} {what} (async_llm), which {has} no GPU work by design."


def _front_end_remedy(group: Group) -> Remedy:
    if len(group.sources) == group.total:
        return Remedy("give the directory with the traces of its workers", "tracekit analyze DIR")
    return Remedy("to leave it out", "tracekit analyze DIR --exclude '*async_llm*'")


def _snapshot(group: Group) -> str:
    return f"Memory snapshots with a history of allocations{group.share}."


def _no_history(group: Group) -> str:
    reserved, used = group.count("reserved_bytes"), group.count("active_bytes")
    detail = ""
    if reserved:
        unused = show(1 - used / reserved, "ratio")
        detail = f": {unused} of {show(reserved, 'bytes')} reserved is unused"
    return f"No allocation history was recorded in the memory snapshot{detail}{group.share}."


def _no_history_remedy(_: Group) -> Remedy:
    return Remedy(
        "before the work, call", "torch.cuda.memory._record_memory_history(max_entries=100_000)"
    )


def _memory_timeline(group: Group) -> str:
    return f"A memory timeline of the profiler: levels by category, no stacks{group.share}."


def _driver_log(group: Group) -> str:
    steps = group.count("steps")
    detail = f": {_counted(steps, 'step')}, no profile" if steps else ", no profile"
    return f"Only the driver's log was given{detail}{group.share}."


def _driver_log_remedy(_: Group) -> Remedy:
    return Remedy(
        "profile some steps too; in verl",
        "global_profiler.tool=torch 'global_profiler.steps=[2,4]' global_profiler.save_path=outputs/profile",
    )


def _memory_log(group: Group) -> str:
    return f"A log of memory by step{group.share}."


def _flight_recorder(group: Group) -> str:
    count = len(group.sources)
    backend = "gloo" if _is_gloo(group) else "NCCL"
    noun = plural(count, f"{backend} flight-recorder dump")
    return f"{count:,} {noun}: a log of collectives for finding hangs, not a profile; not analyzed."


def _is_gloo(group: Group) -> bool:
    """Whether all dumps are from gloo, whose states torchfrtrace does not support."""
    return group.labels.get("backend", {}).keys() == {"gloo"}


def _flight_recorder_remedy(group: Group) -> Remedy:
    if _is_gloo(group):
        return Remedy("gloo records no states: look at the stacks", "py-spy dump --pid PID")
    if group.labels.get("form", {}).keys() == {"json"}:
        return Remedy(
            "torchfrtrace reads pickles; to write them, set",
            "TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_TEMP_FILE=DIR/nccl_trace_rank_",
        )
    return Remedy("find the collective that some rank did not join", "torchfrtrace DIR")


def _ray_timeline(group: Group) -> str:
    count = len(group.sources)
    noun = plural(count, "Ray timeline")
    return f"{count:,} {noun}: when tasks ran, not GPU work; not analyzed."


def _perfetto(_: Group) -> Remedy:
    return Remedy("to look at it, open it in Perfetto", "https://ui.perfetto.dev")


def _always(remedy: Remedy) -> Callable[[Group], Remedy]:
    return lambda _: remedy


def _record_later(group: Group) -> Remedy:
    return _NSYS_LATER if group.is_nsys else _SCHEDULE


def _export_again(_: Group) -> Remedy:
    return Remedy("export it again where it was recorded", 'prof.export_chrome_trace("trace.json")')


_NOT_PYTORCH = {
    "jax": ("JAX or XLA", "JAX/XLA (jax.profiler)"),
    "tensorflow": ("TensorFlow", "TensorFlow"),
    "ebpf": ("an eBPF tool", "eBPF tools"),
    "chrome-json": ("another program", "Other Chrome JSON"),
}
"""Other producers of Chrome JSON: their name in a sentence, and as a title."""

FOREIGN = frozenset(_NOT_PYTORCH)
"""Kinds of traces written by programs other than PyTorch's profiler and nsys."""

KINDS: Mapping[str, Kind] = {
    kind.code: kind
    for kind in (
        Kind(
            "interleaved-processes",
            "Two processes in one file",
            "the rows that are whole",
            _interleaved,
            _interleaved_remedy,
            "data_loss",
            "interleaved-processes",
        ),
        Kind(
            "merged-ranks",
            "Merged ranks in one file",
            "each rank as its own process",
            _merged_ranks,
            _merged_remedy,
            "info",
            "merged-ranks",
        ),
        Kind("gpu", "GPU rows", "all", _gpu),
        Kind(
            "launches-only",
            "Launches without kernels",
            "CPU side only",
            _launches_only,
            _gpu_remedy,
            "warning",
            "no-kernels",
        ),
        Kind(
            "unread-accelerator",
            "Accelerator rows that are not read",
            "CPU side only",
            _unread_rows,
            _unread_remedy,
            "warning",
            "unread-rows",
        ),
        *(
            Kind(
                code,
                title,
                "recognized, not read",
                _foreign(name),
                _always(_NSYS_ANY),
                "warning",
                "not-pytorch",
            )
            for code, (name, title) in _NOT_PYTORCH.items()
        ),
        Kind(
            "ran-on-cpu",
            "Ran on the CPU although a GPU is listed",
            "all",
            _ran_on_cpu,
            _always(Remedy("move the model and its inputs to the GPU", 'model.to("cuda")')),
            "warning",
            "ran-on-cpu",
        ),
        Kind("cpu-only", "CPU activity only", "all", _cpu_only, _cpu_remedy, "info", "cpu-only"),
        Kind(
            "front-end",
            "Front end of an inference engine",
            "all",
            _front_end,
            _front_end_remedy,
            "info",
            "front-end",
        ),
        Kind(
            "start-up",
            "Start-up only",
            "all",
            _start_up,
            _record_later,
            "warning",
            "no-kernels",
        ),
        Kind(
            "unusable",
            "Events without times",
            "nothing",
            _unusable,
            _export_again,
            "data_loss",
            "no-times",
        ),
        Kind(
            "empty", "Empty recording", "nothing", _empty, _record_later, "warning", "empty-trace"
        ),
        Kind("snapshot", "Memory snapshot", "all", _snapshot),
        Kind(
            "snapshot-without-history",
            "Memory snapshot without history",
            "blocks and segments",
            _no_history,
            _no_history_remedy,
            "warning",
            "no-history",
        ),
        Kind("memory-timeline", "Memory timeline", "all", _memory_timeline),
        Kind("memory-log", "Log of memory by step", "all", _memory_log),
        Kind(
            "driver-log",
            "Driver log only",
            "stages by step",
            _driver_log,
            _driver_log_remedy,
            "warning",
            "log-only",
        ),
        Kind(
            "flight-recorder",
            "NCCL flight-recorder dump",
            "recognized, not read",
            _flight_recorder,
            _flight_recorder_remedy,
            "info",
            "flight-recorder",
        ),
        Kind(
            "ray-timeline",
            "Ray timeline",
            "recognized, not read",
            _ray_timeline,
            _perfetto,
            "info",
            "ray-timeline",
        ),
    )
}
"""All kinds by code; if the processes of a file differ, the first of them in this order is the file's kind."""

UNSEEN_DEVICE = frozenset({"launches-only", "unread-accelerator"})
"""Kinds whose device rows were not recorded or are not read: host idle time is then not lost time."""

NORMAL = frozenset(code for code, kind in KINDS.items() if kind.severity is None)
"""Kinds that need no sentence."""
