/* Finds patterns of a sum within its own parameter: maxima, shifts, moved segments. Calls patterns_rows.c for rows of
 * sparse gradients, and patterns_others.c for other parameters' values. patterns_values.c reads the values that all of
 * these compare. */
#include "solve/patterns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "solve/hypotheses.h"

enum { MOST_ELEMENTS = 1 << 18, MOST_ADDENDS = 1024 }; /* parts with more are skipped */

/* ---- another operation than a sum ---- */

/* One way to combine addends by an operation (such as a maximum). Addends are divided into classes. In each class,
 * the addends of each position on `axes` are summed, then the operation combines these sums. Finally the results of the
 * classes are summed. */
typedef struct grouping {
  uint32_t axes;
  int each_microbatch; /* 1: each microbatch is a class of its own */
  int each_rest;       /* 1: each position on the other summed axes is a class; 0: addends are first summed over them */
} grouping;

static int64_t class_of(const ad_parts *parts, const ad_column *column, const grouping *how) {
  const ad_dump *dump = parts->dump;
  uint32_t rest = parts->param->summed & ~how->axes;
  int64_t class = how->each_rest ? ad_dump_key(dump, column->piece.rank, ~rest) : 0;
  return how->each_microbatch ? class * dump->microbatches + column->piece.microbatch : class;
}

static double operate(ad_pattern_kind kind, double a, double b) {
  return kind == AD_PATTERN_MAXIMUM ? fmax(a, b) : kind == AD_PATTERN_MINIMUM ? fmin(a, b) : a * b;
}

/* Arrays of `m` elements: an addend; the sum and the absolute sum of one position's addends; the combination of the
 * class so far, and the same combination of the absolute sums. */
typedef struct combining {
  size_t m;
  double *addend, *total, *size, *joined, *wide;
} combining;

/* Sums all addends with the class and position of column `first` into work->total, and their absolute values into
 * work->size; marks their columns in `done`. */
static void total_of(const ad_parts *parts, const ad_part *part, const double *expected, const grouping *how,
                     size_t first, unsigned char *done, combining *work) {
  const ad_members *members = ad_part_members(parts, part);
  const ad_column *columns = members->columns;
  int64_t class = class_of(parts, &columns[first], how);
  int64_t position = ad_dump_key(parts->dump, columns[first].piece.rank, ~how->axes);
  memset(work->total, 0, work->m * sizeof *work->total);
  memset(work->size, 0, work->m * sizeof *work->size);
  for (size_t c = first; c < members->count; c++) {
    if (done[c] || class_of(parts, &columns[c], how) != class ||
        ad_dump_key(parts->dump, columns[c].piece.rank, ~how->axes) != position)
      continue;
    done[c] = 1;
    for (size_t begin = 0; begin < work->m; begin += AD_ROWS) {
      size_t end = begin + AD_ROWS < work->m ? begin + AD_ROWS : work->m;
      ad_part_read(parts, part, &columns[c].piece, begin, end, work->addend);
      for (size_t i = begin; i < end; i++) {
        work->total[i] += expected[c] * work->addend[i - begin];
        work->size[i] += fabs(expected[c] * work->addend[i - begin]);
      }
    }
  }
}

/* Combines the sums of all positions of the class of column `first`, and adds the result to `value` and `bound`.
 * Returns the number of positions. */
static size_t add_class(const ad_parts *parts, const ad_part *part, const double *expected, const grouping *how,
                        ad_pattern_kind kind, size_t first, unsigned char *done, combining *work, double *value,
                        double *bound) {
  const ad_members *members = ad_part_members(parts, part);
  int64_t class = class_of(parts, &members->columns[first], how);
  size_t positions = 0;
  for (size_t c = first; c < members->count; c++) {
    if (done[c] || class_of(parts, &members->columns[c], how) != class) continue;
    total_of(parts, part, expected, how, c, done, work);
    for (size_t i = 0; i < work->m; i++) {
      work->joined[i] = positions ? operate(kind, work->joined[i], work->total[i]) : work->total[i];
      if (kind == AD_PATTERN_PRODUCT)
        work->wide[i] = positions ? work->wide[i] * work->size[i] : work->size[i];
      else
        work->wide[i] = positions ? fmax(work->wide[i], work->size[i]) : work->size[i];
    }
    positions++;
  }
  for (size_t i = 0; i < work->m; i++) {
    value[i] += work->joined[i];
    bound[i] += work->wide[i];
  }
  return positions;
}

/* Computes the first `work->m` elements of the combination. Returns 0 if some class does not have all positions:
 * then the result would not be a combination over all ranks. */
static int combine(const ad_parts *parts, const ad_part *part, const double *expected, const grouping *how,
                   ad_pattern_kind kind, unsigned char *done, combining *work, double *value, double *bound) {
  const ad_members *members = ad_part_members(parts, part);
  size_t ranks = (size_t)ad_dump_axes_size(&parts->dump->mesh, how->axes);
  memset(done, 0, members->count);
  memset(value, 0, work->m * sizeof *value);
  memset(bound, 0, work->m * sizeof *bound);
  for (size_t c = 0; c < members->count; c++)
    if (!done[c] && add_class(parts, part, expected, how, kind, c, done, work, value, bound) != ranks) return 0;
  return 1;
}

/* Returns the factor by which `value` must be multiplied to give the sum, if it is a usual one: 1, the expected
 * factor, or the expected factor times a simple count; else 0. */
static double factor_of(const ad_parts *parts, const ad_part_values *values, size_t m, const double *value) {
  double along = 0, square = 0, expect = parts->param->expect;
  for (size_t i = 0; i < m; i++) {
    along += values->sum[i] * value[i];
    square += value[i] * value[i];
  }
  double factor = square > 0 ? along / square : 0;
  if (fabs(factor - 1) < 1e-2) return 1;
  double simple = ad_simple_count(&parts->dump->mesh, factor / expect);
  return fabs(factor / expect - simple) < 1e-2 * fabs(simple) ? expect * simple : 0;
}

/* Returns 1 if factor * value gives the first m elements of the sum, and enough of these are not zero. */
static int gives(const ad_part_values *values, size_t m, double factor, const double *value, const double *bound) {
  size_t full = 0;
  for (size_t i = 0; i < m; i++) {
    if (!ad_values_agree(values, values->sum[i], factor * value[i], fabs(factor) * bound[i])) return 0;
    full += values->sum[i] != 0;
  }
  return factor != 0 && full >= values->enough;
}

/* Tries one operation and grouping: on the first elements and, if these fit, on all elements. */
static void try_operation(const ad_parts *parts, const ad_part *part, const ad_part_values *values,
                          const double *expected, const grouping *how, ad_pattern_kind kind, unsigned char *done,
                          combining *work, double *memory, ad_found_patterns *found) {
  enum { FIRST = 256 };
  double *value = memory, *bound = memory + values->n, factor = 0;
  const size_t sizes[] = {values->n < FIRST ? values->n : FIRST, values->n};
  for (size_t s = 0; s < 2; s++) {
    work->m = sizes[s];
    if (!combine(parts, part, expected, how, kind, done, work, value, bound)) return;
    factor = factor_of(parts, values, work->m, value);
    if (!gives(values, work->m, factor, value, bound)) return;
  }
  ad_pattern_add(found, (ad_pattern){.kind = kind, .axes = how->axes, .factor = factor, .rank = -1});
}

static void try_groupings(const ad_parts *parts, const ad_part *part, const ad_part_values *values,
                          const double *expected, unsigned char *done, combining *work, double *memory,
                          ad_found_patterns *found) {
  uint32_t summed = ad_large_axes(&parts->dump->mesh, parts->param->summed);
  int each = parts->dump->microbatches > 1;
  for (uint32_t axes = summed; axes; axes = (axes - 1) & summed)
    for (int kind = AD_PATTERN_MAXIMUM; kind <= AD_PATTERN_PRODUCT; kind++) {
      size_t before = found->count;
      for (int way = 0; way < 4 && found->count == before; way++) {
        grouping how = {axes, way & 1, way >> 1};
        if ((how.each_microbatch && !each) || (how.each_rest && axes == summed)) continue;
        try_operation(parts, part, values, expected, &how, (ad_pattern_kind)kind, done, work, memory, found);
      }
    }
}

static ad_status find_operations(const ad_parts *parts, const ad_part *part, const ad_part_values *values,
                                 const double *expected, ad_found_patterns *found) {
  double *memory;
  unsigned char *done;
  AD_TRY(ad_new(6 * values->n + AD_ROWS, &memory));
  ad_status status = ad_new(ad_part_members(parts, part)->count, &done);
  if (!status) {
    double *at = memory + 2 * values->n;
    combining work = {0, at + 4 * values->n, at, at + values->n, at + 2 * values->n, at + 3 * values->n};
    try_groupings(parts, part, values, expected, done, &work, memory, found);
    ad_release(done);
  }
  ad_release(memory);
  return status;
}

/* ---- the right sum, shifted ---- */

static int by_number(const void *a, const void *b) {
  int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;
  return (one > other) - (one < other);
}

/* Returns the index of the element with this flat index, or n if there is none. */
static size_t index_at(const ad_part_values *values, int64_t at) {
  size_t low = 0, high = values->n;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (values->at[middle] < at)
      low = middle + 1;
    else
      high = middle;
  }
  return low < values->n && values->at[low] == at ? low : values->n;
}

/* Sorts the list, and returns the number that occurs most often in it. */
static int64_t most_frequent(int64_t *list, size_t count) {
  int64_t best = 0;
  size_t most = 0;
  qsort(list, count, sizeof *list, by_number);
  for (size_t i = 0, end; i < count; i = end) {
    for (end = i + 1; end < count && list[end] == list[i];) end++;
    if (end - i > most) most = end - i, best = list[i];
  }
  return best;
}

/* Returns 1 if every element i of the sum has the value that belongs at i + `shift`, wherever i + `shift` is in the
 * part. At least values->enough nonzero elements must be compared so; in a part that is not sampled, also at least half
 * of all elements. */
static int is_shifted(const ad_part_values *values, int64_t shift, int is_sampled) {
  size_t compared = 0, full = 0;
  for (size_t i = 0; i < values->n; i++) {
    size_t j = index_at(values, values->at[i] + shift);
    if (j == values->n) continue;
    if (!ad_values_agree(values, values->sum[i], values->right[j], values->size[j])) return 0;
    compared++;
    full += values->sum[i] != 0;
  }
  return full >= values->enough && (is_sampled || 2 * compared >= values->n);
}

/* Lists the shifts at which single elements of the sum are found in the right sum. */
static size_t list_shifts(const ad_part_values *values, const ad_placed *sorted, int64_t *shifts, size_t most) {
  enum { MATCHES = 16 };
  size_t count = 0, step = values->n / 2048 + 1;
  for (size_t i = 0; i < values->n; i += step) {
    double sum = values->sum[i], room = values->share * 4 * fabs(sum) + values->least;
    if (fabs(sum) <= room) continue;
    size_t begin = ad_placed_from(sorted, values->n, sum - room);
    for (size_t j = begin; j < values->n && sorted[j].value <= sum + room && j < begin + MATCHES; j++)
      if (sorted[j].index != i && count < most) shifts[count++] = values->at[sorted[j].index] - values->at[i];
  }
  return count;
}

/* ---- segments of the right sum that were moved ---- */

/* Marks in `given` the elements i that have the value that belongs at i + `shift`. Returns how many newly marked
 * elements are not zero. */
static size_t mark_shift(const ad_part_values *values, int64_t shift, unsigned char *given) {
  size_t added = 0;
  for (size_t i = 0; i < values->n; i++) {
    size_t j = given[i] ? values->n : index_at(values, values->at[i] + shift);
    if (j == values->n || !ad_values_agree(values, values->sum[i], values->right[j], values->size[j])) continue;
    given[i] = 1;
    added += values->sum[i] != 0;
  }
  return added;
}

/* Returns 1 if every element is marked or is zero, as padding is. At most half of the elements may be such zeros. */
static int all_given(const ad_part_values *values, const unsigned char *given) {
  size_t zeros = 0;
  for (size_t i = 0; i < values->n; i++) {
    if (given[i]) continue;
    if (values->sum[i] != 0) return 0;
    zeros++;
  }
  return 2 * zeros <= values->n;
}

/* Explains the sum by segments of the right sum that are unmoved or moved by a few shifts. The most frequent shift must
 * give values->enough elements, and each other shift half as many. */
static void find_moved(const ad_part_values *values, int64_t *shifts, size_t count, unsigned char *given,
                       ad_found_patterns *found) {
  enum { SEGMENTS = 16 };
  ad_pattern pattern = {.kind = AD_PATTERN_MOVED, .rank = -1};
  size_t least = values->enough;
  mark_shift(values, 0, given);
  for (int segment = 0; segment < SEGMENTS && count; segment++) {
    int64_t shift = most_frequent(shifts, count);
    size_t left = 0;
    for (size_t i = 0; i < count; i++)
      if (shifts[i] != shift) shifts[left++] = shifts[i];
    count = left;
    if (mark_shift(values, shift, given) < least) return;
    if (segment) pattern.more++;
    if (!segment) pattern.shift = shift, least = values->enough / 2 > 2 ? values->enough / 2 : 2;
    if (!all_given(values, given)) continue;
    ad_pattern_add(found, pattern);
    return;
  }
}

static ad_status find_shift(const ad_parts *parts, const ad_part_values *values, ad_found_patterns *found) {
  enum { MOST = 1 << 15 };
  ad_placed *sorted;
  int64_t *shifts = NULL;
  unsigned char *given = NULL;
  AD_TRY(ad_new(values->n, &sorted));
  ad_status status = ad_new(MOST, &shifts);
  if (!status) status = ad_new(values->n, &given);
  if (!status) {
    for (size_t i = 0; i < values->n; i++) sorted[i] = (ad_placed){values->right[i], i};
    ad_placed_sort(sorted, values->n);
    size_t count = list_shifts(values, sorted, shifts, MOST);
    int64_t shift = most_frequent(shifts, count);
    if (count && is_shifted(values, shift, parts->param->is_sampled))
      ad_pattern_add(found, (ad_pattern){.kind = AD_PATTERN_SHIFTED, .shift = shift, .rank = -1});
    else if (!parts->param->is_sampled)
      find_moved(values, shifts, count, given, found);
  }
  ad_release(given);
  ad_release(shifts);
  ad_release(sorted);
  return status;
}

ad_status ad_patterns_find(const ad_parts *parts, const ad_part *part, const double *expected, int others,
                           ad_found_patterns *found) {
  ad_part_values values;
  if (part->count > MOST_ELEMENTS || ad_part_members(parts, part)->count > MOST_ADDENDS) return AD_OK;
  AD_TRY(ad_part_values_create(parts, part, expected, &values));
  ad_status status = find_operations(parts, part, &values, expected, found);
  if (!status) status = find_shift(parts, &values, found);
  if (!status) status = ad_patterns_find_rows(parts, part, &values, expected, found);
  if (!status && others) status = ad_patterns_find_others(parts, part, &values, expected, found);
  ad_part_values_clear(&values);
  return status;
}
