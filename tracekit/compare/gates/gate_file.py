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
    MOST_RULES,
    NEW_OOM_RULE,
    NO_RULES,
    RULE_METRICS,
    RULE_SCOPES,
    GateException,
    GateRule,
    GateRules,
    Test,
    make_gate_rule,
    parse_rule_text,
    resolve_rule_metric,
)
from tracekit.discover.arguments import refuse_special
from tracekit.model.errors import TracekitError
from tracekit.model.metrics import STEP_TIME
from tracekit.model.records import dataclass
from tracekit.model.stats.verdict import LEAST_EFFECT
from tracekit.model.text.labels import did_you_mean

OWN_FILE, PROJECT_FILE = "tracekit.toml", "pyproject.toml"

_GATE_KEYS = ("fail-on", "on-inconclusive", "level", "min-effect", "rule", "accept")
_RULE_KEYS = ("metric", "max-increase", "max-decrease", "max", "min", "severity", "scope", "role")
_ACCEPT_KEYS = ("metric", "until", "reason")
INCONCLUSIVE = "inconclusive"
_WORDS = ("regression", INCONCLUSIVE, "not-comparable", NEW_OOM_RULE, "missing-baseline")
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

    rules: GateRules = NO_RULES
    level: float | None = None
    min_effect: float | None = None


def find_gate_file(start: Path) -> Path | None:
    """Find the nearest file upwards from `start` that configures a gate; None if there is none."""
    for folder in (start, *start.parents):
        gate_file, project = folder / OWN_FILE, folder / PROJECT_FILE
        if gate_file.is_file() and not _has_only_options(_read_toml(gate_file)):
            return gate_file
        if project.is_file() and _get_gate_table(project, _read_toml(project)) is not None:
            return project
    return None


def _has_only_options(content: Mapping[str, object]) -> bool:
    """Check whether a file has options of `analyze`, and no gate."""
    return "analyze" in content and not {"gate", "tool"} & content.keys()


def read(path: Path) -> GateFile:
    """Read the gate of a file; raises `TracekitError` for anything that is not understood."""
    content = _read_toml(path)
    try:
        return _parse_gate_table(_get_gate_table(path, content), path.name)
    except TracekitError as error:
        raise TracekitError(f"{path}: {error.problem}", error.hint) from None


def combine_gate_rules(file: GateFile, texts: Sequence[str], least_effect_option: float | None = None) -> GateRules:
    """Combine the rules of a file and of the command line; raises `TracekitError` if there are too many.

    `least_effect_option` is the effect that the word `regression` means, as a share; the file's value by default.
    """
    least_effect = file.min_effect if least_effect_option is None else least_effect_option
    rules = _merge_gate_rules(file.rules.rules, _parse_fail_on_texts(texts, least_effect, "--fail-on"))
    if texts and not rules:
        raise TracekitError(_describe_empty_gate("--fail-on", texts), "add --fail-on regression")
    _check_rule_count(rules)
    sources = file.rules.sources
    if texts:
        sources = (*sources, "the command line")
    return replace(
        file.rules,
        rules=tuple(rules),
        inconclusive_fails=file.rules.inconclusive_fails or INCONCLUSIVE in texts,
        sources=sources,
    )


def _merge_gate_rules(rules: Iterable[GateRule], more: Iterable[GateRule]) -> list[GateRule]:
    """Append the rules of `more` that are not among `rules`."""
    joined = list(rules)
    joined += [rule for rule in more if rule not in joined]
    return joined


def _read_toml(path: Path) -> Mapping[str, object]:
    """Read a TOML file."""
    refuse_special(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TracekitError(f"{path}: cannot be read: {error.strerror or error}", "check the path") from error
    except (ValueError, RecursionError) as error:
        raise TracekitError(f"{path}: not TOML: {error}", "fix it, or use --isolated") from error


def _get_gate_table(path: Path, content: Mapping[str, object]) -> Mapping[str, object] | None:
    """Get the gate's table: `[tool.tracekit.gate]`, or `[gate]` in tracekit.toml."""
    gate = _get_table_entry(_get_table_entry(content.get("tool"), "tracekit"), "gate")
    if path.name != PROJECT_FILE:
        _refuse_unknown_toml_keys(content, ("gate", "analyze", "tool"), "the file")
        gate = content.get("gate", gate)
    if gate is not None and not isinstance(gate, Mapping):
        raise TracekitError("gate is not a table", "write [tool.tracekit.gate]")
    return gate


def _get_table_entry(table: object, key: str) -> object:
    """Get the value of a key; None if `table` is not a table."""
    return table.get(key) if isinstance(table, Mapping) else None


def _parse_gate_table(table: Mapping[str, object] | None, source: str) -> GateFile:
    """Parse the gate's table, which must exist."""
    if table is None:
        hint = f"write [gate] in {OWN_FILE}, or [tool.tracekit.gate] in {PROJECT_FILE}"
        raise TracekitError("contains no gate", hint)
    _refuse_unknown_toml_keys(table, _GATE_KEYS, "the gate")
    rules: list[GateRule] = []
    for entry in _get_toml_tables(table, "rule"):
        rules += _parse_gate_rule(entry)
    level, least_effect = _get_toml_share(table, "level"), _get_toml_share(table, "min-effect")
    if level is not None and not 0.5 <= level < 1:
        raise TracekitError(f"level is {level}", "give a share from 0.5 to below 1, such as 0.95")
    fails = _get_toml_choice(table, "on-inconclusive", ("warn", "fail"), "warn") == "fail"
    words = _get_toml_texts(table, "fail-on")
    rules = _merge_gate_rules(rules, _parse_fail_on_texts(words, least_effect, "fail-on"))
    if words and not rules and not table.get("rule"):
        raise TracekitError(_describe_empty_gate("fail-on", words), 'add "regression", or a rule')
    _check_rule_count(rules)
    accepts = tuple(_parse_accept_entry(entry) for entry in _get_toml_tables(table, "accept"))
    fails = fails or INCONCLUSIVE in words
    return GateFile(GateRules(tuple(rules), accepts, fails, None, (source,)), level, least_effect)


def _parse_fail_on_texts(texts: Iterable[str], least_effect: float | None, option: str) -> list[GateRule]:
    """Parse the rules of `fail-on`, without repeats; raises for texts that are neither rules nor known words."""
    rules: list[GateRule] = []
    for text in texts:
        if ">" not in text and text not in _WORDS:
            near = did_you_mean(text, _WORDS)
            hint = f"there are: {', '.join(_WORDS)}; or a rule: 'step_time>3%'"
            raise TracekitError(f"{option}: {text!r} is unknown{near}", hint)
        rules = _merge_gate_rules(rules, _expand_fail_on_word(text, least_effect))
    return rules


def _expand_fail_on_word(word: str, least_effect: float | None) -> list[GateRule]:
    """Expand a word of `fail-on` to its rules: one or none."""
    if ">" in word:
        return [parse_rule_text(word)]
    if word == "regression":
        effect = LEAST_EFFECT if least_effect is None else least_effect
        return [make_gate_rule(STEP_TIME, f"{100 * effect:g}%", "change", rise=True)]
    if word == NEW_OOM_RULE:
        return [make_gate_rule(NEW_OOM_RULE, "0", "change", rise=True)]
    return []


def _describe_empty_gate(option: str, words: Iterable[str]) -> str:
    return f"{option} names only {', '.join(words)}: nothing is checked"


def _parse_gate_rule(entry: Mapping[str, object]) -> list[GateRule]:
    """Parse one entry: one rule for each limit, none if its severity is off."""
    _refuse_unknown_toml_keys(entry, _RULE_KEYS, "a rule")
    metric = _get_toml_text(entry, "metric")
    name, _ = resolve_rule_metric(metric)
    _check_rule_scope(entry, metric, RULE_METRICS[name].ranks)
    limits = [key for key in _TESTS if key in entry]
    if not limits:
        raise TracekitError(f"{metric}: the rule has no limit", f"set {', '.join(_TESTS)}")
    severity = _get_toml_choice(entry, "severity", ("error", "warn", "off"), "error")
    role = _get_toml_text(entry, "role") if "role" in entry else None
    rules = []
    for key in limits:
        test, rise = _TESTS[key]
        rules.append(
            make_gate_rule(
                metric, entry[key], test, rise=rise, severity="warn" if severity == "warn" else "error", role=role
            )
        )
    return [] if severity == "off" else rules


def _check_rule_scope(entry: Mapping[str, object], metric: str, ranks: str) -> None:
    """Raise if an entry asks for another reduction over ranks than the metric has."""
    scope = _get_toml_choice(entry, "scope", tuple(RULE_SCOPES), "")
    if scope and RULE_SCOPES[scope] != ranks:
        names = {reduction: word for word, reduction in RULE_SCOPES.items()}
        hint = f"write {names[ranks]}, or leave out the scope" if ranks in names else "leave out the scope"
        raise TracekitError(f"{metric}: ranks are reduced to their {ranks}, not {scope}", hint)


def _parse_accept_entry(entry: Mapping[str, object]) -> GateException:
    """Parse an exception, which requires a last day and a reason."""
    _refuse_unknown_toml_keys(entry, _ACCEPT_KEYS, "an exception")
    metric = _get_toml_text(entry, "metric")
    resolve_rule_metric(metric)
    until = entry.get("until")
    if isinstance(until, str):
        try:
            until = date.fromisoformat(until)
        except ValueError:
            until = None
    if isinstance(until, datetime):
        until = until.date()
    if not isinstance(until, date):
        raise TracekitError(f"accept {metric}: no expiry date", 'an exception needs a last day: until = "2026-12-31"')
    return GateException(metric, until, _get_toml_text(entry, "reason"))


def _check_rule_count(rules: Sequence[GateRule]) -> None:
    """Raise if there are more rules than a gate can test at once."""
    if len(rules) > MOST_RULES:
        raise TracekitError(
            f"{len(rules)} rules are too many for one gate",
            f"keep the {MOST_RULES} most important metrics: each added rule makes the others less sensitive",
        )


def _get_toml_tables(table: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    entries = table.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise TracekitError(f"{key} is not a list of tables", f"write [[tool.tracekit.gate.{key}]]")
    return entries


def _get_toml_texts(table: Mapping[str, object], key: str) -> list[str]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TracekitError(f"{key} is not a list of strings", f'write {key} = ["regression"]')
    return texts


def _get_toml_text(table: Mapping[str, object], key: str) -> str:
    """Get a required text."""
    text = table.get(key)
    if not isinstance(text, str) or not text.strip():
        name = table.get("metric")
        about = f"{name}: " if isinstance(name, str) and key != "metric" else ""
        raise TracekitError(f"{about}{key} is missing or not a string", f'write {key} = "…"')
    return text


def _get_toml_share(table: Mapping[str, object], key: str) -> float | None:
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
        raise TracekitError(f"{key} is not a share", f'write {key} = 0.03 or "3%"')
    return float(share)


def _get_toml_choice(table: Mapping[str, object], key: str, choices: tuple[str, ...], default: str) -> str:
    word = table.get(key, default)
    if not isinstance(word, str) or (word not in choices and word != default):
        raise _make_unknown_word_error(f"{key} cannot be {word!r}", str(word), choices)
    return word


def _refuse_unknown_toml_keys(table: Mapping[str, object], keys: tuple[str, ...], what: str) -> None:
    """Raise for the first unknown key."""
    for key in table:
        if key not in keys:
            raise _make_unknown_word_error(f"{what} has an unknown key {key!r}", key, keys)


def _make_unknown_word_error(problem: str, word: str, choices: tuple[str, ...]) -> TracekitError:
    """Make the error for a word that is not among its choices."""
    return TracekitError(f"{problem}{did_you_mean(word, choices)}", f"there are: {', '.join(choices)}")
