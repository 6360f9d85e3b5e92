/* The arrays that a pass in C takes from Python and gives back, and the search in ascending values: for `_sweeps.c`, `_trees.c` and `_order.c`. */
#ifndef TRACEKIT_ARRAYS_H
#define TRACEKIT_ARRAYS_H

#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

#define MOST 13

/* More steps a key, and so many besides, mean keys that were made to collide. */
#define STEPS_A_KEY 16
#define ROOM 1024

/* So many steps up from each row; those that are not done then are counted. */
#define LEVELS 64

/* The arrays of one call: all are read but for the last ones, which are written to. */
typedef struct {
    Py_buffer views[MOST];
    int64_t *values[MOST];
    size_t size[MOST];
    int count;
} arrays;

static inline void release(arrays *of)
{
    for (int i = 0; i < of->count; i++) PyBuffer_Release(&of->views[i]);
}

/* Takes so many arrays, the last `written` of which are written to; 0 with an exception set where they are none. */
static inline int take(PyObject *args, int count, int written, arrays *of)
{
    of->count = 0;
    if (PyTuple_Size(args) != count) {
        PyErr_SetString(PyExc_TypeError, "a number of arrays that it does not take");
        return 0;
    }
    for (int i = 0; i < count; i++) {
        int flags = i < count - written ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        if (PyObject_GetBuffer(PyTuple_GetItem(args, i), &of->views[i], flags) < 0) {
            release(of);
            return 0;
        }
        of->values[i] = of->views[i].buf;
        of->size[i] = (size_t)of->views[i].len / sizeof(int64_t);
        of->count++;
    }
    return 1;
}

/* Nothing for Python, after all is given back; with a text the ValueError that it says. */
static inline PyObject *done(arrays *of, const char *problem)
{
    release(of);
    if (problem) {
        PyErr_SetString(PyExc_ValueError, problem);
        return NULL;
    }
    Py_INCREF(Py_None);
    return Py_None;
}

static inline PyObject *counted(arrays *of, int64_t number)
{
    release(of);
    return PyLong_FromLongLong(number);
}

static inline PyObject *no_memory(arrays *of)
{
    release(of);
    return PyErr_NoMemory();
}

/* A number of an array of int64, or where its items are half as long, of int32. */
static inline int64_t number_at(const arrays *of, int array, size_t row, int is_narrow)
{
    return is_narrow ? ((const int32_t *)of->views[array].buf)[row] : of->values[array][row];
}

/* Whether an array of so many items holds int32; -1 where it has another length. */
static inline int is_narrow(const arrays *of, int array, size_t items)
{
    if (of->size[array] == items && of->views[array].len % 8 == 0) return 0;
    return (size_t)of->views[array].len == items * sizeof(int32_t) ? 1 : -1;
}

static inline void put_number(const arrays *of, int array, size_t row, int is_narrow, int64_t number)
{
    if (is_narrow)
        ((int32_t *)of->views[array].buf)[row] = (int32_t)number;
    else
        of->values[array][row] = number;
}

/* How many numbers an array holds, of int32 or of int64. */
static inline size_t number_count(const arrays *of, int array, int is_narrow)
{
    return (size_t)of->views[array].len / (is_narrow ? sizeof(int32_t) : sizeof(int64_t));
}

/* Whether every number of an array is one of so many rows. */
static inline int are_rows(const arrays *of, int array, int is_narrow, size_t size)
{
    size_t count = number_count(of, array, is_narrow);
    for (size_t i = 0; i < count; i++)
        if ((uint64_t)number_at(of, array, i, is_narrow) >= size) return 0;
    return 1;
}

/* How many of the ascending values are at most x (`right`), or below it: looked for from `hint` on, farther each time. */
static inline size_t place(const int64_t *values, size_t count, int64_t x, int right, size_t hint)
{
#define BEFORE(i) (right ? values[i] <= x : values[i] < x)
    size_t low = hint, high = hint, step = 1;
    if (hint < count && BEFORE(hint)) {
        while (high < count && BEFORE(high)) {
            low = high + 1;
            high = step < count - high ? high + step : count;
            step *= 2;
        }
    } else {
        while (low > 0 && !BEFORE(low - 1)) {
            high = low - 1;
            low = step < low ? low - step : 0;
            step *= 2;
        }
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (BEFORE(middle))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
#undef BEFORE
}

/* The passes of `_trees.c`, and that of `_order.c`. */
PyObject *depths(PyObject *module, PyObject *args);
PyObject *mark_enclosing(PyObject *module, PyObject *args);
PyObject *paths(PyObject *module, PyObject *args);
PyObject *pooled(PyObject *module, PyObject *args);
PyObject *pieces(PyObject *module, PyObject *args);
PyObject *in_windows(PyObject *module, PyObject *args);
PyObject *lanes(PyObject *module, PyObject *args);
PyObject *by_thread(PyObject *module, PyObject *args);
PyObject *innermost(PyObject *module, PyObject *args);
PyObject *nest(PyObject *module, PyObject *args);
PyObject *own_times(PyObject *module, PyObject *args);
PyObject *nearest(PyObject *module, PyObject *args);
PyObject *running(PyObject *module, PyObject *args);

#endif
