"""How much work a step holds, as told on the command line: tokens, samples or images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

F = Callable[..., Any]


def options(command: F) -> F:
    """The command with the counts of every step of one profile: `tokens`, `samples`, `images`."""
    return _options(command, "N", "", click.FloatRange(min=0, min_open=True, max=1e15))


def options_of_two(command: F) -> F:
    """The command with the counts of both sides, as texts: one number, or before and after."""
    return _options(command, "N[,N]", ", or before,after", None)


def told(tokens: float | None, samples: float | None, images: float | None) -> Mapping[str, float]:
    """The counts that were given, by name."""
    every = {"tokens": tokens, "samples": samples, "images": images}
    return {name: count for name, count in every.items() if count is not None}


def _options(command: F, metavar: str, sides: str, type_: click.FloatRange | None) -> F:
    helps = {
        "tokens": f"Tokens of every step{sides}: adds time per token, and tokens a second.",
        "samples": "The same of samples.",
        "images": "The same of images.",
    }
    for name in reversed(helps):
        command = click.option(f"--{name}", type=type_, metavar=metavar, help=helps[name])(command)
    return command
