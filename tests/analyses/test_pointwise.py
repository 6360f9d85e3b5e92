"""Chains of pointwise kernels (R27) and copies into another layout (R37)."""

from types import SimpleNamespace

import pytest
from analyses.in_depth import report_of, rows_of, section
from chrome_builder import annotation, launched
from rules.traces_matmuls import BF16, ELEMENTWISE, chain, copied, shaped, update

from tracekit.analyses.ops.unfused import _find_top_ops, _is_large, _sum_calls
from tracekit.model.tables.frame import from_rows
from tracekit.model.thresholds import Thresholds

QUESTIONS = ("unfused",)
SILU = (("aten::neg", 20), ("aten::exp", 25), ("aten::add", 15))
COPY = ELEMENTWISE.format("direct_copy_kernel_cuda")


def found_by(report, rule):
    return [finding for finding in report.findings if finding.rule == rule]


def unfused(tmp_path, rows):
    return found_by(report_of(tmp_path, rows, only=QUESTIONS), "unfused-operators")


def copies(tmp_path, rows):
    return found_by(report_of(tmp_path, rows, only=QUESTIONS), "layout-copies")


def renamed(rows):
    """The rows, with another kernel where `nothing` is done to elements."""
    return [row | {"name": "nvjet_tst_b"} if "nothing_kernel" in row["name"] else row for row in rows]


def test_all_but_the_longest_kernel_of_a_chain_is_recoverable(tmp_path):
    """20 + 15 of 1,000; the 25 would be those of the one kernel."""
    (found,) = unfused(tmp_path, chain(*SILU))
    assert found.claim == (
        "3.5 % of the GPU work of update_actor is chains of pointwise operators, each with its own reads and writes: aten::neg, aten::exp, aten::add"
    )
    assert (found.cost_ns, found.severity) == (35_000, "medium")
    assert {m.name: m.value for m in found.evidence} == {"unfused_ratio": 0.035, "calls": 1}
    assert "chains" in next(m.label for m in found.evidence if m.name == "calls")


def test_the_ops_of_the_chains_that_take_longest_are_named(tmp_path):
    """40 + 40 of three squarings are more than 20 + 15."""
    longer = (("aten::pow", 40), ("aten::pow", 40), ("aten::pow", 40))
    (found,) = unfused(tmp_path, renamed(chain(*SILU, ("nothing", 1), *longer)))
    assert found.claim.endswith(": aten::pow, aten::pow, aten::pow")
    assert found.cost_ns == 35_000 + 80_000


def test_a_long_chain_is_named_by_its_first_ops(tmp_path):
    (found,) = unfused(tmp_path, chain(*[("aten::mul", 10)] * 9))
    assert found.claim.endswith(", ".join(["aten::mul"] * 6) + ", …")
    assert found.cost_ns == 80_000


@pytest.mark.parametrize(
    "rows",
    [
        chain(*SILU[:2], ("nothing", 1)),
        chain(("aten::neg", 20), ("aten::exp_", 25), ("aten::add", 15)),
        chain(*SILU, dims=[(64, 64), (64, 64), (64, 63)]),
        chain(*SILU[:2], rest=100),
    ],
    ids=["another kernel between", "in place", "of other sizes", "two"],
)
def test_what_is_no_chain(tmp_path, rows):
    assert not unfused(tmp_path, renamed(rows))


def test_work_of_another_stream_does_not_part_a_chain(tmp_path):
    between = launched("nvjet_tst_c", 100, 5, 30, 50, stream=9)
    assert unfused(tmp_path, [*chain(*SILU), *between])


def test_an_optimizer_is_a_matter_of_its_own(tmp_path):
    rows = [*chain(*SILU), annotation("Optimizer.step#AdamW.step", 0, 100)]
    assert not unfused(tmp_path, rows)


@pytest.mark.parametrize("around", [(), ("aten::clone",), ("aten::reshape", "aten::clone")])
def test_copies_for_their_own_sake_are_named_with_what_encloses_them(tmp_path, around):
    (found,) = copies(tmp_path, copied(40, around=around))
    assert found.claim.endswith(": " + " > ".join((*around, "aten::copy_")))
    assert found.cost_ns == 40_000


@pytest.mark.parametrize(
    "rows",
    [copied(300, types=("float", BF16, "Scalar")), copied(300, around=("aten::pad", "aten::constant_pad_nd"))],
    ids=["another type", "part of padding"],
)
def test_a_copy_that_does_something_else_is_none_into_another_layout(tmp_path, rows):
    assert not copies(tmp_path, rows)


def test_the_sheet_has_a_line_for_each_kind(tmp_path):
    rows = update(
        *chain(*SILU)[2:], shaped("aten::copy_", 600, 10, [[64, 64], [64, 64], []]), *launched(COPY, 601, 1000, 50, 60)
    )
    report = report_of(tmp_path, rows, only=QUESTIONS)
    by_kind = {row["what"]: row for row in rows_of(section(report, "unfused"), "unfused")}
    assert by_kind["chains of pointwise operators"]["busy_ns"] == 35_000
    assert by_kind["copies into another layout"]["busy_ns"] == 50_000
    assert by_kind["copies into another layout"]["ratio"] == pytest.approx(50 / 1050)


@pytest.mark.parametrize(
    ("kind", "ratio", "copied", "is_large"),
    [
        ("chain", 0.03, 0, True), ("chain", 0.0299, 0, False), ("chain", None, 0, False),
        ("layout", 0.0499, 0, False), ("layout", 0.05, 0, True),
        ("loss", 0.03, 0, False), ("loss", 0.03, 1, True), ("loss", 0.0299, 1, False),
    ],
)  # fmt: skip
def test_work_is_reported_from_its_limit_on_and_a_loss_only_with_copies_of_its_stage(kind, ratio, copied, is_large):
    names = ("run", "role", "canonical", "class", "size_bytes")
    calls = from_rows(
        names,
        [
            ("a", "trainer", "update", "copy", copied), ("a", "trainer", "update", "loss", 70),
            ("a", "trainer", "gen", "copy", 99), ("b", "trainer", "update", "copy", 99), ("a", "ref", "update", "copy", 99),
        ],
    )  # fmt: skip
    window = SimpleNamespace(run="a", role="trainer", canonical="update")
    limits = Thresholds({"layout-copies": {"stage_ratio": 0.05}, "unfused-operators": {"stage_ratio": 0.03}})
    assert _is_large(kind, SimpleNamespace(window=window, ratio=ratio), calls, limits) is is_large
    assert _sum_calls(calls, "copy", "size_bytes") == copied + 3 * 99


def test_the_ops_of_most_calls_of_the_kind_are_named():
    rows = [("chain", "neg", 3), ("chain", "exp", 5), ("loss", "log", 9), ("chain", None, 8)]
    calls = from_rows(("class", "ops", "count"), rows)
    assert [_find_top_ops(calls, kind) for kind in ("chain", "loss", "attention")] == ["exp", "log", None]
