/* Setup of a scan: initialization, keys and release. */
#include "_scan_core.h"

#include "_scan_columns.h"
#include "_scan_text.h"

/* Indexed by tk_label, then tk_event_key. */
static const char *const event_keys[] = {"\"ph\"", "\"cat\"", "\"name\"", "\"pid\"", "\"tid\"", "\"ts\"", "\"dur\"", "\"args\""};

/* Find the key equal to this one after replacing broken UTF-8 (itself if valid); -1 without memory. */
static int32_t sound_key(tk_scan *scan, tk_space *space, int32_t key)
{
    const unsigned char *text = space->keys.bytes + space->keys.offsets[key];
    size_t size = tk_text_size(&space->keys, key), i = 0;
    while (i < size && text[i] < 0x80) i++;
    if (i == size) return key;
    unsigned char *sound = tk_resized(NULL, size, 3);
    if (!sound) return -1;
    size_t sound_size = tk_replace_invalid(text, size, sound);
    bool is_sound = sound_size == size && tk_same(sound, text, size);
    int32_t found = is_sound ? key : tk_find_key(scan, space, sound, sound_size);
    tk_release(sound);
    return found;
}

int32_t tk_find_key(tk_scan *scan, tk_space *space, const unsigned char *key, size_t size)
{
    int32_t known = space->keys.count;
    if (known == space->room) {
        int32_t room = tk_next_room(space->room, 16);
        if (!tk_resize(&space->columns, (size_t)room, sizeof *space->columns)) return -1;
        space->room = room;
    }
    int32_t found = tk_code_of(&space->keys, scan->seed, key, size);
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
    tk_release(space->columns);
    tk_free_texts(&space->keys);
}

void tk_free_texts(tk_texts *texts)
{
    tk_release(texts->bytes);
    tk_release(texts->offsets);
    tk_release(texts->slots);
    tk_release(texts->next);
    *texts = (tk_texts){0};
}

void tk_free_column(tk_column *column)
{
    tk_release(column->rows);
    tk_release(column->values);
    tk_release(column->kinds);
    if (column->texts) tk_free_texts(column->texts);
    free(column->texts);
    *column = (tk_column){0};
}

bool tk_init(tk_scan *scan, uint64_t seed, size_t max_event_bytes, bool stores_all_args, bool stores_fields)
{
    *scan = (tk_scan){.seed = seed, .max_event_bytes = max_event_bytes};
    scan->fields.stores_unknown = stores_fields;
    scan->args.stores_unknown = stores_all_args;
    memset(scan->code_size, 1, sizeof scan->code_size);
    for (size_t i = 0; i < sizeof event_keys / sizeof *event_keys; i++)
        if (tk_find_key(scan, &scan->fields, (const unsigned char *)event_keys[i], strlen(event_keys[i])) < 0) return false;
    return true;
}

void tk_free(tk_scan *scan)
{
    for (int i = 0; i < TK_LABELS; i++) {
        tk_release(scan->codes[i]);
        tk_free_texts(&scan->labels[i]);
    }
    for (int i = 0; i < TK_TIMES; i++) {
        tk_release(scan->times[i]);
        tk_release(scan->has_time[i]);
        tk_free_column(&scan->odd_times[i]);
    }
    free_space(&scan->fields);
    free_space(&scan->args);
    for (int32_t i = 0; i < scan->skip_count; i++) tk_release((void *)scan->skip_cats[i].text);
    tk_release(scan->skip_cats);
    tk_release(scan->skipped);
    for (int32_t i = 0; i < scan->keep_count; i++) tk_release((void *)scan->keep_names[i].text);
    tk_release(scan->keep_names);
    tk_release(scan->event.fields.items);
    tk_release(scan->event.args.items);
    *scan = (tk_scan){0};
}

bool tk_declare(tk_scan *scan, const unsigned char *key, size_t size, bool stored)
{
    int32_t found = tk_find_key(scan, &scan->args, key, size);
    if (found < 0) return false;
    scan->args.columns[found].stored = stored;
    return true;
}

/* Add a copy of the text to the list. */
static bool add_span(tk_span **list, int32_t *count, const unsigned char *text, size_t size)
{
    unsigned char *copy = tk_resized(NULL, size, 1);
    if (!copy) return false;
    if (!tk_resize(list, (size_t)*count + 1, sizeof **list)) {
        tk_release(copy);
        return false;
    }
    memcpy(copy, text, size);
    (*list)[(*count)++] = (tk_span){copy, size};
    return true;
}

bool tk_skip_cat(tk_scan *scan, const unsigned char *cat, size_t size)
{
    if (!tk_resize(&scan->skipped, (size_t)scan->skip_count + 1, sizeof *scan->skipped)) return false;
    scan->skipped[scan->skip_count] = 0;
    return add_span(&scan->skip_cats, &scan->skip_count, cat, size);
}

bool tk_keep_name(tk_scan *scan, const unsigned char *prefix, size_t size)
{
    return add_span(&scan->keep_names, &scan->keep_count, prefix, size);
}
