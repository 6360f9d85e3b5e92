"""Identity of the processes in an export: host, rank, world size and role, from the recorded environment.

The environment may contain keys and passwords. Queries therefore select only the variables in `VARIABLES` by name; no
other value leaves the database.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import replace

from tracekit.model.inputs.note_codes import Data
from tracekit.model.records import dataclass
from tracekit.model.trace import Note
from tracekit.readers.nsys.content import drop_unknown_facts
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, has_table_columns
from tracekit.readers.nsys.sqlite.database import read_small_table

NUMBERS = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
    *("RAY_LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS"),
)
"""Variables with a number."""

LABELS = ("WG_PREFIX", "WG_BACKEND")
"""Variables with a short name: verl's worker-group prefix, and the training backend."""

VARIABLES = (*NUMBERS, *LABELS)

_PAIRS = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
"""Variables with rank and world size of one process; the first pair that is set counts."""

_SLURM = ("SLURM_PROCID", "SLURM_NTASKS")
_IN_RAY = "RAY_JOB_ID"
"""All workers of a Ray node inherit the Slurm variables of the one task that started Ray."""

_SETTINGS, _SYSTEM = "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"
_SHELL, _ARGUMENT = "PROCESS_%:ENVIRONMENT_VARIABLE", "PROCESS_%:ARGUMENT_%"
_FLAGS = {"nnodes": "nodes", "nproc_per_node": "processes", "node_rank": "node"}
_BY_ORDER = "the order of the process ids"
_BY_NCCL = "what NCCL was told when its largest communicator was made"
_MOST = 1_000_000
_ROLE_WORDS = re.compile(r"(?:^|_)(?:actor|critic|ref|rollout|reward|rm|teacher|policy|value|trainer)(?:$|_)")
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TEXT_LENGTH = 66
_ENVIRONMENT_LENGTH = 2**20


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of one process; None is unknown. `rule` describes how the rank was determined."""

    host: str | None = None
    rank: int | None = None
    world_size: int | None = None
    role: str | None = None
    backend: str | None = None
    rule: str = ""


def identify_processes(
    db: ExportDatabase,
    pids: Collection[int],
    nccl_ranks: Mapping[int, tuple[int, int]] | None = None,
    on_gpu: Collection[int] = (),
) -> dict[int, ProcessIdentity]:
    """Identify the file's processes (those with work of their own).

    `nccl_ranks` maps processes to (rank, number of ranks) from NCCL's communicator creation. A single process is described by its
    environment. With several processes the environment is their launcher's and only gives their number: ranks come from
    NCCL, else from the order of pids if they are all processes of the job or of a known node. If some processes are
    `on_gpu`, only these have ranks.
    """
    variables = read_allowed_environment(db)
    backend = _ROLE.fullmatch(variables.get("WG_BACKEND", ""))
    everyone = ProcessIdentity(host=read_host_name(db), role=_parse_verl_role(variables.get("WG_PREFIX")))
    if backend is not None:
        everyone = replace(everyone, backend=backend[0])
    by_nccl = {pid: _identify_by_nccl(everyone, pair) for pid, pair in (nccl_ranks or {}).items() if pid in pids}
    ordered = sorted(pids)
    if len(ordered) == 1:
        identity = _identify_only_process(db, variables, everyone)
        if identity.rank is None:
            identity = by_nccl.get(ordered[0], identity)
        return {ordered[0]: identity}
    by_pid = dict.fromkeys(ordered, everyone)
    if by_nccl and len(set(by_nccl.values())) == len(by_nccl):
        return by_pid | by_nccl
    workers = [pid for pid in ordered if pid in on_gpu] or ordered
    first, world = _find_first_rank(db, variables, len(workers))
    if first is not None:
        for place, pid in enumerate(workers):
            by_pid[pid] = replace(everyone, rank=first + place, world_size=world, rule=_BY_ORDER)
    return by_pid


def note_rank_rules(by_pid: Mapping[int, ProcessIdentity]) -> list[Note]:
    """Note how the ranks were determined, if not by a variable of the process itself."""
    if len(by_pid) > 1 and all(identity.rank is None for identity in by_pid.values()):
        text = "several processes in one file, and nothing in it tells which rank each is"
        return [Note("info", "rank-rule", text)]
    rules = {identity.rule for identity in by_pid.values()}
    return [
        Note("info", "rank-rule", f"the rank is known by {rule}", data=Data(rule=rule))
        for rule in (_BY_ORDER, _BY_NCCL)
        if rule in rules
    ]


def make_identity_facts(identity: ProcessIdentity, pid: int | None) -> dict[str, object]:
    """Convert an identity to the facts that `discover.apply_file_facts` takes."""
    values = {"rank": identity.rank, "world_size": identity.world_size, "host": identity.host, "pid": pid}
    return drop_unknown_facts(values)


def read_host_name(db: ExportDatabase) -> str | None:
    """Read the recorded host name; None if unknown."""
    if not has_table_columns(db, _SYSTEM, "name", "value"):
        return None
    where = "name = 'Hostname' AND length(value) BETWEEN 1 AND 253"
    names = read_small_table(db, _SYSTEM, ("value",), where=where, limit=100)
    return min((str(value) for (value,) in names), default=None)


def read_allowed_environment(db: ExportDatabase) -> dict[str, str]:
    """Read the allow-listed variables that have exactly one value. Numbers must be digits only."""
    pairs: dict[str, str] = {}
    for name in VARIABLES:
        # The capture settings describe the process; the agent's environment is its launcher's.
        values = _read_capture_variable(db, name) or _read_agent_variable(db, name)
        if len(values) == 1 and (name in LABELS or _is_single_number(values)):
            pairs[name] = values.pop()
    return pairs


def _read_capture_variable(db: ExportDatabase, name: str) -> set[str]:
    """Read the values of a variable from the capture settings, in rows `NAME="value"`."""
    begin = f"{name}="
    options = _select_settings(db, _SHELL, begin, ("value",))
    return {str(value)[len(begin) :].strip('"') for (value,) in options}


def _is_variable_set(db: ExportDatabase, name: str) -> bool:
    """Check whether a variable is set in the capture settings."""
    return bool(_select_settings(db, _SHELL, f"{name}=", ("name",)))


def _read_agent_variable(db: ExportDatabase, name: str) -> set[str]:
    """Extract the values of a variable from the agent's environment text, inside the database.

    Entries are separated by `;`, until 2022 by zero bytes. A name that occurs twice may be part of another value, so it
    counts as unknown.
    """
    if not has_table_columns(db, _SYSTEM, "name", "value"):
        return set()
    # Compare as bytes: SQLite's functions end a text at a zero byte.
    sql = f"""
        WITH told AS (
            SELECT iif(instr(CAST(value AS BLOB), x'00'), char(0), ';') AS mark,
                value AS text FROM {_SYSTEM}
            WHERE name = 'DeviceEnvironment' AND typeof(value) = 'text'
            AND length(CAST(value AS BLOB)) < {_ENVIRONMENT_LENGTH} LIMIT 100),
        marked AS (
            SELECT CAST(mark AS BLOB) AS mark, CAST(mark || text || mark AS BLOB) AS text,
                CAST(mark || ? || '=' AS BLOB) AS start FROM told),
        found AS (
            SELECT mark, start, substr(text, instr(text, start) + length(start)) AS rest FROM marked
            WHERE instr(text, start) > 0)
        SELECT CAST(substr(rest, 1, instr(rest, mark) - 1) AS TEXT) FROM found
        WHERE instr(rest, mark) BETWEEN 2 AND {_TEXT_LENGTH} AND instr(rest, start) = 0
    """
    try:
        return {str(value) for (value,) in db.connection.execute(sql, (name,))}
    except sqlite3.DatabaseError:  # `read_small_table` reads the same table and reports damaged pages
        return set()


def _select_settings(db: ExportDatabase, where: str, begin: str, columns: tuple[str, ...]) -> list[tuple[object, ...]]:
    """Select capture settings whose name is like `where` and whose short value begins with `begin`."""
    if not has_table_columns(db, _SETTINGS, "name", "value"):
        return []
    condition = "name LIKE ? AND substr(value, 1, ?) = ? AND length(value) <= ?"
    parameters = (where, len(begin), begin, len(begin) + _TEXT_LENGTH)
    return read_small_table(db, _SETTINGS, columns, where=condition, parameters=parameters, limit=1000)


def _read_torchrun_flags(db: ExportDatabase) -> dict[str, int]:
    """Read torchrun's command-line flags: nodes, processes per node, rank of this node."""
    flags: dict[str, int] = {}
    for flag, meaning in _FLAGS.items():
        for spelt in {flag, flag.replace("_", "-")}:
            option_rows = _select_settings(db, _ARGUMENT, f"--{spelt}=", ("value",))
            values = {str(value).partition("=")[2] for (value,) in option_rows}
            for (name,) in _select_settings(db, _ARGUMENT, f"--{spelt}", ("name",)):
                values |= _read_next_argument(db, str(name), f"--{spelt}")
            if _is_single_number(values):
                flags[meaning] = int(values.pop())
            elif values:
                flags[meaning] = -1
    return flags


def _read_next_argument(db: ExportDatabase, name: str, flag: str) -> set[str]:
    """Read the number in the argument after a flag."""
    begin, _, place = name.rpartition("_")
    if not place.isdigit() or len(place) > 9:
        return set()
    if not read_small_table(db, _SETTINGS, ("name",), "name = ? AND value = ?", (name, flag), limit=1):
        return set()
    following = f"{begin}_{int(place) + 1}"
    condition = "name = ? AND length(value) <= 7 AND value GLOB '[0-9]*'"
    values = read_small_table(db, _SETTINGS, ("value",), condition, (following,), limit=2)
    return {str(value) for (value,) in values}


def _identify_only_process(
    db: ExportDatabase, variables: Mapping[str, str], everyone: ProcessIdentity
) -> ProcessIdentity:
    """Identify the only process of a file from its environment."""
    for rank, world in (*_PAIRS, _SLURM):
        if rank in variables and not ((rank, world) == _SLURM and _is_variable_set(db, _IN_RAY)):
            number, size = (_parse_short_number(variables[rank]), _parse_short_number(variables.get(world, "")))
            if number is not None and (size is None or number < size):
                rule = f"the variable {rank}"
                return replace(everyone, rank=number, world_size=size, rule=rule)
    return everyone


def _find_first_rank(db: ExportDatabase, variables: Mapping[str, str], count: int) -> tuple[int | None, int | None]:
    """Find (rank of the first process, world size) if `count` processes are all of a node or of the job."""
    flags = _read_torchrun_flags(db)
    nodes, process_count = flags.get("nodes", 1), flags.get("processes")
    if process_count == count and nodes == 1:
        return 0, count
    if process_count == count and nodes > 1 and 0 <= flags.get("node", -1) < nodes:
        return flags["node"] * count, nodes * count
    if process_count is not None:
        return None, None
    world = _parse_short_number(variables.get("WORLD_SIZE", ""))
    local = _parse_short_number(variables.get("LOCAL_WORLD_SIZE", ""))
    if world == count and local in (None, count):
        return 0, count
    node = _parse_short_number(variables.get("GROUP_RANK", variables.get("NODE_RANK", "")))
    if node is not None and local == count and (world is None or (node + 1) * count <= world):
        return node * count, world
    return None, None


def _identify_by_nccl(everyone: ProcessIdentity, pair: tuple[int, int]) -> ProcessIdentity:
    """Set rank and world size from NCCL."""
    return replace(everyone, rank=pair[0], world_size=pair[1], rule=_BY_NCCL)


def _parse_verl_role(prefix: str | None) -> str | None:
    """Find the role in verl's worker-group prefix; None if the prefix is verl's random default."""
    if prefix is None or not _ROLE.fullmatch(prefix) or not _ROLE_WORDS.search(prefix):
        return None
    return prefix.strip("_")


def _is_single_number(values: Collection[str]) -> bool:
    """Check whether all values are the same single number."""
    return len(values) == 1 and all(_parse_short_number(value) is not None for value in values)


def _parse_short_number(text: str) -> int | None:
    """Parse a number of digits only; None for anything else and for numbers beyond any job."""
    if not re.fullmatch("[0-9]{1,7}", text) or int(text) >= _MOST:
        return None
    return int(text)
