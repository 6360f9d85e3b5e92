"""Which attention, losses and chains are made of single operators, and what is copied into another layout? (rules R27, R37)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import canonical_stages, label_headings, ordered, same_text
from tracekit.job.stages.work import StageWork, by_stage, together
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.keys import summed
from tracekit.model.report import Finding, Heading, Metric, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import CLASS_WORK, STAGE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.calls.launches import launches
from tracekit.process.calls.op_paths import op_paths, path_texts
from tracekit.process.ops.pointwise import Pointwise, chain_kinds, chain_text, pointwise
from tracekit.process.ops.shapes import DIMS, TYPES, owners, shapes
from tracekit.process.ops.unfused import (
    Unfused,
    attention_extra,
    product_work,
    score_passes,
    unfused,
)
from tracekit.process.ops.work_classes import Spans, on_device, on_host, top_names
from tracekit.process.steps.stage_lookup import stage_at, stage_names

UNFUSED_WORK = Table(
    "unfused_work",
    "work of unfused operators that one stage launched, on one device (on the host where none is)",
    {
        **KEYS,
        "stage": STAGE,
        "class": Column(
            "category",
            "all | attention (what is launched between its two products) | pass (of it, in each the shortest kernel over all scores) | products (the two) |"
            " loss (log-softmax over a vocabulary, and 32-bit copies of its width) | chain (pointwise kernels one after"
            " the other, but for the longest of each chain) | layout (copies into another layout).",
            ("all", "attention", "pass", "products", "loss", "chain", "layout"),
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
        "class": Column(
            "category",
            "attention | loss | copy | chain | layout.",
            ("attention", "loss", "copy", "chain", "layout"),
        ),
        "count": Column(
            "int64",
            "Attention: softmax calls between two products; chains; calls of the others.",
        ),
        "size_bytes": Column("Int64", "Bytes written by the copies."),
        "ops": Column(
            "category",
            "Chain: the ops of those that take longest; layout: what encloses the copies that take longest.",
        ),
    },
)


Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NOT_RECORDED = "input shapes were not recorded: profile with record_shapes=True"


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """What unfused operators and copies into another layout take of each stage; their calls and bytes."""
    if not trace.derived(shapes).dims:
        return {}
    recorded: Unfused = trace.derived(unfused)
    passes: Pointwise = trace.derived(pointwise)
    calls = {"attention": recorded.softmax, "loss": recorded.loss, "copy": recorded.copies}
    if len(passes.chained) or len(passes.copies):
        launched_by = trace.derived(launches).op
        calls |= {
            "chain": launched_by[passes.chained[passes.longest]],
            "layout": launched_by[passes.copies],
        }
    if not sum(len(rows) for rows in calls.values()):
        return {"unfused_calls": {}, "unfused_work": {}}
    if not trace.has("device_ops"):
        work = on_host(trace, _spans(trace, recorded))
        return {"unfused_calls": _calls(trace, calls, recorded, passes), "unfused_work": work}
    work = on_device(trace, _classes(trace, recorded, passes))
    return {"unfused_calls": _calls(trace, calls, recorded, passes), "unfused_work": work}


def _classes(trace: Trace, recorded: Unfused, passes: Pointwise) -> dict[str, Bools]:
    """The device ops of every class that occurs."""
    count = len(trace.numbers("device_ops", "ts_ns"))

    def only(rows: Ints) -> Bools:
        mask = np.zeros(count, np.bool_)
        mask[rows] = True
        return mask

    classes = {"all": np.ones(count, np.bool_)}
    if len(recorded.softmax):
        extra = attention_extra(trace, recorded)
        classes["attention"] = extra
        classes["pass"] = score_passes(trace, recorded, extra)
        classes["products"] = product_work(trace, recorded)
    if len(recorded.loss) or len(recorded.copies):
        losses = np.zeros(len(trace.numbers("host_ops", "ts_ns")), np.bool_)
        losses[recorded.loss] = losses[recorded.copies] = True
        classes["loss"] = owners(trace, losses) >= 0
    counted = classes.get("attention", only(np.empty(0, np.int64)))
    classes["chain"] = only(passes.chained[~passes.longest]) & ~counted
    classes["layout"] = only(passes.copies) & ~counted
    return classes


def _spans(trace: Trace, calls: Unfused) -> dict[str, Spans]:
    """On the host: the time between the two products of an attention, and the calls of a loss."""
    thread = trace.numbers("host_ops", "thread")
    start = trace.numbers("host_ops", "ts_ns")
    dur = trace.numbers("host_ops", "dur_ns")
    end, name = start + dur, trace.texts("host_ops", "name").codes
    loss = np.concatenate((calls.loss, calls.copies))
    return {
        "attention": Spans(
            thread[calls.first], end[calls.first], start[calls.last], name[calls.softmax]
        ),
        "loss": Spans(thread[loss], start[loss], end[loss], name[loss]),
    }


def _calls(
    trace: Trace, calls: Mapping[str, Ints], recorded: Unfused, passes: Pointwise
) -> dict[str, Any]:
    """One row a (class, stage)."""
    rows = np.concatenate(list(calls.values()))
    kind = np.repeat(np.arange(len(calls)), [len(kind_rows) for kind_rows in calls.values()])
    stage = stage_at(trace, trace.numbers("host_ops", "ts_ns")[rows])
    names = [*stage_names(trace), None]
    keys, group = np.unique(kind * len(names) + stage + 1, return_inverse=True)
    size = np.zeros(len(rows), np.int64)
    of_copies = kind == list(calls).index("copy")
    size[of_copies] = recorded.copy_bytes
    ops = np.full(len(keys), None, object)
    for name, texts in _ops(trace, passes).items():
        of_class = np.flatnonzero(kind == list(calls).index(name))
        codes, dur, text = texts
        longest_ops = top_names(group[of_class], codes, dur, len(keys), range(int(codes.max()) + 1))
        for place in np.unique(group[of_class]).tolist():
            ops[place] = text(longest_ops[place])
    return {
        "stage": np.array(names, object)[keys % len(names) - 1],
        "class": [list(calls)[k] for k in (keys // len(names)).tolist()],
        "count": np.bincount(group, minlength=len(keys)),
        "size_bytes": summed(group, size, len(keys)),
        "ops": ops,
    }


def _ops(trace: Trace, passes: Pointwise) -> dict[str, tuple[Ints, Ints, Callable[[int], str]]]:
    """(for each chain or copy the number of its kind, what it takes; the ops of a kind as a text)."""
    dur = (
        trace.numbers("device_ops", "dur_ns") if len(passes.chained) or len(passes.copies) else None
    )
    ops: dict[str, tuple[Ints, Ints, Callable[[int], str]]] = {}
    if dur is not None and len(passes.chained):
        kind, sample = chain_kinds(trace, passes)
        spared = np.where(passes.longest, 0, dur[passes.chained])
        spared_ns = summed(passes.chain, spared, len(kind))
        ops["chain"] = (
            kind,
            spared_ns,
            lambda number: chain_text(trace, passes, int(sample[number])),
        )
    if dur is not None and len(passes.copies):
        path, row = op_paths(trace, trace.derived(launches).op[passes.copies])
        ops["layout"] = (
            path,
            dur[passes.copies],
            lambda number: path_texts(trace, row[number : number + 1])[0],
        )
    return ops


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """What unfused operators and copies into another layout take of each stage; findings R27 and R37."""
    if not measured.has("unfused_work"):
        reason = "input shapes were not recorded"
        verdicts = tuple(Verdict(rule, "insufficient data", reason) for rule in ANALYSIS.rules)
        return ANALYSIS.skipped(NOT_RECORDED, verdicts=verdicts)
    calls = measured["unfused_calls"]
    calls = calls.assign(canonical=canonical_stages(calls, in_file=True))
    if not len(calls):
        reason = "neither attention nor a loss nor a chain is made of single operators, and no layout is changed"
        return ANALYSIS.answered(caveats=(reason,))
    work_of = {kind: by_stage(measured, kind, table="unfused_work") for kind in CLASSES}
    work = [stage_work for kind in KINDS for stage_work in work_of[kind]]
    kinds = [kind for kind in KINDS for _ in work_of[kind]]
    on_gpu = any(stage_work.on_gpu for stage_work in work)
    return ANALYSIS.answered(
        sheets=lambda: with_rows(_sheet(measured, kinds, work, calls, on_gpu=on_gpu)),
        findings=tuple(_findings(measured, work_of, calls, thresholds)),
    )


def _findings(
    measured: Measurements,
    work_of: Mapping[str, list[StageWork]],
    calls: pd.DataFrame,
    thresholds: Thresholds,
) -> Iterator[Finding]:
    """R27 and R37: one of each kind of work, whatever stages it is in."""
    for kind in KINDS:
        large = [
            stage_work
            for stage_work in work_of[kind]
            if _is_large(kind, stage_work, calls, thresholds)
        ]
        for stage_work in together(measured, large):
            stage_calls = pd.concat([_of(calls, stage) for stage in stage_work.stages])
            if kind == "layout":
                yield _copying(stage_work, stage_calls, thresholds)
            else:
                scores_ns = sum(_scores(work_of, kind, stage) for stage in stage_work.stages)
                yield _unfused(kind, scores_ns, stage_work, stage_calls, thresholds)


KINDS = ("attention", "loss", "chain", "layout")
CLASSES = (*KINDS, "pass", "products")


def _of(calls: pd.DataFrame, work: StageWork) -> pd.DataFrame:
    """The calls of the stage that the work is of."""
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
                _most(_of(calls, stage_work), kind),
            )
            for kind, stage_work in zip(kinds, work, strict=True)
        ],
        columns=["run", "role", "stage", "what", "busy_ns", "ratio", "count", "size_bytes", "ops"],
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
            "Over all processes and steps; attention: without its two products; a chain: without its longest kernel.",
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
            ops | ops | text | Of the chains or copies that take longest.
        """),
    )
    return sheet("unfused", "What single operators pass over again", headings, rows)


WHAT = {
    "attention": "between the products of attention",
    "loss": "loss over a vocabulary",
    "chain": "chains of pointwise operators",
    "layout": "copies into another layout",
}


def _scores(work_of: Mapping[str, list[StageWork]], kind: str, stage_work: StageWork) -> int:
    """How long the products of attention write scores and read them back: as long as the softmax, which does both once."""
    if kind != "attention":
        return 0
    of_window = [
        sum(part.busy_ns for part in work_of[name] if part.window.key == stage_work.window.key)
        for name in ("pass", "products")
    ]
    return min(of_window)


def _most(calls: pd.DataFrame, kind: str) -> str | None:
    """The ops of those calls that take longest, where they are told."""
    ops = calls.loc[(calls["class"] == kind) & calls["ops"].notna()]
    if not len(ops):
        return None
    return str(ordered(ops, count=False, ops=True)["ops"].iloc[0])


def _sum(calls: pd.DataFrame, kind: str, column: str) -> int:
    return int(calls.loc[calls["class"] == kind, column].sum())


def _is_large(
    kind: str, stage_work: StageWork, calls: pd.DataFrame, thresholds: Thresholds
) -> bool:
    """Whether this kind of work is so much of a stage that it is reported."""
    limit = thresholds.of("unfused-operators")
    if kind == "layout":
        limit = thresholds.of("layout-copies")
    if stage_work.ratio is None or stage_work.ratio < limit["stage_ratio"]:
        return False
    return kind != "loss" or _sum(_of(calls, stage_work), "copy", "size_bytes") > 0


def _unfused(
    kind: str, scores_ns: int, stage_work: StageWork, calls: pd.DataFrame, thresholds: Thresholds
) -> Finding:
    """R27: attention, a loss with 32-bit copies, and chains without a fused kernel."""
    gain, ratio = stage_work.per_step(stage_work.busy_ns + scores_ns)
    claim, advice, caveat = TOLD[kind]
    numbers: tuple[Metric, ...] = ()
    caveats: tuple[str, ...] = (caveat,)
    if kind == "loss":
        each = round(stage_work.window.steps.mean(_sum(calls, "copy", "size_bytes")))
        numbers = (evidence("copied_bytes", each, "32-bit copies per step"),)
    if scores_ns:
        each = stage_work.per_step(scores_ns)[0]
        numbers = (evidence("scores_ns", each, "scores written and read by the products"),)
        caveats = (
            f"{show(each, 'ns')} of it are time of the two products, which write and read the scores",
            caveat,
        )
    return Finding(
        "unfused-operators",
        thresholds.severity(ratio),
        f"{_share(stage_work)} {claim}{_named(calls, kind)}",
        advice,
        (*_numbers(stage_work, calls, kind, "chains" if kind == "chain" else "calls"), *numbers),
        stage_work.places,
        gain,
        ratio,
        caveats,
    )


def _copying(stage_work: StageWork, calls: pd.DataFrame, thresholds: Thresholds) -> Finding:
    """R37: copies into another layout."""
    gain, ratio = stage_work.per_step(stage_work.busy_ns)
    claim, advice, caveat = TOLD["layout"]
    return Finding(
        "layout-copies",
        thresholds.severity(ratio),
        f"{_share(stage_work)} {claim}{_named(calls, 'layout')}",
        advice,
        _numbers(stage_work, calls, "layout", "copies"),
        stage_work.places,
        gain,
        ratio,
        (caveat,),
    )


def _share(stage_work: StageWork) -> str:
    """What the work is a share of."""
    reference = "the GPU work of " if stage_work.on_gpu else ""
    return f"{show(stage_work.ratio, 'ratio')} of {reference}{stage_work.window.name}"


def _named(calls: pd.DataFrame, kind: str) -> str:
    """The ops that take longest, where they are told."""
    name = _most(calls, kind)
    return f": {name}" if name else ""


def _numbers(
    stage_work: StageWork, calls: pd.DataFrame, kind: str, label: str
) -> tuple[Metric, ...]:
    """The numbers behind every claim."""
    reference = "of its GPU work" if stage_work.on_gpu else "of its wall"
    return (
        evidence("unfused_ratio", stage_work.ratio, reference),
        Metric("calls", _sum(calls, kind, "count"), "count", label=label),
    )


TOLD = {
    "attention": (
        "is what unfused attention does between its two products",
        "use flash attention or scaled_dot_product_attention",
        "its backward pass is not counted, and gains as well",
    ),
    "loss": (
        "is a log-softmax over the vocabulary on 32-bit copies",
        "use a fused or chunked cross-entropy (use_fused_kernels in verl)",
        "upper bound: a fused loss still reads the logits",
    ),
    "chain": (
        "is chains of pointwise operators, each of which reads and writes everything again",
        "let one kernel do it: torch.compile, or a fused activation, norm or rotary embedding",
        "upper bound: the longest kernel of each chain is left out, for the one that does it all",
    ),
    "layout": (
        "is copies into another layout",
        "choose one layout for what follows, and write into it: no contiguous() in between, channels_last throughout",
        "upper bound: an operator that needs this layout may be slower without it",
    ),
}
"""Of each kind of work what it is, what to try, and what to keep in mind."""


ANALYSIS = Analysis(
    id="unfused",
    title="What do single operators pass over again?",
    bases={"unfused-operators": "modelled", "layout-copies": "modelled"},
    reads=("host_ops", "device_ops", "device_ranges"),
    args=(DIMS, TYPES),
    writes=(UNFUSED_WORK, UNFUSED_CALLS),
    rests_on=("gpu_time",),
    rules=("unfused-operators", "layout-copies"),
    thresholds={
        "unfused-operators": {
            # What unfused attention, a loss over a vocabulary in 32 bits, or chains of pointwise operators take of a stage's
            # work. Chains of real profiles stay below 1.7 % where they are a scale here and there, and reach 2.9 % where rotary
            # embeddings are single operators; an activation written out takes 4 to 11 %.
            "stage_ratio": 0.03,
        },
        "layout-copies": {
            # What copies into another layout take of a stage's work: 0 to 1.3 % in real profiles of fused models, 4.6 to 6.1 %
            # where contiguous() and reshape() copy in every layer.
            "stage_ratio": 0.03,
        },
    },
    measure=measure,
    judge=judge,
)
