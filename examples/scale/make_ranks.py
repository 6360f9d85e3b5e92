"""Writes a simulated run of many ranks, one small trace a rank: `python make_ranks.py 1000 FOLDER [--steps 5]`.

The steps of `../simulated_gpu` are repeated with other ranks, hosts, processes and clocks: **nothing here was
measured**, and every file says so. All ranks meet in the collectives of one group, and leave them at the
same moment by clocks that are wrong by some milliseconds, other ones on every host.

What there is to find: the ranks of `stragglers` work longer in the update, and all others wait for them; on
the hosts of `slow_hosts` kernels take 6 % longer. Standard library only, the same bytes on every machine.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

PROFILE = Path(__file__).parents[1] / "simulated_gpu" / "outputs" / "profile"
NOTICE = "SIMULATED: repeated by examples/scale/make_ranks.py; no GPU ran, nothing was measured"
GPUS = 8
"""Ranks of one host."""
STEPS = ("ProfilerStep#6", "ProfilerStep#7", "ProfilerStep#5")
"""Recorded steps, in the order in which they are repeated."""
PAUSE_NS = 500_000
"""Between two steps: what the last step has launched ends in it."""
VARIANTS = 8
"""So many lengths have the kernels of ranks that do the same: 0.93 to 0.944 of the recorded ones."""
START_NS = 1_795_160_500_000_000_000
PID, TID, DEVICE = 41_000_000, 42_000_000, 43_000_000
"""Stand for the numbers of a rank in the text that ranks share."""

Event = dict[str, Any]


def stragglers(ranks: int) -> list[int]:
    """The ranks that have more to do in the update than all others."""
    return [*range(5, ranks, 331)]


def slow_hosts(ranks: int) -> list[int]:
    """The hosts whose GPUs take longer for everything that they compute."""
    return [*range(2, -(-ranks // GPUS), 64)]


def host_name(host: int) -> str:
    """The name that a host has in its traces; it is also that of its folder."""
    return f"simulated-host-{host:03d}"


def ns(microseconds: Decimal) -> int:
    """Whole nanoseconds."""
    return round(microseconds * 1000)


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded step: its events, the zero of their times and when it began, in ns, and how long it was."""

    events: list[Event]
    base_ns: int
    begin_ns: int
    dur_ns: int


@cache
def trace_of(template: int) -> dict[str, Any]:
    """The recorded trace of rank 0 or 1."""
    path = PROFILE / f"simulated_rank{template}.pt.trace.json.gz"
    return dict(json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal))


@cache
def recorded(template: int, name: str) -> Step:
    """A step of a recorded rank with all that it launched; of its decoding only the first tokens, as files are small."""
    trace = trace_of(template)
    events = [event for event in trace["traceEvents"] if event["ph"] in "Xi" and "cat" in event]
    step = next(event for event in events if event["name"] == name)
    first, last = step["ts"], step["ts"] + step["dur"]
    host = [e for e in events if e["pid"] == step["pid"] and first <= e["ts"] < last]
    decoding = next(event for event in host if event["name"] == "rollout_generate")
    until, end = decoding["ts"] + decoding["dur"] / 6, decoding["ts"] + decoding["dur"]
    host = [event for event in host if not until < event["ts"] < end]
    launched = {e["args"]["correlation"] for e in host if e["cat"] == "cuda_runtime"}
    work = [e for e in events if e.get("args", {}).get("correlation") in launched]
    on_device = [e for e in work if e["cat"] != "cuda_runtime"]
    base = int(trace["baseTimeNanoseconds"])
    return Step([*host, *on_device], base, base + ns(first), ns(step["dur"]))


def shared_text(template: int, length: Decimal, steps: int, ranks: int) -> str:
    """The events of all steps as the ranks of one kind share them; kernels last `length` of the recorded time."""
    lines = []
    begin_ns = sequence = 0
    for number in range(steps):
        name = STEPS[number % len(STEPS)]
        step, first = recorded(template, name), recorded(0, name)
        numbers = {e["args"]["Seq"] for e in step.events if "Seq" in e.get("args", {})}
        shift = step.base_ns - first.begin_ns + begin_ns
        moved = Moved(number, shift, sequence - min(numbers) + 1, length, ranks)
        lines += [line(event, moved) for event in step.events]
        begin_ns += first.dur_ns + PAUSE_NS
        sequence += len(numbers)
    return ",\n".join(lines)


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a recorded step goes: its number, by how much times and collectives move, and for whom."""

    number: int
    shift_ns: int
    shift_sequence: int
    length: Decimal
    ranks: int


def line(event: Event, moved: Moved) -> str:
    """One event of a step that moves, as one line of JSON."""
    args = {k: v for k, v in event["args"].items() if k not in ("Ev Idx", "Record function id")}
    for key in ("correlation", "External id"):
        if key in args:
            args[key] += moved.number * 100_000
    at, dur = ns(event["ts"]) + moved.shift_ns, ns(event.get("dur", Decimal(0)))
    if "Seq" in args:
        args["Seq"] += moved.shift_sequence
        args |= {"Group size": moved.ranks, "Process Group Ranks": members(moved.ranks)}
    elif event["cat"] == "kernel":
        dur = int(dur * moved.length)
    args |= dict.fromkeys(args.keys() & {"device", "Device Id"}, DEVICE)
    name = f"ProfilerStep#{moved.number + 1}" if event["name"] in STEPS else event["name"]
    host = event["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset")
    tid = (PID if event["tid"] == event["pid"] else TID) if host else event["tid"]
    where = f'"pid": {PID if host else DEVICE}, "tid": {tid}, "ts": {at // 1000}.{at % 1000:03d}'
    long = f'"dur": {dur // 1000}.{dur % 1000:03d}' if event["ph"] == "X" else '"s": "t"'
    head = f'"ph": "{event["ph"]}", "cat": "{event["cat"]}", "name": {json.dumps(name)}'
    return f'{{{head}, {where}, {long}, "args": {json.dumps(args, default=float)}}}'


def members(ranks: int) -> str:
    """The ranks of a group as PyTorch writes them: long lists are cut short."""
    if ranks <= 30:
        return json.dumps([*range(ranks)])
    return f"[{', '.join(map(str, range(29)))}, ..., {ranks - 1}]"


def head_of(rank: int, ranks: int) -> str:
    """Everything of a rank's file before its events."""
    host = rank // GPUS
    # A multiple of 11 ns tells that offsets are solved to the nanosecond, not rounded.
    wrong = (host * 37 % 11 - 5) * 1_000_011
    device = {
        "name": "Simulated GPU",
        "totalGlobalMem": 80 * 2**30,
        "computeMajor": 9,
        "numSms": 132,
    }
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}
    known = {
        "schemaVersion": 1,
        "simulated": NOTICE,
        "deviceProperties": [{"id": index, **device} for index in range(GPUS)],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": ranks,
            "pg_count": 1,
            "pg_config": [{**group, "pg_size": ranks, "ranks": [*range(ranks)]}],
            "nccl_version": "2.27.5",
        },
        "record_shapes": 1,
        "profile_memory": 1,
        "trace_id": f"52{rank:030d}",
        "host_name": host_name(host),
        "baseTimeNanoseconds": START_NS + wrong,
    }
    return json.dumps(known)[:-1] + ', "traceEvents": [\n'


def rank_texts(ranks: int, steps: int) -> Iterator[tuple[str, str]]:
    """(path in the folder, text) of every rank's file."""
    late, slow = set(stragglers(ranks)), set(slow_hosts(ranks))
    shared: dict[tuple[int, Decimal], str] = {}
    for rank in range(ranks):
        host = rank // GPUS
        length = Decimal("0.93") + Decimal("0.002") * (rank * 7 % VARIANTS)
        kind = int(rank in late), length + Decimal("0.056") * (host in slow)
        if kind not in shared:
            shared[kind] = shared_text(*kind, steps, ranks)
        pid = 41_000 + rank
        events = shared[kind].replace(str(PID), str(pid)).replace(str(TID), str(pid + 60_000))
        events = events.replace(str(DEVICE), str(rank % GPUS))
        name = f"{host_name(host)}/simulated_rank{rank}.pt.trace.json.gz"
        yield name, f'{head_of(rank, ranks)}{events}\n], "traceName": "simulated.json"}}\n'


def write(folder: Path, ranks: int, steps: int = 5) -> Path:
    """The folder, which then holds a trace of every rank."""
    for name, text in rank_texts(ranks, steps):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), 1, mtime=0))
    return folder


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ranks", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    write(options.folder, options.ranks, options.steps)
    sizes = [path.stat().st_size for path in options.folder.rglob("*.gz")]
    sys.stdout.write(f"{len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB: {options.folder}\n")


if __name__ == "__main__":
    main()
