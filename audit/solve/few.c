/* Matching pursuit: finds the few addends whose counts are wrong. It subtracts what is expected from the sum and
 * projects the remainder on each addend; the addend, or set of addends, with the largest projection gets another count;
 * repeat. Each step reads the addends twice. */
#include "solve/few.h"

#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "solve/fit_kernel.h"
#include "solve/hypotheses.h"

enum { AT_ONCE = 8 /* addends that are summed in one loop: independent sums need not wait for each other */ };
enum {
  AT_MOST = 4 /* steps of the search */,
  LOOKED_AT = 512 /* elements that are searched; the result is tested on all elements */
};

/* The state of a search. n is the number of addends; `left`, the remainder, is the sum minus addends times counts. */
typedef struct ad_few {
  const ad_parts *parts;
  const ad_part *part;
  const ad_members *members;
  const double *expected;
  ad_explanation *why;
  double *counts;          /* n: the counts that are tried now */
  double *along, *squares; /* n each: products of each addend with the remainder, and with itself */
  double *rounded;         /* n: variances of the rounding errors in `along` */
  double *left, *sizes;    /* a block each: the remainder; sums of squared addends, or scratch */
  double *addends;         /* AT_ONCE blocks of addends' values */
  size_t block;            /* elements of a block: `rows`, but at most AD_ROWS */
  int is_measured;         /* 1: `squares` and `rounded` are known; counts do not change them */
  double *of_sets;         /* 2 * sets: products of each set of addends with the remainder, and with itself */
  size_t sets, rows;       /* sets: the most sets of one kind; rows: number of elements that are searched */
  double square;           /* squared length of the remainder */
  int differs;             /* result of ad_few_differ */
  double all, all_square;  /* products of the expected sum of all addends with the actual sum, and with itself */
} ad_few;

/* Reads elements [begin, end) of the remainder: the sum over the expected factor, minus the addends times their
 * counts. */
static void read_left(ad_few *few, size_t begin, size_t end) {
  const fit_kernels *kernels = ad_fit_kernels();
  ad_part_read_sum(few->parts, few->part, begin, end, few->left);
  for (size_t i = 0; i < end - begin; i++) few->left[i] /= few->parts->param->expect;
  memset(few->sizes, 0, (end - begin) * sizeof *few->sizes);
  for (size_t c = 0; c < few->members->count; c++) {
    const double *addend = few->addends;
    ad_part_read(few->parts, few->part, &few->members->columns[c].piece, begin, end, few->addends);
    kernels->add(few->left, -few->counts[c], addend, end - begin);
    for (size_t i = 0; i < end - begin && !few->is_measured; i++) few->sizes[i] += addend[i] * addend[i];
  }
  few->square += kernels->dot(few->left, few->left, end - begin);
}

/* Adds to `squares` and `rounded` what this block of `count` addends contributes; the addends' values are squared in
 * place. */
static void measure(ad_few *few, double share, size_t first, size_t count, size_t n) {
  double sums[AT_ONCE] = {0};
  memcpy(sums, few->squares + first, count * sizeof *sums);
  for (size_t k = 0; k < count; k++) {
    double *addend = few->addends + k * few->block;
    for (size_t i = 0; i < n; i++) addend[i] *= addend[i];
    few->rounded[first + k] += share * share * ad_fit_kernels()->dot(addend, few->sizes, n);
  }
  for (size_t i = 0; i < n; i++)
    for (size_t k = 0; k < AT_ONCE; k++) sums[k] += few->addends[i + k * few->block];
  memcpy(few->squares + first, sums, count * sizeof *sums);
}

/* Adds the products of all addends with the remainder over elements [begin, end). */
static void project(ad_few *few, double share, size_t begin, size_t end) {
  size_t n = end - begin;
  for (size_t c = 0; c < few->members->count; c += AT_ONCE) {
    size_t count = c + AT_ONCE < few->members->count ? AT_ONCE : few->members->count - c;
    for (size_t k = 0; k < count; k++) {
      double *addend = few->addends + k * few->block;
      ad_part_read(few->parts, few->part, &few->members->columns[c + k].piece, begin, end, addend);
      few->along[c + k] += ad_fit_kernels()->dot(addend, few->left, n);
    }
    if (!few->is_measured) measure(few, share, c, count, n);
  }
}

/* Computes the remainder for the current counts and its products with all addends. */
static void look(ad_few *few) {
  size_t n = few->members->count;
  double share = ad_rounding_of(few->parts, few->part).reduce;
  memset(few->along, 0, n * sizeof *few->along);
  few->square = 0;
  for (size_t begin = 0; begin < few->rows; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < few->rows ? begin + AD_ROWS : few->rows;
    read_left(few, begin, end);
    project(few, share, begin, end);
  }
  few->is_measured = 1;
}

/* How far addend c's count is off, if all other counts are right; *error: the standard error of that number. */
static double change_of(const ad_few *few, size_t c, double *error) {
  double rows = (double)few->rows, length = sqrt(few->squares[c]);
  double deviation = sqrt(few->square / fmax(rows, 1));
  *error = few->squares[c] > 0 ? fmax(deviation, sqrt(few->rounded[c]) / length) / length : INFINITY;
  return few->squares[c] > 0 ? few->along[c] / few->squares[c] : 0;
}

/* Tests the current counts on the part's first elements, then on all. */
static ad_status holds(ad_few *few, ad_fitness *out) {
  ad_rounding rounding = ad_rounding_of(few->parts, few->part);
  double expect = few->parts->param->expect;
  AD_TRY(ad_part_test_first(few->parts, few->part, few->counts, expect, &rounding, out));
  return out->holds ? ad_part_test(few->parts, few->part, few->counts, expect, &rounding, out) : AD_OK;
}

/* If the current counts give the sum, they become the explanation. */
static ad_status accept_if_holds(ad_few *few) {
  ad_fitness fitness = {0};
  AD_TRY(holds(few, &fitness));
  if (!fitness.holds) return AD_OK;
  few->why->explains = 1;
  few->why->fitness = fitness;
  memcpy(few->why->counts, few->counts, few->members->count * sizeof *few->counts);
  for (size_t c = 0; c < few->members->count; c++) few->why->errors[c] = few->squares[c] > 0 ? 0 : INFINITY;
  return AD_OK;
}

/* ---- trying one factor on all addends ---- */

static void measure_all(ad_few *few) {
  const fit_kernels *kernels = ad_fit_kernels();
  double expect = few->parts->param->expect;
  few->all = few->all_square = 0;
  for (size_t begin = 0; begin < few->rows; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < few->rows ? begin + AD_ROWS : few->rows, n = end - begin;
    memset(few->left, 0, n * sizeof *few->left);
    for (size_t c = 0; c < few->members->count; c++) {
      ad_part_read(few->parts, few->part, &few->members->columns[c].piece, begin, end, few->addends);
      kernels->add(few->left, few->expected[c], few->addends, n);
    }
    ad_part_read_sum(few->parts, few->part, begin, end, few->sizes);
    few->all += kernels->dot(few->left, few->sizes, n) / expect;
    few->all_square += kernels->dot(few->left, few->left, n);
  }
}

/* Tries the sum of all addends with one free factor, first rounded to a simple number, then as fitted. */
static ad_status try_factor(ad_few *few) {
  measure_all(few);
  double factor = few->all / few->all_square, simple = ad_simple_count(&few->parts->dump->mesh, factor);
  double tries[] = {simple, factor};
  for (size_t i = 0; i < 2 && !few->why->explains && isfinite(factor); i++) {
    for (size_t c = 0; c < few->members->count; c++) few->counts[c] = tries[i] * few->expected[c];
    AD_TRY(accept_if_holds(few));
  }
  return AD_OK;
}

/* ---- trying other counts for a few addends ---- */

/* Sets of addends that may share a wrong count: one addend, those of one rank, of one microbatch, of one position on an
 * axis (OF_PLACE + axis). */
enum { ONE, OF_RANK, OF_MICROBATCH, OF_PLACE };

/* Which set of this kind addend c belongs to. */
static size_t key_of(const ad_few *few, int kind, size_t c) {
  const ad_piece *piece = &few->members->columns[c].piece;
  if (kind == ONE) return c;
  if (kind == OF_RANK) return (size_t)piece->rank;
  if (kind == OF_MICROBATCH) return (size_t)piece->microbatch;
  return (size_t)few->parts->dump->position[piece->rank][kind - OF_PLACE];
}

/* A set of addends and how much their counts, relative to the expected ones, should change. */
typedef struct ad_set {
  int kind;
  size_t key;
  double change; /* the number that is added to the addends' counts */
} ad_set;

/* *out = the set of this kind with the largest projection of the remainder, if it is larger than *most standard errors;
 * *most is updated. The addends are taken as nearly orthogonal; where they are not, the next step corrects it. */
static void find_most(ad_few *few, int kind, double *most, ad_set *out) {
  double deviation = sqrt(few->square / fmax((double)few->rows, 1));
  memset(few->of_sets, 0, 2 * few->sets * sizeof *few->of_sets);
  for (size_t c = 0; c < few->members->count; c++) {
    size_t key = key_of(few, kind, c);
    few->of_sets[2 * key] += few->expected[c] * few->along[c];
    few->of_sets[2 * key + 1] += few->expected[c] * few->expected[c] * few->squares[c];
  }
  for (size_t key = 0; key < few->sets; key++) {
    double along = few->of_sets[2 * key], square = few->of_sets[2 * key + 1];
    if (!(square > 0) || fabs(along) <= *most * deviation * sqrt(square)) continue;
    *most = fabs(along) / (deviation * sqrt(square));
    *out = (ad_set){kind, key, along / square};
  }
}

/* Changes the counts of a set of addends to the fitted ones, rounded to a simple number where one is near. */
static void change(ad_few *few, const ad_set *set) {
  for (size_t c = 0; c < few->members->count; c++) {
    if (key_of(few, set->kind, c) != set->key) continue;
    double count = few->counts[c] / few->expected[c] + set->change;
    double simple = ad_simple_count(&few->parts->dump->mesh, count);
    few->counts[c] = few->expected[c] * (fabs(simple - count) < 0.25 ? simple : count);
  }
}

enum { CHANCE = 8 }; /* standard errors; a projection below this may be chance */

/* Changes the set that explains most of the remainder, tests, and repeats, AT_MOST times. */
static ad_status pursue(ad_few *few) {
  for (int step = 0; step < AT_MOST && !few->why->explains; step++) {
    double most = CHANCE;
    ad_set set = {.kind = -1};
    for (int kind = 0; kind < OF_PLACE + few->parts->dump->mesh.count; kind++) find_most(few, kind, &most, &set);
    if (set.kind < 0) return AD_OK;
    change(few, &set);
    AD_TRY(accept_if_holds(few));
    if (!few->why->explains) look(few);
  }
  return AD_OK;
}

/* The largest number of sets that a kind can have. */
static size_t count_sets(const ad_few *few) {
  size_t n = few->members->count, world = (size_t)few->parts->dump->mesh.world;
  size_t microbatches = (size_t)few->parts->dump->microbatches, most = n > world ? n : world;
  return most > microbatches ? most : microbatches;
}

/* Runs `what` with scratch memory, starting from the expected counts. */
static ad_status with_memory(ad_few *few, ad_status (*what)(ad_few *few)) {
  size_t n = few->members->count;
  double *memory;
  few->sets = count_sets(few);
  few->block = few->rows < AD_ROWS ? few->rows : AD_ROWS;
  AD_TRY(ad_new(4 * n + 2 * few->sets + (2 + AT_ONCE) * few->block, &memory));
  few->counts = memory;
  few->along = memory + n;
  few->squares = memory + 2 * n;
  few->rounded = memory + 3 * n;
  few->left = memory + 4 * n;
  few->sizes = few->left + few->block;
  few->addends = few->sizes + few->block;
  few->of_sets = few->addends + AT_ONCE * few->block;
  memcpy(few->counts, few->expected, n * sizeof *few->counts);
  look(few);
  ad_status status = what(few);
  ad_release(memory);
  return status;
}

static ad_status try_both(ad_few *few) {
  AD_TRY(pursue(few));
  return few->why->explains ? AD_OK : try_factor(few);
}

ad_status ad_try_few(const ad_parts *parts, const double *expected, ad_judged *judged) {
  ad_few few = {.parts = parts, .part = judged->part, .expected = expected, .why = &judged->why};
  few.members = ad_part_members(parts, judged->part);
  few.rows = judged->part->count < LOOKED_AT ? judged->part->count : LOOKED_AT;
  return with_memory(&few, try_both);
}

static ad_status look_for_change(ad_few *few) {
  int differ = 0;
  for (size_t c = 0; c < few->members->count; c++) {
    double error, change = change_of(few, c, &error);
    differ |= isfinite(error) && fabs(change) > ad_count_tolerance(error);
  }
  few->differs = differ;
  return AD_OK;
}

ad_status ad_few_differ(const ad_parts *parts, const double *expected, const ad_part *part, int *out) {
  ad_few few = {.parts = parts, .part = part, .expected = expected};
  few.members = ad_part_members(parts, part);
  few.rows = part->count;
  AD_TRY(with_memory(&few, look_for_change));
  *out = few.differs;
  return AD_OK;
}
