"""Run a small job on gloo that hangs, or does not, and dump the flight recorder and the stacks of every rank.

    python hanging_job.py CASE FOLDER

CASE is a function below: the first four hang. FOLDER gets `trace_rank_N` (pickle), `trace_rank_N.json`, `stacks_rankN.txt`
(faulthandler) and `written.json`, when each pickle was written. The dumps in `tests/data/hangs` were made with it and torch
2.13.0 for CPUs. gloo ends a process that gets more bytes than it expects; here the process stays, as a GPU's would.
"""

import ctypes
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

RANKS = 3
DUMP_AFTER_S = 7.0
ALIVE_DUMP_AFTER_S = 2.0


def missing(rank):
    """Rank 1 never calls the fourth all_reduce: it believes that training is over."""
    for _ in range(3):
        reduce_gradients()
    if rank == 1:
        wait_for_shutdown()
    reduce_gradients()


def size(rank):
    """Rank 1 reduces 16 numbers where the others reduce 8."""
    reduce_gradients()
    reduce_gradients(16 if rank == 1 else 8)
    wait_for_shutdown()


def op(rank):
    """Rank 1 gathers where the others reduce."""
    reduce_gradients()
    if rank == 1:
        gather_metrics()
    reduce_gradients()


def python(rank):
    """Rank 2 computes a reward in Python, forever, while the others wait in the barrier of the update."""
    group = dist.new_group([0, 1, 2])
    for _ in range(2):
        reduce_gradients()
        dist.all_reduce(torch.ones(4), group=group)
    if rank == 2:
        compute_reward()
    dist.barrier(group=group)


def finished(rank):
    """All collectives finished; the job waits for nothing."""
    for _ in range(4):
        reduce_gradients()
    gather_metrics()
    dist.barrier()
    wait_for_shutdown()


def uneven(rank):
    """Ranks need different times per step, and the job runs on while it is dumped."""
    for step in range(400):
        time.sleep(0.02 * (rank + 1) if step % 10 else 0.2 * (rank == 2))
        reduce_gradients()


def subgroup(rank):
    """Ranks 0 and 1 have a group of their own, in which rank 2 never calls anything."""
    pair = dist.new_group([0, 1])
    for _ in range(5):
        if rank < 2:
            dist.all_reduce(torch.ones(4), group=pair)
        reduce_gradients()
    wait_for_shutdown()


def p2p(rank):
    """Ranks pass numbers round, unequally often."""
    for _ in range(3):
        if rank == 0:
            dist.send(torch.ones(4), 1)
        elif rank == 1:
            dist.recv(torch.empty(4), 0)
            dist.send(torch.ones(2), 2)
        else:
            dist.recv(torch.empty(2), 1)
    reduce_gradients()
    wait_for_shutdown()


def restart(rank):
    """The group is destroyed and made again, so its sequence numbers begin at 1 again."""
    for _ in range(5):
        reduce_gradients()
    dist.destroy_process_group()
    connect(rank, Path(os.environ["HANG_FOLDER"]) / "store2")
    for _ in range(2):
        reduce_gradients()
    wait_for_shutdown()


def reduce_gradients(count=8):
    """Reduce some numbers over all ranks."""
    dist.all_reduce(torch.ones(count))


def gather_metrics():
    """Gather some numbers of all ranks."""
    dist.all_gather([torch.empty(8) for _ in range(RANKS)], torch.ones(8))


def compute_reward():
    """Compute something endless in Python."""
    total = 0
    while True:
        total += 1
        if total % 1000 == 0:
            time.sleep(0.001)


def wait_for_shutdown():
    """Wait for the end of the program, outside any collective."""
    threading.Event().wait()


def connect(rank, store):
    """Join the job."""
    address = f"file://{store}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS, timeout=timedelta(seconds=120))


def dump_later(rank, folder, after_s):
    """Dump the recorder in both forms and the stacks, wait for the other ranks, and end the process."""
    time.sleep(after_s)
    recorder = torch._C._distributed_c10d
    (folder / f"trace_rank_{rank}").write_bytes(recorder._dump_fr_trace())
    written_ns = time.time_ns()
    text = recorder._dump_fr_trace_json()
    (folder / f"trace_rank_{rank}.json").write_text(text if isinstance(text, str) else text.decode())
    with (folder / f"stacks_rank{rank}.txt").open("w") as file:
        faulthandler.dump_traceback(file)
    (folder / f"written_{rank}").write_text(str(written_ns))
    while len(list(folder.glob("written_*"))) < RANKS:
        time.sleep(0.05)
    time.sleep(0.5)
    os._exit(0)


def keep_after_abort():
    """Keep the process when gloo aborts it: the thread that aborts sleeps in the handler."""
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: time.sleep(3600))
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)
    return handler


def run_rank(case, folder, rank):
    """Run one rank of the job."""
    handler = keep_after_abort()
    connect(rank, folder / "store")
    after_s = ALIVE_DUMP_AFTER_S if case is uneven else DUMP_AFTER_S
    threading.Thread(target=dump_later, args=(rank, folder, after_s), daemon=True).start()
    try:
        case(rank)
    except RuntimeError:
        wait_for_shutdown()
    assert handler is not None


def main(name, folder):
    """Run all ranks of one case."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000", "HANG_FOLDER": str(folder.resolve())}
    ranks = [
        subprocess.Popen([sys.executable, __file__, name, str(folder.resolve()), str(rank)], env=environment)
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.wait(120)
    written = {rank: int((folder / f"written_{rank}").read_text()) for rank in range(RANKS)}
    (folder / "written.json").write_text(json.dumps(written) + "\n")
    for leftover in [*folder.glob("store*"), *folder.glob("written_*")]:
        leftover.unlink()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        import torch
        import torch.distributed as dist

        run_rank(globals()[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(sys.argv[1], Path(sys.argv[2]))
