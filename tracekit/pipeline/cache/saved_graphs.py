"""Dependency graphs in the file of saved measurements.

    graphs/index.json          per column: its dtype, its length in each graph, and its texts; per graph: its source
    graphs/COLUMN.data         the values of all graphs, one after the other, little-endian

Columns of one name are alike over ranks, and compress well together. Texts that several graphs share are stored once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.graph_columns import GraphColumns, get_graph_key
from tracekit.model.inputs.sources import Source
from tracekit.pipeline.wire_format.column_coding import DamagedGraphError

INDEX = "graphs/index.json"
_KINDS = ("u1", "i1", "u2", "i2", "u4", "i4", "i8", "f8")


class GraphArchive(Protocol):
    """The entries of the file that is read; each method raises if an entry is missing or not of the expected size."""

    def reserve(self, size: int, what: str) -> None: ...  # noqa: D102
    def read(self, name: str, expected: int | None = None) -> bytes: ...  # noqa: D102
    def json(self, name: str) -> Any: ...  # noqa: D102


def encode_graphs(
    graphs: Sequence[GraphColumns], sources: Sequence[Source], encode_json: Callable[[Any], bytes]
) -> Iterator[tuple[str, bytes]]:
    """Encode the graphs of sources as entries: (name, bytes)."""
    place = {get_graph_key(source): number for number, source in enumerate(sources)}
    kept = [graph for graph in graphs if graph.key in place]
    blocks: dict[str, list[npt.NDArray[Any]]] = defaultdict(list)
    for graph in kept:
        for name, array in graph.numbers.items():
            blocks[name].append(array)
    kinds = {name: _find_common_kind(blocks[name]) for name in sorted(blocks)}
    yield INDEX, encode_json({"sources": [place[graph.key] for graph in kept], **_index_columns(kept, kinds)})
    for name, kind in kinds.items():
        yield _name_entry(name), np.concatenate(blocks[name]).astype("<" + kind).tobytes()


def _index_columns(graphs: Sequence[GraphColumns], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Index the columns of all graphs: types, lengths and texts."""
    texts = sorted({name for graph in graphs for name in graph.texts})
    lengths = {name: [_count_values(graph.numbers.get(name)) for graph in graphs] for name in kinds}
    return {
        "numbers": {name: [kind, lengths[name]] for name, kind in kinds.items()},
        "texts": {name: _share_texts([graph.texts.get(name) for graph in graphs]) for name in texts},
    }


def _name_entry(name: str) -> str:
    return f"graphs/{name}.data"


def _find_common_kind(arrays: Sequence[npt.NDArray[Any]]) -> str:
    """Find the type that fits the values of all arrays."""
    kind = np.result_type(*arrays)
    return f"{kind.kind}{kind.itemsize}"


def _count_values(array: npt.NDArray[Any] | None) -> int | None:
    """Count the values of a column; None for a graph without it."""
    return None if array is None else len(array)


def _share_texts(texts: Sequence[tuple[str, ...] | None]) -> list[Any]:
    """Encode the texts of each graph as [distinct lists, number of the list of each graph]; None for a graph without."""
    numbers: dict[tuple[str, ...], int] = {}
    of_graphs = [None if each is None else numbers.setdefault(each, len(numbers)) for each in texts]
    return [[list(each) for each in numbers], of_graphs]


def decode_graphs(archive: GraphArchive, sources: Sequence[Source]) -> tuple[GraphColumns, ...]:
    """Decode the graphs of sources. Their values are checked later, when a graph is unpacked.

    Raises `DamagedGraphError`, or the error of the archive.
    """
    index = archive.json(INDEX)
    if not isinstance(index, dict) or index.keys() != {"sources", "numbers", "texts"}:
        raise DamagedGraphError(f"{INDEX}: not an index")
    places = _check_list(index["sources"])
    count = len(places)
    if len(set(map(_check_count, places))) != count or any(place >= len(sources) for place in places):
        raise DamagedGraphError(f"{INDEX}: graphs of unknown sources")
    numbers: list[dict[str, npt.NDArray[Any]]] = [{} for _ in places]
    for name, described in _check_object(index["numbers"]).items():
        kind, lengths = _check_pair(described)
        for of_graph, array in zip(numbers, _read_column(archive, name, kind, lengths, count), strict=True):
            if array is not None:
                of_graph[name] = array
    texts: list[dict[str, tuple[str, ...]]] = [{} for _ in places]
    for name, described in _check_object(index["texts"]).items():
        for texts_of_graph, each in zip(texts, _look_up_texts(described, count), strict=True):
            if each is not None:
                texts_of_graph[name] = each
    return tuple(GraphColumns(sources[places[i]], numbers[i], texts[i]) for i in range(count))


def _read_column(
    archive: GraphArchive, name: str, kind: Any, lengths: Any, count: int
) -> list[npt.NDArray[Any] | None]:
    """Read the values of one column of each graph."""
    if kind not in _KINDS:
        raise DamagedGraphError(f"{name}: unknown type")
    dtype = np.dtype("<" + kind)
    sizes = [None if length is None else _check_count(length) for length in _check_list(lengths, count)]
    total = sum(size or 0 for size in sizes) * dtype.itemsize
    archive.reserve(total, name)
    values = np.frombuffer(archive.read(_name_entry(name), total), dtype).astype(dtype.newbyteorder("="))
    columns: list[npt.NDArray[Any] | None] = []
    first = 0
    for size in sizes:
        columns.append(None if size is None else values[first : first + size])
        first += size or 0
    return columns


def _look_up_texts(described: Any, count: int) -> list[tuple[str, ...] | None]:
    """Look up the texts of one column of each graph."""
    lists, of_graphs = _check_pair(described)
    texts = [tuple(map(_check_text, _check_list(each))) for each in _check_list(lists)]
    found: list[tuple[str, ...] | None] = []
    for number in _check_list(of_graphs, count):
        if number is not None and _check_count(number) >= len(texts):
            raise DamagedGraphError(f"{INDEX}: unknown texts")
        found.append(None if number is None else texts[number])
    return found


def _check_list(value: Any, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise DamagedGraphError(f"{INDEX}: not a list with an item per graph")
    return value


def _check_pair(value: Any) -> list[Any]:
    return _check_list(value, 2)


def _check_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DamagedGraphError(f"{INDEX}: not an object")
    return value


def _check_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise DamagedGraphError(f"{INDEX}: not a count")
    return value


def _check_text(value: Any) -> str:
    if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise DamagedGraphError(f"{INDEX}: not a text")
    return value
