"""Freeze every output of every profile at hand, and compare two such folders.

    python tests/benchmarks/frozen_outputs.py write FOLDER [--jobs 2]
    python tests/benchmarks/frozen_outputs.py compare FOLDER FOLDER

`write` runs `tracekit analyze` of the tree it lies in on each directory and file of the examples, of TRACEKIT_REAL_DATA,
and of `more` and `cases` beside it: text with -v, Markdown, JSON, HTML, CSV, and the JSON of the saved measurements.
A refactoring keeps all of them; `compare` lists each file that differs with its first different lines, and exits with 1.
"""

import argparse
import difflib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROFILE_SUFFIXES = (".json", ".gz", ".sqlite", ".pickle", ".nsys-rep", ".zip", ".zst", ".bz2", ".xz")
SHOWN_LINES = 6


def profile_paths():
    """List inputs: each example, and each folder that directly holds profiles in the real data."""
    paths = [path.relative_to(ROOT) for path in sorted(ROOT.glob("examples/**/outputs/profile"))]
    real = os.environ.get("TRACEKIT_REAL_DATA")
    if real:
        shared = Path(real).parent
        for name in ("data", "more", "cases"):
            files = (p for p in (shared / name).rglob("*") if p.suffix in PROFILE_SUFFIXES)
            folders = sorted({file.parent for file in files if file.is_file()})
            paths += folders
            paths += sorted(
                file
                for folder in folders
                for file in folder.iterdir()
                if file.suffix in PROFILE_SUFFIXES and len(list(folder.iterdir())) > 2
            )
    return paths


def write_outputs(path, folder):
    """Run `tracekit analyze` on one input and write all of its outputs to a folder."""
    name = str(path).strip("/").replace("/", "__")
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "tracekit", "analyze", str(path), "-v", "--no-cache", "-j", "1"),
        *("-o", target / "report.md", "-o", target / "report.json", "-o", target / "report.html"),
        *("--export", f"csv={target / 'csv'}", "--save", target / "saved.tkm"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = f"status {run.returncode}\n{run.stdout}\n{run.stderr}".splitlines()
    steady = [line for line in lines if not line.startswith(("wrote ", "read "))]  # paths and times
    (target / "report.txt").write_text("\n".join(steady))
    if (target / "saved.tkm").exists():
        again = [sys.executable, "-m", "tracekit", "analyze", target / "saved.tkm", "-q"]
        subprocess.run(
            [*again, "-o", target / "from_saved.json"], env=environment, check=False, capture_output=True
        )  # fmt: skip


def different_lines(one, other):
    """Return the first lines that differ between two files, as a unified diff shows them."""
    texts = [path.read_text(errors="replace").splitlines() for path in (one, other)]
    diff = difflib.unified_diff(*texts, lineterm="", n=0)
    return [line[:200] for line in diff if line[:2] not in ("--", "++", "@@")][:SHOWN_LINES]


def compare_outputs(one, other):
    """Print the files that differ; return how many do."""
    files = {
        path.relative_to(folder)
        for folder in (one, other)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".tkm"
    }
    count = 0
    for file in sorted(files):
        left, right = one / file, other / file
        if not (left.exists() and right.exists()):
            lines = [f"only in {one if left.exists() else other}"]
        elif left.read_bytes() == right.read_bytes():
            continue
        else:
            lines = different_lines(left, right)
        count += 1
        print(file, *lines, sep="\n    ")
    print(f"{count} of {len(files)} files differ")
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("folder", type=Path)
    write.add_argument("--jobs", type=int, default=os.cpu_count())
    compare = commands.add_parser("compare")
    compare.add_argument("folders", type=Path, nargs=2)
    options = parser.parse_args()
    if options.command == "compare":
        return 1 if compare_outputs(*options.folders) else 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for path, _ in zip(
            (paths := profile_paths()),
            pool.map(lambda path: write_outputs(path, options.folder.resolve()), paths),
            strict=True,
        ):
            print(path, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
