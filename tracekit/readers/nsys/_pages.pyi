# What the reader of pages shows to `pages.py`.

from typing import Self

# The rows of one table: the file, the size of its pages, how much of one is used, how many there are and which is the
# table's first; the places in a record of the columns wanted, all integers, those of which it is asked whether any row has a
# value, and that of the names, -1 for none.
class Pages:
    def __new__(
        cls,
        file: int,
        page_size: int,
        usable: int,
        page_count: int,
        root: int,
        fields: tuple[int, ...],
        looked: tuple[int, ...],
        names: int,
        /,
    ) -> Self: ...
    # Row ids and columns (int64), at last the codes of names (int32), of at most so many rows more.
    def take(self, count: int, /) -> list[bytearray]: ...
    # The names from this code on.
    def names(self, first: int, /) -> list[bytes]: ...
    def has_value(self, field: int, /) -> bool: ...
    @property
    def with_shapes(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def damaged(self) -> bool: ...
