"""Blocks of the page: data compressed and written as text in an element of its own, and their size in the file."""

from __future__ import annotations

import zlib
from base64 import b64encode

LEVEL = 6
"""Level of compression: 9 takes three times as long for one per cent."""


def compress_block(data: bytes) -> bytes:
    """Compress data as raw deflate, which browsers decode by `DecompressionStream`."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


class PageBlockStore:
    """The compressed blocks of one page by name."""

    def __init__(self) -> None:
        self.blocks: dict[str, bytes] = {}

    def add_block(self, name: str, data: bytes) -> None:
        """Add data as a block of this name."""
        self.blocks[name] = compress_block(data)

    @property
    def size_bytes(self) -> int:
        """Size of all blocks in the file."""
        return sum(measure_block(name, len(block)) for name, block in self.blocks.items())

    def write_elements(self) -> str:
        """Render all blocks as elements that no browser runs."""
        return "\n".join(
            f'<script type="application/octet-stream" id="b-{name}">{b64encode(block).decode("ascii")}</script>'
            for name, block in self.blocks.items()
        )


def measure_block(name: str, size: int) -> int:
    """Measure a block of this compressed size in the file, with its element."""
    return -(-size // 3) * 4 + len(name) + 61
