"""Prefetching of blocks in a thread: decompression and parsing run on two cores."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

BLOCKS_AHEAD = 4
"""Most blocks that the thread may read ahead; bounds its memory."""

_POLL_SECONDS = 0.1
"""Interval at which a waiting producer checks whether its consumer has stopped."""


def prefetch_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same blocks in the same order, read ahead by a thread.

    An exception that `blocks` raises is raised here after the blocks before it.
    The thread ends with the iteration, even if the caller abandons it half-way.
    """
    handed: queue.Queue[bytes | BaseException | None] = queue.Queue(BLOCKS_AHEAD)
    given_up = threading.Event()

    def hand_over(item: bytes | BaseException | None) -> bool:
        while not given_up.is_set():
            try:
                handed.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for block in blocks:
                if not hand_over(block):
                    break
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer
            hand_over(error)
        else:
            hand_over(None)
        finally:
            close = getattr(blocks, "close", None)
            if close is not None:
                close()

    thread = threading.Thread(target=produce, name="tracekit-inflate", daemon=True)
    thread.start()
    try:
        while (item := handed.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        given_up.set()
        thread.join()
