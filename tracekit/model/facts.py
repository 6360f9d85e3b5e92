"""What is known of measurements as a whole, and how it is saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tracekit.model.records import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of measurements as a whole; empty or None where it is not.

    `versions` and `options` are of what recorded, by name. `ignored` are the lines on files that were passed over,
    `excluded_count` how many of these the user left out, and `files` how many are in each other state. `stages` are
    those that alone were asked for, `has_chosen_steps` is whether only some steps were. `questions` alone were asked, so that the tables `unasked` were measured by
    nobody; `own_questions` are those of the user's files that were measured as well. `work` is how many tokens, samples or images a person says that a step holds, `device_memory` how many
    bytes of memory a device. `engine` says who read, where that was not this program alone.
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
    excluded_count: int = 0
    has_chosen_steps: bool = False


_ALWAYS = ("title", "versions", "options", "ignored", "files", "simulated", "stages")


def as_json(facts: Facts) -> dict[str, Any]:
    """The facts as plain values; those that are not always written only where they are known."""
    values: dict[str, Any] = {}
    for name in Facts.__dataclass_fields__:
        value = getattr(facts, name)
        if name not in _ALWAYS and value in (None, (), {}, "", 0, False):
            continue
        if isinstance(value, tuple):
            value = list(value)
        values[name] = dict(value) if isinstance(value, Mapping) else value
    return values


def of_json(saved: Mapping[str, Any]) -> Facts:
    """The facts that were saved as these values; what is of another kind than it should be is not known."""
    questions = saved.get("questions")
    return Facts(
        title=str(saved.get("title", "")),
        versions=_texts_by_name(saved.get("versions")),
        options=_texts_by_name(saved.get("options")),
        ignored=_texts(saved.get("ignored")),
        files=_numbers(saved.get("files"), int),
        simulated=bool(saved.get("simulated")),
        stages=_texts(saved.get("stages")),
        questions=_texts(questions) if isinstance(questions, list) else None,
        unasked=_texts(saved.get("unasked")),
        own_questions=_texts(saved.get("own_questions")),
        engine=_of_kind(saved.get("engine"), str, ""),
        work=_numbers(saved.get("work"), int, float),
        device_memory=_of_kind(saved.get("device_memory"), int, None),
        excluded_count=_of_kind(saved.get("excluded_count"), int, 0),
        has_chosen_steps=bool(saved.get("has_chosen_steps")),
    )


def _of_kind(value: Any, kind: type, otherwise: Any) -> Any:
    """The value where it is of this very type: a truth value is no number."""
    return value if type(value) is kind else otherwise


def _texts(value: object) -> tuple[str, ...]:
    """The entries of a list as texts, none of anything else."""
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _texts_by_name(value: object) -> dict[str, str]:
    """The values of an object as texts, none of anything else."""
    if not isinstance(value, dict):
        return {}
    return {str(name): str(text) for name, text in value.items()}


def _numbers(value: object, *kinds: type) -> dict[str, Any]:
    """The numbers of these kinds in an object, none of anything else."""
    if not isinstance(value, dict):
        return {}
    return {str(name): number for name, number in value.items() if type(number) in kinds}
