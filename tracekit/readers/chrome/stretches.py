"""Parallel scan of an event array in stretches; the rows equal those of a single scanner.

A stretch ends where an event seems to start, which is a guess. It is proven once the stretch's scanner
has read all of it up to there. The text after the first stretch that was not read completely is left
for sequential reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

from tracekit.model.records import dataclass
from tracekit.readers.chrome.events import TextWindow
from tracekit.readers.chrome.places import CONTEXT_BYTES, ResumePoint, find_resume_point
from tracekit.readers.chrome.scan import END, MORE, JoiningScanner

STRETCH_BYTES = 2**21
"""Least size of a stretch: whole blocks, plus the next block's text up to an event."""

LONGEST_STRETCH_BYTES = 4 * STRETCH_BYTES
"""Size at which a stretch ends even if no event seems to start."""

SEARCHED_BYTES = 2**18
"""Bytes of a block that are searched for the start of an event."""

KNOWN_BYTES = 2**22
"""Most bytes of texts that a scanner may remember from earlier stretches; above, a new one replaces it."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Blocks of a stretch: it begins at `start` in the first block, whose offset in the text is `offset`."""

    blocks: list[bytes]
    start: int
    offset: int

    def remaining(self) -> Iterator[bytes]:
        """Yield its text in blocks."""
        first, *following = self.blocks
        yield first[self.start :]
        yield from following


def scan_stretches(
    text: TextWindow, scanner: JoiningScanner, make_scanner: Callable[[], JoiningScanner], thread_count: int
) -> TextWindow:
    """Scan the text in parallel; returns the text that must be read sequentially.

    `scanner` then has all events before that text.
    """
    stretches = _split_into_stretches(text.remaining(), text.offset)
    # One more than there are threads: its stretch is queued for the first idle thread.
    idle = [make_scanner() for _ in range(thread_count + 1)]
    running: deque[tuple[_Stretch, JoiningScanner, Future[TextWindow]]] = deque()
    remaining_text = TextWindow(iter(()), text.offset)
    with ThreadPoolExecutor(thread_count, "tracekit-scan") as pool:
        for stretch in chain(stretches, [None] * len(idle)):
            if stretch is not None:
                part = idle.pop()
                running.append((stretch, part, pool.submit(_scan_stretch, part, stretch)))
            if running and (stretch is None or not idle):
                _, part, scanned = running.popleft()
                remaining_text = scanned.result()
                idle.append(part if scanner.append(part) <= KNOWN_BYTES else make_scanner())
                if len(remaining_text.view):
                    break
        following = [stretch for stretch, _, _ in running]
    later = chain.from_iterable(stretch.remaining() for stretch in chain(following, stretches))
    return TextWindow(chain(remaining_text.remaining(), later), remaining_text.offset)


def _split_into_stretches(blocks: Iterator[bytes], offset: int) -> Iterator[_Stretch]:
    """Split the blocks into stretches; each ends where an event seems to start."""
    pieces: list[bytes] = []
    start, size = 0, 0
    for block in blocks:
        if size >= STRETCH_BYTES:
            place = _find_first_event(block)
            if place or size >= LONGEST_STRETCH_BYTES:
                yield _Stretch([*pieces, block[:place]], start, offset)
                offset += size
                pieces, start, size = [], place, 0
        pieces.append(block)
        size += len(block)
    if pieces:
        yield _Stretch(pieces, start, offset)


def _find_first_event(block: bytes) -> int:
    """Find the position in a block where an event seems to start; 0 if none."""
    with memoryview(block) as view, view[:SEARCHED_BYTES] as searched:
        place = find_resume_point(searched, CONTEXT_BYTES, at_end=False)
    return place.position if isinstance(place, ResumePoint) and not place.ends_array else 0


def _scan_stretch(scanner: JoiningScanner, stretch: _Stretch) -> TextWindow:
    """Scan a stretch; returns the text not read, starting at the array's end or at a rejected element.

    The text is empty if the whole stretch was read.
    """
    text = TextWindow(iter(stretch.blocks), stretch.offset)
    text.grow()
    text.drop(stretch.start)
    while True:
        consumed, state = scanner.feed(text.view)
        text.drop(consumed - (state == END))
        if state != MORE or text.at_end:
            return text
        text.grow()
