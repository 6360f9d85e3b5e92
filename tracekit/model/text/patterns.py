"""Lazily compiled regular expressions: compiling all of them at start costs time, and one file needs few."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_USED = ("match", "search", "fullmatch", "finditer", "findall", "split", "sub", "pattern")


class _LazyPattern:
    """A regular expression that is compiled on first use of one of its methods."""

    def __init__(self, text: Any, flags: int) -> None:
        """Store the pattern's text and flags."""
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        """Compile the expression, store its methods on this object, and return the requested one."""
        compiled = re.compile(self._text, self._flags)
        self.__dict__.update((used, getattr(compiled, used)) for used in _USED)
        return getattr(compiled, name)


def compile_lazily(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Make a lazily compiled regular expression with the methods of `re.Pattern`.

    >>> compile_lazily("a+").sub("b", "caat")
    'cbt'
    """
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))
