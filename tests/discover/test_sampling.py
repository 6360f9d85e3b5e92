"""Some ranks of many: which are read, and what is said of the others."""

from pathlib import Path

import pytest

from tracekit.discover.sampling import SAMPLED, sample_ranks
from tracekit.model.errors import TracekitError
from tracekit.model.trace import Source


def source(rank, role=None, host=None, run="run"):
    name = f"{role}{rank}.json"
    return Source(Path(name), name, "chrome", "torch", run=run, role=role, rank=rank, host=host)


def ranks(kept):
    return [one.rank for one in kept]


def test_first_and_last_come_first_then_what_lies_furthest_from_all():
    every = [source(rank) for rank in range(1000)]
    assert ranks(sample_ranks(every, 1)[0]) == [0]
    assert ranks(sample_ranks(every, 2)[0]) == [0, 999]
    assert ranks(sample_ranks(every, 5)[0]) == [0, 249, 499, 749, 999]


def test_the_order_of_the_files_does_not_matter():
    every = [source(rank) for rank in range(100)]
    assert ranks(sample_ranks(every, 7)[0]) == sorted(ranks(sample_ranks(every[::-1], 7)[0]))


def test_every_role_is_there_before_the_middle_is():
    every = [source(rank, "actor") for rank in range(64)]
    every += [source(rank, "critic") for rank in (8, 9)]
    assert {one.role for one in sample_ranks(every, 3)[0]} == {"actor", "critic"}


def test_every_host_is_there_as_far_as_the_number_allows():
    every = [source(rank, host=f"host{rank // 8}") for rank in range(64)]
    assert {one.host for one in sample_ranks(every, 8)[0]} == {f"host{at}" for at in range(8)}
    assert len({one.host for one in sample_ranks(every, 5)[0]}) == 5


def test_what_is_of_no_rank_is_kept():
    every = [*(source(rank) for rank in range(10)), source(None, "log")]
    assert None in ranks(sample_ranks(every, 2)[0])


def test_the_note_tells_what_was_left_out_and_what_that_may_hide():
    every = [source(rank, role) for rank in range(1000) for role in ("actor", "critic")]
    kept, (note,) = sample_ranks(every, 2)
    assert len(kept) == 4
    assert note.code == SAMPLED
    assert note.message == (
        "2 of 1,000 ranks were read (0, 999), chosen by number: "
        "1,996 sources were left out, and a straggler may be among them"
    )


def test_where_there_are_no_more_ranks_all_are_kept_without_a_word():
    every = [source(rank) for rank in range(4)]
    assert sample_ranks(every, 4) == (every, [])


@pytest.mark.parametrize(("every", "count"), [([source(None)], 1), ([source(0)], 0)])
def test_a_sample_that_cannot_be_chosen_is_refused(every, count):
    with pytest.raises(TracekitError):
        sample_ranks(every, count)
