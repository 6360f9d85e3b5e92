"""Profiles one small real program before and after a change, each four times, as `tracekit compare` wants it.

    pip install torch==2.13.0
    python examples/make_compare_runs.py OUT [--runs 4] [--steps 6]

The change: generation keeps the keys and values of earlier tokens instead of computing all of them anew, and
the optimizer is a fused one. `OUT/base/run1` … and `OUT/opt/run1` … hold one trace each; the runs of both sides
alternate, so that what drifts on the machine meets both. One process, one thread, CPU only.
"""

import argparse
import subprocess
import sys
from pathlib import Path

WIDTH, TOKENS, BATCH = 256, 10, 32
WARMUP = 3


def run(folder: Path, steps: int, *, changed: bool) -> None:
    """One run in this process: its trace is `folder/rank0.pt.trace.json.gz`."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    query, key, value, last = layers
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=changed, foreach=False)

    @torch.no_grad()
    def generate() -> torch.Tensor:
        """Tokens one after another, each by attention over those before."""
        seen = torch.randn(BATCH, 1, WIDTH)
        kept: tuple[torch.Tensor, torch.Tensor] | None = None
        for _ in range(TOKENS):
            if changed and kept is not None:
                keys = torch.cat([kept[0], key(seen[:, -1:])], 1)
                values = torch.cat([kept[1], value(seen[:, -1:])], 1)
            else:
                keys, values = key(seen), value(seen)
            kept = keys, values
            asked = query(seen[:, -1:] if changed else seen)
            mixed = torch.softmax(asked @ keys.transpose(1, 2), -1) @ values
            seen = torch.cat([seen, torch.tanh(last(mixed))[:, -1:]], 1)
        return seen

    def update(seen: torch.Tensor) -> None:
        """One step of training on what was generated."""
        mixed = torch.softmax(query(seen) @ key(seen).transpose(1, 2), -1) @ value(seen)
        loss = (last(mixed) - seen.roll(-1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / "rank0.pt.trace.json.gz")
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=WARMUP, active=steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
    ) as profiler:
        for _ in range(WARMUP + steps):
            with record_function("gen"):
                seen = generate()
            with record_function("update_actor"):
                update(seen)
            profiler.step()


def main() -> None:
    """All runs, each in a process of its own: launches differ more than steps do."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--one", choices=("base", "opt"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run(options.out, options.steps, changed=options.one == "opt")
        return
    for number in range(1, options.runs + 1):
        for side in ("base", "opt"):
            folder = options.out / side / f"run{number}"
            command = [sys.executable, __file__, str(folder), "--one", side]
            subprocess.run([*command, "--steps", str(options.steps)], check=True)


if __name__ == "__main__":
    main()
