"""Programs that stand in for `nsys`, and reports and exports for them."""

from __future__ import annotations

import os
import shlex
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

REPORT = b"NVIDIA Tegra Profiler Report 2024@2@3@38-242334140272v0\0\0Local (CLI)"
"""The head of a report, which is all that we read of one."""


@dataclass(frozen=True)
class Installed:
    """A stand-in on PATH; `runs` gives the arguments of each export that it was asked for."""

    path: Path
    log: Path

    def runs(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


def install(folder, monkeypatch, does, *, version="2024.2.3.38-242334140272v0", blobs=True):
    """An nsys on PATH that runs the shell script `does` in place of an export; `$OUT` is where it should go."""
    bin_ = folder / "bin"
    bin_.mkdir(parents=True, exist_ok=True)
    log, program = folder / "runs.log", bin_ / "nsys"
    program.write_text(
        f"""#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version {version}"; exit 0; fi
if [ "$2" = --help ]; then echo "{"--include-blobs=" if blobs else "--lazy="}"; exit 0; fi
echo "$@" >> {shlex.quote(str(log))}
while [ $# -gt 1 ]; do if [ "$1" = --output ]; then OUT=$2; fi; shift; done
REPORT=$1
{does}
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("TRACEKIT_NSYS", raising=False)
    return Installed(program, log)


def uninstall(folder, monkeypatch):
    """A PATH without nsys."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("TRACEKIT_NSYS", raising=False)


def copies(export):
    """The script of an nsys that makes this export of every report."""
    return f'cp {shlex.quote(str(export))} "$OUT"'


def put_export(path, ranges=(("step 1", 10, 90),), tables=()):
    """An export of one process with these NVTX ranges, as schema 3.11 has them; `tables` are further empty ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    thread = (1 << 48) | (4711 << 24) | 4711
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            """
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
            CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER, duration INTEGER NOT NULL, startTime INTEGER, stopTime INTEGER);
            CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
              category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
            INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2024.2.3.38'), ('EXPORT_SCHEMA_VERSION', '3.11.1');
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, '', '');
            INSERT INTO ANALYSIS_DETAILS VALUES (1, 1000000000, 0, 1000000000);
            """
        )
        for name in tables:
            connection.execute(f"CREATE TABLE {name} (id INTEGER)")
        connection.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES (?, ?, 59, ?, ?, 0)",
            [(start, end, name, thread) for name, start, end in ranges],
        )
        connection.commit()
    return path


def whole_report(version, *, head=b"NVIDIA Tegra Profiler Report 1.\n\x0bLocal (CLI)"):
    """The bytes of a report as nsys ends one: sections, of which one names the agent, their list, its place, a mark."""
    sections = head + b"\x12\x1f/opt/nvidia/nsight-systems/9999.9.9/bin" + b"\0" * 200_000
    sections += b"\n\x1c" + version + b":\x12\x1a" + version + b"\x1a" + b"UI Data" * 50
    return sections + b"\n\x10\n\x07UI Data" + len(sections).to_bytes(8, "little") + b"U3w[END]"


def put_report(path, data=REPORT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def everything(folder):
    """Every name below a directory with its size and its time: what must not change."""
    return {str(p): (p.lstat().st_size, p.lstat().st_mtime_ns) for p in sorted(Path(folder).rglob("*"))} | {
        str(folder): Path(folder).stat().st_mtime_ns
    }
