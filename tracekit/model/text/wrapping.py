"""Columns of text that fit a page: prose wraps at spaces, and only a name is shortened in the middle.

Names that would look alike when shortened are folded over several lines instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import zip_longest

from tracekit.model.text.kernel_labels import is_template_name, shorten_kernel_name

LONGEST_WORD = 24
"""Narrowest width to which a column of names is shortened, in characters."""
NARROWEST_PROSE = 16
"""Narrowest width to which a column of prose is wrapped, in characters."""
MAX_FOLDS = 3
"""Most lines of one folded word in prose."""

_SIGNATURE = re.compile(r"\w[<(]")
_COPIES = ("Memcpy ", "Memset ")
_GAP = "  "
_SEPARATORS = "/._-@:="
_TREE = "· "


def shorten_middle(text: str, limit: int) -> str:
    """Shorten text to `limit` characters, keeping both ends because names differ at either.

    >>> shorten_middle("sm90_gemm_bf16_128x256", 11)
    'sm90_…8x256'
    """
    if len(text) <= limit:
        return text
    if limit <= 1:
        return "…"[:limit]
    tail = (limit - 1) // 2
    head = limit - 1 - tail
    return text[:head] + "…" + text[len(text) - tail :]


def count_terminal_cells(text: str) -> int:
    """Count the terminal cells of text: wide characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def is_prose(text: str) -> bool:
    """Check whether text wraps: it has several words, and is not the name of a C++ function or of a copy.

    >>> is_prose("idle after aten::mm"), is_prose("void at::native::copy<int>(int, float)")
    (True, False)
    """
    _, below = _split_depth(text)
    is_name = below.startswith(_COPIES) or (_SIGNATURE.search(below) is not None and is_template_name(below))
    return " " in below and not is_name


def measure_longest_word(text: str) -> int:
    """Measure the widest word, which a column of prose needs at least."""
    return max((count_terminal_cells(word) for word in text.split()), default=0)


def shorten_cells(text: str, width: int) -> str:
    """Shorten a name to at most `width` cells, keeping both ends; of a C++ function to its operation first."""
    if count_terminal_cells(text) > width:
        text = shorten_name(text)
    size, keep = count_terminal_cells(text), width
    while size > width:
        text = shorten_middle(text, keep)
        size, keep = count_terminal_cells(text), keep - 1
    return text


def shorten_name(text: str) -> str:
    """Shorten a C++ function, also below other ops, to its operation.

    >>> shorten_name("aten::mm · void flash::flash_fwd_kernel<Traits<128> >(Params)")
    'aten::mm · attention (flash_fwd_kernel)'
    """
    depth, name = _split_depth(text)
    return depth + shorten_kernel_name(name) if is_template_name(name) else text


def wrap_cell(text: str, width: int) -> list[str]:
    """Wrap prose in lines of at most `width` cells; a name stays on one line, shortened in the middle.

    The marks of depth in a tree stay in front.

    >>> wrap_cell("· (nothing recorded)", 12), wrap_cell("sm90_gemm_bf16_128x256", 11)
    (['· (nothing', '  recorded)'], ['sm90_…8x256'])
    """
    if count_terminal_cells(text) <= width:
        return [text]
    if not is_prose(text):
        return [shorten_cells(text, width)]
    depth, below = _split_depth(text)
    first, *further = wrap_words(below, max(width - len(depth), 1))
    return [depth + first, *(" " * len(depth) + line for line in further)]


def _split_depth(text: str) -> tuple[str, str]:
    """Split text into the marks of its depth in a tree, or the ops above a C++ function, and the rest."""
    above, dot, name = text.rpartition(_TREE)
    if is_template_name(name):
        return above + dot, name
    below = text.lstrip(_TREE)
    return text[: len(text) - len(below)], below


def wrap_words(text: str, width: int) -> list[str]:
    """Wrap text at spaces in lines of at most `width` cells.

    Longer words, such as a setting or a path, are folded; one of more than `MAX_FOLDS` lines is shortened in the middle.

    >>> wrap_words("set actor_rollout_ref.rollout.n=8", 21)
    ['set', 'actor_rollout_ref.', 'rollout.n=8']
    """
    lines: list[str] = []
    for word in filter(None, text.split(" ")):  # a no-break space does not separate words
        if lines and count_terminal_cells(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            folded = fold_name(word, width)
            lines += folded if len(folded) <= MAX_FOLDS else [shorten_cells(word, width)]
    return lines


def fold_name(text: str, width: int) -> list[str]:
    """Fold a name in lines of at most `width` cells, after a separator in the second half of a line if there is one.

    >>> fold_name("outputs/profile/rank0.json", 18)
    ['outputs/profile/', 'rank0.json']
    """
    lines = []
    while count_terminal_cells(text) > width:
        end = next(
            end for end in range(min(width, len(text)), 0, -1) if end == 1 or count_terminal_cells(text[:end]) <= width
        )
        breaks = [at for at in range(end // 2 + 1, end + 1) if text[at - 1] in _SEPARATORS]
        end = breaks[-1] if breaks else end
        lines.append(text[:end])
        text = text[end:]
    return [*lines, text]


def find_lookalikes(names: Collection[str], width: int) -> frozenset[str]:
    """Find the names that equal another name once both are shortened to `width` cells."""
    shortened: dict[str, set[str]] = {}
    for name in names:
        if count_terminal_cells(name) > width and not is_prose(name):
            shortened.setdefault(shorten_cells(name, width), set()).add(name)
    return frozenset(name for alike in shortened.values() if len(alike) > 1 for name in alike)


def wrap_rows(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[list[tuple[str, ...]]]:
    """Wrap the cells of rows; each line of a row has a text per column, empty below shorter cells."""
    lookalikes = [find_lookalikes({row[place] for row in rows}, width) for place, width in enumerate(widths)]
    wrapped = []
    for row in rows:
        columns = [
            fold_name(cell, width) if cell in alike else wrap_cell(cell, width)
            for cell, width, alike in zip(row, widths, lookalikes, strict=True)
        ]
        wrapped.append(list(zip_longest(*columns, fillvalue="")))
    return wrapped


def format_columns(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int], width: int | None
) -> list[str]:
    """Format rows in columns under their titles, those in `right` aligned right.

    Columns of prose wrap to fit `width`. Names are shortened only if the rows fit by that.
    """
    columns = list(zip(titles, *rows, strict=True))
    widths = [max(map(count_terminal_cells, column)) for column in columns]
    if width is not None:
        _fit_columns_to_page(columns, widths, right, width)
    lines = []
    for wrapped in wrap_rows((titles, *rows), widths):
        for line in wrapped:
            padded = []
            for place, text in enumerate(line):
                fill = " " * (widths[place] - count_terminal_cells(text))
                padded.append(fill + text if place in right else text + fill)
            lines.append(_GAP.join(padded).rstrip())
    return lines


def _fit_columns_to_page(
    columns: Sequence[Sequence[str]], widths: list[int], right: Collection[int], width: int
) -> None:
    """Shrink columns of prose to fit `width`, then names, if the rows fit by that."""
    texts = [place for place in range(len(columns)) if place not in right]
    prose = [place for place in texts if any(map(is_prose, columns[place]))]
    words = {place: max(map(measure_longest_word, columns[place])) for place in prose}
    _shrink_columns(widths, {place: max(min(words[place], LONGEST_WORD), NARROWEST_PROSE) for place in prose}, width)
    names = {place: min(widths[place], LONGEST_WORD) for place in texts}
    if sum(names.values()) + sum(widths[place] for place in right) + len(_GAP) * (len(widths) - 1) <= width:
        _shrink_columns(widths, names, width)


def _shrink_columns(widths: list[int], floors: dict[int, int], room: int) -> None:
    """Shrink the widest of the columns in `floors` until all fit in `room`, or none can shrink."""
    while sum(widths) + len(_GAP) * (len(widths) - 1) > room:
        place = max(floors, key=lambda place: widths[place] - floors[place], default=None)
        if place is None or widths[place] <= floors[place]:
            return
        widths[place] -= 1
