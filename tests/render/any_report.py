"""Hypothesis strategies: any report that the types allow, hostile text and numbers included."""

import re
from dataclasses import replace

from hypothesis import strategies as st

from tracekit.model.report import (
    SEVERITIES,
    Chart,
    ClockOffset,
    Finding,
    Heading,
    Instance,
    Metric,
    Place,
    Remark,
    Report,
    Section,
    Sheet,
    StepNumbers,
    Verdict,
)
from tracekit.render.plots.marks import FIELDS

UNITS = ("", "ns", "bytes", "ratio", "count", "gb_per_s", "text", "id")
NASTY = (
    "</script>",
    "<b>",
    "`",
    "``|``",
    "|",
    "\\|",
    "[bold]",
    "\x1b[31m",
    "\u202e",
    "\n\n# x",
    "=cmd()",
    "@team",
    "#12",
    "http://example.com",
    "www.example.com",
    "\ud800",
    "{{ 1 }}",
    "&amp;",
    "- a",
    "1. a",
    "</details>",
    "表" * 90,
    "x" * 700,
    " " * 200,
)
# A high surrogate before a low one has no JSON form of its own, and no file name gives it.
texts = st.one_of(
    st.text(st.characters(), max_size=20).filter(lambda t: not re.search("[\ud800-\udbff][\udc00-\udfff]", t)),
    st.sampled_from(NASTY),
)
ints = st.one_of(st.integers(-(2**70), 2**70), st.integers(-100, 100), st.just(10**400))
floats = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.one_of(ints, floats)
cells = st.one_of(st.none(), st.booleans(), numbers, texts)


def tuples(of, most=3):
    return st.lists(of, max_size=most).map(tuple)


def maybe(of):
    return st.one_of(st.none(), of)


metrics = st.builds(
    Metric,
    texts,
    maybe(numbers),
    st.sampled_from(UNITS),
    st.sampled_from(("lower", "higher", "neither")),
    maybe(numbers),
    maybe(numbers),
    texts,
)
places = st.builds(
    Place,
    maybe(texts),
    maybe(texts),
    maybe(ints),
    maybe(ints),
    maybe(ints),
    maybe(texts),
    maybe(texts),
    maybe(ints),
    maybe(ints),
)
instances = st.builds(Instance, st.sampled_from(("worst", "median")), places, ints, st.sampled_from(("ns", "bytes")))
bare_findings = st.builds(
    Finding,
    texts,
    st.sampled_from(SEVERITIES),
    texts,
    texts,
    tuples(metrics, 2),
    tuples(places, 2),
    maybe(ints),
    maybe(floats),
    tuples(texts, 2),
    st.booleans(),
    instances=tuples(instances, 2),
)
findings = st.builds(lambda finding, parts: replace(finding, parts=parts), bare_findings, tuples(bare_findings, 2))


@st.composite
def sheets(draw):
    headings = draw(tuples(st.builds(Heading, texts, texts, st.sampled_from(UNITS), texts), 5))
    rows = draw(tuples(st.tuples(*[cells] * len(headings)), 4))
    return Sheet(draw(texts), draw(texts), headings, rows, draw(st.integers(0, 10**6)), draw(texts))


@st.composite
def charts(draw, kinds=("gantt", "bars", "heatmap", "matrix", "lines", "histogram")):
    """Any chart that keeps to its docstring: marks refer to rows and series there are."""
    kind = draw(st.sampled_from(kinds))
    rows, series = (draw(st.lists(texts, min_size=1, max_size=4)) for _ in range(2))
    row, one = st.integers(0, len(rows) - 1), st.integers(0, len(series) - 1)
    amount = maybe(st.one_of(numbers, st.integers(0, 10**10), st.floats(0, 1)))
    mark = [{"row": row, "series": one}.get(name, amount) for name in FIELDS[kind]]
    return Chart(
        draw(texts),
        draw(texts),
        kind,
        draw(tuples(st.tuples(*mark), 12)),
        tuple(series),
        tuple(rows),
        draw(st.sampled_from(UNITS)),
        draw(st.sampled_from(UNITS)),
        draw(texts),
        draw(st.integers(0, 10**6)),
    )


verdicts = st.builds(
    Verdict,
    texts,
    st.sampled_from(("fired", "clear", "not applicable", "insufficient data")),
    texts,
    maybe(texts),
    maybe(ints),
    maybe(floats),
    texts,
    texts,
)
sections = st.builds(
    Section,
    texts,
    texts,
    st.sampled_from(("ok", "skipped", "failed")),
    texts,
    tuples(metrics, 2),
    tuples(sheets(), 2),
    tuples(findings, 2),
    tuples(texts, 2),
    tuples(verdicts, 2),
    tuples(charts(), 2),
)
remarks = st.builds(
    Remark, st.sampled_from(("info", "warning", "data_loss", "error")), texts, texts, texts, st.integers(0, 10**9)
)
reports = st.builds(
    Report,
    texts,
    texts,
    tuples(texts),
    tuples(metrics),
    maybe(sheets()),
    tuples(sections, 2),
    tuples(remarks),
    tuples(texts),
    maybe(sheets()),
    tuples(st.tuples(texts, texts), 2),
    clocks=tuples(st.builds(ClockOffset, maybe(texts), maybe(texts), maybe(ints), maybe(ints), ints, ints, ints), 2),
    counted_steps=tuples(st.builds(StepNumbers, maybe(texts), tuples(ints), tuples(ints)), 2),
)
