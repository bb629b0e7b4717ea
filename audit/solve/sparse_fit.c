/* Matching pursuit: finds the few addends whose counts are wrong. Subtracts the expected addends from the sum, and
 * projects the remainder on each addend. The addend, or set of addends, with the largest projection gets another count;
 * then the next step begins. Each step reads the addends twice. */
#include "solve/sparse_fit.h"

#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "solve/fit_kernel.h"
#include "solve/hypotheses.h"

enum { AT_ONCE = 8 /* addends that are summed in one loop: independent sums do not wait for each other */ };
enum {
  AT_MOST = 4 /* steps of the search */,
  LOOKED_AT = 512 /* elements that are searched; the result is tested on all elements */
};

/* The state of a search. n is the number of addends; `left` is the remainder: the sum minus the addends times their
 * counts. */
typedef struct ad_sparse_fit {
  const ad_parts *parts;
  const ad_part *part;
  const ad_members *members;
  const double *expected;
  ad_explanation *why;
  double *counts;          /* n: the counts that are tried at present */
  double *along, *squares; /* n each: products of each addend with the remainder, and with itself */
  double *rounded;         /* n: variances of the rounding errors in `along` */
  double *left, *sizes;    /* a block each: the remainder; sums of squared addends, or scratch */
  double *addends;         /* AT_ONCE blocks of addends' values */
  size_t block;            /* elements of a block: `rows`, but at most AD_ROWS */
  int is_measured;         /* 1: `squares` and `rounded` are computed; they do not depend on the counts */
  double *of_sets;         /* 2 * sets: products of each set of addends with the remainder, and with itself */
  size_t sets, rows;       /* the largest number of sets of one kind; how many elements are searched */
  double square;           /* squared length of the remainder */
  int differs;             /* result of ad_sparse_fit_differs */
  double all, all_square;  /* products of the expected sum of all addends with the actual sum, and with itself */
} ad_sparse_fit;

/* Reads elements [begin, end) of the remainder into `left`: the sum divided by the expected factor, minus the addends
 * times their counts. */
static void read_left(ad_sparse_fit *fit, size_t begin, size_t end) {
  const fit_kernels *kernels = ad_fit_kernels();
  ad_part_read_sum(fit->parts, fit->part, begin, end, fit->left);
  for (size_t i = 0; i < end - begin; i++) fit->left[i] /= fit->parts->param->expect;
  memset(fit->sizes, 0, (end - begin) * sizeof *fit->sizes);
  for (size_t c = 0; c < fit->members->count; c++) {
    const double *addend = fit->addends;
    ad_part_read(fit->parts, fit->part, &fit->members->columns[c].piece, begin, end, fit->addends);
    kernels->add(fit->left, -fit->counts[c], addend, end - begin);
    for (size_t i = 0; i < end - begin && !fit->is_measured; i++) fit->sizes[i] += addend[i] * addend[i];
  }
  fit->square += kernels->dot(fit->left, fit->left, end - begin);
}

/* Adds the contributions of this block of `count` addends to `squares` and `rounded`. Replaces the addends' values
 * by their squares. */
static void sum_residuals(ad_sparse_fit *fit, double share, size_t first, size_t count, size_t n) {
  double sums[AT_ONCE] = {0};
  memcpy(sums, fit->squares + first, count * sizeof *sums);
  for (size_t k = 0; k < count; k++) {
    double *addend = fit->addends + k * fit->block;
    for (size_t i = 0; i < n; i++) addend[i] *= addend[i];
    fit->rounded[first + k] += share * share * ad_fit_kernels()->dot(addend, fit->sizes, n);
  }
  for (size_t i = 0; i < n; i++)
    for (size_t k = 0; k < AT_ONCE; k++) sums[k] += fit->addends[i + k * fit->block];
  memcpy(fit->squares + first, sums, count * sizeof *sums);
}

/* Adds the products of all addends with the remainder, over elements [begin, end). */
static void project(ad_sparse_fit *fit, double share, size_t begin, size_t end) {
  size_t n = end - begin;
  for (size_t c = 0; c < fit->members->count; c += AT_ONCE) {
    size_t count = c + AT_ONCE < fit->members->count ? AT_ONCE : fit->members->count - c;
    for (size_t k = 0; k < count; k++) {
      double *addend = fit->addends + k * fit->block;
      ad_part_read(fit->parts, fit->part, &fit->members->columns[c + k].piece, begin, end, addend);
      fit->along[c + k] += ad_fit_kernels()->dot(addend, fit->left, n);
    }
    if (!fit->is_measured) sum_residuals(fit, share, c, count, n);
  }
}

/* Computes the remainder for the current counts and its products with all addends. */
static void compute_remainder(ad_sparse_fit *fit) {
  size_t n = fit->members->count;
  double share = ad_rounding_of(fit->parts, fit->part).reduce;
  memset(fit->along, 0, n * sizeof *fit->along);
  fit->square = 0;
  for (size_t begin = 0; begin < fit->rows; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < fit->rows ? begin + AD_ROWS : fit->rows;
    read_left(fit, begin, end);
    project(fit, share, begin, end);
  }
  fit->is_measured = 1;
}

/* Makes the current counts the explanation of the part if they give the part's sum. */
static ad_status accept_if_holds(ad_sparse_fit *fit) {
  ad_fitness fitness;
  AD_TRY(ad_part_try(fit->parts, fit->part, fit->counts, &fitness));
  if (!fitness.holds) return AD_OK;
  fit->why->explains = 1;
  fit->why->fitness = fitness;
  memcpy(fit->why->counts, fit->counts, fit->members->count * sizeof *fit->counts);
  for (size_t c = 0; c < fit->members->count; c++) fit->why->errors[c] = fit->squares[c] > 0 ? 0 : INFINITY;
  return AD_OK;
}

/* ---- trying one factor on all addends ---- */

static void measure_all(ad_sparse_fit *fit) {
  const fit_kernels *kernels = ad_fit_kernels();
  double expect = fit->parts->param->expect;
  fit->all = fit->all_square = 0;
  for (size_t begin = 0; begin < fit->rows; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < fit->rows ? begin + AD_ROWS : fit->rows, n = end - begin;
    memset(fit->left, 0, n * sizeof *fit->left);
    for (size_t c = 0; c < fit->members->count; c++) {
      ad_part_read(fit->parts, fit->part, &fit->members->columns[c].piece, begin, end, fit->addends);
      kernels->add(fit->left, fit->expected[c], fit->addends, n);
    }
    ad_part_read_sum(fit->parts, fit->part, begin, end, fit->sizes);
    fit->all += kernels->dot(fit->left, fit->sizes, n) / expect;
    fit->all_square += kernels->dot(fit->left, fit->left, n);
  }
}

/* Tries the sum of all addends with one free factor: rounded to a simple number first, then as fitted. */
static ad_status try_factor(ad_sparse_fit *fit) {
  measure_all(fit);
  double factor = fit->all / fit->all_square, simple = ad_simple_count(&fit->parts->dump->mesh, factor);
  double tries[] = {simple, factor};
  for (size_t i = 0; i < 2 && !fit->why->explains && isfinite(factor); i++) {
    for (size_t c = 0; c < fit->members->count; c++) fit->counts[c] = tries[i] * fit->expected[c];
    AD_TRY(accept_if_holds(fit));
  }
  return AD_OK;
}

/* ---- trying other counts for a few addends ---- */

/* Kinds of sets of addends that may share a wrong count: one addend, the addends of one rank, of one microbatch, of one
 * position on an axis (OF_PLACE + axis). */
enum { ONE, OF_RANK, OF_MICROBATCH, OF_PLACE };

/* Returns the number of the set of this kind that contains addend c. */
static size_t key_of(const ad_sparse_fit *fit, int kind, size_t c) {
  const ad_piece *piece = &fit->members->columns[c].piece;
  if (kind == ONE) return c;
  if (kind == OF_RANK) return (size_t)piece->rank;
  if (kind == OF_MICROBATCH) return (size_t)piece->microbatch;
  return (size_t)fit->parts->dump->position[piece->rank][kind - OF_PLACE];
}

/* A set of addends, and how much their counts, relative to the expected counts, should change. */
typedef struct ad_set {
  int kind;
  size_t key;
  double change; /* the number that is added to the addends' counts */
} ad_set;

/* Sets *out to the set of this kind with the largest projection of the remainder, if that is larger than *most standard
 * errors, and updates *most. The addends are assumed to be nearly orthogonal; if they are not, the next step corrects
 * the error. */
static void find_most(ad_sparse_fit *fit, int kind, double *most, ad_set *out) {
  double deviation = sqrt(fit->square / fmax((double)fit->rows, 1));
  memset(fit->of_sets, 0, 2 * fit->sets * sizeof *fit->of_sets);
  for (size_t c = 0; c < fit->members->count; c++) {
    size_t key = key_of(fit, kind, c);
    fit->of_sets[2 * key] += fit->expected[c] * fit->along[c];
    fit->of_sets[2 * key + 1] += fit->expected[c] * fit->expected[c] * fit->squares[c];
  }
  for (size_t key = 0; key < fit->sets; key++) {
    double along = fit->of_sets[2 * key], square = fit->of_sets[2 * key + 1];
    if (!(square > 0) || fabs(along) <= *most * deviation * sqrt(square)) continue;
    *most = fabs(along) / (deviation * sqrt(square));
    *out = (ad_set){kind, key, along / square};
  }
}

/* Changes the counts of a set of addends to the fitted counts, rounded to a simple number if one is near. */
static void change(ad_sparse_fit *fit, const ad_set *set) {
  for (size_t c = 0; c < fit->members->count; c++) {
    if (key_of(fit, set->kind, c) != set->key) continue;
    double count = fit->counts[c] / fit->expected[c] + set->change;
    double simple = ad_simple_count(&fit->parts->dump->mesh, count);
    fit->counts[c] = fit->expected[c] * (fabs(simple - count) < 0.25 ? simple : count);
  }
}

enum { CHANCE = 8 }; /* standard errors; a projection below this may be chance */

/* Changes the counts of the set that explains most of the remainder and tests them; repeats this up to AT_MOST
 * times. */
static ad_status pursue(ad_sparse_fit *fit) {
  for (int step = 0; step < AT_MOST && !fit->why->explains; step++) {
    double most = CHANCE;
    ad_set set = {.kind = -1};
    for (int kind = 0; kind < OF_PLACE + fit->parts->dump->mesh.count; kind++) find_most(fit, kind, &most, &set);
    if (set.kind < 0) return AD_OK;
    change(fit, &set);
    AD_TRY(accept_if_holds(fit));
    if (!fit->why->explains) compute_remainder(fit);
  }
  return AD_OK;
}

/* Allocates the search's scratch memory, sets the counts to the expected ones, and runs `what`. */
static ad_status with_memory(ad_sparse_fit *fit, ad_status (*what)(ad_sparse_fit *fit)) {
  size_t n = fit->members->count, world = (size_t)fit->parts->dump->mesh.world;
  size_t microbatches = (size_t)fit->parts->dump->microbatches;
  double *memory;
  fit->sets = n > world ? n : world; /* no axis has more positions than the mesh has ranks */
  if (fit->sets < microbatches) fit->sets = microbatches;
  fit->block = fit->rows < AD_ROWS ? fit->rows : AD_ROWS;
  AD_TRY(ad_new(4 * n + 2 * fit->sets + (2 + AT_ONCE) * fit->block, &memory));
  fit->counts = memory;
  fit->along = memory + n;
  fit->squares = memory + 2 * n;
  fit->rounded = memory + 3 * n;
  fit->left = memory + 4 * n;
  fit->sizes = fit->left + fit->block;
  fit->addends = fit->sizes + fit->block;
  fit->of_sets = fit->addends + AT_ONCE * fit->block;
  memcpy(fit->counts, fit->expected, n * sizeof *fit->counts);
  compute_remainder(fit);
  ad_status status = what(fit);
  ad_release(memory);
  return status;
}

static ad_status try_both(ad_sparse_fit *fit) {
  AD_TRY(pursue(fit));
  return fit->why->explains ? AD_OK : try_factor(fit);
}

ad_status ad_try_sparse_fit(const ad_parts *parts, const double *expected, ad_judged *judged) {
  ad_sparse_fit fit = {.parts = parts, .part = judged->part, .expected = expected, .why = &judged->why};
  fit.members = ad_part_members(parts, judged->part);
  fit.rows = judged->part->count < LOOKED_AT ? judged->part->count : LOOKED_AT;
  return with_memory(&fit, try_both);
}

/* Sets fit->differs to 1 if some addend's count is wrong by more than its error, on the assumption that all other
 * counts are right. */
static ad_status look_for_change(ad_sparse_fit *fit) {
  double deviation = sqrt(fit->square / fmax((double)fit->rows, 1));
  fit->differs = 0;
  for (size_t c = 0; c < fit->members->count; c++) {
    double square = fit->squares[c], length = sqrt(square);
    if (!(square > 0)) continue; /* an addend of zeros may have any count */
    double change = fit->along[c] / square, error = fmax(deviation, sqrt(fit->rounded[c]) / length) / length;
    fit->differs |= isfinite(error) && fabs(change) > ad_count_tolerance(error);
  }
  return AD_OK;
}

ad_status ad_sparse_fit_differs(const ad_parts *parts, const double *expected, const ad_part *part, int *out) {
  ad_sparse_fit fit = {.parts = parts, .part = part, .expected = expected};
  fit.members = ad_part_members(parts, part);
  fit.rows = part->count;
  AD_TRY(with_memory(&fit, look_for_change));
  *out = fit.differs;
  return AD_OK;
}
