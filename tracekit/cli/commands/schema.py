"""`tracekit schema`: print the JSON Schema of a kind of JSON output."""

from __future__ import annotations

import json

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.text_tables import format_text_columns
from tracekit.model.errors import TracekitError
from tracekit.model.text.labels import did_you_mean


@click.command(name="schema", short_help="Print the JSON Schema of what is written as JSON.")
@click.argument("name", required=False, metavar="[NAME]")
@opt.verbose
def command(*, name: str | None, verbose: bool) -> int:
    """Print the JSON Schema (draft 2020-12) of a report, a comparison or other JSON. Without NAME, list them."""
    del verbose
    from tracekit.cli.json_contracts import CONTRACTS
    from tracekit.render.schema import make_schema_document, make_schema_urn

    if name is None:
        rows = [{"schema": c.name, "$id": make_schema_urn(c.version), "written by": c.written_by} for c in CONTRACTS]
        terminal.write_output(format_text_columns(rows) + "\n")
        return 0
    kinds = {contract.name: contract for contract in CONTRACTS}
    if name not in kinds:
        near = did_you_mean(name, kinds)
        raise TracekitError(f"no schema {name!r}{near}", f"there are: {', '.join(kinds)}")
    schema = make_schema_document(kinds[name].kind, kinds[name].version)
    terminal.write_output((json.dumps(schema, indent=1, ensure_ascii=False) + "\n").encode("utf-8"))
    return 0
