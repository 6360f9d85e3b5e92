/* Passes over whole columns: numbering in the order of first use. */
#include "_scan_core.h"

#include "_scan_columns.h"

static bool is_code(int32_t code, size_t count) { return code >= 0 && (size_t)code < count; }

int64_t tk_renumber(int32_t *codes, size_t count, const int32_t *groups, size_t group_count, int32_t *order)
{
    int32_t *ranks = tk_resized(NULL, group_count, sizeof *ranks);
    if (!ranks) return -1;
    for (size_t i = 0; i < group_count; i++) ranks[i] = -1;
    int64_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (codes[i] == -1) continue;
        int32_t group = is_code(codes[i], group_count) ? groups[codes[i]] : -2;
        if (group != -1 && !is_code(group, group_count)) {
            used = -2;
            break;
        }
        if (group >= 0 && ranks[group] < 0) {
            order[used] = group;
            ranks[group] = (int32_t)used++;
        }
        codes[i] = group < 0 ? -1 : ranks[group];
    }
    tk_release(ranks);
    return used;
}

bool tk_distinct(const unsigned char *kinds, const int64_t *values, size_t count, uint64_t seed, int32_t *codes,
                 tk_texts *pairs)
{
    unsigned char pair[sizeof *values + 1];
    for (size_t i = 0; i < count; i++) {
        memcpy(pair, &values[i], sizeof *values);
        pair[sizeof *values] = kinds[i];
        codes[i] = tk_code_of(pairs, seed, pair, sizeof pair);
        if (codes[i] < 0) return false;
    }
    return true;
}
