/* tracekit.process.memory.allocator._allocator: PyTorch's caching allocator for CUDA, run over a program of requests, for Python.
 *
 * `_allocator.pyi` describes what Python sees; `plain.py` has the same passes in Python. The rules are those of
 * c10/cuda/CUDACachingAllocator.cpp in PyTorch; the comments name its functions. A shelf is one of its pools for one stream:
 * shelf 2 * lane is for small blocks, 2 * lane + 1 for large ones, where a lane is a pool and a stream.
 */
#include "_blocks.h"

enum { ALLOC, COMPLETE, REQUEST, EMPTY, RELEASE, FRESH };
enum { BEGINS = 1, EXPANDABLE = 2, UNMAPPED = 4 };
enum { MAX_SPLIT, COLLECT_ABOVE, LIMIT, NEXT_ADDRESS, SETTINGS };
enum { LOGGED, FAILED, FIRST_FAILED, RETRIES, COLLECTED, SYNCED, STATS };

/* free_block: merged with free neighbours, and put on its shelf. */
static void free_block(allocator *a, int32_t at)
{
    a->blocks[at].state = FREE;
    a->active -= a->blocks[at].size;
    merge(a, at, a->blocks[at].before);
    merge(a, at, a->blocks[at].after);
    put_free(a, at);
}

/* release_block: cudaFree of a segment without a split. */
static void release_segment(allocator *a, int32_t at)
{
    block *b = &a->blocks[at];
    take_off(a, at);
    log_segment(a, b->address, -b->size, b->shelf);
    drop_block(a, at);
}

/* unmap_block: gives back the whole pages of a free block. */
static void unmap(allocator *a, int32_t at)
{
    block *b = &a->blocks[at];
    int64_t page = page_of(b->shelf), from = b->address - b->base, until = from + b->size;
    from = (from + page - 1) / page * page, until = until / page * page;
    if (from >= until) return;
    take_off(a, at);
    int64_t first = b->base + from, last = b->base + until, head = first - b->address, tail = b->address + b->size - last;
    if (head > 0) {
        /* The block itself becomes the head, and a new one the pages: links stay as they are. */
        int32_t pages = add_behind(a, at, first, b->size - head);
        if (pages == NONE) return;
        a->blocks[at].size = head;
        put_free(a, at);
        at = pages;
    }
    if (tail > 0) {
        int32_t rest = add_behind(a, at, last, tail);
        if (rest == NONE) return;
        put_free(a, rest);
    }
    b = &a->blocks[at];
    b->size = last - first, b->mapped = 0, b->state = FREE;
    log_segment(a, first, first - last, b->shelf);
    merge(a, at, a->blocks[at].before);
    merge(a, at, a->blocks[at].after);
    if (is_split(&a->blocks[at]))
        put_unmapped(a, at);
    else
        drop_block(a, at); /* release_expandable_segment */
}

/* release_blocks: every segment of a shelf that nothing uses, and every page. */
static void release_shelf(allocator *a, int32_t s)
{
    shelf *of = &a->free[s];
    int32_t pages = 0, *to_unmap = malloc(((size_t)of->count + 1) * sizeof *to_unmap);
    if (!to_unmap) {
        a->broken = 1;
        return;
    }
    for (int32_t place = 0; place < of->count;) {
        int32_t at = of->items[place];
        if (a->blocks[at].expandable)
            to_unmap[pages++] = at, place++;
        else if (!is_split(&a->blocks[at]))
            release_segment(a, at);
        else
            place++;
    }
    for (int32_t i = 0; i < pages && !a->broken; i++) unmap(a, to_unmap[i]);
    free(to_unmap);
}

/* release_cached_blocks: frees that wait for other streams end, and the cache of the default pool goes back to the driver. */
static void release_cached(allocator *a)
{
    for (int32_t i = 0; i < a->pending.count; i++) {
        int32_t owner = a->pending.items[i];
        free_block(a, a->block_of[owner]);
        a->block_of[owner] = NONE;
    }
    a->pending.count = 0;
    for (int small = 0; small < 2; small++)
        for (int32_t s = 1 - small; s < a->shelves; s += 2)
            if (pool_of(a, s) == 0) release_shelf(a, s);
}

/* release_available_cached_blocks: oversize segments only, as many as the request needs. */
static int release_oversize(allocator *a, int32_t s, int64_t size)
{
    if (a->max_split == INT64_MAX) return 0;
    int64_t need = size < a->max_split ? a->max_split : size, released = 0;
    shelf *of = &a->free[s];
    int32_t place = place_of(a, of, need, INT64_MIN, 1);
    if (place < of->count) {
        int32_t at = of->items[place];
        if (a->blocks[at].expandable || is_split(&a->blocks[at])) return 0;
        release_segment(a, at);
        return 1;
    }
    while (place-- > 0 && released < need && a->blocks[of->items[place]].size >= a->max_split) {
        int32_t at = of->items[place];
        if (a->blocks[at].expandable || is_split(&a->blocks[at])) continue;
        released += a->blocks[at].size;
        release_segment(a, at);
    }
    return released >= need;
}

/* garbage_collect_cached_blocks: whole segments that were not used for longer than the average of them. */
static void collect(allocator *a)
{
    if (a->reserved <= a->collect_above) return;
    int64_t target = a->reserved - a->collect_above, reclaimed = 0, age = 0, count = 0;
    for (int32_t s = 1; s < a->shelves; s += 2)
        for (int32_t i = 0; pool_of(a, s) == 0 && i < a->free[s].count; i++) {
            const block *b = &a->blocks[a->free[s].items[i]];
            if (!is_split(b) && !b->expandable) age += *calls_of(a, s) - b->born, count++;
        }
    for (int freed = 1; reclaimed < target && freed && count > 0;) {
        double threshold = (double)age / (double)count;
        freed = 0;
        for (int32_t s = 1; s < a->shelves; s += 2)
            for (int32_t i = 0; pool_of(a, s) == 0 && i < a->free[s].count;) {
                int32_t at = a->free[s].items[i];
                const block *b = &a->blocks[at];
                int64_t unused = *calls_of(a, s) - b->born;
                if (is_split(b) || b->expandable || (double)unused < threshold) {
                    i++;
                    continue;
                }
                freed = 1, reclaimed += b->size, age -= unused, count--, a->collected++;
                release_segment(a, at);
            }
    }
}

/* map_block: pages for the first `size` bytes of unmapped addresses; 0 if the device has no memory left. */
static int map(allocator *a, int32_t at, int64_t size)
{
    block *b = &a->blocks[at];
    int64_t page = page_of(b->shelf), mapped = (size + page - 1) / page * page;
    if (mapped > b->size) mapped = b->size;
    if (a->limit >= 0 && a->reserved + mapped > a->limit) return 0;
    take_off(a, at);
    if (mapped < b->size) {
        int32_t rest = add_behind(a, at, b->address + mapped, b->size - mapped);
        if (rest == NONE) return 0;
        a->blocks[rest].mapped = 0;
        a->blocks[at].size = mapped;
        put_unmapped(a, rest);
    }
    b = &a->blocks[at];
    b->mapped = 1;
    count_segment(a, b->shelf, b->address, mapped);
    log_segment(a, b->address, mapped, b->shelf);
    merge(a, at, a->blocks[at].before);
    merge(a, at, a->blocks[at].after);
    put_free(a, at);
    return 1;
}

/* find_expandable_block: the lowest addresses with room, free or unmapped; else those of a new segment. */
static int32_t find_addresses(allocator *a, int32_t s, int64_t size)
{
    for (int32_t i = 0; i < a->unmapped[s].count; i++) {
        int32_t at = a->unmapped[s].items[i], before = a->blocks[at].before;
        if (before != NONE && a->blocks[before].state == FREE) at = before;
        int64_t bytes = 0;
        for (int32_t k = at; bytes < size && k != NONE && a->blocks[k].state == FREE; k = a->blocks[k].after) bytes += a->blocks[k].size;
        if (bytes >= size) return at;
    }
    int64_t page = page_of(s), mapped = (size + page - 1) / page * page;
    int64_t address = draw_address(a, s, mapped, ADDRESS_SPACE);
    int32_t at = new_block(a, s, address, ADDRESS_SPACE / page * page);
    if (at == NONE) return NONE;
    block *b = &a->blocks[at];
    b->expandable = 1, b->mapped = 0, b->base = address;
    put_unmapped(a, at);
    return at;
}

/* try_allocate_expandable_block */
static int32_t expand(allocator *a, int32_t s, int64_t size)
{
    int32_t at = find_addresses(a, s, size);
    if (at == NONE) return NONE;
    int64_t room = a->blocks[at].size;
    if (!a->blocks[at].mapped && !map(a, at, room < size ? room : size)) return NONE;
    while (a->blocks[at].size < size) {
        int64_t left = size - a->blocks[at].size;
        int32_t next = a->blocks[at].after;
        if (next == NONE) return NONE;
        if (left > a->blocks[next].size) left = a->blocks[next].size;
        if (!map(a, next, left)) return NONE;
        at = next;
    }
    take_off(a, at);
    return at;
}

/* alloc_block: memory from the driver. */
static int32_t obtain(allocator *a, int32_t s, int64_t size)
{
    int64_t need = size <= SMALL ? SMALL_PAGE : size < OWN_SEGMENT ? LARGE_PAGE : (size + SMALL_PAGE - 1) / SMALL_PAGE * SMALL_PAGE;
    if (grows(a, s)) return expand(a, s, size);
    if (a->limit >= 0 && a->reserved + need > a->limit) return NONE;
    int64_t address = draw_address(a, s, need, need);
    int32_t at = new_block(a, s, address, need);
    if (at == NONE) return NONE;
    count_segment(a, s, address, need);
    log_segment(a, address, need, s);
    return at;
}

static int64_t can_grow_to(const allocator *a, int32_t at)
{
    const block *b = &a->blocks[at];
    return b->size + (b->after != NONE && !a->blocks[b->after].mapped ? a->blocks[b->after].size : 0);
}

/* get_free_block: the smallest free block that fits, with the lowest address. */
static int32_t find_free(allocator *a, int32_t s, int64_t size)
{
    shelf *of = &a->free[s];
    if (a->collect_above >= 0) ++*calls_of(a, s);
    int32_t place = place_of(a, of, size, INT64_MIN, 1);
    if (place >= of->count) return NONE;
    if (a->blocks[of->items[place]].expandable) {
        if (grows(a, s)) {
            while (place + 1 < of->count && a->blocks[of->items[place]].expandable
                   && can_grow_to(a, of->items[place + 1]) < can_grow_to(a, of->items[place]))
                place++;
        } else {
            while (place < of->count && a->blocks[of->items[place]].expandable) place++;
            if (place >= of->count) return NONE;
        }
    }
    int32_t at = of->items[place];
    if (size < a->max_split && a->blocks[at].size >= a->max_split) return NONE;
    if (size >= a->max_split && a->blocks[at].size >= size + LARGE_PAGE) return NONE;
    take_at(of, place);
    return at;
}

/* should_split */
static int splits(const allocator *a, const block *b, int64_t size)
{
    int64_t rest = b->size - size;
    if (b->shelf % 2 == 0 || grows(a, b->shelf)) return rest >= LEAST;
    return size < a->max_split && rest > SMALL;
}

/* malloc: the block of a request, or NONE if the device has no memory left. */
static int32_t allocate(allocator *a, int64_t size, int64_t lane)
{
    int32_t s = (int32_t)(2 * lane + (size > SMALL)), at = a->fresh ? NONE : find_free(a, s, size);
    a->fresh = 0;
    if (at == NONE && !a->broken) {
        if (a->collect_above >= 0) collect(a);
        at = obtain(a, s, size);
        if (at == NONE && !a->broken && release_oversize(a, s, size)) at = obtain(a, s, size);
        if (at == NONE && !a->broken) {
            release_cached(a);
            a->retries++;
            at = obtain(a, s, size);
        }
    }
    if (at == NONE || a->broken) return NONE;
    if (splits(a, &a->blocks[at], size)) {
        int32_t rest = add_behind(a, at, a->blocks[at].address + size, a->blocks[at].size - size);
        if (rest == NONE) return NONE;
        a->blocks[at].size = size;
        put_free(a, rest);
    }
    a->blocks[at].state = USED;
    a->active += a->blocks[at].size;
    return at;
}

static void forget_pending(allocator *a, int32_t owner)
{
    for (int32_t i = 0; i < a->pending.count; i++)
        if (a->pending.items[i] == owner) {
            take_at(&a->pending, i);
            return;
        }
}

/* A segment of a private pool that the record gives back. */
static void release_at(allocator *a, int64_t address)
{
    for (int32_t s = 0; s < a->shelves; s++)
        for (int32_t i = 0; i < a->free[s].count; i++) {
            int32_t at = a->free[s].items[i];
            if (a->blocks[at].address != address || is_split(&a->blocks[at]) || a->blocks[at].expandable) continue;
            release_segment(a, at);
            return;
        }
}

/* The blocks before the history: rows of (address, size, shelf, owner or -1, flags), those of one segment after one another. */
static const char *begin(allocator *a, const int64_t *rows, size_t count, size_t owners)
{
    int32_t last = NONE;
    for (size_t i = 0; i < count; i++, rows += 5) {
        if ((uint64_t)rows[2] >= (uint64_t)a->shelves || rows[3] >= (int64_t)owners || rows[1] <= 0) return "a block that cannot be";
        int32_t at = new_block(a, (int32_t)rows[2], rows[0], rows[1]);
        if (at == NONE) return NULL;
        block *b = &a->blocks[at];
        int64_t flags = rows[4];
        if (flags & BEGINS || last == NONE) {
            b->base = rows[0];
        } else {
            b->before = last, b->base = a->blocks[last].base;
            a->blocks[last].after = at;
        }
        b->expandable = (flags & EXPANDABLE) != 0, b->mapped = !(flags & UNMAPPED);
        if (b->mapped) a->reserved += b->size;
        if (rows[3] >= 0) {
            b->state = USED, a->block_of[rows[3]] = at;
            a->active += b->size;
        } else if (b->mapped)
            put_free(a, at);
        else
            put_unmapped(a, at);
        last = at;
    }
    return NULL;
}

static void run_one(allocator *a, const int64_t *op, int64_t *placed)
{
    int32_t owner = op[0] < EMPTY ? (int32_t)op[1] : NONE, at = owner == NONE ? NONE : a->block_of[owner];
    switch (op[0]) {
    case ALLOC:
        if (at != NONE && a->blocks[at].state == PENDING) forget_pending(a, owner);
        at = a->block_of[owner] = allocate(a, op[2], op[3]);
        placed[owner] = at == NONE ? NONE : a->blocks[at].address;
        if (at == NONE && a->failed++ == 0) a->first_failed = a->now;
        break;
    case REQUEST:
        if (at == NONE || a->blocks[at].state != USED) break;
        a->blocks[at].state = PENDING;
        put_at(a, &a->pending, a->pending.count, owner);
        break;
    case COMPLETE:
        if (at == NONE) break;
        if (a->blocks[at].state == PENDING) forget_pending(a, owner);
        a->block_of[owner] = NONE;
        free_block(a, at);
        break;
    case EMPTY:
        if (!op[2] || !a->synced) release_cached(a);
        break;
    case FRESH:
        /* The recorded request found nothing, and memory was given back for it: it does not look again. */
        a->fresh = a->synced;
        break;
    default:
        if (!op[3] || a->synced) release_at(a, op[2]);
    }
}

static void discard(allocator *a)
{
    for (int32_t s = 0; s < a->shelves; s++) {
        if (a->free) free(a->free[s].items);
        if (a->unmapped) free(a->unmapped[s].items);
    }
    free(a->free), free(a->unmapped), free(a->calls), free(a->blocks), free(a->pending.items), free(a->block_of);
}

/* Whether each operation names an owner, a lane and a size that there are. */
static int are_sound(const int64_t *ops, size_t count, size_t owners, size_t lanes)
{
    for (size_t i = 0; i < count; i++, ops += 4) {
        if ((uint64_t)ops[0] > FRESH) return 0;
        if (ops[0] < EMPTY && (uint64_t)ops[1] >= owners) return 0;
        if (ops[0] == ALLOC && ((uint64_t)ops[3] >= lanes || ops[2] <= 0)) return 0;
    }
    return 1;
}

/* Runs a program: ops, pool of each lane, whether each pool grows, settings, blocks before it, recorded segments; then written
 * to: reserved and active bytes after each op, the address of each owner, the segments got and given back, and counts. */
static PyObject *run(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 11, 5, &of)) return NULL;
    size_t count = of.size[6], lanes = of.size[1], pools = of.size[2], owners = of.size[8];
    if (of.size[0] != 4 * count || of.size[3] != SETTINGS || of.size[4] % 5 || of.size[5] % 3 || of.size[7] != count || of.size[9] % 4
        || of.size[10] != STATS || lanes > INT32_MAX / 4 || owners > INT32_MAX / 4)
        return done(&of, "the arrays differ in length");
    for (size_t i = 0; i < lanes; i++)
        if ((uint64_t)of.values[1][i] >= pools) return done(&of, "a lane without a pool");
    if (!are_sound(of.values[0], count, owners, lanes)) return done(&of, "an operation that cannot be");
    const int64_t *settings = of.values[3], *ops = of.values[0];
    allocator a = {.spare = NONE, .shelves = (int32_t)(2 * lanes), .pool_of = of.values[1], .expandable = of.values[2], .synced = 1};
    a.max_split = settings[MAX_SPLIT], a.collect_above = settings[COLLECT_ABOVE], a.limit = settings[LIMIT];
    a.next_address = settings[NEXT_ADDRESS], a.first_failed = NONE;
    a.recorded = of.values[5], a.recorded_count = of.size[5] / 3;
    a.log = of.values[9], a.log_room = of.size[9] / 4;
    a.free = calloc(2 * lanes + 1, sizeof *a.free), a.unmapped = calloc(2 * lanes + 1, sizeof *a.unmapped);
    a.calls = calloc(2 * pools + 1, sizeof *a.calls);
    a.block_of = malloc((owners + 1) * sizeof *a.block_of);
    const char *problem = NULL;
    if (!a.free || !a.unmapped || !a.calls || !a.block_of) {
        a.broken = 1;
    } else {
        for (size_t i = 0; i < owners; i++) a.block_of[i] = NONE, of.values[8][i] = NONE;
        problem = begin(&a, of.values[4], of.size[4] / 5, owners);
    }
    for (size_t i = 0; i < count && !a.broken && !problem; i++, ops += 4) {
        a.now = (int64_t)i;
        run_one(&a, ops, of.values[8]);
        of.values[6][i] = a.reserved, of.values[7][i] = a.active;
    }
    int64_t *stats = of.values[10];
    stats[LOGGED] = (int64_t)a.logged, stats[FAILED] = a.failed, stats[FIRST_FAILED] = a.first_failed;
    stats[RETRIES] = a.retries, stats[COLLECTED] = a.collected, stats[SYNCED] = a.synced;
    int broken = a.broken;
    discard(&a);
    return broken ? no_memory(&of) : done(&of, problem);
}

static PyMethodDef methods[] = {
    {"run", run, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_allocator", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__allocator(void) { return PyModuleDef_Init(&definition); }
