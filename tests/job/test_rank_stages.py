"""The picture of many ranks by stage: its rows, its numbers, and names that are nobody's markup."""

import numpy as np
import pytest
from analyses.waiting_traces import measure_folder, section
from changed_tables import with_tables
from rules.firing import write_sources
from rules.traces_stragglers import rank_group


def group_of(folder, ranks, slow):
    """Two steps of two segments: the ranks that are `slow` work 70 where others work 50."""
    work = [70 if rank in slow else 50 for rank in range(ranks)]
    return measure_folder(write_sources(folder, rank_group([[work] * 2] * 2)))


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    return group_of(tmp_path_factory.mktemp("some"), 32, {9})


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return group_of(tmp_path_factory.mktemp("many"), 70, {9, 69})


def on_hosts(measured, host):
    """The same, each rank on a host."""
    captures = measured["captures"]
    hosts = [host(int(rank)) for rank in captures["rank"]]
    return with_tables(measured, {"captures": captures.assign(host=np.array(hosts, object))})


def picture(measured):
    """The chart of the section on own work."""
    (chart,) = section(measured, "imbalance").charts
    return chart


def test_fewer_ranks_are_read_from_the_table(tmp_path):
    assert section(group_of(tmp_path, 31, {9}), "imbalance").charts == ()


def test_a_rank_has_a_row_with_what_it_works_beyond_the_median(some):
    """Twice 20 more in each step; the others work what the median does."""
    chart = picture(some)
    assert (chart.kind, chart.series) == ("matrix", ("update_actor",))
    assert chart.rows == tuple(f"rank {rank}" for rank in range(32))
    assert chart.marks == tuple((rank, 0, 40_000 * (rank == 9)) for rank in range(32))
    assert chart.ranks == tuple(range(32))
    assert "The largest excess is 40.0 µs (20 % of the step)." in chart.caption


def test_rows_stand_by_host_then_rank(some):
    """Even ranks on node-10, odd ones on node-9."""
    chart = picture(on_hosts(some, lambda rank: "node-9" if rank % 2 else "node-10"))
    assert chart.rows[:2] == ("node-9 rank 1", "node-9 rank 3")
    assert chart.rows[16] == "node-10 rank 0"
    assert chart.ranks == (*range(1, 32, 2), *range(0, 32, 2))
    assert [row for row, _, value in chart.marks if value] == [4]


def test_of_more_ranks_a_row_is_a_host_and_shows_its_longest(many):
    """Eight ranks a host: rank 9 is on the second, rank 69 on the ninth."""
    chart = picture(on_hosts(many, lambda rank: f"node-{rank // 8}"))
    assert chart.rows == tuple(f"node-{host}" for host in range(9))
    assert [value for _, _, value in chart.marks] == [0, 40_000, 0, 0, 0, 0, 0, 0, 40_000]
    assert "70 ranks in 9 rows: a cell shows its longest rank." in chart.caption
    assert chart.ranks == ()


def test_without_hosts_a_row_is_ranks_that_follow_one_another(many):
    """70 in at most 64 rows: two a row."""
    for measured in (many, on_hosts(many, lambda rank: f"node-{rank % 2}" if rank else None)):
        chart = picture(measured)
        assert len(chart.rows) == 35
        assert (chart.rows[0], chart.rows[4]) == ("rank 0 – rank 1", "rank 8 – rank 9")
        assert [row for row, _, value in chart.marks if value] == [4, 34]
