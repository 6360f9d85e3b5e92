"""What went wrong in a capture, why, and what to do: from what readers say and what files show side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracekit.health.problems import AILMENTS
from tracekit.health.signs import FAILED, Symptom, signs
from tracekit.health.symptoms import Capture, symptoms
from tracekit.model.labels import natural
from tracekit.model.trace import Failure, Note, NoteSeverity

__all__ = ["GRAVE", "Capture", "Diagnosis", "diagnose"]

GRAVE: tuple[NoteSeverity, ...] = ("error", "data_loss")
"""Severities of what was lost or cannot be read."""

_ORDER = {code: place for place, code in enumerate(AILMENTS)}
_GRAVITY = {"error": 0, "data_loss": 1, "warning": 2, "info": 3}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that went wrong in the capture: what in which files, where that comes from, what to do."""

    code: str
    severity: NoteSeverity
    what: str
    cause: str
    remedy: str
    count: int = 1
    places: tuple[str, ...] = ()


def diagnose(
    captures: Sequence[Capture],
    notes: Sequence[Note],
    failures: Sequence[Failure] = (),
    found: Iterable[Symptom] = (),
    *,
    whole: bool = True,
) -> tuple[Diagnosis, ...]:
    """What went wrong, the gravest first, one for each thing however many files it befell.

    `notes` hold what was passed over too (`signs.IGNORED`); `found` is what else was seen; without
    `whole` the captures are a part that somebody chose, and absent ranks and steps are no fault.
    """
    failed = [
        Note("error", FAILED, "\n".join(filter(None, (f.problem, f.hint))), f.source)
        for f in failures
    ]
    nsys = {c.source.name for c in captures if c.source.tool == "nsys"}
    told = signs([*notes, *failed], nsys)
    by_kind: dict[tuple[str, str], list[Symptom]] = {}
    for symptom in (*told, *found, *symptoms(captures, whole=whole)):
        by_kind.setdefault((symptom.code, symptom.what), []).append(symptom)
    every = [_diagnosis(same) for same in by_kind.values()]
    return tuple(
        sorted(every, key=lambda d: (_GRAVITY[d.severity], _ORDER[d.code], natural(d.what)))
    )


def _diagnosis(same: Sequence[Symptom]) -> Diagnosis:
    """What several symptoms of one kind are together."""
    first = same[0]
    ailment = AILMENTS[first.code]
    places = tuple(sorted({p for symptom in same for p in symptom.places if p}, key=natural))
    count = sum(symptom.count for symptom in same) or len(places) or 1
    # Texts of others may hold braces: they are put in, and never filled themselves.
    files = f"{len(places):,} {'file' if len(places) == 1 else 'files'}"
    what = first.what or ailment.what.format(files=files, count=f"{count:,}")
    return Diagnosis(
        first.code,
        min((s.severity or ailment.severity for s in same), key=_GRAVITY.__getitem__),
        what,
        ailment.cause,
        first.remedy or ailment.remedy,
        count,
        places,
    )
