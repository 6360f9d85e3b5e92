"""Colors of the names of stages in a terminal: numbered by order of appearance, with the hues that stages have on the page."""

from __future__ import annotations

from collections.abc import Iterable

STAGE_INKS = (98, 166, 30, 132, 64, 33, 136, 128, 28, 131, 69, 100)
"""The colors of the 256 of a terminal that are nearest to the hues of the page and readable on light and dark ground."""


def assign_stage_inks(stages: Iterable[str]) -> dict[str, str]:
    """Assign a style to each stage, in order of appearance; different ones for up to 12 stages."""
    return {name: f"color({STAGE_INKS[number % len(STAGE_INKS)]})" for number, name in enumerate(dict.fromkeys(stages))}
