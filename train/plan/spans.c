/* Groups the positions of an axis into runs that have parts of the same sizes. When an axis of g positions cuts n
 * elements, the size of a part changes at most 2n times, however large g is. So runs are found from the elements, not
 * from the positions. */
#include "plan/spans.h"
#include <stdlib.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "layout/nest.h"

static const int64_t RUNS_MAX = 1 << 23; /* takes 200 MB of memory */

void ad_positions_release(ad_positions *positions) {
  ad_release(positions->runs);
  *positions = (ad_positions){0};
}

static int64_t cut_count(ad_cut_asked cut, int64_t i, int64_t g) {
  if (!cut.zigzag) return ad_cut(cut.n, i, g).count;
  return ad_cut(cut.n, i, 2 * g).count + ad_cut(cut.n, 2 * g - 1 - i, 2 * g).count;
}

static ad_status too_many(void) {
  return ad_fail(AD_INVALID,
                 "the plan needs more than %lld ranges of ranks with parts of equal size; choose sizes that the mesh "
                 "axes divide, so that parts are more even",
                 (long long)RUNS_MAX);
}

/* ---- positions at which a part's size may change ---- */

/* A list of positions on an axis. */
typedef struct places {
  int64_t *at;
  size_t count, capacity;
} places;

static ad_status add_place(places *list, int64_t at) {
  if ((int64_t)list->count >= 2 * RUNS_MAX) return too_many();
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 64;
    AD_TRY(ad_grow(&list->at, list->capacity, capacity));
    list->capacity = capacity;
  }
  list->at[list->count++] = at;
  return AD_OK;
}

static ad_status add_every_place(places *list, int64_t size) {
  for (int64_t i = 1; i < size; i++) AD_TRY(add_place(list, i));
  return AD_OK;
}

/* Adds the positions at which parts begin and end, for a cut with fewer elements than chunks: each element is a chunk
 * of its own, and most chunks are empty. */
static ad_status add_holders(places *list, ad_cut_asked cut, int64_t size, int64_t chunks) {
  for (int64_t e = 0; e < cut.n; e++) {
    int64_t chunk = ad_cut_with(cut.n, e, chunks), at = chunk < size ? chunk : chunks - 1 - chunk;
    AD_TRY(add_place(list, at));
    AD_TRY(add_place(list, at + 1));
  }
  return AD_OK;
}

/* Adds the positions at which the size of a part may change. */
static ad_status add_places(places *list, ad_cut_asked cut, int64_t size) {
  int64_t chunks = cut.zigzag ? 2 * size : size;
  if (cut.n % chunks == 0) return AD_OK;
  return cut.n < chunks ? add_holders(list, cut, size, chunks) : add_every_place(list, size);
}

static int by_number(const void *a, const void *b) {
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  return (left > right) - (left < right);
}

/* Lists, sorted, the positions at which the size of any cut's part may change. */
static ad_status find_places(int64_t size, const ad_cut_asked *cuts, size_t count, int apart, places *out) {
  AD_TRY(add_place(out, 0));
  AD_TRY(add_place(out, size));
  if (apart && size > 1) AD_TRY(add_place(out, 1));
  for (size_t i = 0; i < count; i++) AD_TRY(add_places(out, cuts[i], size));
  qsort(out->at, out->count, sizeof *out->at, by_number);
  return AD_OK;
}

/* ---- classes of positions ---- */

/* Joins neighbouring runs that have the same class, and then numbers the classes from 0. */
static ad_status number_classes(ad_positions *positions) {
  int64_t *known;
  size_t runs = 0;
  AD_TRY(ad_new(positions->count, &known));
  for (size_t i = 0; i < positions->count; i++) {
    ad_run_of_positions run = positions->runs[i];
    if (runs && positions->runs[runs - 1].class == run.class)
      positions->runs[runs - 1].count += run.count;
    else
      positions->runs[runs++] = run;
  }
  positions->count = runs;
  for (size_t i = 0; i < runs; i++) known[i] = positions->runs[i].class;
  qsort(known, runs, sizeof *known, by_number);
  size_t classes = 0;
  for (size_t i = 0; i < runs; i++)
    if (!classes || known[classes - 1] != known[i]) known[classes++] = known[i];
  for (size_t i = 0; i < runs; i++) {
    const int64_t *found = bsearch(&positions->runs[i].class, known, classes, sizeof *known, by_number);
    positions->runs[i].class = found - known;
  }
  positions->classes = (int64_t)classes;
  ad_release(known);
  return AD_OK;
}

/* Makes a run from each position in the list to the next. The run's class is at first a hash of the sizes of its parts;
 * number_classes replaces it. */
static ad_status take_runs(const places *list, int64_t size, const ad_cut_asked *cuts, size_t count, int apart,
                           ad_positions *out) {
  AD_TRY(ad_new(list->count, &out->runs));
  for (size_t i = 0; i + 1 < list->count; i++) {
    int64_t first = list->at[i], end = list->at[i + 1];
    if (first == end) continue;
    uint64_t class = apart && !first;
    for (size_t c = 0; c < count; c++) class = ad_random_bits(class, (uint64_t)cut_count(cuts[c], first, size), c);
    out->runs[out->count++] = (ad_run_of_positions){first, end - first, (int64_t) class};
  }
  return number_classes(out);
}

ad_status ad_positions_of(int64_t size, const ad_cut_asked *cuts, size_t count, int apart, ad_positions *out) {
  places list = {0};
  ad_positions positions = {.size = size};
  ad_status status = find_places(size, cuts, count, apart, &list);
  if (!status) status = take_runs(&list, size, cuts, count, apart, &positions);
  ad_release(list.at);
  if (status)
    ad_positions_release(&positions);
  else
    *out = positions;
  return status;
}

/* ---- positions on several axes ---- */

static void add_run(ad_positions *to, int64_t count, int64_t class) {
  int64_t first = to->count ? to->runs[to->count - 1].first + to->runs[to->count - 1].count : 0;
  to->runs[to->count++] = (ad_run_of_positions){first, count, class};
}

/* Returns the number of runs of two nested axes, or SIZE_MAX if there are too many. */
static size_t nested_runs(const ad_positions *slow, const ad_positions *fast) {
  if (fast->count == 1) return slow->count;
  if (slow->size > RUNS_MAX / (int64_t)fast->count) return SIZE_MAX;
  return (size_t)slow->size * fast->count;
}

/* Finds the runs of the positions of two axes together. */
static ad_status nest(const ad_positions *slow, const ad_positions *fast, ad_positions *out) {
  size_t runs = nested_runs(slow, fast);
  if (runs == SIZE_MAX) return too_many();
  AD_TRY(ad_new(runs, &out->runs));
  for (size_t i = 0; i < slow->count; i++) {
    const ad_run_of_positions *run = &slow->runs[i];
    if (fast->count == 1) add_run(out, run->count * fast->size, run->class);
    for (int64_t k = 0; fast->count > 1 && k < run->count; k++)
      for (size_t f = 0; f < fast->count; f++)
        add_run(out, fast->runs[f].count, run->class * fast->classes + fast->runs[f].class);
  }
  return number_classes(out);
}

/* Splits the positions at the ends of all runs of a and of b. */
static ad_status join_positions(const ad_positions *a, const ad_positions *b, ad_positions *out) {
  AD_TRY(ad_new(a->count + b->count, &out->runs));
  int64_t at = 0;
  for (size_t i = 0, k = 0; at < a->size;) {
    int64_t end_a = a->runs[i].first + a->runs[i].count, end_b = b->runs[k].first + b->runs[k].count;
    int64_t end = end_a < end_b ? end_a : end_b;
    add_run(out, end - at, a->runs[i].class * b->classes + b->runs[k].class);
    at = end;
    i += end == end_a;
    k += end == end_b;
  }
  return number_classes(out);
}

/* Combines a and b with the function `how`, and releases them even on failure. */
static ad_status combine(ad_status (*how)(const ad_positions *, const ad_positions *, ad_positions *), int64_t size,
                         ad_positions *a, ad_positions *b, ad_positions *out) {
  ad_positions positions = {.size = size};
  ad_status status = how(a, b, &positions);
  ad_positions_release(a);
  ad_positions_release(b);
  if (status)
    ad_positions_release(&positions);
  else
    *out = positions;
  return status;
}

ad_status ad_positions_nest(ad_positions *slow, ad_positions *fast, ad_positions *out) {
  return combine(nest, slow->size * fast->size, slow, fast, out);
}

ad_status ad_positions_join(ad_positions *a, ad_positions *b, ad_positions *out) {
  return combine(join_positions, a->size, a, b, out);
}
