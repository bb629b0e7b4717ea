/* Tries hypotheses about how often addends are in a sum, the simplest first: a rank left out, a microbatch counted
 * twice, an average, and so on. */
#include "solve/hypotheses.h"

#include <math.h>
#include <string.h>
#include "base/memory.h"

double ad_count_tolerance(double error) { return fmin(1e-4 + 8 * error, 0.2); }

int ad_counts_close(double a, double b, double error) {
  double difference = fabs(a - b);
  return difference <= 1e-4 * fabs(b) || difference <= ad_count_tolerance(error);
}

double ad_simple_count(const ad_dump_mesh *mesh, double count) {
  double best = round(count) + 0.0; /* adding 0.0 turns -0 into 0 */
  uint32_t all = (1u << mesh->count) - 1;
  for (uint32_t axes = 1; axes <= all; axes++) {
    double inverse = 1 / (double)ad_dump_axes_size(mesh, axes);
    if (fabs(inverse - count) < fabs(best - count)) best = inverse;
  }
  return best;
}

typedef struct ad_trial {
  const ad_parts *parts;
  const ad_products *products;
  const double *expected;
  const ad_part *part;
  const ad_members *members;
  ad_rounding rounding;
  ad_explanation *why;
  double *fixed, *free, *counts; /* n each */
  /* The Gram matrix times each of the vectors above, and times the expected counts. Only vectors with few nonzero
   * elements are multiplied; the other products follow from these products. So a hypothesis about one rank costs only
   * this rank's rows of the matrix. */
  double *with_fixed, *with_free, *with_counts, *with_expected;
} ad_trial;

/* Returns 1 if, under hypothesis h, the count of addend c is the free number; 0 if it is fixed. */
typedef int (*ad_is_free)(const ad_trial *trial, size_t c, int64_t h);

/* ---- trying one hypothesis ---- */

/* Returns the free number by least squares, or NaN if all addends with the free number are zero. */
static double best_number(const ad_trial *trial) {
  const ad_products *products = trial->products;
  double along = 0, square = 0;
  for (size_t i = 0; i < products->n; i++) {
    along += trial->free[i] * (products->with_sum[i] - trial->with_fixed[i]);
    square += trial->free[i] * trial->with_free[i];
  }
  return square > 0 ? along / square : NAN;
}

/* A quick test with totals over all elements. Returns 0 if the combination is so far from the sum that it cannot be
 * right in every element. */
static int is_near(const ad_trial *trial) {
  const ad_products *products = trial->products;
  double trace = 0, most = 0, n = (double)products->n;
  for (size_t i = 0; i < products->n; i++) {
    trace += products->gram[i + i * products->n];
    most = fmax(most, fabs(trial->counts[i]));
  }
  double share = ad_rounding_share(&trial->rounding, products->n) * fmax(most, 1) + 1e-12;
  double least = n * trial->rounding.smallest / fabs(trial->parts->param->expect);
  least += trial->rounding.inside * trial->rounding.reduce;
  double square = share * share * n * trace + least * least * (double)products->rows;
  return ad_products_distance(products, trial->counts, trial->with_counts) <= 2 * square + 1e-13 * products->sum_square;
}

static ad_status test_number(ad_trial *trial, double number, ad_fitness *out) {
  for (size_t i = 0; i < trial->products->n; i++) {
    trial->counts[i] = trial->fixed[i] + number * trial->free[i];
    trial->with_counts[i] = trial->with_fixed[i] + number * trial->with_free[i];
  }
  *out = (ad_fitness){0};
  if (!is_near(trial)) return AD_OK;
  return ad_part_test(trial->parts, trial->part, trial->counts, trial->parts->param->expect, &trial->rounding, out);
}

static int same_counts(const double *a, const double *b, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (fabs(a[i] - b[i]) > 1e-4) return 0;
  return 1;
}

static int is_known(const ad_explanation *why, const double *counts, size_t n) {
  int known = same_counts(why->counts, counts, n);
  for (size_t i = 0; i < why->other_count && !known; i++) known = same_counts(why->others + i * n, counts, n);
  return known;
}

static ad_status accept(ad_trial *trial, const ad_fitness *fitness) {
  ad_explanation *why = trial->why;
  size_t n = trial->products->n;
  if (!why->explains) {
    memcpy(why->counts, trial->counts, n * sizeof *why->counts);
    why->explains = 1;
    why->fitness = *fitness;
    return AD_OK;
  }
  if (is_known(why, trial->counts, n)) return AD_OK;
  why->more = why->other_count == AD_OTHERS;
  if (why->more) return AD_OK;
  if (!why->others) AD_TRY(ad_new(AD_OTHERS * n, &why->others));
  memcpy(why->others + why->other_count++ * n, trial->counts, n * sizeof *why->others);
  return AD_OK;
}

/* Fits the one free number of a set of fixed and free counts and tests the result. If `any` is 1, every number is
 * accepted; otherwise only a number that a bug typically produces. */
static ad_status try_one(ad_trial *trial, int any) {
  double number = best_number(trial), simple = ad_simple_count(&trial->parts->dump->mesh, number);
  ad_fitness fitness = {0};
  if (!isfinite(number) || number < -0.5) return AD_OK;
  if (fabs(simple - number) < 0.05) AD_TRY(test_number(trial, simple, &fitness));
  if (!fitness.holds && any) AD_TRY(test_number(trial, number, &fitness));
  return fitness.holds ? accept(trial, &fitness) : AD_OK;
}

/* Tries the hypothesis that is_free(trial, c, h) describes for each addend c. `base` is the count, relative to the
 * expected count, of each addend whose count is fixed. */
static ad_status try_set(ad_trial *trial, ad_is_free is_free, int64_t h, double base, int any) {
  size_t frees = 0, n = trial->products->n;
  for (size_t c = 0; c < n; c++) {
    int free = is_free(trial, c, h);
    trial->free[c] = free ? trial->expected[c] : 0;
    trial->fixed[c] = free ? 0 : base * trial->expected[c];
    frees += (size_t)free;
  }
  if (!frees) return AD_OK;
  ad_products_multiply(trial->products, trial->free, trial->with_free);
  for (size_t c = 0; c < n; c++) trial->with_fixed[c] = base * (trial->with_expected[c] - trial->with_free[c]);
  return try_one(trial, any);
}

/* ---- the addends whose counts are free under a hypothesis ---- */

static int64_t rank_of(const ad_trial *trial, size_t c) { return trial->members->columns[c].piece.rank; }

static int is_any(const ad_trial *trial, size_t c, int64_t h) { return 1; }

static int is_own(const ad_trial *trial, size_t c, int64_t axes) {
  return ad_stands_with(trial->parts->dump, rank_of(trial, c), trial->part->holders[0], (uint32_t)axes);
}

static int is_last(const ad_trial *trial, size_t c, int64_t h) {
  return trial->members->columns[c].piece.microbatch == trial->parts->dump->microbatches - 1;
}

static int is_earlier(const ad_trial *trial, size_t c, int64_t h) { return !is_last(trial, c, h); }

static int is_of_microbatch(const ad_trial *trial, size_t c, int64_t m) {
  return trial->members->columns[c].piece.microbatch == m;
}

static int is_of_rank(const ad_trial *trial, size_t c, int64_t rank) { return rank_of(trial, c) == rank; }

/* Returns 1 if addend c belongs to a rank at a given position on a given axis; h is axis * AD_DUMP_RANKS + position. */
static int is_in_slice(const ad_trial *trial, size_t c, int64_t h) {
  return trial->parts->dump->position[rank_of(trial, c)][h / AD_DUMP_RANKS] == (int32_t)(h % AD_DUMP_RANKS);
}

static ad_status try_axes(ad_trial *trial) {
  uint32_t summed = ad_large_axes(&trial->parts->dump->mesh, trial->parts->param->summed);
  for (uint32_t axes = summed; axes; axes = (axes - 1) & summed) AD_TRY(try_set(trial, is_own, axes, 0, 1));
  return AD_OK;
}

/* Tries the hypothesis that microbatch `right` is summed over all ranks, and other microbatches only over ranks with
 * the holder's position on `axes`. */
static ad_status try_one_right(ad_trial *trial, uint32_t axes, int64_t right) {
  for (size_t c = 0; c < trial->products->n; c++) {
    int is_right = is_of_microbatch(trial, c, right);
    trial->fixed[c] = is_right ? trial->expected[c] : 0;
    trial->free[c] = !is_right && is_own(trial, c, axes) ? trial->expected[c] : 0;
  }
  ad_products_multiply(trial->products, trial->fixed, trial->with_fixed);
  ad_products_multiply(trial->products, trial->free, trial->with_free);
  return try_one(trial, 1);
}

static ad_status try_microbatches(ad_trial *trial) {
  int64_t count = trial->parts->dump->microbatches;
  uint32_t summed = ad_large_axes(&trial->parts->dump->mesh, trial->parts->param->summed);
  if (count < 2) return AD_OK;
  for (uint32_t axes = summed; axes; axes = (axes - 1) & summed) {
    AD_TRY(try_one_right(trial, axes, count - 1));
    AD_TRY(try_one_right(trial, axes, 0));
  }
  AD_TRY(try_set(trial, is_last, 0, 0, 1));
  AD_TRY(try_set(trial, is_earlier, 0, 1, 1));
  for (int64_t m = 0; m < count; m++) AD_TRY(try_set(trial, is_of_microbatch, m, 1, 0));
  return AD_OK;
}

static ad_status try_slices(ad_trial *trial) {
  const ad_dump_mesh *mesh = &trial->parts->dump->mesh;
  uint32_t summed = ad_large_axes(mesh, trial->parts->param->summed);
  for (int axis = 0; axis < mesh->count; axis++)
    for (int64_t place = 0; place < mesh->size[axis] && summed >> axis & 1; place++)
      AD_TRY(try_set(trial, is_in_slice, (int64_t)axis * AD_DUMP_RANKS + place, 1, 0));
  return AD_OK;
}

static ad_status try_ranks(ad_trial *trial) {
  int64_t last = -1;
  for (size_t c = 0; c < trial->products->n; c++) {
    int64_t rank = rank_of(trial, c);
    if (rank != last) AD_TRY(try_set(trial, is_of_rank, rank, 1, 0));
    last = rank;
  }
  return AD_OK;
}

/* Tries the hypothesis that each addend counts once, although ranks divided by different numbers. */
static ad_status try_undivided(ad_trial *trial) {
  int differ = 0;
  for (size_t c = 0; c < trial->products->n; c++) {
    differ |= trial->expected[c] != 1;
    trial->free[c] = 1;
    trial->fixed[c] = trial->with_fixed[c] = 0;
  }
  if (!differ) return AD_OK;
  ad_products_multiply(trial->products, trial->free, trial->with_free);
  return try_one(trial, 1);
}

static ad_status try_all(ad_trial *trial) {
  AD_TRY(try_undivided(trial));
  AD_TRY(try_set(trial, is_any, 0, 0, 1));
  AD_TRY(try_axes(trial));
  AD_TRY(try_microbatches(trial));
  AD_TRY(try_slices(trial));
  return try_ranks(trial);
}

ad_status ad_try_hypotheses(const ad_parts *parts, const ad_products *products, const double *expected,
                            const ad_part *part, ad_explanation *why) {
  size_t n = products->n;
  double *memory;
  if (!n) return AD_OK;
  AD_TRY(ad_new(7 * n, &memory));
  ad_trial trial = {.parts = parts, .products = products, .expected = expected, .part = part, .why = why};
  trial.members = ad_part_members(parts, part);
  trial.rounding = ad_rounding_of(parts, part);
  trial.fixed = memory;
  trial.free = memory + n;
  trial.counts = memory + 2 * n;
  trial.with_fixed = memory + 3 * n;
  trial.with_free = memory + 4 * n;
  trial.with_counts = memory + 5 * n;
  trial.with_expected = memory + 6 * n;
  ad_products_multiply(products, expected, trial.with_expected);
  ad_status status = try_all(&trial);
  for (size_t c = 0; c < n; c++)
    if (why->explains && products->gram[c + c * n] == 0)
      why->errors[c] = INFINITY; /* an addend of zeros may have any count */
  ad_release(memory);
  return status;
}
