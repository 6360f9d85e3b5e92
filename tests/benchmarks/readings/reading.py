"""What a person read of a profile, and the differences that every kind of profile is checked for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.readings.said import Said

WITHIN = 0.01
"""By how much a headline may differ: of a length relatively, of a share absolutely."""

SPEAKING = frozenset({"gpu", "snapshot", "memory-timeline", "memory-log", "ray-timeline"})
"""Kinds of recordings that need no command: there is nothing to record otherwise."""


TABLELESS = frozenset({"empty", "driver-log"})
"""Kinds of recordings without stages, kernels and operators to list."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a person read of a profile.

    `rules` are those of which one must come first (an empty text: none may), `place` is text of its claim, `mentions`
    are patterns that the first screen must hold, and `kinds` the kinds of recordings it may be called. `argued` are
    pairs of the beginning of a difference and the reason why it is none.
    """

    path: str
    kinds: tuple[str, ...]
    rules: tuple[str, ...]
    why: str
    place: str = ""
    mentions: tuple[str, ...] = ()
    argued: tuple[tuple[str, str], ...] = ()

    def reason_for(self, difference: str) -> str:
        """Why this difference is none; empty where it is one."""
        return next((reason for text, reason in self.argued if difference.startswith(text)), "")


def first_line_misses(reading: Reading, said: Said) -> list[str]:
    """Compare kind, command, table and first issue of a screen with a reading."""
    wrong = []
    if not set(said.kinds[:1]) & set(reading.kinds):
        wrong.append(f"kind is {', '.join(said.kinds) or 'not said'}, not {' or '.join(reading.kinds)}")
    elif said.kinds[0] not in SPEAKING and not said.commands:
        wrong.append("no command goes with that kind")
    if not said.table and not set(said.kinds[:1]) & TABLELESS:
        wrong.append("the first screen has no table")
    rule, claim = said.first_rule, said.first_claim
    if rule not in reading.rules or (rule and reading.place not in claim):
        expected = " or ".join(name or "nothing" for name in reading.rules)
        wrong.append(f"first is {rule or 'nothing'} ({claim}), not {expected} ({reading.place})")
    text = " ".join(said.screen.split())
    wrong += [f"the screen does not mention {each}" for each in reading.mentions if not re.search(each, text)]
    return wrong
