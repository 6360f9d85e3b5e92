"""Notes of a report as HTML: its basis, caveats, recordings with advice, what was not analyzed, and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from tracekit.model.report import Finding, Report, Section
from tracekit.model.units import format_quantity
from tracekit.render import phrases
from tracekit.render.escape import make_printable

MOST_NOTES = 80
"""Notes on the page at most."""

MOST_PLACES = 4
"""Places of a finding on the page at most."""

NO_TIMELINE = "No timeline: it needs the traces of a profile (tracekit analyze PROFILE -o report.html)."


def write_basis(report: Report, notes: Sequence[str]) -> str:
    """Render numbers with bounds, the basis of the answer, and notes on it."""
    lines = [phrases.format_metric(metric) for metric in report.headline if metric.low is not None]
    lines += [make_printable(line, phrases.SENTENCE) for line in (*report.basis, *notes)]
    return "".join(f'<p class="quiet">{escape(line)}</p>' for line in lines)


def write_plans(report: Report) -> str:
    """Render the plan of each run, and suspected findings that need more data."""
    sentences = [f"{plan}." for plan in phrases.describe_plans(report)]
    sentences += [f"unproven: {claim}" for claim in phrases.list_unproven_claims(report, report.findings)]
    return "".join(f'<p class="foot quiet">{escape(sentence)}</p>' for sentence in sentences)


def write_finding_facts(finding: Finding, report: Report) -> str:
    """Render the saving of the fix of a finding, its evidence, and its places."""
    facts = [phrases.describe_saving(finding, report)]
    facts += [
        f"{phrases.get_metric_label(metric)} {phrases.format_metric_value(metric)}" for metric in finding.evidence
    ]
    places = [phrases.format_place(place, report.spans) for place in finding.places[:MOST_PLACES]]
    places = [place for place in places if place != "everywhere"]
    if len(finding.places) > MOST_PLACES:
        places.append(f"{len(finding.places) - MOST_PLACES} more places")
    lines = (" · ".join(filter(None, facts)), f"Where: {'; '.join(places)}" if places else "")
    return "".join(f'<p class="quiet">{escape(line)}</p>' for line in lines if line)


def write_notes(report: Report, dropped: int) -> str:
    """Render all notes, folded; `dropped` items of long lists are not on the page. Empty without any."""
    notes = list(_list_notes(report, dropped))
    if not notes:
        return ""
    shown = notes[:MOST_NOTES]
    if len(notes) > MOST_NOTES:
        shown.append(f"{format_quantity(len(notes) - MOST_NOTES, 'count')} more notes are in the JSON report.")
    count = "1 note" if len(notes) == 1 else f"{format_quantity(len(notes), 'count')} notes"
    items = "".join(f"<li>{escape(note)}</li>" for note in shown)
    return f'<details id="notes"><summary>{count} on the data and the method</summary><ul>{items}</ul></details>'


def _list_notes(report: Report, dropped: int) -> Iterator[str]:
    """List the notes, the most serious first."""
    for sentence, advice, command in phrases.list_limiting_recordings(report):
        yield f"{sentence} → {advice}: {command}"
    for caution in report.cautions:
        yield make_printable(caution, phrases.SENTENCE)
    if dropped:
        yield f"{format_quantity(dropped, 'count')} items of long lists are not on this page; the JSON report has all."
    for gap in report.unseen:
        yield f"Not analyzed: {make_printable(gap, phrases.SENTENCE)}"
    for section in report.sections:
        yield from _list_section_notes(section)
    for remark in report.remarks:
        yield phrases.format_remark(remark)
    if report.fingerprint:
        facts = (f"{make_printable(key, 80)} {make_printable(value, 200)}" for key, value in report.fingerprint)
        yield f"Comparable reports agree in: {', '.join(facts)}"
    yield f"tracekit {make_printable(report.tool_version, 40)}, report schema {make_printable(report.schema, 60)}"


def _list_section_notes(section: Section) -> Iterator[str]:
    """List the caveats of a section, and the rules that abstain in it with the first reason."""
    title = make_printable(section.title or section.id, 120)
    for caveat in section.caveats:
        yield f"{title}: {make_printable(caveat, phrases.SENTENCE)}"
    reasons: dict[tuple[str, str], str] = {}
    for verdict in section.verdicts:
        if verdict.answer in ("failed", "not applicable", "insufficient data"):
            reasons.setdefault((verdict.rule, verdict.answer), verdict.reason)
    for (rule, answer), reason in reasons.items():
        why = f": {make_printable(reason, phrases.SENTENCE)}" if reason else ""
        yield f"{title}: {make_printable(rule, 60)} ({answer}{why})"
