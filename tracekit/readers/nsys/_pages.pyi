# Interface of the C page reader to `pages.py`.

from typing import Self

# Rows of one table. Layout: the file, its page size, the usable bytes per page, the number of pages and the table's root
# page. `fields` are the record positions of the wanted integer columns, `looked` those of columns to check for any
# value, and `names` that of the names (-1: none).
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
    # Row ids and columns (int64), then the codes of names (int32), of at most `count` more rows.
    def take(self, count: int, /) -> list[bytearray]: ...
    # Names from the code `first` on.
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
