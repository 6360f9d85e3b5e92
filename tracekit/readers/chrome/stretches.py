"""An event array read in stretches by several threads: the rows are those that one scanner would have made of it.

Where a stretch ends is a guess: where an event seems to start. The guess is proven when the scanner of the stretch has
read all of it up to there; what follows the first stretch that is not read whole is left to be read one event after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

from tracekit.model.records import dataclass
from tracekit.readers.chrome.events import Text
from tracekit.readers.chrome.places import CONTEXT_BYTES, Place, find_place
from tracekit.readers.chrome.scan import END, MORE, JoiningScanner

STRETCH_BYTES = 2**21
"""A stretch is as many blocks as hold this much, and what the next has of their last event."""

LONGEST_STRETCH_BYTES = 4 * STRETCH_BYTES
"""Where no event seems to start for so long, a stretch ends all the same."""

SEARCHED_BYTES = 2**18
"""So much of a block is searched for the start of an event."""

KNOWN_BYTES = 2**22
"""A scanner that remembers more texts than that from earlier stretches is replaced by a new one."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Blocks of text, of which the first one counts from `start` on; `offset` is how much text lies before that block."""

    blocks: list[bytes]
    start: int
    offset: int

    def remaining(self) -> Iterator[bytes]:
        """Its text in blocks."""
        first, *following = self.blocks
        yield first[self.start :]
        yield from following


def read_stretches(
    text: Text,
    scanner: JoiningScanner,
    make_scanner: Callable[[], JoiningScanner],
    thread_count: int,
) -> Text:
    """The text from where the events have to be read one after another; `scanner` has all that come before."""
    stretches = _cut(text.remaining(), text.offset)
    # One more than there are threads: it waits for the first that is done.
    idle = [make_scanner() for _ in range(thread_count + 1)]
    running: deque[tuple[_Stretch, JoiningScanner, Future[Text]]] = deque()
    remaining_text = Text(iter(()), text.offset)
    with ThreadPoolExecutor(thread_count, "tracekit-scan") as pool:
        for stretch in chain(stretches, [None] * len(idle)):
            if stretch is not None:
                part = idle.pop()
                running.append((stretch, part, pool.submit(_read, part, stretch)))
            if running and (stretch is None or not idle):
                _, part, scanned = running.popleft()
                remaining_text = scanned.result()
                idle.append(part if scanner.append(part) <= KNOWN_BYTES else make_scanner())
                if len(remaining_text.view):
                    break
        following = [stretch for stretch, _, _ in running]
    later = chain.from_iterable(stretch.remaining() for stretch in chain(following, stretches))
    return Text(chain(remaining_text.remaining(), later), remaining_text.offset)


def _cut(blocks: Iterator[bytes], offset: int) -> Iterator[_Stretch]:
    """The blocks in stretches, each of which ends where an event seems to start."""
    pieces: list[bytes] = []
    start, size = 0, 0
    for block in blocks:
        if size >= STRETCH_BYTES:
            place = _first_event(block)
            if place or size >= LONGEST_STRETCH_BYTES:
                yield _Stretch([*pieces, block[:place]], start, offset)
                offset += size
                pieces, start, size = [], place, 0
        pieces.append(block)
        size += len(block)
    if pieces:
        yield _Stretch(pieces, start, offset)


def _first_event(block: bytes) -> int:
    """Where in a block an event seems to start; 0 where none does."""
    with memoryview(block) as view, view[:SEARCHED_BYTES] as searched:
        place = find_place(searched, CONTEXT_BYTES, at_end=False)
    return place.position if isinstance(place, Place) and not place.ends_array else 0


def _read(scanner: JoiningScanner, stretch: _Stretch) -> Text:
    """What the scanner does not take of a stretch: no text, or that from the array's end or from where help is needed."""
    text = Text(iter(stretch.blocks), stretch.offset)
    text.grow()
    text.drop(stretch.start)
    while True:
        consumed, state = scanner.feed(text.view)
        text.drop(consumed - (state == END))
        if state != MORE or text.at_end:
            return text
        text.grow()
