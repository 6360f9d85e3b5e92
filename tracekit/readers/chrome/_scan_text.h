/* Tokens of the strict layer: ends of strings, containers and bare values, and values of plain numbers.
 *
 * `p` is the start of a token, `e` the end of the data; no byte at or after `e` is read. A function that returns a
 * position returns NULL if the data ends first (or, for numbers, if the text is not in the plain form).
 */
#ifndef TRACEKIT_SCAN_TEXT_H
#define TRACEKIT_SCAN_TEXT_H

#include <float.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Compiler extensions; TRACEKIT_PLAIN_C selects the portable code. */
#if (defined(__GNUC__) || defined(__clang__)) && !defined(TRACEKIT_PLAIN_C)
#define TK_GNU 1
#endif

#ifdef TK_GNU
#define TK_LIKELY(x) __builtin_expect(!!(x), 1)
#define TK_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TK_RARE __attribute__((noinline, cold))
#else
#define TK_LIKELY(x) (x)
#define TK_UNLIKELY(x) (x)
#define TK_RARE
#endif

#define TK_EVERY_BYTE(c) ((uint64_t)(c) * UINT64_C(0x0101010101010101))

enum { TK_BARE = 1, TK_SPACE = 2, TK_DIGIT = 4 };

#define D (TK_BARE | TK_DIGIT)
#define B TK_BARE
#define S TK_SPACE
static const unsigned char tk_classes[256] = {
    ['\t'] = S, ['\n'] = S, ['\r'] = S, [' '] = S, ['+'] = B, ['-'] = B, ['.'] = B, ['/'] = B, ['_'] = B,
    ['0'] = D, D, D, D, D, D, D, D, D, D,
    ['A'] = B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B,
    ['a'] = B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B,
};
#undef D
#undef B
#undef S

/* Return the byte at p; at the end of the data 0, which is invalid everywhere outside strings. */
static inline unsigned char tk_at(const unsigned char *p, const unsigned char *e) { return p < e ? *p : 0; }

static inline bool tk_is_digit(const unsigned char *p, const unsigned char *e)
{
    return p < e && (unsigned char)(*p - '0') < 10;
}

/* Load eight bytes in little-endian order on any machine; compilers emit one load. */
static inline uint64_t tk_load8(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 |
           (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
}

static inline uint32_t tk_load4(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Set the top bit of every byte of `word` that equals c. */
static inline uint64_t tk_bytes_equal(uint64_t word, unsigned char c)
{
    uint64_t low = TK_EVERY_BYTE(0x7f), other = word ^ TK_EVERY_BYTE(c);
    return ~(((other & low) + low) | other | low);
}

/* Return the index of the lowest byte marked in `mask`, which is not 0. */
static inline unsigned tk_first_byte(uint64_t mask)
{
#ifdef TK_GNU
    return (unsigned)__builtin_ctzll(mask) >> 3;
#else
    unsigned byte = 0;
    for (; !(mask & 0xff); mask >>= 8) byte++;
    return byte;
#endif
}

static inline const unsigned char *tk_skip_spaces(const unsigned char *p, const unsigned char *e)
{
    while (p < e && (tk_classes[*p] & TK_SPACE)) {
        p++;
        while (e - p >= 8) { /* indented files have long runs of spaces */
            uint64_t others = tk_load8(p) ^ TK_EVERY_BYTE(' ');
            p += others ? tk_first_byte(others) : 8;
            if (others) break;
        }
    }
    return p;
}

/* Skip whitespace, usually none or one space. */
static inline const unsigned char *tk_skip_space(const unsigned char *p, const unsigned char *e)
{
    p += p < e && *p == ' ';
    return TK_LIKELY(p < e && *p > ' ') ? p : tk_skip_spaces(p, e);
}

/* Return the position after the closing quote; p is after the opening one. */
static inline const unsigned char *tk_string_end(const unsigned char *p, const unsigned char *e)
{
    for (;;) {
        uint64_t found = 0;
        while (e - p >= 8) {
            uint64_t word = tk_load8(p);
            found = tk_bytes_equal(word, '"') | tk_bytes_equal(word, '\\');
            if (found) break;
            p += 8;
        }
        if (found)
            p += tk_first_byte(found);
        else
            while (p < e && *p != '"' && *p != '\\') p++;
        if (p == e) return NULL;
        if (*p == '"') return p + 1;
        if (e - p < 2) return NULL;
        p += 2;
    }
}

/* Return the position after the closing bracket; p is at the opening one. Both kinds of bracket count alike. */
static inline const unsigned char *tk_container_end(const unsigned char *p, const unsigned char *e)
{
    size_t depth = 0;
    while (p < e) {
        unsigned char c = *p++;
        if (c == '"') {
            p = tk_string_end(p, e);
            if (!p) return NULL;
        } else if ((c | 0x20) == '{') {
            depth++;
        } else if ((c | 0x20) == '}') {
            if (--depth == 0) return p;
        }
    }
    return NULL;
}

/* Return the position after the bare characters; p if there are none. */
static inline const unsigned char *tk_bare_end(const unsigned char *p, const unsigned char *e)
{
    while (p < e && (tk_classes[*p] & TK_BARE)) p++;
    return p;
}

/* Check whether the data continues at p with a byte that ends a bare value. */
static inline bool tk_ends_bare(const unsigned char *p, const unsigned char *e)
{
    return p < e && !(tk_classes[*p] & TK_BARE);
}

/* Combine eight decimal digits, given as bytes 0 to 9 in little-endian order. */
static inline uint64_t tk_eight_digits(uint64_t digits)
{
    uint64_t pairs = digits * 10 + (digits >> 8); /* in every second byte */
    const uint64_t mask = UINT64_C(0x000000ff000000ff);
    const uint64_t outer = UINT64_C(0x000f424000000064), inner = UINT64_C(0x0000271000000001);
    return (uint32_t)(((pairs & mask) * outer + (pairs >> 16 & mask) * inner) >> 32);
}

static const uint32_t tk_small_powers_of_ten[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};

/* Count the leading digits among the four bytes at p. */
static inline unsigned tk_digit_count4(const unsigned char *p)
{
    uint64_t digits = tk_load4(p) ^ (uint32_t)TK_EVERY_BYTE('0');
    return tk_first_byte((((digits + (uint32_t)TK_EVERY_BYTE(6)) | digits) & (uint32_t)TK_EVERY_BYTE(0xf0)) | UINT64_C(1) << 32);
}

/* Append digits to the decimal `*value` (modulo 2^64: the caller limits the digits), and return their end.
 * Eight at a time: numbers differ in length, and a loop over single digits mispredicts its end. */
static inline const unsigned char *tk_read_digits(const unsigned char *p, const unsigned char *e, uint64_t *value)
{
    uint64_t sum = *value;
    while (TK_LIKELY(e - p >= 8)) {
        uint64_t digits = tk_load8(p) ^ TK_EVERY_BYTE('0');
        /* The carry of a non-digit byte reaches only the bytes after it. */
        uint64_t others = ((digits + TK_EVERY_BYTE(6)) | digits) & TK_EVERY_BYTE(0xf0);
        if (others) {
            unsigned count = tk_first_byte(others);
            if (count) sum = sum * tk_small_powers_of_ten[count] + tk_eight_digits(digits << 8 * (8 - count));
            *value = sum;
            return p + count;
        }
        sum = sum * 100000000 + tk_eight_digits(digits);
        p += 8;
    }
    for (; tk_is_digit(p, e); p++) sum = sum * 10 + (uint64_t)(*p - '0');
    *value = sum;
    return p;
}

static const double tk_powers_of_ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                          1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* Convert digits * 10^scale to a double if both factors are exact, so one rounding suffices; else return false. */
static inline bool tk_exact_float(uint64_t digits, int64_t scale, double *value)
{
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0
    (void)digits, (void)scale, (void)value; /* wider registers would round twice */
    return false;
#else
    if (digits > UINT64_C(1) << 53 || scale < -22 || scale > 22) return false;
    if (scale < 0)
        *value = (double)digits / tk_powers_of_ten[-scale];
    else
        *value = (double)digits * tk_powers_of_ten[scale];
    return true;
#endif
}

/* Add an exponent (p is after the `e`) to `*scale`, and return the end of its digits. */
static inline const unsigned char *tk_read_exponent(const unsigned char *p, const unsigned char *e, int64_t *scale)
{
    uint64_t power = 0;
    bool negative = tk_at(p, e) == '-';
    p += negative || tk_at(p, e) == '+';
    const unsigned char *digits = p;
    p = tk_read_digits(p, e, &power);
    if (p == digits || p - digits > 4) return NULL;
    *scale += negative ? -(int64_t)power : (int64_t)power;
    return p;
}

/* Read a bare number of up to 18 digits that fits int64 or a double by one rounding (`*is_float`); return its end. */
static inline const unsigned char *tk_read_number(const unsigned char *p, const unsigned char *e, int64_t *bits,
                                                  bool *is_float)
{
    bool negative = tk_at(p, e) == '-';
    p += negative;
    const unsigned char *digits = p;
    uint64_t sum = 0;
    p = tk_read_digits(p, e, &sum);
    int64_t digit_count = p - digits, scale = 0;
    if (digit_count == 0 || digit_count > 18) return NULL;
    if (TK_LIKELY(tk_ends_bare(p, e))) {
        *bits = negative ? -(int64_t)sum : (int64_t)sum;
        *is_float = false;
        return p;
    }
    if (tk_at(p, e) == '.') {
        const unsigned char *fraction = ++p;
        p = tk_read_digits(p, e, &sum);
        scale = fraction - p;
        if (digit_count - scale > 18) return NULL;
    }
    if ((tk_at(p, e) | 0x20) == 'e') {
        p = tk_read_exponent(p + 1, e, &scale);
        if (!p) return NULL;
    }
    double value;
    if (!tk_ends_bare(p, e) || !tk_exact_float(sum, scale, &value)) return NULL;
    if (negative) value = -value;
    memcpy(bits, &value, sizeof value);
    *is_float = true;
    return p;
}

/* Read `-?digits(.digits)?` into `*ns` thousandths, rounded half to even; at most 16 digits before the point. */
static inline const unsigned char *tk_read_thousandths(const unsigned char *p, const unsigned char *e, int64_t *ns)
{
    bool negative = tk_at(p, e) == '-';
    p += negative;
    const unsigned char *digits = p;
    uint64_t sum = 0;
    p = tk_read_digits(p, e, &sum);
    if (p == digits || p - digits > 16) return NULL;
    sum *= 1000;
    if (tk_at(p, e) == '.') {
        p++;
        if (TK_LIKELY(e - p >= 4 && tk_digit_count4(p) == 3)) {
            sum += (unsigned)(p[0] * 100 + p[1] * 10 + p[2] - '0' * 111);
            p += 3;
        } else {
            for (unsigned weight = 100; weight && tk_is_digit(p, e); weight /= 10)
                sum += weight * (unsigned)(*p++ - '0');
        }
        if (TK_UNLIKELY(tk_is_digit(p, e))) {
            unsigned next = (unsigned)(*p++ - '0');
            bool more = false;
            for (; tk_is_digit(p, e); p++) more |= *p != '0';
            sum += next > 5 || (next == 5 && (more || (sum & 1)));
        }
    }
    if (sum > INT64_MAX) return NULL;
    *ns = negative ? -(int64_t)sum : (int64_t)sum;
    return p;
}

/* Read a time in microseconds, bare or in quotes, if it is a plain decimal; return its end. */
static inline const unsigned char *tk_read_time(const unsigned char *p, const unsigned char *e, int64_t *ns)
{
    if (tk_at(p, e) == '"') {
        p = tk_read_thousandths(p + 1, e, ns);
        return p && tk_at(p, e) == '"' ? p + 1 : NULL;
    }
    p = tk_read_thousandths(p, e, ns);
    return p && tk_ends_bare(p, e) ? p : NULL;
}

/* Return the length of the UTF-8 sequence at p; negative if the first -length bytes are invalid. */
static inline int tk_utf8_sequence(const unsigned char *p, const unsigned char *e)
{
    unsigned char first = *p, low = 0x80, high = 0xbf;
    int length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (length == 0) return -1;
    if (first == 0xe0) low = 0xa0; /* else overlong */
    if (first == 0xf0) low = 0x90;
    if (first == 0xed) high = 0x9f; /* else a surrogate */
    if (first == 0xf4) high = 0x8f; /* else beyond U+10FFFF */
    for (int i = 1; i < length; i++, low = 0x80, high = 0xbf)
        if (p + i == e || p[i] < low || p[i] > high) return -i;
    return length;
}

/* Write the text to `out` (room for 3 * size) with U+FFFD for invalid UTF-8, as Python's "replace" does; return its
 * size. */
static inline size_t tk_replace_invalid(const unsigned char *text, size_t size, unsigned char *out)
{
    const unsigned char *p = text, *e = text + size;
    unsigned char *start = out;
    while (p < e) {
        int length = tk_utf8_sequence(p, e);
        if (length > 0) {
            memcpy(out, p, (size_t)length);
            out += length;
            p += length;
        } else {
            memcpy(out, "\xef\xbf\xbd", 3);
            out += 3;
            p -= length;
        }
    }
    return (size_t)(out - start);
}

#endif
