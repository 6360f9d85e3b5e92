"""`tracekit explain`: what a rule measures, and what to do about it."""

from __future__ import annotations

import click

from tracekit.cli import terminal
from tracekit.cli.layout import columns


@click.command(name="explain", short_help="Explain a finding: what, why, what to try.")
@click.argument("rule", required=False, metavar="[ID|R-NUMBER]")
@terminal.verbose_option
def command(*, rule: str | None, verbose: bool) -> int:
    """Explain a finding: what is measured, how, why it matters, what to try and when it is wrong.

    Without a name, list all rules.
    """
    del verbose
    from tracekit.analyses import rules

    if rule:
        text = rules.page(rule)
    else:
        text = columns([{"": r.number, "rule": r.id, "finds": r.title} for r in rules.RULES])
    terminal.say(text.rstrip("\n") + "\n")
    return 0
