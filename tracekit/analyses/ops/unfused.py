"""Which attention and losses are made of single operators? (rule R27)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import canonical_stages, label_headings, ordered, same_text
from tracekit.job.stage_work import StageWork, by_stage
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.keys import summed
from tracekit.model.report import Finding, Heading, Metric, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import CLASS_WORK, STAGE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.shapes import DIMS, TYPES, owners, shapes
from tracekit.process.stage_at import stage_at, stage_names
from tracekit.process.unfused import Unfused, attention_extra, unfused
from tracekit.process.work_classes import Spans, on_device, on_host

UNFUSED_WORK = Table(
    "unfused_work",
    "work of unfused operators that one stage launched, on one device (on the host where none is)",
    {
        **KEYS,
        "stage": STAGE,
        "class": Column(
            "category",
            "all | attention (what is launched between its two products) | loss (log-softmax over a"
            " vocabulary, and 32-bit copies of its width).",
            ("all", "attention", "loss"),
        ),
        **CLASS_WORK,
    },
)

UNFUSED_CALLS = Table(
    "unfused_calls",
    "unfused operators of one stage of one source",
    {
        **KEYS,
        "stage": STAGE,
        "class": Column("category", "attention | loss | copy.", ("attention", "loss", "copy")),
        "count": Column(
            "int64", "Attention: softmax calls between two products; calls of the others."
        ),
        "size_bytes": Column("Int64", "Bytes written by the copies."),
    },
)


Ints = npt.NDArray[np.int64]

NOT_RECORDED = "input shapes were not recorded: profile with record_shapes=True"


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """What unfused attention and losses take of each stage; their calls and the bytes of their copies."""
    if not trace.derived(shapes).dims:
        return {}
    recorded: Unfused = trace.derived(unfused)
    calls = {"attention": recorded.softmax, "loss": recorded.loss, "copy": recorded.copies}
    if not sum(len(rows) for rows in calls.values()):
        return {"unfused_calls": {}, "unfused_work": {}}
    if trace.has("device_ops"):
        losses = np.zeros(len(trace.numbers("host_ops", "ts_ns")), np.bool_)
        losses[recorded.loss] = losses[recorded.copies] = True
        all_ops = np.ones(len(trace.numbers("device_ops", "ts_ns")), np.bool_)
        work = on_device(
            trace,
            {
                "all": all_ops,
                "attention": attention_extra(trace, recorded),
                "loss": owners(trace, losses) >= 0,
            },
        )
    else:
        work = on_host(trace, _spans(trace, recorded))
    return {"unfused_calls": _calls(trace, calls, recorded), "unfused_work": work}


def _spans(trace: Trace, found: Unfused) -> dict[str, Spans]:
    """On the host: the time between the two products of an attention, and the calls of a loss."""
    thread = trace.numbers("host_ops", "thread")
    start = trace.numbers("host_ops", "ts_ns")
    dur = trace.numbers("host_ops", "dur_ns")
    end, name = start + dur, trace.texts("host_ops", "name").codes
    loss = np.concatenate((found.loss, found.copies))
    return {
        "attention": Spans(
            thread[found.first], end[found.first], start[found.last], name[found.softmax]
        ),
        "loss": Spans(thread[loss], start[loss], end[loss], name[loss]),
    }


def _calls(trace: Trace, calls: Mapping[str, Ints], found: Unfused) -> dict[str, Any]:
    """One row a (class, stage)."""
    rows = np.concatenate(list(calls.values()))
    kind = np.repeat(np.arange(len(calls)), [len(kind_rows) for kind_rows in calls.values()])
    stage = stage_at(trace, trace.numbers("host_ops", "ts_ns")[rows])
    names = [*stage_names(trace), None]
    keys, group = np.unique(kind * len(names) + stage + 1, return_inverse=True)
    size = np.concatenate((np.zeros(len(rows) - len(found.copies), np.int64), found.copy_bytes))
    return {
        "stage": np.array(names, object)[keys % len(names) - 1],
        "class": [list(calls)[k] for k in (keys // len(names)).tolist()],
        "count": np.bincount(group, minlength=len(keys)),
        "size_bytes": summed(group, size, len(keys)),
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """What unfused attention and losses take of each stage; finding R27."""
    if not measured.has("unfused_work"):
        verdict = Verdict(ANALYSIS.rules[0], "insufficient data", "input shapes were not recorded")
        return ANALYSIS.skipped(NOT_RECORDED, verdicts=(verdict,))
    calls = measured["unfused_calls"]
    calls = calls.assign(canonical=canonical_stages(calls, in_file=True))
    if not len(calls):
        reason = "neither attention nor a loss over a vocabulary is made of single operators"
        return ANALYSIS.answered(caveats=(reason,))
    work = [w for kind in KINDS for w in by_stage(measured, kind, table="unfused_work")]
    kinds = [kind for kind in KINDS for _ in by_stage(measured, kind, table="unfused_work")]
    findings = [
        finding
        for kind, stage_work in zip(kinds, work, strict=True)
        for finding in _unfused(kind, stage_work, _of(calls, stage_work), thresholds)
    ]
    on_gpu = any(stage_work.on_gpu for stage_work in work)
    return ANALYSIS.answered(
        sheets=with_rows(_sheet(measured, kinds, work, calls, on_gpu=on_gpu)),
        findings=tuple(findings),
    )


KINDS = ("attention", "loss")


def _of(calls: pd.DataFrame, work: StageWork) -> pd.DataFrame:
    """The calls of the stage of `one`."""
    of_stage = same_text(calls["run"], work.window.run) & same_text(calls["role"], work.window.role)
    return calls[of_stage & same_text(calls["canonical"], work.window.canonical)]


def _sheet(
    measured: Measurements,
    kinds: list[str],
    work: list[StageWork],
    calls: pd.DataFrame,
    *,
    on_gpu: bool,
) -> Any:
    """The stages with what unfused operators take of them, most first."""
    rows = pd.DataFrame(
        [
            (
                stage_work.window.run,
                stage_work.window.role,
                stage_work.window.canonical or "(outside any stage)",
                WHAT[kind],
                stage_work.busy_ns,
                stage_work.ratio,
                _sum(_of(calls, stage_work), kind, "count"),
                _sum(_of(calls, stage_work), "copy", "size_bytes") if kind == "loss" else None,
            )
            for kind, stage_work in zip(kinds, work, strict=True)
        ],
        columns=["run", "role", "stage", "what", "busy_ns", "ratio", "count", "size_bytes"],
    )
    rows = ordered(rows, busy_ns=False, stage=True, what=True)
    time = "GPU busy" if on_gpu else "host time"
    headings = (
        *label_headings(measured),
        *as_headings("""
            stage | stage
            what | what
        """),
        Heading(
            "busy_ns",
            time,
            "ns",
            "Over all processes and steps; attention: without its two products.",
        ),
        Heading(
            "ratio",
            "share",
            "ratio",
            "Of the GPU work that the stage launches." if on_gpu else "Of the stage's wall.",
        ),
        *as_headings("""
            count | calls | count
            size_bytes | 32-bit copies | bytes | Bytes written when 16-bit numbers were copied to 32 bits.
        """),
    )
    return sheet("unfused", "Attention and losses made of single operators", headings, rows)


WHAT = {"attention": "between the products of attention", "loss": "loss over a vocabulary"}


def _sum(calls: pd.DataFrame, kind: str, column: str) -> int:
    return int(calls.loc[calls["class"] == kind, column].sum())


def _unfused(
    kind: str, one: StageWork, calls: pd.DataFrame, thresholds: Thresholds
) -> Iterator[Finding]:
    """R27: attention without a fused kernel; a loss over a vocabulary with 32-bit copies."""
    limit = thresholds.of("unfused-operators")
    copied = _sum(calls, "copy", "size_bytes")
    if one.ratio is None or one.ratio < limit["stage_ratio"] or (kind == "loss" and not copied):
        return
    gain, ratio = one.per_step(one.busy_ns)
    share = (
        f"{show(one.ratio, 'ratio')} of {'the GPU work of ' if one.on_gpu else ''}{one.window.name}"
    )
    numbers: tuple[Metric, ...] = (
        evidence("unfused_ratio", one.ratio, "of its GPU work" if one.on_gpu else "of its wall"),
        Metric("calls", _sum(calls, kind, "count"), "count", label="calls"),
    )
    if kind == "attention":
        claim = f"{share} is what unfused attention does between its two products"
        advice = "use flash attention or scaled_dot_product_attention"
        caveats = ("its backward pass is not counted, and gains as well",)
    else:
        each = round(one.window.steps.mean(copied))
        numbers += (evidence("copied_bytes", each, "32-bit copies per step"),)
        claim = f"{share} is a log-softmax over the vocabulary on 32-bit copies"
        advice = "use a fused or chunked cross-entropy (use_fused_kernels in verl)"
        caveats = ("upper bound: a fused loss still reads the logits",)
    yield Finding(
        "unfused-operators",
        thresholds.severity(ratio),
        claim,
        advice,
        numbers,
        (one.place,),
        gain,
        ratio,
        caveats,
    )


ANALYSIS = Analysis(
    id="unfused",
    title="Which attention and losses are made of single operators?",
    reads=("host_ops", "device_ops", "device_ranges"),
    args=(DIMS, TYPES),
    writes=(UNFUSED_WORK, UNFUSED_CALLS),
    rests_on=("gpu_time",),
    rules=("unfused-operators",),
    thresholds={
        "unfused-operators": {
            # What unfused attention, or a loss over a vocabulary in 32 bits, takes of a stage's work.
            "stage_ratio": 0.03,
        },
    },
    measure=measure,
    judge=judge,
)
