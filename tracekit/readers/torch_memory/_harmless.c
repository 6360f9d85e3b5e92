/* tracekit.readers.torch_memory._harmless: scans a pickle for instructions that snapshots never use.
 * `opcodes.py` defines the harmless instructions, and has the same scan as a regular expression. */
#include <Python.h>

/* Length in bytes of a small integer (BININT1, BININT2, BININT); 0 for any other instruction. */
static Py_ssize_t small_length(unsigned char code) { return code == 'K' ? 2 : code == 'M' ? 3 : code == 'J' ? 5 : 0; }

/* Length in bytes of the instruction at `at`; 0 if it is not harmless, or cut off. */
static Py_ssize_t harmless_length(const unsigned char *at, Py_ssize_t left, int place_bytes)
{
    Py_ssize_t length = 0;
    switch (at[0]) {
    case 'j': length = 5; break;           /* LONG_BINGET */
    case 'h': case 'q': length = 2; break; /* BINGET, BINPUT */
    case 'G': length = 9; break;           /* BINFLOAT */
    case 0x94: case '}': case ']': case '(': case 'e': case 'u': case 's': case 'a': case 'N': case 0x88: case 0x89:
        return 1; /* MEMOIZE, EMPTY_DICT, EMPTY_LIST, MARK; APPEND(S), SETITEM(S), NONE, booleans */
    case 'K': case 'M': case 'J': { /* small integers; two of them with TUPLE2 */
        length = small_length(at[0]);
        Py_ssize_t second = length < left ? small_length(at[length]) : 0;
        if (second && length + second < left && at[length + second] == 0x86) return length + second + 1;
        break;
    }
    case 0x8a: /* LONG1 of up to 64 bits */
        if (left < 2) return 0;
        length = 2 + at[1];
        if (at[1] > 9 || (at[1] == 9 && (left < 11 || at[10] != 0))) return 0;
        break;
    case 0x8c: /* SHORT_BINUNICODE */
        if (left < 2) return 0;
        length = 2 + at[1];
        break;
    case 'r': /* LONG_BINPUT with a memo index of up to `place_bytes` bytes */
        if (left < 5) return 0;
        for (int byte = place_bytes; byte < 4; byte++)
            if (at[1 + byte]) return 0;
        length = 5;
        break;
    default: return 0;
    }
    return length <= left ? length : 0;
}

static PyObject *harmless_until(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer data;
    Py_ssize_t offset;
    int place_bytes;
    if (!PyArg_ParseTuple(args, "y*ni:harmless_until", &data, &offset, &place_bytes)) return NULL;
    const unsigned char *bytes = data.buf;
    if (offset >= 0 && place_bytes >= 0) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t length = 1; length && offset < data.len; offset += length)
            length = harmless_length(bytes + offset, data.len - offset, place_bytes);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return PyLong_FromSsize_t(offset);
}

static PyMethodDef functions[] = {
    {"harmless_until", harmless_until, METH_VARARGS, "(data, offset, place_bytes): where the run of harmless instructions of a pickle ends."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_harmless",
    .m_doc = "The scan of a pickle for instructions that no snapshot has.",
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__harmless(void) { return PyModuleDef_Init(&definition); }
