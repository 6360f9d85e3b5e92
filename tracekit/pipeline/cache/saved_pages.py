"""Data of the explorer page in the file of saved measurements.

    pages/index.json        per process with data: its source and the size of its data
    pages/NUMBER.data       the packed data of one process (`model.inputs.page_blocks`)

Loading checks all values. Data of another version of tracekit is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tracekit.model.inputs.graph_columns import get_graph_key
from tracekit.model.inputs.page_blocks import (
    MAGIC,
    MAX_UNPACKED_BYTES,
    DamagedPageError,
    PackedPage,
    unpack_page_blocks,
)
from tracekit.model.inputs.sources import Source
from tracekit.pipeline.cache.page_checks import check_page_blocks
from tracekit.pipeline.cache.saved_graphs import GraphArchive

PAGE_INDEX = "pages/index.json"


def encode_pages(
    pages: Sequence[PackedPage], sources: Sequence[Source], encode_json: Callable[[Any], bytes]
) -> Iterator[tuple[str, bytes]]:
    """Encode the page data of sources as entries: (name, bytes)."""
    places = {get_graph_key(source): place for place, source in enumerate(sources)}
    kept = [page for page in pages if page.key in places]
    yield PAGE_INDEX, encode_json([[places[page.key], len(page.data)] for page in kept])
    for number, page in enumerate(kept):
        yield f"pages/{number}.data", page.data


def decode_pages(archive: GraphArchive, sources: Sequence[Source]) -> tuple[PackedPage, ...]:
    """Decode the page data of sources. Raises `DamagedPageError`, or the error of the archive."""
    index = archive.json(PAGE_INDEX)
    if not isinstance(index, list) or len(index) > len(sources):
        raise DamagedPageError(f"{PAGE_INDEX}: not an index")
    pages = []
    for number, described in enumerate(index):
        place, size = _check_page_size(described, len(sources))
        name = f"pages/{number}.data"
        archive.reserve(size, name)
        data = archive.read(name, size)
        if data.startswith(MAGIC):
            check_page_blocks(unpack_page_blocks(sources[place], data))
            pages.append(PackedPage(sources[place], data))
    return tuple(pages)


def _check_page_size(described: Any, source_count: int) -> tuple[int, int]:
    """Check one item of the index: place of the source and size."""
    if not isinstance(described, list) or [type(value) for value in described] != [int, int]:
        raise DamagedPageError(f"{PAGE_INDEX}: not a source and a size")
    place, size = described
    if not 0 <= place < source_count or not 0 <= size <= MAX_UNPACKED_BYTES:
        raise DamagedPageError(f"{PAGE_INDEX}: an unknown source, or an impossible size")
    return place, size
