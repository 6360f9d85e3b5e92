#include "_scan_core.h"

#include <stdlib.h>

#include "_scan_text.h"

/* ---- memory */

/* realloc for `count` items; no bytes are ever asked for, so NULL means that memory ran out. */
static void *resized(void *block, size_t count, size_t item)
{
    if (count > SIZE_MAX / item) return NULL;
    return realloc(block, count ? count * item : 1);
}

static bool resize(void *slot, size_t count, size_t item)
{
    void *block;
    memcpy(&block, slot, sizeof block);
    block = resized(block, count, item);
    if (!block) return false;
    memcpy(slot, &block, sizeof block);
    return true;
}

/* Half as much again, at least `needed`, never more than an int32 counts. */
static int32_t next_room(int32_t room, int32_t least)
{
    int64_t next = (int64_t)room + room / 2 + least;
    return next < INT32_MAX ? (int32_t)next : INT32_MAX;
}

/* ---- distinct texts */

static inline uint64_t folded_product(uint64_t a, uint64_t b)
{
#ifdef __SIZEOF_INT128__
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t low = a0 * b0, middle = a0 * b1 + (low >> 32), cross = a1 * b0 + (uint32_t)middle;
    return (cross << 32 | (uint32_t)low) ^ (a1 * b1 + (middle >> 32) + (cross >> 32));
#endif
}

/* A hash of the text that nobody can foresee who does not know the seed. */
static inline uint32_t hash(const unsigned char *p, size_t size, uint64_t seed)
{
    uint64_t state = seed ^ (uint64_t)size * UINT64_C(0x9e3779b97f4a7c15), a = 0, b = 0;
    uint64_t other = seed ^ UINT64_C(0xd6e8feb86659fd93);
    for (; size > 16; p += 16, size -= 16) state = folded_product(tk_load8(p) ^ other, tk_load8(p + 8) ^ state);
    if (size >= 8) {
        a = tk_load8(p);
        b = tk_load8(p + size - 8);
    } else if (size >= 4) {
        a = tk_load4(p);
        b = tk_load4(p + size - 4);
    } else if (size > 0) {
        a = (uint64_t)p[0] | (uint64_t)p[size / 2] << 8 | (uint64_t)p[size - 1] << 16;
    }
    state = folded_product(a ^ other, b ^ state);
    return (uint32_t)(state ^ state >> 32);
}

static inline bool same(const unsigned char *a, const unsigned char *b, size_t size)
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

static inline size_t text_size(const tk_texts *texts, int32_t code)
{
    return (size_t)(texts->offsets[code + 1] - texts->offsets[code]);
}

static inline bool is_text(const tk_texts *texts, int32_t code, const unsigned char *text, size_t size)
{
    return text_size(texts, code) == size && same(texts->bytes + texts->offsets[code], text, size);
}

void tk_free_texts(tk_texts *texts)
{
    free(texts->bytes);
    free(texts->offsets);
    free(texts->slots);
    free(texts->next);
    *texts = (tk_texts){0};
}

/* The slot of the text with this hash, or the free one where it belongs. */
static inline tk_slot *find_slot(const tk_texts *texts, uint32_t hashed, const unsigned char *text, size_t size)
{
    size_t mask = texts->slot_count - 1;
    for (size_t i = hashed & mask;; i = (i + 1) & mask) {
        tk_slot *slot = &texts->slots[i];
        if (slot->code < 0) return slot;
        if (slot->hash == hashed && is_text(texts, slot->code, text, size)) return slot;
    }
}

static bool grow_slots(tk_texts *texts)
{
    size_t count = texts->slot_count ? texts->slot_count * 2 : 4;
    tk_slot *slots = resized(NULL, count, sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i < count; i++) slots[i] = (tk_slot){0, -1};
    for (size_t i = 0; i < texts->slot_count; i++) {
        if (texts->slots[i].code < 0) continue;
        size_t j = texts->slots[i].hash & (count - 1);
        while (slots[j].code >= 0) j = (j + 1) & (count - 1);
        slots[j] = texts->slots[i];
    }
    free(texts->slots);
    texts->slots = slots;
    texts->slot_count = count;
    return true;
}

static bool append_text(tk_texts *texts, const unsigned char *text, size_t size)
{
    if (texts->count == INT32_MAX - 1) return false;
    if (texts->count == texts->room) {
        int32_t room = next_room(texts->room, 1);
        if (!resize(&texts->offsets, (size_t)room + 1, sizeof *texts->offsets)) return false;
        if (!resize(&texts->next, (size_t)room, sizeof *texts->next)) return false;
        texts->room = room;
    }
    size_t start = texts->count ? (size_t)texts->offsets[texts->count] : 0;
    if (size > texts->capacity - start) {
        size_t capacity = start + start / 2 + size;
        if (!resize(&texts->bytes, capacity, 1)) return false;
        texts->capacity = capacity;
    }
    memcpy(texts->bytes + start, text, size);
    texts->next[texts->count] = -1;
    texts->offsets[texts->count] = (int64_t)start;
    texts->offsets[++texts->count] = (int64_t)(start + size);
    return true;
}

/* The code of the text, which is added if it is new; -1 without memory. */
static inline int32_t code_of(tk_texts *texts, uint64_t seed, const unsigned char *text, size_t size)
{
    uint32_t hashed = hash(text, size, seed);
    tk_slot *slot = texts->slot_count ? find_slot(texts, hashed, text, size) : NULL;
    if (slot && slot->code >= 0) return slot->code;
    if ((size_t)texts->count + 1 > texts->slot_count / 4 * 3) {
        if (!grow_slots(texts)) return -1;
        slot = find_slot(texts, hashed, text, size);
    }
    if (!append_text(texts, text, size)) return -1;
    *slot = (tk_slot){hashed, texts->count - 1};
    return slot->code;
}

/* Notes that this text came after the last one. */
static inline void follow(tk_texts *texts, int32_t code)
{
    texts->next[texts->last] = code;
    texts->last = code;
}

/* The code of the text expected next, if it is the one at p; -1 if it is not. */
static inline int32_t guess_code(const tk_texts *texts, const unsigned char *p, const unsigned char *e)
{
    if (!texts->count) return -1;
    int32_t guess = texts->next[texts->last];
    if (guess < 0) return -1;
    size_t size = text_size(texts, guess);
    if ((size_t)(e - p) <= size || !same(texts->bytes + texts->offsets[guess], p, size)) return -1;
    /* A bare text could go on; a string or container that begins like this is over. */
    return (tk_classes[*p] & TK_BARE) && (tk_classes[p[size]] & TK_BARE) ? -1 : guess;
}

/* ---- sparse columns */

void tk_free_column(tk_column *column)
{
    free(column->rows);
    free(column->values);
    free(column->kinds);
    if (column->texts) tk_free_texts(column->texts);
    free(column->texts);
    *column = (tk_column){0};
}

static size_t value_size(const tk_column *column) { return column->kind == TK_TEXT ? sizeof(int32_t) : sizeof(int64_t); }

static bool grow_column(tk_column *column)
{
    int32_t capacity = next_room(column->capacity, 3);
    if (!resize(&column->rows, (size_t)capacity, sizeof *column->rows)) return false;
    if (!resize(&column->values, (size_t)capacity, value_size(column))) return false;
    if (column->kind == TK_MIXED && !resize(&column->kinds, (size_t)capacity, 1)) return false;
    column->capacity = capacity;
    return true;
}

/* Makes the column one that keeps the kind of every value. */
static bool mix_kinds(tk_column *column)
{
    size_t capacity = (size_t)column->capacity;
    unsigned char *kinds = resized(NULL, capacity, 1);
    if (!kinds) return false;
    memset(kinds, column->kind, capacity);
    if (column->kind == TK_TEXT) {
        int64_t *values = resized(NULL, capacity, sizeof *values);
        if (!values) {
            free(kinds);
            return false;
        }
        for (int32_t i = 0; i < column->count; i++) values[i] = ((int32_t *)column->values)[i];
        free(column->values);
        column->values = values;
    }
    column->kinds = kinds;
    column->kind = TK_MIXED;
    return true;
}

static bool admit_kind(tk_column *column, unsigned char kind)
{
    if (column->kind == TK_MIXED) return true;
    if (column->kind != TK_EMPTY) return mix_kinds(column);
    column->kind = kind;
    return true;
}

/* The code of the entry's text; -1 without memory. */
static inline int32_t entry_code(tk_texts *texts, uint64_t seed, const tk_entry *entry)
{
    int32_t code = entry->size ? code_of(texts, seed, entry->value.text, entry->size) : (int32_t)entry->value.number;
    if (code >= 0) follow(texts, code);
    return code;
}

/* Puts the value into the row being completed, in place of one that is there already. */
static inline bool put(tk_scan *scan, tk_column *column, const tk_entry *entry)
{
    int64_t value = entry->value.number;
    if (entry->kind == TK_TEXT) {
        if (!column->texts) column->texts = calloc(1, sizeof *column->texts);
        if (!column->texts) return false;
        value = entry_code(column->texts, scan->seed, entry);
        if (value < 0) return false;
    }
    if (TK_UNLIKELY(column->count && column->rows[column->count - 1] == scan->rows)) {
        column->count--;
        column->overwritten = true;
    }
    if (TK_UNLIKELY(column->kind != entry->kind) && !admit_kind(column, entry->kind)) return false;
    if (TK_UNLIKELY(column->count == column->capacity) && !grow_column(column)) return false;
    int32_t i = column->count++;
    column->rows[i] = scan->rows;
    if (column->kind == TK_TEXT)
        ((int32_t *)column->values)[i] = (int32_t)value;
    else
        ((int64_t *)column->values)[i] = value;
    if (column->kind == TK_MIXED) column->kinds[i] = entry->kind;
    return true;
}

static bool add_entry(tk_entries *entries, const tk_entry *entry)
{
    if (TK_UNLIKELY(entries->count == entries->capacity)) {
        size_t capacity = entries->capacity + entries->capacity / 2 + 32;
        if (!resize(&entries->items, capacity, sizeof *entries->items)) return false;
        entries->capacity = capacity;
    }
    entries->items[entries->count++] = *entry;
    return true;
}

/* ---- keys */

static int32_t find_key(tk_scan *scan, tk_space *space, const unsigned char *key, size_t size);

/* The key that this one is once its broken UTF-8 is replaced; itself if it is not broken; -1 without memory. */
static int32_t sound_key(tk_scan *scan, tk_space *space, int32_t key)
{
    const unsigned char *text = space->keys.bytes + space->keys.offsets[key];
    size_t size = text_size(&space->keys, key), i = 0;
    while (i < size && text[i] < 0x80) i++;
    if (i == size) return key;
    unsigned char *sound = resized(NULL, size, 3);
    if (!sound) return -1;
    size_t sound_size = tk_replace_invalid(text, size, sound);
    bool is_sound = sound_size == size && same(sound, text, size);
    int32_t found = is_sound ? key : find_key(scan, space, sound, sound_size);
    free(sound);
    return found;
}

/* The number of the key, which is added if it is new; -1 without memory. */
static int32_t find_key(tk_scan *scan, tk_space *space, const unsigned char *key, size_t size)
{
    int32_t known = space->keys.count;
    if (known == space->room) {
        int32_t room = next_room(space->room, 16);
        if (!resize(&space->columns, (size_t)room, sizeof *space->columns)) return -1;
        space->room = room;
    }
    int32_t found = code_of(&space->keys, scan->seed, key, size);
    if (found < known) return found;
    space->columns[found] = (tk_column){.stored = space->stores_unknown, .target = found};
    int32_t target = sound_key(scan, space, found);
    if (target < 0) return -1;
    space->columns[found].target = target;
    space->columns[found].stored = space->columns[target].stored;
    return found;
}

static void free_space(tk_space *space)
{
    for (int32_t i = 0; i < space->keys.count && i < space->room; i++) tk_free_column(&space->columns[i]);
    free(space->columns);
    tk_free_texts(&space->keys);
}

/* ---- one event; a function that returns NULL has said in `scan->stop` why */

/* The keys of an event that are no fields, by their number; `args` is one if its value is no object. */
enum { KEY_TS = TK_LABELS, KEY_DUR, KEY_ARGS };
static const char *const event_keys[] = {"\"ph\"", "\"cat\"", "\"name\"", "\"pid\"", "\"tid\"", "\"ts\"", "\"dur\"", "\"args\""};
enum { NO_KEY = -1, CLOSED = -2 };

/* The byte at p is outside the grammar, or missing. */
static const unsigned char *stop_at(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    scan->stop = p < e ? TK_BAD : TK_MORE;
    return NULL;
}

static const unsigned char *no_memory(tk_scan *scan)
{
    scan->stop = TK_NO_MEMORY;
    return NULL;
}

static inline const unsigned char *value_end(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    unsigned char c = tk_at(p, e);
    const unsigned char *end;
    if (c == '"') {
        end = tk_string_end(p + 1, e);
    } else if (c == '[' || c == '{') {
        end = tk_container_end(p, e);
    } else {
        end = tk_bare_end(p, e);
        return end > p && end < e ? end : stop_at(scan, end, e);
    }
    return end ? end : stop_at(scan, e, e);
}

/* Past the closing quote of a key. */
static const unsigned char *key_end(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    if (tk_at(p, e) != '"') return stop_at(scan, p, e);
    const unsigned char *end = tk_string_end(p + 1, e);
    const unsigned char *backslash = memchr(p, '\\', (size_t)((end ? end : e) - p));
    if (backslash) return stop_at(scan, backslash, e);
    return end ? end : stop_at(scan, e, e);
}

/* At the value, from past the key. */
static inline const unsigned char *after_colon(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    p = tk_skip_space(p, e);
    if (TK_UNLIKELY(tk_at(p, e) != ':')) return stop_at(scan, p, e);
    return tk_skip_space(p + 1, e);
}

/* At the next key or the closing bracket, from past a value. */
static inline const unsigned char *after_value(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    p = tk_skip_space(p, e);
    unsigned char c = tk_at(p, e);
    if (c == ',') return tk_skip_space(p + 1, e);
    return TK_LIKELY(c == '}') ? p : stop_at(scan, p, e);
}

/* As next_member, without a guess, but noting what comes for the next time. */
static TK_RARE const unsigned char *find_member(tk_scan *scan, tk_space *space, const unsigned char *start,
                                                const unsigned char *e, int32_t *key)
{
    int32_t found = CLOSED;
    const unsigned char *p = *key == NO_KEY ? tk_skip_space(start, e) : after_value(scan, start, e);
    if (!p) return NULL;
    if (tk_at(p, e) == '}') {
        p++;
    } else {
        const unsigned char *end = key_end(scan, p, e);
        if (!end) return NULL;
        found = find_key(scan, space, p, (size_t)(end - p));
        if (found < 0) return no_memory(scan);
        p = after_colon(scan, end, e);
        if (!p) return NULL;
    }
    tk_steps *steps = *key == NO_KEY ? &space->first : &space->columns[*key].next;
    steps->likely ^= 1;
    tk_step *step = &steps->ways[steps->likely];
    size_t size = (size_t)(p - start);
    step->key = found;
    step->size = size <= sizeof step->text ? (unsigned char)size : 0;
    memcpy(step->text, start, step->size);
    *key = found;
    return p;
}

static inline bool is_step(const tk_step *step, const unsigned char *p, const unsigned char *e)
{
    size_t size = step->size;
    return size && (size_t)(e - p) > size && same(step->text, p, size) && (p[size] > ' ' || step->key == CLOSED);
}

/* At the next value of an object, from past the last one (or past the opening bracket, if `*key` is NO_KEY).
 * `*key` becomes its key; or CLOSED, and the position is past the closing bracket. */
static inline const unsigned char *next_member(tk_scan *scan, tk_space *space, const unsigned char *p,
                                               const unsigned char *e, int32_t *key)
{
    tk_steps *steps = *key == NO_KEY ? &space->first : &space->columns[*key].next;
    const tk_step *step = &steps->ways[steps->likely];
    if (TK_UNLIKELY(!is_step(step, p, e))) {
        step = &steps->ways[steps->likely ^ 1];
        if (!is_step(step, p, e)) return find_member(scan, space, p, e, key);
        steps->likely ^= 1;
    }
    *key = step->key;
    return p + step->size;
}

/* Past a value of any form, which `*entry` holds then as a text; `texts` are those of its column. */
static inline const unsigned char *read_text(tk_scan *scan, const unsigned char *p, const unsigned char *e,
                                             const tk_texts *texts, tk_entry *entry)
{
    int32_t guess = texts ? guess_code(texts, p, e) : -1;
    entry->kind = TK_TEXT;
    if (guess >= 0) {
        entry->value.number = guess;
        entry->size = 0;
        return p + text_size(texts, guess);
    }
    const unsigned char *end = value_end(scan, p, e);
    if (!end) return NULL;
    entry->value.text = p;
    entry->size = (uint32_t)(end - p);
    return end;
}

/* Past a value of any form, which `*entry` holds then. */
static inline const unsigned char *read_value(tk_scan *scan, const unsigned char *p, const unsigned char *e,
                                              const tk_texts *texts, tk_entry *entry)
{
    bool is_float;
    const unsigned char *end = tk_read_number(p, e, &entry->value.number, &is_float);
    if (end) {
        entry->kind = is_float ? TK_FLOAT : TK_INT;
        return end;
    }
    return read_text(scan, p, e, texts, entry);
}

static inline const unsigned char *read_field(tk_scan *scan, const unsigned char *p, const unsigned char *e,
                                              const tk_space *space, int32_t key, tk_entries *entries)
{
    const tk_column *column = &space->columns[key];
    if (!column->stored) return value_end(scan, p, e);
    tk_entry entry = {.column = column->target};
    p = read_value(scan, p, e, space->columns[column->target].texts, &entry);
    if (p && !add_entry(entries, &entry)) return no_memory(scan);
    return p;
}

/* Past the closing bracket of `args`; p is past the opening one. */
static const unsigned char *read_args(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    int32_t key = NO_KEY;
    for (;;) {
        p = next_member(scan, &scan->args, p, e, &key);
        if (!p || key == CLOSED) return p;
        p = read_field(scan, p, e, &scan->args, key, &scan->event.args);
        if (!p) return NULL;
    }
}

/* The same without keeping anything. */
static const unsigned char *pass_over_args(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    p = tk_skip_space(p, e);
    while (p && tk_at(p, e) != '}') {
        p = key_end(scan, p, e);
        if (p) p = after_colon(scan, p, e);
        if (p) p = value_end(scan, p, e);
        if (p) p = after_value(scan, p, e);
    }
    return p ? p + 1 : NULL;
}

static const unsigned char *read_args_member(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    tk_event *event = &scan->event;
    event->args.count = 0;
    event->plain_args.kind = TK_EMPTY;
    if (tk_at(p, e) != '{') return read_value(scan, p, e, NULL, &event->plain_args);
    if (event->skipped < 0) return read_args(scan, p + 1, e);
    event->passed_over = true;
    return pass_over_args(scan, p + 1, e);
}

static const unsigned char *read_time(tk_scan *scan, const unsigned char *p, const unsigned char *e, int which)
{
    tk_event *event = &scan->event;
    const unsigned char *end = tk_read_time(p, e, &event->times[which]);
    event->has_time[which] = end != NULL;
    event->odd_times[which].kind = TK_EMPTY;
    return end ? end : read_text(scan, p, e, NULL, &event->odd_times[which]);
}

static int32_t skipped_as(const tk_scan *scan, tk_span cat)
{
    for (int32_t i = 0; i < scan->skip_count; i++)
        if (scan->skip_cats[i].size == cat.size && same(scan->skip_cats[i].text, cat.text, cat.size)) return i;
    return -1;
}

static inline const unsigned char *read_label(tk_scan *scan, const unsigned char *p, const unsigned char *e, int which)
{
    const unsigned char *end = read_text(scan, p, e, &scan->labels[which], &scan->event.labels[which]);
    if (end && which == TK_CAT && scan->skip_count) scan->event.skipped = skipped_as(scan, (tk_span){p, (size_t)(end - p)});
    return end;
}

static inline const unsigned char *read_member(tk_scan *scan, const unsigned char *p, const unsigned char *e, int32_t key)
{
    if (key < TK_LABELS) return read_label(scan, p, e, key);
    if (key == KEY_ARGS) return read_args_member(scan, p, e);
    if (key < KEY_ARGS) return read_time(scan, p, e, key - KEY_TS);
    return read_field(scan, p, e, &scan->fields, key, &scan->event.fields);
}

static void begin_event(tk_event *event)
{
    for (int i = 0; i < TK_LABELS; i++) event->labels[i].kind = TK_EMPTY;
    for (int i = 0; i < TK_TIMES; i++) {
        event->has_time[i] = 0;
        event->odd_times[i].kind = TK_EMPTY;
    }
    event->fields.count = event->args.count = 0;
    event->plain_args.kind = TK_EMPTY;
    event->skipped = -1;
}

/* Past the closing bracket of the event; p is past the opening one. Nothing has reached the columns yet. */
static const unsigned char *read_members(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    int32_t key = NO_KEY;
    begin_event(&scan->event);
    for (;;) {
        p = next_member(scan, &scan->fields, p, e, &key);
        if (!p || key == CLOSED) return p;
        p = read_member(scan, p, e, key);
        if (!p) return NULL;
    }
}

static bool grow_rows(tk_scan *scan)
{
    int32_t room = next_room(scan->room, 1024);
    for (int i = 0; i < TK_LABELS; i++)
        if (!resize(&scan->codes[i], (size_t)room, sizeof *scan->codes[i])) return false;
    for (int i = 0; i < TK_TIMES; i++) {
        if (!resize(&scan->times[i], (size_t)room, sizeof *scan->times[i])) return false;
        if (!resize(&scan->has_time[i], (size_t)room, 1)) return false;
    }
    scan->room = room;
    return true;
}

static bool put_labels(tk_scan *scan)
{
    for (int i = 0; i < TK_LABELS; i++) {
        const tk_entry *label = &scan->event.labels[i];
        int32_t code = label->kind ? entry_code(&scan->labels[i], scan->seed, label) : -1;
        if (label->kind && code < 0) return false;
        scan->codes[i][scan->rows] = code;
    }
    return true;
}

static bool put_times(tk_scan *scan)
{
    const tk_event *event = &scan->event;
    for (int i = 0; i < TK_TIMES; i++) {
        scan->times[i][scan->rows] = event->has_time[i] ? event->times[i] : 0;
        scan->has_time[i][scan->rows] = event->has_time[i];
        if (event->odd_times[i].kind && !put(scan, &scan->odd_times[i], &event->odd_times[i])) return false;
    }
    return true;
}

static bool put_entries(tk_scan *scan, tk_space *space, const tk_entries *entries)
{
    for (size_t i = 0; i < entries->count; i++)
        if (!put(scan, &space->columns[entries->items[i].column], &entries->items[i])) return false;
    return true;
}

/* Makes a row of the event that was read. */
static bool complete_row(tk_scan *scan)
{
    tk_event *event = &scan->event;
    if (scan->rows == scan->room && !grow_rows(scan)) return false;
    if (!put_labels(scan) || !put_times(scan)) return false;
    if (!put_entries(scan, &scan->fields, &event->fields)) return false;
    if (!put_entries(scan, &scan->args, &event->args)) return false;
    if (event->plain_args.kind && !put(scan, &scan->fields.columns[KEY_ARGS], &event->plain_args)) return false;
    scan->rows++;
    return true;
}

/* Past the closing bracket of the event at p, which has become a row then (or has been counted as skipped). */
static const unsigned char *read_event(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    scan->event.passed_over = false;
    const unsigned char *end = read_members(scan, p + 1, e);
    if (!end) return NULL;
    if (TK_UNLIKELY(scan->event.skipped >= 0)) {
        scan->skipped[scan->event.skipped]++;
        return end;
    }
    if (TK_UNLIKELY(scan->event.passed_over)) {
        /* A second category took back the first one, for which the args were passed over. */
        int32_t count = scan->skip_count;
        scan->skip_count = 0;
        end = read_members(scan, p + 1, e);
        scan->skip_count = count;
        if (!end) return NULL;
    }
    if (scan->rows == INT32_MAX) {
        scan->stop = TK_TOO_MANY_ROWS;
        return NULL;
    }
    return complete_row(scan) ? end : no_memory(scan);
}

/* ---- the scan */

bool tk_init(tk_scan *scan, uint64_t seed, size_t max_event_bytes, bool stores_all_args)
{
    *scan = (tk_scan){.seed = seed, .max_event_bytes = max_event_bytes};
    scan->fields.stores_unknown = true;
    scan->args.stores_unknown = stores_all_args;
    for (size_t i = 0; i < sizeof event_keys / sizeof *event_keys; i++)
        if (find_key(scan, &scan->fields, (const unsigned char *)event_keys[i], strlen(event_keys[i])) < 0) return false;
    return true;
}

void tk_free(tk_scan *scan)
{
    for (int i = 0; i < TK_LABELS; i++) {
        free(scan->codes[i]);
        tk_free_texts(&scan->labels[i]);
    }
    for (int i = 0; i < TK_TIMES; i++) {
        free(scan->times[i]);
        free(scan->has_time[i]);
        tk_free_column(&scan->odd_times[i]);
    }
    free_space(&scan->fields);
    free_space(&scan->args);
    for (int32_t i = 0; i < scan->skip_count; i++) free((void *)scan->skip_cats[i].text);
    free(scan->skip_cats);
    free(scan->skipped);
    free(scan->event.fields.items);
    free(scan->event.args.items);
    *scan = (tk_scan){0};
}

bool tk_declare(tk_scan *scan, const unsigned char *key, size_t size, bool stored)
{
    int32_t found = find_key(scan, &scan->args, key, size);
    if (found < 0) return false;
    scan->args.columns[found].stored = stored;
    return true;
}

bool tk_skip_cat(tk_scan *scan, const unsigned char *cat, size_t size)
{
    size_t count = (size_t)scan->skip_count + 1;
    unsigned char *text = resized(NULL, size, 1);
    if (!text) return false;
    if (!resize(&scan->skip_cats, count, sizeof *scan->skip_cats) || !resize(&scan->skipped, count, sizeof *scan->skipped)) {
        free(text);
        return false;
    }
    memcpy(text, cat, size);
    scan->skip_cats[count - 1] = (tk_span){text, size};
    scan->skipped[count - 1] = 0;
    scan->skip_count++;
    return true;
}

enum tk_state tk_feed(tk_scan *scan, const unsigned char *data, size_t size, size_t *consumed)
{
    const unsigned char *p = data, *end = size ? data + size : data;
    for (;;) {
        while (p < end && (*p == ',' || (tk_classes[*p] & TK_SPACE))) p++;
        *consumed = (size_t)(p - data);
        if (p == end) return TK_MORE;
        if (*p == ']') {
            ++*consumed;
            return TK_END;
        }
        if (*p != '{') return TK_BAD;
        /* An event that does not end within the limit is bad however the data happens to be cut. */
        size_t left = (size_t)(end - p);
        bool reaches_limit = left >= scan->max_event_bytes;
        p = read_event(scan, p, reaches_limit ? p + scan->max_event_bytes : end);
        if (!p) return scan->stop == TK_MORE && reaches_limit ? TK_BAD : scan->stop;
    }
}

/* ---- passes over whole columns */

static bool is_code(int32_t code, size_t count) { return code >= 0 && (size_t)code < count; }

int64_t tk_renumber(int32_t *codes, size_t count, const int32_t *groups, size_t group_count, int32_t *order)
{
    int32_t *ranks = resized(NULL, group_count, sizeof *ranks);
    if (!ranks) return -1;
    for (size_t i = 0; i < group_count; i++) ranks[i] = -1;
    int64_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (codes[i] == -1) continue;
        int32_t group = is_code(codes[i], group_count) ? groups[codes[i]] : -2;
        if (group != -1 && !is_code(group, group_count)) {
            used = -2;
            break;
        }
        if (group >= 0 && ranks[group] < 0) {
            order[used] = group;
            ranks[group] = (int32_t)used++;
        }
        codes[i] = group < 0 ? -1 : ranks[group];
    }
    free(ranks);
    return used;
}

bool tk_distinct(const unsigned char *kinds, const int64_t *values, size_t count, uint64_t seed, int32_t *codes,
                 tk_texts *pairs)
{
    unsigned char pair[sizeof *values + 1];
    for (size_t i = 0; i < count; i++) {
        memcpy(pair, &values[i], sizeof *values);
        pair[sizeof *values] = kinds[i];
        codes[i] = code_of(pairs, seed, pair, sizeof pair);
        if (codes[i] < 0) return false;
    }
    return true;
}

static bool is_row(int64_t row, const tk_intervals *intervals) { return row >= 0 && row < intervals->row_count; }

enum tk_nested tk_nest(const tk_intervals *intervals)
{
    int64_t *running = NULL, depth = 0, room = 0, thread = 0;
    enum tk_nested outcome = TK_NESTED;
    for (int64_t i = 0; i < intervals->order_count; i++) {
        int64_t row = intervals->order[i];
        if (!is_row(row, intervals)) {
            outcome = TK_NEST_BAD_ROW;
            break;
        }
        if (intervals->thread[row] != thread) depth = 0;
        thread = intervals->thread[row];
        while (depth && intervals->end[running[depth - 1]] <= intervals->start[row]) depth--;
        intervals->parent[row] = depth ? running[depth - 1] : -1;
        if (depth == room) {
            room = room + room / 2 + 256;
            if (!resize(&running, (size_t)room, sizeof *running)) {
                outcome = TK_NEST_NO_MEMORY;
                break;
            }
        }
        running[depth++] = row;
    }
    free(running);
    return outcome;
}
