"""Thresholds of rules. Those of one rule are in its record, those that several rules share in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources

from tracekit.model.records import dataclass
from tracekit.model.report import Severity


@dataclass(frozen=True, slots=True)
class Thresholds:
    """All thresholds, as `values["rule-id"]["name"]`."""

    values: Mapping[str, Mapping[str, float]]

    def __hash__(self) -> int:
        """Hash the rule names."""
        return hash(frozenset(self.values))

    def of(self, rule: str) -> Mapping[str, float]:
        """Get the thresholds of one rule."""
        return self.values[rule]

    def with_defaults(self, defaults: Thresholds) -> Thresholds:
        """Add the thresholds of rules that only `defaults` has."""
        return Thresholds({**defaults.values, **self.values})

    def only(self, rules: Collection[str]) -> Thresholds:
        """Select the thresholds of these rules."""
        return Thresholds({rule: limits for rule, limits in self.values.items() if rule in rules})

    def severity(self, cost_ratio: float | None) -> Severity:
        """Grade a finding by the share of the step that it would save."""
        scale = self.values["severity"]
        share = cost_ratio or 0.0
        if share >= scale["high"]:
            return "high"
        if share >= scale["medium"]:
            return "medium"
        return "low" if share >= scale["low"] else "info"


@cache
def load_shared_thresholds() -> Thresholds:
    """Load the thresholds that several rules share; `analyses.defaults` has all of them."""
    text = resources.files("tracekit.model").joinpath("thresholds.toml").read_text("utf-8")
    return Thresholds(tomllib.loads(text))
