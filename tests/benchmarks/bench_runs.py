"""The runs of a benchmark: which candidate on which trace when, and what each of them took."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import Any

import make_traces
import peers

HERE = Path(__file__).resolve().parent

WHOLE_PROCESS_MB = 15
MANY_FILES, MANY_FILES_MB = 8, 200
MANY_FILES_INPUT = f"ranks{MANY_FILES}x{MANY_FILES_MB}"
QUESTIONS_OF = ("B", 1000)
TIMEOUT_S = 900
KIB_PER_MB = 1e6 / 1024
"""Linux tells the peak of a process in KiB; sizes of files are told in MB."""

HTA_BACKENDS = ("json", "ijson", "ijson_batched", "ijson_batch_and_compress")
HTA_DEFAULT, HTA_USUAL_BEST = "hta-json", "hta-ijson_batch_and_compress"
PEERS = {"zlib", "simdjson", "perfetto", "orjson", "ranks-hta"} | {f"hta-{name}" for name in HTA_BACKENDS}

Command = list[str | Path]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one candidate: what it printed, and what its whole process took."""

    candidate: str
    input: str
    round: int
    figures: dict[str, Any]
    error: str = ""


@dataclass(slots=True)
class Bench:
    """All runs so far; `only` names the candidates to measure, all if it is empty."""

    only: tuple[str, ...] = ()
    runs: list[Run] = field(default_factory=list)

    def wants(self, candidate: str) -> bool:
        """Whether a candidate is to be measured at all."""
        as_peer = "peers" in self.only and candidate in PEERS
        return not self.only or candidate in self.only or as_peer

    def values(self, candidate: str, trace: str, figure: str) -> list[float]:
        """A figure of every run of a candidate on an input that ended well."""
        found = [run for run in self.runs if (run.candidate, run.input) == (candidate, trace)]
        return [run.figures[figure] for run in found if figure in run.figures]

    def best(self, candidate: str, trace: str, figure: str = "seconds") -> float | None:
        """The smallest value of a figure, None if there is none."""
        return min(self.values(candidate, trace, figure), default=None)

    def add(self, candidate: str, trace: str, round_number: int, command: Command) -> None:
        """Run a candidate once and say on standard error how it went."""
        figures, error = figures_of(command)
        self.runs.append(Run(candidate, trace, round_number, figures, error))
        seconds = figures.get("seconds", figures.get("process_seconds", 0))
        told = error or f"{seconds:9.3f} s  {figures.get('peak_mb_net_of_imports', 0):7.0f} MB"
        print(f"round {round_number + 1}  {trace:10} {candidate:29} {told}", file=sys.stderr)


def command_of(candidate: str, plain: Path) -> Command:
    """The command of a candidate on a trace: `plain`, or the `.gz` beside it."""
    packed = plain.with_name(plain.name + ".gz")
    ours: Command = [sys.executable, HERE / "peer_tracekit.py"]
    pure: Command = ["env", "TRACEKIT_PURE=1", *ours]
    if candidate.startswith("hta-"):
        return [peers.set_up("hta"), HERE / "peer_hta.py", candidate.removeprefix("hta-"), packed]
    commands: dict[str, Callable[[], Command]] = {
        "load": lambda: [*ours, "load", packed],
        "load-pure": lambda: [*pure, "load", packed],
        "scan-gz": lambda: [*ours, "scan", packed],
        "scan-raw": lambda: [*ours, "scan", plain],
        "scan-pure": lambda: [*pure, "scan", packed],
        "zlib": lambda: [sys.executable, HERE / "peer_zlib.py", packed],
        "orjson": lambda: [peers.set_up("orjson"), HERE / "peer_orjson.py", packed],
        "simdjson": lambda: [peers.set_up("simdjson"), plain],
        "perfetto": lambda: ["node", HERE / "peer_perfetto.mjs", _perfetto_folder(), packed],
    }
    return commands[candidate]()


def _perfetto_folder() -> Path:
    """The folder with Perfetto's engine."""
    return peers.set_up("perfetto").parent


def many_files_commands(folder: Path) -> dict[str, Command]:
    """Each candidate on a folder of many files."""
    files = sorted(folder.iterdir())
    ours: Command = [sys.executable, HERE / "peer_tracekit.py", "ranks", *files]
    cli = Path(sys.executable).with_name("tracekit")
    return {
        "ranks-1": [*ours, "--jobs", "1"],
        "ranks-2": [*ours, "--jobs", "2"],
        "analyze-1": [cli, "analyze", folder, "-j", "1"],
        "analyze-2": [cli, "analyze", folder, "-j", "2"],
        "ranks-hta": [peers.set_up("hta"), HERE / "peer_hta.py", "json", *files],
    }


def children_cpu() -> float:
    """CPU seconds of all runs so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def figures_of(command: Command) -> tuple[dict[str, Any], str]:
    """(what a run printed as its last line, the seconds and the peak of its process, its error).

    The CPU seconds are those of all processes that it started and waited for, the peak is that of the largest, though
    never less than what this process holds, which each begins with.
    """
    start = time.perf_counter()
    with TemporaryFile("w+") as said, TemporaryFile("w+") as complained:
        try:
            process = subprocess.Popen(list(map(str, command)), stdout=said, stderr=complained)
        except OSError as error:
            return {}, str(error)
        limit = Timer(TIMEOUT_S, process.kill)
        limit.start()
        _, status, usage = os.wait4(process.pid, 0)
        limit.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        outputs = []
        for file in (said, complained):
            file.seek(0)
            outputs.append(file.read().splitlines())
    lines, complaints = outputs
    if process.returncode:
        return {}, (complaints or [f"status {process.returncode}"])[-1]
    printed = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    took = {
        "process_seconds": round(seconds, 4),
        "process_cpu": round(usage.ru_utime + usage.ru_stime, 4),
        "process_peak_mb": round(usage.ru_maxrss / KIB_PER_MB, 1),
    }
    return printed | took, ""


def take_turns(slow: list[str], quick: list[str]) -> Iterator[str]:
    """Every slow candidate once, and all the quick ones before and after each of them."""
    yield from quick
    for candidate in slow:
        yield candidate
        yield from quick


def best_backend(bench: Bench, trace: str) -> str:
    """The candidate that is HTA with its fastest backend on a trace, the usual one if unknown.

    By CPU time, which for one thread is its time on a quiet machine: a minute is never quite quiet.
    """
    names = [f"hta-{name}" for name in HTA_BACKENDS]
    times = {name: cpu for name in names if (cpu := bench.best(name, trace, "cpu")) is not None}
    return min(times, key=lambda name: times[name]) if times else HTA_USUAL_BEST


def candidates_of(bench: Bench, letter: str, size_mb: int, round_number: int) -> tuple[list[str], list[str]]:
    """(slow, quick) candidates on a trace in a round."""
    if size_mb == WHOLE_PROCESS_MB:
        return [HTA_DEFAULT, HTA_USUAL_BEST], ["load"]
    slow = ["perfetto"]
    if size_mb < 1000:
        slow += [HTA_DEFAULT, HTA_USUAL_BEST, "orjson", "load-pure", "scan-pure"]
        if round_number == 0:  # once, to know the best
            slow += [f"hta-{name}" for name in HTA_BACKENDS if f"hta-{name}" not in slow]
    elif round_number == 0:  # a minute each
        slow += [HTA_DEFAULT, "orjson"]
        best = best_backend(bench, f"{letter}200")
        slow += [best if best != HTA_DEFAULT else HTA_USUAL_BEST]
    return slow, ["load", "scan-gz", "zlib", "scan-raw", "simdjson"]


def measure_traces(bench: Bench, sizes: list[int], rounds: int) -> None:
    """Run every candidate on every trace, round by round."""
    for round_number in range(rounds):
        for size_mb in sizes:
            for letter in make_traces.SOURCES:
                groups = candidates_of(bench, letter, size_mb, round_number)
                slow, quick = ([name for name in group if bench.wants(name)] for group in groups)
                if not (slow or quick):
                    continue
                plain = make_traces.build_trace(letter, size_mb)
                for candidate in take_turns(slow, quick):
                    command = command_of(candidate, plain)
                    bench.add(candidate, plain.stem, round_number, command)


def measure_questions(bench: Bench) -> None:
    """Ask every question of one trace and read it alone; the script repeats both itself."""
    if bench.wants("questions"):
        plain = make_traces.build_trace(*QUESTIONS_OF)
        packed = plain.with_name(plain.name + ".gz")
        command: Command = [sys.executable, HERE / "all_questions.py", packed]
        bench.add("questions", plain.stem, 0, command)


def measure_many_files(bench: Bench, rounds: int) -> None:
    """Run many files on one core and on two, and HTA on all cores once."""
    names = ("ranks-1", "ranks-2", "analyze-1", "analyze-2", "ranks-hta")
    if not any(map(bench.wants, names)):
        return
    folder = make_traces.build_ranks(MANY_FILES, MANY_FILES_MB)
    for round_number in range(rounds):
        for candidate, command in many_files_commands(folder).items():
            if bench.wants(candidate) and (candidate != "ranks-hta" or round_number == 0):
                bench.add(candidate, MANY_FILES_INPUT, round_number, command)


def measure_start(bench: Bench, rounds: int) -> None:
    """Run the shortest thing that the command line can do."""
    command: Command = [Path(sys.executable).with_name("tracekit"), "--version"]
    for round_number in range(5 * rounds if bench.wants("version") else 0):
        bench.add("version", "", round_number, command)
