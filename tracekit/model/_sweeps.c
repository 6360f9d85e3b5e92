/* tracekit.model._sweeps: passes over times in order and over keys, one step an interval or a row, for Python.
 *
 * `_sweeps.pyi` describes what Python sees. All arrays are of int64; results go to arrays that Python has made.
 */
#include "_arrays.h"

static PyObject *covered_before(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 4, 1, &of)) return NULL;
    const int64_t *start = of.values[0], *end = of.values[1], *points = of.values[2];
    size_t count = of.size[0], asked = of.size[2], hint = 0;
    if (of.size[1] != count || of.size[3] != asked) return done(&of, "the arrays differ in length");
    int64_t *sums = malloc((count + 1) * sizeof *sums), *out = of.values[3];
    if (!sums) return no_memory(&of);
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        sums[i] = (int64_t)sum;
        sum += (uint64_t)end[i] - (uint64_t)start[i];
    }
    for (size_t i = 0; i < asked; i++) {
        hint = place(start, count, points[i], 1, hint);
        out[i] = 0;
        if (!hint) continue;
        int64_t until = points[i] < end[hint - 1] ? points[i] : end[hint - 1];
        out[i] = (int64_t)((uint64_t)sums[hint - 1] + (uint64_t)until - (uint64_t)start[hint - 1]);
    }
    free(sums);
    return done(&of, NULL);
}

static PyObject *places(PyObject *args, int right)
{
    arrays of;
    if (!take(args, 3, 1, &of)) return NULL;
    if (of.size[1] != of.size[2]) return done(&of, "the arrays differ in length");
    size_t hint = 0;
    for (size_t i = 0; i < of.size[1]; i++) {
        hint = place(of.values[0], of.size[0], of.values[1][i], right, hint);
        of.values[2][i] = (int64_t)hint;
    }
    return done(&of, NULL);
}

static PyObject *places_left(PyObject *module, PyObject *args) { return (void)module, places(args, 0); }
static PyObject *places_right(PyObject *module, PyObject *args) { return (void)module, places(args, 1); }

/* What a sparse column holds at each of the asked rows; its rows, of 4 bytes, ascend as the asked ones do. */
static PyObject *values_at(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 2, &of)) return NULL;
    const int32_t *rows = of.views[0].buf;
    const int64_t *asked = of.values[2];
    size_t count = (size_t)of.views[0].len / sizeof *rows, size = of.size[2], next = 0;
    char *missing = of.views[4].buf;
    if (of.size[1] != count || of.size[3] != size || (size_t)of.views[4].len != size)
        return done(&of, "the arrays differ in length");
    for (size_t i = 0; i < size; i++) {
        while (next < count && rows[next] < asked[i]) next++;
        int holds = next < count && rows[next] == asked[i];
        missing[i] = !holds;
        of.values[3][i] = holds ? of.values[1][next] : 0;
    }
    return done(&of, NULL);
}

static PyObject *windows(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 4, 1, &of)) return NULL;
    const int64_t *end = of.values[1], *points = of.values[2];
    size_t hint = 0;
    if (of.size[1] != of.size[0] || of.size[3] != of.size[2]) return done(&of, "the arrays differ in length");
    for (size_t i = 0; i < of.size[2]; i++) {
        hint = place(of.values[0], of.size[0], points[i], 1, hint);
        of.values[3][i] = hint && points[i] < end[hint - 1] ? (int64_t)hint - 1 : -1;
    }
    return done(&of, NULL);
}

/* Adds [low, high) behind intervals of which none begins later; what touches the last one joins it. */
static size_t add_interval(int64_t *start, int64_t *end, size_t count, int64_t low, int64_t high)
{
    if (count && low <= end[count - 1]) {
        if (high > end[count - 1]) end[count - 1] = high;
        return count;
    }
    start[count] = low;
    end[count] = high;
    return count + 1;
}

static PyObject *join(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 4, 2, &of)) return NULL;
    const int64_t *start = of.values[0], *end = of.values[1];
    size_t size = of.size[0], count = 0;
    if (of.size[1] != size || of.size[2] < size || of.size[3] < size) return done(&of, "the arrays differ in length");
    int64_t latest = INT64_MIN;
    for (size_t i = 0; i < size; i++) {
        if (end[i] <= start[i]) continue;
        if (start[i] < latest) return counted(&of, -1);
        latest = start[i];
        count = add_interval(of.values[2], of.values[3], count, start[i], end[i]);
    }
    return counted(&of, (int64_t)count);
}

/* The same of the rows of a table that are chosen, which last so long; how many intervals these make, be there room or not.
 * A row that starts before the one above it begins a run of its own: of several runs it is -1 less that number. */
static PyObject *join_chosen(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 2, &of)) return NULL;
    const char *is_chosen = of.views[0].buf;
    const int64_t *start = of.values[1], *length = of.values[2];
    size_t size = of.size[1], room = of.size[3], count = 0;
    int64_t latest = INT64_MIN, low = 0, high = 0;
    int is_one_run = 1;
    if ((size_t)of.views[0].len != size || of.size[2] != size || of.size[4] != room)
        return done(&of, "the arrays differ in length");
    for (size_t i = 0; i < size; i++) {
        int64_t end = (int64_t)((uint64_t)start[i] + (uint64_t)length[i]);
        if (!is_chosen[i] || end <= start[i]) continue;
        int is_new_run = start[i] < latest;
        latest = start[i];
        if (is_new_run) is_one_run = 0;
        if (!count || is_new_run || start[i] > high) {
            count++;
            low = start[i];
            high = end;
        } else if (end > high) {
            high = end;
        }
        if (count <= room) {
            of.values[3][count - 1] = low;
            of.values[4][count - 1] = high;
        }
    }
    return counted(&of, is_one_run ? (int64_t)count : -1 - (int64_t)count);
}

static PyObject *combine(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 6, 2, &of)) return NULL;
    size_t first = of.size[0], second = of.size[2], i = 0, j = 0, count = 0;
    if (of.size[1] != first || of.size[3] != second) return done(&of, "the arrays differ in length");
    /* The last item of the first result says which states are kept; there is room for all edges besides. */
    if (of.size[4] < 2 * (first + second) + 1 || of.size[5] < of.size[4]) return done(&of, "there is no room");
    int64_t *low = of.values[4], *high = of.values[5], kept = low[of.size[4] - 1], time = 0;
    int state = 0;
    while (i < 2 * first || j < 2 * second) {
        int64_t a = i < 2 * first ? of.values[i & 1][i / 2] : INT64_MAX;
        int64_t b = j < 2 * second ? of.values[2 + (j & 1)][j / 2] : INT64_MAX;
        int64_t next = j == 2 * second || (i < 2 * first && a <= b) ? a : b;
        if (kept >> state & 1 && next > time) count = add_interval(low, high, count, time, next);
        if (i < 2 * first && a == next) i++, state ^= 1;
        if (j < 2 * second && b == next) j++, state ^= 2;
        time = next;
    }
    return counted(&of, (int64_t)count);
}

static PyObject *united(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 2, &of)) return NULL;
    const int64_t *start = of.values[0], *end = of.values[1], *group = of.values[2];
    int64_t *reach = of.values[3], *totals = of.values[4], latest = INT64_MIN;
    size_t size = of.size[0], groups = of.size[4];
    if (of.size[1] != size || of.size[2] != size || of.size[3] != groups) return done(&of, "the arrays differ in length");
    for (size_t i = 0; i < size; i++) {
        if (end[i] <= start[i]) continue;
        if (group[i] < 0 || (uint64_t)group[i] >= groups) return done(&of, "no such group");
        if (start[i] < latest) return done(&of, "the intervals are not in order");
        latest = start[i];
        int64_t *until = &reach[group[i]], from = start[i] > *until ? start[i] : *until;
        if (end[i] <= from) continue;
        totals[group[i]] += end[i] - from;
        *until = end[i];
    }
    return done(&of, NULL);
}

static PyObject *last_reaching(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 3, 1, &of)) return NULL;
    const int64_t *start = of.values[0], *end = of.values[1];
    size_t size = of.size[0], room = 1024, depth = 0;
    if (of.size[1] != size || of.size[2] != size) return done(&of, "the arrays differ in length");
    /* Those that none after them outlasts: the earlier one ends later. */
    size_t *open = malloc(room * sizeof *open);
    for (size_t i = 0; open && i < size; i++) {
        size_t low = 0, high = depth;
        if (depth && end[open[depth - 1]] > start[i]) low = depth;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (end[open[middle]] > start[i])
                low = middle + 1;
            else
                high = middle;
        }
        of.values[2][i] = low ? (int64_t)open[low - 1] : -1;
        while (depth && end[open[depth - 1]] <= end[i]) depth--;
        if (depth == room) {
            size_t *larger = realloc(open, 2 * room * sizeof *open);
            if (!larger) free(open);
            open = larger;
            room *= 2;
        }
        if (open) open[depth++] = i;
    }
    if (!open) return no_memory(&of);
    free(open);
    return done(&of, NULL);
}

/* So many places a key, and `ROOM` besides, a table of them may have before sorting is cheaper. */
#define ROOM_A_KEY 32

static PyObject *numbered(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 3, 2, &of)) return NULL;
    const int64_t *keys = of.values[0];
    int64_t *distinct = of.values[1], *place = of.values[2], low = INT64_MAX, high = INT64_MIN;
    size_t size = of.size[0], count = 0;
    if (of.size[1] != size || of.size[2] != size) return done(&of, "the arrays differ in length");
    if (!size) return counted(&of, 0);
    for (size_t i = 0; i < size; i++) {
        if (keys[i] < low) low = keys[i];
        if (keys[i] > high) high = keys[i];
    }
    uint64_t last = (uint64_t)high - (uint64_t)low;
    if (last >= ROOM_A_KEY * (uint64_t)size + ROOM || size > UINT32_MAX) return counted(&of, -1);
    uint32_t *table = calloc(last + 1, sizeof *table);
    if (!table) return no_memory(&of);
    for (size_t i = 0; i < size; i++) table[(uint64_t)keys[i] - (uint64_t)low] = 1;
    for (uint64_t i = 0; i <= last; i++) {
        if (!table[i]) continue;
        table[i] = (uint32_t)count;
        distinct[count++] = (int64_t)((uint64_t)low + i);
    }
    for (size_t i = 0; i < size; i++) place[i] = table[(uint64_t)keys[i] - (uint64_t)low];
    free(table);
    return counted(&of, (int64_t)count);
}

static PyObject *appearing(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 3, 2, &of)) return NULL;
    const int64_t *keys = of.values[0];
    int64_t *place = of.values[1], *first = of.values[2];
    size_t size = of.size[0], count = 0, steps = 0, most = STEPS_A_KEY * size + ROOM;
    if (of.size[1] != size || of.size[2] != size) return done(&of, "the arrays differ in length");
    if (size >= UINT32_MAX / 4) return counted(&of, -1);
    int bits = 4;
    while (((size_t)1 << bits) < 2 * size) bits++;
    size_t mask = ((size_t)1 << bits) - 1;
    uint32_t *table = calloc(mask + 1, sizeof *table); /* the number of a key, plus 1 */
    if (!table) return no_memory(&of);
    for (size_t i = 0; i < size && steps <= most; i++) {
        size_t slot = (size_t)(((uint64_t)keys[i] * 0x9E3779B97F4A7C15u) >> (64 - bits));
        while (table[slot] && keys[first[table[slot] - 1]] != keys[i] && ++steps <= most) slot = (slot + 1) & mask;
        if (!table[slot]) {
            first[count++] = (int64_t)i;
            table[slot] = (uint32_t)count;
        }
        place[i] = (int64_t)table[slot] - 1;
    }
    free(table);
    return counted(&of, steps > most ? -1 : (int64_t)count);
}

/* Rows and what is asked of them: array `keys` of `arrays`, of int32 where `narrow`, found by a table of numbers of rows plus 1. */
typedef struct {
    const arrays *of;
    uint32_t *table; /* 0 for none */
    int narrow, bits;
    size_t steps, most;
} key_table;

/* Where a key stands in the table, or where it would: farther than the steps allow, never. Keys that follow one another, as ids
 * of calls do, stand side by side: to look for each somewhere else would cost a miss of the cache. */
static size_t slot_of(key_table *in, int64_t key)
{
    size_t mask = ((size_t)1 << in->bits) - 1;
    size_t slot = (size_t)((uint64_t)key + ((uint64_t)key >> in->bits) * 0x9E3779B97F4A7C15u) & mask;
    while (in->table[slot] && number_at(in->of, 0, in->table[slot] - 1, in->narrow) != key && ++in->steps <= in->most)
        slot = (slot + 1) & mask;
    return slot;
}

/* For each asked key the last row of that key that started, not after the limit, or else its first; rows are in order of start. */
static PyObject *latest(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 1, &of)) return NULL;
    const int64_t *starts = of.values[1], *limit = of.values[3];
    size_t size = of.size[1], count = of.size[3];
    int narrow = is_narrow(&of, 0, size), narrow_asked = is_narrow(&of, 2, count);
    if (narrow < 0 || narrow_asked < 0 || of.size[4] != count) return done(&of, "the arrays differ in length");
    if (size >= UINT32_MAX / 4) return counted(&of, -1);
    for (size_t i = 1; i < size; i++)
        if (starts[i] < starts[i - 1]) return counted(&of, -1);
    key_table in = {.of = &of, .narrow = narrow, .bits = 4, .most = STEPS_A_KEY * (size + count) + ROOM};
    while (((size_t)1 << in.bits) < 2 * size) in.bits++;
    /* The table finds the first row of a key. `until` counts the rows of the key of each first row, and becomes the place up to
     * which they stand in `rows`, one key after the other in the order of their first rows. */
    in.table = calloc((size_t)1 << in.bits, sizeof *in.table);
    uint32_t *first = malloc((size + 1) * sizeof *first);
    uint32_t *until = calloc(size + 1, sizeof *until), *rows = malloc((size + 1) * sizeof *rows);
    int is_full = !in.table || !first || !until || !rows;
    for (size_t i = 0; !is_full && i < size && in.steps <= in.most; i++) {
        size_t slot = slot_of(&in, number_at(&of, 0, i, narrow));
        if (!in.table[slot]) in.table[slot] = (uint32_t)i + 1;
        first[i] = in.table[slot] - 1;
        until[first[i]]++;
    }
    uint32_t sum = 0;
    for (size_t i = 0; !is_full && i < size; i++) {
        uint32_t number = until[i];
        until[i] = sum;
        sum += number;
    }
    for (size_t i = 0; !is_full && in.steps <= in.most && i < size; i++) rows[until[first[i]]++] = (uint32_t)i;
    for (size_t i = 0; !is_full && i < count && in.steps <= in.most; i++) {
        size_t slot = slot_of(&in, number_at(&of, 2, i, narrow_asked));
        of.values[4][i] = -1;
        if (!in.table[slot] || in.steps > in.most) continue;
        uint32_t head = in.table[slot] - 1, low = head ? until[head - 1] : 0, high = until[head];
        of.values[4][i] = (int64_t)head;
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (starts[rows[middle]] <= limit[i]) {
                of.values[4][i] = (int64_t)rows[middle];
                low = middle + 1;
            } else {
                high = middle;
            }
        }
    }
    free(in.table);
    free(first);
    free(until);
    free(rows);
    if (is_full) return no_memory(&of);
    return counted(&of, in.steps > in.most ? -1 : (int64_t)count);
}

/* For each asked group the latest of its times before the limit; both in order of time, -1 where they are not. Groups are numbers
 * from `low` on, as many as there is room for in `last`, which holds what stands for no time. */
static PyObject *latest_before(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 7, 2, &of)) return NULL;
    const int64_t *group = of.values[0], *time = of.values[1], *asked = of.values[2], *limit = of.values[3];
    int64_t *last = of.values[5], *out = of.values[6];
    size_t size = of.size[0], count = of.size[2], at = 0;
    if (of.size[1] != size || of.size[3] != count || of.size[4] != 1 || of.size[6] != count || !of.size[5])
        return done(&of, "the arrays differ in length");
    uint64_t low = (uint64_t)of.values[4][0], groups = of.size[5] - 1;
    int64_t none = last[groups];
    for (size_t i = 1; i < size; i++)
        if (time[i] < time[i - 1]) return counted(&of, -1);
    for (size_t i = 1; i < count; i++)
        if (limit[i] < limit[i - 1]) return counted(&of, -1);
    for (size_t i = 0; i < count; i++) {
        for (; at < size && time[at] < limit[i]; at++) {
            if ((uint64_t)group[at] - low >= groups) return done(&of, "no such group");
            last[(uint64_t)group[at] - low] = time[at];
        }
        uint64_t place = (uint64_t)asked[i] - low;
        out[i] = place < groups ? last[place] : none;
    }
    return counted(&of, (int64_t)count);
}

static PyObject *summed(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 3, 1, &of)) return NULL;
    int narrow = is_narrow(&of, 0, of.size[1]);
    if (narrow < 0) return done(&of, "the arrays differ in length");
    for (size_t i = 0; i < of.size[1]; i++) {
        int64_t group = number_at(&of, 0, i, narrow);
        if (group < 0) continue;
        if ((uint64_t)group >= of.size[2]) return done(&of, "no such group");
        int64_t *total = &of.values[2][group];
        *total = (int64_t)((uint64_t)*total + (uint64_t)of.values[1][i]);
    }
    return done(&of, NULL);
}

/* What each group has run for on the thread that is looked at: `reach` is the end of all of it so far. */
typedef struct {
    int64_t reach;
    size_t thread, interval;
} run_state;

/* Unites the intervals of each group on every thread; rows are in order of thread and start, and of the type of groups. The united intervals and their
 * groups and threads go to `low` … where these are; the lengths that have been added up to `totals`. How many there are. */
static PyObject *outermost(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 9, 4, &of)) return NULL;
    const int64_t *start = of.values[2], *length = of.values[3];
    int64_t *totals = of.values[5], *low = of.values[6], *high = of.values[7];
    size_t size = of.size[2], groups = of.size[5], threads = 0, count = 0;
    int narrow = is_narrow(&of, 1, size), narrow_rows = is_narrow(&of, 4, size);
    if (narrow < 0 || narrow_rows < 0 || of.size[3] != size) return done(&of, "the arrays differ in length");
    if (!are_rows(&of, 0, narrow_rows, size)) return done(&of, "no such row");
    size_t asked = number_count(&of, 0, narrow_rows);
    int keeps = of.size[6] > 0, narrow_first = is_narrow(&of, 8, of.size[6]);
    if (keeps && (of.size[6] < asked || of.size[7] < asked || narrow_first < 0)) return done(&of, "there is no room");
    if (narrow_first > 0 && size > (size_t)INT32_MAX + 1) return done(&of, "there is no room");
    run_state *states = calloc(groups + 1, sizeof *states);
    if (!states) return no_memory(&of);
    int64_t latest = INT64_MIN, last = 0;
    const char *problem = NULL;
    for (size_t i = 0; !problem && i < asked; i++) {
        size_t row = (size_t)number_at(&of, 0, i, narrow_rows);
        int64_t thread = number_at(&of, 1, row, narrow);
        if (!threads || thread != last) {
            threads++;
            last = thread;
            latest = INT64_MIN;
        }
        int64_t from = start[row], until = (int64_t)((uint64_t)from + (uint64_t)length[row]), of_group = number_at(&of, 4, row, narrow_rows);
        if (of_group < 0 || (uint64_t)of_group >= groups) {
            problem = "no such group";
            break;
        }
        if (from < latest) problem = "the intervals are not in order";
        latest = from;
        run_state *state = &states[of_group];
        int is_new = state->thread != threads || from > state->reach;
        if (keeps) {
            /* One without length lasts 1 ns among the intervals, and nothing among the totals. */
            int64_t solid = until > from ? until : from + 1;
            if (state->thread != threads || from > high[state->interval]) {
                state->interval = count;
                low[count] = from;
                high[count] = solid;
                put_number(&of, 8, count++, narrow_first, (int64_t)row);
            } else if (solid > high[state->interval]) {
                high[state->interval] = solid;
            }
        }
        if (!is_new) from = state->reach;
        if (until > from) totals[of_group] += until - from;
        if (state->thread != threads || until > state->reach) state->reach = until;
        state->thread = threads;
    }
    free(states);
    return problem ? done(&of, problem) : counted(&of, (int64_t)count);
}

#define CLASSES 64

/* What ops get: the first class of which any runs shares out the time to the next edge. `got` is what an op of its class had
 * got before the start and before the end of each; `edges` what one of each class had before every other edge. */
static PyObject *swept(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 8, 5, &of)) return NULL;
    const int64_t *sequence = of.values[0], *times = of.values[1], *kind = of.values[2];
    size_t size = of.size[1], ops = of.size[2], count = 0;
    if (of.size[0] != size || size < 2 * ops || of.size[3] != 2 * ops) return done(&of, "the arrays differ in length");
    size_t others = size - 2 * ops, row = others + 1, classes = of.size[4] / row;
    if (of.size[4] != classes * row) return done(&of, "the arrays differ in length");
    if (classes > CLASSES || of.size[5] < size || of.size[6] < size || of.size[7] < size)
        return done(&of, "there is no room");
    int64_t got[CLASSES] = {0}, active[CLASSES] = {0};
    for (size_t i = 0; i < size; i++) {
        uint64_t edge = (uint64_t)sequence[i], op = edge < ops ? edge : edge - ops;
        if (edge >= size) return done(&of, "no such edge");
        if (edge < 2 * ops) {
            if (kind[op] < 0 || (uint64_t)kind[op] >= classes) return done(&of, "no such class");
            active[kind[op]] += edge < ops ? 1 : -1;
            of.values[3][edge] = got[kind[op]];
        } else {
            for (size_t k = 0; k < classes; k++) of.values[4][k * row + (size_t)(edge - 2 * ops)] = got[k];
        }
        int64_t length = i + 1 < size ? times[i + 1] - times[i] : 0;
        size_t first = 0;
        while (first < classes && active[first] <= 0) first++;
        if (first < classes && length > 0) {
            int64_t each = length / active[first];
            got[first] += each;
            if (each * active[first] < length) {
                of.values[5][count] = (int64_t)i;
                of.values[6][count] = (int64_t)first;
                of.values[7][count++] = length - each * active[first];
            }
        }
    }
    return counted(&of, (int64_t)count);
}

static PyMethodDef functions[] = {
    {"covered_before", covered_before, METH_VARARGS, "How much of intervals lies before each point."},
    {"places_left", places_left, METH_VARARGS, "How many of ascending values are below each."},
    {"places_right", places_right, METH_VARARGS, "How many of ascending values are not above each."},
    {"values_at", values_at, METH_VARARGS, "The values of a sparse column at ascending rows, and where there are none."},
    {"windows", windows, METH_VARARGS, "The window that each point lies in."},
    {"join", join, METH_VARARGS, "The union of intervals in order; -1 where they are not."},
    {"join_chosen", join_chosen, METH_VARARGS, "The union of each run of chosen rows in order of start; how many intervals."},
    {"combine", combine, METH_VARARGS, "The points of two sets of intervals whose state is kept."},
    {"united", united, METH_VARARGS, "The length of the union of the intervals of each group."},
    {"last_reaching", last_reaching, METH_VARARGS, "The last interval before each that ends after it begins."},
    {"numbered", numbered, METH_VARARGS, "The distinct keys, and the place of each; -1 where they lie far apart."},
    {"appearing", appearing, METH_VARARGS, "The number of each key, and where each appears first; -1 for no answer."},
    {"latest", latest, METH_VARARGS, "The last row of each key before a limit; -1 for no answer."},
    {"latest_before", latest_before, METH_VARARGS, "The latest time of each group before a limit; -1 for another order."},
    {"by_thread", by_thread, METH_VARARGS, "Rows by thread and start; -1 for no answer."},
    {"summed", summed, METH_VARARGS, "The sums of the values of each group."},
    {"nearest", nearest, METH_VARARGS, "The nearest enclosing row that is wanted; how many are further up."},
    {"running", running, METH_VARARGS, "The nearest enclosing row that has not ended; how many are further up."},
    {"innermost", innermost, METH_VARARGS, "The op that a thread is in at each time; how many are further up."},
    {"nest", nest, METH_VARARGS, "What encloses each op."},
    {"own_times", own_times, METH_VARARGS, "The time of each op that none in it takes."},
    {"swept", swept, METH_VARARGS, "What ops have got when they start and end."},
    {"outermost", outermost, METH_VARARGS, "The time of groups of ops, recursion counted once."},
    {"depths", depths, METH_VARARGS, "How many rows enclose each; the most, -1 for no answer."},
    {"mark_enclosing", mark_enclosing, METH_VARARGS, "All that encloses what is marked is marked."},
    {"paths", paths, METH_VARARGS, "The number of the path of keys of each row; -1 for no answer."},
    {"pieces", pieces, METH_VARARGS, "Segments cut at edges, and the row of each piece; how many rows are further up."},
    {"pooled", pooled, METH_VARARGS, "The lengths of pieces of one node between two points, summed."},
    {"in_windows", in_windows, METH_VARARGS, "The nodes of pieces by window; how many there are."},
    {"lanes", lanes, METH_VARARGS, "Rows on one axis, and what encloses each."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_sweeps",
    .m_doc = "Passes over times in order.",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__sweeps(void) { return PyModuleDef_Init(&definition); }
