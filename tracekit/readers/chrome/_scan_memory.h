/* Growing memory: small blocks from malloc; large ones, on Linux, in their own pages, which the system remaps.
 *
 * A column of millions of values then grows without copies, and freed memory leaves no holes.
 */
#ifndef TRACEKIT_SCAN_MEMORY_H
#define TRACEKIT_SCAN_MEMORY_H

#include "_scan_core.h"

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

/* Header of every block, which begins TK_HEAD bytes later. */
typedef struct {
    size_t size;   /* total, with this header */
    size_t mapped; /* bytes in its own pages; 0: from malloc */
} tk_head;

enum { TK_HEAD = 64 };

static inline tk_head *tk_head_of(void *block) { return (tk_head *)(void *)((unsigned char *)block - TK_HEAD); }

#ifdef __linux__
#define TK_PAGES ((size_t)1 << 21)

/* Map at least this size in whole large pages, replacing `old` (or NULL); NULL without memory, `old` is unchanged. */
static inline tk_head *tk_remapped(tk_head *old, size_t size)
{
    if (size > SIZE_MAX - TK_PAGES) return NULL;
    size_t whole = (size + TK_PAGES - 1) & ~(TK_PAGES - 1), before = old ? old->mapped : 0;
    if (before == whole) return old;
    void *pages = before ? mremap(old, before, whole, MREMAP_MAYMOVE)
                         : mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    /* First-touch faults of so many small pages cost more than writing the data. */
    if (whole > before) (void)madvise(pages, whole, MADV_HUGEPAGE);
#endif
    tk_head *head = pages;
    if (old && !before) {
        memcpy(head, old, old->size < size ? old->size : size);
        free(old);
    }
    head->mapped = whole;
    return head;
}
#endif

/* realloc for `count` items, freed by `tk_release`. The size is never 0: NULL means that memory ran out. */
static inline void *tk_resized(void *block, size_t count, size_t item)
{
    if (count > (SIZE_MAX - TK_HEAD) / item) return NULL;
    size_t size = TK_HEAD + (count ? count * item : 1);
    tk_head *old = block ? tk_head_of(block) : NULL, *head;
#ifdef TK_PAGES
    if (size >= 2 * TK_PAGES || (old && old->mapped)) {
        head = tk_remapped(old, size);
    } else
#endif
    {
        head = realloc(old, size);
        if (head) head->mapped = 0;
    }
    if (!head) return NULL;
    head->size = size;
    return (unsigned char *)head + TK_HEAD;
}

/* Free the block, if not NULL. */
static inline void tk_release(void *block)
{
    if (!block) return;
    tk_head *head = tk_head_of(block);
#ifdef TK_PAGES
    if (head->mapped) {
        (void)munmap(head, head->mapped);
        return;
    }
#endif
    free(head);
}

/* Resize the memory that the pointer at `slot` points to, of any type; unchanged on failure. */
static inline bool tk_resize(void *slot, size_t count, size_t item)
{
    void *block;
    memcpy(&block, slot, sizeof block);
    block = tk_resized(block, count, item);
    if (!block) return false;
    memcpy(slot, &block, sizeof block);
    return true;
}

#endif
