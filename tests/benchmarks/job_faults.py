"""Does the report of a SIMULATED job name the fault that was planted, first, and for what it costs?

    python tests/benchmarks/job_faults.py [--only KIND,…] [--seeds 3] [--sizes small,large] [--jobs 2] [--json OUT] [--misses]
    python tests/benchmarks/job_faults.py --switches all [--limit 700] [--only KIND,…] [--jobs 2] [--json OUT] [--misses]

Simulate every kind of fault in every size with every seed, and every clean job (`tests/support/jobsim`), analyze the traces,
and compare the report with the simulation of the same job without the fault. The table has a line for each kind: how many of
its jobs name the fault, have it first, and estimate it within 25 %; the estimates over the truth; all that is called
recoverable over what all faults cost; and which rules came first instead.

With `--switches` the same faults and more are planted under other conditions: no stages, clocks apart, a truncated file, a
pipeline, two faults at once. The table has a line for each condition. Of about 2,700 jobs the first `--limit` of a fixed draw
run, each in about 2 s of one core; a file given as `--json` is kept from an earlier run that was stopped, and is continued.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from zlib import crc32

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from benchmarks.job_expected import EXPECTED
from benchmarks.job_scores import WITHIN, alarms, is_within, score, totals
from jobsim.clean import CLEAN, WORLDS, clean_job
from jobsim.draws import SIZES
from jobsim.faults import ALL_KINDS, KINDS, job_of, job_of_several
from jobsim.job import Job
from jobsim.switches import SWITCHES
from jobsim.truth import make

from tracekit.model.report import Finding
from tracekit.pipeline.run import Options, analyze_uncached

NAMED, FIRST, ESTIMATED, BEYOND = 0.95, 0.85, 0.90, 0.10
"""What is required: shares of the jobs with a fault, and by how much an estimate and a sum may miss the truth."""


Work = tuple[str, str, int, str]
"""Kind (or name of the clean job), size, seed, switch."""


def words(finding: Finding) -> str:
    """All that a finding says, but for its advice and its caveats."""
    parts = [finding.claim]
    parts += [f"{metric.name} {metric.label} {metric.value}" for metric in finding.evidence]
    for place in finding.places:
        parts += [f"rank {place.rank}.", f"step {place.step}.", str(place.stage), str(place.name)]
    return " | ".join(parts)


def facts(finding: Finding) -> dict[str, Any]:
    """A finding as the table needs it."""
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "ns": None if finding.saving is None else finding.saving.alone_ns,
        "after": None if finding.saving is None else finding.saving.after_ns,
        "claim": finding.claim,
        "words": words(finding),
    }


def case(work: Work) -> dict[str, Any]:
    """One job, simulated and analysed under a switch; the size of a clean one is `clean`."""
    kind, size, seed, switch = work
    job = planned(kind, size, seed)
    with tempfile.TemporaryDirectory() as folder:
        truth = make(job, Path(folder), switch)
        report = analyze_uncached(Path(folder) / "profile", Options(jobs=1, cache=False)).report
    findings = [facts(finding) for finding in report.findings]
    result = {"kind": kind, "size": size, "seed": seed, "switch": switch, "truth": truth, "findings": findings}
    return result | ({} if size == "clean" else score(kind, truth, findings))


def scored_again(row: dict[str, Any]) -> dict[str, Any]:
    """A case with the score that it would get now."""
    again = row["size"] != "clean"
    return row | (score(row["kind"], row["truth"], row["findings"]) if again else {})


def works(only: list[str], seeds: int, sizes: list[str]) -> Iterator[Work]:
    """Every job of the matrix, with nothing switched."""
    for kind in KINDS:
        if not only or kind in only:
            for size in sizes:
                for seed in range(seeds):
                    yield kind, size, seed, "none"
    for name in CLEAN:
        if not only or name in only or "clean" in only:
            yield name, "clean", 0, "none"


def works_under(switches: list[str], only: list[str], limit: int) -> list[Work]:
    """List jobs of every kind and clean ones under every switch: each pair has one seed, and the first `limit` are a fair draw."""
    drawn = []
    for switch in switches:
        chosen = SWITCHES[switch]
        pairs = [(name, chosen.size) for name in kinds_under(switch) if not only or name in only]
        clean = [*CLEAN, *WORLDS] if chosen.several == 1 else []
        pairs += [(name, "clean") for name in clean if name in only or not only or "clean" in only]
        drawn += [(crc32(f"{name} {switch}".encode()), name, size, switch) for name, size in pairs]
    works = []
    for dice, name, size, switch in sorted(drawn):
        seed = dice % 3 if size != "clean" else 0
        if SWITCHES[switch].change(planned(name, size, seed)) is not None:
            works.append((name, size, seed, switch))
    return works[:limit]


def kinds_under(switch: str) -> list[str]:
    """List the kinds of faults that are planted under a switch, several at a time with `+` between them."""
    several = SWITCHES[switch].several
    kinds = [kind for kind in ALL_KINDS if kind not in ("three_at_once", "first_calls")]
    if several == 1:
        return [*ALL_KINDS]
    names = []
    for number, kind in enumerate(kinds):
        dice = random.Random(f"{switch} {kind}")
        for _ in range(20):
            chosen = (kind, *dice.sample(kinds[:number] + kinds[number + 1 :], several - 1))
            if all(job_of_several(chosen, "small", seed) for seed in range(3)):
                names.append("+".join(chosen))
                break
    return names


def planned(name: str, size: str, seed: int) -> Job:
    """Return the job of a kind, of several, or a clean one."""
    if size == "clean":
        return clean_job(name, seed)
    job = job_of_several(tuple(name.split("+")), size, seed) if "+" in name else job_of(name, size, seed)
    assert job is not None
    return job


def numbers(values: list[float | None]) -> str:
    """Least to most of the values that are known."""
    known = sorted(value for value in values if value is not None)
    return f"{known[0]:.2f}–{known[-1]:.2f}" if known else "—"


def kind_line(kind: str, rows: list[dict[str, Any]]) -> str:
    """The line of one kind."""
    share = 100 * sum(row["truth"]["all_faults_ns"] / row["truth"]["step_ns"] for row in rows)
    counts = [sum(bool(row[name]) for row in rows) for name in ("by_rule", "named", "first")]
    near = str(sum(is_within(row["ratio"]) for row in rows)) if EXPECTED[kind].estimated else "—"
    estimates = numbers([row["ratio"] for row in rows])
    sums = numbers([row["claimed"] for row in rows])
    tops = ", ".join(f"{rule} {count}" for rule, count in Counter(row["top"] for row in rows).most_common())  # fmt: skip
    return (
        f"{kind:22}{len(rows):3}{share / len(rows):6.1f} %{counts[0]:5}{counts[1]:6}{counts[2]:6}{near:>6}"
        f"{estimates:>12}{sums:>12}  {tops}"
    )


def printed(rows: list[dict[str, Any]], *, misses: bool) -> None:
    """The tables, and the totals beside what is required."""
    faulty = [row for row in rows if row["size"] != "clean"]
    clean = [row for row in rows if row["size"] == "clean"]
    print("SIMULATED jobs, each held against its own simulation without the fault")
    print(f"{'kind':22}{'n':>3}{'cost':>8}{'rule':>5}{'named':>6}{'first':>6}{'near':>6}{'estimate':>12}{'all claims':>12}  comes first")  # fmt: skip
    for kind in KINDS:
        own = [row for row in faulty if row["kind"] == kind]
        if own:
            print(kind_line(kind, own))
        for row in own if misses else ():
            if not (row["first"] and is_within(row["ratio"])):
                _print_findings(row)
    print(f"\nclean jobs: {len(clean)}")
    for row in clean:
        if bool(alarms(row["truth"], row["findings"])):
            _print_findings(row)
    shares = totals(faulty, clean, BEYOND)
    print(f"\nnamed {shares['named']:.1%} (required {NAMED:.0%}), first {shares['first']:.1%} ({FIRST:.0%}), "
          f"estimate within {WITHIN:.0%} {shares['estimated']:.1%} ({ESTIMATED:.0%}), "
          f"claims at most {1 + BEYOND:.0%} of the truth {shares['sums']:.1%} (100%), clean jobs silent {shares['silent']:.1%} (100%)")  # fmt: skip


def print_switches(rows: list[dict[str, Any]], *, misses: bool) -> None:
    """The table with a line for each switch."""
    print("SIMULATED jobs under switches: all kinds of faults under other conditions")
    print(
        f"{'switch':16}{'jobs':>5}{'named':>8}{'first':>8}{'near':>8}{'claims':>8}{'clean':>6}{'silent':>8}  condition"
    )
    for switch, chosen in SWITCHES.items():
        own = [row for row in rows if row["switch"] == switch]
        if own:
            print(switch_line(switch, own) + f"  {chosen.about}")
            for row in own if misses else ():
                if is_missed(row):
                    _print_findings(row)
    print(switch_line("all", rows))


def switch_line(name: str, rows: list[dict[str, Any]]) -> str:
    """The line of one switch."""
    faulty = [row for row in rows if row["size"] != "clean"]
    clean = [row for row in rows if row["size"] == "clean"]
    shares = totals(faulty, clean, BEYOND)
    cells = [f"{shares[key]:8.1%}" for key in ("named", "first", "estimated", "sums")]
    if not any(part["worth"] for row in faulty for part in row["parts"]):
        cells = [f"{'—':>8}"] * 4
    silent = f"{shares['silent']:8.1%}" if clean else f"{'—':>8}"
    return f"{name:16}{len(faulty):5}{''.join(cells)}{len(clean):6}{silent}"


def is_missed(row: dict[str, Any]) -> bool:
    """Whether a fault is not named, not first or not estimated, or a clean job is not silent."""
    if row["size"] == "clean":
        return bool(alarms(row["truth"], row["findings"]))
    parts = [part for part in row["parts"] if part["worth"]]
    near = all(is_within(part["ratio"]) for part in parts if part["priced"])
    return bool(parts) and not (row["first"] and near and all(part["named"] for part in parts))


def _print_findings(row: dict[str, Any]) -> None:
    truth = row["truth"]
    places = {(fault.get("stage"), str(fault.get("ranks"))) for fault in truth["faults"]}
    print(f"   {row['kind']} {row['size']} {row['seed']} {row['switch']}: {truth['all_faults_ns'] / 1e6:.2f} of {truth['step_ns'] / 1e6:.1f} ms {sorted(places)}")  # fmt: skip
    for each in alarms(truth, row["findings"]):
        print(f"      {each['severity']:7}{(each['ns'] or 0) / 1e6:7.2f} ms {each['rule']}: {each['claim'][:150]}")  # fmt: skip


def kept_rows(path: Path | None, todo: list[Work]) -> list[dict[str, Any]]:
    """Return the cases that an earlier run has written, scored again."""
    if path is None or not path.exists():
        return []
    wanted = set(todo)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kept = [row for row in rows if (row["kind"], row["size"], row["seed"], row["switch"]) in wanted]
    return [scored_again(row) for row in kept]


def main() -> None:
    """Simulate, analyse, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="kinds, clean jobs, or `clean`, comma separated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file to which every case is appended, a line each")
    parser.add_argument("--again", type=Path, help="cases written by --json, scored again")
    parser.add_argument("--switches", default="", help="`all`, or switches, comma separated")
    parser.add_argument("--limit", type=int, default=700, help="jobs under switches, drawn from all")
    parser.add_argument("--misses", action="store_true", help="show the findings of what is missed")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    show = print_switches if options.switches else printed
    if options.again:
        rows = [json.loads(line) for line in options.again.read_text(encoding="utf-8").splitlines()]
        show([scored_again(row) for row in rows], misses=options.misses)
        return
    switches = [*SWITCHES] if options.switches == "all" else options.switches.split(",")
    todo = [*works(only, options.seeds, options.sizes.split(","))]
    if options.switches:
        todo = works_under(switches, only, options.limit)
    rows = kept_rows(options.json, todo) if options.switches else []
    done = {(row["kind"], row["size"], row["seed"], row["switch"]) for row in rows}
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(case, [work for work in todo if work not in done]):
            rows.append(row)
            if options.json:
                with options.json.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row) + "\n")
            print(f"\r{len(rows)} of {len(todo)} jobs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    show(rows, misses=options.misses)


if __name__ == "__main__":
    main()
