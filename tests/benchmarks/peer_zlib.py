"""Inflates one `.json.gz` with the standard library and keeps nothing: the floor for any reader.

python peer_zlib.py TRACE.json.gz
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

from measurement import measure, write_line

READ_BYTES = 256 * 1024
INFLATED_BYTES = 1024 * 1024
"""A bounded block is the fastest way here: larger ones spend their time on fresh pages."""


def inflated_size(path: Path) -> int:
    """Bytes of the inflated file."""
    size = 0
    inflater = zlib.decompressobj(wbits=31)
    with path.open("rb", buffering=0) as file:
        while packed := inflater.unconsumed_tail or file.read(READ_BYTES):
            size += len(inflater.decompress(packed, INFLATED_BYTES))
    return size


def main() -> None:
    """Make one measurement of the file named on the command line."""
    size, figures = measure(lambda: inflated_size(Path(sys.argv[1])))
    write_line(figures, size_bytes=size, version=zlib.ZLIB_RUNTIME_VERSION)


if __name__ == "__main__":
    main()
