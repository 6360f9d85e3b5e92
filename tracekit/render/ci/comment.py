"""Pull-request comment of a comparison or a gate: verdict and gate in the first line, in at most 6 KB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice

from tracekit.model.records import dataclass
from tracekit.model.report import Gate, Report
from tracekit.model.units import format_quantity, format_signed
from tracekit.render.escape import make_printable
from tracekit.render.markdown import escape_line_start, escape_markdown, format_markdown_table

MAX_COMMENT_BYTES = 6_000
"""Largest comment, in bytes of UTF-8."""

_GRAVEST = ("fail", "expired", "not comparable", "not tested", "inconclusive")
_LINE = 240
_NAME = 48
_MOST_RULES = 6
_MOST_CAVEATS = 3
_ROWS = (12, 8, 5, 3, 1)


@dataclass(frozen=True, slots=True)
class PageLink:
    """Address of the page or the artifact with it."""

    text: str
    url: str


def make_pull_request_comment(
    report: Report, gates: Sequence[Gate], sides: tuple[str, str], link: PageLink | None = None
) -> str:
    """Make the comment: answer and deciding rule, attribution, the other rules, caveats, and one link.

    The hidden marker before it is the same for the same side names, so that a bot finds its comment.
    """
    decisive = _choose_decisive_gate(gates)
    end = f"\n\n{_format_link(link)}\n" if link else "\n"
    text = "\n".join([make_comment_marker(*sides), f"**{_make_first_line(report, decisive)}**"])
    for choices in _list_comment_blocks(report, gates, decisive):
        room = MAX_COMMENT_BYTES - len(f"{text}{end}\n\n".encode())
        chosen = next((choice for choice in choices if choice and len(choice.encode()) <= room), None)
        if chosen:
            text += f"\n\n{chosen}"
    return text + end


def make_comment_marker(base: str, opt: str) -> str:
    """Make the hidden first line. It contains only a digest: a side name cannot escape from it.

    >>> make_comment_marker("main", "pr")
    '<!-- tracekit:compare:ff9ec133d011 -->'
    """
    digest = sha256(f"{base}\0{opt}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"<!-- tracekit:compare:{digest} -->"


def _make_first_line(report: Report, decisive: Gate | None) -> str:
    """Join the answer, which ends with the gate's result, and the numbers of the rule that decides it."""
    line = f"tracekit: {_escape_clipped(report.answer)}"
    if decisive is not None:
        line += f" — {_escape_clipped(_describe_rule(decisive))}"
    return line


def _choose_decisive_gate(gates: Sequence[Gate]) -> Gate | None:
    """Choose the gravest of the rules that decide, the one with the smallest margin among equals."""
    deciding = [gate for gate in gates if gate.severity == "error"] or list(gates)

    def rank(gate: Gate) -> tuple[int, float]:
        margin = _compute_margin(gate)
        relative = float("inf") if margin is None else margin / (abs(gate.limit) or 1.0)
        return (_GRAVEST.index(gate.outcome) if gate.outcome in _GRAVEST else len(_GRAVEST), relative)

    return min(deciding, key=rank, default=None)


def _compute_margin(gate: Gate) -> float | None:
    """Compute the distance to the limit: negative beyond it, None for a rule that measured nothing."""
    if gate.value is None:
        return None
    if _is_floor(gate):
        return gate.value - (gate.limit if gate.base is None else -gate.limit)
    return gate.limit - gate.value


def _is_floor(gate: Gate) -> bool:
    """Check whether the limit is the least allowed value."""
    return ": at least " in gate.rule


def _describe_rule(gate: Gate) -> str:
    """Describe a rule with its limit, the value with its interval, and the margin."""
    margin = _compute_margin(gate)
    if gate.value is None or margin is None:
        return f"{gate.rule}: {gate.claim}" if gate.claim else gate.rule
    write = format_quantity if gate.base is None else format_signed
    interval = ""
    if gate.low is not None and gate.high is not None:
        interval = f" [{write(gate.low, gate.unit)}, {write(gate.high, gate.unit)}]"
    return f"{gate.rule}, found {write(gate.value, gate.unit)}{interval}, margin {format_signed(margin, gate.unit)}"


def _list_comment_blocks(report: Report, gates: Sequence[Gate], decisive: Gate | None) -> Iterator[Sequence[str]]:
    """List the blocks below the first line, the most important first; each has shorter and shorter forms."""
    is_red = decisive is not None and decisive.outcome == "fail"
    yield ["<br>\n".join(_list_context_lines(report, is_red=is_red))]
    if report.overview is not None and report.overview.rows:
        yield [format_markdown_table(report.overview, rows, _NAME) for rows in _ROWS]
    others = [gate for gate in gates if gate is not decisive]
    yield ["\n".join(_list_rules(others, most)) for most in range(_MOST_RULES, 0, -2)]
    cautions = [f"- Note: {_escape_clipped(text)}" for text in report.cautions]
    yield ["\n".join(cautions[:most]) for most in range(_MOST_CAVEATS, 0, -1)]


def _list_context_lines(report: Report, *, is_red: bool) -> Iterator[str]:
    """List the sides and the basis; a failed gate needs no outlook on what more runs would show."""
    yield escape_line_start(" · ".join(_escape_clipped(fact) for fact in report.identity[:3]))
    basis = report.basis[:1] if is_red else (*report.basis[:1], *report.basis[1:][-1:])
    yield from (escape_line_start(_escape_clipped(line)) for line in basis)


def _list_rules(gates: Sequence[Gate], most: int) -> Iterator[str]:
    """List the rules that did not pass, and the number of the others."""
    beyond = [gate for gate in gates if gate.outcome != "pass"]
    for gate in islice(beyond, most):
        outcome = gate.outcome if gate.severity == "error" else f"{gate.outcome} (only warns)"
        yield f"- {escape_markdown(outcome)}: {_escape_clipped(_describe_rule(gate))}"
    left, passed = max(len(beyond) - most, 0), len(gates) - len(beyond)
    if left:
        yield f"- {left:,} more did not pass"
    if passed:
        yield f"- {passed:,} more passed"


def _format_link(link: PageLink) -> str:
    """Format the link; an address is taken as it is between angle brackets."""
    url = "".join(character for character in link.url if character.isprintable() and character not in "<> \\")
    return f"[{_escape_clipped(link.text)}](<{url}>)"


def _escape_clipped(text: str) -> str:
    """Escape a text of at most 240 characters."""
    return escape_markdown(make_printable(text, _LINE)).strip()
