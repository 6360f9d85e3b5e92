"""Help pages: options in groups with rare ones last, and commands in groups."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

OPTION_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Output": ("files", "format_", "as_json", "save", "exports", "plots", "top", "limit"),
    "Selection": ("ranks", "steps", "stages", "exclude"),
    "Statistics": ("drop_first", "min_effect", "level", "paired", "noise"),
    "Gate": ("fail_on", "config", "on_inconclusive", "allow_untested", "isolated"),
    "General": ("strict", "quiet", "verbose", "--help"),
    "Less common": (
        "sample",
        "questions",
        "skip",
        "question_files",
        "base_steps",
        "opt_steps",
        "assume_independent_steps",
        "force",
        "both_tokens",
        "both_samples",
        "both_images",
        "tokens",
        "samples",
        "images",
        "device_memory",
        "gpu_hour_price",
        "memory",
        "python",
        "recorded_clocks",
        "jobs",
        "cache",
        "reads_config",
        "engine",
        "ray_address",
        "on_every_node",
    ),
}
"""Names of parameters by the title of their group; the others come first, as `Options`. `--help` is known by its flag."""

_RANGE = re.compile(r"\s*\[[\d.<=]*x[\d.<>=]*\]$|; [\d.<=]*x[\d.<>=]*(?=\]$)")
"""The range of a number, which the error message gives."""


class GroupedCommand(click.Command):
    """A command whose help lists options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each group, as far as the command has them."""
        title_of = {name: title for title, names in OPTION_GROUPS.items() for name in names}
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *OPTION_GROUPS)}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                flags, text = record
                name = "--help" if "--help" in option.opts else option.name
                groups[title_of.get(name or "", "Options")].append((flags, _RANGE.sub("", text)))
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
