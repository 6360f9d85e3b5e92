"""The MCP tools: name, description, argument and answer types, and function of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tracekit.agents import bounds
from tracekit.agents.arguments import make_input_schema, parse_tool_arguments
from tracekit.agents.comparing import CompareAnswer, CompareArguments, answer_compare
from tracekit.agents.listing import PathsAnswer, PathsArguments, answer_paths
from tracekit.agents.pages import ExplainAnswer, ExplainArguments, answer_explain
from tracekit.agents.predicting import WhatIfAnswer, WhatIfArguments, answer_what_if_tool
from tracekit.agents.reports import (
    AnalyzeAnswer,
    AnalyzeArguments,
    FindingsAnswer,
    FindingsArguments,
    answer_analyze,
    answer_findings,
)
from tracekit.agents.roots import Roots
from tracekit.agents.statements import LIMIT_S, SqlAnswer, SqlArguments, answer_sql
from tracekit.agents.table_rows import TablesAnswer, TablesArguments, answer_tables
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.text.escape import make_visible
from tracekit.model.text.labels import did_you_mean
from tracekit.render.json import write_plain_json
from tracekit.render.schema import make_schema


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool; `function` takes the roots and its arguments, and returns text and data."""

    name: str
    title: str
    description: str
    arguments: type
    answer: type
    function: Callable[[Roots, Any], tuple[str, Any]]

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of its arguments."""
        return make_input_schema(self.arguments)

    @property
    def output_schema(self) -> dict[str, Any]:
        """JSON Schema of its data."""
        return make_schema(self.answer)


_BOUNDED = f"Answers contain at most {bounds.MAX_TEXT_CHARACTERS:,} characters of text and say how to have the rest."

TOOLS: tuple[Tool, ...] = (
    Tool(
        "paths",
        "Files in the roots",
        "Lists the files and directories below a directory that may be read, with sizes in bytes. Start here where no path"
        f" is known: '.' lists the roots. At most {bounds.MAX_LIST_ENTRIES} entries.",
        PathsArguments,
        PathsAnswer,
        answer_paths,
    ),
    Tool(
        "analyze",
        "Where the time or the memory of a run went",
        "Reads the profiles below a path (torch Kineto traces, Nsight Systems, memory snapshots of torch) and gives the first screen: the time of a training step (nanoseconds in the data, milliseconds in the text), GPU activity as shares of it, where the step goes by stage, the top issues, and what could not be measured. Large profiles take minutes the first time; unchanged ones are answered at once afterwards. "
        + _BOUNDED,
        AnalyzeArguments,
        AnalyzeAnswer,
        answer_analyze,
    ),
    Tool(
        "findings",
        "All findings in full",
        "Gives the findings on a path in full: claim, the numbers behind it, where to look (rank, step, stage, name), what to try, and caveats. `saving` is the step that a replay of the run predicts with its fix, in nanoseconds: alone, on top of the fixes ranked above, and after all others. `cost_ns` is the time that the finding is about, not a saving.",
        FindingsArguments,
        FindingsAnswer,
        answer_findings,
    ),
    Tool(
        "explain",
        "The page of a rule",
        "Gives the page of a rule that findings come from: summary, cause, how it is measured, what to try and"
        " when it is wrong. Without a rule, lists all rules.",
        ExplainArguments,
        ExplainAnswer,
        answer_explain,
    ),
    Tool(
        "tables",
        "The numbers behind a report",
        "Lists the tables of the report on a path, or gives rows of one, whole columns or a few, all rows or those with"
        " given values. Values are raw: the unit is the end of a column's name (_ns, _bytes, _ratio of 0 to 1) and stands"
        f" with each column; null is unknown, never zero. At most {bounds.MAX_ANSWER_ROWS} rows and {bounds.MAX_ROW_CHARACTERS:,}"
        " characters of them an answer; `next_offset` asks for the rest.",
        TablesArguments,
        TablesAnswer,
        answer_tables,
    ),
    Tool(
        "sql",
        "SQL over the recorded and measured tables",
        "Runs one statement in DuckDB's SQL over all tables of the profiles on a path: what was recorded (device_ops,"
        " host_ops …) and what was measured, each with run, role, rank, step. SHOW TABLES and DESCRIBE tell what they"
        " mean, with units. It reads these tables and nothing else: no file, no network, no writing. Without a statement,"
        f" lists recipes: statements with a name. At most {bounds.MAX_ANSWER_ROWS} rows, and {LIMIT_S:.0f} s once the tables are"
        " read. Needs the package duckdb.",
        SqlArguments,
        SqlAnswer,
        answer_sql,
    ),
    Tool(
        "what_if",
        "The step that fixes would give",
        "Replays one run as a dependency graph and predicts its step with the fixes of the findings, one after the other, or with"
        " given changes; also its critical path, and the owner of the time without device work by rank. A change is a verb,"
        " its target and fields: 'scale device rank=2 factor=0.8', 'unwait by=aten::item', 'graph stage=gen'. Verbs: scale,"
        " set, remove, unwait, unblock, hide, accumulate, fuse, equalise, prefetch, graph. " + _BOUNDED,
        WhatIfArguments,
        WhatIfAnswer,
        answer_what_if_tool,
    ),
    Tool(
        "compare",
        "Whether a change helped",
        "Compares the runs before a change with those after it: a verdict (improvement, regression, no change,"
        " inconclusive, not comparable), the step before and after in nanoseconds, the ratio before over after (above 1 is"
        " faster) with its interval, and where the change came from. One run a side is rarely enough for a verdict:"
        " `needed` says what would be.",
        CompareArguments,
        CompareAnswer,
        answer_compare,
    ),
)
"""All tools, in the order of a typical session."""


def call_tool(roots: Roots, name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Call a tool with a client's arguments; return text and data. Raises `TracekitError` for invalid arguments."""
    tools = {tool.name: tool for tool in TOOLS}
    if name not in tools:
        near = did_you_mean(name, tools)
        raise TracekitError(f"no tool {name!r}{near}", f"there are: {', '.join(tools)}")
    tool = tools[name]
    text, answer = tool.function(roots, parse_tool_arguments(tool.arguments, arguments))
    data: dict[str, Any] = _make_data_visible(json.loads(write_plain_json(answer, "answer")))
    # Undecodable bytes of file names cannot be sent.
    data = json.loads(replace_undecodable(json.dumps(data, ensure_ascii=False)))
    return replace_undecodable(text), data


def _make_data_visible(value: Any) -> Any:
    """Make control characters visible in every text of the data."""
    if isinstance(value, str):
        return make_visible(value)
    if isinstance(value, dict):
        return {make_visible(name): _make_data_visible(value[name]) for name in value}
    return [_make_data_visible(item) for item in value] if isinstance(value, list) else value


def replace_undecodable(text: str) -> str:
    """Replace undecodable bytes by `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")
