"""Regular expressions that are compiled where they are first used: of the many that a start would compile, a file needs few."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_USED = ("match", "search", "fullmatch", "finditer", "findall", "split", "sub", "pattern")


class _Pattern:
    """A regular expression that is compiled where one of its methods is first asked for."""

    def __init__(self, text: Any, flags: int) -> None:
        """Of its text and flags."""
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        """The method of the compiled expression; all of them are at hand from then on."""
        compiled = re.compile(self._text, self._flags)
        self.__dict__.update((used, getattr(compiled, used)) for used in _USED)
        return getattr(compiled, name)


def expression(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """The regular expression of a text, with the methods of a compiled one.

    >>> expression("a+").sub("b", "caat")
    'cbt'
    """
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))
