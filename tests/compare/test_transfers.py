"""Communication of both sides: moving data told from waiting for other ranks."""

import pytest
from chrome_builder import annotation, op, step
from compare.test_attribution import attribution, folder

from tracekit.compare.comparison import Change
from tracekit.compare.reports.attribution_tables import make_attribution_overview
from tracekit.compare.wall_time.attribution_rows import Attribution, AttributionRow, TransferChange


def reduces(length):
    """A step with one collective of the host's of this length that ends with it."""
    said = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Process Group Name": "0",
            "Group size": 2, "Seq": 1}  # fmt: skip
    rows = [step(1, 0, 100), op("aten::mm", 1, 9)]
    return [*rows, annotation("gloo:all_reduce", 100 - length, length) | {"args": said}]


def test_communication_is_split_into_transfer_and_wait(tmp_path):
    """Before: 20 and 60, so 20 of transfer and a mean wait of 20; after: 20 and 30, so 20 and 5."""
    base = folder(tmp_path / "a", reduces(20), reduces(60))
    opt = folder(tmp_path / "b", reduces(20), reduces(30))
    assert attribution(base, opt).transfers == (
        TransferChange("", "all_reduce", (20_000, 20_000, 0), (20_000, 5_000, 0), waited_for=(0, 20_000, 5_000)),
    )


def test_one_rank_cannot_tell_transfer_from_wait(tmp_path):
    base = folder(tmp_path / "a", reduces(20))
    assert attribution(base, base).transfers == ()


def test_what_moved_is_told_of_the_row_that_holds_the_time():
    """The call on the host changed more, the collective itself takes the time."""
    rows = (
        AttributionRow("gen", "communication: c10d::allreduce_", 6.0, 1.0, -5.0),
        AttributionRow("gen", "communication: gloo:all_reduce", 50.0, 54.0, 4.0),
        AttributionRow("adv", "communication: gloo:all_reduce", 90.0, 93.0, 3.0),
    )
    moved = (TransferChange("gen", "all_reduce", (20.0, 30.0, 0.0), (21.0, 33.0, 0.0)),)
    found = Attribution(146.0, 148.0, ops=rows, transfers=moved)
    step = Change("step_time", "step", None, None, "ns", "lower", "inconclusive", 146.0, 148.0)
    sheet = make_attribution_overview(found, step)
    how = [heading.name for heading in sheet.headings].index("how")
    assert [row[how] for row in sheet.rows] == ["", "transfer +1.00 ns, wait +3.00 ns", ""]


@pytest.mark.parametrize(
    ("waited_for", "how"),
    [
        ((3, 28.0, 2.0), "transfer +1.00 ns, wait −27.0 ns for rank 3"),
        ((3, 28.0, 20.0), "transfer +1.00 ns, wait −27.0 ns"),
        ((3, 2.0, 28.0), "transfer +1.00 ns, wait −27.0 ns"),
        (None, "transfer +1.00 ns, wait −27.0 ns"),
    ],
)
def test_a_repaired_straggler_is_named(waited_for, how):
    """A rank is named if the wait for it explains at least 80 % of the change in the same direction."""
    rows = (AttributionRow("gen", "communication: gloo:all_reduce", 50.0, 24.0, -26.0),)
    moved = (TransferChange("gen", "all_reduce", (20.0, 30.0, 0.0), (21.0, 3.0, 0.0), waited_for),)
    found = Attribution(50.0, 24.0, ops=rows, transfers=moved)
    step = Change("step_time", "step", None, None, "ns", "lower", "inconclusive", 50.0, 24.0)
    sheet = make_attribution_overview(found, step)
    place = [heading.name for heading in sheet.headings].index("how")
    assert [row[place] for row in sheet.rows] == [how]


def test_a_reduce_is_not_the_all_reduce_whose_name_contains_it():
    rows = (
        AttributionRow("gen", "communication: nccl:all_reduce", 90.0, 93.0, 3.0),
        AttributionRow("gen", "communication: nccl:reduce", 50.0, 54.0, 4.0),
        AttributionRow("gen", "communication: ncclDevKernel_SendRecv", 5.0, 6.0, 1.0),
    )
    moved = (
        TransferChange("gen", "reduce", (20.0, 30.0, 0.0), (21.0, 33.0, 0.0)),
        TransferChange("gen", "send", (5.0, 0.0, 0.0), (6.0, 0.0, 0.0)),
    )
    found = Attribution(145.0, 153.0, ops=rows, transfers=moved)
    step = Change("step_time", "step", None, None, "ns", "lower", "inconclusive", 145.0, 153.0)
    sheet = make_attribution_overview(found, step)
    how = [heading.name for heading in sheet.headings].index("how")
    told = {row[1]: row[how] for row in sheet.rows}
    assert told == {
        "communication: nccl:all_reduce": "",
        "communication: nccl:reduce": "transfer +1.00 ns, wait +3.00 ns",
        "communication: ncclDevKernel_SendRecv": "transfer +1.00 ns, wait 0 ns",
    }
