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

/* incoming_first[i] is the first place in `incoming` of the edges into instant i; `order` is topological, and goes on along one
 * thread for as long as it can: what follows one another lies together in memory.
 * Gives how many instants could be ordered: fewer than all if edges form a cycle; the others follow. */
static PyObject *order(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 5, 3, &of)) return NULL;
    const int32_t *source = narrow(&of, 0), *target = narrow(&of, 1);
    size_t edges = (size_t)of.views[0].len / sizeof(int32_t), instants = of.size[2] ? of.size[2] - 1 : 0;
    int64_t *first = of.values[2];
    if (!of.size[2] || !holds_narrow(&of, 1, edges) || !holds_narrow(&of, 3, edges) || !holds_narrow(&of, 4, instants))
        return done(&of, "the arrays differ in length");
    int32_t *incoming = of.views[3].buf, *sorted = of.views[4].buf;
    for (size_t e = 0; e < edges; e++)
        if ((uint32_t)source[e] >= instants || (uint32_t)target[e] >= instants) return done(&of, "an edge without an instant");
    int64_t *next = malloc((instants + 1) * sizeof *next), *leaving = calloc(instants + 1, sizeof *leaving);
    int32_t *outgoing = malloc((edges + 1) * sizeof *outgoing), *open = calloc(instants + 1, sizeof *open), *stack = malloc((instants + 1) * sizeof *stack);
    if (!next || !leaving || !outgoing || !open || !stack) {
        free(next), free(leaving), free(outgoing), free(open), free(stack);
        return no_memory(&of);
    }
    for (size_t i = 0; i <= instants; i++) first[i] = 0;
    for (size_t e = 0; e < edges; e++) first[target[e] + 1]++, leaving[source[e] + 1]++, open[target[e]]++;
    for (size_t i = 0; i < instants; i++) first[i + 1] += first[i], leaving[i + 1] += leaving[i];
    for (size_t i = 0; i < instants; i++) next[i] = first[i];
    for (size_t e = 0; e < edges; e++) incoming[next[target[e]]++] = (int32_t)e;
    for (size_t i = 0; i < instants; i++) next[i] = leaving[i];
    for (size_t e = 0; e < edges; e++) outgoing[next[source[e]]++] = target[e];
    size_t waiting = 0, count = 0;
    for (size_t i = instants; i-- > 0;)
        if (!open[i]) stack[waiting++] = (int32_t)i;
    while (waiting) {
        int32_t at = sorted[count++] = stack[--waiting];
        for (int64_t k = leaving[at]; k < leaving[at + 1]; k++)
            if (!--open[outgoing[k]]) stack[waiting++] = outgoing[k];
    }
    size_t ordered = count;
    for (size_t i = 0; i < instants; i++)
        if (open[i] > 0) sorted[count++] = (int32_t)i;
    free(next), free(leaving), free(outgoing), free(open), free(stack);
    return counted(&of, (int64_t)ordered);
}

/* Each instant at the latest time that an edge into it demands, or at its recorded one without such an edge;
 * `decider` is that edge, or -1. An edge with a weight of NEVER or less does not exist. */
static PyObject *longest(PyObject *module, PyObject *args)
{
    (void)module;
    arrays of;
    if (!take(args, 8, 2, &of)) return NULL;
    const int32_t *sorted = narrow(&of, 0), *incoming = narrow(&of, 2), *source = narrow(&of, 3);
    const int64_t *first = of.values[1], *weight = of.values[4], *recorded = of.values[5];
    size_t instants = of.size[5], edges = of.size[4];
    if (!holds_narrow(&of, 0, instants) || of.size[1] != instants + 1 || !holds_narrow(&of, 2, edges) || !holds_narrow(&of, 3, edges)
        || of.size[6] != instants || !holds_narrow(&of, 7, instants))
        return done(&of, "the arrays differ in length");
    int64_t *time = of.values[6];
    int32_t *decider = of.views[7].buf;
    for (size_t k = 0; k < instants; k++) {
        if ((uint32_t)sorted[k] >= instants) return done(&of, "an instant that is not there");
        size_t at = (size_t)sorted[k];
        int64_t latest = NEVER;
        int32_t by = -1;
        for (int64_t j = first[at]; j < first[at + 1]; j++) {
            int32_t e = incoming[j];
            if (weight[e] <= NEVER) continue;
            int64_t reached = time[source[e]] + weight[e];
            if (reached > latest) latest = reached, by = e;
        }
        time[at] = by < 0 ? recorded[at] : latest;
        decider[at] = by;
    }
    return done(&of, NULL);
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
    const int32_t *sorted = narrow(&of, 0), *incoming = narrow(&of, 2), *source = narrow(&of, 3);
    const int64_t *first = of.values[1], *weight = of.values[4];
    size_t edges = of.size[4], instants = of.size[5];
    if (!holds_narrow(&of, 0, instants) || of.size[1] != instants + 1 || !holds_narrow(&of, 2, edges) || !holds_narrow(&of, 3, edges))
        return done(&of, "the arrays differ in length");
    int64_t *latest = of.values[5];
    for (size_t k = instants; k-- > 0;) {
        if ((uint32_t)sorted[k] >= instants) return done(&of, "an instant that is not there");
        size_t at = (size_t)sorted[k];
        if (latest[at] >= UNLIMITED) continue;
        for (int64_t j = first[at]; j < first[at + 1]; j++) {
            int32_t e = incoming[j];
            if (weight[e] <= NEVER) continue;
            int64_t limit = latest[at] - weight[e];
            if (limit < latest[source[e]]) latest[source[e]] = limit;
        }
    }
    return done(&of, NULL);
}

static PyMethodDef methods[] = {
    {"order", order, METH_VARARGS, NULL},
    {"longest", longest, METH_VARARGS, NULL},
    {"walk", walk, METH_VARARGS, NULL},
    {"limit", limit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_paths", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__paths(void) { return PyModuleDef_Init(&definition); }
