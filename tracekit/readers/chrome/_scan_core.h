/* Strict layer of RECOVERY.md: from the text of the event array to columns. Independent of Python. */
#ifndef TRACEKIT_SCAN_CORE_H
#define TRACEKIT_SCAN_CORE_H

#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* for mremap; the same in every file */
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Results of `tk_feed`; the first three are the states of scan.py. After the last two, the scan cannot continue. */
enum tk_state { TK_MORE = 0, TK_BAD = 1, TK_END = 2, TK_NO_MEMORY = 3, TK_TOO_MANY_ROWS = 4 };

/* Storage of a sparse column's values. TK_TEXT: codes into the column's texts. */
enum tk_kind { TK_EMPTY = 0, TK_INT = 1, TK_FLOAT = 2, TK_TEXT = 3, TK_MIXED = 4 };

enum tk_label { TK_PH, TK_CAT, TK_NAME, TK_PID, TK_TID, TK_LABELS };
enum tk_time { TK_TS, TK_DUR, TK_TIMES };
/* Numbers of an event's keys that are not fields; `args` is a field if its value is not an object. */
enum tk_event_key { TK_KEY_TS = TK_LABELS, TK_KEY_DUR, TK_KEY_ARGS };

typedef struct {
    uint32_t hash;
    int32_t code; /* -1: free */
} tk_slot;

/* Distinct texts, numbered in the order of first use. Zeroed memory is an empty instance. */
typedef struct {
    unsigned char *bytes; /* all texts, one after another */
    size_t capacity;
    int64_t *offsets; /* text `code` is bytes[offsets[code] .. offsets[code + 1]) */
    int32_t count, room;
    tk_slot *slots; /* a hash table; its size is a power of two */
    size_t slot_count;
    int32_t *next; /* for each text, the one that followed it last time (-1: none), to guess the next */
    int32_t last;  /* the text used last */
} tk_texts;

/* Text that followed a member last time, from its value to the next one, and the key of that value.
 * Mostly it repeats: one comparison then replaces those of a comma, a key and a colon. */
typedef struct {
    int32_t key;
    unsigned char size; /* 0: unknown, or too long */
    unsigned char text[43];
} tk_step;

/* The last two distinct ones; `likely` is the most recent. */
typedef struct {
    tk_step ways[2];
    unsigned char likely;
} tk_steps;

/* Values of the rows that have one. While all are of one kind, no kinds are stored and codes take 4 bytes. */
typedef struct {
    int32_t *rows;
    void *values;         /* int32_t if `kind` is TK_TEXT, else int64_t (floats as their bits) */
    unsigned char *kinds; /* only if `kind` is TK_MIXED */
    tk_texts *texts;      /* only after the first text */
    int32_t count, capacity;
    unsigned char kind;
    bool stored;      /* whether these values are requested */
    bool overwritten; /* texts may include unused ones, or be in another order */
    int32_t target;   /* column of this key's values; another one if the key is broken UTF-8 */
    tk_steps next;
} tk_column;

/* Columns of one kind of object (the event or its args), by the raw text of their keys with quotes.
 * The columns of an event's `ph`, `ts` etc. stay empty here. */
typedef struct {
    tk_texts keys;
    tk_column *columns; /* one for each key */
    int32_t room;
    tk_steps first;      /* text from the opening bracket to the first value */
    bool stores_unknown; /* whether undeclared keys are stored */
} tk_space;

typedef struct {
    const unsigned char *text;
    size_t size;
} tk_span;

/* One value of the event being read; moved to its column once the event is complete. */
typedef struct {
    union {
        int64_t number;
        const unsigned char *text;
    } value;
    uint32_t size; /* of the text; 0 if `number` already contains its code */
    int32_t column;
    unsigned char kind; /* TK_EMPTY: none */
} tk_entry;

typedef struct {
    tk_entry *items;
    size_t count, capacity;
} tk_entries;

typedef struct {
    tk_entry labels[TK_LABELS];
    int64_t times[TK_TIMES];
    unsigned char has_time[TK_TIMES];
    tk_entry odd_times[TK_TIMES];
    tk_entries fields, args;
    tk_entry plain_args; /* value of `args` if it is not an object */
    int32_t skipped;     /* index of its skipped category, -1: none */
    bool passed_over;    /* some args were read but not stored */
} tk_event;

typedef struct {
    uint64_t seed;
    size_t max_event_bytes;
    enum tk_state stop; /* why reading of an event ended early */

    int32_t rows, room;
    void *codes[TK_LABELS]; /* signed, `code_size` bytes each: as few as fit */
    unsigned char code_size[TK_LABELS];
    tk_texts labels[TK_LABELS];
    int64_t *times[TK_TIMES];
    unsigned char *has_time[TK_TIMES];
    tk_column odd_times[TK_TIMES]; /* texts other than plain decimals, parsed in Python */
    tk_space fields, args;

    tk_span *skip_cats;
    int64_t *skipped; /* rows skipped, for each of skip_cats */
    int32_t skip_count;
    tk_span *keep_names;
    int32_t keep_count;
    tk_event event;
} tk_scan;

/* Functions that return bool return false if memory runs out. */
bool tk_init(tk_scan *scan, uint64_t seed, size_t max_event_bytes, bool stores_all_args, bool stores_fields);
void tk_free(tk_scan *scan);
void tk_free_column(tk_column *column);
void tk_free_texts(tk_texts *texts);
/* Declare an args key (raw text with quotes) and whether its values are stored. */
bool tk_declare(tk_scan *scan, const unsigned char *key, size_t size, bool stored);
/* Skip rows of this category (raw text); the bytes are copied. */
bool tk_skip_cat(tk_scan *scan, const unsigned char *cat, size_t size);
/* Keep skipped rows whose name is a string with this prefix (raw text without quotes), or may have it once decoded:
 * Python drops those that do not. */
bool tk_keep_name(tk_scan *scan, const unsigned char *prefix, size_t size);
/* Find the number of the key, adding it if it is new; -1 without memory. */
int32_t tk_find_key(tk_scan *scan, tk_space *space, const unsigned char *key, size_t size);
/* Read complete elements; `*consumed` is the end position. Reads no byte outside data[0 .. size). */
enum tk_state tk_feed(tk_scan *scan, const unsigned char *data, size_t size, size_t *consumed);

/* Append the rows and skip counts of a scan with the same options to another, as if that one had read both texts.
 * `from` is then empty but keeps its texts, which take `tk_known_bytes`. Returns TK_MORE on success; otherwise
 * `into` cannot continue. */
enum tk_state tk_append(tk_scan *into, tk_scan *from);
size_t tk_known_bytes(const tk_scan *scan);

/* Replace codes[i] by the rank of groups[codes[i]] in the order of first use, and write that order to `order`
 * (room for group_count). -1 as a code or group stays -1. Returns the number of used groups; -2: a code or
 * group out of range; -1: no memory. */
int64_t tk_renumber(int32_t *codes, size_t count, const int32_t *groups, size_t group_count, int32_t *order);

/* Number the pairs of kind and value in the order of first use: numbers in `codes`, distinct pairs in `pairs`,
 * 9 bytes each (the bytes of the value, then the kind). */
bool tk_distinct(const unsigned char *kinds, const int64_t *values, size_t count, uint64_t seed, int32_t *codes,
                 tk_texts *pairs);

#endif
