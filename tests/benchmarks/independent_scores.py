"""Print the table of `independent_runs.py` from its records.

python tests/benchmarks/independent_scores.py RECORDS.jsonl
"""

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

WITHIN = 0.25
ALARMS = ("high", "medium")


def group_faults(records):
    """The planted faults by kind. In a pair, the first place may be that of either fault."""
    kinds = defaultdict(list)
    for record in records:
        best = min((fault["place"] for fault in record["faults"].values() if fault["place"] is not None), default=None)
        for name, fault in record["faults"].items():
            label = name if len(record["faults"]) == 1 else f"{name} (pair)"
            kinds[label].append({**fault, "first": best == 0, "share": fault["gain"] / record["step_ns"]})
    return kinds


def count_faults(faults):
    """How many faults are named, named first, predicted within the limit, and without a number."""
    named = [fault for fault in faults if fault["place"] is not None]
    errors = [abs(fault["error"]) for fault in named if fault["error"] is not None]
    return {
        "runs": len(faults),
        "named": len(named),
        "first": sum(fault["first"] for fault in named),
        "within": sum(error <= WITHIN for error in errors),
        "numberless": len(named) - len(errors),
        "errors": errors,
    }


def print_table(records):
    kinds = group_faults(records)
    print(
        f"{'kind':32} {'runs':>4} {'named':>5} {'first':>5} {'≤ 25 %':>6} {'no number':>9}  {'true gain':>9}  errors of the predicted gain"
    )
    for label, faults in kinds.items():
        count = count_faults(faults)
        gain = statistics.median(fault["share"] for fault in faults)
        errors = " ".join("–" if fault["error"] is None else f"{fault['error']:+.0%}" for fault in faults)
        cells = f"{count['runs']:4} {count['named']:5} {count['first']:5} {count['within']:6} {count['numberless']:9}"
        print(f"{label:32} {cells}  {gain:9.1%}  {errors}")
    for title, chosen in split_totals(kinds):
        count = count_faults(chosen)
        middle = statistics.median(count["errors"]) if count["errors"] else 0.0
        print(
            f"\n{title}: {count['runs']} faults, named {count['named']}, first {count['first']}, "
            f"within 25 % {count['within']} of {len(count['errors'])} with a number (median error {middle:.1%}), "
            f"named without a number {count['numberless']}"
        )
    print_clean([record for record in records if not record["faults"]])


def split_totals(kinds):
    single = [fault for label, faults in kinds.items() if "(pair)" not in label for fault in faults]
    double = [fault for label, faults in kinds.items() if "(pair)" in label for fault in faults]
    return ("one fault", single), ("two faults", double)


def print_clean(records):
    """Print how many runs without a fault have no finding that warns."""
    loud = [[f"{rule} {level}" for rule, level, _ in record["findings"] if level in ALARMS] for record in records]
    low = sum(any(level == "low" for _, level, _ in record["findings"]) for record in records)
    print(
        f"\nclean: {len(records)} runs, silent {sum(not found for found in loud)}, with a finding of severity low {low}"
    )
    for record, found in zip(records, loud, strict=True):
        if found:
            print(f"  clean-{record['seed']}: {', '.join(found)}")


def main():
    lines = Path(sys.argv[1]).read_text().splitlines()
    print_table([json.loads(line) for line in lines])


if __name__ == "__main__":
    main()
