"""What becomes of a training that goes wrong while it is profiled: with no profiler, with verl's and with capture's.

    python tests/benchmarks/capture_faults.py [FAULT…]

Run where `TRACEKIT_VERL_PYTHON` names a Python that has verl, or by that Python. Prints a table in Markdown. Exit status
1: under capture a training computed or ended otherwise than unprofiled, or a trace is not what it should be.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from fault_programs import FAULTS
from fault_traces import Left, left_by


def outcome(left: Left, unprofiled: Left) -> str:
    """What became of the training, and of the profile."""
    same = (left.exit, left.value) == (unprofiled.exit, unprofiled.value)
    return f"{'same' if same else f'**{_ended(left)}**'}; {_profile(left)}"


def _ended(left: Left) -> str:
    if left.exit == "hangs":
        return "hangs"
    last = left.stderr.strip().splitlines()[-1:] or [""]
    raised = last[0][:60].replace("|", "/") if left.exit == 1 else ""
    return f"exit {left.exit} {raised}".strip() + (f", {json.dumps(left.value)}" if not raised else "")  # fmt: skip


def _profile(left: Left) -> str:
    """The ranges of the traces; of a stage that is not over when it returns, how much of its work its range holds."""
    told = [", ".join(f"{name}×{count}" for name, count in one.items()) or "empty" for one in left.counted()]  # fmt: skip
    traces = " + ".join(told) if told else "no trace"
    traces += "".join(f" ({inside} inside {outer})" for outer, inside in _inside(left))
    return traces + (", manifest open" if left.open_manifests else "")


def _inside(left: Left) -> list[tuple[str, int]]:
    """(stage, how many `work` ranges lie within it) of generators and coroutines that ran alone."""
    found = []
    for trace in left.traces:
        outer = [one for one in trace if one[0] in ("streams", "waits")]
        if len(outer) == 1:
            ((name, start, length),) = outer
            works = [(s, s + n) for called, s, n in trace if called == "work"]
            found.append((name, sum(start <= s and end <= start + length for s, end in works)))
    return found


def main(names: list[str]) -> int:
    """Prints the table."""
    print("| what happens | unprofiled | under verl's profiler | under capture |\n|---|---|---|---|")
    wrong = []
    for name in names or FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            left = {}
            for who in ("nobody", "verl", "capture"):
                place = Path(folder) / who
                place.mkdir()
                left[who] = left_by(who, name, place)
        unprofiled, ours = left["nobody"], left["capture"]
        if (ours.exit, ours.value) != (unprofiled.exit, unprofiled.value):
            wrong.append(f"{name}: the training: {ours.exit} {ours.value}\n{ours.stderr[-1500:]}")
        if FAULTS[name].traces is not None and ours.counted() != sorted(FAULTS[name].traces, key=str):
            wrong.append(f"{name}: the traces: {ours.counted()}\n{ours.stderr[-1500:]}")
        words = [f"exit {unprofiled.exit}", outcome(left["verl"], unprofiled), outcome(ours, unprofiled)]  # fmt: skip
        print(f"| {FAULTS[name].about} | " + " | ".join(words) + " |", flush=True)
    print("\n".join(["", *wrong]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
