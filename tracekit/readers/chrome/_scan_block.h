/* Block: memory of a scan that Python owns, as a writable buffer. Only for _scan.c. */
#ifndef TRACEKIT_SCAN_BLOCK_H
#define TRACEKIT_SCAN_BLOCK_H

#include <Python.h>

#include "_scan_memory.h"

typedef struct {
    PyObject_HEAD
    void *memory;
    Py_ssize_t size;
} Block;

static void block_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    tk_release(((Block *)self)->memory);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int block_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    Block *block = (Block *)self;
    return PyBuffer_FillInfo(view, self, block->memory, block->size, 0, flags);
}

static PyType_Slot block_slots[] = {
    {Py_tp_doc, "Memory that a scan has filled."},
    {Py_tp_dealloc, block_dealloc},
    {Py_bf_getbuffer, block_getbuffer},
    {0, NULL},
};
static PyType_Spec block_spec = {
    .name = "tracekit.readers.chrome._scan.Block",
    .basicsize = sizeof(Block),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = block_slots,
};

/* Make a Block of `count` items; takes the memory from `slot` (a pointer to a pointer) even on failure. */
static PyObject *take_block(PyTypeObject *type, void *slot, size_t count, size_t item)
{
    void *memory, *nothing = NULL;
    memcpy(&memory, slot, sizeof memory);
    memcpy(slot, &nothing, sizeof nothing);
    void *trimmed = tk_resized(memory, count, item);
    if (trimmed) memory = trimmed;
    if (!memory) return PyErr_NoMemory();
    Block *block = (Block *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!block) {
        tk_release(memory);
        return NULL;
    }
    block->memory = memory;
    block->size = (Py_ssize_t)(count * item);
    return (PyObject *)block;
}

#endif
