"""Shell completion of names: rules, tables, metrics, columns, questions, recipes and output kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from tracekit.cli.topics import TopicKind

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_topics(*kinds: TopicKind) -> Completer:
    """Make a completer of the names of the first of these kinds that has a match."""

    def complete(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        from tracekit.cli import topics

        for kind in kinds:
            if items := match_names(topics.list_topic_names([kind]), typed):
                return items
        return []

    return complete


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
