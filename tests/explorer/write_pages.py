"""Write the pages of the browser's acceptance tests, each with its JSON: `python write_pages.py FOLDER [NAME ...]`."""

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "tests" / "support"),
    str(ROOT / "tests" / "explorer"),
    str(ROOT / "examples" / "scale"),
]

import engine_requests  # noqa: E402
import hostile_inputs  # noqa: E402
import make_ranks  # noqa: E402
import nsys_builder as nsys  # noqa: E402

from tracekit.cli import main as run_tracekit  # noqa: E402

EXAMPLES = ROOT / "examples"
STEP_NS = 4_000_000
STEP_MARK = re.compile(r'"ProfilerStep#(\d+)"')
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize")
"""The host calls behind the idle gaps of the Nsight export, in turn. The gap of the second is twice as long."""


def write_export(folder: Path) -> Path:
    """Write an Nsight Systems export of three steps. A host call causes one long idle gap in each of them;
    wait.txt names the call behind the longest."""
    rows = [nsys.gpu()]
    for number in range(3):
        begin, call = number * STEP_NS, 100 * number
        wait = WAITS[number % 2]
        rest = 1_600_000 if number == 1 else 800_000
        rows += [
            nsys.nvtx(f"step {number + 1}", begin, begin + STEP_NS),
            nsys.nvtx("gen", begin + 10_000, begin + 915_000 + rest),
            nsys.nvtx("update_actor", begin + 915_000 + rest, begin + STEP_NS - 10_000),
            *nsys.launched("gemm", begin + 20_000, begin + 30_000, begin + 900_000, call),
            nsys.api(wait, begin + 910_000, begin + 910_000 + rest),
        ]
        at = begin + 920_000 + rest
        for place, name in enumerate(("adam", "softmax", "norm", "gelu", "rope", "embed", "loss", "clip", "scale")):
            start = at + 100_000 * place
            rows += nsys.launched(name, start, start + 8_000, start + 100_000 - 100 * place, call + 1 + place)
    (folder / "wait.txt").write_text(WAITS[1])
    return nsys.write(folder / "report.sqlite", rows)


def write_ranks(folder: Path, count: int) -> Path:
    """Write a simulated run of many ranks."""
    make_ranks.write(folder / f"{count}_ranks", count)
    return folder / f"{count}_ranks"


def write_sides(folder: Path) -> list[str]:
    """Write two sides of four ranks whose step numbers do not meet; after, rank 2 works longer than the others."""
    for name, slow, shift in (("before", [], 0), ("after", [2], 8)):
        make_ranks.stragglers = lambda ranks, slow=slow: slow
        for path, text in make_ranks.rank_texts(4, 4):
            target = folder / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(STEP_MARK.sub(lambda found, shift=shift: f'"ProfilerStep#{int(found[1]) + shift}"', text))
    return [str(folder / "before"), str(folder / "after")]


def write_logs(folder: Path) -> list[str]:
    """Write the logs of two runs: generation takes 60 s and then 50 s, the update 40 s in both, give or take some ms."""
    for name, seconds in (("slow", 60), ("fast", 50)):
        steps = [
            {"timing_s/gen": seconds + at % 3 / 1000, "timing_s/update_actor": 40 + at % 2 / 1000} for at in range(12)
        ]
        lines = [
            json.dumps({"step": at + 1, "data": {**step, "timing_s/step": sum(step.values()) + 1}})
            for at, step in enumerate(steps)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return [str(folder / "slow.jsonl"), str(folder / "fast.jsonl")]


def write_nested(folder: Path) -> list[str]:
    """Write a log whose reward takes place within generation: the other timers fill the step."""
    steps = [{"gen": 5 + at % 3 / 1000, "reward": 4 + at / 100, "update_actor": 3 + at % 2 / 1000} for at in range(12)]
    lines = []
    for at, step in enumerate(steps):
        timers = {**step, "step": step["gen"] + step["update_actor"]}
        lines.append(
            json.dumps({"step": at + 1, "data": {f"timing_s/{name}": value for name, value in timers.items()}})
        )
    (folder / "nested.jsonl").write_text("\n".join(lines) + "\n")
    return ["analyze", str(folder / "nested.jsonl")]


def write_requests(folder: Path) -> list[str]:
    """Write a log of steps with the recorded requests of its engine below it: 1 in 20 tools takes 30 to 60 s."""
    run = folder / "run_with_requests"
    (run / "engine").mkdir(parents=True, exist_ok=True)
    shutil.copy(EXAMPLES / "run_log" / "metrics.jsonl", run)
    spans, _ = engine_requests.simulate(requests=600, seed=0)
    engine_requests.write_spans(run / "engine" / "traces.jsonl", spans)
    return ["analyze", str(run)]


INPUTS: dict[str, Callable[[Path], list[str]]] = {
    "one": lambda _: ["analyze", str(EXAMPLES / "simulated_gpu"), "--ranks", "0"],
    "two": lambda _: ["analyze", str(EXAMPLES / "simulated_gpu")],
    "many": lambda folder: ["analyze", str(write_ranks(folder, 64))],
    "thousand": lambda folder: ["analyze", str(write_ranks(folder, 1_000))],
    "verl": lambda _: ["analyze", str(EXAMPLES / "verl_cpu" / "outputs" / "profile")],
    "nsys": lambda folder: ["analyze", str(write_export(folder))],
    "snapshot": lambda _: ["analyze", str(EXAMPLES / "simulated_memory" / "leaking")],
    "log": lambda _: ["analyze", str(EXAMPLES / "run_log" / "metrics.jsonl")],
    "validation": lambda _: ["analyze", str(ROOT / "tests/data/cases/rl_runs/04_validation_every_5/metrics.jsonl")],
    "nested": write_nested,
    "requests": write_requests,
    "hang": lambda _: ["analyze", str(EXAMPLES / "hang")],
    "runs": lambda _: ["analyze", str(ROOT / "tests/data/cases/rl_runs/03_length_drift")],
    "sides": lambda folder: ["compare", *write_sides(folder)],
    "logs": lambda folder: ["compare", *write_logs(folder)],
    "snapshots": lambda _: ["compare", *(str(EXAMPLES / "simulated_memory" / name) for name in ("leaking", "fixed"))],
    "comparison": lambda _: ["compare", str(EXAMPLES / "compare_cpu" / "base"), str(EXAMPLES / "compare_cpu" / "opt")],
    **hostile_inputs.list_hostile_inputs(next((EXAMPLES / "simulated_memory" / "leaking").rglob("*.pickle"))),
}


def list_commands(folder: Path, names: list[str]) -> Iterator[list[str]]:
    """The command for each page."""
    for name in names:
        outputs = [f"{folder}/{name}.{suffix}" for suffix in ("html", "json")]
        yield [*INPUTS[name](folder), "-q", *(part for output in outputs for part in ("-o", output))]


def main() -> None:
    """Write the pages that the command line names."""
    folder, *names = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for command in list_commands(Path(folder), names):
        with contextlib.suppress(SystemExit):
            run_tracekit(command)
        print(command[1], flush=True)


if __name__ == "__main__":
    main()
