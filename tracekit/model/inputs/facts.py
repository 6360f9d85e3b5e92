"""Facts about a set of measurements as a whole, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tracekit.model.records import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a set of measurements; empty or None if unknown.

    `versions` and `options` describe the recording tools, by name. `ignored` lists files that were skipped,
    `excluded_count` counts those that the user excluded, and `files` counts the others by state. `stages` are the only
    stages requested, if limited; `has_chosen_steps` is True if steps were limited. `questions` are the only questions
    asked, so the tables in `unasked` were not measured; `own_questions` are those of the user's files. `work` is the
    number of tokens, samples or images per step as given by the user, `device_memory` the bytes of memory per device,
    `gpu_hour_price` the price of a GPU-hour. `engine` names the engine that read the files, if not the local one.
    """

    title: str = ""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    ignored: tuple[str, ...] = ()
    files: Mapping[str, int] = field(default_factory=dict[str, int])
    simulated: bool = False
    stages: tuple[str, ...] = ()
    questions: tuple[str, ...] | None = None
    unasked: tuple[str, ...] = ()
    own_questions: tuple[str, ...] = ()
    engine: str = ""
    work: Mapping[str, float] = field(default_factory=dict[str, float])
    device_memory: int | None = None
    gpu_hour_price: float | None = None
    excluded_count: int = 0
    has_chosen_steps: bool = False


_ALWAYS = ("title", "versions", "options", "ignored", "files", "simulated", "stages")


def convert_facts_to_json(facts: Facts) -> dict[str, Any]:
    """Convert facts to plain values; optional ones are left out if unknown."""
    values: dict[str, Any] = {}
    for name in Facts.__dataclass_fields__:
        value = getattr(facts, name)
        if name not in _ALWAYS and value in (None, (), {}, "", 0, False):
            continue
        if isinstance(value, tuple):
            value = list(value)
        values[name] = dict(value) if isinstance(value, Mapping) else value
    return values


def parse_facts(saved: Mapping[str, Any]) -> Facts:
    """Restore facts from plain values; values of the wrong type count as unknown."""
    questions = saved.get("questions")
    return Facts(
        title=str(saved.get("title", "")),
        versions=_parse_fact_texts_by_name(saved.get("versions")),
        options=_parse_fact_texts_by_name(saved.get("options")),
        ignored=_parse_fact_texts(saved.get("ignored")),
        files=_parse_fact_numbers(saved.get("files"), int),
        simulated=bool(saved.get("simulated")),
        stages=_parse_fact_texts(saved.get("stages")),
        questions=_parse_fact_texts(questions) if isinstance(questions, list) else None,
        unasked=_parse_fact_texts(saved.get("unasked")),
        own_questions=_parse_fact_texts(saved.get("own_questions")),
        engine=_check_exact_type(saved.get("engine"), str, ""),
        work=_parse_fact_numbers(saved.get("work"), int, float),
        device_memory=_check_exact_type(saved.get("device_memory"), int, None),
        gpu_hour_price=_check_exact_type(saved.get("gpu_hour_price"), float, None),
        excluded_count=_check_exact_type(saved.get("excluded_count"), int, 0),
        has_chosen_steps=bool(saved.get("has_chosen_steps")),
    )


def _check_exact_type(value: Any, kind: type, otherwise: Any) -> Any:
    """Check that a value has exactly this type, as a bool is not a number; else return `otherwise`."""
    return value if type(value) is kind else otherwise


def _parse_fact_texts(value: object) -> tuple[str, ...]:
    """Convert a list to a tuple of texts; empty for anything else."""
    return tuple(str(text) for text in value) if isinstance(value, list) else ()


def _parse_fact_texts_by_name(value: object) -> dict[str, str]:
    """Convert the values of an object to texts; empty for anything else."""
    if not isinstance(value, dict):
        return {}
    return {str(name): str(text) for name, text in value.items()}


def _parse_fact_numbers(value: object, *kinds: type) -> dict[str, Any]:
    """Select the numbers of these types from an object; empty for anything else."""
    if not isinstance(value, dict):
        return {}
    return {str(name): number for name, number in value.items() if type(number) in kinds}
