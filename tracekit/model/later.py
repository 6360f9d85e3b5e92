"""Parts of a report that are made when somebody looks at them: a person reads a screen, not forty tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Parts = Sequence[T] | Callable[[], Iterable[T]]
"""Parts that are there, or what gives them."""


class Later(Sequence[T]):
    """A sequence that is made when it is first looked at."""

    __slots__ = ("_make", "_parts")

    def __init__(self, make: Callable[[], Iterable[T]]) -> None:
        """Of what gives its parts; it is not called again once it has."""
        self._make: Callable[[], Iterable[T]] | None = make
        self._parts: tuple[T, ...] = ()

    def made(self) -> tuple[T, ...]:
        """The parts. Raises what making them raises, each time."""
        if self._make is not None:
            self._parts = tuple(self._make())
            self._make = None
        return self._parts

    def __len__(self) -> int:
        """How many parts there are."""
        return len(self.made())

    def __iter__(self) -> Iterator[T]:
        """The parts one by one."""
        return iter(self.made())

    def __getitem__(self, index: Any) -> Any:
        """The part at a place, or those of a slice."""
        return self.made()[index]

    def __eq__(self, other: object) -> bool:
        """Whether the parts are those of another one, or of a tuple."""
        return self.made() == (other.made() if isinstance(other, Later) else other)

    def __hash__(self) -> int:
        """That of the parts."""
        return hash(self.made())

    def __repr__(self) -> str:
        """As the tuple of its parts."""
        return repr(self.made())

    def __reduce__(self) -> tuple[type[tuple[T, ...]], tuple[tuple[T, ...]]]:
        """Pickled, it is the tuple of its parts."""
        return tuple, (self.made(),)


def later(parts: Parts[T]) -> tuple[T, ...]:
    """The parts as a tuple, or a sequence like one that will be made by what gives them."""
    made: Any = Later(parts) if callable(parts) else tuple(parts)
    return made  # type: ignore[no-any-return]
