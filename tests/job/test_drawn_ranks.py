"""Which of many ranks a picture draws, by hand."""

from tracekit.job.report.ranks_to_plot import MAX_ROWS, MOST_DRAWN, choose_rows_to_plot


def values(count, **odd):
    """`count` ranks of 50, but for those named: r7=90."""
    return {f"rank {at}": float(odd.get(f"r{at}", 50)) for at in range(count)}


def test_few_ranks_are_all_drawn_and_sort_as_numbers():
    every = values(MAX_ROWS, r7=90)
    found = choose_rows_to_plot(dict(reversed(every.items())), "work")
    assert list(found.rows) == [f"rank {at}" for at in range(MAX_ROWS)]
    assert (found.omitted, found.note) == (0, "")
    assert all(name == shown for name, shown in found.rows.items())


def test_of_one_more_those_that_differ_and_one_of_the_others():
    found = choose_rows_to_plot(values(MAX_ROWS + 1, r7=90, r8=10), "work")
    # 63 ranks of 50 are left, numbered 0 to 6 and 9 to 64: the 32nd is 33.
    assert dict(found.rows) == {"rank 7": "rank 7", "rank 8": "rank 8", "rank 33": "rank 33, like 62 more"}
    assert found.omitted == 62
    assert found.note == (
        "3 of 65 are drawn, by work: the largest, the smallest and those that differ; of similar ones the middle one."
    )


def test_however_much_they_differ_a_picture_has_an_end():
    found = choose_rows_to_plot({f"rank {at}": 1.5**at for at in range(300)}, "work")
    assert len(found.rows) == MOST_DRAWN
    assert sum(int(text.split(" ")[-2]) for text in found.rows.values() if "like" in text) == 300 - MOST_DRAWN


def test_a_picture_with_less_room_has_fewer_rows():
    assert len(choose_rows_to_plot({f"rank {at}": 1.5**at for at in range(300)}, "work", 5).rows) == 5
