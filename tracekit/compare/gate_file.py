"""Gate rules from TOML: `tracekit.toml`, or `[tool.tracekit.gate]` of pyproject.toml.

Unknown keys and values are refused: a gate that silently ignores a line would pass for a wrong reason.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

from tracekit.compare.gate_rules import (
    KINDS,
    MOST_RULES,
    NEW_OOM,
    NO_RULES,
    SCOPES,
    Accept,
    Rule,
    Rules,
    Test,
    recorded,
    rule,
    rule_of_text,
)
from tracekit.discover.arguments import refuse_special
from tracekit.model.errors import TracekitError
from tracekit.model.labels import did_you_mean
from tracekit.model.metrics import STEP_TIME
from tracekit.model.records import dataclass
from tracekit.model.stats.verdict import LEAST_EFFECT

OWN_FILE, PROJECT_FILE = "tracekit.toml", "pyproject.toml"

_GATE_KEYS = ("fail-on", "on-inconclusive", "level", "min-effect", "rule", "accept")
_RULE_KEYS = (
    "metric",
    "max-increase",
    "max-decrease",
    "max",
    "min",
    "severity",
    "scope",
    "role",
)
_ACCEPT_KEYS = ("metric", "until", "reason")
INCONCLUSIVE = "inconclusive"
_WORDS = ("regression", INCONCLUSIVE, "not-comparable", NEW_OOM, "missing-baseline")
"""Words of `fail-on`. Sides that are not comparable or lack a baseline never pass, named or not."""
_TESTS: dict[str, tuple[Test, bool]] = {
    "max-increase": ("change", True),
    "max-decrease": ("change", False),
    "max": ("budget", True),
    "min": ("budget", False),
}


@dataclass(frozen=True, slots=True)
class GateFile:
    """The gate settings of one file; `level` and `min_effect` are shares, None if not set."""

    rules: Rules = NO_RULES
    level: float | None = None
    min_effect: float | None = None


def find(start: Path) -> Path | None:
    """Find the nearest file upwards from `start` that configures a gate; None if there is none."""
    for folder in (start, *start.parents):
        gate_file, project = folder / OWN_FILE, folder / PROJECT_FILE
        if gate_file.is_file():
            return gate_file
        if project.is_file() and _table(project, _toml(project)) is not None:
            return project
    return None


def read(path: Path) -> GateFile:
    """Read the gate of a file; raises `TracekitError` for anything that is not understood."""
    content = _toml(path)
    try:
        return _gate(_table(path, content), path.name)
    except TracekitError as error:
        raise TracekitError(f"{path}: {error.problem}", error.hint) from None


def together(file: GateFile, texts: Sequence[str], least: float | None = None) -> Rules:
    """Combine the rules of a file and of the command line; raises `TracekitError` if there are too many.

    `least` is the effect that the word `regression` means, as a share; the file's value by default.
    """
    least_effect = file.min_effect if least is None else least
    rules = _joined(file.rules.rules, _of_texts(texts, least_effect, "--fail-on"))
    if texts and not rules:
        raise TracekitError(_nothing_held("--fail-on", texts), "add --fail-on regression")
    _check_number(rules)
    sources = file.rules.sources
    if texts:
        sources = (*sources, "the command line")
    return replace(
        file.rules,
        rules=tuple(rules),
        inconclusive_fails=file.rules.inconclusive_fails or INCONCLUSIVE in texts,
        sources=sources,
    )


def _joined(rules: Iterable[Rule], more: Iterable[Rule]) -> list[Rule]:
    """Append the rules of `more` that are not among `rules`."""
    joined = list(rules)
    joined += [rule for rule in more if rule not in joined]
    return joined


def _toml(path: Path) -> Mapping[str, object]:
    """Read a TOML file."""
    refuse_special(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TracekitError(
            f"{path}: cannot be read: {error.strerror or error}", "check the path"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TracekitError(f"{path}: not TOML: {error}", "mend it, or use --isolated") from error


def _table(path: Path, content: Mapping[str, object]) -> Mapping[str, object] | None:
    """Get the gate's table: `[tool.tracekit.gate]`, or `[gate]` in tracekit.toml."""
    gate = _entry(_entry(content.get("tool"), "tracekit"), "gate")
    if path.name != PROJECT_FILE:
        _refuse_unknown(content, ("gate", "tool"), "the file")
        gate = content.get("gate", gate)
    if gate is not None and not isinstance(gate, Mapping):
        raise TracekitError("gate is not a table", "write [tool.tracekit.gate]")
    return gate


def _entry(table: object, key: str) -> object:
    """Get the value of a key; None if `table` is not a table."""
    return table.get(key) if isinstance(table, Mapping) else None


def _gate(table: Mapping[str, object] | None, source: str) -> GateFile:
    """Parse the gate's table, which must exist."""
    if table is None:
        hint = f"write [gate] in {OWN_FILE}, or [tool.tracekit.gate] in {PROJECT_FILE}"
        raise TracekitError("says nothing of a gate", hint)
    _refuse_unknown(table, _GATE_KEYS, "the gate")
    rules: list[Rule] = []
    for entry in _tables(table, "rule"):
        rules += _rules(entry)
    level, least_effect = _share(table, "level"), _share(table, "min-effect")
    if level is not None and not 0.5 <= level < 1:
        raise TracekitError(f"level is {level}", "a share from 0.5 to below 1, as 0.95")
    fails = _choice(table, "on-inconclusive", ("warn", "fail"), "warn") == "fail"
    words = _texts(table, "fail-on")
    rules = _joined(rules, _of_texts(words, least_effect, "fail-on"))
    if words and not rules and not table.get("rule"):
        raise TracekitError(_nothing_held("fail-on", words), 'add "regression", or a rule')
    _check_number(rules)
    accepts = tuple(map(_accept, _tables(table, "accept")))
    fails = fails or INCONCLUSIVE in words
    return GateFile(Rules(tuple(rules), accepts, fails, None, (source,)), level, least_effect)


def _of_texts(texts: Iterable[str], least_effect: float | None, option: str) -> list[Rule]:
    """Parse the rules of `fail-on`, without repeats; raises for texts that are neither rules nor known words."""
    rules: list[Rule] = []
    for text in texts:
        if ">" not in text and text not in _WORDS:
            near = did_you_mean(text, _WORDS)
            hint = f"there are: {', '.join(_WORDS)}; or a rule: 'step_time>3%'"
            raise TracekitError(f"{option}: {text!r} is unknown{near}", hint)
        rules = _joined(rules, _of_word(text, least_effect))
    return rules


def _of_word(word: str, least_effect: float | None) -> list[Rule]:
    """Expand a word of `fail-on` to its rules: one or none."""
    if ">" in word:
        return [rule_of_text(word)]
    if word == "regression":
        effect = LEAST_EFFECT if least_effect is None else least_effect
        return [rule(STEP_TIME, f"{100 * effect:g}%", "change", rise=True)]
    if word == NEW_OOM:
        return [rule(NEW_OOM, "0", "change", rise=True)]
    return []


def _nothing_held(option: str, words: Iterable[str]) -> str:
    return f"{option} names only {', '.join(words)}: nothing is held"


def _rules(entry: Mapping[str, object]) -> list[Rule]:
    """Parse one entry: one rule for each limit, none if its severity is off."""
    _refuse_unknown(entry, _RULE_KEYS, "a rule")
    metric = _text(entry, "metric")
    name, _ = recorded(metric)
    _check_scope(entry, metric, KINDS[name].ranks)
    limits = [key for key in _TESTS if key in entry]
    if not limits:
        raise TracekitError(f"{metric}: a rule without a limit", f"set {', '.join(_TESTS)}")
    severity = _choice(entry, "severity", ("error", "warn", "off"), "error")
    role = _text(entry, "role") if "role" in entry else None
    rules = []
    for key in limits:
        test, rise = _TESTS[key]
        rules.append(
            rule(
                metric,
                entry[key],
                test,
                rise=rise,
                severity="warn" if severity == "warn" else "error",
                role=role,
            )
        )
    return [] if severity == "off" else rules


def _check_scope(entry: Mapping[str, object], metric: str, ranks: str) -> None:
    """Raise if an entry asks for another reduction over ranks than the metric has."""
    scope = _choice(entry, "scope", tuple(SCOPES), "")
    if scope and SCOPES[scope] != ranks:
        names = {reduction: word for word, reduction in SCOPES.items()}
        hint = f"say {names[ranks]}, or nothing" if ranks in names else "leave out the scope"
        raise TracekitError(f"{metric}: ranks are reduced to their {ranks}, not {scope}", hint)


def _accept(entry: Mapping[str, object]) -> Accept:
    """Parse an exception, which requires a last day and a reason."""
    _refuse_unknown(entry, _ACCEPT_KEYS, "an exception")
    metric = _text(entry, "metric")
    recorded(metric)
    until = entry.get("until")
    if isinstance(until, str):
        try:
            until = date.fromisoformat(until)
        except ValueError:
            until = None
    if isinstance(until, datetime):
        until = until.date()
    if not isinstance(until, date):
        raise TracekitError(
            f"accept {metric}: no last day", 'an exception needs one: until = "2026-12-31"'
        )
    return Accept(metric, until, _text(entry, "reason"))


def _check_number(rules: Sequence[Rule]) -> None:
    """Raise if there are more rules than a gate can test at once."""
    if len(rules) > MOST_RULES:
        raise TracekitError(
            f"{len(rules)} rules are too many for one gate",
            f"name the {MOST_RULES} numbers that matter: the more there are, the less each can show",
        )


def _tables(table: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    entries = table.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise TracekitError(f"{key} is not a list of tables", f"write [[tool.tracekit.gate.{key}]]")
    return entries


def _texts(table: Mapping[str, object], key: str) -> list[str]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TracekitError(f"{key} is not a list of texts", f'write {key} = ["regression"]')
    return texts


def _text(table: Mapping[str, object], key: str) -> str:
    """Get a required text."""
    text = table.get(key)
    if not isinstance(text, str) or not text.strip():
        name = table.get("metric")
        about = f"{name}: " if isinstance(name, str) and key != "metric" else ""
        raise TracekitError(f"{about}{key} is missing or no text", f'write {key} = "…"')
    return text


def _share(table: Mapping[str, object], key: str) -> float | None:
    """Get a share such as 0.95 or "3%"; None if not set."""
    share = table.get(key)
    if share is None:
        return None
    if isinstance(share, str) and share.endswith("%"):
        try:
            share = float(share[:-1]) / 100
        except ValueError:
            share = None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 10:
        raise TracekitError(f"{key} is no share", f'write {key} = 0.03 or "3%"')
    return float(share)


def _choice(table: Mapping[str, object], key: str, choices: tuple[str, ...], default: str) -> str:
    word = table.get(key, default)
    if not isinstance(word, str) or (word not in choices and word != default):
        raise _unknown(f"{key} cannot be {word!r}", str(word), choices)
    return word


def _refuse_unknown(table: Mapping[str, object], keys: tuple[str, ...], what: str) -> None:
    """Raise for the first unknown key."""
    for key in table:
        if key not in keys:
            raise _unknown(f"{what} has an unknown key {key!r}", key, keys)


def _unknown(problem: str, word: str, choices: tuple[str, ...]) -> TracekitError:
    """Make the error for a word that is not among its choices."""
    return TracekitError(
        f"{problem}{did_you_mean(word, choices)}", f"there are: {', '.join(choices)}"
    )
