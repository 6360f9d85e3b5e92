"""The rules that findings come from: one page each, printed by `tracekit explain`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

from tracekit.model.errors import TracekitError
from tracekit.model.labels import did_you_mean


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its id in findings, its R number, and what it is about."""

    id: str
    number: str
    title: str


RULES: tuple[Rule, ...] = (
    Rule("low-gpu-utilization", "R01", "GPUs that are idle during a stage"),
    Rule("host-sync-stalls", "R02", "Synchronising calls that leave GPUs without work"),
    Rule("launch-bound", "R03", "Many short kernels or ops, one by one"),
    Rule("data-loader-wait", "R04", "Waiting for the data loader"),
    Rule("exposed-communication", "R05", "Collectives that no compute hides"),
    Rule("no-comm-overlap", "R06", "Collectives that hardly run beside compute"),
    Rule("small-collectives", "R07", "Collectives too small and too many"),
    Rule("pageable-copies", "R08", "Copies through pageable host memory"),
    Rule("straggler", "R09", "A rank that the others wait for"),
    Rule("rank-imbalance", "R10", "Ranks that work unequally long, now one and now another"),
    Rule("rollout-tail", "R11", "Few requests that keep a rollout engine running"),
    Rule("replica-imbalance", "R12", "Rollout replicas that wait for the slowest"),
    Rule("weight-sync", "R13", "Weight sync that takes much of the step, or runs slowly"),
    Rule("offload", "R14", "Copies between GPU and host memory that nothing hides"),
    Rule("stage-edge-idle", "R15", "GPUs that are idle between one stage and the next"),
    Rule("slow-first-iterations", "R16", "Decoding that is slow at the start of a generation"),
    Rule("redundant-log-prob", "R17", "Log-probs computed in a pass of their own"),
    Rule(
        "forward-batch-size", "R18", "Forward passes in micro-batches as small as those of training"
    ),
    Rule("memory-growth", "R19", "Memory that grows from step to step"),
    Rule("memory-near-limit", "R20", "GPUs whose memory is nearly all reserved"),
    Rule("allocator-calls", "R21", "Asking the driver for memory in steady steps"),
    Rule("fragmentation", "R22", "Reserved memory that lies free in pieces too small"),
    Rule("memory-imbalance", "R23", "A rank that needs far more memory than the others"),
    Rule("no-tensor-cores", "R24", "Matrix products that tensor cores do not run"),
    Rule("unaligned-gemm", "R25", "Matrix products of sizes that tensor cores do not fit"),
    Rule("unfused-optimizer", "R26", "An optimizer that updates tensor by tensor"),
    Rule("unfused-operators", "R27", "Attention and losses made of single operators"),
    Rule("recompilation", "R28", "Compiling or loading code in steady steps"),
    Rule("host-silence", "R29", "Garbage collection, or a host that is silent for long"),
    Rule("step-variance", "R30", "Steps that differ too much for a mean"),
    Rule("ragged-micro-batches", "R31", "Micro-batches of very unequal length"),
    Rule("profiling-artefact", "R32", "What makes the numbers themselves unreliable"),
    Rule("out-of-memory", "R33", "Requests for GPU memory that failed"),
)


def rule(id_or_number: str) -> Rule:
    """The rule of that id or R number, in any case; `TracekitError` names the nearest when there is none."""
    asked = re.sub(r"\Ar([0-9])\Z", r"r0\1", id_or_number.strip().lower())
    for known in RULES:
        if asked in (known.id, known.number.lower()):
            return known
    near = did_you_mean(asked, [name for known in RULES for name in (known.id, known.number)])
    raise TracekitError(f"no rule {id_or_number!r}{near}", "tracekit explain lists all rules")


def page(id_or_number: str) -> str:
    """The page of a rule: what it measures, formula, why, what to try, when it is wrong, source."""
    known = rule(id_or_number)
    text = (
        resources.files("tracekit.analyses.rules")
        .joinpath("pages", f"{known.id}.md")
        .read_text("utf-8")
    )
    return f"# {known.number} {known.id}: {known.title}\n\n{text}"
