"""Write profiles whose names try to break out of the page: of kernels, ops, stages, threads, roles, files, frames and log keys."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import chrome_builder as chrome
import nsys_builder as nsys

NAMES = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "\"'><img src=x onerror=alert(3)>",
    "</noscript><img src=x onerror=alert(4)>",
    "<!--<script>",
    "line\u2028and\u2029paragraph",
    "user\u202egnp.exe\u2066",
    "x" * 10_000,
    "__proto__",
    "constructor",
    "hasOwnProperty",
    "{{head}}{{code}}",
    "&lt;b&gt;",
    "</title></style><svg onload=alert(5)>",
)
STEP_US = 5_000
LOG_STEPS = 6
FILE_NAME = "<img src=x onerror=alert(6)>&{{head}}__proto__"
"""A part of file and folder names, which have no slash."""


def get_length_us(place: int, *, faster: bool = False) -> int:
    """Get the length of each kernel and op of a name, different for all names."""
    return 20 + 5 * place - (3 if faster else 0)


def list_rows(step: int, *, gpu: bool, faster: bool) -> list[dict]:
    """List the rows of a step: a stage, an op and a kernel of each name."""
    begin = step * STEP_US
    rows = [chrome.step(step, begin, STEP_US - 10)]
    for place, name in enumerate(NAMES):
        at = begin + 20 + 300 * place
        length = get_length_us(place, faster=faster)
        rows += [
            chrome.annotation(name, at, 290),
            chrome.annotation(f"layer {name}", at + 1, 280),
            chrome.op(name, at + 2, length),
        ]
        if gpu:
            rows += chrome.launched(name, at + 4, at + 10, length, 100 * step + place)
    return rows


def write_traces(folder: Path, *, gpu: bool, faster: bool = False) -> Path:
    """Write traces of two ranks of a hostile role, in a folder with a hostile name."""
    for rank in (0, 1):
        rows = [row for step in (1, 2, 3) for row in list_rows(step, gpu=gpu, faster=faster)]
        rows.append(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": chrome.HOST_PID,
                "tid": chrome.MAIN,
                "args": {"name": NAMES[rank]},
            }
        )
        path = folder / FILE_NAME / f"{FILE_NAME}_train_step1_rank{rank}-of-2_pid{100 + rank}_20261120073303136.json"
        chrome.write(path, rows, rank=rank, world_size=2)
    return folder


def write_export(folder: Path) -> Path:
    """Write an Nsight Systems export: kernels, calls and NVTX ranges of each name."""
    rows = [nsys.gpu(name=NAMES[0])]
    for step in range(3):
        begin = step * STEP_US * 1_000
        rows.append(nsys.nvtx(f"step {step + 1}", begin, begin + STEP_US * 1_000))
        for place, name in enumerate(NAMES):
            at = begin + 20_000 + 300_000 * place
            length = get_length_us(place) * 1_000
            rows += [
                nsys.nvtx(name, at, at + 290_000),
                *nsys.launched(name, at + 4_000, at + 10_000, at + 10_000 + length, 100 * step + place + 1),
            ]
            rows.append(nsys.api(name, at + 200_000, at + 250_000))
    return nsys.write(folder / f"{FILE_NAME}.sqlite", rows)


def write_snapshot(folder: Path, example: Path) -> Path:
    """Write a memory snapshot with hostile functions and files in every frame."""
    snapshot = pickle.loads(example.read_bytes())
    names: dict[str, str] = {}

    def rename(value: object) -> None:
        if isinstance(value, dict):
            if "filename" in value:
                for key in ("name", "filename"):
                    value[key] = names.setdefault(value[key], NAMES[len(names) % len(NAMES)])
            for item in value.values():
                rename(item)
        elif isinstance(value, list):
            for item in value:
                rename(item)

    rename(snapshot)
    path = folder / FILE_NAME / f"torch_memory_rank0_{FILE_NAME}.pickle"
    path.parent.mkdir(parents=True)
    path.write_bytes(pickle.dumps(snapshot))
    return path.parent


def write_log(folder: Path) -> Path:
    """Write a driver's log with a timer of each name."""
    lines = []
    for step in range(1, LOG_STEPS + 1):
        timers = {f"timing_s/{name}": get_length_us(place) / 10 for place, name in enumerate(NAMES)}
        whole = {"timing_s/gen": 5.0, "timing_s/update_actor": 4.0, "timing_s/step": 9.5 + sum(timers.values())}
        lines.append(json.dumps({"step": step, "data": {**timers, **whole, **{f"{name}/mean": 1.0 for name in NAMES}}}))
    path = folder / FILE_NAME / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def list_hostile_inputs(example: Path) -> dict[str, Callable[[Path], list[str]]]:
    """List the commands of hostile inputs by the name of their page."""

    def compare(folder: Path) -> list[str]:
        sides = (write_traces(folder / f"side{number}", gpu=True, faster=bool(number)) for number in (0, 1))
        return ["compare", *map(str, sides)]

    return {
        "hostile_gpu": lambda folder: ["analyze", str(write_traces(folder / "gpu", gpu=True))],
        "hostile_cpu": lambda folder: ["analyze", str(write_traces(folder / "cpu", gpu=False))],
        "hostile_nsys": lambda folder: ["analyze", str(write_export(folder))],
        "hostile_snapshot": lambda folder: ["analyze", str(write_snapshot(folder / "memory", example))],
        "hostile_log": lambda folder: ["analyze", str(write_log(folder / "log"))],
        "hostile_comparison": compare,
    }
