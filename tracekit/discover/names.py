"""Facts in file and directory names: role, scope, step, rank … No file is accessed here.

A fact that a name does not state is None, never 0. The file name takes precedence; directories fill the
remaining facts, from the nearest upwards, until one states nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

from tracekit.model.records import dataclass
from tracekit.model.text.labels import normalize_label_words
from tracekit.model.text.patterns import compile_lazily

HOST_FOLDER, HOST_NAME = "host=", r"[0-9A-Za-z][0-9A-Za-z.-]{0,252}"
"""Prefix and name pattern of directories `host=<name>/`, which contain one host's files of a multi-host run."""
WHOLE_STEP = frozenset({"e2e", "train", "train_overall", "step"})
"""Scopes of captures that contain every stage of a step."""


@dataclass(frozen=True, slots=True)
class NameFacts:
    """Facts in the names of a file and its directories, as recorded.

    `worker` distinguishes processes if no rank is named; `start` is the label of the moment when the
    capture began or was written, in a unit known only to the writer.
    """

    role: str | None = None
    scope: str | None = None
    step: int | None = None
    rank: int | None = None
    world_size: int | None = None
    replica: int | None = None
    topology: str | None = None
    part: str | None = None
    host: str | None = None
    pid: int | None = None
    worker: str | None = None
    start: str | None = None


_NOTHING = NameFacts()


def read_name(parts: tuple[str, ...]) -> NameFacts:
    """Parse `parts`: directories from the outermost, the file name last. Never raises.

    >>> read_name(("e2e", "actor-rollout-ref_e2e_rank1-of-2_pid7_20261120082204602.json.gz")).rank
    1
    >>> read_name(("trace.json.gz",)).rank is None
    True
    """
    if not parts:
        return _NOTHING
    *folders, name = parts
    stem = strip_format_suffixes(name)
    relocated = _RELOCATED.match(stem)
    if relocated:
        stem = stem[relocated.end() :]
    around = _read_folders(folders, stem)
    for layout in _LAYOUTS:
        facts = layout(stem, folders)
        if facts is not None:
            break
    else:
        facts = _parse_other_name(stem)
    if relocated:
        facts = _merge_replica_facts(facts, relocated, around)
    return _override_facts(around, facts)


def states_any_fact(folder: str) -> bool:
    """Check whether a directory name alone states a role, scope, step, rank or replica."""
    return _read_folders([folder], "") != _NOTHING


def strip_format_suffixes(name: str) -> str:
    """Strip the suffixes that describe only the file format."""
    return _SUFFIX.sub("", name)


def is_scope(label: str) -> bool:
    """Check whether `label` names a stage or a whole-step capture rather than a role."""
    return _SCOPE.fullmatch(label.lower().replace("-", "_")) is not None


# Only suffixes that are safe to strip: a CI upload puts its epoch before `.gz`, a browser " (1)" into copies.
_SUFFIX = compile_lazily(
    r"(?: \([0-9]{1,3}\))?(?:\.pt)?(?:\.trace)?(?:\.json)?(?:\.[0-9]{9,19})?"
    r"(?:\.(?:nsys-rep|qdrep|qdstrm|sqlite|pickle|pkl|snap))?(?:\.(?:gz|zst|xz|bz2|zip))?(?: \([0-9]{1,3}\))?\Z"
)
_RELOCATED = compile_lazily(r"rollout-replica([0-9]{1,6})(?:-globalrank([0-9]{1,6}))?(?:_|\Z)")

_ROLE_FOLDER = compile_lazily(
    r"actor|critic|ref|rollout|reward|rm|teacher|student|trainer|actor_rollout(?:_ref)?"
    r"|(?:reward|value|language)_model|(?:[a-z0-9]+_)*(?:policy|generation|value)_worker(?:_v[0-9])?"
)
_SCOPE = compile_lazily(
    r"e2e|train|train_(?:batch|step|overall|actor|log_probs)|forward_backward|generate(?:_sequences)?"
    r"|(?:actor|critic|ref|reference|rollout|reward|rm|teacher|env|value|policy)_"
    r"(?:compute|update|infer|generate|train|forward|log|init|reset|interact|finish|score)(?:_[a-z]+)*"
    r"|compute_(?:values|scores?|rm_score|rewards?|advantages?)|update_(?:actor|critic|policy|weights)"
    r"|infer_[a-z]+_batch|(?:[a-z]+_){0,3}log_?probs?"
)
_REWARD = ("reward", "reward_model")
# `train` alone is a common directory of other projects; verl uses it only in file names.
_NOT_A_SCOPE_FOLDER = frozenset({"train"})

_VERL = compile_lazily(
    r"(?:(?P<labels>[^_]+(?:_[^_]+){0,3}?)_)??(?:step(?P<step>[0-9]{1,9})_)?"
    r"rank(?P<rank>[0-9]{1,6})(?:-of-(?P<world>[0-9]{1,6}))?(?:_(?P<topology>[a-z]+[0-9]+(?:-[a-z]+[0-9]+)*))?"
    r"_pid(?P<pid>[0-9]{1,10})_(?P<start>[0-9]{17})"
    r"(?P<part>(?:_(?:mb[0-9]{1,9}(?:-[0-9]{1,9})?|part[0-9]{1,9}|cycle[0-9]{1,9})){0,3})",
    re.DOTALL,
)
_VERL_PROF_RANK = compile_lazily(
    r"(?:(?P<role>.+)_)?prof_rank-(?P<rank>[0-9]{1,6})(?:_(?P<pid>[0-9]{1,10}))?"
    r"_(?P<start>[0-9]{6}|[0-9]{17})",
    re.DOTALL,
)
_VERL_PROF_START = compile_lazily(
    r"prof_start_(?P<first>[0-9]{1,9})_end_(?P<last>[0-9]{1,9})_rank_(?P<rank>[0-9]{1,6})"
)
_VLLM = compile_lazily(
    r"(?P<topology>(?:[a-z]{2,4}[0-9]{1,6}_){2,})rank(?P<rank>[0-9]{1,6})(?:\.(?P<start>[0-9]{9,19}))?"
)
_SGLANG = compile_lazily(
    r"(?P<start>.+?)-(?P<ranks>TP-[0-9]{1,6}(?:-(?:DP|PP|EP|CP)-[0-9]{1,6})*)(?:-memory)?"
    r"(?:-(?P<scope>[A-Za-z_]+))?",
    re.DOTALL,
)
_NSYS_VERL = compile_lazily(
    r"(?:(?P<owner>.+)_)?worker_process_(?P<pid>[0-9]{1,10})(?:\.(?P<part>[0-9]{1,9}))?", re.DOTALL
)
_NSYS_NEMO = compile_lazily(
    r"(?P<role>[A-Za-z][0-9A-Za-z_]*)_(?P<first>[0-9]{1,9}):(?P<stop>[0-9]{1,9})_(?P<pid>[0-9]{1,10})"
    r"(?:\.(?P<part>[0-9]{1,9}))?"
)
_HANDLER = compile_lazily(r"(?P<worker>.+)\.(?P<start>[0-9]{10,19}|[A-Z][a-z]{2}(?:_[0-9]{2}){4}\.[0-9]+)", re.DOTALL)
_HOST_PID = compile_lazily(r"(?P<host>[0-9A-Za-z][0-9A-Za-z.-]*)_(?P<pid>[0-9]{1,10})(?:\.(?P<scope>[a-z_]+))?")
_NOT_A_HOST = compile_lazily(r"(?:worker|rank|node|gpu|device|process|profile|trace|step|replica)s?")

_RANK = compile_lazily(
    r"(?<![0-9A-Za-z])(?:global[-_]?)?rank[-_]?([0-9]{1,6})(?![0-9A-Za-z])(?:-of-([0-9]{1,6}))?", re.IGNORECASE
)
_OTHER_RANK = compile_lazily(r"(?:local|node|group|host|gpu|tp|dp|pp|cp|ep|dcp)[-_]?\Z", re.IGNORECASE)
_STEP = compile_lazily(
    r"(?<![0-9A-Za-z])(?:global[-_]?)?(?:step|iteration|iter)[-_]?([0-9]{1,9})(?![0-9A-Za-z])", re.IGNORECASE
)
_PID = compile_lazily(r"(?<![0-9A-Za-z])pid[-_]?([0-9]{1,10})(?![0-9A-Za-z])", re.IGNORECASE)
_STEP_FOLDER = compile_lazily(r"(?:global[-_]?)?(?:step|iteration)[-_]?([0-9]{1,9})(?:_exit)?", re.IGNORECASE)
_STEPS_FOLDER = compile_lazily(r"steps([0-9]{1,9})-([0-9]{1,9})")
_REPLICA_FOLDER = compile_lazily(r"agent_loop_rollout_replica_([0-9]{1,6})")
_HOST_FOLDER = compile_lazily(rf"{HOST_FOLDER}({HOST_NAME})")
_RANK_FOLDER = compile_lazily(r"rank[-_]?([0-9]{1,6})", re.IGNORECASE)
_ROLL_FOLDER = compile_lazily(
    r"([A-Za-z][0-9A-Za-z_]*(?:-[A-Za-z][0-9A-Za-z_]*)?)-([0-9]{1,6})-G[0-9]+"
    r"|(actor_train|actor_infer)-([0-9]{1,6})"
)
_MEMORY_FOLDER = compile_lazily(r"[0-9]{8}-[0-9]{4}|oom_.+", re.DOTALL)
_RANK_SNAPSHOT = compile_lazily(r"snapshot_([0-9]{1,5})")  # Megatron-Bridge: `snapshot_<rank>.pickle`
_CLOCK_FOLDER = compile_lazily(r"[0-9]{9,19}(?:\.[0-9]+)?")


def _parse_name_number(text: str | None) -> int | None:
    """Convert `text` to a number; None for None."""
    return None if text is None else int(text)


def _override_facts(below: NameFacts, above: NameFacts) -> NameFacts:
    """Merge two sets of facts; `above` takes precedence."""
    if below == _NOTHING:
        return above
    values = {name: getattr(above, name) for name in NameFacts.__slots__}
    return replace(below, **{name: value for name, value in values.items() if value is not None})


def _parse_named_world_size(rank: str, world: str | None) -> int | None:
    """Parse the world size; None if the rank does not fit into it."""
    if world is None or int(rank) >= int(world):
        return None
    return int(world)


def _find_only_number(numbers: Iterable[int | None]) -> int | None:
    """Find the only distinct number; None if there are several or none."""
    different = set(numbers)
    return different.pop() if len(different) == 1 else None


def _parse_verl_name(stem: str, folders: list[str]) -> NameFacts | None:
    """Parse a name of verl 0.9: `[<role>_][<scope>_][step<S>_]rank<r>[-of-<W>][_<topology>]_pid<pid>_<time>[_mb<i>]`."""
    m = _VERL.fullmatch(stem)
    if m is None:
        return None
    labels = (m["labels"] or "").split("_")
    role, scope = labels[0] or None, "_".join(labels[1:]) or None
    # One label alone is a role unless it names a stage or, as in verl 0.9.0, repeats its directory.
    if role and not scope and (is_scope(role) or (not m["step"] and _repeats_folder(role, folders))):
        role, scope = None, role
    return NameFacts(
        role=role,
        scope=scope,
        step=_parse_name_number(m["step"]),
        rank=int(m["rank"]),
        world_size=_parse_named_world_size(m["rank"], m["world"]),
        topology=m["topology"],
        part=m["part"].strip("_").replace("_", "-") or None,
        pid=int(m["pid"]),
        start=m["start"],
    )


def _repeats_folder(label: str, folders: list[str]) -> bool:
    """Check whether the directory has the name `label`, and it is not a role's."""
    return bool(folders) and normalize_label_words(folders[-1]) == normalize_label_words(label) and not _is_role(label)


def _is_role(label: str) -> bool:
    """Check whether `label` is always a role's name."""
    return _ROLE_FOLDER.fullmatch(label.lower().replace("-", "_")) is not None


def _parse_verl_prof_rank_name(stem: str, folders: list[str]) -> NameFacts | None:
    """Parse a name of verl 0.7.1-0.8.0: `<scope>/[<role>_]prof_rank-<r>[_<pid>]_<time>`."""
    del folders
    m = _VERL_PROF_RANK.fullmatch(stem)
    if m is None:
        return None
    return NameFacts(role=m["role"], rank=int(m["rank"]), pid=_parse_name_number(m["pid"]), start=m["start"])


def _parse_verl_prof_start_name(stem: str, folders: list[str]) -> NameFacts | None:
    """Parse a name of verl up to 0.7.0: `prof_start_<a>_end_<b>_rank_<r>`; a and b are profiler steps, not RL steps."""
    del folders
    m = _VERL_PROF_START.fullmatch(stem)
    if m is None:
        return None
    return NameFacts(rank=int(m["rank"]), part=f"start{int(m['first'])}-end{int(m['last'])}")


def _parse_vllm_name(stem: str, folders: list[str]) -> NameFacts | None:
    """Parse a name of vLLM: `dp<i>_pp<i>_tp<i>_…_rank<r>.<ns>`, all relative to the engine."""
    del folders
    m = _VLLM.fullmatch(stem)
    if m is None:
        return None
    topology = m["topology"].strip("_").replace("_", "-")
    return NameFacts(rank=int(m["rank"]), topology=topology, start=m["start"])


def _parse_sglang_name(stem: str, folders: list[str]) -> NameFacts | None:
    """Parse a name of SGLang: `<profile id>-TP-<k>[-DP-<i>][-PP-<i>][-EP-<i>][-<stage>]`."""
    del folders
    m = _SGLANG.fullmatch(stem)
    if m is None:
        return None
    pairs = m["ranks"].split("-")
    index = {dim.lower(): int(value) for dim, value in zip(pairs[::2], pairs[1::2], strict=True)}
    topology = "-".join(f"{dim}{value}" for dim, value in index.items())
    facts = NameFacts(scope=m["scope"], topology=topology)
    # With a nonzero data or pipeline rank, the tensor rank differs from the rank within the engine.
    if index.get("dp", 0) == index.get("pp", 0) == 0:
        facts = replace(facts, rank=index["tp"])
    if _CLOCK_FOLDER.fullmatch(m["start"]):
        return replace(facts, start=m["start"])
    return replace(facts, worker=m["start"])


def _parse_nsys_verl_name(stem: str, folders: list[str]) -> NameFacts | None:
    """Parse a name of Ray and verl: `[[<role>_]<host>_]worker_process_<pid>[.<capture range>]`."""
    del folders
    m = _NSYS_VERL.fullmatch(stem)
    if m is None:
        return None
    role, _, host = (m["owner"] or "").rpartition("_")  # host names have no underscore
    part = _format_numbered_part("range", m["part"])
    return NameFacts(role=role or None, host=host or None, pid=int(m["pid"]), part=part)


def _parse_nsys_nemo_name(stem: str, folders: list[str]) -> NameFacts | None:
    """Parse a name of NeMo-RL: `<worker>_<start>:<stop>_<pid>`, the steps from start to before stop."""
    del folders
    m = _NSYS_NEMO.fullmatch(stem)
    if m is None:
        return None
    first, last = int(m["first"]), int(m["stop"]) - 1
    steps = f"steps{first}-{last}" if last > first else None
    part = _join_part_labels(steps, _format_numbered_part("range", m["part"]))
    return NameFacts(role=m["role"], step=first, pid=int(m["pid"]), part=part)


def _parse_trace_handler_name(stem: str, folders: list[str]) -> NameFacts | None:
    """Parse a name of `tensorboard_trace_handler`: `<worker, or host_pid>.<time>`; some name workers by rank."""
    del folders
    m = _HANDLER.fullmatch(stem)
    if m is None:
        return None
    facts = replace(_parse_other_name(m["worker"]), worker=m["worker"], start=m["start"])
    label = re.sub(r"[-_]?rank[-_]?[0-9]+\Z", "", m["worker"])
    if label != m["worker"] and is_scope(label):
        facts = replace(facts, scope=label)
    process = _HOST_PID.fullmatch(m["worker"])
    # `worker_3` is a name with a counter; `node-7_1` is a container's first process.
    if facts.rank is not None or process is None or _NOT_A_HOST.fullmatch(process["host"].lower()):
        return facts
    if len(process["pid"]) < 2 and process["host"].isalpha():
        return facts
    host, pid = process["host"], int(process["pid"])
    return replace(facts, host=host, pid=pid, scope=process["scope"])


def _parse_other_name(stem: str) -> NameFacts:
    """Parse any other name: a rank, step or pid that it states unambiguously."""
    ranks: list[int] = []
    worlds: list[int | None] = []
    for m in _RANK.finditer(stem):
        if not _OTHER_RANK.search(stem[: m.start()]):
            ranks.append(int(m[1]))
            worlds.append(_parse_named_world_size(m[1], m[2]))
    if snapshot := _RANK_SNAPSHOT.fullmatch(stem):
        ranks.append(int(snapshot[1]))
    return NameFacts(
        rank=_find_only_number(ranks),
        world_size=worlds[0] if len(worlds) == 1 else None,
        step=_find_only_number(int(step) for step in _STEP.findall(stem)),
        pid=_find_only_number(int(pid) for pid in _PID.findall(stem)),
    )


def _format_numbered_part(word: str, number: str | None) -> str | None:
    """Format a label with its number; None if there is no number."""
    return f"{word}{int(number)}" if number else None


def _join_part_labels(*parts: str | None) -> str | None:
    """Join labels with `-`, skipping None; None if all are None."""
    return "-".join(part for part in parts if part) or None


_LAYOUTS: tuple[Callable[[str, list[str]], NameFacts | None], ...] = (
    _parse_verl_name,
    _parse_verl_prof_rank_name,
    _parse_verl_prof_start_name,
    _parse_vllm_name,
    _parse_sglang_name,
    _parse_nsys_nemo_name,
    _parse_nsys_verl_name,
    _parse_trace_handler_name,
)


def _merge_replica_facts(facts: NameFacts, m: re.Match[str], around: NameFacts) -> NameFacts:
    """Merge verl's `rollout-replica<n>[-globalrank<g>]_<engine file>` with the engine's facts.

    The engine numbers ranks within itself, and so do the files that verl left in the replica's directory;
    the rank among all GPUs is kept in the topology.
    """
    topology = _join_part_labels(_format_numbered_part("globalrank", m[2]), facts.topology)
    role = "reward" if around.role in _REWARD else "rollout"
    return replace(facts, role=role, replica=int(m[1]), topology=topology)


def _read_folders(folders: list[str], stem: str) -> NameFacts:
    """Parse directory names, from the nearest upwards until one states nothing."""
    for depth, folder in enumerate(folders[:-5:-1]):
        if worker := _ROLL_FOLDER.fullmatch(folder):
            scope = folders[-1] if depth else None  # `<worker>/<function>/…`
            role, rank = worker[1] or worker[3], int(worker[2] or worker[4])
            return NameFacts(role=role, rank=rank, worker=folder, scope=scope)
    facts = NameFacts()
    upwards = (*reversed(folders), "")
    for folder, above in pairwise(upwards):
        folder_facts = _read_folder(folder, above, stem)
        if folder_facts is None:
            break
        # In `reward_model/`, the reward model's engines use the same names as the rollout's.
        if folder_facts.role in _REWARD and facts.role == "rollout":
            facts = replace(facts, role="reward")
        facts = _override_facts(folder_facts, facts)
    return facts


def _read_folder(folder: str, above: str, stem: str) -> NameFacts | None:
    """Parse one directory name; None if it is an ordinary name."""
    facts: NameFacts | None = None
    if m := _REPLICA_FOLDER.fullmatch(folder):
        facts = NameFacts(role="rollout", replica=int(m[1]))
    elif m := _STEP_FOLDER.fullmatch(folder):
        facts = NameFacts(step=int(m[1]))
    elif m := _STEPS_FOLDER.fullmatch(folder):
        facts = NameFacts(step=int(m[1]), part=f"steps{int(m[1])}-{int(m[2])}")
    elif m := _HOST_FOLDER.fullmatch(folder):
        facts = NameFacts(host=m[1])
    elif m := _RANK_FOLDER.fullmatch(folder):
        facts = NameFacts(rank=int(m[1]))
    elif re.fullmatch(r"[0-9]{1,6}", folder) and normalize_label_words(above).endswith("_worker"):
        facts = NameFacts(rank=int(folder))  # NeMo-RL: `<worker>/<rank>/…`
    elif _MEMORY_FOLDER.fullmatch(folder) and stem.startswith("torch_memory"):
        facts = NameFacts(part=folder)
    elif _CLOCK_FOLDER.fullmatch(folder):
        facts = NameFacts()
    elif is_scope(folder) and folder not in _NOT_A_SCOPE_FOLDER:
        facts = NameFacts(scope=folder)
    elif _is_role(folder):
        facts = NameFacts(role=folder)
    return facts
