/* Storage for the values of a scan: distinct texts, codes of labels and sparse columns.
 *
 * The functions are inlined into the few files that include this. If memory runs out, those that return bool
 * return false, and those that return a code return -1.
 */
#ifndef TRACEKIT_SCAN_COLUMNS_H
#define TRACEKIT_SCAN_COLUMNS_H

#include "_scan_core.h"
#include "_scan_memory.h"
#include "_scan_text.h"

/* Grow by half and by `least`, up to the limit of int32. */
static inline int32_t tk_next_room(int32_t room, int32_t least)
{
    int64_t next = (int64_t)room + room / 2 + least;
    return next < INT32_MAX ? (int32_t)next : INT32_MAX;
}

/* ---- distinct texts */

static inline uint64_t tk_folded_product(uint64_t a, uint64_t b)
{
#if defined(TK_GNU) && defined(__SIZEOF_INT128__)
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t low = a0 * b0, middle = a0 * b1 + (low >> 32), cross = a1 * b0 + (uint32_t)middle;
    return (cross << 32 | (uint32_t)low) ^ (a1 * b1 + (middle >> 32) + (cross >> 32));
#endif
}

/* Hash the text; unpredictable without the seed, against hostile files. */
static inline uint32_t tk_hash(const unsigned char *p, size_t size, uint64_t seed)
{
    uint64_t state = seed ^ (uint64_t)size * UINT64_C(0x9e3779b97f4a7c15), a = 0, b = 0;
    uint64_t other = seed ^ UINT64_C(0xd6e8feb86659fd93);
    for (; size > 16; p += 16, size -= 16) state = tk_folded_product(tk_load8(p) ^ other, tk_load8(p + 8) ^ state);
    if (size >= 8) {
        a = tk_load8(p);
        b = tk_load8(p + size - 8);
    } else if (size >= 4) {
        a = tk_load4(p);
        b = tk_load4(p + size - 4);
    } else if (size > 0) {
        a = (uint64_t)p[0] | (uint64_t)p[size / 2] << 8 | (uint64_t)p[size - 1] << 16;
    }
    state = tk_folded_product(a ^ other, b ^ state);
    return (uint32_t)(state ^ state >> 32);
}

static inline bool tk_same(const unsigned char *a, const unsigned char *b, size_t size)
{
    if (size >= 8) {
        for (size_t i = 0; i + 8 < size; i += 8)
            if (tk_load8(a + i) != tk_load8(b + i)) return false;
        return tk_load8(a + size - 8) == tk_load8(b + size - 8);
    }
    if (size >= 4) return tk_load4(a) == tk_load4(b) && tk_load4(a + size - 4) == tk_load4(b + size - 4);
    for (size_t i = 0; i < size; i++)
        if (a[i] != b[i]) return false;
    return true;
}

static inline size_t tk_text_size(const tk_texts *texts, int32_t code)
{
    return (size_t)(texts->offsets[code + 1] - texts->offsets[code]);
}

static inline bool tk_is_text(const tk_texts *texts, int32_t code, const unsigned char *text, size_t size)
{
    return tk_text_size(texts, code) == size && tk_same(texts->bytes + texts->offsets[code], text, size);
}

/* Find the slot of the text with this hash, or the free slot for it. */
static inline tk_slot *tk_find_slot(const tk_texts *texts, uint32_t hashed, const unsigned char *text, size_t size)
{
    size_t mask = texts->slot_count - 1;
    for (size_t i = hashed & mask;; i = (i + 1) & mask) {
        tk_slot *slot = &texts->slots[i];
        if (slot->code < 0) return slot;
        if (slot->hash == hashed && tk_is_text(texts, slot->code, text, size)) return slot;
    }
}

static inline bool tk_grow_slots(tk_texts *texts)
{
    size_t count = texts->slot_count ? texts->slot_count * 2 : 4;
    tk_slot *slots = tk_resized(NULL, count, sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i < count; i++) slots[i] = (tk_slot){0, -1};
    for (size_t i = 0; i < texts->slot_count; i++) {
        if (texts->slots[i].code < 0) continue;
        size_t j = texts->slots[i].hash & (count - 1);
        while (slots[j].code >= 0) j = (j + 1) & (count - 1);
        slots[j] = texts->slots[i];
    }
    tk_release(texts->slots);
    texts->slots = slots;
    texts->slot_count = count;
    return true;
}

static inline bool tk_append_text(tk_texts *texts, const unsigned char *text, size_t size)
{
    if (texts->count == INT32_MAX - 1) return false;
    if (texts->count == texts->room) {
        int32_t room = tk_next_room(texts->room, 1);
        if (!tk_resize(&texts->offsets, (size_t)room + 1, sizeof *texts->offsets)) return false;
        if (!tk_resize(&texts->next, (size_t)room, sizeof *texts->next)) return false;
        texts->room = room;
    }
    size_t start = texts->count ? (size_t)texts->offsets[texts->count] : 0;
    if (size > texts->capacity - start) {
        size_t capacity = start + start / 2 + size;
        if (!tk_resize(&texts->bytes, capacity, 1)) return false;
        texts->capacity = capacity;
    }
    memcpy(texts->bytes + start, text, size);
    texts->next[texts->count] = -1;
    texts->offsets[texts->count] = (int64_t)start;
    texts->offsets[++texts->count] = (int64_t)(start + size);
    return true;
}

/* Find the code of the text, adding the text if it is new; -1 without memory. */
static inline int32_t tk_code_of(tk_texts *texts, uint64_t seed, const unsigned char *text, size_t size)
{
    uint32_t hashed = tk_hash(text, size, seed);
    tk_slot *slot = texts->slot_count ? tk_find_slot(texts, hashed, text, size) : NULL;
    if (slot && slot->code >= 0) return slot->code;
    if ((size_t)texts->count + 1 > texts->slot_count / 4 * 3) {
        if (!tk_grow_slots(texts)) return -1;
        slot = tk_find_slot(texts, hashed, text, size);
    }
    if (!tk_append_text(texts, text, size)) return -1;
    *slot = (tk_slot){hashed, texts->count - 1};
    return slot->code;
}

/* Record that this text followed the last one. */
static inline void tk_follow(tk_texts *texts, int32_t code)
{
    texts->next[texts->last] = code;
    texts->last = code;
}

/* Return the code of the text expected next if it is the one at p, else -1. */
static inline int32_t tk_guess_code(const tk_texts *texts, const unsigned char *p, const unsigned char *e)
{
    if (!texts->count) return -1;
    int32_t guess = texts->next[texts->last];
    if (guess < 0) return -1;
    size_t size = tk_text_size(texts, guess);
    if ((size_t)(e - p) <= size || !tk_same(texts->bytes + texts->offsets[guess], p, size)) return -1;
    /* A bare text may continue; a string or container that matches is complete. */
    return (tk_classes[*p] & TK_BARE) && (tk_classes[p[size]] & TK_BARE) ? -1 : guess;
}

/* ---- labels and times: columns that every row has */

/* By the size of a code, as in `choose_code_type` of scan.py. */
static const int32_t tk_largest_code[] = {0, INT8_MAX - 1, INT16_MAX - 1, INT32_MAX, INT32_MAX};

static inline void tk_set_code(void *codes, unsigned char size, int32_t row, int32_t code)
{
    if (size == 1)
        ((int8_t *)codes)[row] = (int8_t)code;
    else if (size == 2)
        ((int16_t *)codes)[row] = (int16_t)code;
    else
        ((int32_t *)codes)[row] = code;
}

static inline int32_t tk_code_at(const void *codes, unsigned char size, int32_t row)
{
    if (size == 1) return ((const int8_t *)codes)[row];
    return size == 2 ? ((const int16_t *)codes)[row] : ((const int32_t *)codes)[row];
}

/* Widen the codes of a label for this code, which does not fit. */
static inline bool tk_widen_codes(tk_scan *scan, int which, int32_t code)
{
    unsigned char before = scan->code_size[which], size = code > INT16_MAX - 1 ? 4 : 2;
    void *narrow = scan->codes[which], *wide = tk_resized(NULL, (size_t)scan->room, size);
    if (!wide) return false;
    for (int32_t i = 0; i < scan->rows; i++) tk_set_code(wide, size, i, tk_code_at(narrow, before, i));
    tk_release(narrow);
    scan->codes[which] = wide;
    scan->code_size[which] = size;
    return true;
}

/* Make room for more than `rows` rows, or for INT32_MAX. */
static inline bool tk_grow_rows(tk_scan *scan, int32_t rows)
{
    int32_t room = tk_next_room(scan->room > rows ? scan->room : rows, 1024);
    for (int i = 0; i < TK_LABELS; i++)
        if (!tk_resize(&scan->codes[i], (size_t)room, scan->code_size[i])) return false;
    for (int i = 0; i < TK_TIMES; i++) {
        if (!tk_resize(&scan->times[i], (size_t)room, sizeof *scan->times[i])) return false;
        if (!tk_resize(&scan->has_time[i], (size_t)room, 1)) return false;
    }
    scan->room = room;
    return true;
}

/* ---- sparse columns */

static inline size_t tk_value_size(const tk_column *column) { return column->kind == TK_TEXT ? sizeof(int32_t) : sizeof(int64_t); }

/* Make room for more than `count` values, or for INT32_MAX. */
static inline bool tk_grow_column(tk_column *column, int32_t count)
{
    int32_t capacity = tk_next_room(column->capacity > count ? column->capacity : count, 3);
    if (!tk_resize(&column->rows, (size_t)capacity, sizeof *column->rows)) return false;
    if (!tk_resize(&column->values, (size_t)capacity, tk_value_size(column))) return false;
    if (column->kind == TK_MIXED && !tk_resize(&column->kinds, (size_t)capacity, 1)) return false;
    column->capacity = capacity;
    return true;
}

/* Convert the column to one that stores the kind of every value. */
static inline bool tk_mix_kinds(tk_column *column)
{
    size_t capacity = (size_t)column->capacity;
    unsigned char *kinds = tk_resized(NULL, capacity, 1);
    if (!kinds) return false;
    memset(kinds, column->kind, capacity);
    if (column->kind == TK_TEXT) {
        int64_t *values = tk_resized(NULL, capacity, sizeof *values);
        if (!values) {
            tk_release(kinds);
            return false;
        }
        for (int32_t i = 0; i < column->count; i++) values[i] = ((int32_t *)column->values)[i];
        tk_release(column->values);
        column->values = values;
    }
    column->kinds = kinds;
    column->kind = TK_MIXED;
    return true;
}

/* Convert the column to admit a value of this kind, which differs from its own. */
static inline bool tk_admit_kind(tk_column *column, unsigned char kind)
{
    if (column->kind == TK_MIXED) return true;
    if (column->count || kind == TK_MIXED) return tk_mix_kinds(column);
    if (column->kind == TK_TEXT) column->capacity /= 2; /* codes are half as large as other values */
    column->kind = kind;
    return true;
}

/* Get the texts of a column, created on first use; NULL without memory. */
static inline tk_texts *tk_texts_of(tk_column *column)
{
    if (!column->texts) column->texts = calloc(1, sizeof *column->texts);
    return column->texts;
}

/* Find the code of the entry's text; -1 without memory. */
static inline int32_t tk_entry_code(tk_texts *texts, uint64_t seed, const tk_entry *entry)
{
    int32_t code = entry->size ? tk_code_of(texts, seed, entry->value.text, entry->size) : (int32_t)entry->value.number;
    if (code >= 0) tk_follow(texts, code);
    return code;
}

/* Put the value into the row being completed; replaces an earlier value. */
static inline bool tk_put(tk_scan *scan, tk_column *column, const tk_entry *entry)
{
    int64_t value = entry->value.number;
    if (entry->kind == TK_TEXT) {
        if (!tk_texts_of(column)) return false;
        value = tk_entry_code(column->texts, scan->seed, entry);
        if (value < 0) return false;
    }
    if (TK_UNLIKELY(column->count && column->rows[column->count - 1] == scan->rows)) {
        column->count--;
        column->overwritten = true;
    }
    if (TK_UNLIKELY(column->kind != entry->kind) && !tk_admit_kind(column, entry->kind)) return false;
    if (TK_UNLIKELY(column->count == column->capacity) && !tk_grow_column(column, column->count)) return false;
    int32_t i = column->count++;
    column->rows[i] = scan->rows;
    if (column->kind == TK_TEXT)
        ((int32_t *)column->values)[i] = (int32_t)value;
    else
        ((int64_t *)column->values)[i] = value;
    if (column->kind == TK_MIXED) column->kinds[i] = entry->kind;
    return true;
}

static inline bool tk_add_entry(tk_entries *entries, const tk_entry *entry)
{
    if (TK_UNLIKELY(entries->count == entries->capacity)) {
        size_t capacity = entries->capacity + entries->capacity / 2 + 32;
        if (!tk_resize(&entries->items, capacity, sizeof *entries->items)) return false;
        entries->capacity = capacity;
    }
    entries->items[entries->count++] = *entry;
    return true;
}

#endif
