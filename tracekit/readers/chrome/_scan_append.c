/* Append the rows of one scan to another, as if one scan had read both texts. */
#include "_scan_core.h"

#include "_scan_columns.h"

/* Make a table from each code of some texts, and -1, to the code in the other scan; code `code` is at `code + 1`.
 * An entry is -1 until a row needs it, to number texts in the order of first use. */
static int32_t *blank_codes(const tk_texts *texts)
{
    size_t count = (size_t)texts->count + 1;
    int32_t *codes = tk_resized(NULL, count, sizeof *codes);
    for (size_t i = 0; codes && i < count; i++) codes[i] = -1;
    return codes;
}

static inline bool learn_code(tk_texts *to, uint64_t seed, const tk_texts *from, int32_t code, int32_t *codes)
{
    if (code < 0 || codes[code + 1] >= 0) return true;
    codes[code + 1] = tk_code_of(to, seed, from->bytes + from->offsets[code], tk_text_size(from, code));
    return codes[code + 1] >= 0;
}

static bool append_codes(tk_scan *into, const tk_scan *from, int which, int32_t *codes)
{
    tk_texts *texts = &into->labels[which];
    unsigned char size = from->code_size[which];
    for (int32_t i = 0; i < from->rows; i++)
        if (!learn_code(texts, into->seed, &from->labels[which], tk_code_at(from->codes[which], size, i), codes)) return false;
    if (texts->count - 1 > tk_largest_code[into->code_size[which]] && !tk_widen_codes(into, which, texts->count - 1))
        return false;
    for (int32_t i = 0; i < from->rows; i++) {
        int32_t code = codes[tk_code_at(from->codes[which], size, i) + 1];
        tk_set_code(into->codes[which], into->code_size[which], into->rows + i, code);
    }
    return true;
}

static bool append_labels(tk_scan *into, const tk_scan *from)
{
    bool done = true;
    for (int i = 0; done && i < TK_LABELS; i++) {
        int32_t *codes = blank_codes(&from->labels[i]);
        done = codes && append_codes(into, from, i, codes);
        tk_release(codes);
    }
    return done;
}

static int64_t value_at(const tk_column *column, int32_t i)
{
    return column->kind == TK_TEXT ? ((int32_t *)column->values)[i] : ((int64_t *)column->values)[i];
}

static bool append_texts(const tk_scan *into, tk_column *to, const tk_column *from, int32_t *codes)
{
    for (int32_t i = 0; i < from->count; i++) {
        int64_t value = value_at(from, i);
        unsigned char kind = from->kind == TK_MIXED ? from->kinds[i] : from->kind;
        if (kind == TK_TEXT) {
            if (!learn_code(to->texts, into->seed, from->texts, (int32_t)value, codes)) return false;
            value = codes[value + 1];
        }
        if (to->kind == TK_TEXT)
            ((int32_t *)to->values)[to->count + i] = (int32_t)value;
        else
            ((int64_t *)to->values)[to->count + i] = value;
        if (to->kind == TK_MIXED) to->kinds[to->count + i] = kind;
    }
    return true;
}

static bool append_values(const tk_scan *into, tk_column *to, const tk_column *from)
{
    if (from->kind == TK_TEXT || from->kind == TK_MIXED) {
        tk_texts none = {0};
        int32_t *codes = blank_codes(from->texts ? from->texts : &none);
        bool done = codes && tk_texts_of(to) && append_texts(into, to, from, codes);
        tk_release(codes);
        return done;
    }
    memcpy((int64_t *)to->values + to->count, from->values, (size_t)from->count * sizeof(int64_t));
    if (to->kind == TK_MIXED) memset(to->kinds + to->count, from->kind, (size_t)from->count);
    return true;
}

/* Empty the column but keep its texts. */
static void empty_column(tk_column *column)
{
    column->count = 0;
    column->overwritten = false;
    if (column->kind != TK_MIXED) return;
    tk_release(column->kinds);
    column->kinds = NULL;
    column->kind = TK_INT; /* its values have that size */
}

static bool append_column(const tk_scan *into, tk_column *to, tk_column *from)
{
    if (!from->count) return true;
    if (to->kind != from->kind && !tk_admit_kind(to, from->kind)) return false;
    int32_t count = to->count + from->count;
    if (count > to->capacity && !tk_grow_column(to, count)) return false;
    for (int32_t i = 0; i < from->count; i++) to->rows[to->count + i] = into->rows + from->rows[i];
    if (!append_values(into, to, from)) return false;
    to->count = count;
    empty_column(from);
    return true;
}

static bool append_space(tk_scan *into, tk_space *to, tk_space *from)
{
    for (int32_t i = 0; i < from->keys.count; i++) {
        const unsigned char *key = from->keys.bytes + from->keys.offsets[i];
        int32_t found = tk_find_key(into, to, key, tk_text_size(&from->keys, i));
        if (found < 0 || !append_column(into, &to->columns[found], &from->columns[i])) return false;
    }
    return true;
}

static bool append_times(tk_scan *into, tk_scan *from)
{
    size_t count = (size_t)from->rows;
    for (int i = 0; count && i < TK_TIMES; i++) {
        memcpy(into->times[i] + into->rows, from->times[i], count * sizeof *from->times[i]);
        memcpy(into->has_time[i] + into->rows, from->has_time[i], count);
        if (!append_column(into, &into->odd_times[i], &from->odd_times[i])) return false;
    }
    return true;
}

enum tk_state tk_append(tk_scan *into, tk_scan *from)
{
    if (from->rows > INT32_MAX - into->rows) return TK_TOO_MANY_ROWS;
    int32_t rows = into->rows + from->rows;
    if (rows > into->room && !tk_grow_rows(into, rows)) return TK_NO_MEMORY;
    if (!append_labels(into, from) || !append_times(into, from)) return TK_NO_MEMORY;
    if (!append_space(into, &into->fields, &from->fields)) return TK_NO_MEMORY;
    if (!append_space(into, &into->args, &from->args)) return TK_NO_MEMORY;
    for (int32_t i = 0; i < from->skip_count; i++) {
        into->skipped[i] += from->skipped[i];
        from->skipped[i] = 0;
    }
    into->rows = rows;
    from->rows = 0;
    return TK_MORE;
}

static size_t known_bytes(const tk_texts *texts)
{
    return texts->capacity + (size_t)texts->room * (sizeof *texts->offsets + sizeof *texts->next) +
           texts->slot_count * sizeof *texts->slots;
}

static size_t space_bytes(const tk_space *space)
{
    size_t size = known_bytes(&space->keys) + (size_t)space->room * sizeof *space->columns;
    for (int32_t i = 0; i < space->keys.count; i++)
        if (space->columns[i].texts) size += known_bytes(space->columns[i].texts);
    return size;
}

size_t tk_known_bytes(const tk_scan *scan)
{
    size_t size = space_bytes(&scan->fields) + space_bytes(&scan->args);
    for (int i = 0; i < TK_LABELS; i++) size += known_bytes(&scan->labels[i]);
    for (int i = 0; i < TK_TIMES; i++)
        if (scan->odd_times[i].texts) size += known_bytes(scan->odd_times[i].texts);
    return size;
}
