"""The allocator of `_allocator.c` in Python: the same passes, for installations without the C module, and for tests."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import field

from tracekit.model.records import dataclass
from tracekit.process.memory.allocator.rules import ADDRESS_SPACE, SEGMENT_STEP
from tracekit.process.memory.space import LARGE_SEGMENT, LEAST, SMALL, SMALL_SEGMENT, compute_segment_size

ALLOC, COMPLETE, REQUEST, EMPTY, RELEASE, FRESH = range(6)
"""Operations: allocate; free; free once other streams are done; `empty_cache`; give one segment back.

Of releases as recorded, `EMPTY` (with size 1) counts from the first segment on that is not as recorded, `RELEASE` (with lane 1) before.

After `FRESH`, the next allocation gets new memory: the recorded one had looked for a free block before the cache was given back.
That counts only for as long as segments are as recorded.
"""

BEGINS, EXPANDABLE, UNMAPPED = 1, 2, 4
"""Flags of a block before the history: the first of its segment; of an expandable one; without pages."""

FREE, USED, PENDING = range(3)


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment; an unmapped one has addresses only."""

    address: int
    size: int
    shelf: int
    base: int = 0
    state: int = FREE
    mapped: bool = True
    expandable: bool = False
    born: int = 0
    before: Block | None = None
    after: Block | None = None

    @property
    def is_split(self) -> bool:
        """Whether its segment has other blocks."""
        return self.before is not None or self.after is not None


Key = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class Device:
    """The state of an allocator; `shelves` are its pools by stream, those of small blocks at even places."""

    pool_of: list[int]
    grows: list[bool]
    max_split: int
    collect_above: int
    limit: int
    next_address: int
    recorded: list[tuple[int, int, int]]
    free: list[list[Key]] = field(default_factory=list)
    unmapped: list[list[Key]] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)
    calls: dict[tuple[int, int], int] = field(default_factory=dict)
    owned: dict[int, Block] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    segments: list[tuple[int, int, int, int]] = field(default_factory=list)
    drawn: int = 0
    synced: bool = True
    is_fresh: bool = False
    now: int = -1
    reserved: int = 0
    active: int = 0
    retries: int = 0
    collected: int = 0

    def __post_init__(self) -> None:
        self.free = [[] for _ in range(2 * len(self.pool_of))]
        self.unmapped = [[] for _ in range(2 * len(self.pool_of))]

    def get_pool(self, shelf: int) -> int:
        """Look up the pool of a shelf."""
        return self.pool_of[shelf // 2]

    def get_calls(self, shelf: int) -> int:
        """Look up how often a block of this pool and kind was looked for (`get_free_blocks_call_count`)."""
        return self.calls.get((self.get_pool(shelf), shelf % 2), 0)


def _page(shelf: int) -> int:
    return LARGE_SEGMENT if shelf % 2 else SMALL_SEGMENT


def _key(block: Block) -> Key:
    return (block.size if block.mapped else 0, block.address, id(block))


def _shelve(device: Device, block: Block) -> None:
    """Put a free or unmapped block on its shelf (`insert_into_blocks`)."""
    if block.mapped:
        block.born = device.get_calls(block.shelf)
    device.blocks[id(block)] = block
    insort((device.free if block.mapped else device.unmapped)[block.shelf], _key(block))


def _unshelve(device: Device, block: Block) -> None:
    """Take a free or unmapped block off its shelf."""
    shelf = (device.free if block.mapped else device.unmapped)[block.shelf]
    del shelf[bisect_left(shelf, _key(block))], device.blocks[id(block)]


def _list_free(device: Device, shelf: int) -> list[Block]:
    return [device.blocks[key[2]] for key in device.free[shelf]]


def _log_segment(device: Device, address: int, size: int, shelf: int) -> None:
    device.segments.append((device.now, address, size, shelf))
    device.reserved += size


def _draw_address(device: Device, shelf: int, size: int, room: int) -> int:
    """Draw the address of a new segment: the recorded one while segments are as recorded, then a new one."""
    if device.synced and device.drawn < len(device.recorded):
        address, recorded_size, of_shelf = device.recorded[device.drawn]
        if (recorded_size, of_shelf) == (size, shelf):
            return address
    device.synced = False
    address = device.next_address
    device.next_address += -(-room // SEGMENT_STEP) * SEGMENT_STEP
    return address


def _count_segment(device: Device, shelf: int, address: int, size: int) -> None:
    """Check that a segment is the next recorded one; from the first other one on, addresses are new."""
    if device.synced:
        device.synced = device.recorded[device.drawn : device.drawn + 1] == [(address, size, shelf)]
        device.drawn += device.synced


def _merge_neighbour(device: Device, block: Block, other: Block | None) -> None:
    """Merge a free neighbour into a block (`try_merge_blocks`)."""
    if other is None or other.state != FREE or block.mapped != other.mapped:
        return
    _unshelve(device, other)
    if block.before is other:
        block.address, block.before = other.address, other.before
        if block.before is not None:
            block.before.after = block
    else:
        block.after = other.after
        if block.after is not None:
            block.after.before = block
    block.size += other.size


def _add_behind(block: Block, address: int, size: int) -> Block:
    """Add a block right behind another."""
    rest = Block(address, size, block.shelf, block.base, expandable=block.expandable, before=block, after=block.after)
    if block.after is not None:
        block.after.before = rest
    block.after = rest
    return rest


def _free_block(device: Device, block: Block) -> None:
    """Merge a block with its free neighbours, and put it on its shelf (`free_block`)."""
    block.state = FREE
    device.active -= block.size
    _merge_neighbour(device, block, block.before)
    _merge_neighbour(device, block, block.after)
    _shelve(device, block)


def _release_segment(device: Device, block: Block) -> None:
    """Give a segment back to the driver (`release_block`)."""
    _unshelve(device, block)
    _log_segment(device, block.address, -block.size, block.shelf)


def _unmap(device: Device, block: Block) -> None:
    """Give the whole pages of a free block back (`unmap_block`)."""
    page, start = _page(block.shelf), block.address - block.base
    first = block.base + -(-start // page) * page
    last = block.base + (start + block.size) // page * page
    if first >= last:
        return
    _unshelve(device, block)
    tail = block.address + block.size - last
    if first > block.address:
        pages = _add_behind(block, first, block.address + block.size - first)
        block.size = first - block.address
        _shelve(device, block)
        block = pages
    if tail > 0:
        _shelve(device, _add_behind(block, last, tail))
    block.size, block.mapped = last - first, False
    _log_segment(device, first, first - last, block.shelf)
    _merge_neighbour(device, block, block.before)
    _merge_neighbour(device, block, block.after)
    if block.is_split:
        _shelve(device, block)


def _release_cached(device: Device) -> None:
    """End the frees that wait, and give the cache of the default pool back (`release_cached_blocks`)."""
    for owner in device.pending:
        _free_block(device, device.owned.pop(owner))
    device.pending.clear()
    for start in (1, 0):
        for shelf in range(start, len(device.free), 2):
            if device.get_pool(shelf) == 0:
                _release_shelf(device, shelf)


def _release_shelf(device: Device, shelf: int) -> None:
    free = _list_free(device, shelf)
    for block in free:
        if not block.expandable and not block.is_split:
            _release_segment(device, block)
    for block in free:
        if block.expandable:
            _unmap(device, block)


def _release_oversize(device: Device, shelf: int, size: int) -> bool:
    """Give back as many oversize segments as a request needs (`release_available_cached_blocks`)."""
    if device.max_split == 2**63 - 1:
        return False
    need, released = max(size, device.max_split), 0
    free = _list_free(device, shelf)
    place = bisect_left(device.free[shelf], (need, -(2**63), 0))
    if place < len(free):
        if free[place].expandable or free[place].is_split:
            return False
        _release_segment(device, free[place])
        return True
    for block in free[::-1]:
        if released >= need or block.size < device.max_split:
            break
        if not block.expandable and not block.is_split:
            released += block.size
            _release_segment(device, block)
    return released >= need


def _list_collectable(device: Device) -> Iterator[tuple[Block, int]]:
    """List the unused large segments of the default pool, and how long each was not used."""
    for shelf in range(1, len(device.free), 2):
        if device.get_pool(shelf) == 0:
            for block in _list_free(device, shelf):
                if not block.is_split and not block.expandable:
                    yield block, device.get_calls(shelf) - block.born


def _collect(device: Device) -> None:
    """Give back segments unused for longer than the average (`garbage_collect_cached_blocks`)."""
    target, reclaimed = device.reserved - device.collect_above, 0
    ages = dict(_list_collectable(device))
    age, freed = sum(ages.values()), target > 0
    while reclaimed < target and freed and ages:
        threshold, freed = age / len(ages), False
        for block, unused in list(ages.items()):
            if unused >= threshold:
                freed, reclaimed, age = True, reclaimed + block.size, age - unused
                device.collected += 1
                del ages[block]
                _release_segment(device, block)


def _map(device: Device, block: Block, size: int) -> bool:
    """Map pages for the first bytes of an unmapped block (`map_block`); False without memory."""
    mapped = min(-(-size // _page(block.shelf)) * _page(block.shelf), block.size)
    if 0 <= device.limit < device.reserved + mapped:
        return False
    _unshelve(device, block)
    if mapped < block.size:
        rest = _add_behind(block, block.address + mapped, block.size - mapped)
        block.size, rest.mapped = mapped, False
        _shelve(device, rest)
    block.mapped = True
    _count_segment(device, block.shelf, block.address, mapped)
    _log_segment(device, block.address, mapped, block.shelf)
    _merge_neighbour(device, block, block.before)
    _merge_neighbour(device, block, block.after)
    _shelve(device, block)
    return True


def _find_addresses(device: Device, shelf: int, size: int) -> Block:
    """Find the lowest addresses with room, free or unmapped, or those of a new segment (`find_expandable_block`)."""
    for key in device.unmapped[shelf]:
        block = device.blocks[key[2]]
        if block.before is not None and block.before.state == FREE:
            block = block.before
        if _count_free_bytes(block, size) >= size:
            return block
    page = _page(shelf)
    address = _draw_address(device, shelf, -(-size // page) * page, ADDRESS_SPACE)
    block = Block(address, ADDRESS_SPACE // page * page, shelf, address, mapped=False, expandable=True)
    _shelve(device, block)
    return block


def _count_free_bytes(block: Block | None, size: int) -> int:
    """Count the bytes of free or unmapped blocks from this one on, until there are enough."""
    free = 0
    while block is not None and free < size and block.state == FREE:
        free, block = free + block.size, block.after
    return free


def _expand(device: Device, shelf: int, size: int) -> Block | None:
    """Take a block of an expandable segment, with new pages (`try_allocate_expandable_block`)."""
    block = _find_addresses(device, shelf, size)
    if not block.mapped and not _map(device, block, min(block.size, size)):
        return None
    while block.size < size:
        following = block.after
        if following is None or not _map(device, following, min(size - block.size, following.size)):
            return None
        block = following
    _unshelve(device, block)
    return block


def _obtain(device: Device, shelf: int, size: int) -> Block | None:
    """Get memory from the driver (`alloc_block`); None if it has none left."""
    if device.grows[device.get_pool(shelf)]:
        return _expand(device, shelf, size)
    need = compute_segment_size(size)
    if 0 <= device.limit < device.reserved + need:
        return None
    address = _draw_address(device, shelf, need, need)
    _count_segment(device, shelf, address, need)
    _log_segment(device, address, need, shelf)
    return Block(address, need, shelf, address)


def _can_grow_to(block: Block) -> int:
    return block.size + (block.after.size if block.after is not None and not block.after.mapped else 0)


def _find_free(device: Device, shelf: int, size: int) -> Block | None:
    """Find the smallest free block that fits, with the lowest address (`get_free_block`)."""
    pool = device.get_pool(shelf)
    if device.collect_above >= 0:
        device.calls[pool, shelf % 2] = device.get_calls(shelf) + 1
    keys = device.free[shelf]
    place = bisect_left(keys, (size, -(2**63), 0))
    at = [device.blocks[key[2]] for key in keys[place : place + 1]]
    if at and at[0].expandable:
        rest = [device.blocks[key[2]] for key in keys[place:]]
        if device.grows[pool]:
            while len(rest) > 1 and rest[0].expandable and _can_grow_to(rest[1]) < _can_grow_to(rest[0]):
                del rest[0]
        else:
            rest = [block for block in rest if not block.expandable]
        at = rest[:1]
    if not at:
        return None
    is_oversize = size >= device.max_split
    if at[0].size >= (size + LARGE_SEGMENT if is_oversize else device.max_split):
        return None
    _unshelve(device, at[0])
    return at[0]


def _is_to_split(device: Device, block: Block, size: int) -> bool:
    """Check whether the rest of a block is split off (`should_split`)."""
    rest = block.size - size
    if block.shelf % 2 == 0 or device.grows[device.get_pool(block.shelf)]:
        return rest >= LEAST
    return size < device.max_split and rest > SMALL


def _allocate(device: Device, size: int, lane: int) -> Block | None:
    """Allocate a block (`malloc`); None if the device has no memory left."""
    shelf = 2 * lane + (size > SMALL)
    block = None if device.is_fresh else _find_free(device, shelf, size)
    device.is_fresh = False
    if block is None:
        if device.collect_above >= 0:
            _collect(device)
        block = _obtain(device, shelf, size)
        if block is None and _release_oversize(device, shelf, size):
            block = _obtain(device, shelf, size)
        if block is None:
            _release_cached(device)
            device.retries += 1
            block = _obtain(device, shelf, size)
    if block is None:
        return None
    if _is_to_split(device, block, size):
        rest = _add_behind(block, block.address + size, block.size - size)
        block.size = size
        _shelve(device, rest)
    block.state = USED
    device.active += block.size
    return block


def begin(device: Device, rows: list[list[int]]) -> None:
    """Build the blocks before the history."""
    last: Block | None = None
    for address, size, shelf, owner, flags in rows:
        block = Block(address, size, shelf, address)
        if not flags & BEGINS and last is not None:
            block.before, block.base, last.after = last, last.base, block
        block.expandable, block.mapped = bool(flags & EXPANDABLE), not flags & UNMAPPED
        device.reserved += size if block.mapped else 0
        if owner >= 0:
            block.state, device.owned[owner] = USED, block
            device.active += size
        else:
            _shelve(device, block)
        last = block


def run_op(device: Device, op: list[int]) -> Block | None:
    """Run one operation; for an allocation, its block, or None if memory ran out."""
    code, owner, size, lane = op
    if code in (EMPTY, RELEASE, FRESH):
        _run_release(device, code, size, lane)
        return None
    if code == REQUEST:
        _request_free(device, owner)
        return None
    block = device.owned.pop(owner, None)
    if block is not None and block.state == PENDING:
        device.pending.remove(owner)
    if code == COMPLETE:
        if block is not None:
            _free_block(device, block)
        return None
    block = _allocate(device, size, lane)
    if block is not None:
        device.owned[owner] = block
    return block


def _run_release(device: Device, code: int, size: int, lane: int) -> None:
    """Give the cache or a segment back, or note that the next allocation gets new memory."""
    if code == FRESH:
        device.is_fresh = device.synced
    elif code == EMPTY:
        if not size or not device.synced:
            _release_cached(device)
    elif not lane or device.synced:
        _release_at(device, size)


def _request_free(device: Device, owner: int) -> None:
    """Let a free wait for other streams."""
    block = device.owned.get(owner)
    if block is not None and block.state == USED:
        block.state = PENDING
        device.pending.append(owner)


def _release_at(device: Device, address: int) -> None:
    """Give back the unused segment at an address."""
    for shelf in range(len(device.free)):
        for block in _list_free(device, shelf):
            if block.address == address and not block.is_split and not block.expandable:
                _release_segment(device, block)
                return
