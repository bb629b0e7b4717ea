/* Tests which sums their bits show to be formed in a narrower dtype: none that additions in the promised dtype give, in
 * any order, with any last rounding; and nearly all others, from so many elements on. */
#include <string.h>
#include "solve/formed.h"
#include "base/roundoff.h"
#include "files/safetensors.h"
#include "../made_parts.h"
#include "addend/helpers.h"

/* ---- numbers of a dtype ---- */

static uint64_t drawn = 1;

/* Returns a number from 0 to 1. */
static double draw(void) {
  drawn = drawn * 6364136223846793005u + 1442695040888963407u;
  return (double)(drawn >> 11) * 0x1p-53;
}

static double draw_normal(void) { return sqrt(-2 * log(draw() + 0x1p-60)) * cos(6.283185307179586 * draw()); }

static double nearest(ad_dtype dtype, double x) {
  uint64_t bits;
  assert_int_equal(ad_cast(&bits, dtype, &x, AD_F64, 1), AD_OK);
  assert_int_equal(ad_cast(&x, AD_F64, &bits, dtype, 1), AD_OK);
  return x;
}

/* Returns the number of the dtype next to x, toward or away from 0; x itself if it is one. */
static double toward(ad_dtype dtype, double x, int away) {
  int exponent;
  (void)frexp(x, &exponent);
  double step = fmax(ldexp(ad_unit_roundoff(dtype), exponent), ad_smallest_number(dtype));
  double units = fabs(x) / step;
  return copysign(step * (away ? ceil(units) : floor(units)), x);
}

typedef enum last_rounding { NEAREST, TRUNCATED, UP, STOCHASTIC, LAST_ROUNDINGS } last_rounding;

static double stored_as(ad_dtype dtype, double x, last_rounding how) {
  if (how == NEAREST) return nearest(dtype, x);
  return toward(dtype, x, how == UP || (how == STOCHASTIC && draw() < 0.5));
}

/* ---- sums ---- */

typedef enum order { IN_TURN, TREE, ANY_ORDER, ORDERS } order;

/* Returns the sum of `values`, with each addition rounded to the dtype; the values are overwritten. */
static double add_up(double *values, size_t n, ad_dtype dtype, order how) {
  while (n > 1) {
    size_t a = 0, b = 1;
    if (how == ANY_ORDER) a = (size_t)(draw() * (double)n), b = (a + 1 + (size_t)(draw() * (double)(n - 1))) % n;
    if (how == TREE) {
      for (size_t i = 0; i < n / 2; i++) values[i] = nearest(dtype, values[2 * i] + values[2 * i + 1]);
      if (n % 2) values[n / 2] = values[n - 1];
      n = (n + 1) / 2;
      continue;
    }
    values[a] = nearest(dtype, values[a] + values[b]);
    values[b] = values[--n];
  }
  return values[0];
}

/* How the sums of a parameter are made. */
typedef struct making {
  ad_dtype addends, sent, formed, stored; /* dtypes: of the addends, in which they are sent, of additions, of the sum */
  order how;
  last_rounding last;
  double factor;
  int factor_first; /* 1: addends are multiplied by the factor, and not their sum */
  double scale;     /* of the addends */
  ad_dtype result;  /* narrower than `stored`: the sum is rounded to it by `last` before it is stored; 0: it is not */
} making;

/* Fills a parameter's addends with normal numbers times the scale, and makes its sum. */
static void make(made_parts *m, int ranks, size_t elements, const making *how) {
  make_parts(m, ranks, 1, elements);
  m->param.expect = how->factor;
  double *values = made(m->count, sizeof *values);
  for (size_t i = 0; i < elements; i++) {
    for (size_t c = 0; c < m->count; c++) {
      double addend = nearest(how->addends, how->scale * draw_normal());
      m->values[c * elements + i] = addend;
      values[c] = nearest(how->sent, how->factor_first ? nearest(how->formed, how->factor * addend) : addend);
    }
    double sum = add_up(values, m->count, how->formed, how->how);
    if (!how->factor_first) sum = nearest(how->formed, how->factor * sum);
    m->sum[i] = stored_as(how->result ? how->result : how->stored, sum, how->last);
  }
  free(values);
  for (size_t c = 0; c <= m->count; c++) { /* the numbers in their dtypes, at the same places */
    ad_dtype dtype = c < m->count ? how->addends : how->stored;
    double *numbers = c < m->count ? m->values + c * elements : m->sum, *copy = made(elements, sizeof *copy);
    memcpy(copy, numbers, elements * sizeof *copy);
    assert_int_equal(ad_cast(numbers, dtype, copy, AD_F64, elements), AD_OK);
    m->tensors[c].dtype = dtype;
    free(copy);
  }
  ad_members_measure(&m->parts, &m->members);
}

static ad_formed_found find(made_parts *m, ad_dtype promised) {
  static const char nothing[] = "\2\0\0\0\0\0\0\0{}"; /* a file without tensors: the counts of all addends are 1 */
  ad_formed_found found = {.formed = (ad_formed)-1};
  ad_safetensors *file;
  assert_int_equal(ad_safetensors_parse(nothing, sizeof nothing - 1, "nothing", &file), AD_OK);
  m->file.tensors = file;
  assert_int_equal(ad_formed_find(&m->parts, promised, &found), AD_OK);
  ad_safetensors_close(file);
  assert_true((found.formed == AD_FORMED_UNTESTED) == (found.why != NULL));
  return found;
}

static ad_formed_found find_made(int ranks, size_t elements, const making *how) {
  made_parts m;
  make(&m, ranks, elements, how);
  ad_formed_found found = find(&m, AD_F32);
  drop_parts(&m);
  return found;
}

/* ---- no false alarm ---- */

/* No sum that was formed in f32 is outside: in no order, with no factor, with no last rounding, at no size. */
static void a_sum_that_was_formed_as_promised_is_inside(void **state) {
  static const int ranks[] = {2, 3, 4, 7, 64};
  static const double factors[] = {1, 1.0 / 3, 1.0 / 64, 3};
  static const double scales[] = {1, 1e-30, 0x1p-130, 1e30};
  static const ad_dtype dtypes[] = {AD_F32, AD_BF16};
  for (int pick = 0; pick < 600; pick++) {
    int n = ranks[pick % 5];
    making how = {.addends = dtypes[pick / 5 % 2], .sent = AD_F32, .formed = AD_F32, .stored = dtypes[pick / 10 % 2]};
    how.how = (order)(draw() * ORDERS);
    how.last = how.stored == AD_F32 ? NEAREST : (last_rounding)(draw() * LAST_ROUNDINGS);
    how.factor = factors[(size_t)(draw() * 4)];
    how.scale = scales[(size_t)(draw() * 4)];
    how.factor_first = draw() < 0.5;
    ad_formed_found found = find_made(n, 500, &how);
    assert_int_equal(found.outside, 0);
    assert_int_not_equal(found.formed, AD_FORMED_NARROWER);
  }
}

/* So are sums of many addends, in f16 too, where small ones are subnormal. */
static void sums_of_many_addends_and_in_f16_are_inside(void **state) {
  making many = {AD_BF16, AD_F32, AD_F32, AD_BF16, IN_TURN, TRUNCATED, 1.0 / 3, 0, 1, 0};
  assert_int_equal(find_made(2048, 64, &many).outside, 0);
  for (double scale = 1; scale > 1e-8; scale /= 16) {
    making small = {AD_F32, AD_F32, AD_F32, AD_F16, ANY_ORDER, STOCHASTIC, 1, 0, scale, 0};
    assert_int_equal(find_made(4, 2000, &small).outside, 0);
  }
}

/* Gives every element the same addends, and the sum `sum`, all times powers of two. */
static void fill_with(made_parts *m, const double *addends, double sum, ad_dtype stored) {
  for (size_t i = 0; i < m->elements; i++) {
    double scaled = ldexp(sum, (int)(i % 8));
    for (size_t c = 0; c < m->count; c++)
      ((float *)(void *)(m->values + c * m->elements))[i] = (float)ldexp(addends[c], (int)(i % 8));
    assert_int_equal(ad_cast((char *)m->sum + i * ad_dtype_size(stored), stored, &scaled, AD_F64, 1), AD_OK);
  }
  m->tensors[m->count].dtype = stored;
}

/* The worst that additions can do: each is rounded by all that it adds, to nearest or toward 0. */
static void sums_with_the_largest_errors_are_inside(void **state) {
  enum { RANKS = 64 };
  making how = {AD_F32, AD_F32, AD_F32, AD_F32, IN_TURN, NEAREST, 1, 0, 1, 0};
  for (int truncates = 0; truncates < 2; truncates++) {
    double addends[RANKS] = {1};
    made_parts m;
    make(&m, RANKS, 100, &how);
    for (int c = 1; c < RANKS; c++) addends[c] = truncates ? 0x1p-23 - 0x1p-46 : 0x1p-24;
    fill_with(&m, addends, 1, AD_F32);
    assert_int_equal(find(&m, AD_F32).outside, 0);
    for (int c = 1; c < RANKS; c++) addends[c] = 0x1p-19;
    fill_with(&m, addends, 1, AD_F32);
    assert_int_equal(find(&m, AD_F32).outside, 100);
    drop_parts(&m);
  }
}

/* Subnormal numbers that are taken for 0, before a factor makes the others large. */
static void a_flush_of_subnormal_numbers_is_inside(void **state) {
  const double addends[] = {0x1p-137, 0x1p-137, 0x1p-137};
  making how = {AD_F32, AD_F32, AD_F32, AD_F32, IN_TURN, NEAREST, 0x1p20, 0, 1, 0};
  made_parts m;
  make(&m, 3, 16, &how);
  fill_with(&m, addends, 0, AD_F32);
  assert_int_equal(find(&m, AD_F32).outside, 0);
  drop_parts(&m);
}

/* ---- power ---- */

/* What a sum that was not formed in f32 is, and how many ranks it has. */
typedef struct narrower {
  const char *name;
  int ranks;
  size_t elements; /* so many are enough */
  making how;
} narrower;

static const narrower made_narrower[] = {
    {"bf16 addends, added in bf16", 3, 700, {AD_BF16, AD_BF16, AD_BF16, AD_BF16, TREE, NEAREST, 1, 0, 1, 0}},
    {"bf16 addends, added in bf16", 4, 400, {AD_BF16, AD_BF16, AD_BF16, AD_BF16, TREE, NEAREST, 1, 0, 1, 0}},
    {"bf16 addends, added in bf16", 4, 400, {AD_BF16, AD_BF16, AD_BF16, AD_BF16, IN_TURN, NEAREST, 1, 0, 1, 0}},
    {"bf16 addends, added in bf16", 8, 200, {AD_BF16, AD_BF16, AD_BF16, AD_BF16, TREE, NEAREST, 1, 0, 1, 0}},
    {"bf16 addends, added in bf16", 64, 200, {AD_BF16, AD_BF16, AD_BF16, AD_BF16, TREE, NEAREST, 1, 0, 1, 0}},
    {"f32 addends, added in bf16", 2, 300, {AD_F32, AD_BF16, AD_BF16, AD_BF16, IN_TURN, NEAREST, 1, 0, 1, 0}},
    {"f32 addends, added in bf16", 8, 300, {AD_F32, AD_BF16, AD_BF16, AD_BF16, TREE, NEAREST, 1.0 / 3, 0, 1, 0}},
    {"f32 addends, sent in bf16", 2, 300, {AD_F32, AD_BF16, AD_F32, AD_BF16, IN_TURN, NEAREST, 1, 0, 1, 0}},
    {"f32 addends, sent in bf16", 64, 300, {AD_F32, AD_BF16, AD_F32, AD_BF16, TREE, NEAREST, 1, 0, 1, 0}},
    {"f32 addends and sum, added in bf16", 2, 80, {AD_F32, AD_BF16, AD_BF16, AD_F32, TREE, NEAREST, 1, 0, 1, 0}},
    {"f32 addends and sum, sent in bf16", 4, 80, {AD_F32, AD_BF16, AD_F32, AD_F32, TREE, NEAREST, 0.25, 1, 1, 0}},
    {"f32 addends and sum, added in f16", 8, 120, {AD_F32, AD_F16, AD_F16, AD_F32, TREE, NEAREST, 1, 0, 1, 0}},
    {"bf16 addends, f32 sum, added in bf16", 2, 80, {AD_BF16, AD_BF16, AD_BF16, AD_F32, TREE, NEAREST, 1, 0, 1, 0}},
};

/* Sums that were formed in bf16 or f16 are all found, with little more elements than are needed for an answer; and so
 * many elements are needed that the right sums of the same dtypes get one. */
static void a_sum_that_was_formed_in_a_narrower_dtype_is_found(void **state) {
  for (size_t i = 0; i < sizeof made_narrower / sizeof *made_narrower; i++)
    for (int times = 0; times < 20; times++) {
      const narrower *one = &made_narrower[i];
      making right = one->how;
      right.sent = right.formed = AD_F32;
      if (find_made(one->ranks, one->elements, &one->how).formed != AD_FORMED_NARROWER)
        fail_msg("%s on %d ranks is not found", one->name, one->ranks);
      if (find_made(one->ranks, one->elements, &right).formed != AD_FORMED_AS_PROMISED)
        fail_msg("%s on %d ranks, if it is right, gets no answer", one->name, one->ranks);
    }
}

/* So many elements of a sum must tell before it is called right that a narrower one would be found: of 1e-9, that is
 * about 29 elements outside. */
static void so_many_elements_are_needed_that_a_narrower_sum_is_found(void **state) {
  for (size_t i = 0; i < sizeof made_narrower / sizeof *made_narrower; i++) {
    const narrower *one = &made_narrower[i];
    making right = one->how;
    size_t least = 1;
    right.sent = right.formed = AD_F32;
    while (least < 5000 && find_made(one->ranks, least, &right).formed == AD_FORMED_UNTESTED) least++;
    ad_formed_found found = find_made(one->ranks, 40000, &one->how);
    double share = (double)found.outside / (double)found.tested;
    if (share * (double)least < 26)
      fail_msg("%s on %d ranks: %zu elements, %.3f outside", one->name, one->ranks, least, share);
  }
}

/* The dtype of the last rounding is named where the sum's values show it, and no other is. */
static void the_narrower_dtype_is_named_if_all_values_have_it(void **state) {
  making how = {AD_F32, AD_BF16, AD_BF16, AD_F32, TREE, NEAREST, 1, 0, 1, 0};
  assert_int_equal(find_made(4, 1000, &how).dtype, AD_BF16);
  assert_int_equal(find_made(4, 65, &how).dtype, AD_BF16);
  assert_int_equal(find_made(4, 60, &how).dtype, 0); /* too few */
  how.stored = AD_BF16;                              /* it may have been rounded to f16 before */
  assert_int_equal(find_made(4, 1000, &how).dtype, 0);
  how = (making){AD_F32, AD_F16, AD_F16, AD_F32, TREE, NEAREST, 1, 0, 1, 0};
  assert_int_equal(find_made(4, 1000, &how).dtype, 0);
  how = (making){AD_F32, AD_BF16, AD_F32, AD_F32, TREE, NEAREST, 1, 0, 1, 0}; /* few numbers of bf16, added in f32 */
  for (size_t elements = 4; elements < 200; elements += 7) assert_int_equal(find_made(2, elements, &how).dtype, 0);
}

/* A sum in f32 whose result is rounded to nearest in a narrower dtype, and then stored in f32, was not formed in that dtype; nor is
 * one that was formed in it such a sum, or one that was rounded elsewhere. With addends of the narrower dtype on two
 * ranks both are the same. */
static void a_rounding_of_the_result_is_told_from_one_before_it(void **state) {
  static const ad_dtype results[] = {AD_BF16, AD_F16};
  for (int pick = 0; pick < 120; pick++) {
    ad_dtype narrow = results[pick % 2];
    int ranks = 2 + pick % 5;
    making wide = {AD_F32, AD_F32, AD_F32, AD_F32, ANY_ORDER, NEAREST, 1.0 / 3, pick % 3 == 0, 1, narrow};
    wide.scale = pick % 4 ? 1 : 0x1p-9; /* subnormal numbers of f16 too */
    ad_formed_found found = find_made(ranks, 400, &wide);
    assert_int_equal(found.formed, AD_FORMED_THEN_ROUNDED);
    assert_int_equal(found.dtype, narrow);
    assert_true(found.outside >= 4 && !found.why);
    making added = wide, sent = wide, truncated = wide;
    truncated.last = TRUNCATED + (last_rounding)(pick / 2 % 3);
    assert_int_equal(find_made(ranks, 400, &truncated).formed, AD_FORMED_NARROWER); /* sent ones may look like it */
    assert_int_equal(find_made(ranks, 400, &truncated).before, 0);
    added.formed = added.sent = sent.sent = narrow;
    added.scale = sent.scale = 1;
    assert_int_equal(find_made(ranks, 400, &added).formed, AD_FORMED_NARROWER);
    found = find_made(ranks, 400, &sent);
    assert_int_equal(found.formed, AD_FORMED_NARROWER);
    assert_int_equal(found.dtype, narrow == AD_BF16 ? AD_BF16 : 0);
    assert_int_equal(found.before, narrow == AD_BF16);
  }
  making two = {AD_BF16, AD_BF16, AD_BF16, AD_F32, TREE, NEAREST, 1, 0, 1, 0};
  ad_formed_found found = find_made(2, 2000, &two);
  assert_int_equal(found.formed, AD_FORMED_NARROWER);
  assert_int_equal(found.before, 0);
  making few = {AD_F32, AD_F32, AD_F32, AD_F32, TREE, NEAREST, 1, 0, 1, AD_BF16};
  found = find_made(2, 240, &few); /* too few to tell */
  assert_int_equal(found.formed, AD_FORMED_NARROWER);
  assert_int_equal(found.before, 0);
}

/* On two ranks, addends that are the same give the same number if they are rounded first: nothing tells. */
static void a_rounding_of_addends_that_are_the_same_is_not_one_of_the_result(void **state) {
  making how = {AD_F32, AD_BF16, AD_F32, AD_F32, TREE, NEAREST, 1, 0, 1, AD_BF16};
  made_parts m;
  make(&m, 2, 1000, &how);
  float *first = (float *)(void *)m.values, *second = (float *)(void *)(m.values + m.elements);
  float *sum = (float *)(void *)m.sum;
  for (size_t i = 0; i < m.elements; i++) {
    second[i] = first[i];
    sum[i] = (float)nearest(AD_BF16, 2 * (double)first[i]);
  }
  assert_int_equal(find(&m, AD_F32).formed, AD_FORMED_NARROWER);
  assert_int_equal(find(&m, AD_F32).before, 0);
  drop_parts(&m);
}

/* One element that the rounding of the result does not give is enough for not naming it. */
static void a_rounding_of_the_result_has_no_exception(void **state) {
  making how = {AD_F32, AD_F32, AD_F32, AD_F32, TREE, NEAREST, 1, 0, 1, AD_BF16};
  made_parts m;
  make(&m, 4, 1000, &how);
  assert_int_equal(find(&m, AD_F32).formed, AD_FORMED_THEN_ROUNDED);
  float *sum = (float *)(void *)m.sum;
  sum[100] *= 2;
  assert_int_equal(find(&m, AD_F32).formed, AD_FORMED_NARROWER);
  assert_int_equal(find(&m, AD_F32).dtype, AD_BF16);
  drop_parts(&m);
}

/* ---- the interval, exactly ---- */

/* Returns 1 if the bf16 number is `value` or next to it. */
static int is_beside(double number, double value) {
  return number == toward(AD_BF16, value, 0) || number == toward(AD_BF16, value, 1);
}

/* Addends that are integers, so that their sum is exact: of the numbers around a third of it, the two beside it are
 * inside, and all others outside, but for those of which a third is as near as roundings in f32 may bring it. */
static void only_numbers_beside_the_exact_sum_are_inside(void **state) {
  enum { ELEMENTS = 8000, RANKS = 5 };
  making how = {AD_F32, AD_F32, AD_F32, AD_F32, IN_TURN, NEAREST, 1.0 / 3, 0, 1, 0};
  int64_t outside = 0, clearly = 0;
  made_parts m;
  make(&m, RANKS, ELEMENTS, &how);
  m.tensors[m.count].dtype = AD_BF16;
  for (size_t i = 0; i < ELEMENTS; i++) {
    int64_t sum = 0, size = 0;
    for (size_t c = 0; c < RANKS; c++) {
      float *addend = (float *)(void *)(m.values + c * ELEMENTS) + i;
      *addend = (float)((int64_t)(draw() * 0x1p30) - (1 << 28));
      sum += (int64_t)*addend;
      size += llabs((int64_t)*addend);
    }
    double third = (double)sum / 3, slack = 0x1p-20 * (double)size;
    double number = toward(AD_BF16, third * (1 + 0x1p-7 * (draw() * 4 - 2)), 0);
    assert_int_equal(ad_cast((uint16_t *)(void *)m.sum + i, AD_BF16, &number, AD_F64, 1), AD_OK);
    outside += !is_beside(number, third);
    clearly += !is_beside(number, third) && !is_beside(number, third - slack) && !is_beside(number, third + slack);
  }
  ad_formed_found found = find(&m, AD_F32);
  assert_true(clearly > ELEMENTS / 4 && clearly > outside - outside / 50);
  assert_in_range(found.outside, clearly, outside);
  drop_parts(&m);
}

/* Below a power of two, the numbers of a dtype are half as far apart as above it. */
static void below_a_power_of_two_numbers_are_nearer(void **state) {
  static const double signs[] = {1, -1}, off[] = {-0.75, -0.49, 0.01, 0.99, 1.01}; /* in steps above it */
  making how = {AD_F32, AD_F32, AD_F32, AD_F32, IN_TURN, NEAREST, 1, 0, 1, 0};
  for (size_t i = 0; i < sizeof off / sizeof *off; i++)
    for (int sign = 0; sign < 2; sign++) {
      double addends[] = {signs[sign] * (1 + off[i] * 0x1p-7), 0, 0};
      made_parts m;
      make(&m, 3, 16, &how);
      fill_with(&m, addends, signs[sign], AD_BF16);
      assert_int_equal(find(&m, AD_F32).outside, i == 0 || i == 4 ? 16 : 0);
      drop_parts(&m);
    }
}

/* ---- sums that are not tested ---- */

static void check_untested(made_parts *m, ad_dtype promised, const char *words) {
  ad_formed_found found = find(m, promised);
  assert_int_equal(found.formed, AD_FORMED_UNTESTED);
  if (!strstr(found.why, words)) fail_msg("untested, but \"%s\"", found.why);
}

static const making in_bf16 = {AD_BF16, AD_BF16, AD_BF16, AD_BF16, TREE, NEAREST, 1, 0, 1, 0};

/* What makes several roundings legal, or leaves nothing to see, is not tested. */
static void sums_that_bits_do_not_judge_are_not_tested(void **state) {
  enum { ELEMENTS = 2000 };
  made_parts m;
  make(&m, 4, ELEMENTS, &in_bf16);
  assert_int_equal(find(&m, AD_F32).formed, AD_FORMED_NARROWER);
  check_untested(&m, AD_BF16, "no narrower dtype");
  m.members.inside = 1;
  check_untested(&m, AD_F32, "sums themselves");
  m.members.inside = 0;
  m.dump.microbatches = 2;
  check_untested(&m, AD_F32, "several microbatches");
  m.dump.microbatches = 1;
  m.part.term_count = 2;
  check_untested(&m, AD_F32, "Partial");
  m.part.term_count = 1;
  m.param.expect = 0.3333;
  check_untested(&m, AD_F32, "rounded number");
  m.param.expect = 1;
  assert_int_equal(find(&m, AD_F32).formed, AD_FORMED_NARROWER);
  drop_parts(&m);
  make(&m, 2, ELEMENTS, &in_bf16);
  check_untested(&m, AD_F32, "two addends");
  drop_parts(&m);
  make(&m, 1, ELEMENTS, &in_bf16);
  check_untested(&m, AD_F32, "one addend");
  drop_parts(&m);
}

/* Several microbatches of f32 addends whose sum is stored in f32 are additions in f32 in any case. */
static void microbatches_that_are_added_as_wide_as_promised_are_tested(void **state) {
  making how = {AD_F32, AD_F32, AD_F32, AD_F32, ANY_ORDER, NEAREST, 1, 0, 1, 0};
  made_parts m;
  make(&m, 4, 1000, &how);
  m.dump.mesh.world = m.dump.microbatches = 2;
  assert_int_equal(find(&m, AD_F32).formed, AD_FORMED_AS_PROMISED);
  drop_parts(&m);
}

/* Elements with too few addends that are not 0 tell nothing: a rank whose experts got no token. */
static void elements_of_zeros_do_not_tell(void **state) {
  making how = {AD_BF16, AD_F32, AD_F32, AD_BF16, TREE, NEAREST, 1, 0, 1, 0};
  made_parts m;
  make(&m, 4, 3000, &how);
  for (size_t c = 2; c < 4; c++) memset(m.values + c * m.elements, 0, m.elements * sizeof(uint16_t));
  for (size_t i = 0; i < m.elements; i++) {
    double addends[2], sum;
    for (size_t c = 0; c < 2; c++)
      assert_int_equal(ad_cast(&addends[c], AD_F64, (uint16_t *)(void *)(m.values + c * m.elements) + i, AD_BF16, 1),
                       AD_OK);
    sum = addends[0] + addends[1];
    assert_int_equal(ad_cast((uint16_t *)(void *)m.sum + i, AD_BF16, &sum, AD_F64, 1), AD_OK);
  }
  assert_int_equal(find(&m, AD_F32).tested, 0);
  check_untested(&m, AD_F32, "too few");
  drop_parts(&m);
}

/* Nor do elements whose addends nearly cancel: the roundings of additions in f32 may hide all others there. */
static void elements_that_cancel_do_not_tell(void **state) {
  const double addends[] = {1, -1, 0x1p-13, 0x1p-23};
  making how = {AD_F32, AD_F32, AD_F32, AD_F32, IN_TURN, NEAREST, 1, 0, 1, 0};
  made_parts m;
  make(&m, 4, 1000, &how);
  fill_with(&m, addends, 0x1p-13 + 0x1p-23, AD_F32);
  assert_int_equal(find(&m, AD_F32).tested, 0);
  drop_parts(&m);
}

/* Replicas of one sum are tested once. */
static void only_one_of_several_replicas_is_tested(void **state) {
  making how = {AD_F32, AD_F32, AD_F32, AD_F32, TREE, NEAREST, 1, 0, 1, 0};
  made_parts m;
  make(&m, 4, 100, &how);
  int64_t alone = find(&m, AD_F32).tested;
  ad_part replicas[] = {m.part, m.part};
  m.parts.parts = replicas;
  m.parts.count = 2;
  assert_int_equal(find(&m, AD_F32).tested, alone);
  drop_parts(&m);
}

/* One number that is far off, or three, is a corrupted number and no dtype. */
static void few_corrupted_elements_are_no_dtype(void **state) {
  making how = {AD_F32, AD_F32, AD_F32, AD_F32, TREE, NEAREST, 1, 0, 1, 0};
  made_parts m;
  make(&m, 4, 1000, &how);
  for (size_t i = 0; i < 4; i++) {
    assert_int_equal(find(&m, AD_F32).formed, AD_FORMED_AS_PROMISED);
    ((float *)(void *)m.sum)[100 * i] *= 1.01f;
    assert_int_equal(find(&m, AD_F32).outside, i + 1);
  }
  assert_int_equal(find(&m, AD_F32).formed, AD_FORMED_NARROWER);
  drop_parts(&m);
}

/* In a large part the test reads elements at places over all of it. */
static void a_large_part_is_tested_at_its_end_too(void **state) {
  enum { ELEMENTS = 100000 };
  making how = {AD_F32, AD_F32, AD_F32, AD_F32, TREE, NEAREST, 1, 0, 1, 0};
  made_parts m;
  make(&m, 2, ELEMENTS, &how);
  for (size_t i = ELEMENTS / 16 * 15; i < ELEMENTS; i++) ((float *)(void *)m.sum)[i] *= 1.01f;
  ad_formed_found found = find(&m, AD_F32);
  assert_int_equal(found.formed, AD_FORMED_NARROWER);
  assert_true(found.tested < 20000);
  drop_parts(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sum_that_was_formed_as_promised_is_inside),
      cmocka_unit_test(sums_of_many_addends_and_in_f16_are_inside),
      cmocka_unit_test(sums_with_the_largest_errors_are_inside),
      cmocka_unit_test(a_flush_of_subnormal_numbers_is_inside),
      cmocka_unit_test(a_sum_that_was_formed_in_a_narrower_dtype_is_found),
      cmocka_unit_test(so_many_elements_are_needed_that_a_narrower_sum_is_found),
      cmocka_unit_test(the_narrower_dtype_is_named_if_all_values_have_it),
      cmocka_unit_test(a_rounding_of_the_result_is_told_from_one_before_it),
      cmocka_unit_test(a_rounding_of_addends_that_are_the_same_is_not_one_of_the_result),
      cmocka_unit_test(a_rounding_of_the_result_has_no_exception),
      cmocka_unit_test(only_numbers_beside_the_exact_sum_are_inside),
      cmocka_unit_test(below_a_power_of_two_numbers_are_nearer),
      cmocka_unit_test(sums_that_bits_do_not_judge_are_not_tested),
      cmocka_unit_test(microbatches_that_are_added_as_wide_as_promised_are_tested),
      cmocka_unit_test(elements_of_zeros_do_not_tell),
      cmocka_unit_test(elements_that_cancel_do_not_tell),
      cmocka_unit_test(only_one_of_several_replicas_is_tested),
      cmocka_unit_test(few_corrupted_elements_are_no_dtype),
      cmocka_unit_test(a_large_part_is_tested_at_its_end_too),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
