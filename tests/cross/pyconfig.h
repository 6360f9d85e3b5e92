/* As much of the configuration of CPython on 64-bit Windows as its limited API asks for: to compile against it elsewhere. */
#define MS_WINDOWS 1
#define MS_WIN64 1
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_INT 4
#define SIZEOF_SHORT 2
#define SIZEOF_WCHAR_T 2
#define SIZEOF_TIME_T 8
#define SIZEOF_PID_T 4
#define ALIGNOF_SIZE_T 8
#define HAVE_DECLSPEC_DLL 1
#define Py_ENABLE_SHARED 1
