"""Lazy sequences for parts of a report: a user reads one screen, not forty tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Parts = Sequence[T] | Callable[[], Iterable[T]]
"""Parts that exist, or a function that makes them."""


class LazySequence(Sequence[T]):
    """A sequence whose parts are made on first access."""

    __slots__ = ("_make", "_parts")

    def __init__(self, make: Callable[[], Iterable[T]]) -> None:
        """Store the function that makes the parts; it is called until it succeeds once."""
        self._make: Callable[[], Iterable[T]] | None = make
        self._parts: tuple[T, ...] = ()

    def materialize(self) -> tuple[T, ...]:
        """Make the parts if needed; re-raises on each access what making them raises."""
        if self._make is not None:
            self._parts = tuple(self._make())
            self._make = None
        return self._parts

    def __len__(self) -> int:
        """Count the parts."""
        return len(self.materialize())

    def __iter__(self) -> Iterator[T]:
        """Iterate over the parts."""
        return iter(self.materialize())

    def __getitem__(self, index: Any) -> Any:
        """Get one part, or the parts of a slice."""
        return self.materialize()[index]

    def __eq__(self, other: object) -> bool:
        """Compare the parts with those of another lazy sequence, or with a tuple."""
        return self.materialize() == (other.materialize() if isinstance(other, LazySequence) else other)

    def __hash__(self) -> int:
        """Hash the parts."""
        return hash(self.materialize())

    def __repr__(self) -> str:
        """Format the parts as a tuple."""
        return repr(self.materialize())

    def __reduce__(self) -> tuple[type[tuple[T, ...]], tuple[tuple[T, ...]]]:
        """Pickle as the tuple of the parts."""
        return tuple, (self.materialize(),)


def make_lazy_sequence(parts: Parts[T]) -> tuple[T, ...]:
    """Make a tuple of the parts, or a lazy sequence if a function makes them."""
    made: Any = LazySequence(parts) if callable(parts) else tuple(parts)
    return made  # type: ignore[no-any-return]
