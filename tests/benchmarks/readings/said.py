"""Run `tracekit analyze` as a command and take its first screen and its JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Said:
    """What `tracekit analyze` says of a profile: its report, empty where there is none, and its first screen."""

    report: dict[str, Any]
    screen: str

    @property
    def first_rule(self) -> str:
        """The rule of the issue that the screen lists first; empty where it lists none."""
        found = re.search(r"^ +1 +([a-z][a-z0-9-]+) ", self.screen, re.MULTILINE)
        return found[1] if found else ""

    @property
    def first_claim(self) -> str:
        """All text of the findings of that rule, the largest first."""
        findings = [
            finding
            for section in self.report.get("sections", ())
            for finding in section["findings"]
            if finding["rule"] == self.first_rule
        ]
        findings.sort(key=lambda finding: -(finding["cost_ns"] or 0))
        return " | ".join(finding["claim"] for finding in findings)

    @property
    def kinds(self) -> list[str]:
        """The codes of what kind of recording it is."""
        return [recording["kind"] for recording in self.report.get("recordings", ())]

    @property
    def commands(self) -> list[str]:
        """The commands that go with these kinds."""
        recordings = self.report.get("recordings", ())
        return [recording["command"] for recording in recordings if recording["command"]]

    @property
    def headline(self) -> dict[str, float]:
        """The figures of the first line by name."""
        return {metric["name"]: metric["value"] for metric in self.report["headline"]}

    @property
    def table(self) -> list[dict[str, Any]]:
        """The rows of the table on the first screen; empty where there is none."""
        overview = self.report.get("overview")
        return named_rows(overview) if overview else []

    def sheet(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table of the report."""
        for section in self.report["sections"]:
            for table in section["sheets"]:
                if table["name"] == name:
                    return named_rows(table)
        return []


def named_rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of a table as dictionaries."""
    names = [heading["name"] for heading in table["headings"]]
    return [dict(zip(names, row, strict=True)) for row in table["rows"]]


def analyze(path: Path) -> Said:
    """Run the command on a path."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "tracekit", "analyze", "--no-cache", str(path), "-o", str(file)]
        environment = os.environ | {"COLUMNS": "200"}
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if ended.returncode > 2 or "internal error" in ended.stderr:
            raise subprocess.CalledProcessError(ended.returncode, command, ended.stdout, ended.stderr)
        report = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return Said(report, without_path(ended.stdout + ended.stderr, path))


def without_path(screen: str, path: Path) -> str:
    """Take the path out of a screen: its folders are named after what is to be found."""
    return screen.replace(str(path), "PATH")
