"""`tracekit explain`: look up a rule, table, metric, column, command, word, schema or question; rules are first."""

from __future__ import annotations

import click

from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand
from tracekit.cli.topics import TopicKind, complete_topics, find_topic, get_page

_RULES_FIRST: tuple[TopicKind, ...] = ("rule", "metric", "table", "column", "command", "word", "schema", "question")


@click.command(name="explain", cls=GroupedCommand, short_help="Explain a rule, metric, table, command or word.")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_topics(*_RULES_FIRST))
@opt.add_results("page", is_moved=True)
@opt.verbose
def command(*, name: str | None, requested: opt.RequestedOutputs, verbose: bool) -> int:
    """Explain a rule: summary, cause, measurement, fixes and limits. Without NAME, list all rules.

    NAME is the id or number of a rule (straggler, R09), or the name of a metric, a table, a column, a command
    (noise), a word of the glossary (MFU), a JSON Schema, or a question that --only takes (card-holders).
    """
    del verbose
    from tracekit.analyses import rules
    from tracekit.cli import report_outputs as out
    from tracekit.cli.text_tables import encode_rows, format_text_columns

    targets = out.list_targets(requested)
    if name:
        topic = find_topic(name, _RULES_FIRST)
        out.write_results(targets, topic.write)
        return 0
    rows = [{"number": rule.number, "rule": rule.id, "finds": rule.title} for rule in rules.RULES]

    def make_output(target: out.OutputTarget) -> str | bytes:
        if target.format == "text":
            listed = [{"": rule.number, "rule": rule.id, "finds": rule.title} for rule in rules.RULES]
            return format_text_columns(listed, width=get_page(target).width) + "\n"
        return encode_rows(rows, target.format)

    out.write_results(targets, make_output)
    return 0
