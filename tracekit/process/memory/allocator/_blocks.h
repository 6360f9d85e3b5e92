/* Blocks of an allocator on their shelves: free ones by size and address, unmapped ones by address; for `_allocator.c`. */
#ifndef TRACEKIT_BLOCKS_H
#define TRACEKIT_BLOCKS_H

#include "../../../model/_arrays.h"
#include <string.h>

#define MIB ((int64_t)1 << 20)
#define LEAST 512
#define SMALL MIB
#define SMALL_PAGE (2 * MIB)
#define LARGE_PAGE (20 * MIB)
#define OWN_SEGMENT (10 * MIB)
#define ADDRESS_SPACE ((int64_t)1 << 46)
#define NONE (-1)

enum { FREE, USED, PENDING };

typedef struct {
    int64_t address, size, base, born;
    int32_t before, after, shelf;
    int8_t state, mapped, expandable;
} block;

typedef struct {
    int32_t *items;
    int32_t count, room;
} shelf;

typedef struct {
    block *blocks;
    int32_t count, room, spare;
    shelf *free, *unmapped;
    int32_t shelves;
    const int64_t *pool_of;
    const int64_t *expandable;
    int64_t *calls;
    shelf pending; /* Owners whose free waits for other streams. */
    int32_t *block_of;
    int64_t max_split, collect_above, limit, next_address;
    const int64_t *recorded;
    size_t recorded_count, drawn;
    int synced, broken, fresh;
    int64_t reserved, active;
    int64_t *log;
    size_t log_room, logged;
    int64_t failed, first_failed, retries, collected, now;
} allocator;

static inline int64_t page_of(int32_t s) { return s % 2 ? LARGE_PAGE : SMALL_PAGE; }
static inline int64_t pool_of(const allocator *a, int32_t s) { return a->pool_of[s / 2]; }
static inline int grows(const allocator *a, int32_t s) { return a->expandable[pool_of(a, s)] != 0; }
/* get_free_blocks_call_count: one per pool, for small and for large blocks. */
static inline int64_t *calls_of(allocator *a, int32_t s) { return &a->calls[2 * pool_of(a, s) + s % 2]; }
static inline int is_split(const block *b) { return b->before != NONE || b->after != NONE; }

static inline int32_t new_block(allocator *a, int32_t s, int64_t address, int64_t size)
{
    int32_t at = a->spare;
    if (at != NONE) {
        a->spare = a->blocks[at].after;
    } else {
        if (a->count == a->room) {
            int32_t room = a->room ? 2 * a->room : 1024;
            block *more = a->room > INT32_MAX / 4 ? NULL : realloc(a->blocks, (size_t)room * sizeof *more);
            if (!more) {
                a->broken = 1;
                return NONE;
            }
            a->blocks = more, a->room = room;
        }
        at = a->count++;
    }
    a->blocks[at] = (block){address, size, 0, 0, NONE, NONE, s, FREE, 1, 0};
    return at;
}

static inline void drop_block(allocator *a, int32_t at) { a->blocks[at].after = a->spare, a->blocks[at].state = USED, a->spare = at; }

/* The place of the first block of a shelf that is not before (size, address); of unmapped ones, by address alone. */
static inline int32_t place_of(const allocator *a, const shelf *s, int64_t size, int64_t address, int by_size)
{
    int32_t low = 0, high = s->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        const block *b = &a->blocks[s->items[middle]];
        if (by_size ? b->size < size || (b->size == size && b->address < address) : b->address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static inline void put_at(allocator *a, shelf *s, int32_t place, int32_t at)
{
    if (s->count == s->room) {
        int32_t room = s->room ? 2 * s->room : 64;
        int32_t *more = realloc(s->items, (size_t)room * sizeof *more);
        if (!more) {
            a->broken = 1;
            return;
        }
        s->items = more, s->room = room;
    }
    memmove(s->items + place + 1, s->items + place, (size_t)(s->count - place) * sizeof *s->items);
    s->items[place] = at;
    s->count++;
}

static inline void take_at(shelf *s, int32_t place)
{
    s->count--;
    memmove(s->items + place, s->items + place + 1, (size_t)(s->count - place) * sizeof *s->items);
}

/* insert_into_blocks: a free block waits on its shelf, by size and address. */
static inline void put_free(allocator *a, int32_t at)
{
    block *b = &a->blocks[at];
    b->born = *calls_of(a, b->shelf);
    shelf *s = &a->free[b->shelf];
    put_at(a, s, place_of(a, s, b->size, b->address, 1), at);
}

static inline void put_unmapped(allocator *a, int32_t at)
{
    block *b = &a->blocks[at];
    shelf *s = &a->unmapped[b->shelf];
    put_at(a, s, place_of(a, s, 0, b->address, 0), at);
}

static inline void take_off(allocator *a, int32_t at)
{
    block *b = &a->blocks[at];
    shelf *s = b->mapped ? &a->free[b->shelf] : &a->unmapped[b->shelf];
    int32_t place = place_of(a, s, b->size, b->address, b->mapped);
    while (place < s->count && s->items[place] != at) place++;
    if (place < s->count) take_at(s, place);
}

static inline void log_segment(allocator *a, int64_t address, int64_t size, int32_t s)
{
    if (a->logged < a->log_room) {
        int64_t *row = a->log + 4 * a->logged;
        row[0] = a->now, row[1] = address, row[2] = size, row[3] = s;
    }
    a->logged++;
    a->reserved += size;
}

/* The address of a new segment: the recorded one for as long as the segments are those of the record, then a new one. */
static inline int64_t draw_address(allocator *a, int32_t s, int64_t size, int64_t room)
{
    if (a->synced && a->drawn < a->recorded_count) {
        const int64_t *next = a->recorded + 3 * a->drawn;
        if (next[1] == size && next[2] == s) return next[0];
    }
    a->synced = 0;
    int64_t address = a->next_address;
    a->next_address += (room + SMALL_PAGE - 1) / SMALL_PAGE * SMALL_PAGE;
    return address;
}

/* Whether a segment is that of the record: from the first other one on, addresses are new. */
static inline void count_segment(allocator *a, int32_t s, int64_t address, int64_t size)
{
    if (!a->synced) return;
    const int64_t *next = a->recorded + 3 * a->drawn;
    if (a->drawn < a->recorded_count && next[0] == address && next[1] == size && next[2] == s)
        a->drawn++;
    else
        a->synced = 0;
}

/* try_merge_blocks: `at` takes in a free neighbour. */
static inline void merge(allocator *a, int32_t at, int32_t other)
{
    if (other == NONE) return;
    block *b = &a->blocks[at], *o = &a->blocks[other];
    if (o->state != FREE || b->mapped != o->mapped) return;
    take_off(a, other);
    if (b->before == other) {
        b->address = o->address;
        b->before = o->before;
        if (b->before != NONE) a->blocks[b->before].after = at;
    } else {
        b->after = o->after;
        if (b->after != NONE) a->blocks[b->after].before = at;
    }
    b->size += o->size;
    drop_block(a, other);
}

/* A new block right behind another, of its shelf and segment. */
static inline int32_t add_behind(allocator *a, int32_t at, int64_t address, int64_t size)
{
    int32_t rest = new_block(a, a->blocks[at].shelf, address, size);
    if (rest == NONE) return NONE;
    block *b = &a->blocks[at], *r = &a->blocks[rest];
    r->expandable = b->expandable, r->base = b->base;
    r->before = at, r->after = b->after;
    if (b->after != NONE) a->blocks[b->after].before = rest;
    b->after = rest;
    return rest;
}

#endif
