"""Rule pages: one Markdown page per rule, next to its analysis, printed by `tracekit explain`."""

from __future__ import annotations

import re
from dataclasses import field
from importlib import resources

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.text.labels import did_you_mean

SUBJECTS = ("time", "ranks", "rl", "run_log", "engines", "hangs", "ops", "memory", "trust")
"""Folders of analyses."""

_ANALYSES = __name__.rpartition(".")[0]
_HEADING = re.compile(r"# (?P<number>R[0-9]+) (?P<id>[a-z0-9-]+): (?P<title>.+)")


@dataclass(frozen=True, slots=True)
class RulePage:
    """A rule: its id in findings, its R number, its title and its page."""

    id: str
    number: str
    title: str
    page: str = field(repr=False)


def parse_rule_page(text: str) -> RulePage:
    """Parse the rule's id, number and title from the first line of its page.

    The line reads `# R04 data-loader-wait: Waiting for the data loader`.
    """
    heading = _HEADING.fullmatch(text.partition("\n")[0])
    if heading is None:
        raise TracekitError("the page of a rule begins with `# R00 its-id: its title`")
    return RulePage(heading["id"], heading["number"], heading["title"], text)


def _read_rule_pages() -> tuple[RulePage, ...]:
    """Read the pages of all rules, sorted by number."""
    folders = [resources.files(_ANALYSES).joinpath(subject) for subject in SUBJECTS]
    files = [file for folder in folders for file in folder.iterdir() if file.name.endswith(".md")]
    return tuple(sorted((parse_rule_page(f.read_text("utf-8")) for f in files), key=lambda r: r.number))


RULES: tuple[RulePage, ...] = _read_rule_pages()


def find_rule(id_or_number: str, hint: str = "tracekit explain lists all rules") -> RulePage:
    """Find a rule by id or R number, ignoring case.

    Raises `TracekitError` with the nearest name and this hint.
    """
    asked = re.sub(r"\Ar([0-9])\Z", r"r0\1", id_or_number.strip().lower())
    for candidate in RULES:
        if asked in (candidate.id, candidate.number.lower()):
            return candidate
    near = did_you_mean(asked, [name for candidate in RULES for name in (candidate.id, candidate.number)])
    raise TracekitError(f"no rule {id_or_number!r}{near}", hint)


def read_rule_page(id_or_number: str) -> str:
    """Read the page of a rule: definition, formula, cause, fixes, false positives, source."""
    return find_rule(id_or_number).page
