"""The thresholds of rules: those of one question stand in its record, those that several share in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources

from tracekit.model.records import dataclass
from tracekit.model.report import Severity


@dataclass(frozen=True, slots=True)
class Thresholds:
    """`values["rule-id"]["name"]` of every threshold."""

    values: Mapping[str, Mapping[str, float]]

    def __hash__(self) -> int:
        """That of the rules that they are of."""
        return hash(frozenset(self.values))

    def of(self, rule: str) -> Mapping[str, float]:
        """The thresholds of one rule."""
        return self.values[rule]

    def with_defaults(self, defaults: Thresholds) -> Thresholds:
        """These, and of rules that they lack those of `defaults`."""
        return Thresholds({**defaults.values, **self.values})

    def only(self, rules: Collection[str]) -> Thresholds:
        """Those of these rules alone."""
        return Thresholds({rule: limits for rule, limits in self.values.items() if rule in rules})

    def severity(self, recoverable_ratio: float | None) -> Severity:
        """How much a finding matters by the share of the step that it would give back."""
        scale = self.values["severity"]
        share = recoverable_ratio or 0.0
        if share >= scale["high"]:
            return "high"
        if share >= scale["medium"]:
            return "medium"
        return "low" if share >= scale["low"] else "info"


@cache
def shared() -> Thresholds:
    """The thresholds that are of no question alone, as tracekit ships them; `analyses.defaults` gives all."""
    text = resources.files("tracekit.model").joinpath("thresholds.toml").read_text("utf-8")
    return Thresholds(tomllib.loads(text))
