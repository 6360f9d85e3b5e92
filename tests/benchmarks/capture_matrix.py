"""Whether capture does what verl's profiler does: every version, role, tool and mode, with the switch and without.

    python tests/benchmarks/capture_matrix.py --python VERL_PYTHON [--verl NAME=FOLDER…] [--overlay FOLDER] [CELL…]

VERL_PYTHON has torch, Ray and what verl imports; a FOLDER holds the package `verl` of a version, and `--overlay` a newer
`verl/utils/profiler` to be laid over the last one. Without folders it is VERL_PYTHON's own verl. Prints a table in
Markdown: a cell is `same`, or names its differences, each declared in `capture_differences.toml` with its reason. Exit
status 1: a difference that is not declared.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "support" / "verl_matrix.py"
DECLARED = Path(__file__).with_name("capture_differences.toml")
ASPECTS = ("error", "exit", "values", "servers", "files", "ranges", "cuda", "nvtx", "memory")


@dataclass(frozen=True)
class Reason:
    """Why cells differ: globs of version and cell, the aspects, and what holds all the same.

    `still` names how the two compare; `alike` are patterns and what to put in their place, after which they are equal.
    """

    key: str
    versions: str
    cells: str
    aspects: str
    says: str
    still: str = ""
    alike: tuple[tuple[str, str], ...] = ()

    def covers(self, version: str, cell: str, aspect: str, verl: Any, ours: Any) -> bool:
        """Whether it explains this difference."""
        return (
            any(fnmatch.fnmatch(version, one) for one in self.versions.split())
            and any(fnmatch.fnmatch(cell, one) for one in self.cells.split(", "))
            and aspect in self.aspects.split()
            and (not self.still or STILL[self.still](verl, ours))
            and (not self.alike or self._put(verl) == self._put(ours))
        )

    def _put(self, value: Any) -> Any:
        """A value with the patterns replaced in all its texts; without those that become empty, and in one order."""
        if isinstance(value, dict):
            named = sorted((self._put(key), self._put(one)) for key, one in value.items())
            return {key: one for key, one in named if key != ""}
        if isinstance(value, list):
            return sorted((one for one in map(self._put, value) if one != ""), key=str)
        if isinstance(value, str):
            for pattern, text in self.alike:
                value = re.sub(pattern, text, value)
        return value


STILL: dict[str, Callable[[Any, Any], bool]] = {
    "as many": lambda verl, ours: len(verl) == len(ours),
    "fewer": lambda verl, ours: 0 < len(ours) < len(verl),
    "none": lambda verl, ours: bool(verl) and not ours,
    "not run": lambda verl, ours: not verl or verl == {"names": {}, "open": 0} or ours is None,
}
"""How capture's outcome stands to verl's; `not run`: verl raised before there was one, or capture did not raise."""


def reasons() -> list[Reason]:
    """What is declared."""
    return [Reason(key, **row) for key, row in tomllib.loads(DECLARED.read_text()).items()]


def differences(version: str, cell: str, verl: Any, ours: Any, declared: list[Reason]) -> list[tuple[str, str | None]]:
    """(aspect, key of its reason) of all in which two outcomes of a cell differ; None for no reason."""
    found: list[tuple[str, str | None]] = []
    for aspect in ASPECTS:
        theirs, own = verl.get(aspect), ours.get(aspect)
        if theirs != own:
            why = (r.key for r in declared if r.covers(version, cell, aspect, theirs, own))
            found.append((aspect, next(why, None)))
    return found


def outcomes(python: Path, verl: Path | None, switched: bool, out: Path, cells: list[str], limit: float) -> Any:
    """What `verl_matrix.py` tells of a version, with the switch or without."""
    listener = _listener(out)
    paths = [str(verl)] if verl else []
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, str(ROOT), str(ROOT / "tests" / "support")]),
        "VERL_USE_EXTERNAL_MODULES": "capture.verl" if switched else "",
        "CUDA_VISIBLE_DEVICES": "",
        "VERL_KEEP_NVTX_INJECTION": "1",
        "RAY_ADDRESS": "local",
        **listener,
    }
    command = [python, PROGRAM, out / "profiles", *cells]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=limit, stdin=subprocess.DEVNULL
    )  # fmt: skip
    (out / "log").write_text(done.stderr)
    if done.returncode:
        raise SystemExit(f"{out.name}: {done.stderr[-3000:]}")
    told = json.loads(done.stdout.splitlines()[-1].replace(str(out), "OUT"))
    assert told["switched"] == switched, told["switched"]
    return told


def _listener(out: Path) -> dict[str, str]:
    """The variables that have NVTX heard; empty without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    out.mkdir(parents=True)
    if compiler is None:
        return {}
    library = out / "listener.so"
    source = ROOT / "tests" / "support" / "nvtx_listener.c"
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    return {"NVTX_INJECTION64_PATH": str(library), "NVTX_LISTENER_OUT": str(out / "heard")}


def compared(
    name: str, python: Path, verl: Path | None, out: Path, cells: list[str], limit: float = 900
) -> dict[str, Any]:
    """The outcomes of both runs of a version and their differences, by cell."""
    told = {
        switched: outcomes(python, verl, switched, out / f"{name}-{'capture' if switched else 'verl'}", cells, limit)
        for switched in (False, True)
    }  # fmt: skip
    declared = reasons()
    pairs = {cell: (told[False]["cells"][cell], told[True]["cells"][cell]) for cell in told[False]["cells"]}  # fmt: skip
    return {
        cell: {"verl": verl, "capture": ours, "differences": differences(name, cell, verl, ours, declared)}
        for cell, (verl, ours) in pairs.items()
    }  # fmt: skip


def table(told: dict[str, dict[str, Any]]) -> list[str]:
    """The lines of the table: a row a cell, a column a version."""
    cells = next(iter(told.values()))
    lines = ["| cell | " + " | ".join(told) + " |", "|---" * (1 + len(told)) + "|"]
    lines += [f"| {cell} | " + " | ".join(_words(told[name][cell]) for name in told) + " |" for cell in cells]  # fmt: skip
    return lines


def _words(row: dict[str, Any]) -> str:
    """What the table says of a cell: `same`, or which aspects differ for which reason."""
    if "absent" in row["verl"]:
        return "–"
    aspects: dict[str, list[str]] = {}
    for aspect, key in row["differences"]:
        aspects.setdefault(key or "**undeclared**", []).append(aspect)
    return "; ".join(f"{', '.join(named)}: {key}" for key, named in aspects.items()) or "same"


def installed(python: Path) -> str:
    """The version of verl that a Python has."""
    code = "from importlib.metadata import version; print(version('verl'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def overlaid(newest: Path, overlay: Path, out: Path) -> Path:
    """A copy of a version with other modules of its profiler, and its configuration without what those do not know."""
    shutil.copytree(newest / "verl", out / "verl", symlinks=True)
    for module in overlay.glob("*.py"):
        shutil.copy(module, out / "verl" / "utils" / "profiler" / module.name)
    known = (overlay / "config.py").read_text()
    for key in ("memory_snapshot_num_steps", "finish_hook_cmd", "relocate_results"):
        if key not in known:
            for path in (out / "verl" / "trainer" / "config").rglob("*.yaml"):
                lines = path.read_text().splitlines(keepends=True)
                path.write_text("".join(line for line in lines if f"{key}:" not in line))
    return out


def main() -> int:
    """Prints the table; the status says whether every difference is declared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--verl", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--overlay", type=Path)
    parser.add_argument("--out", type=Path, help="keep what was written and told.json here")
    parser.add_argument("cells", nargs="*")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        out = asked.out or Path(temporary)
        folders: dict[str, Path | None] = {
            name: Path(folder) for name, _, folder in (one.partition("=") for one in asked.verl)
        }
        if asked.overlay:
            newest = next(reversed(folders.values()))
            assert newest is not None
            folders["main"] = overlaid(newest, asked.overlay, out / "overlaid")
        told = {
            name: compared(name, asked.python, verl, out, asked.cells)
            for name, verl in (folders or {installed(asked.python): None}).items()
        }
    if asked.out:
        (asked.out / "told.json").write_text(json.dumps(told, indent=1))
    return _print(told)


def _print(told: dict[str, dict[str, Any]]) -> int:
    print("\n".join(table(told)))
    found = [(name, cell, *one) for name, cells in told.items() for cell, row in cells.items() for one in row["differences"]]  # fmt: skip
    used = {key for *_, key in found if key}
    ran = [row for cells in told.values() for row in cells.values() if "absent" not in row["verl"]]
    same = sum(not row["differences"] for row in ran)
    print(f"\n{len(ran)} cells: {same} same, {len(ran) - same} differ; {sum(not key for *_, key in found)} undeclared differences\n")  # fmt: skip
    for reason in reasons():
        if reason.key in used:
            print(f"- **{reason.key}**: {reason.says}")
    undeclared = [(name, cell, aspect) for name, cell, aspect, key in found if key is None]
    for name, cell, aspect in undeclared:
        row = told[name][cell]
        print(f"\n{name} {cell}: {aspect}\n  verl:    {json.dumps(row['verl'].get(aspect))}\n  capture: {json.dumps(row['capture'].get(aspect))}")  # fmt: skip
    return 1 if undeclared else 0


if __name__ == "__main__":
    sys.exit(main())
