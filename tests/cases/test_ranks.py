"""Cases about ranks: a host that pauses where no stage is annotated, and hosts whose clocks differ."""

import pytest

MS = 1_000_000


def test_a_silent_host_is_named_first_without_stages(case):
    """The gaps of the two counted steps on the two ranks, by the raw rows: 5.757 and 4.939 ms, then 4.484 and 5.132 ms.

    Each step waits for the longer one: 5.757 and 5.132, 5.44 ms on average; the GPUs themselves are idle for 5.08 ms.
    """
    found = case("nostage_silence")
    assert not [remark for remark in found.report.remarks if remark.severity == "error"]
    first = found.report.findings[0]
    assert first.rule == "host-silence"
    assert first.cost_ns == pytest.approx(5.44 * MS, rel=0.01)
    assert "GPUs wait 5.07 ms" in first.claim
    assert "read-only" not in found.screen
    assert "host-silence" in found.screen


def test_clocks_of_hosts_that_are_apart_make_no_imbalance(case):
    found = case("host_clocks_10ms_apart_clean")
    rules = {finding.rule for finding in found.report.findings}
    assert rules.isdisjoint({"replica-imbalance", "rank-imbalance", "straggler", "slow-link"})
    assert "imbalance" not in found.screen
