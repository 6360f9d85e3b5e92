"""`tracekit schema`: print the JSON Schema of a kind of JSON output; also looks up any other name."""

from __future__ import annotations

import click

from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand
from tracekit.cli.topics import TopicKind, complete_topics, find_topic

_SCHEMAS_FIRST: tuple[TopicKind, ...] = ("schema", "table", "column", "metric", "rule", "command", "word")


@click.command(name="schema", cls=GroupedCommand, short_help="Print the JSON Schema of an output.")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_topics(*_SCHEMAS_FIRST))
@opt.add_results("schema", is_moved=True)
@opt.verbose
def command(*, name: str | None, requested: opt.RequestedOutputs, verbose: bool) -> int:
    """Print the JSON Schema (draft 2020-12) of a report, a comparison or other JSON. Without NAME, list them.

    As csv and md, list the fields of the schema. NAME may also be any other name that `tracekit explain`
    finds.
    """
    del verbose
    from tracekit.cli import report_outputs as out
    from tracekit.cli.json_contracts import CONTRACTS
    from tracekit.cli.text_tables import encode_rows
    from tracekit.render.schema import make_schema_urn

    targets = out.list_targets(requested)
    if name is not None:
        topic = find_topic(name, _SCHEMAS_FIRST)
        out.write_results(targets, topic.write)
        return 0
    rows = [{"schema": c.name, "$id": make_schema_urn(c.version), "written by": c.written_by} for c in CONTRACTS]
    out.write_results(targets, lambda target: encode_rows(rows, target.format, width=target.width))
    return 0
