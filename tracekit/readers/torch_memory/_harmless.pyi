# What the scan of a pickle shows to `opcodes.py`.

from typing_extensions import Buffer

# Where the run of harmless instructions that begins at `offset` ends.
def harmless_until(data: Buffer, offset: int, place_bytes: int, /) -> int: ...
