/* tracekit.readers.nsys._pages: reads the rows of an SQLite table directly from the pages of its file.
 *
 * Results equal SQLite's. A row that is not as plain as exporters write it (a value of another type, an overflow page)
 * ends the reading, and SQLite must read the rows from there on. If pages are inconsistent, all rows read so far are
 * invalid, because SQLite recovers rows in its own way.
 * Page format and names: https://www.sqlite.org/fileformat2.html
 */
#include <Python.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <io.h>
#include <stdio.h>
#else
#include <unistd.h>
#endif

#include "../chrome/_scan_columns.h"

/* SQLite's own limit. */
#define MAX_DEPTH 20
#define MAX_FIELDS 2000
#define AHEAD_BYTES ((size_t)1 << 18)
#define MAX_NAME 8192

/* ODD: only SQLite can read the row; DAMAGED: inconsistent pages. */
enum { MORE = 0, END = 1, ODD = 2, DAMAGED = 3 };
enum { INTERIOR = 0x05, LEAF = 0x0d };

static const int64_t MISSING = INT64_MIN;

/* An interior page on the path to the leaf; `next` is the next child, `cells` the last one. */
typedef struct {
    unsigned char *page;
    int cells, next;
} tk_level;

typedef struct {
    PyObject_HEAD
    int fd;
    size_t page_size, usable;
    uint32_t page_count, root;
    uint64_t visited;
    tk_level levels[MAX_DEPTH];
    int depth;
    unsigned char *window; /* consecutive pages of the file, `window_count` from `window_first` on */
    uint32_t window_first, window_count, window_room;
    const unsigned char *leaf;
    int leaf_cells, leaf_next;
    int64_t bound; /* lower bound (exclusive) of the following row ids */
    int16_t *what; /* by field of a record: its column, -1 if not read */
    int field_count, column_count, text_field;
    tk_texts texts;
    uint64_t seed;
    int with_shapes;
    unsigned char *present; /* by field of a record: whether any row has a value, if requested */
    int state;
} Pages;

/* ---- pages */

static unsigned be16(const unsigned char *p) { return (unsigned)p[0] << 8 | p[1]; }
static uint32_t be32(const unsigned char *p) { return (uint32_t)be16(p) << 16 | be16(p + 2); }

/* Returns the end of the variable-length integer at p; NULL if it does not end before e. */
static const unsigned char *read_varint(const unsigned char *p, const unsigned char *e, uint64_t *value)
{
    uint64_t bits = 0;
    for (int i = 0; i < 9 && p < e; i++, p++) {
        if (i == 8) {
            *value = bits << 8 | *p;
            return p + 1;
        }
        bits = bits << 7 | (*p & 0x7f);
        if (!(*p & 0x80)) {
            *value = bits;
            return p + 1;
        }
    }
    return NULL;
}

/* Reads up to `size` bytes of the file from `start`; 0 or less if there are none. */
static Py_ssize_t read_at(int fd, unsigned char *into, size_t size, uint64_t start)
{
#ifdef _WIN32
    if (_lseeki64(fd, (__int64)start, SEEK_SET) < 0) return -1;
    return _read(fd, into, (unsigned)(size < AHEAD_BYTES ? size : AHEAD_BYTES));
#else
    return pread(fd, into, size, (off_t)start);
#endif
}

static bool read_pages(Pages *self, uint32_t first, uint32_t count)
{
    size_t size = (size_t)count * self->page_size, done = 0;
    uint64_t start = (uint64_t)(first - 1) * self->page_size;
    while (done < size) {
        Py_ssize_t part = read_at(self->fd, self->window + done, size - done, start + done);
        if (part <= 0) return false;
        done += (size_t)part;
    }
    self->window_first = first;
    self->window_count = count;
    return true;
}

/* Loads a page, valid until the next call. Reads ahead if pages are consecutive. NULL if the page does not exist. */
static const unsigned char *get_page(Pages *self, uint32_t number)
{
    if (number < 2 || number > self->page_count || self->visited++ > self->page_count) return NULL;
    if (number < self->window_first || number - self->window_first >= self->window_count) {
        bool is_next = self->window_count && number == self->window_first + self->window_count;
        uint32_t left = self->page_count - number + 1;
        uint32_t count = is_next ? (left < self->window_room ? left : self->window_room) : 1;
        self->window_count = 0;
        if (!read_pages(self, number, count)) return NULL;
    }
    return self->window + (size_t)(number - self->window_first) * self->page_size;
}

/* Finds a cell of a page whose cell pointers begin at `pointers`; NULL if the pointer is invalid. */
static const unsigned char *get_cell(const Pages *self, const unsigned char *page, int pointers, int cells, int number)
{
    size_t place = be16(page + pointers + 2 * number);
    return place >= (size_t)(pointers + 2 * cells) && place + 4 <= self->usable ? page + place : NULL;
}

/* Reads the key of an interior cell; false if there is none. */
static bool interior_key(const Pages *self, const unsigned char *page, int cells, int number, int64_t *key)
{
    uint64_t bits;
    const unsigned char *cell = get_cell(self, page, 12, cells, number);
    if (!cell || !read_varint(cell + 4, page + self->usable, &bits)) return false;
    *key = (int64_t)bits;
    return true;
}

/* Finds the record of a leaf cell, its size and key; NULL if it exceeds the page. */
static const unsigned char *leaf_record(const Pages *self, const unsigned char *page, int cells, int number, uint64_t *size, int64_t *key)
{
    const unsigned char *e = page + self->usable, *p = get_cell(self, page, 8, cells, number);
    uint64_t bits;
    p = p ? read_varint(p, e, size) : NULL;
    p = p ? read_varint(p, e, &bits) : NULL;
    if (!p) return NULL;
    *key = (int64_t)bits;
    uint64_t here = *size, most = self->usable - 35, least = (self->usable - 12) * 32 / 255 - 23;
    if (here > most) {
        /* The rest is on overflow pages; the cell ends with the number of the first one. */
        here = least + (here - least) % (self->usable - 4);
        here = (here > most ? least : here) + 4;
    }
    return here <= (uint64_t)(e - p) ? p : NULL;
}

/* Checks whether all cells are inside the page; otherwise SQLite reads none of them. */
static bool has_sound_cells(const Pages *self, const unsigned char *page, int cells)
{
    uint64_t size;
    int64_t key;
    for (int i = 0; i < cells; i++)
        if (page[0] == LEAF ? !leaf_record(self, page, cells, i, &size, &key) : !interior_key(self, page, cells, i, &key)) return false;
    return true;
}

/* Descends to a child: a leaf or an interior page. */
static bool enter(Pages *self, uint32_t number)
{
    const unsigned char *page = get_page(self, number);
    if (!page || (page[0] != LEAF && page[0] != INTERIOR)) return false;
    int cells = (int)be16(page + 3);
    if ((size_t)((page[0] == LEAF ? 8 : 12) + 2 * cells) > self->usable || !has_sound_cells(self, page, cells)) return false;
    if (page[0] == LEAF) {
        self->leaf = page;
        self->leaf_cells = cells;
        self->leaf_next = 0;
        return cells || !self->depth;
    }
    if (!cells || self->depth == MAX_DEPTH) return false;
    tk_level *level = &self->levels[self->depth];
    if (!level->page && !(level->page = malloc(self->page_size))) return false;
    memcpy(level->page, page, self->page_size);
    level->cells = cells;
    level->next = 0;
    self->depth++;
    self->leaf = NULL;
    return true;
}

/* Moves to the next leaf: MORE, END after the last one, or DAMAGED. */
static int next_leaf(Pages *self)
{
    self->leaf = NULL;
    while (!self->leaf) {
        while (self->depth && self->levels[self->depth - 1].next > self->levels[self->depth - 1].cells) self->depth--;
        if (!self->depth) return END;
        tk_level *level = &self->levels[self->depth - 1];
        int64_t key;
        if (level->next) {
            /* The key between two children bounds the rows of both. */
            if (!interior_key(self, level->page, level->cells, level->next - 1, &key) || self->bound > key) return DAMAGED;
            self->bound = key;
        }
        const unsigned char *child = level->page + 8;
        if (level->next < level->cells) child = get_cell(self, level->page, 12, level->cells, level->next);
        level->next++;
        if (!child || !enter(self, be32(child))) return DAMAGED;
    }
    return MORE;
}

/* ---- texts */

/* Checks for valid UTF-8 without zero bytes: SQLite counts the characters of other texts differently. */
static bool is_plain_text(const unsigned char *p, const unsigned char *e)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
    while (p < e) {
        uint64_t word;
        /* ASCII without zero, eight bytes at a time. */
        for (; e - p >= 8 && (word = tk_load8(p), !((word | (word - ones)) & tops)); p += 8) {}
        if (p == e) break;
        int length = *p ? tk_utf8_sequence(p, e) : -1;
        if (length < 1) return false;
        p += length;
    }
    return true;
}

/* Finds the tail of a text: the first occurrence of a marker, if a digit follows (or a list, for SIZES). */
typedef struct {
    const unsigned char *sequence, *op_id, *shapes;
} tails;

static bool begins(const unsigned char *p, const unsigned char *e, const char *marker, size_t size)
{
    return (size_t)(e - p) >= size && !memcmp(p, marker, size);
}

static tails find_tails(const unsigned char *p, const unsigned char *e)
{
    tails at = {NULL, NULL, NULL};
    for (; p < e && (p = memchr(p, ',', (size_t)(e - p))); p++) {
        if (!at.sequence && begins(p, e, ", seq = ", 8)) at.sequence = p;
        if (!at.op_id && begins(p, e, ", op_id = ", 10)) at.op_id = p;
        if (!at.shapes && begins(p, e, ", sizes = [", 11)) at.shapes = p;
    }
    return at;
}

/* Assigns the code of a name, whose key is a digit for its kind and the text before its tail, as in `nvtx_rows`; -1 if
 * only SQLite can read it. */
static int32_t name_code(Pages *self, const unsigned char *text, size_t size)
{
    unsigned char key[MAX_NAME + 1];
    const unsigned char *e = text + size;
    if (size > MAX_NAME || !is_plain_text(text, e)) return -1;
    char kind = '0';
    tails at = find_tails(text, e);
    self->with_shapes |= at.shapes != NULL;
    if (at.sequence && tk_is_digit(at.sequence + 8, e)) {
        kind = '1';
        e = at.sequence;
    } else if (at.op_id && tk_is_digit(at.op_id + 10, e)) {
        kind = '2';
        e = at.op_id;
    } else if (at.shapes) {
        kind = '2';
        e = at.shapes;
    }
    key[0] = (unsigned char)kind;
    memcpy(key + 1, text, (size_t)(e - text));
    return tk_code_of(&self->texts, self->seed, key, (size_t)(e - text) + 1);
}

/* ---- rows */

/* Reads an integer or NULL of this serial type; false for any other value. */
static bool read_integer(const unsigned char *p, uint64_t type, int64_t *value)
{
    static const int sizes[] = {0, 1, 2, 3, 4, 6, 8};
    if (type == 0) {
        *value = MISSING;
        return true;
    }
    if (type == 8 || type == 9) {
        *value = (int64_t)type - 8;
        return true;
    }
    if (type > 6) return false;
    uint64_t bits = p[0] & 0x80 ? UINT64_MAX : 0;
    for (int i = 0; i < sizes[type]; i++) bits = bits << 8 | p[i];
    *value = (int64_t)bits;
    return *value != MISSING;
}

/* Reads the text of a name; other types count as no text. */
static bool read_name(Pages *self, const unsigned char *p, uint64_t type, size_t size, int32_t *code)
{
    *code = type >= 13 && type & 1 ? name_code(self, p, size) : tk_code_of(&self->texts, self->seed, (const unsigned char *)"0", 1);
    return *code >= 0;
}

/* Reads the record between p and e into row `row` of the columns. */
static bool read_record(Pages *self, const unsigned char *p, const unsigned char *e, int64_t **columns, int32_t *codes, size_t row)
{
    static const unsigned char sizes[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0};
    uint64_t header, type;
    const unsigned char *h = read_varint(p, e, &header);
    if (!h || header > (uint64_t)(e - p) || header < (uint64_t)(h - p)) return false;
    const unsigned char *body = p + header, *end = body;
    int field = 0;
    for (; h < end; field++) {
        if (*h < 0x80) {
            type = *h++;
        } else if (!(h = read_varint(h, end, &type))) {
            return false;
        }
        if (type == 10 || type == 11) return false;
        uint64_t size = type < 10 ? sizes[type] : (type - 12) / 2;
        if (size > (uint64_t)(e - body)) return false;
        if (field < self->field_count) {
            int column = self->what[field];
            if (column >= 0 && !read_integer(body, type, &columns[column][row])) return false;
            if (field == self->text_field && !read_name(self, body, type, (size_t)size, &codes[row])) return false;
            if (type) self->present[field] = 1;
        }
        body += size;
    }
    return body == e && field >= self->field_count;
}

/* Reads the next row of the leaf; its id goes to `id`. */
static int read_row(Pages *self, int64_t **columns, int32_t *codes, int64_t *id, size_t row)
{
    uint64_t size;
    int64_t key;
    const unsigned char *p = leaf_record(self, self->leaf, self->leaf_cells, self->leaf_next, &size, &key);
    if (!p || key <= self->bound) return DAMAGED;
    if (size > self->usable - 35 || !read_record(self, p, p + size, columns, codes, row)) return ODD;
    id[row] = self->bound = key;
    self->leaf_next++;
    return MORE;
}

static size_t read_rows(Pages *self, int64_t **columns, int32_t *codes, int64_t *id, size_t most)
{
    size_t row = 0;
    while (row < most && self->state == MORE) {
        if (self->leaf_next == self->leaf_cells)
            self->state = next_leaf(self);
        else if ((self->state = read_row(self, columns, codes, id, row)) == MORE)
            row++;
    }
    return row;
}

/* ---- Python interface */

/* Parses the record positions of the fields; 0 with an exception set if they are invalid. */
static int take_fields(Pages *self, PyObject *fields, PyObject *looked)
{
    self->column_count = (int)PyTuple_Size(fields);
    self->field_count = self->text_field + 1;
    if (!(self->what = malloc(MAX_FIELDS * sizeof *self->what)) || !(self->present = calloc(MAX_FIELDS, 1))) {
        PyErr_NoMemory();
        return 0;
    }
    memset(self->what, -1, MAX_FIELDS * sizeof *self->what);
    for (int number = 0, count = self->column_count + (int)PyTuple_Size(looked); number < count; number++) {
        int is_column = number < self->column_count;
        PyObject *item = is_column ? PyTuple_GetItem(fields, number) : PyTuple_GetItem(looked, number - self->column_count);
        long place = PyLong_AsLong(item);
        if (place == -1 && PyErr_Occurred()) return 0;
        if (place < 0 || place >= MAX_FIELDS || (is_column && self->what[place] >= 0)) {
            PyErr_SetString(PyExc_ValueError, "a field has a place of its own");
            return 0;
        }
        if (is_column) self->what[place] = (int16_t)number;
        if (place >= self->field_count) self->field_count = (int)place + 1;
    }
    return 1;
}

static int pages_fill(Pages *self, PyObject *args)
{
    PyObject *fields, *looked;
    unsigned int page_size, usable, page_count, root;
    if (!PyArg_ParseTuple(args, "iIIIIO!O!i:Pages", &self->fd, &page_size, &usable, &page_count, &root, &PyTuple_Type,
                          &fields, &PyTuple_Type, &looked, &self->text_field))
        return 0;
    if (page_size < 512 || page_size > 65536 || page_size & (page_size - 1) || usable > page_size || usable < 480 ||
        PyTuple_Size(fields) > MAX_FIELDS || self->text_field < -1 || self->text_field >= MAX_FIELDS) {
        PyErr_SetString(PyExc_ValueError, "no such pages");
        return 0;
    }
    self->page_size = page_size;
    self->usable = usable;
    self->page_count = page_count;
    self->root = root;
    self->bound = INT64_MIN;
    self->window_room = (uint32_t)(AHEAD_BYTES / page_size);
    PyObject *word = PyUnicode_FromString("tracekit");
    Py_hash_t seed = word ? PyObject_Hash(word) : -1;
    Py_XDECREF(word);
    if (seed == -1 && PyErr_Occurred()) return 0;
    self->seed = (uint64_t)seed;
    if (!take_fields(self, fields, looked)) return 0;
    if (!(self->window = malloc(self->page_size * self->window_room))) {
        PyErr_NoMemory();
        return 0;
    }
    if (!enter(self, self->root)) self->state = DAMAGED;
    return 1;
}

static PyObject *pages_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Pages() takes no keyword arguments");
        return NULL;
    }
    Pages *self = (Pages *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self && !pages_fill(self, args)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void pages_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Pages *self = (Pages *)object;
    for (int i = 0; i < MAX_DEPTH; i++) free(self->levels[i].page);
    free(self->window);
    free(self->what);
    free(self->present);
    tk_release(self->texts.bytes);
    tk_release(self->texts.offsets);
    tk_release(self->texts.slots);
    tk_release(self->texts.next);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Appends a new bytearray of `count` items to the list, which owns it. Returns its memory, or NULL with an exception set. */
static void *add_column(PyObject *list, size_t count, size_t item)
{
    PyObject *column = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * item));
    int failed = !column || PyList_Append(list, column) < 0;
    Py_XDECREF(column);
    return failed ? NULL : PyByteArray_AsString(column);
}

static int cut_columns(PyObject *list, size_t count)
{
    Py_ssize_t last = PyList_Size(list) - 1;
    for (Py_ssize_t i = 0; i <= last; i++) {
        size_t item = i == last ? sizeof(int32_t) : sizeof(int64_t);
        PyObject *column = PyList_GetItem(list, i);
        if (PyByteArray_Size(column) && PyByteArray_Resize(column, (Py_ssize_t)(count * item)) < 0) return 0;
    }
    return 1;
}

static PyObject *pages_take(PyObject *object, PyObject *number)
{
    Pages *self = (Pages *)object;
    size_t most = PyLong_AsSize_t(number);
    if (most == (size_t)-1 && PyErr_Occurred()) return NULL;
    if (!most || most > (size_t)1 << 24) {
        PyErr_SetString(PyExc_ValueError, "no such number of rows");
        return NULL;
    }
    PyObject *list = PyList_New(0);
    int64_t **columns = malloc(((size_t)self->column_count + 1) * sizeof *columns), *id = NULL;
    int32_t *codes = NULL;
    if (!list || !columns) {
        PyErr_NoMemory();
        goto failed;
    }
    if (!(id = add_column(list, most, sizeof *id))) goto failed;
    for (int i = 0; i < self->column_count; i++)
        if (!(columns[i] = add_column(list, most, sizeof **columns))) goto failed;
    if (!(codes = add_column(list, self->text_field < 0 ? 0 : most, sizeof *codes))) goto failed;
    if (!cut_columns(list, read_rows(self, columns, codes, id, most))) goto failed;
    free(columns);
    return list;
failed:
    free(columns);
    Py_XDECREF(list);
    return NULL;
}

static PyObject *pages_names(PyObject *object, PyObject *number)
{
    const tk_texts *texts = &((Pages *)object)->texts;
    long first = PyLong_AsLong(number);
    if (first == -1 && PyErr_Occurred()) return NULL;
    PyObject *list = PyList_New(0);
    for (long code = first < 0 ? 0 : first; list && code < texts->count; code++) {
        PyObject *name = PyBytes_FromStringAndSize((const char *)texts->bytes + texts->offsets[code],
                                                   (Py_ssize_t)tk_text_size(texts, (int32_t)code));
        if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *pages_has_value(PyObject *object, PyObject *number)
{
    Pages *self = (Pages *)object;
    long place = PyLong_AsLong(number);
    if (place == -1 && PyErr_Occurred()) return NULL;
    return PyBool_FromLong(place >= 0 && place < MAX_FIELDS && self->present[place]);
}

static PyObject *pages_with_shapes(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((Pages *)object)->with_shapes);
}

static PyObject *pages_ended(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((Pages *)object)->state == END);
}

static PyObject *pages_damaged(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((Pages *)object)->state == DAMAGED);
}

static PyObject *pages_stopped(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((Pages *)object)->state != MORE);
}

static PyMethodDef pages_methods[] = {
    {"take", pages_take, METH_O, "Row ids, columns and codes of names of at most so many rows more."},
    {"names", pages_names, METH_O, "The names from this code on."},
    {"has_value", pages_has_value, METH_O, "Whether any row so far has a value in the field at this place."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef pages_facts[] = {
    {"with_shapes", pages_with_shapes, NULL, "Whether any name so far has shapes behind it.", NULL},
    {"ended", pages_ended, NULL, "Whether all rows of the table were taken.", NULL},
    {"damaged", pages_damaged, NULL, "Whether pages do not fit together.", NULL},
    {"stopped", pages_stopped, NULL, "Whether there are no rows more that can be taken.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot pages_slots[] = {
    {Py_tp_doc, "The rows of one table of an SQLite file."},
    {Py_tp_new, pages_new},
    {Py_tp_dealloc, pages_dealloc},
    {Py_tp_methods, pages_methods},
    {Py_tp_getset, pages_facts},
    {0, NULL},
};
static PyType_Spec pages_spec = {
    .name = "tracekit.readers.nsys._pages.Pages",
    .basicsize = sizeof(Pages),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = pages_slots,
};

static int add_types(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &pages_spec, NULL);
    int failed = !type || PyModule_AddType(module, (PyTypeObject *)type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_types}, {0, NULL}};
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_pages",
    .m_doc = "The rows of tables of SQLite, from their pages.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__pages(void) { return PyModuleDef_Init(&definition); }
