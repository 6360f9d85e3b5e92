"""Times of places: offsets from the start of the run, never times of day."""

import pytest

from tracekit.model.report import Place
from tracekit.render.phrases import format_place

START = 1_795_160_500_000_030_000
SPANS = (("base", START, START + 10**10), ("opt", START + 2 * 10**10, START + 3 * 10**10))


@pytest.mark.parametrize(
    ("place", "spans", "text"),
    [
        (
            Place(run="base", start_ns=START + 115_289_228, end_ns=START + 116_477_424),
            SPANS,
            "at +0.115289 s for 1.19 ms",
        ),
        (Place(run="opt", start_ns=START + 21 * 10**9), SPANS, "at +1.000000 s"),
        (Place(run="opt", end_ns=START + 21 * 10**9), SPANS, "until +1.000000 s"),
        (Place(start_ns=START + 10**9), SPANS[:1], "at +1.000000 s"),
        (Place(start_ns=START + 10**9, end_ns=START + 2 * 10**9), SPANS, "for 1,000 ms"),
        (Place(rank=1, start_ns=START + 10**9), (), "rank 1"),
        (Place(run="base", start_ns=START - 1, end_ns=START + 5 * 10**6), SPANS, "for 5.00 ms"),
        (Place(run="base", start_ns=START, end_ns=START + 10**6), (("base", 0, START + 10**9),), "for 1.00 ms"),
        (Place(start_ns=12_345_678_901, end_ns=12_407_678_901), (), "at 12.345679 s for 62.0 ms"),
    ],
)
def test_the_time_of_a_place_counts_from_the_start_of_its_run(place, spans, text):
    assert format_place(place, spans) == text
