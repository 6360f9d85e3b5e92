# Interface of the C pickle scan to `opcodes.py`.

from typing_extensions import Buffer

# Find the end of the run of harmless instructions that begins at `offset`.
def harmless_until(data: Buffer, offset: int, place_bytes: int, /) -> int: ...
