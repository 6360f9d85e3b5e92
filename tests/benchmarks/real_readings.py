"""Does `tracekit analyze` say of real profiles what somebody reads from their raw rows?

    python tests/benchmarks/real_readings.py [FOLDER] [--only WORD]

FOLDER holds `data/` and `more/`; by default it is the parent of `TRACEKIT_REAL_DATA`. `readings/` reads the figures from
the rows themselves with json, sqlite3 and pickles of plain containers, and imports nothing of tracekit;
`readings/gpu_profiles.py` and `readings/other_profiles.py` hold what a person said of each profile: which kind of
recording it is, which cause comes first, where, and why. The exit status is 1 where one line differs.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.readings.gpu import GpuReading, read_gpu
from benchmarks.readings.gpu_profiles import GPU_READINGS
from benchmarks.readings.host import HostReading, read_host, read_nothing
from benchmarks.readings.memory import MemoryReading, read_memory
from benchmarks.readings.other_profiles import HOST_READINGS, LOG_READINGS, MEMORY_READINGS, REFUSED
from benchmarks.readings.reading import Reading
from benchmarks.readings.said import Said, analyze

READINGS: tuple[Reading, ...] = (*GPU_READINGS, *HOST_READINGS, *MEMORY_READINGS, *LOG_READINGS, *REFUSED)


def compare(reading: Reading, path: Path, said: Said) -> tuple[str, list[str]]:
    """Compare one profile: its figures in one line, and the differences between report and reading."""
    if isinstance(reading, GpuReading):
        return read_gpu(reading, path, said)
    if isinstance(reading, HostReading):
        return read_host(reading, path, said)
    if isinstance(reading, MemoryReading):
        return read_memory(reading, path, said)
    return read_nothing(reading, said)


def print_reading(reading: Reading, figures: str, differences: list[str], said: Said) -> bool:
    """Print one reading and its differences; True where one is not argued."""
    wrong = [each for each in differences if not reading.reason_for(each)]
    name = "/".join(Path(reading.path).parts[-2:])
    print(f"{'FAIL' if wrong else 'ok':5}{name[:60]:61}{figures}")
    expected = " or ".join(rule or "nothing" for rule in reading.rules)
    print(f"     first: {expected} {reading.place} (said: {said.first_rule or 'nothing'}) — {reading.why}")
    for each in differences:
        reason = reading.reason_for(each)
        print(f"     argued: {each}: {reason}" if reason else f"     WRONG: {each}")
    return bool(wrong)


def main() -> int:
    """1 where a profile fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(os.environ.get("TRACEKIT_REAL_DATA", ".")).parent)
    parser.add_argument("--only", default="", help="only paths with this in them")
    options = parser.parse_args()
    readings = [each for each in READINGS if options.only in each.path]
    failed = 0
    with ThreadPoolExecutor(max_workers=2) as pool:
        paths = [options.folder / reading.path for reading in readings]
        for reading, path, said in zip(readings, paths, pool.map(analyze, paths), strict=True):
            figures, differences = compare(reading, path, said)
            failed += print_reading(reading, figures, differences, said)
    print(f"{failed} of {len(readings)} fail")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
