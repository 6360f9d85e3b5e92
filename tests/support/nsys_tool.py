"""nsys itself, where it is installed: which programs there are, and the figures that `nsys stats` prints."""

import csv
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

REPORTS = {
    "cuda_gpu_kern_sum": "gpukernsum",
    "cuda_api_sum": "cudaapisum",
    "cuda_gpu_mem_time_sum": "gpumemtimesum",
    "cuda_gpu_mem_size_sum": "gpumemsizesum",
    "nvtx_sum": "nvtxsum",
}
"""The reports whose figures are ours to repeat: their names since 2023, and before."""

FURTHER_REPORTS = {
    "cuda_gpu_sum": "gpusum",
    "cuda_api_gpu_sum": "apigpusum",
    "osrt_sum": "osrtsum",
    "cuda_gpu_kern_gb_sum": "gpukernsum",
}
"""Reports that are asked for by name alone."""

NAME_COLUMNS = ("Name", "Operation", "Range")

KEPT_LENGTH = 4096
"""Characters of a name that a reader of untrusted files keeps; of longer ones nothing more is compared."""


def found():
    """The nsys programs there are: that which TRACEKIT_NSYS names, and that of the PATH."""
    named = [os.environ.get("TRACEKIT_NSYS"), "nsys"]
    programs = [Path(path) for name in named if name and (path := shutil.which(name))]
    return list({program.resolve(): program for program in programs}.values())


def version(program):
    """The version of an nsys program, such as `2024.2.3.38`."""
    done = run([program, "--version"])
    return re.search(r"\d+(\.\d+)+", done.stdout).group()


def run(command, *, timeout=600, **more):
    """A finished command with its text output; nsys tells of failure by status 0 as well."""
    texts = [str(part) for part in command]
    return subprocess.run(texts, capture_output=True, text=True, timeout=timeout, check=False, **more)


def stats(program, sqlite, folder, reports=tuple(REPORTS)):
    """The rows of each report that has any, as printed: `{report: [header, row, row …]}`.

    nsys writes beside what it reads, and marks an export that it read: it gets a copy in `folder`.
    """
    old = int(version(program).partition(".")[0]) < 2023
    copy = folder / "copy.sqlite"
    shutil.copyfile(sqlite, copy)
    old_names = REPORTS | FURTHER_REPORTS
    asked = {report: old_names[report] if old else report for report in reports}
    prefix = folder / "figures"
    command = [program, "stats", "-q", "-r", ",".join(asked.values()), "--format", "csv"]
    done = run([*command, "--output", prefix, copy])
    if "internal error" in done.stdout + done.stderr or "invalid" in done.stdout + done.stderr:
        raise RuntimeError(done.stdout + done.stderr)
    printed = {}
    for report, asked_as in asked.items():
        path = folder / f"{prefix.name}_{asked_as}.csv"
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.reader(file))
            path.unlink()
            if len(rows) > 1:
                printed[report] = rows
    copy.unlink()
    return printed


def shown_name(name):
    """A name to be stored: itself, or the beginning and a digest of a long one."""
    if len(name) <= 60:
        return name
    digest = hashlib.sha256(name[:KEPT_LENGTH].encode()).hexdigest()[:16]
    return f"{name[:24]}… {digest}"


def shown(rows):
    """(columns, rows) to be stored: without the style of ranges, which is no figure, and long names shortened."""
    header, *body = rows
    kept = [i for i, column in enumerate(header) if column != "Style"]
    columns = [header[i] for i in kept]
    name = next(i for i, column in enumerate(columns) if column in NAME_COLUMNS)
    chosen = [[row[i] for i in kept] for row in body]
    return columns, [[*row[:name], shown_name(row[name]), *row[name + 1 :]] for row in chosen]


def digest_of(rows):
    """A digest of rows whatever their order."""
    lines = sorted("\t".join(row) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
