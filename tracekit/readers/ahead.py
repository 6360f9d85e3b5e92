"""Blocks made ready by another thread, so that inflating a file and reading its text share two cores."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

BLOCKS_AHEAD = 4
"""How far the thread may run ahead: what bounds its memory."""

_POLL_SECONDS = 0.1
"""How soon a thread that has nobody to hand its block to notices that nobody will come."""


def ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks in the same order, and at the end whatever `blocks` raises.

    The thread ends with the iteration, also when that is given up half-way.
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
        except BaseException as error:  # noqa: BLE001 - it is raised where the blocks are used
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
