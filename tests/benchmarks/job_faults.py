"""Does the report of a SIMULATED job name the fault that was planted, first, and for what it costs?

    python tests/benchmarks/job_faults.py [--only KIND,…] [--seeds 3] [--sizes small,large] [--jobs 2] [--json OUT] [--misses]

Every kind of fault in every size with every seed, and every clean job: simulated (`tests/support/jobsim`), analysed, and held
against the simulation of the same job without the fault. The table has a line for each kind: how many of its jobs name the
fault, have it first, and estimate it within 25 %; the estimates over the truth; all that is called recoverable over what all
faults cost; and which rules came first instead.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from jobsim.clean import CLEAN, clean_job
from jobsim.faults import KINDS, SIZES, job_of
from jobsim.truth import make

from tracekit.model.report import Finding
from tracekit.pipeline.run import Options, analyze

NAMED, FIRST, ESTIMATED, WITHIN, BEYOND = 0.95, 0.85, 0.90, 0.25, 0.10
"""What is required: shares of the jobs with a fault, and by how much an estimate and a sum may miss the truth."""


@dataclass(frozen=True)
class Expectation:
    """What a report may say of a kind of fault."""

    rules: tuple[str, ...]
    """Rules that tell the cause: one of them has to come first. None: any, if its text tells the place."""
    also: tuple[str, ...] = ()
    """Rules that name the fault all the same, as a symptom."""
    places: tuple[str, ...] = ()
    """What has to stand in the claim, the evidence or the places: `@rank`, `@step`, `@stage` and `@place` of the fault, or words,
    with `|` between those of which one will do."""
    estimated: bool = True
    """Whether there is one cost to estimate: not of warm-up, which does not count, nor of several faults."""


LATE = ("straggler",)
EXPECTED = {
    "straggler_clock": Expectation(LATE, (), ("@rank",)),
    "straggler_late": Expectation(LATE, (), ("@rank",)),
    "four_stragglers": Expectation(LATE, (), ("@rank",)),
    "slow_host": Expectation(LATE, (), ("@rank|@place",)),
    "slow_link": Expectation((), (), ("@place|slow link|slower link|slow group",)),
    "contention": Expectation(LATE, ("launch-bound",), ("@rank",)),
    "more_tokens": Expectation(LATE, (), ("@rank",)),
    "exposed_communication": Expectation(("exposed-communication", "no-comm-overlap"), (), ("@stage",)),
    "item_in_loop": Expectation(("host-sync-stalls",), ("launch-bound",), ("@stage", "@place")),
    "pageable_copies": Expectation(("pageable-copies",), ("offload", "host-sync-stalls"), ("HtoD",)),
    "allocator_churn": Expectation(("allocator-calls",), ("low-gpu-utilization",), ("@place|cudaFree",)),
    "gc_one_rank": Expectation(("host-silence", *LATE), (), ("@rank",)),
    "gc_all_ranks": Expectation(("host-silence",), ("rank-imbalance", *LATE), ("@stage",)),
    "sleeping_loader": Expectation(("data-loader-wait",), (), ()),
    "late_loader_worker": Expectation(("data-loader-wait",), LATE, ("@rank",)),
    "python_preprocessing": Expectation((), (), ("@place",)),
    "recompilation": Expectation(("recompilation",), ("step-variance",), ()),
    "first_calls": Expectation(("start-up",), (), ("cuLibraryLoadData", "@step"), estimated=False),
    "tiny_kernels": Expectation(("launch-bound",), ("low-gpu-utilization",), ("@stage",)),
    "eager_decode": Expectation(("launch-bound",), ("low-gpu-utilization",), ("@stage",)),
    "silent_pause": Expectation(("host-silence",), ("low-gpu-utilization", "host-sync-stalls"), ("@stage",)),
    "silent_pauses": Expectation(("host-silence",), ("low-gpu-utilization", "host-sync-stalls"), ("@stage",)),
    "unaligned_gemm": Expectation(("unaligned-gemm",), (), ()),
    "fp32_gemm": Expectation(("no-tensor-cores",), (), ("@stage",)),
    "fp32_convolutions": Expectation(("no-tensor-cores",), (), ("@stage",)),
    "unfused_optimizer": Expectation(("unfused-optimizer",), ("launch-bound",), ()),
    "unfused_activation": Expectation(("unfused-operators",), (), ("activation|aten::neg|elementwise",)),
    "unfused_attention": Expectation(("unfused-operators",), (), ("attention",)),
    "rollout_tail": Expectation(("rollout-tail", *LATE), ("replica-imbalance",), ()),
    "idle_rollout": Expectation(("low-gpu-utilization", "host-sync-stalls", "launch-bound"), (), ("@stage",)),
    "drift": Expectation(("drift",), (), ("@place",)),
    "contiguous_copies": Expectation((), (), ("aten::copy_|contiguous|direct_copy",)),
    "log_writing": Expectation((), (), ("@place|write",)),
    "slow_weight_sync": Expectation(("weight-sync",), (), ()),
    "late_start": Expectation((), (), ("@rank",)),
    "logits_to_host": Expectation(("pageable-copies",), ("offload", "host-sync-stalls"), ("DtoH",)),
    "three_at_once": Expectation(("data-loader-wait", "weight-sync", *LATE), estimated=False),
    "rotating_tokens": Expectation(("rank-imbalance",), (), ()),
}  # fmt: skip


def words(finding: Finding) -> str:
    """All that a finding says, but for its advice and its caveats."""
    parts = [finding.claim]
    parts += [f"{metric.name} {metric.label} {metric.value}" for metric in finding.evidence]
    for place in finding.places:
        parts += [f"rank {place.rank}.", f"step {place.step}.", str(place.stage), str(place.name)]
    return " | ".join(parts)


def tells(text: str, wanted: str, fault: dict[str, Any]) -> bool:
    """Whether the text holds one of the wanted words."""
    return any(_holds(text, word, fault) for word in wanted.split("|"))


def _holds(text: str, word: str, fault: dict[str, Any]) -> bool:
    if word == "@rank":
        return set(fault.get("ranks", ())) <= ranks_in(text)
    if word == "@step":
        return all(f"step {step}" in text for step in fault["steps"])
    if word in ("@stage", "@place"):
        return str(fault[word[1:]]) in text
    return word in text


RANKS = re.compile(r"\brank (\d+)|\branks (\d+(?:(?:[–-]|, | and )\d+)*)")


def ranks_in(text: str) -> set[int]:
    """The ranks that a text names: `rank 2`, `ranks 0–3, 5 and 7`."""
    ranks: set[int] = set()
    for single, several in RANKS.findall(text):
        for part in re.split(", | and ", single or several):
            ends = [int(end) for end in re.split("[–-]", part)]
            ranks |= {*range(ends[0], ends[-1] + 1)}
    return ranks


def facts(finding: Finding) -> dict[str, Any]:
    """A finding as the table needs it."""
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "ns": finding.recoverable_ns,
        "claim": finding.claim,
        "words": words(finding),
    }


def case(work: tuple[str, str, int]) -> dict[str, Any]:
    """One job, simulated and analysed; the size of a clean one is `clean`."""
    kind, size, seed = work
    job = clean_job(kind, seed) if size == "clean" else job_of(kind, size, seed)
    with tempfile.TemporaryDirectory() as folder:
        truth = make(job, Path(folder))
        report = analyze(Path(folder) / "profile", Options(jobs=1, cache=False)).report
    findings = [facts(finding) for finding in report.findings]
    result = {"kind": kind, "size": size, "seed": seed, "truth": truth, "findings": findings}
    return result | ({} if size == "clean" else score(kind, truth, findings))


def score(kind: str, truth: dict[str, Any], findings: list[dict[str, Any]]) -> dict[str, Any]:
    """What the findings are worth, held against the truth."""
    expected, fault = EXPECTED[kind], truth["faults"][0]
    loud = [each for each in findings if each["severity"] != "info"]
    if fault.get("warm_up"):
        # Steps that do not count give nothing back: to say so is information, and right where nothing else is said.
        loud = loud or [each for each in findings if each["rule"] == "start-up"]

    def by_rule(finding: dict[str, Any], rules: tuple[str, ...]) -> bool:
        return not expected.rules or finding["rule"] in rules

    def right(finding: dict[str, Any], rules: tuple[str, ...]) -> bool:
        return by_rule(finding, rules) and all(
            tells(finding["words"], text, fault) for text in expected.places
        )

    causes = [each for each in loud if right(each, expected.rules)]
    naming = causes + [each for each in loud if right(each, expected.rules + expected.also)]
    first = bool(loud) and right(loud[0], expected.rules)
    cost = truth["all_faults_ns"]
    ratio = None
    if naming and expected.estimated and cost > 0:
        rule = naming[0]["rule"]
        ratio = sum(each["ns"] or 0 for each in loud if each["rule"] == rule) / cost
    claimed = sum(each["ns"] or 0 for each in loud)
    return {
        "named": bool(naming),
        "by_rule": any(by_rule(each, expected.rules + expected.also) for each in loud),
        "first": first,
        "ratio": ratio,
        "claimed": claimed / cost if cost > 0 else None,
        "top": loud[0]["rule"] if loud else "silent",
    }


def scored_again(row: dict[str, Any]) -> dict[str, Any]:
    """A case with the score that it would get now."""
    again = row["size"] != "clean"
    return row | (score(row["kind"], row["truth"], row["findings"]) if again else {})


def works(only: list[str], seeds: int, sizes: list[str]) -> Iterator[tuple[str, str, int]]:
    """Every job of the matrix."""
    for kind in KINDS:
        if not only or kind in only:
            for size in sizes:
                for seed in range(seeds):
                    yield kind, size, seed
    for name in CLEAN:
        if not only or name in only or "clean" in only:
            yield name, "clean", 0


def numbers(values: list[float | None]) -> str:
    """Least to most of the values that are known."""
    known = sorted(value for value in values if value is not None)
    return f"{known[0]:.2f}–{known[-1]:.2f}" if known else "—"


def within(ratio: float | None) -> bool:
    """Whether an estimate is near enough to the truth."""
    return ratio is not None and abs(ratio - 1) <= WITHIN


def kind_line(kind: str, rows: list[dict[str, Any]]) -> str:
    """The line of one kind."""
    share = 100 * sum(row["truth"]["all_faults_ns"] / row["truth"]["step_ns"] for row in rows)
    counts = [sum(bool(row[name]) for row in rows) for name in ("by_rule", "named", "first")]
    near = str(sum(within(row["ratio"]) for row in rows)) if EXPECTED[kind].estimated else "—"
    estimates = numbers([row["ratio"] for row in rows])
    sums = numbers([row["claimed"] for row in rows])
    tops = ", ".join(f"{rule} {count}" for rule, count in Counter(row["top"] for row in rows).most_common())  # fmt: skip
    return (
        f"{kind:22}{len(rows):3}{share / len(rows):6.1f} %{counts[0]:5}{counts[1]:6}{counts[2]:6}{near:>6}"
        f"{estimates:>12}{sums:>12}  {tops}"
    )


def totals(faulty: list[dict[str, Any]], clean: list[dict[str, Any]]) -> dict[str, float]:
    """The shares that are required to be high."""
    priced = [row for row in faulty if EXPECTED[row["kind"]].estimated]
    costly = [row for row in faulty if row["claimed"] is not None]
    noisy = [row for row in clean if any(f["severity"] != "info" for f in row["findings"])]
    count = max(1, len(faulty))
    return {
        "named": sum(row["named"] for row in faulty) / count,
        "first": sum(row["first"] for row in faulty) / count,
        "estimated": sum(within(row["ratio"]) for row in priced) / max(1, len(priced)),
        "sums": sum(row["claimed"] <= 1 + BEYOND for row in costly) / max(1, len(costly)),
        "silent": 1 - len(noisy) / max(1, len(clean)),
    }


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
            if not (row["first"] and within(row["ratio"])):
                _print_findings(row)
    print(f"\nclean jobs: {len(clean)}")
    for row in clean:
        if any(each["severity"] != "info" for each in row["findings"]):
            _print_findings(row)
    shares = totals(faulty, clean)
    print(f"\nnamed {shares['named']:.1%} (required {NAMED:.0%}), first {shares['first']:.1%} ({FIRST:.0%}), "
          f"estimate within {WITHIN:.0%} {shares['estimated']:.1%} ({ESTIMATED:.0%}), "
          f"claims at most {1 + BEYOND:.0%} of the truth {shares['sums']:.1%} (100%), clean jobs silent {shares['silent']:.1%} (100%)")  # fmt: skip


def _print_findings(row: dict[str, Any]) -> None:
    truth = row["truth"]
    places = {(fault.get("stage"), str(fault.get("ranks"))) for fault in truth["faults"]}
    print(f"   {row['kind']} {row['size']} {row['seed']}: {truth['all_faults_ns'] / 1e6:.2f} of {truth['step_ns'] / 1e6:.1f} ms {sorted(places)}")  # fmt: skip
    for each in row["findings"]:
        if each["severity"] != "info":
            print(f"      {each['severity']:7}{(each['ns'] or 0) / 1e6:7.2f} ms {each['rule']}: {each['claim'][:150]}")  # fmt: skip


def main() -> None:
    """Simulate, analyse, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="kinds, clean jobs, or `clean`, comma separated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write every case")
    parser.add_argument("--again", type=Path, help="cases written by --json, scored again")
    parser.add_argument("--misses", action="store_true", help="show the findings of what is missed")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    if options.again:
        rows = json.loads(options.again.read_text(encoding="utf-8"))
        printed([scored_again(row) for row in rows], misses=options.misses)
        return
    todo = [*works(only, options.seeds, options.sizes.split(","))]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = []
        for row in pool.map(case, todo):
            rows.append(row)
            print(f"\r{len(rows)} of {len(todo)} jobs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    printed(rows, misses=options.misses)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
