/* tracekit.readers.torch_memory._records: reads keys of a snapshot's dictionaries into arrays.
 *
 * `_records.pyi` documents the interface. No method of the objects is called: a snapshot consists of
 * dictionaries, lists, texts and numbers, and Python checks everything else.
 */
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbering of objects, in order of appearance */

/* `slots` contain numbers from 1 up, 0 if free; `things` and `hashes` are indexed by number from 0. */
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

/* Makes room for another object, keeping at most half of the slots in use; 0 if out of memory. */
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

/* Finds or assigns the number of an object, compared by `alike` (NULL: by identity); -1 if out of memory. */
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

/* ---- Python interface */

typedef struct {
    Py_buffer places, firsts;
    int64_t *place, *first;
} numbered_rows;

/* Checks that both arrays have an int64 per row; otherwise releases them and sets an exception. */
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

/* Borrowed value of a row at a key, None if absent; NULL if the row is not a dictionary, or with an exception set. */
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

/* Checks whether two lists contain the same objects; None equals only None. */
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

/* ---- all keys of rows in one pass */

/* Limits on the number and length of keys: no snapshot exceeds them; others are read one key at a time. */
#define MOST_KEYS 32
#define LONGEST_KEY 64

/* Longer lists are compared by identity before content, because many rows may reference them. */
#define LONG_LIST 128

typedef enum { COUNTED, INTEGERS, THINGS, STACKS } kind_of_key;

/* Result for a key: `values` and `missing` per row, or the number of each row's object and the `first` row of each
 * object. `seen` rows have the key; `is_odd`: Python must check a value. */
typedef struct {
    PyObject *key, *last;
    kind_of_key kind;
    Py_buffer views[2];
    int64_t *values, *first, *of_long;
    unsigned char *missing;
    numbering numbers, longs;
    PyObject **items; /* items of short lists: list i from `starts[i]` to the next start */
    size_t *starts, item_room, start_room;
    Py_ssize_t seen, row;
    int64_t last_number;
    int is_odd;
} column;

typedef struct {
    column columns[MOST_KEYS];
    int count, wanted;
    struct {
        PyObject *key;
        column *column;
    } expected[MOST_KEYS]; /* keys of the last row, in its order */
} all_keys;

static void release_keys(all_keys *of)
{
    for (int i = 0; i < of->count; i++) {
        column *each = &of->columns[i];
        release_numbering(&each->numbers);
        release_numbering(&each->longs);
        free(each->of_long);
        free(each->items);
        free(each->starts);
        if (each->kind == COUNTED) continue;
        PyBuffer_Release(&each->views[0]);
        PyBuffer_Release(&each->views[1]);
    }
}

/* Parses (key, array, array) tuples of one kind; 0 with an exception set if they are invalid. */
static int want_keys(all_keys *of, PyObject *keys, kind_of_key kind, Py_ssize_t rows)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(keys); i++) {
        column *each = &of->columns[of->count];
        if (of->count == MOST_KEYS) {
            PyErr_SetString(PyExc_ValueError, "too many keys");
            return 0;
        }
        if (!PyArg_ParseTuple(PyTuple_GetItem(keys, i), "Uw*w*", &each->key, &each->views[0], &each->views[1])) return 0;
        each->kind = kind;
        each->row = -1;
        each->values = each->views[0].buf;
        each->first = each->views[1].buf;
        each->missing = each->views[1].buf;
        of->count++;
        Py_ssize_t size = rows * (Py_ssize_t)sizeof(int64_t);
        if (each->views[0].len != size || each->views[1].len != (kind == INTEGERS ? rows : size)) {
            PyErr_SetString(PyExc_ValueError, "arrays of another length");
            return 0;
        }
    }
    of->wanted = of->count;
    return 1;
}

/* Finds or adds the column of a key; NULL for a key that snapshots do not have, or too many keys. */
static column *column_at(all_keys *of, PyObject *key)
{
    if (!PyUnicode_CheckExact(key) || PyUnicode_GetLength(key) > LONGEST_KEY) return NULL;
    for (int i = 0; i < of->count; i++)
        if (of->columns[i].key == key || !PyUnicode_Compare(of->columns[i].key, key)) return &of->columns[i];
    if (of->count == MOST_KEYS || PyErr_Occurred()) return NULL;
    column *added = &of->columns[of->count++];
    added->key = key;
    added->kind = COUNTED;
    added->row = -1;
    return added;
}

static void take_integer(column *of, Py_ssize_t row, PyObject *value)
{
    int overflow = 0;
    of->missing[row] = value == Py_None;
    of->values[row] = 0;
    if (value == Py_None) return;
    if (PyLong_CheckExact(value)) of->values[row] = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow || !PyLong_CheckExact(value)) of->is_odd = 1;
}

/* Stores the items of a newly numbered list; 0 if out of memory. */
static int keep_items(column *of, size_t number, PyObject **items, size_t size)
{
    if (number + 2 > of->start_room) {
        size_t *larger = realloc(of->starts, (of->numbers.room + 1) * sizeof *larger);
        if (!larger) return 0;
        of->starts = larger;
        of->start_room = of->numbers.room + 1;
    }
    if (!number) of->starts[0] = 0;
    size_t start = of->starts[number];
    if (start + size > of->item_room) {
        size_t room = 2 * of->item_room + LONG_LIST;
        PyObject **larger = realloc(of->items, room * sizeof *larger);
        if (!larger) return 0;
        of->items = larger;
        of->item_room = room;
    }
    if (size) memcpy(of->items + start, items, size * sizeof *items);
    of->starts[number + 1] = start + size;
    return 1;
}

/* Finds or assigns the number of a short list by content, reading its items once; -1 if out of memory. */
static int64_t number_of_short(column *of, PyObject *list)
{
    PyObject *items[LONG_LIST];
    size_t size = (size_t)PyList_Size(list);
    uint64_t hash = size;
    for (size_t i = 0; i < size; i++) {
        items[i] = PyList_GetItem(list, (Py_ssize_t)i);
        hash = mixed(hash + (uint64_t)(uintptr_t)items[i]);
    }
    numbering *numbers = &of->numbers;
    if (!make_room(numbers)) return -1;
    size_t slot = (size_t)hash & (numbers->slot_count - 1);
    for (; numbers->slots[slot]; slot = (slot + 1) & (numbers->slot_count - 1)) {
        size_t number = numbers->slots[slot] - 1;
        PyObject *other = numbers->things[number];
        if (numbers->hashes[number] != hash || other == Py_None || (size_t)PyList_Size(other) != size) continue;
        if (!size || !memcmp(of->items + of->starts[number], items, size * sizeof *items)) return (int64_t)number;
    }
    size_t number = numbers->count;
    if (!keep_items(of, number, items, size)) return -1;
    numbers->things[number] = list;
    numbers->hashes[number] = hash;
    numbers->slots[slot] = (uint32_t)++numbers->count;
    return (int64_t)number;
}

/* Finds or assigns the number of a list by content, or of None; -1 if out of memory. */
static int64_t number_of_list(column *of, PyObject *list)
{
    int is_none = list == Py_None;
    if (!is_none && PyList_Size(list) <= LONG_LIST) return number_of_short(of, list);
    size_t before = of->longs.count, count = of->numbers.count;
    int64_t known = number_of(&of->longs, list, mixed((uint64_t)(uintptr_t)list), NULL);
    if (known < 0 || of->longs.count == before) return known < 0 ? -1 : of->of_long[known];
    int64_t *larger = realloc(of->of_long, of->longs.room * sizeof *larger);
    if (!larger) return -1;
    of->of_long = larger;
    int64_t number = number_of(&of->numbers, list, is_none ? 0 : content_hash(list), hold_the_same);
    if (number < 0 || (of->numbers.count > count && !keep_items(of, count, NULL, 0))) return -1;
    return larger[known] = number;
}

/* Adds a value; 0 if out of memory. */
static int take_value(column *of, Py_ssize_t row, PyObject *value)
{
    of->row = row;
    if (of->kind == COUNTED || of->is_odd) return 1;
    if (of->kind == INTEGERS) {
        take_integer(of, row, value);
        return 1;
    }
    if (value != of->last) {
        int is_stack = of->kind == STACKS;
        if (is_stack && value != Py_None && !PyList_CheckExact(value)) {
            of->is_odd = 1;
            return 1;
        }
        size_t before = of->numbers.count;
        int64_t number = is_stack ? number_of_list(of, value) : number_of(&of->numbers, value, mixed((uint64_t)(uintptr_t)value), NULL);
        if (number < 0) return 0;
        if (of->numbers.count > before) of->first[number] = row;
        of->last = value;
        of->last_number = number;
    }
    of->values[row] = of->last_number;
    return 1;
}

/* Adds all values of a row: 1 if it is valid, 0 if not, -1 if out of memory. */
static int take_row(all_keys *of, Py_ssize_t row, PyObject *dictionary)
{
    if (!PyDict_CheckExact(dictionary)) return 0;
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int wanted = 0;
    for (int i = 0; PyDict_Next(dictionary, &position, &key, &value); i++) {
        if (i == MOST_KEYS) return 0;
        if (of->expected[i].key != key) {
            of->expected[i].column = column_at(of, key);
            of->expected[i].key = of->expected[i].column ? key : NULL;
        }
        column *each = of->expected[i].column;
        if (!each) return 0;
        each->seen++;
        wanted += each->kind != COUNTED;
        if (!take_value(each, row, value)) return -1;
    }
    for (int i = 0; wanted < of->wanted && i < of->wanted; i++)
        if (of->columns[i].row != row && !take_value(&of->columns[i], row, Py_None)) return -1;
    return 1;
}

/* Builds a dictionary: key -> (rows with the key, distinct objects or -1 if Python must check). */
static PyObject *result_of(const all_keys *of)
{
    PyObject *result = PyDict_New();
    for (int i = 0; result && i < of->count; i++) {
        const column *each = &of->columns[i];
        Py_ssize_t count = each->is_odd ? -1 : (Py_ssize_t)each->numbers.count;
        PyObject *pair = Py_BuildValue("(nn)", each->seen, count);
        if (!pair || PyDict_SetItem(result, each->key, pair) < 0) {
            Py_DECREF(result);
            result = NULL;
        }
        Py_XDECREF(pair);
    }
    return result;
}

static PyObject *taken(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *rows, *keys[3];
    if (!PyArg_ParseTuple(args, "O!O!O!O!:taken", &PyList_Type, &rows, &PyTuple_Type, &keys[0], &PyTuple_Type, &keys[1],
                          &PyTuple_Type, &keys[2]))
        return NULL;
    all_keys *of = calloc(1, sizeof *of);
    if (!of) return PyErr_NoMemory();
    Py_ssize_t count = PyList_Size(rows);
    const kind_of_key kinds[3] = {INTEGERS, THINGS, STACKS};
    int is_sound = 1;
    for (int i = 0; i < 3 && !PyErr_Occurred(); i++) want_keys(of, keys[i], kinds[i], count);
    for (Py_ssize_t row = 0; is_sound > 0 && !PyErr_Occurred() && row < count; row++)
        is_sound = take_row(of, row, PyList_GetItem(rows, row));
    PyObject *result = NULL;
    if (is_sound < 0) PyErr_NoMemory();
    if (!PyErr_Occurred()) result = is_sound ? result_of(of) : Py_NewRef(Py_None);
    release_keys(of);
    free(of);
    return result;
}

static PyMethodDef functions[] = {
    {"integers", integers, METH_VARARGS, "(rows, key, values, missing): the first row that Python has to look at."},
    {"identified", identified, METH_VARARGS, "(rows, key, place, first): how many objects there are at a key."},
    {"alike", alike, METH_VARARGS, "(lists, place, first): how many lists there are that hold other objects."},
    {"taken", taken, METH_VARARGS, "(rows, integers, things, stacks): how many rows have each key, and how many things."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_records",
    .m_doc = "What the dictionaries of a snapshot have at a key, as arrays.",
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__records(void) { return PyModuleDef_Init(&definition); }
