/* Grammar of the strict layer: members, events, and the array around them. */
#include "_scan_core.h"

#include "_scan_columns.h"
#include "_scan_text.h"

/* ---- one event; a function that returns NULL has set the reason in `scan->stop` */

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

/* Return the position after the closing quote of a key. */
static const unsigned char *key_end(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    if (tk_at(p, e) != '"') return stop_at(scan, p, e);
    const unsigned char *end = tk_string_end(p + 1, e);
    const unsigned char *backslash = memchr(p, '\\', (size_t)((end ? end : e) - p));
    if (backslash) return stop_at(scan, backslash, e);
    return end ? end : stop_at(scan, e, e);
}

/* Return the position of the value, given the one after the key. */
static inline const unsigned char *after_colon(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    p = tk_skip_space(p, e);
    if (TK_UNLIKELY(tk_at(p, e) != ':')) return stop_at(scan, p, e);
    return tk_skip_space(p + 1, e);
}

/* Return the position of the next key or closing bracket, given the one after a value. */
static inline const unsigned char *after_value(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    p = tk_skip_space(p, e);
    unsigned char c = tk_at(p, e);
    if (c == ',') return tk_skip_space(p + 1, e);
    return TK_LIKELY(c == '}') ? p : stop_at(scan, p, e);
}

/* Same as next_member, without a guess; records the member as the next guess. */
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
        found = tk_find_key(scan, space, p, (size_t)(end - p));
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
    return size && (size_t)(e - p) > size && tk_same(step->text, p, size) && (p[size] > ' ' || step->key == CLOSED);
}

/* Return the position of an object's next value, given the one after the last value (or, if `*key` is NO_KEY, after
 * the opening bracket). Sets `*key` to its key, or to CLOSED with the position after the closing bracket. */
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

/* Read a value of any form into `*entry` as a text, and return its end; `texts` are those of its column. */
static inline const unsigned char *read_text(tk_scan *scan, const unsigned char *p, const unsigned char *e,
                                             const tk_texts *texts, tk_entry *entry)
{
    int32_t guess = texts ? tk_guess_code(texts, p, e) : -1;
    entry->kind = TK_TEXT;
    if (guess >= 0) {
        entry->value.number = guess;
        entry->size = 0;
        return p + tk_text_size(texts, guess);
    }
    const unsigned char *end = value_end(scan, p, e);
    if (!end) return NULL;
    entry->value.text = p;
    entry->size = (uint32_t)(end - p);
    return end;
}

/* Read a value of any form into `*entry`, and return its end. */
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
    if (p && !tk_add_entry(entries, &entry)) return no_memory(scan);
    return p;
}

/* Read `args` from after the opening bracket, and return the position after the closing one. */
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

/* Same as read_args, without storing values. */
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

/* Check whether decoding may change the byte in a string: part of an escape, or of broken UTF-8. */
static bool is_coded(unsigned char c) { return c == '\\' || c >= 0x80; }

/* Check whether a string with this content begins with the prefix, or may do so once decoded. */
static bool may_begin_with(tk_span inside, tk_span prefix)
{
    for (size_t i = 0; i < prefix.size && !is_coded(prefix.text[i]); i++) {
        if (i == inside.size) return false;
        if (inside.text[i] != prefix.text[i]) return is_coded(inside.text[i]);
    }
    return true;
}

/* Check whether the event is kept for its name although its category is skipped. */
static bool has_kept_name(const tk_scan *scan)
{
    const tk_entry *name = &scan->event.labels[TK_NAME];
    if (!scan->keep_count || name->kind == TK_EMPTY) return false;
    const tk_texts *texts = &scan->labels[TK_NAME];
    tk_span text = {name->value.text, name->size};
    if (!name->size) {
        int32_t code = (int32_t)name->value.number;
        text = (tk_span){texts->bytes + texts->offsets[code], tk_text_size(texts, code)};
    }
    if (*text.text != '"') return false;
    tk_span inside = {text.text + 1, text.size - 2};
    for (int32_t i = 0; i < scan->keep_count; i++)
        if (may_begin_with(inside, scan->keep_names[i])) return true;
    return false;
}

static const unsigned char *read_args_member(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    tk_event *event = &scan->event;
    event->args.count = 0;
    event->plain_args.kind = TK_EMPTY;
    if (tk_at(p, e) != '{') return read_value(scan, p, e, NULL, &event->plain_args);
    if (event->skipped < 0 || has_kept_name(scan)) return read_args(scan, p + 1, e);
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
        if (scan->skip_cats[i].size == cat.size && tk_same(scan->skip_cats[i].text, cat.text, cat.size)) return i;
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
    if (key == TK_KEY_ARGS) return read_args_member(scan, p, e);
    if (key < TK_KEY_ARGS) return read_time(scan, p, e, key - TK_KEY_TS);
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

/* Read an event from after its opening bracket, and return the position after the closing one; columns unchanged. */
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

static bool put_labels(tk_scan *scan)
{
    for (int i = 0; i < TK_LABELS; i++) {
        const tk_entry *label = &scan->event.labels[i];
        int32_t code = label->kind ? tk_entry_code(&scan->labels[i], scan->seed, label) : -1;
        if (label->kind && code < 0) return false;
        if (TK_UNLIKELY(code > tk_largest_code[scan->code_size[i]]) && !tk_widen_codes(scan, i, code)) return false;
        tk_set_code(scan->codes[i], scan->code_size[i], scan->rows, code);
    }
    return true;
}

static bool put_times(tk_scan *scan)
{
    const tk_event *event = &scan->event;
    for (int i = 0; i < TK_TIMES; i++) {
        scan->times[i][scan->rows] = event->has_time[i] ? event->times[i] : 0;
        scan->has_time[i][scan->rows] = event->has_time[i];
        if (event->odd_times[i].kind && !tk_put(scan, &scan->odd_times[i], &event->odd_times[i])) return false;
    }
    return true;
}

static bool put_entries(tk_scan *scan, tk_space *space, const tk_entries *entries)
{
    for (size_t i = 0; i < entries->count; i++)
        if (!tk_put(scan, &space->columns[entries->items[i].column], &entries->items[i])) return false;
    return true;
}

/* Append the event as a row. */
static bool complete_row(tk_scan *scan)
{
    tk_event *event = &scan->event;
    if (scan->rows == scan->room && !tk_grow_rows(scan, scan->rows)) return false;
    if (!put_labels(scan) || !put_times(scan)) return false;
    if (!put_entries(scan, &scan->fields, &event->fields)) return false;
    if (!put_entries(scan, &scan->args, &event->args)) return false;
    tk_column *plain_args = &scan->fields.columns[TK_KEY_ARGS];
    if (event->plain_args.kind && plain_args->stored && !tk_put(scan, plain_args, &event->plain_args)) return false;
    scan->rows++;
    return true;
}

/* Read the event at p into a row (or count it as skipped), and return the position after its closing bracket. */
static const unsigned char *read_event(tk_scan *scan, const unsigned char *p, const unsigned char *e)
{
    scan->event.passed_over = false;
    const unsigned char *end = read_members(scan, p + 1, e);
    if (!end) return NULL;
    if (TK_UNLIKELY(scan->event.skipped >= 0) && !has_kept_name(scan)) {
        scan->skipped[scan->event.skipped]++;
        return end;
    }
    if (TK_UNLIKELY(scan->event.passed_over)) {
        /* Args were not stored because of a category that a second one replaced, or of a name that came late. */
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
        /* An event longer than the limit is bad, wherever the data is cut. */
        size_t left = (size_t)(end - p);
        bool reaches_limit = left >= scan->max_event_bytes;
        p = read_event(scan, p, reaches_limit ? p + scan->max_event_bytes : end);
        if (!p) return scan->stop == TK_MORE && reaches_limit ? TK_BAD : scan->stop;
    }
}
