"""How fast are matrix products, and on which units? FLOP rates from recorded shapes (Q22); rules R24 and R25."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import divide_or_none, make_run_heading, name_stages, phrase_run
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_pooled_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import Owner
from tracekit.job.stages.work import StageWork, list_stage_work, list_work_rows, merge_stage_work
from tracekit.model.records import dataclass
from tracekit.model.report import Answer, Finding, Heading, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables import keys as grouping
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.columns import CALL_COUNT, CLASS_WORK, NAME, SHAPE_COUNT, STAGE
from tracekit.model.tables.frame import Frame, Ints, divide, sum_of, texts, where
from tracekit.model.tables.keys import find_first_rows, number_keys
from tracekit.model.text.changes import write_change
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.calls.launches import has_asynchronous_ops
from tracekit.process.ops.op_classes import classify_matmuls, mark_narrow_loads, mark_products_of_attention
from tracekit.process.ops.shapes import (
    DIMS,
    TYPES,
    MatrixProducts,
    collect_input_shapes,
    find_matrix_products,
    sum_device_work,
)
from tracekit.process.ops.work_classes import sum_device_work_classes
from tracekit.process.steps.stage_lookup import find_stage_codes_at, list_outer_stage_names

MATRIX_PRODUCTS = Table(
    "matrix_products",
    "matrix products of one op, type and size in one stage of one source",
    {
        **KEYS,
        "stage": STAGE,
        "name": NAME,
        "kind": Column("category", "gemm | attention.", ("gemm", "attention")),
        "type": Column("category", "Type of the first factor, as recorded."),
        "batch": Column("Int64", "Products a call; attention: batch × heads."),
        "m": Column("Int64", "Rows of the first factor; attention: queries. <NA>: pooled rest."),
        "n": Column("Int64", "Columns of the second factor; attention: keys."),
        "k": Column("Int64", "Length of the sums; attention: head size."),
        "shape_count": SHAPE_COUNT,
        "count": CALL_COUNT,
        "flop_count": Column("Int64", "FLOPs of all calls; <NA> beyond 2^63."),
        "rated_flop_count": Column(
            "Int64", "FLOPs of the calls with recorded device ops, or on the host: the basis of a rate."
        ),
        "host_ns": Column("int64", "Σ duration of the calls on the host."),
        "launch_count": Column("Int64", "Device ops launched during the calls."),
        "device_busy_ns": Column("Int64", "Their union per device, Σ over devices."),
        "unaligned_ns": Column("Int64", "Σ duration of the kernels among them that load less than 16 bytes at once."),
        "attention_ns": Column("Int64", "Part of it in products of unfused attention, which a fused kernel replaces."),
    },
)

WORK_CLASSES = Table(
    "work_classes",
    "one class of work that one stage launched, on one device",
    {
        **KEYS,
        "stage": STAGE,
        "class": Column(
            "category",
            "all | gemm | plain (gemm or convolution without tensor cores) | convolution (the convolutions in it) |"
            " unaligned (gemm that loads less than 16 bytes at once, but for the products of unfused attention).",
            ("all", "gemm", "plain", "unaligned", "convolution"),
        ),
        **CLASS_WORK,
    },
)


MAX_PRODUCTS = 4_000
"""Most (stage, op, size) rows of one source: those with most FLOPs; the rest is pooled by op."""

TENSOR_CAPABILITY = 70
"""Least compute capability × 10 with tensor cores."""

BF16_CAPABILITY = 80
"""Least compute capability × 10 of tensor cores for bf16 and TF32; those of 7.0 to 7.5 (V100, T4) multiply only fp16."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum up matrix products by stage and size, and the GPU time of gemm kernels by class and stage."""
    tables: dict[str, Mapping[str, Any]] = {}
    recorded: MatrixProducts = trace.derived(find_matrix_products)
    if len(recorded.products):
        tables["matrix_products"] = _sum_products(trace, recorded)
    elif len(trace.derived(collect_input_shapes).dims):
        tables["matrix_products"] = {}  # shapes were recorded, and nothing was multiplied
    if len(trace.numbers("device_ops", "ts_ns")):
        tables["work_classes"] = sum_device_work_classes(trace, classify_matmuls(trace, recorded))
    return tables


def _sum_products(trace: Trace, recorded: MatrixProducts) -> dict[str, Any]:
    """Make one row per (stage, product); beyond the cap the rest of each op, type and stage is pooled."""
    rows = np.flatnonzero(recorded.number >= 0)
    stage = find_stage_codes_at(trace, trace.numbers("host_ops", "ts_ns")[rows])
    width = len(recorded.products)
    keys, fine = number_keys((stage + 1) * width + recorded.number[rows])
    kinds = [(name, product.kind, product.type) for name, product in recorded.products]
    kind_of = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
    each = np.array([kind_of[kind] for kind in kinds], np.int64)[keys % width]
    flops = np.array([product.flops for _, product in recorded.products], np.int64)[keys % width]
    rough = flops.astype(float) * np.bincount(fine, minlength=len(keys))
    is_kept = np.zeros(len(keys), np.bool_)
    is_kept[np.argsort(-rough, kind="stable")[:MAX_PRODUCTS]] = True
    coarse = np.where(is_kept, np.arange(len(keys)), len(keys) + keys // width * len(kind_of) + each)
    last, of_fine = number_keys(coarse)
    first = find_first_rows(of_fine, len(last))
    group, count = of_fine[fine], len(last)
    single, number, stage_number = last < len(keys), keys[first] % width, keys[first] // width - 1
    slot = np.full(len(recorded.number), -1, np.int64)
    slot[rows] = group
    sizes = {
        name: Nullable(
            np.array([getattr(product, name) for _, product in recorded.products], np.int64)[number], ~single
        )
        for name in ("batch", "m", "n", "k")
    }
    out: dict[str, Any] = {
        "stage": np.array([*list_outer_stage_names(trace), None], object)[stage_number],
        "name": [kinds[n][0] for n in number.tolist()],
        "kind": [kinds[n][1] for n in number.tolist()],
        "type": [kinds[n][2] for n in number.tolist()],
        **sizes,
        "shape_count": np.bincount(of_fine, minlength=count),
        "count": np.bincount(group, minlength=count),
        "flop_count": _sum_exact_flops(group, flops[fine], count),
        "host_ns": grouping.sum_by_group(group, trace.numbers("host_ops", "dur_ns")[rows], count),
    }
    if trace.has("device_ops"):
        out |= _sum_device_work_of_products(trace, recorded, slot)
        # FLOPs of calls without recorded kernels would make the rate too high.
        seen = np.zeros(len(slot), np.bool_)
        seen[recorded.owner[recorded.owner >= 0]] = True
        has_work = seen[rows]
        out["rated_flop_count"] = _sum_exact_flops(group[has_work], flops[fine][has_work], count)
    elif not trace.derived(has_asynchronous_ops):
        out["rated_flop_count"] = out["flop_count"]
    return out


def _sum_device_work_of_products(trace: Trace, recorded: MatrixProducts, slot: Ints) -> dict[str, Any]:
    """Sum up the launched work of every row of `_sum_products`; `slot` is the row of each host op, -1 for none."""
    count = int(slot.max(initial=-1)) + 1
    launched_slot = np.where(recorded.owner >= 0, slot[recorded.owner], -1)
    launched, _, busy = sum_device_work(trace, launched_slot, count)
    narrow_slot = np.where(trace.derived(mark_narrow_loads), launched_slot, -1)
    _, unaligned_ns, _ = sum_device_work(trace, narrow_slot, count)
    attention_slot = np.where(trace.derived(mark_products_of_attention), narrow_slot, -1)
    _, attention_ns, _ = sum_device_work(trace, attention_slot, count)
    return {
        "launch_count": launched,
        "device_busy_ns": busy,
        "unaligned_ns": unaligned_ns,
        "attention_ns": attention_ns,
    }


def _sum_exact_flops(group: Ints, flops: Ints, count: int) -> Nullable:
    """Sum up the FLOPs of each group; missing where they exceed int64."""
    large = np.bincount(group, flops.astype(float), minlength=count) >= 2.0**62
    return Nullable(grouping.sum_by_group(np.where(large[group], -1, group), flops, count), large)


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Compute FLOP rates by type and size; findings R24 and R25."""
    verdicts = tuple(_list_matmul_abstentions(measured))
    silent = {verdict.rule for verdict in verdicts if verdict.run is None}
    findings: list[Finding] = []
    if "no-tensor-cores" not in silent:
        findings += _find_plain_units(measured, thresholds)
    if "unaligned-gemm" not in silent:
        findings += _find_unaligned_sizes(measured, thresholds)
    products = measured.frame("matrix_products")
    if len(products):
        metrics, sheets = _rate_products(measured, products)
        return ANALYSIS.answered(
            metrics=metrics,
            sheets=sheets,
            findings=tuple(findings),
            verdicts=verdicts,
            caveats=tuple(_explain_missing_rate(products)),
        )
    reason = "input shapes were not recorded: profile with record_shapes=True"
    if measured.has("matrix_products"):
        reason = "no matrix product is among the recorded shapes"
    if not findings:
        return ANALYSIS.skipped(reason, verdicts=verdicts)
    return ANALYSIS.answered(findings=tuple(findings), caveats=(reason,), verdicts=verdicts)


TYPE_HEADINGS = parse_headings("""
    kind | product
    type | type
""")
SIZE_HEADINGS = parse_headings("""
    canonical | stage
    name | operator
    type | type
    batch | batch | count | Products a call; attention: batch × heads.
    m | M | id | Rows; attention: queries. — is the pooled rest.
    n | N | id | Columns; attention: keys.
    k | K | id | Length of the sums; attention: head size.
""")
RATE_HEADINGS = parse_headings("""
    count | calls | count
    gflop | GFLOP | number | 10⁹ FLOPs of all calls, from their shapes; masks are not regarded.
""")
ON_GPU = ("GPU busy", "Device ops launched in the calls, overlaps counted once per GPU.")
ON_HOST = ("host time", "Σ duration of the calls.")


def _rate_products(
    measured: Measurements, products: Frame
) -> tuple[tuple[Metric, ...], Callable[[], tuple[Sheet, ...]]]:
    """Return (the FLOP rate of all gemms, a function that lists products by type and by size)."""
    on_gpu = not products.is_missing("device_busy_ns").all()
    products = products.with_columns(time_ns=products["device_busy_ns" if on_gpu else "host_ns"])
    rated = where(~products.is_missing("time_ns"), products["rated_flop_count"])
    products = products.with_columns(rated_flop_count=rated)
    time, time_doc = ON_GPU if on_gpu else ON_HOST
    metrics: tuple[Metric, ...] = ()
    if _has_rate(products):
        gemms = _compute_flop_rates(products.filter(products.equals("kind", "gemm")))
        value = next(iter(gemms.values("tflop_per_s")), None)
        label = f"GEMM FLOP rate from recorded shapes (TFLOP/s of {time})"
        metrics = (Metric("gemm_tflop_per_s", value, "", "higher", label=label),)
    return metrics, lambda: _make_product_sheets(measured, products, time, time_doc)


def _has_rate(products: Frame) -> bool:
    """Whether the time of any of these products is known."""
    return not products.is_missing("rated_flop_count").all()


def _explain_missing_rate(products: Frame) -> Iterator[str]:
    """Explain why there is no FLOP rate."""
    if not _has_rate(products) and products.is_missing("device_busy_ns").all():
        yield (
            "no FLOP rate: these products run on a GPU, and no kernel was recorded; profile with activities=[CPU, CUDA]"
        )


def _make_product_sheets(measured: Measurements, products: Frame, time: str, time_doc: str) -> tuple[Sheet, ...]:
    """List products by type and by size."""
    by_type = _compute_flop_rates(products, "run", "kind", "type")
    by_size = products.with_columns(canonical=name_stages(products, in_file=True))
    size = ("name", "kind", "type", "batch", "m", "n", "k")
    by_size = _compute_flop_rates(by_size, "run", "canonical", *size)
    run = make_run_heading(measured)
    rate_doc = f"FLOPs / {time}: the achieved rate (for MFU, divide it by the GPU's peak)."
    rate = (
        *RATE_HEADINGS,
        Heading("time_ns", time, "ns", time_doc),
        Heading("share_ratio", "share", "ratio", "Of the time of all these products."),
        *((Heading("tflop_per_s", "TFLOP/s", "", rate_doc),) if _has_rate(products) else ()),
    )
    title = "GEMM FLOP rate from recorded shapes, by type"
    if not _has_rate(products):
        title = "Matrix products by type"
    caption = (
        "Convolutions and attention over packed sequences are left out: their recorded shapes do not give the FLOPs."
    )
    size_headings = (*run, *SIZE_HEADINGS, *rate)
    return (
        make_sheet("flop_rates", title, (*run, *TYPE_HEADINGS, *rate), by_type),
        make_sheet("matrix_products", "Matrix products by size", size_headings, by_size, caption=caption),
    )


def _compute_flop_rates(products: Frame, *by: str) -> Frame:
    """Divide Σ FLOPs by Σ time of each group, most time first."""
    is_unrated = products.is_missing("rated_flop_count") & ~products.is_missing("time_ns")
    sums = products.group_by(*by).agg(
        count=sum_of("count"),
        flop_count=sum_of("flop_count"),
        rated_flop_count=sum_of("rated_flop_count"),
        time_ns=sum_of("time_ns"),
        unrated_count=sum_of(is_unrated),
    )
    # A sum that contains an unknown part is unknown; a process without GPU rows has no part in it.
    rated = where(sums["unrated_count"] == 0, sums["rated_flop_count"])
    rate = divide(rated, sums["time_ns"])
    all_ns = sums.number("time_ns", missing=0).sum()
    sums = sums.with_columns(
        gflop=where(~sums.is_missing("flop_count"), sums.number("flop_count") / 1e9),
        share_ratio=divide(sums["time_ns"], np.full(len(sums), all_ns)),
        tflop_per_s=Nullable(rate.values / 1e3, rate.missing),
    )
    return sums.sort("time_ns", *by, descending=["time_ns"])


def _list_matmul_abstentions(measured: Measurements) -> Iterator[Verdict]:
    """List why a rule cannot judge any run."""
    classes = measured.frame("work_classes")
    on_gpu = ~classes.is_missing("device") | classes.equals("class", "gemm")
    capabilities = _list_capabilities(classes)
    answer: Answer = "not applicable"
    reason = ""
    if not on_gpu.any():
        reason = "no GPU activity was recorded"
    elif not capabilities:
        answer, reason = "insufficient data", "compute capability was not recorded"
    elif max(capabilities) < TENSOR_CAPABILITY:
        reason = "the GPUs have no tensor cores"
    if reason:
        yield from (Verdict(rule, answer, reason) for rule in ANALYSIS.rules)
    elif not measured.has("matrix_products") and not classes.equals("class", "unaligned").any():
        reason = "input shapes were not recorded, and no kernel name decides"
        yield Verdict("unaligned-gemm", "insufficient data", reason)


def _list_capabilities(classes: Frame) -> list[int]:
    """List the known compute capabilities of the GPUs of these classes of work."""
    known = classes.filter(~classes.is_missing("capability"))
    return known.distinct("capability").values("capability")


def _list_capabilities_of_run(measured: Measurements, run: str | None) -> list[int]:
    """List the known compute capabilities of the GPUs of a run."""
    classes = measured.frame("work_classes")
    return _list_capabilities(classes.filter(classes.equals("run", run)))


def _find_plain_units(measured: Measurements, thresholds: Thresholds) -> Iterator[Finding]:
    """R24: stages in which matrix products or convolutions run outside the tensor cores."""
    limit = thresholds.of("no-tensor-cores")
    convolved = {work.window.key: work for work in list_stage_work(measured, "convolution")}
    plain = list_stage_work(measured, "plain")
    large = [w for w in plain if w.ratio is not None and w.ratio >= limit["stage_ratio"]]
    for work in merge_stage_work(measured, large):
        capabilities = _list_capabilities_of_run(measured, work.window.run)
        if min(capabilities, default=0) < TENSOR_CAPABILITY:
            continue
        slow, _ = work.per_step(work.busy_ns)
        gain, ratio = work.per_step(work.busy_ns * (1 - 1 / limit["most_gain"]))
        convolutions = [convolved.get(stage.window.key) for stage in work.stages]
        convolution_ns = sum(each.busy_ns for each in convolutions if each)
        kernels = sum(each.count for each in convolutions if each)
        what = _name_plain_work(work, convolution_ns, all_convolve=kernels == work.count)
        convolution_ratio = divide_or_none(convolution_ns, work.whole_ns)
        yield Finding(
            "no-tensor-cores",
            thresholds.severity(ratio),
            f"{format_quantity(work.ratio, 'ratio')} of the GPU work of {work.window.name} is {what} without tensor cores",
            _advise_type(capabilities),
            (
                make_evidence_metric("plain_ratio", work.ratio, "of its GPU work"),
                *(
                    [make_evidence_metric("convolution_ratio", convolution_ratio, "of its GPU work convolves")]
                    if convolution_ratio
                    else ()
                ),
                make_evidence_metric("plain_ns", slow, "per step"),
                Metric("plain_kernels", work.count, "count", label="kernels"),
            ),
            work.places,
            gain,
            ratio,
            (
                "small or memory-bound products gain less",
                "logits and entropy may be in 32 bits on purpose",
            ),
            changes=work.write_changes("scale", "plain", factor=1 / limit["most_gain"]),
            instances=pick_pooled_instances(measured, list_work_rows(measured, "plain", [work])),
        )


def _advise_type(capabilities: list[int]) -> str:
    """Advise a type that the tensor cores of these GPUs multiply."""
    if min(capabilities) >= BF16_CAPABILITY:
        return "run them in bf16 or allow TF32 (torch.set_float32_matmul_precision('high'))"
    which = "these GPUs" if max(capabilities) < BF16_CAPABILITY else "some of these GPUs"
    return (
        "run them in fp16 (torch.autocast with a GradScaler): the tensor cores of"
        f" {which} multiply neither bf16 nor TF32"
    )


def _name_plain_work(work: StageWork, convolution_ns: int, *, all_convolve: bool) -> str:
    """Name the work without tensor cores in these stages."""
    if not convolution_ns:
        return "matrix products"
    if all_convolve:
        return "convolutions"
    share = format_quantity(divide_or_none(convolution_ns, work.whole_ns), "ratio")
    return f"convolutions ({share}) and matrix products"


def _find_unaligned_sizes(measured: Measurements, thresholds: Thresholds) -> Iterator[Finding]:
    """R25: products with rows that do not start at multiples of 16 bytes."""
    limit = thresholds.of("unaligned-gemm")
    by_owner: dict[Owner, list[StageWork]] = {}
    for work in list_stage_work(measured, "gemm", "gemm"):
        by_owner.setdefault(work.window.owner, []).append(work)
    unaligned = list_stage_work(measured, "unaligned")
    for owner, gemms in by_owner.items():
        run, role = gemms[0].window.run, gemms[0].window.role
        unaligned_work = [work for work in unaligned if work.window.owner == owner]
        busy = sum(work.busy_ns for work in unaligned_work)
        all_ns = sum(work.busy_ns for work in gemms)
        if not all_ns or busy / all_ns < limit["gemm_ratio"]:
            continue
        if min(_list_capabilities_of_run(measured, run), default=0) < TENSOR_CAPABILITY:
            continue
        sized = _select_sized_gemms(measured, run, role)
        loss = _estimate_loss(sized, busy, limit)
        gain, ratio = gemms[0].per_step(loss.ns)
        if ratio is not None and ratio < limit["step_ratio"]:
            continue
        places = _locate_unaligned(run, role, sized) or tuple(work.places[0] for work in unaligned_work[:3])
        first = f": {places[0].name} most of all" if places[0].name else ""
        yield Finding(
            "unaligned-gemm",
            thresholds.severity(ratio),
            f"{format_quantity(busy / all_ns, 'ratio')} of the time of matrix products is spent on unaligned sizes{first}"
            + phrase_run(measured, run),
            "pad N and K (vocabulary, hidden size, keys of attention) to 16 bytes: 8 elements of 16 bits, 4 of TF32,"
            " 16 of FP8; M, the number of tokens, does not matter",
            (
                make_evidence_metric("unaligned_ratio", busy / all_ns, "of the time of matrix products"),
                make_evidence_metric("unaligned_ns", gemms[0].per_step(busy)[0], "per step"),
            ),
            places,
            gain,
            ratio,
            tuple(_explain_doubts(loss, limit)),
            changes=_write_alignment_changes(loss.ns, busy),
            instances=pick_pooled_instances(measured, list_work_rows(measured, "unaligned", unaligned_work)),
        )


def _write_alignment_changes(loss_ns: float, busy_ns: int) -> tuple[str, ...]:
    """Write the change of the fix: unaligned products take as long as aligned ones."""
    if loss_ns <= 0:
        return ()
    return (write_change("scale", "device", work="unaligned", factor=max(1 - loss_ns / busy_ns, 0)),)


def _select_sized_gemms(measured: Measurements, run: str | None, role: str | None) -> Frame:
    """Select the gemms of one role with recorded kernels, with their stage, label, time and FLOPs."""
    products = measured.frame("matrix_products")
    is_chosen = products.equals("run", run) & products.equals("role", role)
    is_chosen &= products.equals("kind", "gemm")
    is_chosen &= ~products.is_missing("m") & ~products.is_missing("rated_flop_count")
    products = products.filter(is_chosen)
    time = products.number("device_busy_ns", missing=0.0)
    unaligned_ns = products.integers("unaligned_ns") - products.integers("attention_ns")
    sizes = products.rows("name", "m", "n", "k", "type")
    labels = [f"{p['name']} {p['m']}×{p['n']}×{p['k']} {p['type']}" for p in sizes]
    return products.with_columns(
        canonical=name_stages(products, in_file=True),
        label=texts(labels),
        time=time,
        flops=products.number("rated_flop_count"),
        is_unaligned=2 * unaligned_ns > time,
    )


@dataclass(frozen=True, slots=True)
class _UnalignedLoss:
    """Time that unaligned products lose, and their time that could be compared with aligned ones."""

    ns: float
    compared_ns: float
    busy_ns: float


def _estimate_loss(sized: Frame, busy_ns: float, limit: Mapping[str, float]) -> _UnalignedLoss:
    """Estimate the time of unaligned products beyond the rate of aligned ones of their type, at most `most_gain` as fast.

    Unaligned products without an aligned one of their type are assumed to gain `assumed_gain`.
    """
    lost_ns, compared_ns = 0.0, 0.0
    for of_type in sized.group_by("type").frames():
        time, flops, is_unaligned = of_type["time"], of_type["flops"], of_type["is_unaligned"]
        aligned_ns, aligned_flops = time[~is_unaligned].sum(), flops[~is_unaligned].sum()
        if not (is_unaligned.any() and aligned_ns > 0 and aligned_flops > 0):
            continue
        excess = np.maximum(time - flops / (aligned_flops / aligned_ns), 0.0)
        excess = np.minimum(excess, time * (1 - 1 / limit["most_gain"]))
        lost_ns += float(excess[is_unaligned].sum())
        compared_ns += float(time[is_unaligned].sum())
    rest_ns = max(busy_ns - compared_ns, 0.0)
    lost_ns += rest_ns * (1 - 1 / limit["assumed_gain"])
    return _UnalignedLoss(lost_ns, compared_ns, busy_ns)


def _explain_doubts(loss: _UnalignedLoss, limit: Mapping[str, float]) -> Iterator[str]:
    """Explain the uncertainty of the loss."""
    if loss.compared_ns:
        yield (
            "against the mean rate of aligned products of the same type in this run, at most"
            f" {limit['most_gain']:g} times as fast"
        )
    if loss.compared_ns < loss.busy_ns / 2:
        yield (
            f"no aligned product of the same type to compare with: aligned ones are assumed to be {limit['assumed_gain']:g} times as fast"
        )


def _locate_unaligned(run: str | None, role: str | None, sized: Frame) -> tuple[Place, ...]:
    """Return the places of the three unaligned products with most time."""
    unaligned = sized.filter(sized["is_unaligned"])
    worst = unaligned.sort("time", "label", descending=["time"]).distinct("canonical", "label")
    return tuple(
        Place(run=run, role=role, stage=row["canonical"], name=row["label"])
        for row in worst.head(3).rows("canonical", "label")
    )


ANALYSIS = Analysis(
    id="matmuls",
    title="How fast are matrix products, and on which units?",
    reads=("host_ops", "device_ops", "device_ranges", "memory_ops"),
    args=(DIMS, TYPES),
    writes=(MATRIX_PRODUCTS, WORK_CLASSES),
    rests_on=("gpu_time",),
    rules=("no-tensor-cores", "unaligned-gemm"),
    thresholds={
        "no-tensor-cores": {
            # GPU time of gemm kernels without tensor cores as a share of the GPU work that a stage launches.
            "stage_ratio": 0.05,
            # Tensor cores multiply at most so many times as fast (data sheets: 16 bits or TF32 over fp32, CC 7.0 to 9.0).
            "most_gain": 8,
        },
        "unaligned-gemm": {
            # Time of gemms that load less than 16 bytes at once as a share of all gemm time.
            "gemm_ratio": 0.05,
            # What they lose: not reported below this share of the step.
            "step_ratio": 0.01,
            # An aligned product is at most so many times as fast: attention with 5,185 keys on an H100 took 3.3 and 3.6
            # times what its bytes alone need.
            "most_gain": 4,
            # So many times as fast is taken where no aligned product of the type was recorded.
            "assumed_gain": 2,
        },
    },
    measure=measure,
    judge=judge,
)
