"""One report made by hand that uses everything a report can hold, hostile names included."""

from dataclasses import replace

from tracekit.model.report import (
    Chart,
    Finding,
    Heading,
    Metric,
    Place,
    Remark,
    Report,
    RunReplay,
    Saving,
    Section,
    Sheet,
    Verdict,
)

MS = 1_000_000
HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "`rm -rf`|pipe|``two``",
    "[bold red]not rich[/bold red]",
    "\x1b[31mred\x1b[0m\x07",
    "user\u202egnp.exe\u2066",
    "two\nlines\r\nand\ttab",
    "=cmd()|'/C calc'!A0",
    "@octocat see #123 and https://example.com/x",
    "void at::native::vectorized_elementwise_kernel<4, float*>(int, float*)_[x]_",
    "{{ 7 * 7 }}{% raw %}",
    "x" * 5_000,
    "表計算カーネル",
    "lone \ud800 surrogate",
)


def stages() -> Sheet:
    rows = [
        ("rollout", "generate", 1_021_400_000, 0.5545, 0.71, None),
        ("actor", "update_actor", 498_700_000, 0.2707, 0.83, "5  (+12 %)"),
        ("actor", "compute_log_prob", 142_000_000, 0.0771, 0.79, "5  (+9 %)"),
        ("ref", "compute_log_prob", 96_300_000, 0.0523, 0.81, None),
        ("actor", "sync_weights", 41_050_000, 0.0223, 0.12, "3  (+4 %)"),
        ("driver", "compute_advantage", 18_200_000, 0.0099, 0.0, None),
        ("reward", "compute_reward", 12_000_000, 0.0065, None, None),
        ("driver", "balance_batch", 6_120_000, 0.0033, 0.0, None),
        ("driver", "load_batch", 4_000_000, 0.0022, 0.0, None),
        ("rollout", "wake_up", 2_200_000, 0.0012, 0.31, None),
        ("rollout", "sleep", 30_000, 0.000016, 0.02, None),
    ]
    return Sheet(
        "stages",
        "Where the step goes",
        (
            Heading("role", "role"),
            Heading("stage", "stage"),
            Heading("wall", "wall", "ns", "Time of the stage in the median step, by the driver's clock."),
            Heading("share", "share", "ratio", "Of the median step."),
            Heading("gpu_busy", "GPU busy", "ratio", "Of the stage's wall time, mean of the ranks."),
            Heading("slowest", "slowest by own work", "text", "The rank that others wait for."),
        ),
        tuple(rows),
        caption="Median of 3 steps, 8 ranks.",
    )


def kernels() -> Sheet:
    rows = [
        (name, index % 8, (40 - index) * 1_234_567, 0.21 / (index + 1), 3_000 - index, index % 2 == 0)
        for index, name in enumerate(HOSTILE)
    ]
    rows += [(f"kernel_{index}", index % 8, 900_000 - index * 1_000, 0.0005, 7, None) for index in range(120)]
    return Sheet(
        "kernels",
        "Kernels by GPU time",
        (
            Heading("kernel", "kernel"),
            Heading("rank", "rank", "id"),
            Heading("gpu", "GPU time", "ns", "By launch: sums over streams may exceed the wall time."),
            Heading("share", "of GPU time", "ratio"),
            Heading("launches", "launches", "count"),
            Heading("tensor_cores", "tensor cores", "text"),
        ),
        tuple(rows),
        omitted=4_321,
        caption="Summed over the ranks of the median step.",
    )


def collectives() -> Sheet:
    return Sheet(
        "collectives",
        "Collectives by exposed time",
        (
            Heading("op", "collective"),
            Heading("stage", "stage"),
            Heading("exposed", "exposed", "ns"),
            Heading("hidden", "hidden", "ratio", "Of the collective's own time."),
            Heading("size", "size", "bytes"),
            Heading("bus", "bus rate", "gb_per_s"),
            Heading("change", "change", ""),
        ),
        (
            ("reduce_scatter", "update_actor", 58_000_000, 0.18, 3 << 30, 212.5, -0.25),
            ("all_gather", "update_actor", 21_000_000, 0.74, 3 << 30, 301.25, 0.0),
            ("all_reduce", "compute_log_prob", 40, 0.0, 512, None, 1e-9),
        ),
    )


def findings() -> tuple[Finding, ...]:
    return (
        Finding(
            "straggler",
            "medium",
            "rank 5 arrives last in 92 % of 412 collectives; 63 ms more matmul",
            "check rank 5's tokens, clocks and neighbours; balance sequence lengths",
            evidence=(
                Metric("arrives_last", 0.92, "ratio", label="arrives last"),
                Metric("extra_matmul", 63 * MS, "ns", "lower", 58 * MS, 66 * MS, "extra matmul"),
                Metric("collectives", 412, "count"),
            ),
            places=(
                Place(rank=5, step=3, stage="update_actor", start_ns=12_345_678_901, end_ns=12_407_678_901),
                Place(source="actor_rank5.json.gz", role="actor", rank=5, device=1),
            ),
            cost_ns=61 * MS,
            cost_ratio=0.033,
            caveats=("clock offsets are known to ±0.4 ms only",),
            saving=Saving(1, 61e6, 61e6, 40e6, 1_842e6, 1_781e6, 1_842e6, 55e6, 66e6),
            rank=1,
        ),
        Finding(
            "exposed-communication",
            "medium",
            "reduce_scatter of update_actor is 18 % hidden",
            "prefetch the next layer's all_gather; raise the bucket size; see `--overlap` <b>and</b> @team #7",
            cost_ns=58 * MS,
            cost_ratio=0.0315,
            saving=Saving(2, 58e6, 2e6, 2e6, 1_781e6, 1_779e6, 1_842e6, 50e6, 60e6, behind=1),
            rank=2,
        ),
        Finding(
            "small-kernels",
            "low",
            "1,904 kernels under 5 µs in compute_log_prob leave the GPU idle between them",
            "capture a CUDA graph, or compile",
            cost_ns=20 * MS,
            cost_ratio=0.011,
        ),
        Finding("host-sync", "info", "42 calls of .item() wait for the GPU", "", (), (Place(),), 3 * MS, 0.0016),
        Finding("idle-gap", "info", f"gap after {HOSTILE[3]}{HOSTILE[4]}", HOSTILE[0], (), (), 40, 1e-8),
        Finding("odd-clock", "info", "clock of rank 2 drifts", "sync the clocks"),
        Finding(
            "memory-near-limit",
            "high",
            "78.9 of 79.1 GiB are reserved on rank 3 in update_actor",
            "lower the micro batch; look for fragmentation",
            places=(Place(rank=3, stage="update_actor", name=HOSTILE[5]),),
        ),
    )


def values() -> Sheet:
    return Sheet(
        "values",
        "Values by process and step",
        (Heading("rank", "rank", "id"), Heading("step", "step", "id"), Heading("wall", "wall", "ns")),
        tuple((rank, step, 1_800_000_000 + rank * 7 + step) for rank in range(8) for step in (2, 3, 5)),
    )


def sample_report() -> Report:
    found = findings()
    return Report(
        title="outputs/profile",
        tool_version="0.1.0",
        identity=(
            "outputs/profile",
            "verl",
            "8 ranks (0–7 of 8)",
            "steps 2, 3, 5",
            "torch 2.13",
            "8 × H100 80GB",
            "24 files, 2.9 GiB",
        ),
        headline=(
            Metric("step", 1_842 * MS, "ns", "lower", 1_795 * MS, 1_910 * MS, "Step"),
            Metric("compute", 0.54, "ratio"),
            Metric("exposed_comm", 0.11, "ratio", label="exposed comm"),
            Metric("copies", 0.03, "ratio"),
            Metric("idle", 0.32, "ratio"),
            Metric("unattributed", 0.014, "ratio"),
            Metric("power", None, "", label="power"),
        ),
        overview=stages(),
        replays=(RunReplay("profile", "step", 1_842e6, 1_779e6, 0.014, 0.011, "0.9 % stream gap before add"),),
        sections=(
            Section("kernels", "Kernels", sheets=(kernels(),), findings=found[2:5]),
            Section(
                "communication",
                "Communication",
                metrics=(
                    Metric("exposed", 79 * MS, "ns", label="exposed per step"),
                    Metric("efficiency", 0.61, "ratio", low=0.55, label="efficiency"),
                ),
                sheets=(collectives(),),
                findings=(*found[:2], found[5]),
                caveats=("ranks 0 and 4 share a link <i>not</i> seen by the profiler",),
            ),
            Section("memory", "Memory", "skipped", "no memory snapshots found", findings=found[6:]),
            Section("power", "Power & clocks", "failed", "KeyError: 'clock'\x1b[2J"),
        ),
        remarks=(
            Remark("data_loss", "truncated", "file ends at 71 %, 412,887 events kept", "rank3_step5.json.gz"),
            Remark("warning", "clock", "no clock pair; offsets from collectives", count=3),
            Remark("error", "unreadable", HOSTILE[4], HOSTILE[5]),
            Remark("info", "alias", "stage names mapped by the verl table", count=11),
        ),
        unseen=("rank 3 step 5 (file truncated at 71 %, 412,887 events kept)",),
        values=values(),
        fingerprint=(("model", "Qwen <7B>"), ("world_size", "8"), ("torch", "2.13"), ("none", "")),
    )


STAGES = (
    ("generate", 1_021),
    ("compute_log_prob", 142),
    ("ref_log_prob", 96),
    ("compute_advantage", 18),
    ("update_actor", 499),
    ("sync_weights", 41),
)


def gantt() -> Chart:
    marks = []
    for rank in range(8):
        at = rank * 3 * MS
        for number, (_, wall) in enumerate(STAGES):
            end = at + (wall + (61 if rank == 5 and number == 4 else rank)) * MS
            marks.append((rank, number, at, end))
            at = end + 2 * MS
    return Chart(
        "stages",
        "Stages of step 3",
        "gantt",
        tuple(marks),
        tuple(name for name, _ in STAGES),
        tuple(f"rank {rank} actor" for rank in range(8)),
        caption="All ranks on one clock.",
        omitted=31,
        run="a",
        step=3,
        roles=("actor",) * 8,
        ranks=tuple(range(8)),
    )


def bars() -> Chart:
    parts = (540, 110, 30, 320)
    marks = [(rank, at, (part + rank * 3) * MS) for rank in range(8) for at, part in enumerate(parts)]
    return Chart(
        "exclusive",
        "Where each rank's GPU time goes",
        "bars",
        tuple(marks),
        ("compute", "exposed communication", "copies", "idle"),
        tuple(f"rank {rank}" for rank in range(8)),
        caption="Every moment is counted once.",
    )


def heatmap() -> Chart:
    marks = [
        (rank, at * 40 * MS, (at + 1) * 40 * MS, None if rank == 3 and at > 35 else busy(rank, at))
        for rank in range(8)
        for at in range(46)
    ]
    return Chart(
        "busy",
        "GPU busy over time",
        "heatmap",
        tuple(marks),
        rows=tuple(f"rank {rank}" for rank in range(8)),
        unit="ratio",
    )


def busy(rank: int, at: int) -> float:
    return abs((at * 7 + rank * 3) % 20 - 10) / 10


def lines() -> Chart:
    marks = [
        (series, step, (1_800 + 13 * ((step * (series + 3)) % 7) + series * 40) * MS)
        for series in range(2)
        for step in range(1, 21)
    ]
    marks[7] = (0, 8, None)
    return Chart("walls", "Wall of the step", "lines", tuple(marks), ("base", "tuned"), x_unit="id")


def histogram() -> Chart:
    counts = (3, 40, 220, 410, 230, 60, 22, 9, 4, 0, 2)
    marks = [
        (series, at * 1_000, (at + 1) * 1_000, count // (series + 1))
        for series in range(2)
        for at, count in enumerate(counts)
    ]
    return Chart("durations", "How long kernels run", "histogram", tuple(marks), ("gemm", "elementwise"), unit="count")


def hostile_chart() -> Chart:
    names = HOSTILE
    marks = [(at, at, at * MS, (at + 3) * MS) for at in range(len(names))]
    return Chart("names <&>", HOSTILE[0], "gantt", tuple(marks), names, names, caption=HOSTILE[1])


def single_bars() -> Chart:
    marks = tuple((at, 0, value) for at, value in enumerate((7 << 30, -(1 << 30), None, 0)))
    return Chart(
        "memory",
        "Change of reserved memory",
        "bars",
        marks,
        ("reserved",),
        ("generate", "sleep", "ref", "reward"),
        "bytes",
    )


def charted_report() -> Report:
    """The sample with every kind of chart, and what its rules say."""
    report = sample_report()
    pictures = {
        "kernels": (gantt(), histogram(), hostile_chart()),
        "communication": (bars(), heatmap(), lines(), single_bars()),
    }
    sections = tuple(replace(section, charts=pictures.get(section.id, ())) for section in report.sections)
    told = Verdict("straggler", "fired", "1 finding")
    return replace(report, sections=(*sections, Section("rules", "Rules", verdicts=(told,))))
