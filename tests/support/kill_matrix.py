"""Commands to kill at moments spread over their runs, and what must hold afterwards."""

import contextlib
import gzip
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from killing import Program
from nsys_programs import REPORT

import tracekit

ROOT = Path(tracekit.__file__).parents[1]
EXAMPLE = ROOT / "examples" / "simulated_gpu" / "outputs" / "profile"
TRACEKIT = [sys.executable, "-m", "tracekit"]

MOMENTS = 12
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}

LEFT = ("partial-", ".tracekit-", "tracekit-")
"""How names of temporary files begin."""

HEAVY = (
    "SELECT sum(hash(a.range * b.range) % 7) AS total, count(d.ts_ns) AS ops"
    " FROM range({rows}) a, range(1000) b LEFT JOIN device_ops d ON d.ts_ns = b.range"
)
"""A statement that takes seconds once its tables are read."""

SESSION = "session_2026-11-20_10-00-00_000001_11"


@dataclass
class Case:
    """A command, what it is given, and the files that it writes below its folder."""

    arguments: list
    outputs: tuple = ()
    given: bytes | None = None
    until: object = None
    """Waits until an undisturbed run has done its work; None: until it has ended."""
    program: tuple = ("-m", "tracekit")
    unhandled: str | None = None
    """A file that exists while SIGTERM may have no handler of ours; nothing may be left all the same."""
    environment: dict = field(default_factory=dict)
    python: str = sys.executable

    def start(self, folder):
        """Start the command with a cache and a folder for temporary files of its own."""
        for name in ("cache", "out"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if not (folder / "tmp").exists():  # elsewhere: paths of sockets have to be short
            (folder / "tmp").symlink_to(tempfile.mkdtemp(prefix="kill-"))
        variables = {
            "PYTHONPATH": str(ROOT),
            "TRACEKIT_NO_CACHE": None,
            "TRACEKIT_CACHE": str(folder / "cache"),
            "TMPDIR": str((folder / "tmp").readlink()),
            **self.environment,
        }
        arguments = [self.python, *self.program, *self.arguments]
        return Program(arguments, folder, given=self.given, environment=variables)

    def measure(self, folder):
        """(seconds that an undisturbed run takes, what it prints, what its files hold)."""
        began = time.monotonic()
        program = self.start(folder)
        output = b""
        if self.until is not None:
            output = self.until(program)
        else:
            program.process.wait(300)
        seconds = time.monotonic() - began
        ending = program.finish()
        assert ending.status == 0, ending.errors.decode()
        return seconds, output + ending.output, self.files(folder)

    def is_unhandled(self, folder):
        """Whether SIGTERM may have no handler of ours now."""
        return self.unhandled is not None and (folder / self.unhandled).exists()

    def files(self, folder):
        """The bytes of each output that is there, by its name."""
        paths = (folder / name for name in self.outputs)
        return {path.name: path.read_bytes() for path in paths if path.is_file()}


def left_over(folder):
    """Temporary files and folders that a command left below its folder."""
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.name.startswith(LEFT)]
    return sorted({*found, *(f"tmp/{path.name}" for path in (folder / "tmp").iterdir())})


def problems_of(case, folder, number, after_s, reference):
    """What is wrong once `case` got a signal after so many seconds: nothing may be."""
    _, output, files = reference
    program = case.start(folder)
    with contextlib.suppress(Exception):
        program.process.wait(after_s)
    is_unhandled = case.is_unhandled(folder)
    is_early = not program.catches(signal.SIGTERM)  # Python is still importing the command
    program.signal(number, whole_group=number == signal.SIGINT)
    is_unhandled = number == signal.SIGTERM and (is_unhandled or case.is_unhandled(folder))
    ending = program.ending()
    problems = [f"process left: {command}" for command in ending.survivors.values()]
    if not ending.is_closed:
        problems.append("a pipe is left open")
    expected = {STATUS[number], *([0] if case.until is None else [])}
    if is_early or is_unhandled:
        expected.add(-number)
    if case.files(folder) == files and ending.output == output:
        expected.add(-number)  # the work was done: Python itself was ending
    if ending.status not in expected:
        problems.append(f"status {ending.status}, not {expected}: {ending.errors.decode()[-500:]}")
    if case.until is None and not output.startswith(ending.output):
        problems.append(f"torn output: {ending.output[-200:]!r}")
    if case.until is not None and number != signal.SIGKILL:
        problems += _torn_lines(ending.output)
    for name, data in case.files(folder).items():
        if data != files[name]:
            problems.append(f"torn file: {name}")
    # A server kills its worker, as for a request that is cancelled.
    if number == signal.SIGKILL or case.until is not None:
        case.measure(folder)
        if case.files(folder) != files:
            problems.append("the next run writes something else")
    problems += [f"left over: {name}" for name in left_over(folder)]
    shutil.rmtree((folder / "tmp").readlink(), ignore_errors=True)
    return problems


def _torn_lines(output):
    """What is wrong with lines of JSON."""
    lines = output.split(b"\n")
    problems = [f"torn line: {lines[-1][:100]!r}"] if lines[-1] else []
    for line in lines[:-1]:
        try:
            json.loads(line)
        except ValueError:
            problems.append(f"no JSON: {line[:100]!r}")
    return problems


def make_profile(folder):
    """Traces of several ranks, large enough that workers read them."""
    folder.mkdir(parents=True)
    for path in sorted(EXAMPLE.glob("*.json.gz")):
        text = gzip.decompress(path.read_bytes())
        (folder / path.name.removesuffix(".gz")).write_bytes(text + b" " * 2_000_000)


def make_reports(folder, size_bytes):
    """Reports of one Ray session that take a while to copy."""
    folder = folder / SESSION / "logs" / "nsight"
    folder.mkdir(parents=True)
    names = [f"worker_process_{number}.nsys-rep" for number in (1, 2, 3)]
    for name in names:
        (folder / name).write_bytes(REPORT + bytes(size_bytes))
    return tuple(f"out/{SESSION}/{name}" for name in names)


def mcp_lines(profile, statement):
    """What a client writes to have a statement and an analysis answered."""
    client = {"name": "by-hand", "version": "0"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    asked = {"path": profile, "statement": statement}
    messages = [
        {"id": 0, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "tools/call", "params": {"name": "sql", "arguments": asked}},
        {"id": 2, "method": "tools/call", "params": {"name": "analyze", "arguments": {"path": profile}}},
    ]
    return b"".join(json.dumps({"jsonrpc": "2.0", **m}).encode() + b"\n" for m in messages)


def until_answered(program):
    """The lines of a server up to the answers with the numbers 1 and 2."""
    lines, waiting = [], {1, 2}
    while waiting:
        line = program.process.stdout.readline()
        assert line, "the server ended"
        lines.append(line)
        waiting.discard(json.loads(line).get("id"))
    return b"".join(lines)
