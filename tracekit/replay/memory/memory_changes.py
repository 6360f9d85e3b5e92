"""Changes to the memory of a run as data, and how a person writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.text.labels import did_you_mean
from tracekit.model.units import parse_size
from tracekit.replay.changes import ChangeError

MemoryVerb = Literal["expandable", "max_split", "gc", "empty_cache", "scale", "micro_batch", "offload", "kv_cache"]

MIB = 2**20
LEAST_MAX_SPLIT = 20 * MIB
"""PyTorch refuses a `max_split_size_mb` of 20 or less."""


@dataclass(frozen=True, slots=True)
class AllocatorChange:
    """A change: `do` it. `site` and `stage` select allocations and ranges; `factor` or `size_bytes` is its amount."""

    do: MemoryVerb
    site: str | None = None
    stage: str | None = None
    factor: float | None = None
    size_bytes: int | None = None

    def describe(self) -> str:
        """Describe the change as `tracekit whatif --memory --change` reads it."""
        if self.do == "scale":
            return f"scale={self.site}:{self.factor:g}"
        if self.do == "empty_cache":
            return f"empty_cache@{self.stage}"
        if self.do == "max_split":
            return f"max_split={(self.size_bytes or 0) // MIB}MB"
        if self.do == "offload":
            return "offload=optimizer"
        return self.do if self.factor is None else f"{self.do}={self.factor:g}"


@dataclass(frozen=True, slots=True)
class MemoryVerbRecord:
    """How a change is written, its meaning, and its fields in JSON."""

    form: str
    doc: str
    fields: tuple[str, ...] = ()


MEMORY_VERBS: Mapping[str, MemoryVerbRecord] = {
    "expandable": MemoryVerbRecord("expandable", "Use expandable segments (`expandable_segments:True`)."),
    "max_split": MemoryVerbRecord(
        "max_split=128MB", "Do not split blocks of this size or more (`max_split_size_mb`).", ("size_bytes",)
    ),
    "gc": MemoryVerbRecord(
        "gc=0.8",
        "Give unused segments back above this share of the device (`garbage_collection_threshold`).",
        ("factor",),
    ),
    "empty_cache": MemoryVerbRecord(
        "empty_cache@STAGE", "Call `torch.cuda.empty_cache()` at each end of a range.", ("stage",)
    ),
    "scale": MemoryVerbRecord("scale=SITE:0.5", "Multiply the size of the allocations of a site.", ("site", "factor")),
    "micro_batch": MemoryVerbRecord(
        "micro_batch=0.5", "Multiply the size of the micro-batch: activations scale.", ("factor",)
    ),
    "offload": MemoryVerbRecord("offload=optimizer", "Keep the optimizer state on the host between optimizer steps."),
    "kv_cache": MemoryVerbRecord(
        "kv_cache=0.4", "Give the KV cache of an engine this share of the device.", ("factor",)
    ),
}
"""Every change, in the order of the documentation."""


def parse_memory_change(text: str) -> AllocatorChange:
    """Parse a change: JSON, or a word such as `max_split=128MB`. Raises `ChangeError`.

    >>> parse_memory_change("scale=train.py.*forward:0.5").describe()
    'scale=train.py.*forward:0.5'
    """
    if text.lstrip().startswith("{"):
        try:
            return make_memory_change(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ChangeError(f"not JSON: {error}", 'write {"do": "max_split", "size_bytes": 134217728}') from error
    verb, sign, value = re.fullmatch(r"\s*(\w*)\s*([=@]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    record = _find_verb(verb)
    if (sign, bool(value)) != (record.form[len(verb) : len(verb) + 1], verb != record.form):
        raise ChangeError(f"{text}: not understood", f"write {record.form}")
    if verb == "offload" and value != "optimizer":
        raise ChangeError(f"offload={value}: only the optimizer state can be offloaded", "write offload=optimizer")
    values: dict[str, Any] = {"do": verb}
    if verb == "scale":
        values["site"], _, value = value.rpartition(":")
    for field in record.fields[-1:]:
        values[field] = value
    return make_memory_change(values)


def _find_verb(name: object) -> MemoryVerbRecord:
    if name not in MEMORY_VERBS:
        near = did_you_mean(str(name), MEMORY_VERBS)
        forms = ", ".join(record.form for record in MEMORY_VERBS.values())
        raise ChangeError(f"no change of memory is called {name!r}{near}", f"write one of {forms}")
    return MEMORY_VERBS[str(name)]


def make_memory_change(values: Any) -> AllocatorChange:
    """Make a change from its fields, as in JSON. Raises `ChangeError` that names the field."""
    if not isinstance(values, Mapping):
        raise ChangeError("a change is an object", 'write {"do": "expandable"}')
    record = _find_verb(values.get("do"))
    if odd := sorted(values.keys() - {"do", *record.fields}, key=str):
        raise ChangeError(f"{values['do']} has no field {odd[0]!r}", f"write {record.form}")
    if any(values.get(field) in (None, "") for field in record.fields):
        raise ChangeError(f"{values['do']} needs {' and '.join(record.fields)}", f"write {record.form}")
    readers = {"site": _read_pattern, "stage": _read_text, "factor": _read_factor, "size_bytes": _read_split_size}
    fields: dict[str, Any] = {field: readers[field](values[field]) for field in record.fields}
    change = AllocatorChange(values["do"], **fields)
    if change.do in ("gc", "kv_cache") and not 0 < (change.factor or 0) < 1:
        raise ChangeError(f"{change.describe()}: a share of the device is between 0 and 1", f"write {record.form}")
    return change


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ChangeError(f"{value!r} is not a text")
    return value


def _read_pattern(value: object) -> str:
    try:
        re.compile(_read_text(value))
    except re.error as error:
        raise ChangeError(f"{value}: not a regular expression: {error}") from error
    return str(value)


def _read_factor(value: object) -> float:
    try:
        factor = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except ValueError:
        factor = -1.0
    if not 0 <= factor <= 1000:
        raise ChangeError(f"{value!r} is not a factor", "write a number from 0 to 1000, such as 0.5")
    return factor


def _read_split_size(value: object) -> int:
    """Read a size; `MB` are MiB, as in `max_split_size_mb`."""
    text = re.sub(r"(?<=[0-9 ])([MG])B?$", r"\1iB", str(value).strip(), flags=re.IGNORECASE)
    try:
        size = parse_size(text)
    except TracekitError as error:
        raise ChangeError(f"max_split={value}: {error.problem}", "write max_split=128MB") from None
    if size <= LEAST_MAX_SPLIT:
        raise ChangeError(f"max_split={value}: PyTorch needs more than 20 MiB", "write max_split=128MB")
    return size
