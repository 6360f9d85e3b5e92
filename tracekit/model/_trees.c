/* Passes over call trees and over the pieces of time in them, of the module that `_sweeps.c` makes.
 *
 * In a tree `parent` is the place of what encloses a row, -1 for none; it stands before the row.
 */
#include "_arrays.h"

PyObject *depths(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 2, 1, &of)) return NULL;
    int64_t *depth = of.values[1], most = 0;
    int narrow = is_narrow(&of, 0, of.size[1]);
    if (narrow < 0) return done(&of, "the arrays differ in length");
    for (size_t i = 0; i < of.size[1]; i++) {
        int64_t above = number_at(&of, 0, i, narrow);
        if (above >= (int64_t)i) return counted(&of, -1);
        depth[i] = above < 0 ? 0 : depth[above] + 1;
        if (depth[i] > most) most = depth[i];
    }
    return counted(&of, most);
}

PyObject *mark_enclosing(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 2, 1, &of)) return NULL;
    char *is_marked = of.views[1].buf;
    size_t size = (size_t)of.views[1].len;
    int narrow = is_narrow(&of, 0, size);
    if (narrow < 0) return done(&of, "the arrays differ in length");
    for (size_t i = size; i-- > 0;) {
        int64_t above = number_at(&of, 0, i, narrow);
        if (above >= (int64_t)i) return done(&of, "a row stands before what encloses it");
        if (is_marked[i] && above >= 0) is_marked[above] = 1;
    }
    return done(&of, NULL);
}

/* Looks at more than these steps a row mean keys that were made to collide. */
#define STEPS_A_ROW 16
#define FREE_STEPS 1024

/* The number of a row's path, plus 1; 0 for a row without a number. `above` is that of what encloses it. */
typedef struct {
    uint32_t *slots, *above;
    int bits;
    size_t steps, most;
} path_table;

static uint64_t path_hash(uint64_t above, uint64_t key)
{
    uint64_t mixed = (key ^ above * 0xD6E8FEB86659FD93u) * 0x9E3779B97F4A7C15u;
    return (mixed ^ (mixed >> 29)) * 0x9E3779B97F4A7C15u;
}

PyObject *paths(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 2, &of)) return NULL;
    const int64_t *key = of.values[2];
    int64_t *number = of.values[3], *first = of.values[4];
    size_t asked = of.size[2], count = 0;
    int narrow = is_narrow(&of, 1, asked); /* of `parent`, too */
    if (narrow < 0 || of.size[3] != asked || of.size[4] != asked) return done(&of, "the arrays differ in length");
    size_t size = number_count(&of, 0, narrow);
    if (asked >= UINT32_MAX / 4) return counted(&of, -1);
    path_table table = {.bits = 4, .most = STEPS_A_ROW * asked + FREE_STEPS};
    while (((size_t)1 << table.bits) < 2 * asked) table.bits++;
    size_t mask = ((size_t)1 << table.bits) - 1;
    table.slots = calloc(mask + 1, sizeof *table.slots);
    table.above = calloc(asked + 1, sizeof *table.above);
    uint32_t *of_row = calloc(size + 1, sizeof *of_row);
    const char *problem = NULL;
    int has_room = table.slots && table.above && of_row;
    for (size_t i = 0; has_room && !problem && i < asked && table.steps <= table.most; i++) {
        int64_t row = number_at(&of, 1, i, narrow);
        int64_t enclosing = row >= 0 && (uint64_t)row < size ? number_at(&of, 0, (size_t)row, narrow) : row;
        if (enclosing >= row) {
            problem = "no such row";
            break;
        }
        uint32_t above = enclosing < 0 ? 0 : of_row[enclosing];
        size_t slot = (size_t)(path_hash(above, (uint64_t)key[i]) >> (64 - table.bits));
        while (table.slots[slot] && (table.above[table.slots[slot]] != above || key[first[table.slots[slot] - 1]] != key[i]) &&
               ++table.steps <= table.most)
            slot = (slot + 1) & mask;
        if (!table.slots[slot]) {
            first[count++] = (int64_t)i;
            table.slots[slot] = (uint32_t)count;
            table.above[count] = above;
        }
        of_row[row] = table.slots[slot];
        number[i] = (int64_t)table.slots[slot] - 1;
    }
    int is_done = table.steps <= table.most;
    free(table.slots);
    free(table.above);
    free(of_row);
    if (!has_room) return no_memory(&of);
    return problem ? done(&of, problem) : counted(&of, is_done ? (int64_t)count : -1);
}

/* So many steps up from a row to one that still runs; pieces for which that is too few are counted. */
#define STEPS_UP 64

/* Cuts segments at the edges within them, and finds the row that each piece is in. A lane of the axis is a thread's: `base` is
 * where that of a segment begins, and `axis` the first time and how many there are. Edge number `edge[i]` and those after it
 * cut segment i, whose pieces go to `first[i]` and after it. */
PyObject *pieces(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 13, 3, &of)) return NULL;
    const int64_t *edges = of.values[0], *begin = of.values[1], *until = of.values[2];
    const int64_t *axis = of.values[4], *seg_start = of.values[5], *seg_end = of.values[6], *base = of.values[7];
    const int64_t *edge = of.values[8], *first = of.values[9];
    int64_t *start = of.values[10], *end = of.values[11], *row = of.values[12];
    size_t rows = of.size[1], segments = of.size[5], room = of.size[10], hint = 0;
    int64_t above = 0;
    int narrow_rows = is_narrow(&of, 3, rows);
    if (of.size[2] != rows || narrow_rows < 0 || of.size[6] != segments || of.size[7] != segments || of.size[8] != segments ||
        of.size[9] != segments || of.size[4] != 2 || of.size[11] != room || of.size[12] != room)
        return done(&of, "the arrays differ in length");
    for (size_t i = 0; i < segments; i++) {
        uint64_t low = (uint64_t)first[i], high = i + 1 < segments ? (uint64_t)first[i + 1] : room;
        if (low >= high || high > room) return done(&of, "there is no room");
        if (high - low > 1 && (edge[i] < 0 || (uint64_t)edge[i] + (high - low - 1) > of.size[0])) return done(&of, "no such edge");
        for (uint64_t k = low; k < high; k++) {
            int64_t time = seg_start[i];
            if (k > low) time = (int64_t)((uint64_t)edges[(uint64_t)edge[i] + (k - low - 1)] - (uint64_t)base[i] + (uint64_t)axis[0]);
            int64_t offset = time < axis[0] ? 0 : (int64_t)((uint64_t)time - (uint64_t)axis[0]);
            if (time >= axis[0] && (uint64_t)offset >= (uint64_t)axis[1]) offset = axis[1] - 1;
            int64_t at = (int64_t)((uint64_t)base[i] + (uint64_t)offset);
            start[k] = time;
            if (k > low) end[k - 1] = time;
            hint = place(begin, rows, at, 1, hint);
            int64_t in = hint && begin[hint - 1] >= base[i] ? (int64_t)hint - 1 : -1;
            int level = 0;
            for (; in >= 0 && until[in] <= time && level < STEPS_UP; level++) {
                int64_t enclosing = number_at(&of, 3, (size_t)in, narrow_rows);
                if (enclosing >= in) return done(&of, "a row stands before what encloses it");
                in = enclosing;
            }
            if (in >= 0 && until[in] <= time) above++;
            row[k] = in;
        }
        end[high - 1] = seg_end[i];
    }
    return counted(&of, above);
}

/* Pieces of one node that begin between the same two points, as far as they stand together, as one: its first piece
 * and the sum of their lengths. Those of a node below 0 count nowhere. */
PyObject *pooled(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 7, 3, &of)) return NULL;
    const int64_t *start = of.values[0], *end = of.values[1], *node = of.values[2], *points = of.values[3];
    int64_t *of_node = of.values[4], *first = of.values[5], *length = of.values[6];
    size_t size = of.size[0], nodes = of.size[4], count = 0, at = 0;
    if (of.size[1] != size || of.size[2] != size) return done(&of, "the arrays differ in length");
    if (of.size[5] < size || of.size[6] < size) return done(&of, "there is no room");
    for (size_t i = 0; i < nodes; i++) of_node[i] = -1;
    size_t since = 0; /* what was pooled before lies between other points */
    for (size_t i = 0; i < size; i++) {
        if (node[i] < 0) continue;
        if ((uint64_t)node[i] >= nodes) return done(&of, "no such node");
        size_t now = place(points, of.size[3], start[i], 1, at);
        if (now != at) since = count;
        at = now;
        int64_t *last = &of_node[node[i]];
        if (*last < (int64_t)since) {
            *last = (int64_t)count;
            first[count] = (int64_t)i;
            length[count++] = 0;
        }
        length[*last] = (int64_t)((uint64_t)length[*last] + (uint64_t)end[i] - (uint64_t)start[i]);
    }
    return counted(&of, (int64_t)count);
}

/* By window the nodes of the pieces that begin in it, as they appear: the window, the first piece, in how many gaps they lie, and
 * their time; how many these are, be there room or not. Pieces are in order of start; `seen` has room for three numbers a node. */
PyObject *in_windows(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 11, 5, &of)) return NULL;
    const int64_t *start = of.values[0], *gap = of.values[1], *node = of.values[2], *length = of.values[3];
    const int64_t *low = of.values[4], *high = of.values[5];
    int64_t *seen = of.values[6], *window = of.values[7], *first = of.values[8], *gaps = of.values[9], *ns = of.values[10];
    size_t size = of.size[0], nodes = of.size[6] / 3, room = of.size[7], count = 0, from = 0, until = 0;
    if (of.size[1] != size || of.size[2] != size || of.size[3] != size || of.size[5] != of.size[4])
        return done(&of, "the arrays differ in length");
    if (of.size[8] != room || of.size[9] != room || of.size[10] != room) return done(&of, "there is no room");
    for (size_t i = 0; i < of.size[6]; i++) seen[i] = 0;
    for (size_t w = 0; w < of.size[4]; w++) {
        from = place(start, size, low[w], 0, from);
        until = place(start, size, high[w], 0, until);
        for (size_t i = from; i < until; i++) {
            if (node[i] < 0 || (uint64_t)node[i] >= nodes) return done(&of, "no such node");
            /* The window in which it was last, plus 1; its place there, and its last gap. */
            int64_t *of_node = &seen[3 * node[i]];
            int is_new = of_node[0] != (int64_t)w + 1;
            if (is_new) {
                of_node[0] = (int64_t)w + 1;
                of_node[1] = (int64_t)count++;
            }
            size_t at = (size_t)of_node[1];
            if (at < room && is_new) {
                window[at] = (int64_t)w;
                first[at] = (int64_t)i;
                gaps[at] = ns[at] = 0;
            }
            if (at < room) {
                gaps[at] += is_new || of_node[2] != gap[i];
                ns[at] = (int64_t)((uint64_t)ns[at] + (uint64_t)length[i]);
            }
            of_node[2] = gap[i];
        }
    }
    return counted(&of, (int64_t)count);
}

#define THREADS 65536

/* Rows in order of start by thread, those that start together longest first; -1 for another order, or where too many do. */
PyObject *by_thread(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 1, &of)) return NULL;
    const int64_t *rows = of.values[0], *start = of.values[2], *length = of.values[3];
    int64_t before = INT64_MIN;
    size_t count = of.size[0], size = of.size[2], steps = 0, most = STEPS_A_KEY * count + ROOM;
    int narrow = is_narrow(&of, 1, size), narrow_order = is_narrow(&of, 4, count);
    if (narrow < 0 || narrow_order < 0 || of.size[3] != size) return done(&of, "the arrays differ in length");
    if (narrow_order && size > (size_t)INT32_MAX + 1) return done(&of, "there is no room");
    size_t *place = calloc(THREADS + 1, sizeof *place);
    if (!place) return no_memory(&of);
    const char *problem = NULL;
    int is_other = 0;
    for (size_t i = 0; i < count && !is_other && !problem; i++) {
        if (rows[i] < 0 || (uint64_t)rows[i] >= size) {
            problem = "no such row";
            break;
        }
        int64_t thread = number_at(&of, 1, (size_t)rows[i], narrow);
        is_other = start[rows[i]] < before || thread < 0 || thread >= THREADS;
        before = start[rows[i]];
        if (!is_other) place[thread + 1]++;
    }
    int is_ordered = !is_other && !problem;
    for (size_t i = 1; i <= THREADS; i++) place[i] += place[i - 1];
    for (size_t i = 0; is_ordered && i < count; i++)
        put_number(&of, 4, place[number_at(&of, 1, (size_t)rows[i], narrow)]++, narrow_order, rows[i]);
    for (size_t i = 1; is_ordered && i < count; i++) {
        int64_t row = number_at(&of, 4, i, narrow_order), thread = number_at(&of, 1, (size_t)row, narrow);
        size_t j = i;
        for (; j; j--) {
            int64_t other = number_at(&of, 4, j - 1, narrow_order);
            if (start[other] != start[row] || length[other] >= length[row]) break;
            if (number_at(&of, 1, (size_t)other, narrow) != thread || ++steps > most) break;
            put_number(&of, 4, j, narrow_order, other);
        }
        if (j < i) put_number(&of, 4, j, narrow_order, row);
    }
    free(place);
    if (problem) return done(&of, problem);
    return counted(&of, is_other || steps > most ? -1 : (int64_t)count);
}

typedef struct {
    int64_t row, until;
} open_row;

/* Rows in order of thread, start, longest first, as they lie on an axis on which the lane of a thread begins at (thread + 1) times its
 * length: the start and end of each, where it begins there, and what encloses it: the last one before it that ends after it begins,
 * and not long before it ends. `axis`: its first time, its length, and what is not long. */
PyObject *lanes(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 9, 4, &of)) return NULL;
    const int64_t *axis = of.values[4];
    int64_t *start = of.values[5], *end = of.values[6], *begin = of.values[7];
    size_t count = of.size[5], size = of.size[2], depth = 0, room = 1024;
    int narrow = is_narrow(&of, 1, size), narrow_rows = is_narrow(&of, 0, count), narrow_parent = is_narrow(&of, 8, count);
    if (narrow < 0 || narrow_rows < 0 || narrow_parent < 0 || of.size[3] != size || of.size[4] != 3) return done(&of, "the arrays differ in length");
    if (of.size[6] != count || of.size[7] != count) return done(&of, "the arrays differ in length");
    if (narrow_parent && count > (size_t)INT32_MAX + 1) return done(&of, "there is no room");
    if (!are_rows(&of, 0, narrow_rows, size)) return done(&of, "no such row");
    /* Those that none after them outlasts: the earlier one ends later. */
    open_row *open = malloc(room * sizeof *open);
    for (size_t i = 0; open && i < count; i++) {
        size_t row = (size_t)number_at(&of, 0, i, narrow_rows);
        uint64_t lane = ((uint64_t)number_at(&of, 1, row, narrow) + 1) * (uint64_t)axis[1] - (uint64_t)axis[0];
        uint64_t length = (uint64_t)of.values[3][row];
        start[i] = of.values[2][row];
        end[i] = (int64_t)((uint64_t)start[i] + length);
        begin[i] = (int64_t)((uint64_t)start[i] + lane);
        int64_t until = (int64_t)((uint64_t)begin[i] + length), from = (int64_t)((uint64_t)until - (uint64_t)axis[2]);
        if (from < begin[i]) from = begin[i];
        size_t low = 0, high = depth;
        if (depth && open[depth - 1].until > from) low = depth;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (open[middle].until > from)
                low = middle + 1;
            else
                high = middle;
        }
        put_number(&of, 8, i, narrow_parent, low ? open[low - 1].row : -1);
        while (depth && open[depth - 1].until <= until) depth--;
        if (depth == room) {
            open_row *larger = realloc(open, 2 * room * sizeof *open);
            if (!larger) free(open);
            open = larger;
            room *= 2;
        }
        if (open) open[depth++] = (open_row){(int64_t)i, until};
    }
    if (!open) return no_memory(&of);
    free(open);
    return done(&of, NULL);
}

/* The op that a thread is in innermost at each time, -1 for none; how many are not there yet after so many steps up from the one
 * that began last. `rows` are in order of thread and start, of which `parent`, of the same type, tells what encloses each. */
PyObject *innermost(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 8, 1, &of)) return NULL;
    const int64_t *start = of.values[2], *length = of.values[3], *times = of.values[6];
    size_t size = of.size[2], asked = of.size[6], hint = 0, above = 0;
    int narrow = is_narrow(&of, 1, size), asked_narrow = is_narrow(&of, 5, asked), narrow_rows = is_narrow(&of, 4, size);
    if (narrow < 0 || asked_narrow < 0 || narrow_rows < 0 || of.size[3] != size || of.size[7] != asked)
        return done(&of, "the arrays differ in length");
    if (!are_rows(&of, 0, narrow_rows, size)) return done(&of, "no such row");
    size_t count = number_count(&of, 0, narrow_rows);
#define ROW(i) ((size_t)number_at(&of, 0, i, narrow_rows))
#define BEGAN(i) (number_at(&of, 1, ROW(i), narrow) < thread || \
                  (number_at(&of, 1, ROW(i), narrow) == thread && start[ROW(i)] <= times[k]))
    for (size_t k = 0; k < asked; k++) {
        int64_t thread = number_at(&of, 5, k, asked_narrow);
        size_t low = hint, high = hint, step = 1;
        if (hint < count && BEGAN(hint)) {
            while (high < count && BEGAN(high)) {
                low = high + 1;
                high = step < count - high ? high + step : count;
                step *= 2;
            }
        } else {
            while (low > 0 && !BEGAN(low - 1)) {
                high = low - 1;
                low = step < low ? low - step : 0;
                step *= 2;
            }
        }
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (BEGAN(middle))
                low = middle + 1;
            else
                high = middle;
        }
        hint = low;
        int64_t row = low ? (int64_t)ROW(low - 1) : -1;
        if (row >= 0 && number_at(&of, 1, (size_t)row, narrow) != thread) row = -1;
        int level = 0;
        while (row >= 0 && (uint64_t)row < size && (int64_t)((uint64_t)start[row] + (uint64_t)length[row]) <= times[k] &&
               level++ < LEVELS)
            row = number_at(&of, 4, (size_t)row, narrow_rows);
        if (row >= (int64_t)size) return done(&of, "no such row");
        if (level > LEVELS) above++;
        of.values[7][k] = row;
    }
#undef BEGAN
#undef ROW
    return counted(&of, (int64_t)above);
}

/* The row that encloses each op; rows are in order of thread, start, longest first, and of the type of `parent`.
 * What encloses an op is the last one before it on its thread that ends after it begins. */
PyObject *nest(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 1, &of)) return NULL;
    const int64_t *start = of.values[2], *length = of.values[3];
    int64_t last = 0;
    size_t size = of.size[2], depth = 0, room = 1024;
    int narrow = is_narrow(&of, 1, size), narrow_rows = is_narrow(&of, 4, size);
    if (narrow < 0 || narrow_rows < 0 || of.size[3] != size) return done(&of, "the arrays differ in length");
    if (narrow_rows && size > (size_t)INT32_MAX + 1) return done(&of, "there is no room");
    if (!are_rows(&of, 0, narrow_rows, size)) return done(&of, "no such row");
    size_t count = number_count(&of, 0, narrow_rows);
    /* Those of the thread that none after them outlasts: the earlier one ends later. */
    open_row *open = malloc(room * sizeof *open);
    for (size_t i = 0; open && i < count; i++) {
        int64_t row = number_at(&of, 0, i, narrow_rows), thread = number_at(&of, 1, (size_t)row, narrow);
        if (i && thread != last) depth = 0;
        last = thread;
        int64_t until = (int64_t)((uint64_t)start[row] + (uint64_t)length[row]);
        size_t low = 0, high = depth;
        if (depth && open[depth - 1].until > start[row]) low = depth;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (open[middle].until > start[row])
                low = middle + 1;
            else
                high = middle;
        }
        put_number(&of, 4, (size_t)row, narrow_rows, low ? open[low - 1].row : -1);
        while (depth && open[depth - 1].until <= until) depth--;
        if (depth == room) {
            open_row *larger = realloc(open, 2 * room * sizeof *open);
            if (!larger) free(open);
            open = larger;
            room *= 2;
        }
        if (open) open[depth++] = (open_row){row, until};
    }
    if (!open) return no_memory(&of);
    free(open);
    return done(&of, NULL);
}

/* Takes from the time of each op what those in it cover; rows and `parent` are as `nest` has them, `own` are the lengths at first.
 * A child starts only after all that started within its elder siblings has ended: from each to the latest end below it they are
 * apart and can be added. */
PyObject *own_times(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 1, &of)) return NULL;
    const int64_t *start = of.values[1], *length = of.values[2];
    int64_t *own = of.values[4];
    size_t size = of.size[1];
    int narrow_rows = is_narrow(&of, 3, size);
    if (narrow_rows < 0 || of.size[2] != size || of.size[4] != size) return done(&of, "the arrays differ in length");
    if (!are_rows(&of, 0, narrow_rows, size)) return done(&of, "no such row");
    int64_t *reach = malloc((size + 1) * sizeof *reach);
    if (!reach) return no_memory(&of);
    for (size_t i = 0; i < size; i++) reach[i] = (int64_t)((uint64_t)start[i] + (uint64_t)length[i]);
    const char *problem = NULL;
    for (size_t i = number_count(&of, 0, narrow_rows); i-- > 0;) {
        size_t row = (size_t)number_at(&of, 0, i, narrow_rows);
        int64_t above = number_at(&of, 3, row, narrow_rows);
        if (above < 0) continue;
        if ((uint64_t)above >= size) {
            problem = "no such row";
            break;
        }
        int64_t until = (int64_t)((uint64_t)start[above] + (uint64_t)length[above]);
        uint64_t covered = (uint64_t)(reach[row] < until ? reach[row] : until) - (uint64_t)start[row];
        own[above] = (int64_t)((uint64_t)own[above] - covered);
        if (reach[row] > reach[above]) reach[above] = reach[row];
    }
    free(reach);
    return done(&of, problem);
}

PyObject *nearest(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 4, 1, &of)) return NULL;
    const int64_t *rows = of.values[2];
    const char *wanted = of.views[1].buf;
    int64_t size = (int64_t)of.views[1].len, above = 0;
    int narrow = is_narrow(&of, 0, (size_t)size);
    if (narrow < 0 || of.size[3] != of.size[2]) return done(&of, "the arrays differ in length");
    for (size_t i = 0; i < of.size[2]; i++) {
        if (rows[i] < 0 || rows[i] >= size) return done(&of, "no such row");
        int64_t row = number_at(&of, 0, (size_t)rows[i], narrow);
        int level = 0;
        for (; row >= 0 && row < size && !wanted[row] && level < LEVELS; level++) row = number_at(&of, 0, (size_t)row, narrow);
        if (row >= size) return done(&of, "no such row");
        if (row >= 0 && !wanted[row]) above++;
        of.values[3][i] = row;
    }
    return counted(&of, above);
}

PyObject *running(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 4, 1, &of)) return NULL;
    const int64_t *end = of.values[1], *times = of.values[2];
    int64_t size = (int64_t)of.size[1], above = 0;
    int narrow = is_narrow(&of, 0, (size_t)size);
    if (narrow < 0 || of.size[3] != of.size[2]) return done(&of, "the arrays differ in length");
    for (size_t i = 0; i < of.size[2]; i++) {
        int64_t row = of.values[3][i];
        int level = 0;
        for (; row >= 0 && row < size && end[row] <= times[i] && level < LEVELS; level++)
            row = number_at(&of, 0, (size_t)row, narrow);
        if (row >= size) return done(&of, "no such row");
        if (row >= 0 && end[row] <= times[i]) above++;
        of.values[3][i] = row;
    }
    return counted(&of, above);
}
