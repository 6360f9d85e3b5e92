"""Measures what a judge pays for its data frame: pandas, polars and our own, per operation and at start-up.

    python tests/benchmarks/frame_run.py [--rows 60] [--rounds 7] [PROFILE…]

CPU time of this process per call, and CPU time of whole processes that only import; candidates take turns within each
round, and each figure is the median of all rounds. The table has 20 columns, as the measured ones have: text, numbers
that may be missing, and whole numbers. Of each PROFILE it prints what judging all questions takes. Only ratios from one call of this script mean anything.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from tracekit import Options
from tracekit.model.tables.arrays import Array, Columns, Nullable
from tracekit.model.tables.frame import Frame, concat, max_of, sum_of, texts
from tracekit.pipeline import run

Calls = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]
SUMS = ["x0_ns", "x1_ns", "x2_ns", "x3_ns"]
KEYS = ["run", "role", "stage"]
IMPORTS = ("numpy", "numpy, pandas", "numpy, polars")


def columns(rows: int) -> dict[str, Array]:
    """Make the columns of a table as measuring leaves them."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        "run": texts([("base", "new")[row % 2] for row in range(rows)]),
        "role": texts([None if row % 7 == 0 else "actor" for row in range(rows)]),
        "stage": texts([("gen", "ref", None)[row % 3] for row in range(rows)]),
        "source": texts([f"rank{row % 8}.json.gz" for row in range(rows)]),
        "rank": Nullable(rng.integers(0, 8, rows), rng.random(rows) < 0.1),
    }
    for number in range(15):
        arrays[f"x{number}_ns"] = rng.integers(0, 10**9, rows)
    return arrays


def in_polars(frame: pd.DataFrame) -> pl.DataFrame:
    """Copy a frame into polars without pyarrow."""
    return pl.DataFrame({str(name): [None if pd.isna(value) else value for value in frame[name]] for name in frame})


def operations(rows: int) -> dict[str, Calls]:
    """Name what judges do, in pandas, polars and our own frame."""
    measured = Columns(rows, columns(rows))
    hosts: dict[str, Array] = {"source": texts([f"rank{n}.json.gz" for n in range(8)]), "host": np.arange(8)}
    own, own_hosts = Frame.from_columns(measured), Frame.from_columns(hosts)
    old, old_hosts = measured.judged(), Columns(8, hosts).judged()
    new, new_hosts = in_polars(old), in_polars(old_hosts)
    total, names = pl.col("x0_ns") + pl.col("x1_ns"), ["x0_ns", "stage"]
    sums = {name: sum_of(name) for name in SUMS}
    return {
        "one column": (lambda: old["x0_ns"], lambda: new["x0_ns"], lambda: own["x0_ns"]),
        "select 5 columns": (lambda: old[[*KEYS, *SUMS[:2]]], lambda: new.select(*KEYS, *SUMS[:2]), lambda: own.select(*KEYS, *SUMS[:2])),
        "filter": (lambda: old[old["stage"] == "gen"], lambda: new.filter(pl.col("stage") == "gen"), lambda: own.filter(own.equals("stage", "gen"))),
        "add a column": (lambda: old.assign(x=old["x0_ns"] + old["x1_ns"]), lambda: new.with_columns(x=total), lambda: own.with_columns(x=own["x0_ns"] + own["x1_ns"])),
        "group by 3, sum 4": (lambda: old.groupby(KEYS, dropna=False, sort=False)[SUMS].sum().reset_index(), lambda: new.group_by(KEYS, maintain_order=True).agg(pl.sum(*SUMS)), lambda: own.group_by(*KEYS).agg(**sums)),
        "each row its group's max": (lambda: old.groupby("rank", dropna=False)["x0_ns"].transform("max"), lambda: new.with_columns(x=pl.col("x0_ns").max().over("rank")), lambda: own.group_by("rank").each(max_of("x0_ns"))),
        "left join": (lambda: old.merge(old_hosts, on="source", how="left"), lambda: new.join(new_hosts, on="source", how="left", maintain_order="left"), lambda: own.join(own_hosts, on=["source"], how="left")),
        "sort by 2": (lambda: old.sort_values(names, kind="stable"), lambda: new.sort(names, nulls_last=True, maintain_order=True), lambda: own.sort(*names)),
        "concat 3": (lambda: pd.concat([old] * 3, ignore_index=True), lambda: pl.concat([new] * 3), lambda: concat([own] * 3)),
        "distinct by 3": (lambda: old.drop_duplicates(KEYS), lambda: new.unique(KEYS, keep="first", maintain_order=True), lambda: own.distinct(*KEYS)),
        "rows as dictionaries": (lambda: old.to_dict("records"), new.to_dicts, lambda: list(own.rows())),
    }  # fmt: skip


def cpu_us(call: Callable[[], Any]) -> float:
    """Measure one call in microseconds of CPU time, over 10 ms of calls."""
    call()
    before = time.process_time()
    call()
    count = max(3, int(0.01 / max(time.process_time() - before, 1e-6)))
    before = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - before) / count * 1e6


def import_ms(modules: str) -> float:
    """Measure a whole process that only imports, in milliseconds of CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def judge_ms(profile: str) -> float:
    """Judge all questions of a profile, in milliseconds of CPU time."""
    measured = run.measure_all(profile, Options(jobs=1))
    before = time.process_time()
    run.judge(measured)
    return (time.process_time() - before) * 1e3


def main() -> None:
    """Print the tables, and what judging takes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("profiles", nargs="*", metavar="PROFILE")
    asked = parser.parse_args()
    print(f"{'µs of CPU, ' + str(asked.rows) + ' rows':28} {'pandas':>9} {'polars':>9} {'own':>9}")
    for name, calls in operations(asked.rows).items():
        rounds = [[cpu_us(call) for call in calls] for _ in range(asked.rounds)]
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        print(f"{name:28} " + " ".join(f"{value:9.1f}" for value in medians), flush=True)
    starts = [[import_ms(modules) for modules in IMPORTS] for _ in range(asked.rounds)]
    for modules, of_rounds in zip(IMPORTS, zip(*starts, strict=True), strict=True):
        print(f"import {modules:35} {statistics.median(of_rounds):6.0f} ms of CPU", flush=True)
    for profile in asked.profiles:
        print(f"judge {profile}: {statistics.median(judge_ms(profile) for _ in range(asked.rounds)):.0f} ms of CPU")


if __name__ == "__main__":
    main()
