"""One repetition after another of a small job with threads, start and stop, forks and signals, without a profiler and with one.

    python tests/support/capture_stress.py none|capture|verl FOLDER [SECONDS]

Needs torch, and verl for `verl`. Each repetition is a forked process: it computes, forks, is signalled at a random moment and ends, the
same for every profiler. One line of JSON tells each outcome: the exit status, what was computed, how its own child
ended; `"hangs"` where that took longer than SECONDS.
"""

import contextlib
import itertools
import json
import os
import random
import select
import signal
import sys
import threading
import time

THREADS, AUTOGRAD = (0, 3), (False, True)
STARTED = ("on main", "on others", "all threads")
FORK = ("no fork", "in a stage", "after")
SIGNAL = ("none", "SIGUSR2", "SIGTERM")
CONTENTS = (["cpu"], ["cpu", "stack"], ["cpu", "shapes"], ["cpu", "memory"])
CASES = [*itertools.product(THREADS, AUTOGRAD, STARTED, FORK, SIGNAL)]
CAPTURES, INPUTS, LASTS_S = 2, 8, 0.005


def make_profiler(kind, folder, contents, discrete):
    """(decorator of stages, profiler) of this kind."""
    if kind == "verl":
        from verl.utils.profiler import DistProfiler
        from verl.utils.profiler.config import ProfilerConfig, TorchProfilerToolConfig

        tool = TorchProfilerToolConfig(contents=contents, discrete=discrete)
        config = ProfilerConfig(tool="torch", enable=True, save_path=folder, tool_config=tool)
        return DistProfiler.annotate, DistProfiler(0, config, tool_config=tool)
    from capture import DistProfiler

    tool = {"torch": {"contents": contents, "discrete": discrete}}
    config = {"tool": "torch", "enable": kind == "capture", "save_path": folder, "tool_config": tool}  # fmt: skip
    return DistProfiler.annotate, DistProfiler(0, config)


def make_worker(kind, folder, contents, discrete, autograd):
    """A worker with one stage, which may fork."""
    import torch

    annotate, profiler = make_profiler(kind, folder, contents, discrete)

    class Worker:
        def __init__(self):
            self.profiler = profiler

        @annotate(role="work")
        def work(self, number, fork=False):
            x = torch.full((4, 4), float(number), requires_grad=autograd)
            y = (x @ x).sum()
            if autograd:
                y.backward()
                y = x.grad.sum()
            return float(y.detach()), os.fork() if fork else None

    return Worker()


def on_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def end_of(child):
    """How a process ended: its exit status, or `hangs`."""
    until = time.monotonic() + LONGEST / 2
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def repeat(kind, folder, case, number):
    """One repetition: what is computed, and how its child ended."""
    threads, autograd, started, fork, sent = case
    os.environ["CAPTURE_ALL_THREADS"] = str(int(started == "all threads"))
    if kind == "capture":
        from capture import on_signal

        on_signal.install()
    contents, discrete = CONTENTS[number % len(CONTENTS)], number % 3 == 2
    worker = make_worker(kind, folder, contents, discrete, autograd)
    values, over = [{} for _ in range(threads)], threading.Event()

    def loop(place):
        for count in itertools.count():
            if count >= INPUTS and over.is_set():
                return
            result = worker.work(count % INPUTS)[0]
            if values[place].setdefault(count % INPUTS, result) != result:
                values[place]["differs"] = count
            time.sleep(0.001)  # others want the interpreter too

    others = [threading.Thread(target=loop, args=(place,)) for place in range(threads)]
    for thread in others:
        thread.start()
    call = on_thread if started == "on others" else lambda action: action()
    if sent == "SIGTERM" or (sent == "SIGUSR2" and kind != "none"):  # unhandled, it ends a process
        asked = getattr(signal, sent)
        delay = random.Random(number).random() / 10
        timer = threading.Timer(delay, os.kill, (os.getpid(), asked))
        timer.daemon = True
        timer.start()
    ended = None
    for step in range(CAPTURES):
        call(lambda step=step: worker.profiler.start(role="train", profile_step=step))
        value, child = worker.work(step, fork=fork == "in a stage" and step == 1)
        if child == 0:
            worker.work(1)
            sys.exit(7)
        time.sleep(LASTS_S)
        call(worker.profiler.stop)
        values.append(value)
        ended = end_of(child) if child else ended
    over.set()
    for thread in others:
        thread.join()
    if fork == "after":
        child = os.fork()
        if child == 0:
            sys.exit(7)
        ended = end_of(child)
    if sent == "SIGTERM":
        time.sleep(LONGEST)
    return {"values": values, "child": ended}


def run_in_fork(kind, folder, case, number):
    """The outcome of a repetition in a process of its own."""
    reads, writes = os.pipe()
    process = os.fork()
    if process == 0:
        os.setpgid(0, 0)
        os.close(reads)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        outcome = repeat(kind, folder, case, number)
        os.write(writes, json.dumps(outcome).encode())
        sys.exit(0)
    os.close(writes)
    text = b""
    ready = select.select([reads], [], [], LONGEST)[0]
    if ready:
        text = os.read(reads, 1 << 16)
    os.close(reads)
    status = end_of(process)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    outcome = json.loads(text) if text and status == 0 else {}
    return {"exit": status, **outcome}


def main():
    """All cases with this profiler; a third of them with verl's."""
    kind, folder = sys.argv[1:3]
    import torch

    torch.set_num_threads(1)
    make_profiler(kind, folder, ["cpu"], False)
    import torch.profiler

    with contextlib.suppress(ImportError):  # the first profile of a process imports it, in seconds
        import torch._inductor.standalone_compile
    every = 3 if kind == "verl" else 1  # what hangs takes long
    for number, case in enumerate(CASES):
        if number // len(SIGNAL) % every:
            continue
        outcome = run_in_fork(kind, folder, case, number)
        sys.stdout.write(json.dumps([case, outcome]) + "\n")
        sys.stdout.flush()


LONGEST = float(sys.argv[3]) if __name__ == "__main__" and len(sys.argv) > 3 else 30.0

if __name__ == "__main__":
    main()
