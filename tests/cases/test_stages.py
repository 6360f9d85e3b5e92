"""Snapshots with pools, in all their versions, and stages whose names are not to be trusted."""

import gzip
import json

import pytest

MIB, GIB = 2**20, 2**30
QUIET = ("m1_no_history", "m3_expandable", "m4_old_history", "m5_list", "m6_new_fields")


def headline(report):
    """The numbers of the second line."""
    return {metric.name: metric.value for metric in report.headline}


def section(report, name):
    """One section of a report."""
    (found,) = [s for s in report.sections if s.id == name]
    return found


def rows_of(part, name):
    """The rows of a sheet of a section as dictionaries."""
    (sheet,) = [s for s in part.sheets if s.name == name]
    columns = [heading.name for heading in sheet.headings]
    return [dict(zip(columns, row, strict=True)) for row in sheet.rows]


def test_a_private_pool_that_reserves_gigabytes_for_megabytes_is_named(case):
    """4,000 MiB for one block of 10 MiB, beside 200 MiB with 150 MiB in use."""
    found = case("m2_private_pools")
    assert headline(found.report) == {"peak_requested": 160 * MIB, "peak_reserved": 4200 * MIB}
    private, bounds = found.report.cautions
    assert private == (
        "private pool (0,7) (a CUDA graph or torch.cuda.MemPool) of GPU 0: 3.91 GiB reserved, 10.0 MiB in use"
    )
    assert "uses between 200 MiB and 4.10 GiB" in bounds
    pools = rows_of(section(found.report, "memory-peak"), "memory_pools")
    assert [(p["reserved_bytes"] // MIB, p["in_use_bytes"] // MIB) for p in pools] == [(4000, 10), (200, 150)]  # fmt: skip
    # Memory that may be unmapped is no waste, and no fragmentation.
    assert found.report.findings == ()
    assert "private pool (0,7)" in " ".join(found.screen.split())


@pytest.mark.parametrize("name", QUIET)
def test_snapshots_without_private_pools_say_nothing_of_pools(case, name):
    report = case(name).report
    assert not any("pool" in text for text in report.cautions)
    assert report.findings == ()


@pytest.mark.parametrize(
    ("name", "requested_mib", "reserved_mib"),
    [
        ("m1_no_history", 200, 1000),
        ("m3_expandable", 500, 620),
        ("m4_old_history", 499, 600),
        ("m5_list", 500, 600),
        ("m6_new_fields", 500, 600),
        ("m7_oom_fragmented", 320, 2560),
    ],
)
def test_every_version_of_a_snapshot_gives_its_levels(case, name, requested_mib, reserved_mib):
    """Rounded to whole MiB."""
    levels = headline(case(name).report)
    assert round(levels["peak_requested"] / MIB) == requested_mib
    assert round(levels["peak_reserved"] / MIB) == reserved_mib


def test_memory_without_a_history_is_mostly_unused(case):
    """200 of 1,000 MiB in use."""
    (row,) = rows_of(section(case("m1_no_history").report, "fragmentation"), "reserved_parts")
    assert row["unused_ratio"] == pytest.approx(0.8)


def test_a_request_that_fits_into_no_piece_is_fragmentation(case):
    """100 MiB were asked for; 2.19 GiB were free in pieces of at most 56 MiB."""
    oom, fragmentation = case("m7_oom_fragmented").report.findings
    assert (oom.rule, oom.severity) == ("out-of-memory", "high")
    assert "100 MiB were requested, and enough was free, but fragmented" in oom.claim
    assert fragmentation.rule == "fragmentation"
    values = {metric.name: metric.value for metric in fragmentation.evidence}
    assert values["largest_free_bytes"] == 56 * MIB
    assert values["stranded_bytes"] == 40 * 56 * MIB


def test_stages_with_commands_in_their_names_are_stages_like_others(case):
    """Of the raw rows: the share of each stage is its time in steps 1 to 11 over the time of these steps."""
    found = case("workflow_commands")
    (path,) = [p for p in found.path.rglob("*") if p.suffix in (".json", ".gz")]
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = json.loads(text)["traceEvents"]
    ranges = [e for e in events if e.get("cat") == "user_annotation"]
    steps = [e for e in ranges if e["name"].startswith("ProfilerStep#")]
    steps = sorted(steps, key=lambda e: e["ts"])[1:]
    begin, whole = steps[0]["ts"], sum(e["dur"] for e in steps)
    expected = {}
    for e in ranges:
        if not e["name"].startswith("ProfilerStep#") and e["ts"] >= begin:
            expected[e["name"]] = expected.get(e["name"], 0) + e["dur"] / whole
    table = found.report.overview
    columns = [heading.name for heading in table.headings]
    rows = [dict(zip(columns, row, strict=True)) for row in table.rows]
    assert {r["canonical"]: r["share_ratio"] for r in rows} == pytest.approx(expected, rel=1e-6)
    assert sum(r["share_ratio"] for r in rows) < 1
    # A CI log would run what stands at the start of a line.
    assert not any(line.lstrip().startswith("::") for line in found.screen.splitlines())
    assert "\u2236:stop-commands::pwn" in found.screen
