"""How fast are matrix products, and on which units? FLOP rates from recorded shapes (Q22); rules R24 and R25."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import (
    canonical_stages,
    in_run,
    number_or_none,
    ordered,
    run_heading,
    same_text,
    share_of,
    summed,
    text_or_none,
)
from tracekit.job.gpu_shares import quotient
from tracekit.job.stages.windows import Owner
from tracekit.job.stages.work import StageWork, by_stage, of_run, together
from tracekit.job.tables import as_headings, sheet
from tracekit.model import keys as grouping
from tracekit.model.keys import first_of_each, numbered, of_keys, row_dicts
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Heading, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.columns import CALL_COUNT, CLASS_WORK, NAME, SHAPE_COUNT, STAGE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.calls.asynchronous_ops import launches_work
from tracekit.process.name_filters import is_named, of_kind
from tracekit.process.ops.gemm_alignment import narrow_loads
from tracekit.process.ops.kernel_names import is_gemm, is_plain_convolution, unit
from tracekit.process.ops.shapes import DIMS, TYPES, Products, device_work, products, shapes
from tracekit.process.ops.unfused import product_work, unfused
from tracekit.process.ops.work_classes import on_device
from tracekit.process.steps.stage_lookup import stage_at, stage_names

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
            "Int64",
            "FLOPs of the calls whose device ops were seen, or that ran on the host: what a rate is made of.",
        ),
        "host_ns": Column("int64", "Σ duration of the calls on the host."),
        "launch_count": Column("Int64", "Device ops launched during the calls."),
        "device_busy_ns": Column("Int64", "Their union per device, Σ over devices."),
        "unaligned_ns": Column(
            "Int64", "Σ duration of the kernels among them that load less than 16 bytes at once."
        ),
        "attention_ns": Column(
            "Int64", "Of it, of the products of unfused attention, which a fused kernel replaces."
        ),
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
            "all | gemm | plain (gemm or convolution without tensor cores) | convolution (those of them) |"
            " unaligned (gemm that loads less than 16 bytes at once, but for the products of unfused attention).",
            ("all", "gemm", "plain", "unaligned", "convolution"),
        ),
        **CLASS_WORK,
    },
)


Ints = npt.NDArray[np.int64]

MAX_PRODUCTS = 4_000
"""Most (stage, op, size) of one source kept one by one: those with most FLOPs; the rest is pooled by op."""

TENSOR_CAPABILITY = 70
"""Compute capability × 10 from which on there are tensor cores."""

BF16_CAPABILITY = 80
"""The same of tensor cores that multiply bf16 and TF32 too: those of 7.0 to 7.5 (V100, T4) multiply fp16 alone."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Matrix products by stage and size, and the GPU time of gemm kernels by class and stage."""
    tables: dict[str, Mapping[str, Any]] = {}
    recorded: Products = trace.derived(products)
    if len(recorded.products):
        tables["matrix_products"] = _by_size(trace, recorded)
    elif len(trace.derived(shapes).dims):
        tables["matrix_products"] = {}  # shapes were recorded, and nothing was multiplied
    if len(trace.numbers("device_ops", "ts_ns")):
        tables["work_classes"] = on_device(trace, _classes(trace, recorded))
    return tables


def _classes(trace: Trace, recorded: Products) -> dict[str, npt.NDArray[np.bool_]]:
    """Which device ops are of which class; gemm by the kernel's name or by the op that launched it."""
    names, is_kernel = trace.texts("device_ops", "name"), of_kind(trace, "device_ops", "kernel")
    is_product = is_named(names, is_gemm)
    if len(recorded.number):
        number = np.where(recorded.owner >= 0, recorded.number[recorded.owner], -1)
        kinds = [product.kind == "gemm" for _, product in recorded.products]
        is_product |= np.array([*kinds, False], np.bool_)[number]
    convolving = is_kernel & is_named(names, is_plain_convolution)
    return {
        "all": np.ones(len(names), np.bool_),
        "gemm": is_kernel & is_product,
        "plain": convolving | (is_kernel & is_named(names, lambda name: unit(name) == "plain")),
        "unaligned": is_kernel & trace.derived(_narrow) & ~trace.derived(_attention),
        "convolution": convolving,
    }


def _narrow(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which device ops multiply matrices by loads of less than 16 bytes."""
    return narrow_loads(trace, trace.derived(products))


def _attention(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which device ops are products of unfused attention: a fused kernel would do without them, and rule R27 counts them."""
    return product_work(trace, trace.derived(unfused))


def _by_size(trace: Trace, recorded: Products) -> dict[str, Any]:
    """One row a (stage, product); beyond the cap the rest of each op, type and stage together."""
    rows = np.flatnonzero(recorded.number >= 0)
    stage = stage_at(trace, trace.numbers("host_ops", "ts_ns")[rows])
    width = len(recorded.products)
    keys, fine = numbered((stage + 1) * width + recorded.number[rows])
    kinds = [(name, product.kind, product.type) for name, product in recorded.products]
    kind_of = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
    each = np.array([kind_of[kind] for kind in kinds], np.int64)[keys % width]
    flops = np.array([product.flops for _, product in recorded.products], np.int64)[keys % width]
    rough = flops.astype(float) * np.bincount(fine, minlength=len(keys))
    is_kept = np.zeros(len(keys), np.bool_)
    is_kept[np.argsort(-rough, kind="stable")[:MAX_PRODUCTS]] = True
    coarse = np.where(
        is_kept, np.arange(len(keys)), len(keys) + keys // width * len(kind_of) + each
    )
    last, of_fine = numbered(coarse)
    first = first_of_each(of_fine, len(last))
    group, count = of_fine[fine], len(last)
    single, number, stage_number = last < len(keys), keys[first] % width, keys[first] // width - 1
    slot = np.full(len(recorded.number), -1, np.int64)
    slot[rows] = group
    sizes = {
        name: Nullable(
            np.array([getattr(product, name) for _, product in recorded.products], np.int64)[
                number
            ],
            ~single,
        )
        for name in ("batch", "m", "n", "k")
    }
    out: dict[str, Any] = {
        "stage": np.array([*stage_names(trace), None], object)[stage_number],
        "name": [kinds[n][0] for n in number.tolist()],
        "kind": [kinds[n][1] for n in number.tolist()],
        "type": [kinds[n][2] for n in number.tolist()],
        **sizes,
        "shape_count": np.bincount(of_fine, minlength=count),
        "count": np.bincount(group, minlength=count),
        "flop_count": _flop_sums(group, flops[fine], count),
        "host_ns": grouping.summed(group, trace.numbers("host_ops", "dur_ns")[rows], count),
    }
    if trace.has("device_ops"):
        out |= _by_size_on_device(trace, recorded, slot)
        # FLOPs of calls whose kernels were not seen would make the rate too high.
        seen = np.zeros(len(slot), np.bool_)
        seen[recorded.owner[recorded.owner >= 0]] = True
        has_work = seen[rows]
        out["rated_flop_count"] = _flop_sums(group[has_work], flops[fine][has_work], count)
    elif not trace.derived(launches_work):
        out["rated_flop_count"] = out["flop_count"]
    return out


def _by_size_on_device(trace: Trace, recorded: Products, slot: Ints) -> dict[str, Any]:
    """What the products of every row of `_by_size` launched; `slot` is the row of each host op, -1 for none."""
    count = int(slot.max(initial=-1)) + 1
    launched_slot = np.where(recorded.owner >= 0, slot[recorded.owner], -1)
    launched, _, busy = device_work(trace, launched_slot, count)
    narrow_slot = np.where(trace.derived(_narrow), launched_slot, -1)
    _, unaligned_ns, _ = device_work(trace, narrow_slot, count)
    attention_slot = np.where(trace.derived(_attention), narrow_slot, -1)
    _, attention_ns, _ = device_work(trace, attention_slot, count)
    return {
        "launch_count": launched,
        "device_busy_ns": busy,
        "unaligned_ns": unaligned_ns,
        "attention_ns": attention_ns,
    }


def _flop_sums(group: Ints, flops: Ints, count: int) -> Nullable:
    """Σ FLOPs of each group; NA where int64 could not hold it."""
    large = np.bincount(group, flops.astype(float), minlength=count) >= 2.0**62
    return Nullable(grouping.summed(np.where(large[group], -1, group), flops, count), large)


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """FLOP rates by type and size; findings R24 and R25."""
    verdicts = tuple(_abstained(measured))
    silent = {verdict.rule for verdict in verdicts if verdict.run is None}
    findings: list[Finding] = []
    if "no-tensor-cores" not in silent:
        findings += _plain_units(measured, thresholds)
    if "unaligned-gemm" not in silent:
        findings += _unaligned_sizes(measured, thresholds)
    if measured.row_count("matrix_products"):
        rows = measured["matrix_products"]
        numbers, sheets = _products(measured, rows)
        return ANALYSIS.answered(
            metrics=numbers,
            sheets=sheets,
            findings=tuple(findings),
            verdicts=verdicts,
            caveats=tuple(_unrated(rows)),
        )
    reason = "input shapes were not recorded: profile with record_shapes=True"
    if measured.has("matrix_products"):
        reason = "no matrix product is among the recorded shapes"
    if not findings:
        return ANALYSIS.skipped(reason, verdicts=verdicts)
    return ANALYSIS.answered(findings=tuple(findings), caveats=(reason,), verdicts=verdicts)


TYPE_HEADINGS = as_headings("""
    kind | product
    type | type
""")
SIZE_HEADINGS = as_headings("""
    canonical | stage
    name | operator
    type | type
    batch | batch | count | Products a call; attention: batch × heads.
    m | M | id | Rows; attention: queries. — is the pooled rest.
    n | N | id | Columns; attention: keys.
    k | K | id | Length of the sums; attention: head size.
""")
RATE_HEADINGS = as_headings("""
    count | calls | count
    gflop | GFLOP | number | 10⁹ FLOPs of all calls, from their shapes; masks are not regarded.
""")
ON_GPU = ("GPU busy", "Device ops launched in the calls, overlaps counted once per GPU.")
ON_HOST = ("host time", "Σ duration of the calls.")


def _products(
    measured: Measurements, rows: pd.DataFrame
) -> tuple[tuple[Metric, ...], Callable[[], tuple[Sheet, ...]]]:
    """(the FLOP rate of all gemms, what gives products by type and by size)."""
    on_gpu = bool(rows["device_busy_ns"].notna().any())
    rows = rows.assign(time_ns=rows["device_busy_ns" if on_gpu else "host_ns"])
    is_timed = rows["time_ns"].notna().to_numpy(np.bool_)
    rows["rated_flop_count"] = rows["rated_flop_count"].where(is_timed)
    time, time_doc = ON_GPU if on_gpu else ON_HOST
    of_all = _rates(rows[rows["kind"] == "gemm"].assign(all=""), ["all"])
    value = number_or_none(of_all["tflop_per_s"].iloc[0]) if len(of_all) else None
    label = f"GEMM FLOP rate from recorded shapes (TFLOP/s of {time})"
    sheets = partial(_product_sheets, measured, rows, time, time_doc)
    if value is None and not _is_rated(rows):
        return (), sheets
    return (Metric("gemm_tflop_per_s", value, "", "higher", label=label),), sheets


def _is_rated(rows: pd.DataFrame) -> bool:
    """Whether the time that any of these products took is known."""
    return bool(rows["rated_flop_count"].notna().any())


def _unrated(rows: pd.DataFrame) -> Iterator[str]:
    """Why there is no FLOP rate."""
    if not _is_rated(rows) and rows["device_busy_ns"].isna().all():
        yield (
            "no FLOP rate: the host only queues these products on a GPU, and no kernel was recorded; "
            "profile with activities=[CPU, CUDA]"
        )


def _product_sheets(
    measured: Measurements, rows: pd.DataFrame, time: str, time_doc: str
) -> tuple[Sheet, ...]:
    """Products by type and by size."""
    by_type = _rates(rows, ["run", "kind", "type"])
    by_size = rows.assign(canonical=canonical_stages(rows, in_file=True))
    by_size = _rates(by_size, ["run", "canonical", "name", "kind", "type", "batch", "m", "n", "k"])
    run = run_heading(measured)
    rate_doc = f"FLOPs / {time}: the rate that was reached, no share of a peak."
    rate = (
        *RATE_HEADINGS,
        Heading("time_ns", time, "ns", time_doc),
        Heading("share_ratio", "share", "ratio", "Of the time of all these products."),
        *((Heading("tflop_per_s", "TFLOP/s", "", rate_doc),) if _is_rated(rows) else ()),
    )
    title = "GEMM FLOP rate from recorded shapes, by type"
    if not _is_rated(rows):
        title = "Matrix products by type"
    caption = "Convolutions and attention over packed sequences are left out: their recorded shapes do not tell the FLOPs."
    size_headings = (*run, *SIZE_HEADINGS, *rate)
    return (
        sheet("flop_rates", title, (*run, *TYPE_HEADINGS, *rate), by_type),
        sheet(
            "matrix_products", "Matrix products by size", size_headings, by_size, caption=caption
        ),
    )


def _rates(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Σ FLOPs / Σ time per group, most time first."""
    sums = summed(rows, by, ["count", "flop_count", "rated_flop_count", "time_ns"])
    is_unknown = rows["rated_flop_count"].isna() & rows["time_ns"].notna()
    unknown = of_keys(rows, by)[0][is_unknown.to_numpy(np.bool_)]
    # A sum that holds an unknown part is unknown; a process without GPU rows has no part in it.
    lost = np.bincount(unknown, minlength=len(sums)) > 0
    sums["rated"] = sums["rated_flop_count"].astype("Float64").mask(lost)
    sums["gflop"] = sums["flop_count"].astype("Float64") / 1e9
    time = sums["time_ns"]
    all_ns = float(time.astype("Float64").sum())
    sums["share_ratio"] = time / all_ns if all_ns else None
    sums["tflop_per_s"] = quotient(sums["rated"], time) / 1e3
    return ordered(sums, time_ns=False, **dict.fromkeys(by, True))


def _abstained(measured: Measurements) -> Iterator[Verdict]:
    """Why a rule says nothing of any run."""
    rows = measured["work_classes"] if measured.row_count("work_classes") else None
    if rows is None or not (rows["device"].notna() | (rows["class"] == "gemm")).any():
        for rule in ANALYSIS.rules:
            yield Verdict(rule, "not applicable", "no GPU activity was recorded")
        return
    capability = rows["capability"].dropna()
    if not len(capability):
        for rule in ANALYSIS.rules:
            yield Verdict(rule, "insufficient data", "compute capability was not recorded")
        return
    if not (capability >= TENSOR_CAPABILITY).any():
        for rule in ANALYSIS.rules:
            yield Verdict(rule, "not applicable", "the GPUs have no tensor cores")
        return
    if not measured.has("matrix_products") and not (rows["class"] == "unaligned").any():
        reason = "input shapes were not recorded, and no kernel's name tells"
        yield Verdict("unaligned-gemm", "insufficient data", reason)


def _capable(measured: Measurements, work: StageWork) -> bool:
    """Whether the GPUs of a run are known to have tensor cores."""
    capabilities = of_run(measured, "work_classes", work.window.run)["capability"].dropna()
    return bool(len(capabilities)) and bool((capabilities >= TENSOR_CAPABILITY).all())


def _plain_units(measured: Measurements, thresholds: Thresholds) -> Iterator[Finding]:
    """R24: stages in which matrix products or convolutions run on other cores than the tensor cores."""
    limit = thresholds.of("no-tensor-cores")
    convolved = {work.window.key: work for work in by_stage(measured, "convolution")}
    plain_stages = []
    for work in by_stage(measured, "plain"):
        if work.ratio is not None and work.ratio >= limit["stage_ratio"]:
            plain_stages.append(work)
    for work in together(measured, plain_stages):
        if not _capable(measured, work):
            continue
        slow, _ = work.per_step(work.busy_ns)
        gain, ratio = work.per_step(work.busy_ns * (1 - 1 / limit["most_gain"]))
        convolutions = [convolved.get(stage.window.key) for stage in work.stages]
        convolution_ns = sum(each.busy_ns for each in convolutions if each)
        kernels = sum(each.count for each in convolutions if each)
        what = _without_tensor_cores(work, convolution_ns, all_convolve=kernels == work.count)
        convolution_ratio = share_of(convolution_ns, work.whole_ns)
        yield Finding(
            "no-tensor-cores",
            thresholds.severity(ratio),
            f"{show(work.ratio, 'ratio')} of the GPU work of {work.window.name} is {what} without tensor cores",
            _tensor_core_advice(measured, work),
            (
                evidence("plain_ratio", work.ratio, "of its GPU work"),
                *(
                    [evidence("convolution_ratio", convolution_ratio, "of its GPU work convolves")]
                    if convolution_ratio
                    else ()
                ),
                evidence("plain_ns", slow, "per step"),
                Metric("plain_kernels", work.count, "count", label="kernels"),
            ),
            work.places,
            gain,
            ratio,
            (
                "upper bound: small or memory-bound products gain less",
                "logits and entropy may be in 32 bits on purpose",
            ),
        )


def _tensor_core_advice(measured: Measurements, work: StageWork) -> str:
    """Which numbers the tensor cores of these GPUs multiply."""
    capabilities = of_run(measured, "work_classes", work.window.run)["capability"].dropna()
    if (capabilities >= BF16_CAPABILITY).all():
        return "run them in bf16 or allow TF32 (torch.set_float32_matmul_precision('high'))"
    fp16 = "run them in fp16 (torch.autocast with a GradScaler)"
    if (capabilities < BF16_CAPABILITY).all():
        return f"{fp16}: the tensor cores of these GPUs multiply neither bf16 nor TF32"
    return f"{fp16}: the tensor cores of some of these GPUs multiply neither bf16 nor TF32"


def _without_tensor_cores(work: StageWork, convolution_ns: int, *, all_convolve: bool) -> str:
    """What runs without tensor cores in these stages, in words."""
    if not convolution_ns:
        return "matrix products"
    if all_convolve:
        return "convolutions"
    share = show(share_of(convolution_ns, work.whole_ns), "ratio")
    return f"convolutions ({share}) and matrix products"


def _unaligned_sizes(measured: Measurements, thresholds: Thresholds) -> Iterator[Finding]:
    """R25: products with rows that do not begin at multiples of 16 bytes."""
    limit = thresholds.of("unaligned-gemm")
    parts: dict[Owner, list[StageWork]] = {}
    for work in by_stage(measured, "gemm", "gemm"):
        parts.setdefault(work.window.owner, []).append(work)
    unaligned = by_stage(measured, "unaligned")
    for (run, role), gemms in parts.items():
        unaligned_work = [work for work in unaligned if work.window.owner == (run, role)]
        busy = sum(work.busy_ns for work in unaligned_work)
        all_ns = sum(work.busy_ns for work in gemms)
        if not all_ns or busy / all_ns < limit["gemm_ratio"] or not _capable(measured, gemms[0]):
            continue
        sized = _sized(measured, run, role)
        loss = _loss(sized, busy, limit)
        gain, ratio = gemms[0].per_step(loss.ns)
        if ratio is not None and ratio < limit["step_ratio"]:
            continue
        places = _places(role, sized) or tuple(work.places[0] for work in unaligned_work[:3])
        first = f": {places[0].name} most of all" if places[0].name else ""
        yield Finding(
            "unaligned-gemm",
            thresholds.severity(ratio),
            f"{show(busy / all_ns, 'ratio')} of the time of matrix products goes to unaligned sizes{first}"
            + in_run(measured, run),
            "pad N and K (vocabulary, hidden size, keys of attention) to 16 bytes: 8 elements of 16 bits, 4 of TF32,"
            " 16 of FP8; M, the number of tokens, costs nothing",
            (
                evidence("unaligned_ratio", busy / all_ns, "of the time of matrix products"),
                evidence("unaligned_ns", gemms[0].per_step(busy)[0], "per step"),
            ),
            places,
            gain,
            ratio,
            tuple(_doubts(loss, limit)),
        )


def _sized(measured: Measurements, run: object, role: object) -> pd.DataFrame:
    """Matrix products of one role whose kernels were seen, with `time` and `flops` as floats, `is_unaligned`."""
    rows = of_run(measured, "matrix_products", run) if measured.has("matrix_products") else None
    if rows is None or not len(rows):
        return pd.DataFrame(columns=["type", "canonical", "label", "time", "flops", "is_unaligned"])
    rows = rows[same_text(rows["role"], role) & (rows["kind"] == "gemm")]
    rows = rows[rows["m"].notna() & rows["rated_flop_count"].notna()]
    time = rows["device_busy_ns"].astype("Float64").fillna(0).to_numpy(float)
    narrow_ns = rows["unaligned_ns"].fillna(0) - rows["attention_ns"].fillna(0)
    narrow = narrow_ns.to_numpy(float)
    return rows.assign(
        canonical=canonical_stages(rows, in_file=True),
        label=[_label(row) for row in row_dicts(rows)],
        time=time,
        flops=rows["rated_flop_count"].astype("Float64").to_numpy(float),
        is_unaligned=2 * narrow > time,
    )


@dataclass(frozen=True, slots=True)
class _Loss:
    """Time that unaligned products lose, and how much of their time could be compared with aligned ones."""

    ns: float
    compared_ns: float
    busy_ns: float


def _loss(sized: pd.DataFrame, busy_ns: float, limit: Mapping[str, float]) -> _Loss:
    """What unaligned products take beyond the rate of aligned ones of their type, at most `most_gain` as fast.

    What has no aligned product of its type beside it is taken to gain `assumed_gain`.
    """
    narrow = sized["is_unaligned"].to_numpy(np.bool_)
    time, flops = sized["time"].to_numpy(float), sized["flops"].to_numpy(float)
    lost_ns, compared_ns = 0.0, 0.0
    for kind in sized["type"][narrow].unique():
        of_type = (sized["type"] == kind).to_numpy(np.bool_)
        wide = of_type & ~narrow
        if not (time[wide].sum() > 0 and flops[wide].sum() > 0):
            continue
        rate = flops[wide].sum() / time[wide].sum()
        compared = of_type & narrow
        excess = np.maximum(time - flops / rate, 0.0)[compared]
        lost_ns += float(np.minimum(excess, time[compared] * (1 - 1 / limit["most_gain"])).sum())
        compared_ns += float(time[compared].sum())
    rest_ns = max(busy_ns - compared_ns, 0.0)
    return _Loss(lost_ns + rest_ns * (1 - 1 / limit["assumed_gain"]), compared_ns, busy_ns)


def _doubts(loss: _Loss, limit: Mapping[str, float]) -> Iterator[str]:
    """How sure the loss is."""
    if loss.compared_ns:
        yield (
            "against the mean rate of aligned products of the same type in this run, at most"
            f" {limit['most_gain']:g} times as fast"
        )
    if loss.compared_ns < loss.busy_ns / 2:
        yield (
            "no aligned product of the same type to compare with: aligned ones are taken to be"
            f" {limit['assumed_gain']:g} times as fast"
        )


def _places(role: str | None, sized: pd.DataFrame) -> tuple[Place, ...]:
    """The three unaligned products that take most time."""
    worst = sized[sized["is_unaligned"].to_numpy(np.bool_)]
    worst = worst.sort_values(["time", "label"], ascending=[False, True], kind="stable")
    worst = worst.drop_duplicates(["canonical", "label"]).head(3)
    places = []
    for row in row_dicts(worst):
        places.append(Place(role=role, stage=text_or_none(row["canonical"]), name=row["label"]))
    return tuple(places)


def _label(row: Mapping[Any, Any]) -> str:
    return f"{row['name']} {row['m']}×{row['n']}×{row['k']} {row['type']}"


ANALYSIS = Analysis(
    id="matmuls",
    title="How fast are matrix products, and on which units?",
    bases={"no-tensor-cores": "modelled", "unaligned-gemm": "modelled"},
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
