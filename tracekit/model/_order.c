/* Rows by thread and time, of the module that `_sweeps.c` makes.
 *
 * Profilers write what each thread did nearly in order: runs of rows in order are merged, and nothing is sorted anew.
 */
#include "_arrays.h"

#include <string.h>

#define THREADS 65536

/* Numbers of rows, of 4 or 8 bytes, and when each row starts. */
typedef struct {
    void *rows;
    const int64_t *start;
    int narrow;
} sequence;

static inline int64_t row_of(const void *rows, size_t i, int narrow)
{
    return narrow ? ((const int32_t *)rows)[i] : ((const int64_t *)rows)[i];
}

static inline void put_row(void *rows, size_t i, int narrow, int64_t row)
{
    if (narrow)
        ((int32_t *)rows)[i] = (int32_t)row;
    else
        ((int64_t *)rows)[i] = row;
}

static inline int64_t start_at(const sequence *of, size_t i) { return of->start[row_of(of->rows, i, of->narrow)]; }

/* The first place in [low, high) whose row starts at `time` (`later`: after it) or later; `high` for none. */
static size_t first_from(const sequence *of, size_t low, size_t high, int64_t time, int later)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int64_t start = start_at(of, middle);
        if (start < time || (later && start == time))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Merges two runs, [low, middle) and [middle, high), of which that before goes first where rows start together; 0 without memory. */
static int merge(const sequence *of, size_t low, size_t middle, size_t high)
{
    low = first_from(of, low, middle, start_at(of, middle), 1);
    if (low == middle) return 1;
    high = first_from(of, middle, high, start_at(of, middle - 1), 0);
    size_t width = of->narrow ? sizeof(int32_t) : sizeof(int64_t), count = middle - low, taken = 0;
    void *before = malloc(count * width);
    if (!before) return 0;
    memcpy(before, (char *)of->rows + low * width, count * width);
    for (size_t to = low; taken < count; to++) {
        int64_t row = row_of(before, taken, of->narrow);
        if (middle < high && start_at(of, middle) < of->start[row])
            row = row_of(of->rows, middle++, of->narrow);
        else
            taken++;
        put_row(of->rows, to, of->narrow, row);
    }
    free(before);
    return 1;
}

/* Puts the rows [low, high) in order of start, those that start together as they stand; 0 without memory. */
static int in_order(const sequence *of, size_t low, size_t high)
{
    size_t runs = high > low;
    for (size_t i = low + 1; i < high; i++) runs += start_at(of, i) < start_at(of, i - 1);
    if (runs < 2) return 1;
    size_t *edges = malloc((runs + 1) * sizeof *edges), count = 0;
    if (!edges) return 0;
    edges[count++] = low;
    for (size_t i = low + 1; i < high; i++)
        if (start_at(of, i) < start_at(of, i - 1)) edges[count++] = i;
    edges[count] = high;
    int has_room = 1;
    while (runs > 1) {
        count = 0;
        for (size_t i = 0; i < runs; i += 2) {
            if (i + 1 < runs) has_room = has_room && merge(of, edges[i], edges[i + 1], edges[i + 2]);
            edges[count++] = edges[i];
        }
        edges[count] = high;
        runs = count;
    }
    free(edges);
    return has_room;
}

/* Of rows in order of thread and start puts those that start together longest first; 0 where too many do. */
static int longest_first(const arrays *of, const sequence *ordered, size_t count, int narrow)
{
    const int64_t *start = ordered->start, *length = of->values[3];
    size_t steps = 0, most = STEPS_A_KEY * count + ROOM;
    for (size_t i = 1; i < count; i++) {
        int64_t row = row_of(ordered->rows, i, ordered->narrow), thread = number_at(of, 1, (size_t)row, narrow);
        size_t j = i;
        for (; j; j--) {
            int64_t other = row_of(ordered->rows, j - 1, ordered->narrow);
            if (start[other] != start[row] || length[other] >= length[row]) break;
            if (number_at(of, 1, (size_t)other, narrow) != thread) break;
            if (++steps > most) return 0;
            put_row(ordered->rows, j, ordered->narrow, other);
        }
        if (j < i) put_row(ordered->rows, j, ordered->narrow, row);
    }
    return 1;
}

/* Which rows are asked for: their numbers, or a byte for every row that says whether it is. */
typedef struct {
    const int64_t *rows;
    const char *chosen;
    size_t size, at;
} asked_rows;

/* The next row, -1 behind the last. */
static int64_t next_row(asked_rows *asked)
{
    if (!asked->chosen) return asked->at < asked->size ? asked->rows[asked->at++] : -1;
    while (asked->at < asked->size && !asked->chosen[asked->at]) asked->at++;
    return asked->at < asked->size ? (int64_t)asked->at++ : -1;
}

static size_t asked_count(const asked_rows *asked)
{
    if (!asked->chosen) return asked->size;
    size_t count = 0;
    for (size_t i = 0; i < asked->size; i++) count += asked->chosen[i] != 0;
    return count;
}

/* Puts the rows by thread into `order`, as they come; `place`, all 0, is where those of each thread end then. -1 for other
 * numbers of threads. */
static int placed(const arrays *of, asked_rows asked, int narrow, size_t *place, const sequence *order)
{
    asked_rows again = asked;
    for (int64_t row; (row = next_row(&asked)) >= 0;) {
        int64_t thread = number_at(of, 1, (size_t)row, narrow);
        if (thread < 0 || thread >= THREADS) return -1;
        place[thread + 1]++;
    }
    for (size_t i = 1; i <= THREADS; i++) place[i] += place[i - 1];
    for (int64_t row; (row = next_row(&again)) >= 0;)
        put_row(order->rows, place[number_at(of, 1, (size_t)row, narrow)]++, order->narrow, row);
    return 0;
}

/* Rows by thread and start, those that start together longest first; -1 for other numbers of threads, and where too many do. */
PyObject *by_thread(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 1, &of)) return NULL;
    size_t size = of.size[2];
    int is_mask = of.views[0].itemsize == 1;
    asked_rows asked = {of.values[0], is_mask ? of.views[0].buf : NULL, is_mask ? (size_t)of.views[0].len : of.size[0], 0};
    size_t count = asked_count(&asked);
    int narrow = is_narrow(&of, 1, size), narrow_order = is_narrow(&of, 4, count);
    if (narrow < 0 || narrow_order < 0 || of.size[3] != size || (is_mask && asked.size != size))
        return done(&of, "the arrays differ in length");
    if (narrow_order && size > (size_t)INT32_MAX + 1) return done(&of, "there is no room");
    if (!is_mask && !are_rows(&of, 0, 0, size)) return done(&of, "no such row");
    size_t *place = calloc(THREADS + 1, sizeof *place), low = 0;
    if (!place) return no_memory(&of);
    sequence ordered = {of.views[4].buf, of.values[2], narrow_order};
    int is_other = placed(&of, asked, narrow, place, &ordered) < 0, has_room = 1;
    for (size_t i = 0; !is_other && has_room && low < count; i++) {
        has_room = in_order(&ordered, low, place[i]);
        low = place[i];
    }
    free(place);
    if (!has_room) return no_memory(&of);
    return counted(&of, !is_other && longest_first(&of, &ordered, count, narrow) ? (int64_t)count : -1);
}
