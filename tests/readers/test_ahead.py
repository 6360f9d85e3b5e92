"""Blocks handed over by a thread: the same blocks, the same errors, no thread left behind."""

import threading

import pytest

from tracekit.readers.chrome.stream import BLOCKS_AHEAD, prefetch_blocks


def inflating_threads():
    return [thread for thread in threading.enumerate() if thread.name == "tracekit-inflate"]


def test_the_blocks_come_in_order_and_the_thread_ends():
    blocks = [bytes([n]) for n in range(50)]
    assert list(prefetch_blocks(iter(blocks))) == blocks
    assert not inflating_threads()


def test_what_goes_wrong_in_the_thread_is_raised_after_the_blocks_before_it():
    def breaks():
        yield b"good"
        raise OSError("the disk is gone")

    found = prefetch_blocks(breaks())
    assert next(found) == b"good"
    with pytest.raises(OSError, match="the disk is gone"):
        next(found)
    assert not inflating_threads()


def test_giving_up_half_way_ends_the_thread_and_closes_the_source():
    closed = threading.Event()

    def endless():
        try:
            while True:
                yield b"x"
        finally:
            closed.set()

    found = prefetch_blocks(endless())
    next(found)
    found.close()
    assert closed.wait(5)
    assert not inflating_threads()


def test_the_thread_runs_ahead_only_so_far():
    made = 0

    def counted():
        nonlocal made
        while made < 100:
            made += 1
            yield b"x"

    found = prefetch_blocks(counted())
    next(found)
    threading.Event().wait(0.3)
    # One is used, BLOCKS_AHEAD wait, and the thread holds one more.
    assert made <= 1 + BLOCKS_AHEAD + 1
    found.close()
