"""Measures the reader of memory snapshots against the least that any safe reader must do, and prints the ratio.

    python tests/benchmarks/snapshots.py [--folder FOLDER] [--entries 500000 2000000] [--rounds 3]

That least is: read the file, scan its instructions, load it restricted. Each run is a process of its own
and counts with its fastest CPU and lowest peak, net of imports. `--viz` runs `torch.cuda._memory_viz` too,
where torch is installed. Exit status 1: a required ratio was missed.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MOST_CPU, MOST_PEAK = 2.2, 1.2
FRAMES, STACKS, LIVE = 32, 300, 2000


def write_snapshot(path: Path, entries: int, seed: int = 0) -> None:
    """A snapshot of so many actions that shares its objects as PyTorch's does: stacks of 32 frames, one device."""
    chance = random.Random(seed)
    frames = [{"name": f"function_{i}", "filename": f"/job/model/file_{i % 97}.py", "line": i} for i in range(2000)]
    kinds = [
        (chance.sample(frames, FRAMES), chance.sample(frames, FRAMES - 4), 512 * chance.randrange(1, 9000))
        for _ in range(STACKS)
    ]  # fmt: skip
    base, slot = 0x7F0000000000, 1 << 23
    live: list[tuple[int, int, list]] = []
    spare = list(range(LIVE + 1))
    trace: list[dict] = []
    now = 1_790_000_000_000_000

    def entry(action, addr, size, stack):
        nonlocal now
        now += chance.randrange(1, 40)
        trace.append(
            {
                "action": action, "addr": addr, "size": size, "stream": 0, "time_us": now,
                "compile_context": "N/A", "user_metadata": "", "frames": stack,
            }
        )  # fmt: skip

    while len(trace) < entries:
        if len(live) == LIVE:
            addr, size, freed = live.pop(chance.randrange(LIVE))
            stack = list(freed)
            entry("free_requested", addr, size, stack)
            entry("free_completed", addr, size, stack)
            spare.append((addr - base) // slot)
        made, freed, size = kinds[chance.randrange(STACKS)]
        addr = base + spare.pop() * slot
        entry("alloc", addr, size, list(made))
        live.append((addr, size, freed))
    blocks = [
        {"address": a, "size": s, "requested_size": s, "state": "active_allocated", "frames": []}
        for a, s, _ in sorted(live, key=lambda each: each[0])
    ]
    segments = [
        {
            "device": 0, "address": block["address"], "total_size": block["size"],
            "allocated_size": block["size"], "active_size": block["size"],
            "requested_size": block["size"], "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [block],
        }
        for block in blocks
    ]  # fmt: skip
    whole = {
        "segments": segments,
        "device_traces": [trace],
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": [],
    }
    with path.open("wb") as file:
        pickle.dump(whole, file, protocol=4)


def one_run(kind: str, path: Path) -> None:
    """Measure one candidate in this process and print its figures as a line of JSON."""
    from measurement import measure, write_line

    if kind == "viz":
        import pickle

        from torch.cuda import _memory_viz

        _, figures = measure(lambda: _memory_viz.trace_plot(pickle.loads(path.read_bytes())))
        write_line(figures)
        return
    from tracekit.model.trace import Source, Want
    from tracekit.readers import torch_memory
    from tracekit.readers.torch_memory import bytes as snapshot_bytes
    from tracekit.readers.torch_memory import opcodes as snapshot_opcodes

    def least():
        with snapshot_opcodes.pause_collector():
            data = snapshot_bytes.read_pickle(path)
            snapshot_opcodes.check_pickle(data, path)
            return snapshot_opcodes.unpickle(data, path)

    def ours():
        source = Source(path, path.name, "torch_memory", tool="torch_memory")
        return torch_memory.read(source, Want())[0]

    result, figures = measure(least if kind == "least" else ours)
    count = len(result["allocations"]) if kind == "ours" else len(result["device_traces"][0])
    write_line(figures, entries=count)


def run(kind: str, path: Path) -> dict:
    """The figures of one candidate, from a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--one", kind, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout)


def compare(path: Path, rounds: int, *, viz: bool) -> bool:
    """Whether our reader keeps within the limits on one file; the figures are printed."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for kind in ("least", "ours", *(["viz"] if viz else [])):
            figures = run(kind, path)
            if "error" in figures:
                print(f"{kind}: {figures['error']}")
                continue
            known = best.setdefault(kind, dict(figures))
            best[kind] = {name: min(value, known[name]) for name, value in figures.items()}
    for kind, figures in best.items():
        print(f"{path.name}: {kind:5} {figures['cpu']:7.2f} s CPU {figures['peak_mb_net_of_imports']:8.1f} MB")
    cpu, peak = (best["ours"][name] / best["least"][name] for name in ("cpu", "peak_mb_net_of_imports"))
    print(f"{path.name}: CPU {cpu:.2f} (at most {MOST_CPU}), peak {peak:.2f} (at most {MOST_PEAK})")
    return cpu <= MOST_CPU and peak <= MOST_PEAK


def main() -> None:
    """Make the files that are missing, measure on each, and exit 1 where a ratio was missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--one", nargs=2, metavar=("KIND", "FILE"))
    options.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--entries", type=int, nargs="+", default=[500_000, 2_000_000])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--viz", action="store_true")
    chosen = options.parse_args()
    if chosen.one:
        one_run(chosen.one[0], Path(chosen.one[1]))
        return
    passed = []
    for entries in chosen.entries:
        path = chosen.folder / f"snapshot_{entries}.pickle"
        if not path.exists():
            write_snapshot(path, entries)
        passed.append(compare(path, chosen.rounds, viz=chosen.viz))
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
