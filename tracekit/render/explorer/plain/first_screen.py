"""The first screen without scripts: findings with advice, top kernels, and unanswered questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.report import Report
from tracekit.model.units import format_quantity
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.explorer.plain.notes import write_finding_facts

Ints = npt.NDArray[np.int64]

TOP_KERNELS = 12


def write_finding_items(findings: Sequence[Mapping[str, Any]], report: Report) -> str:
    """Render the findings as list items."""
    items = []
    for described, finding in zip(findings, report.findings, strict=True):
        caveats = "".join(f'<p class="quiet">Caveat: {escape(caveat)}</p>' for caveat in described["caveats"])
        facts = write_finding_facts(finding, report)
        items.append(
            f"<li><h3>{escape(described['claim'])}</h3><p>{escape(described['advice'])}</p>{facts}{caveats}</li>"
        )
    return "".join(items) or f"<li>{escape(phrases.describe_no_findings(report))}</li>"


def write_top_kernels(sums: Sequence[Ints], texts: Sequence[str], kinds: Sequence[str]) -> str:
    """Render the kernels with most time over the whole recording as rows of a table."""
    _, _, _, _, name, kind, count, ns = sums
    key = name * len(kinds) + kind
    distinct, place = np.unique(key, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, place, ns)
    counts = np.zeros(len(distinct), np.int64)
    np.add.at(counts, place, count)
    rows = []
    for group in np.argsort(-total, kind="stable")[:TOP_KERNELS].tolist():
        number, of_kind = divmod(int(distinct[group]), len(kinds))
        time_ns = int(total[group])
        numbers = (
            format_quantity(int(counts[group]), "count"),
            format_quantity(time_ns, "ns"),
            format_quantity(time_ns / max(int(total.sum()), 1), "ratio"),
        )
        cells = "".join(f'<td class="n">{escape(text)}</td>' for text in numbers)
        rows.append(f"<tr><td>{escape(texts[number])}</td><td>{kinds[of_kind]}</td>{cells}</tr>")
    return "".join(rows)


def write_unanswered(report: Report) -> tuple[str, str]:
    """Render the questions without an answer: (title, list items with reasons)."""
    silent = [section for section in report.sections if section.status != "ok"]
    questions = "1 question" if len(silent) == 1 else f"{len(silent)} questions"
    items = [
        f"<li>{escape(make_printable(section.title or section.id, 300))}: "
        f"{escape(make_printable(section.reason, phrases.SENTENCE))}</li>"
        for section in silent
    ]
    return f"{questions} could not be answered from this recording", "".join(items)
