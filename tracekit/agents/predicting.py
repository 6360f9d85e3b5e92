"""The tool `what_if`: the step that fixes or changes would give."""

from __future__ import annotations

from typing import Annotated

from tracekit.agents.bounds import limit_sentences, truncate_answer_text
from tracekit.agents.reports import AnswerTable, Path, Ranks, Steps, Top, make_agent_options, make_answer_table
from tracekit.agents.roots import Roots, resolve_inside_roots
from tracekit.model.records import dataclass
from tracekit.pipeline.replaying import ask_what_if
from tracekit.render import render


@dataclass(frozen=True, slots=True)
class WhatIfArguments:
    """Arguments of the tool `what_if`."""

    path: Path
    changes: Annotated[
        tuple[str, ...],
        "Changes, each added to those before it: ['unwait by=aten::item', 'scale device rank=2 factor=0.8']. Without any, the fixes of the findings.",
    ] = ()
    ranks: Ranks = None
    steps: Steps = None
    top: Top = 10


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """A prediction as data."""

    path: str
    identity: tuple[str, ...]
    answer: Annotated[str, "The recorded and the predicted step."]
    overview: Annotated[AnswerTable | None, "The predicted step with each fix or change and those before it."]
    tables: Annotated[tuple[AnswerTable, ...], "Changed work, the critical path, and the owner of idle time by rank."]
    cautions: Annotated[tuple[str, ...], "Limits of the prediction."]


def answer_what_if_tool(roots: Roots, asked: WhatIfArguments) -> tuple[str, WhatIfAnswer]:
    """Predict the step with fixes or changes; return the report as text and as data."""
    path = resolve_inside_roots(roots, asked.path)
    report = ask_what_if([path], asked.changes, make_agent_options(roots, asked.ranks, asked.steps, ()))
    text = str(render(report, "text", top=asked.top, width=120, verbose=True))
    sheets = [sheet for section in report.sections for sheet in section.sheets]
    answer = WhatIfAnswer(
        path=path,
        identity=report.identity,
        answer=report.answer,
        overview=None if report.overview is None else make_answer_table(report.overview, asked.top),
        tables=tuple(make_answer_table(sheet, asked.top) for sheet in sheets),
        cautions=limit_sentences(report.cautions),
    )
    return truncate_answer_text(text, "`tracekit whatif` prints every section."), answer
