"""`tracekit explain`: print the page of a rule: what it measures, and what to do."""

from __future__ import annotations

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.text_tables import format_text_columns


@click.command(name="explain", short_help="Explain a finding: what, why, what to try.")
@click.argument("rule", required=False, metavar="[ID|R-NUMBER]")
@opt.verbose
def command(*, rule: str | None, verbose: bool) -> int:
    """Explain a finding: what is measured, how, why it matters, what to try and when it is wrong.

    Without a name, list all rules.
    """
    del verbose
    from tracekit.analyses import rules

    if rule:
        text = rules.read_rule_page(rule)
    else:
        table = [{"": entry.number, "rule": entry.id, "finds": entry.title} for entry in rules.RULES]
        text = format_text_columns(table)
    terminal.write_output(text.rstrip("\n") + "\n")
    return 0
