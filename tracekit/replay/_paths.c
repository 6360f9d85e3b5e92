/* tracekit.replay._paths: the passes over a dependency graph that numpy cannot do level by level, for Python.
 *
 * `_paths.pyi` describes what Python sees. Instants are numbered from 0; edges lead from `source` to `target`, both int32.
 */
#include "../model/_arrays.h"

#define NEVER (INT64_MIN / 4)
#define UNLIMITED (INT64_MAX / 2 + 1)

static const int32_t *narrow(const arrays *of, int array) { return of->views[array].buf; }

/* Whether an array holds so many int32. */
static int holds_narrow(const arrays *of, int array, size_t items)
{
    return (size_t)of->views[array].len == items * sizeof(int32_t);
}

/* Whether an array holds the edges into each instant, or nothing: then the edges themselves are sorted by target. */
static int holds_incoming(const arrays *of, int array, size_t edges) { return !of->views[array].len || holds_narrow(of, array, edges); }

/* Sorts the instants topologically, by the edges of a graph and by `more` that were added to it. The order goes on along one thread
 * for as long as it can: what follows one another lies together in memory. Gives how many instants could be ordered, fewer than
 * all if edges form a cycle; the others follow. -1 without memory. */
static int64_t sort(const int32_t *const source[2], const int32_t *const target[2], const size_t edges[2], size_t instants, int32_t *sorted)
{
    int32_t *leaving = calloc(instants + 1, sizeof *leaving), *open = calloc(instants + 1, sizeof *open);
    int32_t *outgoing = malloc((edges[0] + edges[1] + 1) * sizeof *outgoing);
    if (!leaving || !open || !outgoing) {
        free(leaving), free(open), free(outgoing);
        return -1;
    }
    for (int of = 0; of < 2; of++)
        for (size_t e = 0; e < edges[of]; e++) leaving[source[of][e]]++, open[target[of][e]]++;
    for (size_t i = 0; i < instants; i++) leaving[i + 1] += leaving[i];
    for (int of = 2; of-- > 0;)
        for (size_t e = edges[of]; e-- > 0;) outgoing[--leaving[source[of][e]]] = target[of][e];
    /* Ordered instants fill the array from its begin, those that wait for their turn from its end: together never more than all. */
    size_t waiting = instants, count = 0;
    for (size_t i = instants; i-- > 0;)
        if (!open[i]) sorted[--waiting] = (int32_t)i;
    while (waiting < instants) {
        int32_t at = sorted[waiting++];
        sorted[count++] = at;
        for (int32_t k = leaving[at]; k < leaving[at + 1]; k++)
            if (!--open[outgoing[k]]) sorted[--waiting] = outgoing[k];
    }
    int64_t ordered = (int64_t)count;
    for (size_t i = 0; i < instants; i++)
        if (open[i] > 0) sorted[count++] = (int32_t)i;
    free(leaving), free(open), free(outgoing);
    return ordered;
}

/* Whether all instants of edges are below a count. */
static int are_instants(const int32_t *source, const int32_t *target, size_t edges, size_t instants)
{
    for (size_t e = 0; e < edges; e++)
        if ((uint32_t)source[e] >= instants || (uint32_t)target[e] >= instants) return 0;
    return 1;
}

/* first[i] is the first place in `incoming` of the edges into instant i, which ascend; `order` is topological. `incoming` may have no
 * room if the edges are sorted by target. Gives how many instants could be ordered. */
static PyObject *order(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 3, &of)) return NULL;
    const int32_t *source = narrow(&of, 0), *target = narrow(&of, 1);
    size_t edges = (size_t)of.views[0].len / sizeof(int32_t), instants = (size_t)of.views[4].len / sizeof(int32_t);
    if (!holds_narrow(&of, 1, edges) || !holds_narrow(&of, 2, instants + 1) || !holds_incoming(&of, 3, edges) || edges >= INT32_MAX)
        return done(&of, "the arrays differ in length");
    if (!are_instants(source, target, edges, instants)) return done(&of, "an edge without an instant");
    int32_t *first = of.views[2].buf, *incoming = of.views[3].buf;
    for (size_t i = 0; i <= instants; i++) first[i] = 0;
    for (size_t e = 0; e < edges; e++) first[target[e]]++;
    for (size_t i = 0; i < instants; i++) first[i + 1] += first[i];
    for (size_t e = edges; e-- > 0;) {
        int32_t place = --first[target[e]];
        if (of.views[3].len) incoming[place] = (int32_t)e;
    }
    int64_t ordered = sort((const int32_t *[]){source, source}, (const int32_t *[]){target, target}, (size_t[]){edges, 0}, instants, of.views[4].buf);
    return ordered < 0 ? no_memory(&of) : counted(&of, ordered);
}

/* A topological order of the instants of a graph to which edges were added: (source, target) of the graph and of the added. */
static PyObject *reorder(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 1, &of)) return NULL;
    const int32_t *source[] = {narrow(&of, 0), narrow(&of, 2)}, *target[] = {narrow(&of, 1), narrow(&of, 3)};
    size_t edges[] = {(size_t)of.views[0].len / sizeof(int32_t), (size_t)of.views[2].len / sizeof(int32_t)};
    size_t instants = (size_t)of.views[4].len / sizeof(int32_t);
    if (!holds_narrow(&of, 1, edges[0]) || !holds_narrow(&of, 3, edges[1]) || edges[0] + edges[1] >= INT32_MAX)
        return done(&of, "the arrays differ in length");
    for (int k = 0; k < 2; k++)
        if (!are_instants(source[k], target[k], edges[k], instants)) return done(&of, "an edge without an instant");
    int64_t ordered = sort(source, target, edges, instants, of.views[4].buf);
    return ordered < 0 ? no_memory(&of) : counted(&of, ordered);
}

/* The added edges of `longest`, by the instant that they lead to, and the instants that have any: a bit of each. */
typedef struct {
    const int32_t *source, *target, *number;
    const int64_t *weight;
    size_t count;
    uint8_t *has;
} added_edges;

/* The first of the added edges into an instant. */
static size_t first_added(const added_edges *added, int32_t at)
{
    size_t low = 0, high = added->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (added->target[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Each instant at the latest time that an edge into it demands; without such an edge at its recorded time, or where an edge
 * `decided` it before at 0, or the first of all times if that is earlier. `decider` is that edge, or -1; it may have no room. An edge with a weight of NEVER or less does not exist.
 * Added edges are sorted by their targets; their numbers follow those of the others. */
static PyObject *longest(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 13, 2, &of)) return NULL;
    const int32_t *sorted = narrow(&of, 0), *first = narrow(&of, 1), *incoming = narrow(&of, 2), *source = narrow(&of, 3), *decided = narrow(&of, 6);
    const int64_t *weight = of.values[4], *recorded = of.values[5];
    size_t instants = of.size[5], edges = of.size[4], many = of.size[9];
    int was_decided = of.views[6].len > 0, keeps_decider = of.views[12].len > 0, is_sorted = !of.views[2].len;
    if (!holds_narrow(&of, 0, instants) || !holds_narrow(&of, 1, instants + 1) || !holds_incoming(&of, 2, edges) || !holds_narrow(&of, 3, edges)
        || (was_decided && !holds_narrow(&of, 6, instants)) || !holds_narrow(&of, 7, many) || !holds_narrow(&of, 8, many)
        || !holds_narrow(&of, 10, many) || of.size[11] != instants || (keeps_decider && !holds_narrow(&of, 12, instants)))
        return done(&of, "the arrays differ in length");
    added_edges added = {narrow(&of, 7), narrow(&of, 8), narrow(&of, 10), of.values[9], many, NULL};
    if (!are_instants(added.source, added.target, many, instants)) return done(&of, "an edge without an instant");
    if (many && !(added.has = calloc(instants / 8 + 1, 1))) return no_memory(&of);
    for (size_t k = 0; k < many; k++) added.has[added.target[k] >> 3] |= (uint8_t)(1 << (added.target[k] & 7));
    int64_t earliest = 0;
    for (size_t i = 0; was_decided && i < instants; i++)
        if (recorded[i] < earliest) earliest = recorded[i];
    int64_t *time = of.values[11];
    int32_t *decider = of.views[12].buf;
    for (size_t k = 0; k < instants; k++) {
        if ((uint32_t)sorted[k] >= instants) {
            free(added.has);
            return done(&of, "an instant that is not there");
        }
        size_t at = (size_t)sorted[k];
        int64_t latest = NEVER;
        int32_t by = -1;
        for (int32_t j = first[at]; j < first[at + 1]; j++) {
            int32_t e = is_sorted ? j : incoming[j];
            if (weight[e] <= NEVER) continue;
            int64_t reached = time[source[e]] + weight[e];
            if (reached > latest) latest = reached, by = e;
        }
        if (many && added.has[at >> 3] >> (at & 7) & 1)
            for (size_t j = first_added(&added, (int32_t)at); j < many && added.target[j] == (int32_t)at; j++) {
                if (added.weight[j] <= NEVER) continue;
                int64_t reached = time[added.source[j]] + added.weight[j];
                if (reached > latest) latest = reached, by = (int32_t)edges + added.number[j];
            }
        time[at] = by >= 0 ? latest : was_decided && decided[at] >= 0 ? earliest : recorded[at];
        if (keeps_decider) decider[at] = by;
    }
    free(added.has);
    return done(&of, NULL);
}

/* Shortens weights so that no edge leads beyond the time of its target, and where all fall short of it, lengthens the one that comes
 * closest, of several the last one: lists these edges, and by how much they were lengthened. Gives how many there are. */
static PyObject *settle(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 7, 3, &of)) return NULL;
    const int32_t *first = narrow(&of, 0), *incoming = narrow(&of, 1), *source = narrow(&of, 2);
    const int64_t *time = of.values[3];
    size_t instants = of.size[3], edges = of.size[4], count = 0;
    int64_t *weight = of.values[4], *lengthened_by = of.values[6];
    int is_sorted = !of.views[1].len;
    int32_t *lengthened = of.views[5].buf;
    if (!holds_narrow(&of, 0, instants + 1) || !holds_incoming(&of, 1, edges) || !holds_narrow(&of, 2, edges) || !holds_narrow(&of, 5, instants)
        || of.size[6] != instants)
        return done(&of, "the arrays differ in length");
    for (size_t at = 0; at < instants; at++) {
        int64_t shortest = INT64_MAX;
        int32_t by = -1;
        for (int32_t j = first[at]; j < first[at + 1]; j++) {
            int32_t e = is_sorted ? j : incoming[j];
            int64_t most = time[at] - time[source[e]];
            if (weight[e] > most) weight[e] = most;
            if (most - weight[e] <= shortest) shortest = most - weight[e], by = e;
        }
        if (by < 0 || !shortest) continue;
        weight[by] += shortest;
        lengthened[count] = by, lengthened_by[count] = shortest;
        count++;
    }
    return counted(&of, (int64_t)count);
}

/* Walks from each instant `at` back along the deciding edges, and lists each edge with its time within [low, high): the first
 * pieces, as far as there is room. Time before the first instant is added to `before`. Gives the number of all pieces. */
static PyObject *walk(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 9, 3, &of)) return NULL;
    const int32_t *at = narrow(&of, 0), *decider = narrow(&of, 4), *source = narrow(&of, 5);
    const int64_t *low = of.values[1], *high = of.values[2], *time = of.values[3];
    size_t walks = of.size[1], instants = of.size[3], edges = (size_t)of.views[5].len / sizeof(int32_t), room = of.size[7], count = 0;
    if (!holds_narrow(&of, 0, walks) || of.size[2] != walks || !holds_narrow(&of, 4, instants) || !holds_narrow(&of, 6, room)
        || of.size[8] != 1)
        return done(&of, "the arrays differ in length");
    int32_t *edge = of.views[6].buf;
    int64_t *spent = of.values[7], *before = of.values[8];
    for (size_t k = 0; k < walks; k++) {
        if ((uint32_t)at[k] >= instants) return done(&of, "an instant that is not there");
        size_t here = (size_t)at[k];
        int64_t until = time[here] < high[k] ? time[here] : high[k];
        while (until > low[k]) {
            int32_t e = decider[here];
            if (e < 0) {
                before[0] += until - low[k];
                break;
            }
            if ((size_t)e >= edges) return done(&of, "an edge that is not there");
            here = (size_t)source[e];
            int64_t begin = time[here] > low[k] ? time[here] : low[k];
            if (begin >= until) continue;
            if (count < room) edge[count] = e, spent[count] = until - begin;
            count++;
            until = begin;
        }
    }
    return counted(&of, (int64_t)count);
}

/* The latest time of each instant that delays no instant whose latest time is given: `latest` has those times, and UNLIMITED
 * for instants that have no limit of their own. An instant from which no edge leads to a limited one stays UNLIMITED. */
static PyObject *limit(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 6, 1, &of)) return NULL;
    const int32_t *sorted = narrow(&of, 0), *first = narrow(&of, 1), *incoming = narrow(&of, 2), *source = narrow(&of, 3);
    const int64_t *weight = of.values[4];
    size_t edges = of.size[4], instants = of.size[5];
    if (!holds_narrow(&of, 0, instants) || !holds_narrow(&of, 1, instants + 1) || !holds_incoming(&of, 2, edges) || !holds_narrow(&of, 3, edges))
        return done(&of, "the arrays differ in length");
    int64_t *latest = of.values[5];
    int is_sorted = !of.views[2].len;
    for (size_t k = instants; k-- > 0;) {
        if ((uint32_t)sorted[k] >= instants) return done(&of, "an instant that is not there");
        size_t at = (size_t)sorted[k];
        if (latest[at] >= UNLIMITED) continue;
        for (int32_t j = first[at]; j < first[at + 1]; j++) {
            int32_t e = is_sorted ? j : incoming[j];
            if (weight[e] <= NEVER) continue;
            int64_t limit = latest[at] - weight[e];
            if (limit < latest[source[e]]) latest[source[e]] = limit;
        }
    }
    return done(&of, NULL);
}

static PyMethodDef methods[] = {
    {"order", order, METH_VARARGS, NULL},
    {"reorder", reorder, METH_VARARGS, NULL},
    {"longest", longest, METH_VARARGS, NULL},
    {"settle", settle, METH_VARARGS, NULL},
    {"walk", walk, METH_VARARGS, NULL},
    {"limit", limit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_paths", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__paths(void) { return PyModuleDef_Init(&definition); }
