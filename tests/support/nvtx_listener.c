/* What a process tells NVTX, one line a call in the file NVTX_LISTENER_OUT: "start <id> <colour> <name>", "end <id>".

   cc -shared -fPIC nvtx_listener.c -o listener.so && NVTX_INJECTION64_PATH=./listener.so NVTX_LISTENER_OUT=out python …

   NVTX loads the library and lets it fill in what ranges call: so nsys does it, and so it can be heard without nsys
   and without a GPU. Only the parts of NVTX's binary interface that are used are declared here, none of its headers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*function)(void);
typedef struct {
    size_t size;
    int (*table)(int module, function ***functions, unsigned *count);
} callbacks;
typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
} attributes;

enum { CALLBACKS = 1, CORE = 1, CORE2 = 5, ASCII = 1, REGISTERED = 3 };
enum { RANGE_START = 4, RANGE_START_ASCII = 5, RANGE_END = 7 };
enum { DOMAIN_RANGE_START = 2, DOMAIN_RANGE_END = 3, DOMAIN_REGISTER_STRING = 10, DOMAIN_CREATE = 12 };

static FILE *out;
static uint64_t latest;

static uint64_t started(const char *name, uint32_t color) {
    fprintf(out, "start %llu %06x %s\n", (unsigned long long)++latest, color & 0xffffff, name);
    fflush(out);
    return latest;
}

static void ended(uint64_t id) {
    fprintf(out, "end %llu\n", (unsigned long long)id);
    fflush(out);
}

/* A registered string's handle is the copy of the string itself. */
static uint64_t start(const attributes *a) {
    int named = a->message_type == ASCII || a->message_type == REGISTERED;
    return started(named ? a->message : "", a->color);
}
static uint64_t start_ascii(const char *name) { return started(name, 0); }
static uint64_t domain_start(void *domain, const attributes *a) { return (void)domain, start(a); }
static void domain_end(void *domain, uint64_t id) { (void)domain, ended(id); }
static void *domain_string(void *domain, const char *text) { return (void)domain, strdup(text); }
static void *domain(const char *name) { return strdup(name); }

static void set(function **functions, unsigned count, unsigned number, function call) {
    if (number < count && functions[number]) *functions[number] = call;
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const callbacks *known = export_table(CALLBACKS);
    const char *path = getenv("NVTX_LISTENER_OUT");
    function **functions;
    unsigned count;
    if (!known || !path || !(out = fopen(path, "a"))) return 0;
    if (known->table(CORE, &functions, &count)) {
        set(functions, count, RANGE_START, (function)start);
        set(functions, count, RANGE_START_ASCII, (function)start_ascii);
        set(functions, count, RANGE_END, (function)ended);
    }
    if (known->table(CORE2, &functions, &count)) {
        set(functions, count, DOMAIN_RANGE_START, (function)domain_start);
        set(functions, count, DOMAIN_RANGE_END, (function)domain_end);
        set(functions, count, DOMAIN_REGISTER_STRING, (function)domain_string);
        set(functions, count, DOMAIN_CREATE, (function)domain);
    }
    return 1;
}
