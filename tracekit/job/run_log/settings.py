"""Settings of a run by its log, and the changes that findings propose: present value, proposed value, and a bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from tracekit.model.recording.rl_settings import parse_profiled_steps
from tracekit.model.records import dataclass
from tracekit.model.trace import Measurements, derive_once
from tracekit.model.units import format_quantity


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its value as written, and the log that printed it or the file next to the log."""

    key: str
    value: str
    origin: str

    @property
    def number(self) -> float | None:
        """Value as a number; None for switches and words."""
        try:
            return float(self.value)
        except ValueError:
            return None

    @property
    def is_on(self) -> bool | None:
        """Value as a switch; None for numbers and other words."""
        return {"true": True, "false": False}.get(self.value.lower())


Proposal = Callable[[Setting], str | None]
"""Proposes another value for a setting; None where the present one needs no change."""


@derive_once
def map_run_settings(measured: Measurements) -> dict[tuple[str | None, str], dict[str, Setting]]:
    """Map each log (run, source) to its settings by key; those of other logs of its run complete them."""
    if not measured.has("run_settings"):
        return {}
    by_log: dict[tuple[str | None, str], dict[str, Setting]] = {}
    for row in measured.frame("run_settings").rows():
        setting = Setting(row["key"], row["value"], row["origin"])
        by_log.setdefault((row["run"], row["source"]), {})[setting.key] = setting
    return by_log


def find_log_settings(measured: Measurements, run: str | None, source: str) -> Mapping[str, Setting]:
    """Find the settings of a log: its own, then those of other logs of the same run."""
    by_log = map_run_settings(measured)
    found: dict[str, Setting] = dict(by_log.get((run, source), {}))
    for (of_run, _), settings in sorted(by_log.items(), key=lambda item: item[0][1]):
        if of_run == run:
            found = {**settings, **found}
    return found


def list_profiled_steps(settings: Mapping[str, Setting]) -> frozenset[int]:
    """List the numbers of the steps that a profiler was set to record."""
    return parse_profiled_steps({key: setting.value for key, setting in settings.items()})


def describe_proposals(
    settings: Mapping[str, Setting], proposals: Iterable[tuple[str, Proposal]], bound_s: float | None, what: str = ""
) -> str:
    """Describe the changes to known settings, for the end of an advice; empty where none is known or needs a change.

    `bound_s` is the most time that they save per step, `what` the assumption behind it.
    """
    known = ((settings[key], propose(settings[key])) for key, propose in proposals if key in settings)
    changes = [(setting, value) for setting, value in known if value is not None]
    if not changes:
        return ""
    origins = {setting.origin: setting.key for setting, _ in reversed(changes)}
    texts = ", or ".join(
        f"{setting.key}={value} (now {setting.value}{f' in {setting.origin}' if origins[setting.origin] == setting.key else ''})"
        for setting, value in changes
    )
    bound = "" if bound_s is None else f"saves at most {format_quantity(bound_s * 1e9, 'ns')} per step (bound)"
    effect = ", ".join(text for text in (bound, what) if text)
    return f"; try {texts}{f': {effect}' if effect else ''}"


def switch_to(value: str) -> Proposal:
    """Propose a switch or word, unless it is the present one."""
    return lambda setting: None if setting.value.lower() == value.lower() else value


MOST_FACTOR = 4.0
"""Largest factor of resources that is proposed at once.

A factor assumes that work scales with resources. The larger it is, the less likely that is: measure again after each.
"""


def multiply_by(factor: float) -> Proposal:
    """Propose a positive number multiplied and rounded: up where it grows, down (to 1 or more) where it shrinks."""

    def propose(setting: Setting) -> str | None:
        number = setting.number
        if number is None or number <= 0:
            return None
        changed = math.ceil(number * factor) if factor > 1 else max(math.floor(number * factor), 1)
        return None if changed == number else f"{changed}"

    return propose


def grow_to_fit(factor: float | None) -> Proposal:
    """Propose the largest integer up to a positive number times a factor; none without a factor."""

    def propose(setting: Setting) -> str | None:
        number = setting.number
        if factor is None or number is None or number <= 0:
            return None
        changed = math.floor(number * factor)
        return f"{changed}" if changed > number else None

    return propose


def raise_to(value: float) -> Proposal:
    """Propose a number, unless the present one reaches it."""

    def propose(setting: Setting) -> str | None:
        number = setting.number
        return None if number is None or number >= value else f"{value:g}"

    return propose


def lower_to(value: float) -> Proposal:
    """Propose a number, unless the present one is as low."""

    def propose(setting: Setting) -> str | None:
        number = setting.number
        return None if number is None or number <= value else f"{value:g}"

    return propose


def compute_needed_factor(cost_s: float, whole_s: float, limit: float) -> float:
    """Compute the factor by which a part has to shrink to become the share `limit` of the whole, which shrinks with it.

    >>> compute_needed_factor(10.0, 100.0, 0.05)
    2.111111111111111
    """
    return cost_s * (1 - limit) / (limit * (whole_s - cost_s)) if limit * (whole_s - cost_s) > 0 else math.inf


def describe_scaled_proposals(
    settings: Mapping[str, Setting], keys: Iterable[str], factor: float, cost_s: float, what: str
) -> str:
    """Describe known settings above their value times a factor, up to `MOST_FACTOR`; empty where none is known.

    The bound is the part of `cost_s` that the largest change saves if the cost falls with the setting.
    """
    factor = max(factor, 1.0)

    def propose(setting: Setting) -> str | None:
        number = setting.number
        if number is None or number <= 0:
            return None
        return f"{math.ceil(number * MOST_FACTOR) if factor >= MOST_FACTOR else math.floor(number * factor) + 1}"

    known = [key for key in keys if key in settings and propose(settings[key]) is not None]
    grown = [float(propose(settings[key]) or 0) / (settings[key].number or 1.0) for key in known]
    bound_s = cost_s * (1 - 1 / max(grown)) if grown else None
    return describe_proposals(settings, [(key, propose) for key in known], bound_s, what)
