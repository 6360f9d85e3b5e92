/* tracekit.readers.torch_memory._records: what the dictionaries of a snapshot have at a key, as arrays, for Python.
 *
 * `_records.pyi` describes what Python sees. Nothing is called that the objects bring along: a snapshot's are
 * dictionaries, lists, texts and numbers, and whatever is none of those is left for Python to look at.
 */
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

/* ---- numbers for things, in order of appearance */

/* `slots` hold numbers from 1 on, 0 for a free one; `things` and `hashes` are by number from 0 on. */
typedef struct {
    uint32_t *slots;
    size_t slot_count;
    PyObject **things;
    uint64_t *hashes;
    size_t count, room;
} numbering;

typedef int (*is_alike)(PyObject *, PyObject *);

static uint64_t mixed(uint64_t bits)
{
    bits = (bits ^ (bits >> 32)) * UINT64_C(0x9e3779b97f4a7c15);
    return bits ^ (bits >> 29);
}

static void release_numbering(numbering *of)
{
    free(of->slots);
    free(of->things);
    free(of->hashes);
}

static void put(numbering *of, uint64_t hash, uint32_t number)
{
    size_t slot = (size_t)hash & (of->slot_count - 1);
    while (of->slots[slot]) slot = (slot + 1) & (of->slot_count - 1);
    of->slots[slot] = number;
}

/* Room for one thing more, at most half of the slots in use; 0 where there is no memory. */
static int make_room(numbering *of)
{
    if (of->count < of->room) return 1;
    size_t room = of->room ? 2 * of->room : 1024;
    if (room > UINT32_MAX / 2) return 0;
    PyObject **things = realloc(of->things, room * sizeof *things);
    if (things) of->things = things;
    uint64_t *hashes = realloc(of->hashes, room * sizeof *hashes);
    if (hashes) of->hashes = hashes;
    uint32_t *slots = calloc(2 * room, sizeof *slots);
    if (!things || !hashes || !slots) {
        free(slots);
        return 0;
    }
    free(of->slots);
    of->slots = slots;
    of->slot_count = 2 * room;
    of->room = room;
    for (size_t i = 0; i < of->count; i++) put(of, of->hashes[i], (uint32_t)i + 1);
    return 1;
}

/* The number of a thing, a new one where none is alike (NULL: the same object); -1 where there is no memory. */
static int64_t number_of(numbering *of, PyObject *thing, uint64_t hash, is_alike alike)
{
    if (!make_room(of)) return -1;
    size_t slot = (size_t)hash & (of->slot_count - 1);
    for (; of->slots[slot]; slot = (slot + 1) & (of->slot_count - 1)) {
        size_t number = of->slots[slot] - 1;
        if (of->hashes[number] == hash && (of->things[number] == thing || (alike && alike(of->things[number], thing))))
            return (int64_t)number;
    }
    of->things[of->count] = thing;
    of->hashes[of->count] = hash;
    of->slots[slot] = (uint32_t)++of->count;
    return (int64_t)of->count - 1;
}

/* ---- what Python sees */

typedef struct {
    Py_buffer places, firsts;
    int64_t *place, *first;
} numbered_rows;

/* Whether both arrays have an int64 for each of so many rows; else they are given back, with an exception set. */
static int take_arrays(numbered_rows *of, Py_ssize_t count)
{
    of->place = of->places.buf;
    of->first = of->firsts.buf;
    Py_ssize_t size = count * (Py_ssize_t)sizeof(int64_t);
    if (of->places.len == size && of->firsts.len == size) return 1;
    PyBuffer_Release(&of->places);
    PyBuffer_Release(&of->firsts);
    PyErr_SetString(PyExc_ValueError, "arrays of another length");
    return 0;
}

static PyObject *numbered(numbered_rows *of, numbering *numbers, int64_t count)
{
    release_numbering(numbers);
    PyBuffer_Release(&of->places);
    PyBuffer_Release(&of->firsts);
    if (PyErr_Occurred()) return NULL;
    return count < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(count);
}

/* What a row, borrowed, has at a key: None for nothing; NULL where the row is no dictionary, or with an exception set. */
static PyObject *value_of(PyObject *row, PyObject *key)
{
    if (!PyDict_CheckExact(row)) return NULL;
    PyObject *value = PyDict_GetItemWithError(row, key);
    return value || PyErr_Occurred() ? value : Py_None;
}

static PyObject *integers(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *rows, *key;
    Py_buffer values, missing;
    if (!PyArg_ParseTuple(args, "O!O!w*w*:integers", &PyList_Type, &rows, &PyUnicode_Type, &key, &values, &missing)) return NULL;
    Py_ssize_t count = PyList_Size(rows), row = 0;
    int fits = values.len == count * (Py_ssize_t)sizeof(int64_t) && missing.len == count;
    int64_t *numbers = values.buf;
    unsigned char *is_missing = missing.buf;
    for (; fits && row < count; row++) {
        PyObject *value = value_of(PyList_GetItem(rows, row), key);
        int overflow = 0;
        if (!value) break;
        is_missing[row] = value == Py_None;
        numbers[row] = 0;
        if (value == Py_None) continue;
        if (!PyLong_CheckExact(value)) break;
        numbers[row] = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow) break;
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&missing);
    if (!fits) PyErr_SetString(PyExc_ValueError, "arrays of another length");
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(row);
}

static PyObject *identified(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *rows, *key;
    numbered_rows of;
    numbering numbers = {0};
    if (!PyArg_ParseTuple(args, "O!O!w*w*:identified", &PyList_Type, &rows, &PyUnicode_Type, &key, &of.places, &of.firsts)) return NULL;
    Py_ssize_t count = PyList_Size(rows);
    if (!take_arrays(&of, count)) return NULL;
    for (Py_ssize_t row = 0; row < count; row++) {
        PyObject *value = value_of(PyList_GetItem(rows, row), key);
        if (!value && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a row is no dictionary");
        size_t before = numbers.count;
        int64_t number = value ? number_of(&numbers, value, mixed((uint64_t)(uintptr_t)value), NULL) : -1;
        if (number < 0) return numbered(&of, &numbers, -1);
        if (numbers.count > before) of.first[number] = row;
        of.place[row] = number;
    }
    return numbered(&of, &numbers, (int64_t)numbers.count);
}

/* Whether two lists hold the same objects; None is like itself alone. */
static int hold_the_same(PyObject *a, PyObject *b)
{
    if (a == Py_None || b == Py_None || PyList_Size(a) != PyList_Size(b)) return 0;
    for (Py_ssize_t i = 0, size = PyList_Size(a); i < size; i++)
        if (PyList_GetItem(a, i) != PyList_GetItem(b, i)) return 0;
    return 1;
}

static uint64_t content_hash(PyObject *list)
{
    uint64_t hash = 1;
    for (Py_ssize_t i = 0, size = PyList_Size(list); i < size; i++) hash = mixed(hash + (uint64_t)(uintptr_t)PyList_GetItem(list, i));
    return hash;
}

static PyObject *alike(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *lists;
    numbered_rows of;
    numbering numbers = {0};
    if (!PyArg_ParseTuple(args, "O!w*w*:alike", &PyList_Type, &lists, &of.places, &of.firsts)) return NULL;
    Py_ssize_t count = PyList_Size(lists);
    if (!take_arrays(&of, count)) return NULL;
    for (Py_ssize_t row = 0; row < count; row++) {
        PyObject *list = PyList_GetItem(lists, row);
        int is_list = PyList_CheckExact(list);
        if (!is_list && list != Py_None) PyErr_SetString(PyExc_TypeError, "neither a list nor None");
        if (PyErr_Occurred()) return numbered(&of, &numbers, -1);
        size_t before = numbers.count;
        int64_t number = number_of(&numbers, list, is_list ? content_hash(list) : 0, hold_the_same);
        if (number < 0) return numbered(&of, &numbers, -1);
        if (numbers.count > before) of.first[number] = row;
        of.place[row] = number;
    }
    return numbered(&of, &numbers, (int64_t)numbers.count);
}

static PyMethodDef functions[] = {
    {"integers", integers, METH_VARARGS, "(rows, key, values, missing): the first row that Python has to look at."},
    {"identified", identified, METH_VARARGS, "(rows, key, place, first): how many objects there are at a key."},
    {"alike", alike, METH_VARARGS, "(lists, place, first): how many lists there are that hold other objects."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_records",
    .m_doc = "What the dictionaries of a snapshot have at a key, as arrays.",
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__records(void) { return PyModuleDef_Init(&definition); }
