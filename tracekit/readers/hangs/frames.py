"""Python stacks as text: one frame per line, innermost first, and the frame that a reader looks at first."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from tracekit.model.records import dataclass
from tracekit.readers.chrome.values import join_surrogates

MAX_FRAMES, MAX_NAME = 64, 300
"""Most frames kept of one stack, and the longest name or path in it."""

_TORCH = re.compile(r"(?:^|/)(?:torch|torchgen)/")
_PACKAGES = re.compile(r"(?:^|/)(?:site|dist)-packages/")
_STANDARD = re.compile(r"(?:^|/)lib/python[0-9.]+/(?!site-packages/|dist-packages/)|\A<")
_PLAIN_FILE = re.compile(r"(?:\A|\A(?:[a-z_]+/){1,3})([a-z_0-9]+)\.py\Z")


@dataclass(frozen=True, slots=True)
class CodeFrame:
    """One frame of a stack: function, file and line (0 if unknown)."""

    function: str
    file: str
    line: int

    @property
    def text(self) -> str:
        """The frame as `function (file:line)`."""
        return f"{self.function} ({self.file}:{self.line})" if self.line else f"{self.function} ({self.file})"


def make_code_frame(function: str, file: str, line: int) -> CodeFrame:
    """Make a frame; long names are cut at the front of a path and at the end of a function."""
    file = file if len(file) <= MAX_NAME else "…" + file[-MAX_NAME:]
    return CodeFrame(_clean(function[:MAX_NAME]), _clean(file), line)


def _clean(text: str) -> str:
    """Replace line breaks and lone surrogates."""
    return " ".join(join_surrogates(text).split())


def write_stack(frames: Sequence[CodeFrame]) -> tuple[str | None, str | None]:
    """Write a stack: (its first frame outside libraries, all frames, one per line); (None, None) if it is empty."""
    kept = frames[:MAX_FRAMES]
    if not kept:
        return None, None
    return find_own_frame(kept).text, "\n".join(frame.text for frame in kept)


def find_own_frame(frames: Sequence[CodeFrame]) -> CodeFrame:
    """Find the innermost frame of the user's code, then one outside torch and Python, then any."""
    outside = [frame for frame in frames if not _is_of_torch_or_python(frame.file)]
    own = [frame for frame in outside if not _PACKAGES.search(frame.file)]
    return (own or outside or list(frames))[0]


def _is_of_torch_or_python(file: str) -> bool:
    """Check whether a file belongs to torch or the standard library; py-spy shortens its paths to `ssl.py`."""
    if _TORCH.search(file) or _STANDARD.search(file):
        return True
    short = _PLAIN_FILE.match(file)
    return short is not None and file.partition("/")[0].removesuffix(".py") in sys.stdlib_module_names
