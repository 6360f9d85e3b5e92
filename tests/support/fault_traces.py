"""What a fault's program left: how it ended, what it computed, and the ranges of its traces."""

import gzip
import json
import subprocess
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import verl_python

PROGRAM = Path(__file__).with_name("fault_programs.py")


@dataclass(frozen=True)
class Left:
    """`value` is the JSON line that the program printed last, None for none; `traces` hold (name, start, length), us."""

    exit: int | str
    value: object
    traces: list[list[tuple[str, float, float]]]
    open_manifests: int
    stderr: str

    def counted(self):
        """How often each range is in each trace, of the traces that have any."""
        counts = [dict(sorted(Counter(name for name, *_ in trace).items())) for trace in self.traces]
        return sorted(counts, key=str)


def left_by(who, name, folder, *, python=None, timeout=120, paths=()):
    """What a program left that was run under a profiler: `nobody`, `verl` or `capture`."""
    environment = verl_python.environment()
    environment["PYTHONPATH"] = ":".join([*map(str, paths), environment["PYTHONPATH"]])
    command = [str(python or verl_python.PYTHON), PROGRAM, who, name, folder]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Left("hangs", None, [], 0, "")
    return Left(done.returncode, _last(done.stdout), _traces(folder), _open(folder), done.stderr)


def _last(printed):
    for line in reversed(printed.splitlines()):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return None


def _traces(folder):
    """The stages' ranges of every trace below a folder, a trace that cannot be read has one called `unreadable`."""
    return [_ranges(path) for path in sorted(folder.rglob("*.gz"))]


def _ranges(path):
    try:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    except (OSError, ValueError, EOFError, zlib.error):
        return [("unreadable", 0.0, 0.0)]
    spans = (e for e in events if e.get("cat") == "user_annotation" and e.get("ph") == "X")
    return [(e["name"], e["ts"], e["dur"]) for e in spans if not e["name"].startswith("PyTorch Profiler")]  # fmt: skip


def _open(folder):
    told = (json.loads(path.read_text()) for path in folder.rglob("capture_*.manifest"))
    return sum(one["status"] == "open" for one in told)
