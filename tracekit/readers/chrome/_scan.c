/* tracekit.readers.chrome._scan: Python bindings of the C scanner of Chrome traces and of two passes over columns.
 * `_scan.pyi` describes the interface. The implementation is in _scan_core.c (the grammar), _scan_setup.c,
 * _scan_append.c and _scan_passes.c. Column memory is moved to Python, never copied. */
#include <Python.h>
#include <string.h>

#include "_scan_block.h"
#include "_scan_core.h"

typedef struct {
    PyTypeObject *block_type;
} module_state;

/* ---- Scanner */

typedef struct {
    PyObject_HEAD
    tk_scan scan;
    int busy; /* a thread is reading without the interpreter lock */
    int over; /* finished, or failed for good */
} Scanner;

/* Call `take` with the bytes of every item; 0 with an exception set if an item is not bytes or memory runs out. */
static int each_bytes(PyObject *tuple, tk_scan *scan, bool (*take)(tk_scan *, const unsigned char *, size_t))
{
    for (Py_ssize_t i = 0, n = PyTuple_Size(tuple); i < n; i++) {
        char *text;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &text, &size) < 0) return 0;
        if (!take(scan, (const unsigned char *)text, (size_t)size)) {
            PyErr_NoMemory();
            return 0;
        }
    }
    return 1;
}

static bool keep_arg(tk_scan *scan, const unsigned char *key, size_t size) { return tk_declare(scan, key, size, true); }
static bool skip_arg(tk_scan *scan, const unsigned char *key, size_t size) { return tk_declare(scan, key, size, false); }

/* Return a number that differs between processes unless PYTHONHASHSEED is set; -1 with an exception set. */
static Py_hash_t process_seed(void)
{
    PyObject *word = PyUnicode_FromString("tracekit");
    Py_hash_t seed = word ? PyObject_Hash(word) : -1;
    Py_XDECREF(word);
    return seed;
}

static int scanner_fill(Scanner *self, PyObject *args)
{
    PyObject *keep, *skip_args, *skip_cats, *keep_names = NULL;
    Py_ssize_t max_event_bytes;
    int keep_fields = 1;
    if (!PyArg_ParseTuple(args, "OO!O!n|O!p:Scanner", &keep, &PyTuple_Type, &skip_args, &PyTuple_Type, &skip_cats,
                          &max_event_bytes, &PyTuple_Type, &keep_names, &keep_fields))
        return 0;
    if (keep != Py_None && !PyTuple_Check(keep)) {
        PyErr_SetString(PyExc_TypeError, "args must be None or a tuple of bytes");
        return 0;
    }
    if (max_event_bytes < 1 || max_event_bytes > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "max_event_bytes must be between 1 and 2147483647");
        return 0;
    }
    Py_hash_t seed = process_seed();
    if (seed == -1 && PyErr_Occurred()) return 0;
    if (!tk_init(&self->scan, (uint64_t)seed, (size_t)max_event_bytes, keep == Py_None, keep_fields)) {
        PyErr_NoMemory();
        return 0;
    }
    if (keep != Py_None && !each_bytes(keep, &self->scan, keep_arg)) return 0;
    if (!each_bytes(skip_args, &self->scan, skip_arg) || !each_bytes(skip_cats, &self->scan, tk_skip_cat)) return 0;
    return !keep_names || each_bytes(keep_names, &self->scan, tk_keep_name);
}

static PyObject *scanner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Scanner() takes no keyword arguments");
        return NULL;
    }
    Scanner *self = (Scanner *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self && !scanner_fill(self, args)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void scanner_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    tk_free(&((Scanner *)self)->scan);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int is_usable(const Scanner *self)
{
    if (self->busy) PyErr_SetString(PyExc_RuntimeError, "the scanner is in use by another thread");
    if (self->over) PyErr_SetString(PyExc_ValueError, "the scan is over");
    return !self->busy && !self->over;
}

/* Check whether a scan failed; set the exception if it cannot continue. */
static int has_failed(Scanner *self, enum tk_state state)
{
    self->over = state > TK_END;
    if (state == TK_NO_MEMORY) PyErr_NoMemory();
    if (state == TK_TOO_MANY_ROWS) PyErr_Format(PyExc_OverflowError, "more than %d rows", INT32_MAX);
    return self->over;
}

static PyObject *scanner_feed(PyObject *object, PyObject *data)
{
    Scanner *self = (Scanner *)object;
    Py_buffer view;
    size_t consumed;
    enum tk_state state;
    if (!is_usable(self) || PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    self->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    state = tk_feed(&self->scan, view.buf, (size_t)view.len, &consumed);
    Py_END_ALLOW_THREADS
    self->busy = 0;
    PyBuffer_Release(&view);
    if (has_failed(self, state)) return NULL;
    return Py_BuildValue("ni", (Py_ssize_t)consumed, (int)state);
}

static PyObject *scanner_append(PyObject *object, PyObject *given)
{
    Scanner *self = (Scanner *)object, *other = (Scanner *)given;
    enum tk_state state;
    if (Py_TYPE(given) != Py_TYPE(object)) return PyErr_Format(PyExc_TypeError, "only a scanner can be appended");
    if (!is_usable(self)) return NULL;
    self->busy = 1; /* before `other` is checked, which may be this scanner */
    if (!is_usable(other)) {
        self->busy = 0;
        return NULL;
    }
    if (self->scan.skip_count != other->scan.skip_count) {
        self->busy = 0;
        return PyErr_Format(PyExc_ValueError, "the scanners do not keep the same");
    }
    other->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    state = tk_append(&self->scan, &other->scan);
    Py_END_ALLOW_THREADS
    self->busy = other->busy = 0;
    if (has_failed(self, state)) {
        other->over = 1;
        return NULL;
    }
    return PyLong_FromSize_t(tk_known_bytes(&other->scan));
}

static PyObject *take_offsets(PyTypeObject *type, tk_texts *texts)
{
    return take_block(type, &texts->offsets, texts->count ? (size_t)texts->count + 1 : 0, sizeof *texts->offsets);
}

static PyObject *take_bytes(PyTypeObject *type, tk_texts *texts)
{
    return take_block(type, &texts->bytes, texts->count ? (size_t)texts->offsets[texts->count] : 0, 1);
}

/* Return (offsets, bytes) of distinct texts; None if there are none. */
static PyObject *take_texts(PyTypeObject *type, tk_texts *texts)
{
    if (!texts || !texts->count) Py_RETURN_NONE;
    PyObject *bytes = take_bytes(type, texts); /* first, because the offsets give its size */
    PyObject *offsets = bytes ? take_offsets(type, texts) : NULL;
    if (!offsets) Py_XDECREF(bytes);
    return offsets ? Py_BuildValue("NN", offsets, bytes) : NULL;
}

/* Return (key, kind, overwritten, rows, values, kinds, texts); the column is empty afterwards. */
static PyObject *take_column(PyTypeObject *type, tk_column *column, const unsigned char *key, size_t key_size)
{
    size_t count = (size_t)column->count, item = column->kind == TK_TEXT ? sizeof(int32_t) : sizeof(int64_t);
    PyObject *rows = take_block(type, &column->rows, count, sizeof(int32_t));
    PyObject *values = rows ? take_block(type, &column->values, count, item) : NULL;
    PyObject *kinds = NULL, *texts = NULL, *taken = NULL;
    if (values) kinds = column->kinds ? take_block(type, &column->kinds, count, 1) : Py_NewRef(Py_None);
    if (kinds) texts = take_texts(type, column->texts);
    /* No format with '#': built with Python 3.13, it fails in an older Python. */
    PyObject *name = texts ? PyBytes_FromStringAndSize((const char *)key, (Py_ssize_t)key_size) : NULL;
    if (name)
        taken = Py_BuildValue("OiOOOOO", name, (int)column->kind, column->overwritten ? Py_True : Py_False, rows,
                              values, kinds, texts);
    Py_XDECREF(name);
    Py_XDECREF(rows);
    Py_XDECREF(values);
    Py_XDECREF(kinds);
    Py_XDECREF(texts);
    tk_free_column(column);
    return taken;
}

/* List the columns with values, in the order of their keys' first use. */
static PyObject *take_space(PyTypeObject *type, tk_space *space)
{
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; list && i < space->keys.count; i++) {
        if (!space->columns[i].count) continue;
        const int64_t *offsets = space->keys.offsets;
        PyObject *column = take_column(type, &space->columns[i], space->keys.bytes + offsets[i],
                                       (size_t)(offsets[i + 1] - offsets[i]));
        if (!column || PyList_Append(list, column) < 0) Py_CLEAR(list);
        Py_XDECREF(column);
    }
    return list;
}

/* Put the object into the dict; steals the reference. */
static int put_item(PyObject *dict, const char *key, PyObject *item)
{
    int done = item && PyDict_SetItemString(dict, key, item) == 0;
    Py_XDECREF(item);
    return done;
}

static PyObject *take_label(PyTypeObject *type, tk_scan *scan, int which)
{
    PyObject *codes = take_block(type, &scan->codes[which], (size_t)scan->rows, scan->code_size[which]);
    PyObject *texts = codes ? take_texts(type, &scan->labels[which]) : NULL;
    if (!texts) Py_XDECREF(codes);
    return texts ? Py_BuildValue("iNN", (int)scan->code_size[which], codes, texts) : NULL;
}

static PyObject *take_time(PyTypeObject *type, tk_scan *scan, int which)
{
    PyObject *values = take_block(type, &scan->times[which], (size_t)scan->rows, sizeof(int64_t));
    PyObject *has = values ? take_block(type, &scan->has_time[which], (size_t)scan->rows, 1) : NULL;
    PyObject *odd = NULL, *taken = NULL;
    if (has) {
        odd = scan->odd_times[which].count ? take_column(type, &scan->odd_times[which], (const unsigned char *)"", 0)
                                           : Py_NewRef(Py_None);
    }
    if (odd) taken = Py_BuildValue("OOO", values, has, odd);
    Py_XDECREF(values);
    Py_XDECREF(has);
    Py_XDECREF(odd);
    return taken;
}

static PyObject *take_skipped(const tk_scan *scan)
{
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; list && i < scan->skip_count; i++) {
        PyObject *count = PyLong_FromLongLong(scan->skipped[i]);
        if (!count || PyList_Append(list, count) < 0) Py_CLEAR(list);
        Py_XDECREF(count);
    }
    return list;
}

static int take_all(PyTypeObject *type, tk_scan *scan, PyObject *dict)
{
    static const char *const labels[] = {"ph", "cat", "name", "pid", "tid"}, *const times[] = {"ts", "dur"};
    for (int i = 0; i < TK_LABELS; i++)
        if (!put_item(dict, labels[i], take_label(type, scan, i))) return 0;
    for (int i = 0; i < TK_TIMES; i++)
        if (!put_item(dict, times[i], take_time(type, scan, i))) return 0;
    return put_item(dict, "args", take_space(type, &scan->args)) && put_item(dict, "fields", take_space(type, &scan->fields)) &&
           put_item(dict, "skipped", take_skipped(scan));
}

static PyObject *scanner_finish(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    Scanner *self = (Scanner *)object;
    if (!is_usable(self)) return NULL;
    module_state *state = PyType_GetModuleState(Py_TYPE(object));
    PyObject *dict = state ? PyDict_New() : NULL;
    if (!dict) return NULL;
    self->over = 1;
    if (!take_all(state->block_type, &self->scan, dict)) Py_CLEAR(dict);
    tk_free(&self->scan);
    return dict;
}

static PyMethodDef scanner_methods[] = {
    {"feed", scanner_feed, METH_O, "(consumed, state) after the whole elements at the start of `data`."},
    {"append", scanner_append, METH_O,
     "Puts the rows of another scanner, made alike, after these, and leaves it without any; the bytes of texts it still knows."},
    {"finish", scanner_finish, METH_NOARGS, "All columns; the scanner cannot be used any more."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot scanner_slots[] = {
    {Py_tp_doc, "Scanner(args, skip_args, skip_cats, max_event_bytes, keep_names=(), keep_fields=True): the strict layer of RECOVERY.md."},
    {Py_tp_new, scanner_new},
    {Py_tp_dealloc, scanner_dealloc},
    {Py_tp_methods, scanner_methods},
    {0, NULL},
};
static PyType_Spec scanner_spec = {
    .name = "tracekit.readers.chrome._scan.Scanner",
    .basicsize = sizeof(Scanner),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = scanner_slots,
};

/* ---- functions over columns */

/* Get a view of one-dimensional integers of this size; 0 with an exception set for anything else. */
static int get_integers(PyObject *object, Py_buffer *view, size_t size, int writable)
{
    if (PyObject_GetBuffer(object, view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) < 0) {
        view->obj = NULL;
        return 0;
    }
    const char *format = view->format ? view->format : "B";
    const char *fitting = size == 1 ? "B" : "ilq";
    if (view->ndim == 1 && (size_t)view->itemsize == size && strlen(format) == 1 && strchr(fitting, *format) &&
        (uintptr_t)view->buf % size == 0)
        return 1;
    PyErr_Format(PyExc_ValueError, "not a one-dimensional array of %d-byte integers", (int)size);
    return 0;
}

static void release_all(Py_buffer *views, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
}

/* Return the groups in the order of first use, as a Block of int32. */
static PyObject *renumbered(PyTypeObject *type, const Py_buffer *codes, const Py_buffer *groups)
{
    size_t group_count = (size_t)groups->len / sizeof(int32_t);
    int32_t *order = tk_resized(NULL, group_count, sizeof *order);
    if (!order) return PyErr_NoMemory();
    int64_t used = tk_renumber(codes->buf, (size_t)codes->len / sizeof(int32_t), groups->buf, group_count, order);
    if (used >= 0) return take_block(type, &order, (size_t)used, sizeof *order);
    tk_release(order);
    if (used == -1) return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, "a code or a group is out of range");
    return NULL;
}

static PyObject *renumber(PyObject *module, PyObject *args)
{
    PyObject *codes, *groups, *order = NULL;
    Py_buffer views[2] = {0};
    module_state *state = PyModule_GetState(module);
    if (PyArg_ParseTuple(args, "OO:renumber", &codes, &groups) && get_integers(codes, &views[0], sizeof(int32_t), 1) &&
        get_integers(groups, &views[1], sizeof(int32_t), 0))
        order = renumbered(state->block_type, &views[0], &views[1]);
    release_all(views, 2);
    return order;
}

/* Return (codes, pairs) as Blocks. */
static PyObject *numbered(PyTypeObject *type, const Py_buffer *kinds, const Py_buffer *values)
{
    size_t count = (size_t)kinds->len;
    tk_texts pairs = {0};
    Py_hash_t seed = process_seed();
    if (seed == -1 && PyErr_Occurred()) return NULL;
    int32_t *codes = tk_resized(NULL, count, sizeof *codes);
    PyObject *code_block = NULL, *pair_block = NULL;
    if (codes && tk_distinct(kinds->buf, values->buf, count, (uint64_t)seed, codes, &pairs)) {
        code_block = take_block(type, &codes, count, sizeof *codes);
        pair_block = code_block ? take_bytes(type, &pairs) : NULL;
    } else {
        PyErr_NoMemory();
    }
    tk_release(codes);
    tk_free_texts(&pairs);
    if (!pair_block) Py_XDECREF(code_block);
    return pair_block ? Py_BuildValue("NN", code_block, pair_block) : NULL;
}

static PyObject *distinct(PyObject *module, PyObject *args)
{
    PyObject *kinds, *values, *both = NULL;
    Py_buffer views[2] = {0};
    module_state *state = PyModule_GetState(module);
    if (PyArg_ParseTuple(args, "OO:distinct", &kinds, &values) && get_integers(kinds, &views[0], 1, 0) &&
        get_integers(values, &views[1], sizeof(int64_t), 0)) {
        if (views[0].len == views[1].len / 8)
            both = numbered(state->block_type, &views[0], &views[1]);
        else
            PyErr_SetString(PyExc_ValueError, "the arrays differ in length");
    }
    release_all(views, 2);
    return both;
}

static PyMethodDef functions[] = {
    {"distinct", distinct, METH_VARARGS, "(codes, pairs): pairs of kind and value, numbered by first use."},
    {"renumber", renumber, METH_VARARGS, "Replaces codes by the rank of their groups' first use; the groups in that order."},
    {NULL, NULL, 0, NULL},
};

/* ---- the module */

static int add_types(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    state->block_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &block_spec, NULL);
    if (!state->block_type) return -1;
    PyObject *scanner = PyType_FromModuleAndSpec(module, &scanner_spec, NULL);
    int failed = !scanner || PyModule_AddType(module, (PyTypeObject *)scanner) < 0 ||
                 PyModule_AddType(module, state->block_type) < 0;
    Py_XDECREF(scanner);
    return failed ? -1 : 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->block_type);
    return 0;
}

static int clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->block_type);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_types}, {0, NULL}};
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_scan",
    .m_doc = "The C scanner of Chrome traces.",
    .m_size = sizeof(module_state),
    .m_methods = functions,
    .m_slots = module_slots,
    .m_traverse = traverse,
    .m_clear = clear,
};

PyMODINIT_FUNC PyInit__scan(void) { return PyModuleDef_Init(&definition); }
