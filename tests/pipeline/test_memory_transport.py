"""Page data of memory snapshots: it comes with measurements, and damaged data is refused or makes a page."""

import random
from pathlib import Path

import numpy as np
import pytest
from memory_builder import Allocator, stack
from pipeline.test_page_transport import ASKED, ASSETS, damage, is_equal, measure
from snapshot_traces import loaded, written

import tracekit
from tracekit.model.inputs.page_blocks import DamagedPageError, pack_page_blocks, unpack_page_blocks
from tracekit.model.tables.slots import PAGE_CAUSES
from tracekit.pipeline.cache.page_checks import check_page_blocks
from tracekit.process.page_blocks.build import build_page_blocks
from tracekit.render.explorer.page import write_explorer_page


def make_allocator(device=0):
    """Twenty allocations, five of them freed; the first ones are before the history."""
    allocator = Allocator(device)
    held = [allocator.alloc(1_000 * number, stack(f"f{number % 3}", "main")) for number in range(1, 21)]
    allocator.clear_history()
    for address in held[::4]:
        allocator.free(address)
    for number in range(5):
        allocator.alloc(5_000 + number, stack("late", "main"))
    return allocator


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """The data of a snapshot with two devices."""
    trace = loaded(tmp_path_factory.mktemp("sound"), make_allocator(), make_allocator(1))
    return build_page_blocks(trace, ())


def test_snapshots_come_with_measurements_and_pass_the_checks(tmp_path):
    later = make_allocator()
    later.alloc(7_000, stack("later", "main"))
    folder = written(tmp_path, {1: make_allocator(), 2: later})
    measured = measure(folder, ASKED)
    assert len(measured.pages) == len(measured.sources) == 2
    for page in measured.pages:
        made = unpack_page_blocks(page.source, page.data)
        check_page_blocks(made)
        (trace,) = tracekit.load_all(Path(page.source.path))
        assert is_equal(made, build_page_blocks(trace, ()))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_columns_of_snapshots_are_refused_or_make_a_page(blocks, seed):
    rng, refused, pages = random.Random(seed), 0, 0
    for _ in range(60):
        wrong = damage(blocks, rng)
        try:
            check_page_blocks(unpack_page_blocks(blocks.source, pack_page_blocks(wrong)))
        except DamagedPageError:
            refused += 1
            continue
        assert write_explorer_page(tracekit.Report("t", "0"), [wrong], ASSETS, PAGE_CAUSES, 400_000).text
        # Few bytes, so that pieces are merged.
        assert write_explorer_page(tracekit.Report("t", "0"), [wrong], ASSETS, PAGE_CAUSES, 2_000).text
        pages += 1
    assert refused > 10
    assert pages > 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("piece.path", 99),
        ("piece.start", 2**40),
        ("snapshot.shown", 0),
        ("snapshot.peak_time", 2**40),
        ("piece.before", 2),
    ],
)
def test_a_number_of_a_piece_without_a_meaning_is_refused(blocks, name, value):
    column = blocks.numbers[name].astype(np.uint64)
    column[0] = value
    wrong = type(blocks)(blocks.source, 0, {**blocks.numbers, name: column}, blocks.names)
    check_page_blocks(blocks)
    with pytest.raises(DamagedPageError):
        check_page_blocks(wrong)
