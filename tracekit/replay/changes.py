"""Changes to a run as data: the verb, and the part of the run.

A rule names the change that removes its cause, and a person writes one after `tracekit whatif --change`.
"""

from __future__ import annotations

import json
import re
import shlex
import warnings
from collections.abc import Mapping
from typing import Any, Literal, get_args

from tracekit.discover.selection import parse_numbers
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.text.labels import did_you_mean, make_displayable

Verb = Literal[
    "scale", "set", "remove", "unwait", "unblock", "hide", "accumulate", "fuse", "equalise", "prefetch", "graph"
]
Target = Literal["host", "device", "collective", "range"]


class ChangeError(TracekitError):
    """A change that cannot be carried out: it is malformed, selects nothing, or selects more than it names.

    The names that it quotes, of profiles too, are safe to display.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(make_displayable(problem), make_displayable(hint))


@dataclass(frozen=True, slots=True)
class Selection:
    """Part of a run; None selects all. Patterns are regular expressions, searched for in names.

    - `stage`: while the process is in this stage, by its canonical or its recorded name; "" for outside any stage.
    - `range`, `not_range`: while any thread is in such a row; `row`: the innermost row; `by`: a row around it, or around
      the launch of an op.
    - `op`: kernel, copy or collective; `group`: its process group.
    - `work`: ops of a class: plain, unaligned, attention, products, loss, chain, layout … (`tracekit.process.ops.op_classes`).
    - `silent`: only time in which the host recorded no op and no call.
    - `at_least_us`: only stretches of selected host time this long; `longer_than_us`: only ops this long; `smaller_bytes`: only collectives of
      a message smaller than this.
    - `before`: the time just before a row; `after`: stretches of silent time that begin when an outermost op of this name ends;
      `nth`: only the n-th range of each step, from 0.
    - `requests_below`: only iterations of a rollout engine that generate for fewer requests, without a prompt among them.
    """

    rank: frozenset[int] | None = None
    step: frozenset[int] | None = None
    stage: str | None = None
    range: str | None = None
    not_range: str | None = None
    row: str | None = None
    by: str | None = None
    op: str | None = None
    group: str | None = None
    work: str | None = None
    silent: bool = False
    at_least_us: float = 0.0
    longer_than_us: float = 0.0
    smaller_bytes: float = 0.0
    before: str | None = None
    after: str | None = None
    nth: frozenset[int] | None = None
    requests_below: float = 0.0


@dataclass(frozen=True, slots=True)
class RunChange:
    """A change: `do` it `on` the selection. Other fields belong to single verbs (see `VERBS`)."""

    do: Verb
    on: Target
    where: Selection
    factor: float | None = None
    to_us: float | None = None
    host: str | None = None
    until: str | None = None
    across: str | None = None
    workers: int | None = None

    def describe(self) -> str:
        """Describe the change as `tracekit whatif --change` reads it."""
        return format_change(self)


@dataclass(frozen=True, slots=True)
class VerbRecord:
    """Meaning of a verb, its possible targets (the first is the default), and its own fields."""

    doc: str
    targets: tuple[Target, ...]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


VERBS: Mapping[str, VerbRecord] = {
    "scale": VerbRecord(
        "Multiply the length by a factor; of a range with all that it launches.",
        ("host", "device", "collective", "range"),
        ("factor",),
    ),
    "set": VerbRecord("Shorten to a length in µs.", ("host", "device", "collective"), ("to_us",)),
    "remove": VerbRecord(
        "Remove ops, and with `host` the time of the rows that launched them; or a range with all that it launched.",
        ("device", "collective", "range"),
        (),
        ("host",),
    ),
    "unwait": VerbRecord("Do not wait for the device in the selected calls.", ("host",)),
    "unblock": VerbRecord("Make copies asynchronous: their calls return at once.", ("device",), ("op",)),
    "hide": VerbRecord(
        "Let only the work inside the row `until`, or after the last of their pass, wait for these collectives.",
        ("collective",),
        (),
        ("until",),
    ),
    "accumulate": VerbRecord(
        "Reduce gradients only in the last backward pass before each step of the optimizer.", ("collective",), ("op",)
    ),
    "fuse": VerbRecord(
        "Run ops that follow one another on a stream as one, with one launch, at `factor` of their time; or calls of the host.",
        ("device", "host"),
        (),
        ("factor",),
    ),
    "equalise": VerbRecord(
        "Let each op last as long as the median rank's op at its place; with across=step, as the median step's.",
        ("device", "host"),
        (),
        ("across",),
    ),
    "prefetch": VerbRecord(
        "Let `workers` threads prepare what a range prepares, ahead of time; or begin each collective one earlier.",
        ("range", "collective"),
        (),
        ("workers",),
    ),
    "graph": VerbRecord(
        "Launch all ops of a range or stage with one call, at `factor` of its host time.", ("range",), (), ("factor",)
    ),
}

ACROSS = ("rank", "step")
"""Units that `equalise` compares: ranks, or the steps of a rank."""

_TEXTS = (
    "stage",
    "range",
    "not_range",
    "row",
    "by",
    "op",
    "group",
    "work",
    "before",
    "after",
    "until",
    "host",
    "across",
)
_SETS = ("rank", "step", "nth")
_NUMBERS = ("factor", "to_us", "at_least_us", "longer_than_us", "smaller_bytes", "requests_below")
_LARGEST = {"factor": 10**6, "workers": 10**6}
FIELDS = ("do", "on", *_TEXTS, *_SETS, *_NUMBERS, "silent", "workers")


def parse_change(text: str) -> RunChange:
    """Parse a change: JSON, or words such as `scale device rank=2 factor=0.8`. Raises `ChangeError`."""
    if text.lstrip().startswith("{"):
        try:
            decoded = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ChangeError(f"not JSON: {error}", 'write {"do": "scale", "on": "device", "factor": 0.8}') from error
        return make_change(decoded)
    verb, *words = _split_words(text) or [""]
    values: dict[str, Any] = {"do": verb}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign and name in get_args(Target) and "on" not in values:
            values["on"] = name
        elif not sign:
            raise ChangeError(f"{word!r} is not name=value", _list_fields())
        else:
            values[name] = _parse_field_text(name, value)
    return make_change(values)


def _split_words(text: str) -> list[str]:
    """Split a text at spaces outside quotes; a backslash is part of a pattern. Raises `ChangeError`."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    try:
        return list(lexer)
    except ValueError as error:
        raise ChangeError(f"{text}: a quote is not closed", 'write op="Pageable -> Device", or JSON') from error


def _parse_field_text(name: str, text: str) -> Any:
    """Convert the text of a field written as name=value."""
    if name in (*_SETS, *_TEXTS):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def make_change(values: Any) -> RunChange:
    """Make a change from its fields, as in JSON. Raises `ChangeError` that names the field."""
    record, verb, on = _check_names(values)
    fields = {
        name: _check_field(name, values[name])
        for name in (*_TEXTS, *_SETS, *_NUMBERS, "silent", "workers")
        if name in values
    }
    if odd := sorted(_OWN & fields.keys() - {*record.required, *record.optional}):
        raise ChangeError(f"{verb} has no {odd[0]!r}", record.doc)
    where = Selection(**{name: fields[name] for name in Selection.__dataclass_fields__ if name in fields})
    return _check_precise(RunChange(verb, on, where, **{name: fields[name] for name in _OWN & fields.keys()}))


_OWN = {"factor", "to_us", "host", "until", "across", "workers"}
"""Fields of single verbs."""


def _check_names(values: Any) -> tuple[VerbRecord, Verb, Target]:
    """Check the verb, the target and the names of the fields. Raises `ChangeError`."""
    if not isinstance(values, Mapping):
        raise ChangeError("a change is an object", 'write {"do": "scale", "on": "device", "factor": 0.8}')
    if unknown := [name for name in values if name not in FIELDS]:
        near = did_you_mean(str(unknown[0]), FIELDS)
        raise ChangeError(f"a change has no field {unknown[0]!r}{near}", _list_fields())
    verb: Any = values.get("do")
    if verb not in VERBS:
        raise ChangeError(f"do: {verb!r} is not a change{did_you_mean(str(verb), VERBS)}", f"one of {', '.join(VERBS)}")
    record = VERBS[verb]
    on = values.get("on", record.targets[0])
    if on not in record.targets:
        raise ChangeError(f"{verb} cannot be done on {on!r}", f"on: {', '.join(record.targets)}")
    if missing := [name for name in record.required if name not in values]:
        raise ChangeError(f"{verb} needs {missing[0]!r}", record.doc)
    return record, verb, on


def _check_field(name: str, value: Any) -> Any:
    """Check one field and convert it. Raises `ChangeError`."""
    if name in _TEXTS:
        return _check_pattern(name, value)
    if name in _SETS:
        return _parse_number_set(name, value)
    if name == "silent":
        if not isinstance(value, bool):
            raise ChangeError(f"silent: {value!r} is neither true nor false")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LARGEST.get(name, 10**12):
        raise ChangeError(f"{name}: {value!r} is not a number from 0 to {_LARGEST.get(name, 10**12):,}")
    if name == "workers":
        if value != int(value) or value < 1:
            raise ChangeError(f"workers: {value!r} is not a whole number from 1 on")
        return int(value)
    return float(value)


def _check_pattern(name: str, value: Any) -> str:
    """Check a text, which is a regular expression in most fields. Raises `ChangeError`."""
    if not isinstance(value, str):
        raise ChangeError(f"{name}: {value!r} is not a text")
    if name == "across" and value not in ACROSS:
        raise ChangeError(f"across: {value!r} is neither rank nor step")
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(re.escape(value) if name in ("stage", "work") else value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ChangeError(f"{name}: {value!r} is not a regular expression: {error}") from error
    return value


def _parse_number_set(name: str, value: Any) -> frozenset[int]:
    """Parse a number, a list of numbers, or a text such as `0-3,7`. Raises `ChangeError`."""
    if isinstance(value, str):
        try:
            return parse_numbers(value)
        except TracekitError as error:
            raise ChangeError(f"{name}: {error.problem}", error.hint) from error
    values = value if isinstance(value, list) else [value]
    if not values or any(
        isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 10**9 for number in values
    ):
        raise ChangeError(f"{name}: {value!r} is not a number, a list of numbers, or a text such as 0-3,7")
    return frozenset(values)


_NAMING: Mapping[tuple[str, str], tuple[tuple[str, ...], str, str]] = {
    ("unwait", "host"): (("row", "by", "range"), "calls", "name the op that waits: by=aten::item"),
    ("fuse", "device"): (("op", "by", "work"), "ops", "name them: by=Optimizer.step"),
    ("fuse", "host"): (("row",), "calls", "name them: row=aten::add"),
    ("remove", "device"): (("op", "by", "work"), "ops", 'name them: op="Pageable -> Device", or by=aten::to'),
    ("remove", "collective"): (("op", "by", "work"), "ops", "name them: op=ReduceScatter"),
    ("scale", "range"): (("range", "stage", "step", "requests_below"), "range", "name it: range=decode, or stage=gen"),
    ("remove", "range"): (("range", "stage"), "range", "name it: range=validation"),
    ("prefetch", "range"): (("range",), "range", "name it: range=enumerate, or collectives: prefetch collective"),
    ("graph", "range"): (("range", "stage", "by"), "range", "name it: range=decode, or stage=gen"),
}
"""By verb and target: fields with at least one required, the word for the missing name, and a hint."""


def _check_precise(change: RunChange) -> RunChange:
    """Refuse changes that name nothing, or change nothing. Raises `ChangeError`."""
    fields, missing, hint = _NAMING.get((change.do, change.on), ((), "", ""))
    if fields and not any(getattr(change.where, name) for name in fields):
        raise ChangeError(f"{change.do} names no {missing}", hint)
    if change.do == "scale" and change.factor == 1:
        raise ChangeError("factor: 1 changes nothing", "0.8 makes the selected work last 80 % as long")
    return change


def _list_fields() -> str:
    return f"fields: {', '.join(FIELDS)}"


def describe_change(change: RunChange) -> dict[str, Any]:
    """Describe a change as the fields that `make_change` reads."""
    described: dict[str, Any] = {"do": change.do, "on": change.on}
    for name in Selection.__dataclass_fields__:
        value = getattr(change.where, name)
        if value not in (None, False, 0.0):
            described[name] = sorted(value) if isinstance(value, frozenset) else value
    record = VERBS[change.do]
    for name in (*record.required, *record.optional):
        value = None if name in Selection.__dataclass_fields__ else getattr(change, name)
        if value is not None:
            described[name] = value
    return described


def format_change(change: RunChange) -> str:
    """Format a change as words that `parse_change` reads, or as JSON if a name contains both kinds of quotes.

    >>> format_change(parse_change('{"do": "remove", "op": "a b", "rank": [0, 2]}'))
    'remove device rank=0,2 op="a b"'
    """
    fields = describe_change(change)
    words: list[str] = [change.do, change.on] if len(VERBS[change.do].targets) > 1 else [change.do]
    for name, value in fields.items():
        if name in ("do", "on"):
            continue
        if name in _SETS:
            words.append(f"{name}={','.join(map(str, value))}")
        elif isinstance(value, str):
            words.append(f"{name}={_quote(value)}")
        else:
            number = int(value) if isinstance(value, float) and value.is_integer() else value
            words.append(f"{name}={json.dumps(number)}")
    text = " ".join(words)
    is_quotable = not any({'"', "'"} <= set(str(value)) for value in fields.values() if isinstance(value, str))
    return text if is_quotable else json.dumps(fields, ensure_ascii=False)


def _quote(text: str) -> str:
    """Quote a text with spaces or quotes."""
    if text and not re.search(r"[\s'\"]", text):
        return text
    mark = "'" if '"' in text else '"'
    return f"{mark}{text}{mark}"
