"""Shell completion of names: metrics, questions, recipes and output kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_names(list_names: Callable[[], Iterable[str]]) -> Completer:
    """Make a completer of the names that a function lists when they are needed."""

    def complete(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        return match_names(list_names(), typed)

    return complete


def complete_exports(kinds: Sequence[str]) -> Completer:
    """Make a completer of `KIND=PATH`: the kinds, and after `=` the paths."""

    def complete(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        if "=" in typed:
            return [CompletionItem(typed.partition("=")[2], type="file")]
        return match_names([f"{kind}=" for kind in kinds], typed)

    return complete


def match_names(names: Iterable[str], typed: str) -> list[CompletionItem]:
    """Match the names that begin with the typed text, ignoring case."""
    return [CompletionItem(name) for name in names if name.lower().startswith(typed.lower())]


def list_fail_on_words() -> list[str]:
    """List the words and the metrics of `--fail-on`."""
    from tracekit.compare.gate_rules import NEW_OOM_RULE, RULE_METRICS

    return ["regression", NEW_OOM_RULE, *(f"{name}>" for name in RULE_METRICS)]


def list_question_ids() -> list[str]:
    """List the ids of all questions."""
    from tracekit.analyses import ANALYSES

    return [analysis.id for analysis in ANALYSES]


def list_recipe_names() -> Iterable[str]:
    """List the recipes of `tracekit sql`."""
    from tracekit.sql import recipes

    return recipes.list_recipes()
