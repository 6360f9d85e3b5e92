"""Groups that move their bytes more slowly than their peers or than before (R35); numbers worked out by hand."""

import pytest
from analyses.in_depth import result_of
from chrome_builder import launched, step
from rules.firing import write_sources
from rules.traces_communication import nccl
from rules.traces_links import two_links

QUESTIONS = ("communication", "links")


def report_of(tmp_path, sources):
    return result_of(write_sources(tmp_path, sources), QUESTIONS).report


def found_by(report, rule):
    return [finding for finding in report.findings if finding.rule == rule]


def getting_slower(durations):
    """Steps of 1000 of two ranks, each with two messages of 1 MiB that take so long, after 900 of compute."""
    rows = []
    for number, each in enumerate(durations):
        at = 1000 * number
        rows += [step(number, at, 1000), *launched("gemm", at, at, 900, 100 * number)]
        for k in range(2):
            rows += nccl("allreduce", at + 1 + k, at + 900 + k * each, each, 100 * number + k + 1, 2**20)
    return {0: rows, 1: rows}


def test_a_slow_link_that_compute_hides_is_low_and_gives_nothing_back(tmp_path):
    (found,) = found_by(report_of(tmp_path, two_links(10, 21, hidden=True)), "slow-link")
    assert (found.severity, found.cost_ns) == ("low", 0)
    assert [place.rank for place in found.places] == [2, 3]


def test_a_group_that_got_slower_is_named_with_the_step(tmp_path):
    """40 µs instead of 10 in the last two of four steps, the first left out: 2 × 30 µs in half of them, 30 µs a step."""
    (found,) = found_by(report_of(tmp_path, getting_slower([10, 10, 10, 40, 40])), "slow-link")
    assert found.claim == "ranks 0, 1 are on a slow link: all_reduce moves 26.2 GB/s, from step 3 on; before 105 GB/s"
    assert found.cost_ns == 30_000


def test_what_waits_for_another_collective_beside_it_is_not_due_to_the_link(tmp_path):
    """Of the first of four messages, 11 µs longer than usual, another collective takes 18 of 21: 3 + 3 × 11 of 1000."""
    sources = two_links(10, 21)
    for rank in (2, 3):
        sources[rank] += launched("ncclDevKernel_AllGather", 50, 901, 18, 50, stream=33)
    (found,) = found_by(report_of(tmp_path, sources), "slow-link")
    assert found.cost_ns == 36_000


@pytest.mark.parametrize(
    "durations", [[9, 10, 40, 10, 40], [9, 10, 10, 10, 40], [9, 40, 40, 10, 10], [9, 10, 10, 19, 19]]
)
def test_a_rate_that_comes_and_goes_or_rises_is_no_slow_link(tmp_path, durations):
    assert not found_by(report_of(tmp_path, getting_slower(durations)), "slow-link")


def test_what_a_late_rank_makes_the_others_wait_is_no_slow_link(tmp_path):
    """Rank 3 comes 30 µs late to each: the transfer is what it takes there, as long as everywhere."""
    sources = two_links(10, 10)
    sources[2] = [step(1, 0, 1000), *launched("gemm", 0, 0, 900, 1)]
    sources[3] = [step(1, 0, 1000), *launched("gemm", 0, 0, 900, 1)]
    for number in range(4):
        end = 950 + number * 13
        sources[2] += nccl("allreduce", 1 + number, end - 13, 13, 2 + number, 2**20, ranks=(2, 3))
        sources[3] += nccl("allreduce", 1 + number, end - 10, 10, 2 + number, 2**20, ranks=(2, 3))
    assert not found_by(report_of(tmp_path, sources), "slow-link")


def test_what_a_slow_link_costs_is_not_called_missing_overlap_as_well(tmp_path):
    """40 and 84 of 1000 are exposed, 6.2 % of the step; without the 44 of the link 4 %."""
    report = report_of(tmp_path, two_links(10, 21))
    assert [finding.rule for finding in report.findings] == ["slow-link"]
    report = report_of(tmp_path / "alike", two_links(21, 21))
    assert [finding.rule for finding in report.findings] == ["exposed-communication"]
