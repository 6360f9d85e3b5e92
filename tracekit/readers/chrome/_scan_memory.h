/* Memory that grows: small blocks from malloc; large ones, on Linux, in pages of their own, which the system moves.
 *
 * Nothing is copied then while a column of millions of values grows, and what is given back leaves no hole behind.
 */
#ifndef TRACEKIT_SCAN_MEMORY_H
#define TRACEKIT_SCAN_MEMORY_H

#include "_scan_core.h"

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

/* Stands before every block, which begins TK_HEAD bytes later. */
typedef struct {
    size_t size;   /* of all, this included */
    size_t mapped; /* in pages of its own; 0: from malloc */
} tk_head;

enum { TK_HEAD = 64 };

static inline tk_head *tk_head_of(void *block) { return (tk_head *)(void *)((unsigned char *)block - TK_HEAD); }

#ifdef __linux__
#define TK_PAGES ((size_t)1 << 21)

/* At least this size in whole large pages, in place of `old` (NULL: none); NULL without memory, `old` stays then. */
static inline tk_head *tk_remapped(tk_head *old, size_t size)
{
    if (size > SIZE_MAX - TK_PAGES) return NULL;
    size_t whole = (size + TK_PAGES - 1) & ~(TK_PAGES - 1), before = old ? old->mapped : 0;
    if (before == whole) return old;
    void *pages = before ? mremap(old, before, whole, MREMAP_MAYMOVE)
                         : mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    /* The first touch of so many small pages costs more than what is written to them. */
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

/* realloc for `count` items, to be given back by `tk_release`; no bytes are ever asked for, so NULL means that memory
 * ran out. */
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

/* Gives the block back, if it is one. */
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

/* Resizes the memory that the pointer at `slot` points to, whatever its type; it keeps its place on failure. */
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
