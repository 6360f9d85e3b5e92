/* The strict layer of RECOVERY.md: text inside the event array in, columns out. Knows nothing of Python. */
#ifndef TRACEKIT_SCAN_CORE_H
#define TRACEKIT_SCAN_CORE_H

#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* for mremap, in every file alike */
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What `tk_feed` answers; the first three are the states of scan.py. After the last two the scan is over. */
enum tk_state { TK_MORE = 0, TK_BAD = 1, TK_END = 2, TK_NO_MEMORY = 3, TK_TOO_MANY_ROWS = 4 };

/* How the values of a sparse column are stored. TK_TEXT: codes into the column's texts. */
enum tk_kind { TK_EMPTY = 0, TK_INT = 1, TK_FLOAT = 2, TK_TEXT = 3, TK_MIXED = 4 };

enum tk_label { TK_PH, TK_CAT, TK_NAME, TK_PID, TK_TID, TK_LABELS };
enum tk_time { TK_TS, TK_DUR, TK_TIMES };
/* The keys of an event that are no fields, by their number; `args` is one if its value is no object. */
enum tk_event_key { TK_KEY_TS = TK_LABELS, TK_KEY_DUR, TK_KEY_ARGS };

typedef struct {
    uint32_t hash;
    int32_t code; /* -1: free */
} tk_slot;

/* Distinct texts, numbered in the order of their first use. Zeroed memory is an empty one. */
typedef struct {
    unsigned char *bytes; /* all texts, one after another */
    size_t capacity;
    int64_t *offsets; /* text `code` lies in bytes[offsets[code] .. offsets[code + 1]) */
    int32_t count, room;
    tk_slot *slots; /* a hash table; its size is a power of two */
    size_t slot_count;
    int32_t *next; /* for each text the one that followed it last time, -1 if none did: a guess at what comes */
    int32_t last;  /* the text used last */
} tk_texts;

/* What came after a member last time: the text from its value to the next one, and whose that is.
 * It is the same text again most of the time, and one comparison then stands for a comma, a key and a colon. */
typedef struct {
    int32_t key;
    unsigned char size; /* 0: not known, or too long */
    unsigned char text[43];
} tk_step;

/* The last two different ones; `likely` is the one that came last. */
typedef struct {
    tk_step ways[2];
    unsigned char likely;
} tk_steps;

/* Values of the rows that have them. While all are of one kind no kinds are kept, and codes take 4 bytes. */
typedef struct {
    int32_t *rows;
    void *values;         /* int32_t if `kind` is TK_TEXT, else int64_t (floats as their bits) */
    unsigned char *kinds; /* only if `kind` is TK_MIXED */
    tk_texts *texts;      /* only after the first text */
    int32_t count, capacity;
    unsigned char kind;
    bool stored;      /* whether anybody wants these values */
    bool overwritten; /* texts may hold some that are no longer used, or be in another order */
    int32_t target;   /* the column for values of this key: another one if the key is broken UTF-8 */
    tk_steps next;
} tk_column;

/* The columns of one kind of object (the event, or its args), by the raw text of their keys, quotes included.
 * An event's `ph`, `ts` and so on have columns here that stay empty. */
typedef struct {
    tk_texts keys;
    tk_column *columns; /* one for each key */
    int32_t room;
    tk_steps first;      /* from the opening bracket to the first value */
    bool stores_unknown; /* whether keys that nobody declared are stored */
} tk_space;

typedef struct {
    const unsigned char *text;
    size_t size;
} tk_span;

/* One value of the event being read; it reaches its column when the event is complete. */
typedef struct {
    union {
        int64_t number;
        const unsigned char *text;
    } value;
    uint32_t size; /* of the text; 0 if its code is known already and stands in `number` */
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
    tk_entry plain_args; /* the value of `args` if that is no object */
    int32_t skipped;     /* which of the unwanted categories this is, -1: none */
    bool passed_over;    /* some args were read without being kept */
} tk_event;

typedef struct {
    uint64_t seed;
    size_t max_event_bytes;
    enum tk_state stop; /* why the reading of an event ended early */

    int32_t rows, room;
    void *codes[TK_LABELS]; /* signed, of `code_size` bytes: as few as all of them need */
    unsigned char code_size[TK_LABELS];
    tk_texts labels[TK_LABELS];
    int64_t *times[TK_TIMES];
    unsigned char *has_time[TK_TIMES];
    tk_column odd_times[TK_TIMES]; /* texts that are no plain decimal, left to Python */
    tk_space fields, args;

    tk_span *skip_cats;
    int64_t *skipped; /* rows left out, for each of skip_cats */
    int32_t skip_count;
    tk_span *keep_names;
    int32_t keep_count;
    tk_event event;
} tk_scan;

/* Every function that returns bool answers false when memory ran out. */
bool tk_init(tk_scan *scan, uint64_t seed, size_t max_event_bytes, bool stores_all_args, bool stores_fields);
void tk_free(tk_scan *scan);
void tk_free_column(tk_column *column);
void tk_free_texts(tk_texts *texts);
/* Declares an args key (raw text with its quotes): whether its values are to be stored. */
bool tk_declare(tk_scan *scan, const unsigned char *key, size_t size, bool stored);
/* Leaves out rows of this category (raw text); the bytes are copied. */
bool tk_skip_cat(tk_scan *scan, const unsigned char *cat, size_t size);
/* But not those whose name is a string that begins like this (raw text without its quotes), or that may do so
 * once it is decoded: Python leaves those out that do not. */
bool tk_keep_name(tk_scan *scan, const unsigned char *prefix, size_t size);
/* The number of the key, which is added if it is new; -1 without memory. */
int32_t tk_find_key(tk_scan *scan, tk_space *space, const unsigned char *key, size_t size);
/* Reads whole elements; `*consumed` is where it stopped. Reads no byte outside data[0 .. size). */
enum tk_state tk_feed(tk_scan *scan, const unsigned char *data, size_t size, size_t *consumed);

/* Puts the rows of a scan that keeps the same after those of another, as if that had read the text of both, and what
 * it has skipped; the scan has none then, and goes on to know its texts, which takes `tk_known_bytes`. TK_MORE if all
 * went well, else the other scan is over. */
enum tk_state tk_append(tk_scan *into, tk_scan *from);
size_t tk_known_bytes(const tk_scan *scan);

/* Replaces codes[i] by the rank of groups[codes[i]] in the order of first use, which goes to `order`
 * (room for group_count). -1 as a code or group stays -1. Returns how many groups are used; -2: a code or
 * group out of range; -1: no memory. */
int64_t tk_renumber(int32_t *codes, size_t count, const int32_t *groups, size_t group_count, int32_t *order);

/* Numbers the pairs of a kind and a value by their first use: their numbers go to `codes`, the distinct pairs
 * to `pairs`, 9 bytes each (the value as it lies in memory, the kind). */
bool tk_distinct(const unsigned char *kinds, const int64_t *values, size_t count, uint64_t seed, int32_t *codes,
                 tk_texts *pairs);

#endif
