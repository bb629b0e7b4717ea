/* Finds values of other parameters in a parameter's sum. If they come from all ranks, buckets were unpacked in
 * another order than they were packed in. If they come from one rank, this rank has its parameters in another order
 * than the other ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "solve/patterns.h"

enum { MOST_VALUES = AD_PATTERN_VALUES, MOST_RANKS = 64, MOST_MATCHES = 1 << 15, MATCHES_EACH = 8, SEGMENTS = 6 };

/* The values of one other parameter, in full and by flat index, for comparison. */
typedef struct ad_source {
  const ad_dump_param *param;
  size_t begin, count; /* the values are values[begin], ... of the pool */
} ad_source;

/* Which ranks' addends of another parameter are summed: those of all ranks that are summed, of one rank, or of all
 * ranks except that one. */
typedef enum ad_whose { OF_ALL, OF_RANK, OF_OTHERS } ad_whose;

static int is_whose(ad_whose whose, int64_t rank, int64_t one) {
  return whose == OF_ALL || (rank == one) == (whose == OF_RANK);
}

/* The values of other parameters, among which the values of a part are looked for. */
typedef struct ad_pool {
  ad_source *sources;
  size_t source_count, count;
  double *values, *sizes; /* sizes: absolute sums, for the rounding of each value */
  ad_placed *sorted;      /* the values sorted by value; `index` is the index in `values` */
} ad_pool;

static void pool_clear(ad_pool *pool) {
  ad_release(pool->sources);
  ad_release(pool->values);
  ad_release(pool->sizes);
  ad_release(pool->sorted);
}

/* Appends `factor` times a sum of addends of the parameter `other` to the pool's values. `whose` says which ranks'
 * addends are summed, and `rank` is the rank that OF_RANK and OF_OTHERS mean. Returns 0 if an addend is not a full
 * tensor, or there is no addend. */
static int add_source(const ad_parts *other, int64_t rank, ad_whose whose, double factor, double *addend,
                      ad_pool *pool) {
  ad_box full = ad_box_full(&other->param->shape);
  size_t n = (size_t)other->param->numel, begin = pool->count, used = 0;
  for (size_t m = 0; m < other->member_count; m++) {
    const ad_members *members = &other->members[m];
    if (members->key != ad_parts_key(other, rank)) continue;
    ad_part part = {.box = full, .members = m, .count = n};
    for (size_t c = 0; c < members->count; c++) {
      const ad_piece *piece = &members->columns[c].piece;
      if (!ad_box_equal(&other->param->shape, &piece->box, &full)) return 0;
      if (!is_whose(whose, piece->rank, rank)) continue;
      ad_part_read(other, &part, piece, 0, n, addend);
      for (size_t i = 0; i < n; i++) {
        pool->values[begin + i] += factor * addend[i];
        pool->sizes[begin + i] += fabs(factor * addend[i]);
      }
      used++;
    }
  }
  return used > 0;
}

/* The parameters that the dump has in full, as many as the limits allow; the judged parameter may be among them. */
typedef struct ad_others {
  ad_parts *list;
  size_t count;
} ad_others;

static void others_destroy(ad_others *others) {
  for (size_t i = 0; i < others->count; i++) ad_parts_destroy(&others->list[i]);
  ad_release(others->list);
}

static ad_status others_create(const ad_dump *dump, ad_others *out) {
  size_t values = 0;
  *out = (ad_others){0};
  AD_TRY(ad_new(AD_PATTERN_PARAMS, &out->list));
  ad_status status = AD_OK;
  for (size_t p = 0; p < dump->param_count && out->count < AD_PATTERN_PARAMS && !status; p++) {
    const ad_dump_param *param = &dump->params[p];
    size_t more = (size_t)param->numel;
    if (param->is_sampled || param->unjudged || !more || values + more > MOST_VALUES) continue;
    status = ad_parts_create(dump, param, &out->list[out->count]);
    if (status) break;
    values += more;
    out->count++;
  }
  if (status) others_destroy(out);
  return status;
}

static void add_param(const ad_parts *parts, const ad_parts *other, int64_t rank, ad_whose whose, double *addend,
                      ad_pool *pool) {
  size_t n = (size_t)other->param->numel;
  double factor = whose == OF_ALL ? other->param->expect : parts->param->expect;
  if (other->param == parts->param && whose == OF_ALL) return;
  if (add_source(other, rank, whose, factor, addend, pool)) {
    pool->sources[pool->source_count++] = (ad_source){other->param, pool->count, n};
    pool->count += n;
  } else {
    memset(pool->values + pool->count, 0, n * sizeof *pool->values);
    memset(pool->sizes + pool->count, 0, n * sizeof *pool->sizes);
  }
}

/* Collects the values of all parameters in `others`. The judged parameter's own values are included only if they are
 * one rank's addends, since these may have been added at other offsets. */
static ad_status pool_fill(const ad_parts *parts, const ad_others *others, int64_t rank, ad_whose whose,
                           ad_pool *pool) {
  double *addend;
  AD_TRY(ad_new(MOST_VALUES, &addend));
  for (size_t i = 0; i < others->count; i++) add_param(parts, &others->list[i], rank, whose, addend, pool);
  ad_release(addend);
  for (size_t i = 0; i < pool->count; i++) pool->sorted[i] = (ad_placed){pool->values[i], i};
  ad_placed_sort(pool->sorted, pool->count);
  return AD_OK;
}

static ad_status pool_create(const ad_parts *parts, const ad_others *others, int64_t rank, ad_whose whose,
                             ad_pool *out) {
  *out = (ad_pool){0};
  ad_status status = ad_new(others->count + 1, &out->sources);
  if (!status) status = ad_new(MOST_VALUES, &out->values);
  if (!status) status = ad_new(MOST_VALUES, &out->sizes);
  if (!status) status = ad_new(MOST_VALUES, &out->sorted);
  if (!status) status = pool_fill(parts, others, rank, whose, out);
  if (status) pool_clear(out);
  return status;
}

/* ---- looking for the values of a part in a pool ---- */

/* A possible location of the part's values: the element with flat index at[i] has the value of element at[i] +
 * offset of the parameter pool->sources[source]. */
typedef struct ad_match {
  size_t source;
  int64_t offset;
} ad_match;

static int by_match(const void *a, const void *b) {
  const ad_match *one = a, *other = b;
  if (one->source != other->source) return one->source < other->source ? -1 : 1;
  return (one->offset > other->offset) - (one->offset < other->offset);
}

static size_t source_of(const ad_pool *pool, size_t index) {
  size_t low = 0, high = pool->source_count;
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (pool->sources[middle].begin <= index)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* The values that are looked for in the pool, and the values of the part, whose absolute sums bound the rounding. */
typedef struct ad_wanted {
  const ad_part_values *values;
  double *left; /* [n]: the values that are looked for */
} ad_wanted;

/* Lists, for the single values that are looked for, where each is found in the pool. */
static size_t list_matches(const ad_wanted *wanted, const ad_pool *pool, ad_match *list) {
  const ad_part_values *values = wanted->values;
  size_t count = 0, step = values->n / 1024 + 1;
  for (size_t i = 0; i < values->n; i += step) {
    double value = wanted->left[i], room = values->share * (values->size[i] + 4 * fabs(value)) + values->least;
    if (fabs(value) <= room) continue;
    size_t begin = ad_placed_from(pool->sorted, pool->count, value - room);
    for (size_t j = begin; j < pool->count && j < begin + MATCHES_EACH && count < MOST_MATCHES; j++) {
      size_t index = pool->sorted[j].index, source = source_of(pool, index);
      if (pool->values[index] > value + room) break;
      list[count++] = (ad_match){source, (int64_t)(index - pool->sources[source].begin) - values->at[i]};
    }
  }
  return count;
}

/* Removes the most frequent match from the sorted list. Returns how often it occurred. */
static size_t take_best(ad_match *list, size_t *count, ad_match *out) {
  size_t most = 0, at = 0;
  for (size_t i = 0, end; i < *count; i = end) {
    for (end = i + 1; end < *count && !by_match(&list[end], &list[i]);) end++;
    if (end - i > most) most = end - i, at = i;
  }
  if (!most) return 0;
  *out = list[at];
  memmove(list + at, list + at + most, (*count - at - most) * sizeof *list);
  *count -= most;
  return most;
}

/* Marks in `given` the elements that the match gives. Returns how many newly marked elements are not zero. */
static size_t mark(const ad_wanted *wanted, const ad_pool *pool, const ad_match *match, unsigned char *given) {
  const ad_part_values *values = wanted->values;
  const ad_source *source = &pool->sources[match->source];
  size_t added = 0;
  for (size_t i = 0; i < values->n; i++) {
    int64_t at = values->at[i] + match->offset;
    if (given[i] || at < 0 || at >= (int64_t)source->count) continue;
    size_t index = source->begin + (size_t)at;
    if (!ad_values_agree(values, wanted->left[i], pool->values[index], values->size[i] + pool->sizes[index])) continue;
    given[i] = 1;
    added += wanted->left[i] != 0;
  }
  return added;
}

/* Returns 1 if segments of the pool give every element, and each segment gives at least values->enough elements. Sets
 * found->name to the first segment's parameter, and found->more to the number of segments of other parameters. */
static int are_given(const ad_wanted *wanted, const ad_pool *pool, ad_match *list, unsigned char *given,
                     ad_pattern *found) {
  size_t count = list_matches(wanted, pool, list), n = wanted->values->n;
  qsort(list, count, sizeof *list, by_match);
  memset(given, 0, n);
  found->more = 0;
  found->name = NULL;
  for (int segment = 0; segment < SEGMENTS; segment++) {
    ad_match best;
    if (!take_best(list, &count, &best)) break;
    if (mark(wanted, pool, &best, given) < wanted->values->enough) break;
    const char *name = pool->sources[best.source].param->name;
    if (!found->name)
      found->name = name;
    else
      found->more += strcmp(name, found->name) != 0;
    if (!memchr(given, 0, n)) return 1;
  }
  return 0;
}

/* The data that all searches for the values of one part use: the other parameters, and scratch memory. */
typedef struct ad_search {
  const ad_others *others;
  ad_match *list;
  unsigned char *given;
  double *left;
} ad_search;

static ad_status find_sums(const ad_parts *parts, const ad_part *part, const ad_part_values *values, ad_search *memory,
                           ad_found_patterns *found) {
  ad_pattern pattern = {.kind = AD_PATTERN_OTHER_SUM, .rank = -1};
  ad_pool pool;
  AD_TRY(pool_create(parts, memory->others, part->holders[0], OF_ALL, &pool));
  memcpy(memory->left, values->sum, values->n * sizeof *values->sum);
  if (are_given(&(ad_wanted){values, memory->left}, &pool, memory->list, memory->given, &pattern))
    ad_pattern_add(found, pattern);
  pool_clear(&pool);
  return AD_OK;
}

/* Sets `left` to the sum minus the expected addends of all ranks except those that `whose` means. Returns 0 if rank
 * `rank` has no addend. */
static int leave_out(const ad_parts *parts, const ad_part *part, const ad_part_values *values, const double *expected,
                     int64_t rank, ad_whose whose, double *left) {
  const ad_members *members = ad_part_members(parts, part);
  double addend[512];
  int there = 0;
  for (size_t i = 0; i < values->n; i++) left[i] = values->sum[i] - values->right[i];
  for (size_t c = 0; c < members->count; c++) {
    there |= members->columns[c].piece.rank == rank;
    if (!is_whose(whose, members->columns[c].piece.rank, rank)) continue;
    for (size_t begin = 0; begin < values->n; begin += sizeof addend / sizeof *addend) {
      size_t end = begin + sizeof addend / sizeof *addend;
      if (end > values->n) end = values->n;
      ad_part_read(parts, part, &members->columns[c].piece, begin, end, addend);
      for (size_t i = begin; i < end; i++) left[i] += parts->param->expect * expected[c] * addend[i - begin];
    }
  }
  return there;
}

/* With OF_RANK, searches the sum for this rank's addends of other parameters. With OF_OTHERS, searches this rank's
 * own replica for the other ranks' addends of other parameters. */
static ad_status find_addends(const ad_parts *parts, const ad_part *part, const ad_part_values *values,
                              const double *expected, int64_t rank, ad_whose whose, ad_search *memory,
                              ad_found_patterns *found) {
  ad_pattern pattern = {.kind = AD_PATTERN_OTHER_ADDENDS, .rank = rank};
  ad_pool pool;
  if (!leave_out(parts, part, values, expected, rank, whose, memory->left)) return AD_OK;
  AD_TRY(pool_create(parts, memory->others, rank, whose, &pool));
  if (are_given(&(ad_wanted){values, memory->left}, &pool, memory->list, memory->given, &pattern))
    ad_pattern_add(found, pattern);
  pool_clear(&pool);
  return AD_OK;
}

ad_status ad_patterns_find_others(const ad_parts *parts, const ad_part *part, const ad_part_values *values,
                                  const double *expected, ad_found_patterns *found) {
  ad_others others;
  AD_TRY(others_create(parts->dump, &others));
  ad_search memory = {.others = &others};
  int64_t world = parts->dump->mesh.world;
  ad_status status = ad_new(MOST_MATCHES, &memory.list);
  if (!status) status = ad_new(values->n, &memory.given);
  if (!status) status = ad_new(values->n, &memory.left);
  if (!status) status = find_sums(parts, part, values, &memory, found);
  for (int64_t rank = 0; rank < world && world <= MOST_RANKS && !status; rank++)
    status = find_addends(parts, part, values, expected, rank, OF_RANK, &memory, found);
  if (!status && part->holder_count == 1)
    status = find_addends(parts, part, values, expected, part->holders[0], OF_OTHERS, &memory, found);
  ad_release(memory.list);
  ad_release(memory.given);
  ad_release(memory.left);
  others_destroy(&others);
  return status;
}
