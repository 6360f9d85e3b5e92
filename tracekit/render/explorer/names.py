"""One table of names and one of call paths for the page, merged from those of all processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.render.escape import make_printable
from tracekit.render.explorer.processes import PageProcess

Ints = npt.NDArray[np.int64]

NAME_LIMIT = 300
"""Characters of a name on the page."""


class PageNames:
    """Texts of the page by number; the texts of processes and of the report share numbers."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number_texts(self, texts: Sequence[str]) -> Ints:
        """Number texts in order of first use."""
        numbers = self.numbers
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)

    def list_texts_from(self, first: int) -> list[str]:
        """List the texts with this number or a higher one, with all invisible characters visible."""
        return [make_printable(text, NAME_LIMIT) for text, number in self.numbers.items() if number >= first]

    def list_printable(self, used: npt.NDArray[np.bool_]) -> list[str]:
        """List the texts that are used, with all invisible characters visible."""
        return [make_printable(text, NAME_LIMIT) for text, is_used in zip(self.numbers, used, strict=True) if is_used]

    def keep_used(self, used: npt.NDArray[np.bool_]) -> None:
        """Keep the texts that are used, with new numbers in the same order."""
        kept = [text for text, is_used in zip(self.numbers, used.tolist(), strict=True) if is_used]
        self.numbers = {text: number for number, text in enumerate(kept)}


@dataclass(frozen=True, slots=True, eq=False)
class MergedPaths:
    """All call paths: the path around each (-1: none) and its name; per process the number of each of its paths + 1."""

    parent: Ints
    name: Ints
    of_process: tuple[Ints, ...]


def merge_paths(processes: Sequence[PageProcess], names: Sequence[Ints]) -> MergedPaths:
    """Merge equal call paths of all processes; `names` are the numbers of the names of each process.

    Paths are compared level by level, from the outermost on, over all processes at once.
    """
    columns = [(process.read_column("path.parent"), process.read_column("path.name")) for process in processes]
    sizes = [len(parent) for parent, _ in columns]
    first = np.cumsum([0, *sizes])
    none = np.empty(0, np.int64)
    parent = np.concatenate(
        (
            none,
            *(
                np.where(around > 0, around - 1 + begin, -1)
                for (around, _), begin in zip(columns, first[:-1], strict=True)
            ),
        )
    )
    name = np.concatenate((none, *(table[own] for (_, own), table in zip(columns, names, strict=True))))
    numbers = np.full(len(parent) + 1, -1, np.int64)
    factor = int(name.max(initial=0)) + 1
    parents, labels, count = [none], [none], 0
    pending = np.arange(len(parent))
    is_next = parent < 0
    while is_next.any():
        level = pending[is_next]
        distinct, place = np.unique((numbers[parent[level]] + 1) * factor + name[level], return_inverse=True)
        numbers[level] = count + place
        count += len(distinct)
        parents.append(distinct // factor - 1)
        labels.append(distinct % factor)
        pending = pending[~is_next]
        is_next = numbers[parent[pending]] >= 0
    assert not len(pending), "every path follows the one around it"
    of_process = tuple(
        np.concatenate((np.zeros(1, np.int64), numbers[begin : begin + size] + 1))
        for begin, size in zip(first[:-1], sizes, strict=True)
    )
    return MergedPaths(np.concatenate(parents), np.concatenate(labels), of_process)


def mark_path_ancestors(parent: Ints, used: npt.NDArray[np.bool_]) -> None:
    """Mark all paths around the marked ones, in place."""
    level = used.nonzero()[0]
    while len(level):
        level = parent[level]
        level = np.unique(level[level >= 0])
        level = level[~used[level]]
        used[level] = True
