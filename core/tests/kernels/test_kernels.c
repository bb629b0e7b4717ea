/* Tests the vector kernels: conversions against arithmetic in f64, and every vector variant against the plain one, bit
 * for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "kernels/kernels.h"
#include "kernels/nodes.h"
#include "kernels/tree.h"
#include "base/random.h"
#include "says.h"
#include "tree_order.h"

static const ad_dtype float_dtypes[] = {AD_F64, AD_F32, AD_BF16, AD_F16};
static const ad_reduction reductions[] = {AD_SUM, AD_MAX, AD_MIN, AD_PRODUCT, AD_BIT_AND, AD_BIT_OR, AD_BIT_XOR};
enum { FLOATS = 4, OF_FLOATS = 4, REDUCTIONS = 7, VARIANTS = 4, ENCODINGS = 65536 };

static ad_variant best;

/* ---- the reference: a 16-bit format computed with f64 numbers ---- */

typedef struct format {
  ad_dtype dtype;
  int mantissa_bits, bias;
} format;
static const format formats[] = {{AD_BF16, 7, 127}, {AD_F16, 10, 15}};

static int exponent_of(format f, unsigned bits) { return (int)(bits & 0x7fff) >> f.mantissa_bits; }
static unsigned infinity_of(format f) { return (unsigned)(2 * f.bias + 1) << f.mantissa_bits; }

static double decode(format f, unsigned bits) {
  int exponent = exponent_of(f, bits);
  int mantissa = (int)bits & ((1 << f.mantissa_bits) - 1);
  double magnitude;
  if (exponent == 2 * f.bias + 1)
    magnitude = mantissa ? NAN : INFINITY;
  else if (exponent)
    magnitude = ldexp(mantissa + (1 << f.mantissa_bits), exponent - f.bias - f.mantissa_bits);
  else
    magnitude = ldexp(mantissa, 1 - f.bias - f.mantissa_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

/* Encodes a number (not a NaN), counted in units of the last place, so that a full mantissa carries
 * into the exponent. */
static unsigned encode(format f, double value) {
  unsigned sign = signbit(value) ? 0x8000 : 0;
  double magnitude = fabs(value);
  if (isinf(value)) return sign | infinity_of(f);
  int exponent = magnitude > 0 ? ilogb(magnitude) : 1 - f.bias;
  if (exponent < 1 - f.bias) exponent = 1 - f.bias;
  double units = nearbyint(ldexp(magnitude, f.mantissa_bits - exponent));  // rounds to nearest even
  double bits = units + ldexp(exponent + f.bias - 1, f.mantissa_bits);
  return sign | (bits < infinity_of(f) ? (unsigned)bits : infinity_of(f));
}

static void the_reference_decodes_known_numbers(void **state) {
  assert_true(decode(formats[0], 0x3f80) == 1.0 && decode(formats[1], 0x3c00) == 1.0);
  assert_true(decode(formats[1], 0x7bff) == 65504.0 && decode(formats[1], 1) == 0x1p-24);
  assert_true(decode(formats[0], 0xc049) == -3.140625 && decode(formats[0], 1) == 0x1p-133);
  assert_int_equal(encode(formats[1], 65519.999), 0x7bff);
  assert_int_equal(encode(formats[1], 65520), 0x7c00);
  for (int k = 0; k < 2; k++)
    for (unsigned bits = 0; bits < ENCODINGS; bits++)
      if (!isnan(decode(formats[k], bits))) assert_int_equal(encode(formats[k], decode(formats[k], bits)), bits);
}

/* ---- conversions ---- */

static uint16_t all_encodings[ENCODINGS];

static void fill_encodings(void) {
  for (unsigned i = 0; i < ENCODINGS; i++) all_encodings[i] = (uint16_t)i;
}

static void check_wide(format f, unsigned bits, double wide, uint64_t wide_bits, int wide_mantissa) {
  double expected = decode(f, bits);
  if (!isnan(expected)) {
    assert_true(wide == expected && signbit(wide) == signbit(expected));
    return;
  }
  uint64_t payload = bits & ((1u << f.mantissa_bits) - 1);
  uint64_t quiet = payload << (wide_mantissa - f.mantissa_bits) | 1ull << (wide_mantissa - 1);
  assert_true(isnan(wide));
  assert_true((wide_bits & ((1ull << wide_mantissa) - 1)) == quiet);
  assert_int_equal(signbit(wide) != 0, bits >> 15);
}

static void all_16_bit_numbers_widen_exactly(void **state) {
  static float singles[ENCODINGS];
  static double doubles[ENCODINGS];
  for (int variant = 0; variant <= (int)best; variant++) {
    ad_kernels_choose((ad_variant)variant);
    for (int k = 0; k < 2; k++) {
      ad_cast(singles, AD_F32, all_encodings, formats[k].dtype, ENCODINGS);
      ad_cast(doubles, AD_F64, all_encodings, formats[k].dtype, ENCODINGS);
      for (unsigned i = 0; i < ENCODINGS; i++) {
        uint32_t single_bits;
        uint64_t double_bits;
        memcpy(&single_bits, &singles[i], 4);
        memcpy(&double_bits, &doubles[i], 8);
        check_wide(formats[k], i, singles[i], single_bits, 23);
        check_wide(formats[k], i, doubles[i], double_bits, 52);
      }
    }
  }
}

/* For every number of the format and every midpoint between two: this value, and its neighbours in f64 and f32. */
enum { AROUND = 9, BOUNDARIES = ENCODINGS * AROUND };
static double boundaries[BOUNDARIES];
static float boundaries_f32[BOUNDARIES];

static void fill_boundaries(format f) {
  size_t n = 0;
  for (unsigned i = 0; i < ENCODINGS; i++) {
    double here = decode(f, i), next = decode(f, (i & 0x7fff) == infinity_of(f) - 1 ? i : i + 1);
    if (!isfinite(here) || !isfinite(next)) here = next = (i & 1 ? -1 : 1) * ldexp(1.3, (int)(i % 2046) - 1023);
    double middle = (here + next) / 2;
    if ((i & 0x7fff) == infinity_of(f) - 1)  // from here on values round to infinity
      middle = copysign(ldexp((2 << f.mantissa_bits) - 0.5, f.bias - f.mantissa_bits), here);
    const double around[AROUND] = {here,
                                   nextafter(here, INFINITY),
                                   nextafter(here, -INFINITY),
                                   middle,
                                   nextafter(middle, INFINITY),
                                   nextafter(middle, -INFINITY),
                                   nextafterf((float)middle, INFINITY),
                                   nextafterf((float)middle, -INFINITY),
                                   -middle * (1 + 0x1p-40)};  // rounding through f32 would round twice
    for (int j = 0; j < AROUND; j++) boundaries[n++] = around[j];
  }
  for (size_t i = 0; i < BOUNDARIES; i++) boundaries_f32[i] = (float)boundaries[i];
}

static void narrowing_rounds_once_to_nearest_even(void **state) {
  static uint16_t from_f64[BOUNDARIES], from_f32[BOUNDARIES];
  for (int k = 0; k < 2; k++) {
    fill_boundaries(formats[k]);
    for (int variant = 0; variant <= (int)best; variant++) {
      ad_kernels_choose((ad_variant)variant);
      ad_cast(from_f64, formats[k].dtype, boundaries, AD_F64, BOUNDARIES);
      ad_cast(from_f32, formats[k].dtype, boundaries_f32, AD_F32, BOUNDARIES);
      for (size_t i = 0; i < BOUNDARIES; i++) {
        assert_int_equal(from_f64[i], encode(formats[k], boundaries[i]));
        assert_int_equal(from_f32[i], encode(formats[k], boundaries_f32[i]));
      }
    }
  }
}

static void a_nan_stays_one_and_keeps_the_top_of_its_payload(void **state) {
  enum { NANS = 37 };
  uint32_t singles[NANS];
  uint64_t doubles[NANS];
  uint16_t narrowed[NANS];
  // NaNs with payloads whose top bits are all zero, and others; quiet and signalling
  for (unsigned i = 0; i < NANS; i++) {
    uint64_t payload = i < 20 ? 1ull << i : ad_random_bits(1, 1, i) >> 12;
    doubles[i] = (uint64_t)(i & 1) << 63 | 0x7ffull << 52 | payload << (i < 20 ? 32 : 0);
    singles[i] = (uint32_t)(i & 1) << 31 | 0x7f800000u | ((uint32_t)payload & 0x7fffff) | (i >= 20);
  }
  for (int variant = 0; variant <= (int)best; variant++) {
    ad_kernels_choose((ad_variant)variant);
    for (int k = 0; k < 2; k++) {
      unsigned m = (unsigned)formats[k].mantissa_bits, special = infinity_of(formats[k]) | 1u << (m - 1);
      ad_cast(narrowed, formats[k].dtype, singles, AD_F32, NANS);
      for (unsigned i = 0; i < NANS; i++)
        assert_int_equal(narrowed[i], (i & 1) << 15 | special | (singles[i] & 0x7fffff) >> (23 - m));
      ad_cast(narrowed, formats[k].dtype, doubles, AD_F64, NANS);
      for (unsigned i = 0; i < NANS; i++)
        assert_int_equal(narrowed[i], (i & 1) << 15 | special | (doubles[i] & 0xfffffffffffff) >> (52 - m));
    }
  }
}

static void a_16_bit_number_comes_back_from_each_wider_dtype(void **state) {
  static double wide[ENCODINGS];
  static uint16_t back[ENCODINGS];
  for (int k = 0; k < 2; k++) {
    for (int through = AD_F64; through <= AD_F32; through++) {
      ad_cast(wide, (ad_dtype)through, all_encodings, formats[k].dtype, ENCODINGS);
      ad_cast(back, formats[k].dtype, wide, (ad_dtype)through, ENCODINGS);
      for (unsigned i = 0; i < ENCODINGS; i++) {
        unsigned quiet = isnan(decode(formats[k], i)) ? 1u << (formats[k].mantissa_bits - 1) : 0;
        assert_int_equal(back[i], i | quiet);
      }
    }
  }
}

static void the_two_16_bit_formats_convert_into_each_other(void **state) {
  static uint16_t converted[ENCODINGS];
  for (int k = 0; k < 2; k++) {
    ad_cast(converted, formats[1 - k].dtype, all_encodings, formats[k].dtype, ENCODINGS);
    for (unsigned i = 0; i < ENCODINGS; i++) {
      double value = decode(formats[k], i);
      if (isnan(value))
        assert_true(isnan(decode(formats[1 - k], converted[i])));
      else
        assert_int_equal(converted[i], encode(formats[1 - k], value));
    }
  }
}

static void integers_and_equal_dtypes_are_copied_bit_for_bit(void **state) {
  uint64_t bits[9], copied[9];
  for (unsigned i = 0; i < 9; i++) bits[i] = ad_random_bits(2, 2, i) | 0x7ff0000000000000;  // f64 NaNs
  for (int dtype = AD_F64; dtype <= AD_BOOL; dtype++) {
    size_t n = sizeof bits / ad_dtype_size((ad_dtype)dtype);
    memset(copied, 0, sizeof copied);
    ad_cast(copied, (ad_dtype)dtype, bits, (ad_dtype)dtype, n);
    assert_memory_equal(copied, bits, sizeof bits);
    ad_cast(copied, (ad_dtype)dtype, copied, (ad_dtype)dtype, n);
    assert_memory_equal(copied, bits, sizeof bits);
  }
}

/* ---- all vector variants against the plain one ---- */

enum { LONGEST = 2500, MOST_SOURCES = 9, MARGIN = 8, ROOM = LONGEST + 2 * MARGIN };
typedef struct buffer {
  _Alignas(64) char bytes[ROOM * 8];
} buffer;
static buffer inputs[MOST_SOURCES], results[VARIANTS][MOST_SOURCES];
static const size_t lengths[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 1023, 1024, 1025, 2049};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

/* Random bits, so that every exponent, subnormals, infinities and NaNs occur, mixed with ordinary numbers. */
static void fill(buffer *b, uint64_t stream, ad_dtype dtype) {
  for (uint64_t i = 0; i < sizeof b->bytes / 8; i++) {
    uint64_t bits = ad_random_bits(3, stream, i);
    memcpy(b->bytes + 8 * i, &bits, 8);
  }
  double special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0, -0.0, 1.0, 0x1p-24};
  // every other bool is false, the others are any nonzero byte
  for (size_t i = 0; dtype == AD_BOOL && i < sizeof b->bytes; i++)
    if (ad_random_bits(5, stream, i) & 1) b->bytes[i] = 0;
  if (!ad_dtype_is_float(dtype)) return;
  for (size_t i = 0; i < ROOM; i++) {
    uint64_t pick = ad_random_bits(4, stream, i);
    double value = pick % 4 ? ad_random_normal(4, stream, i) : special[pick / 4 % 8];
    if (pick >> 40 & 3) ad_cast(b->bytes + i * ad_dtype_size(dtype), dtype, &value, AD_F64, 1);
  }
}

/* How many of `reductions` the dtype has. */
static size_t reductions_of(ad_dtype dtype) { return ad_dtype_is_float(dtype) ? OF_FLOATS : REDUCTIONS; }

static void *at(buffer *b, ad_dtype dtype, size_t offset) { return b->bytes + offset * ad_dtype_size(dtype); }

static void every_variant_casts_scales_and_accumulates_identically(void **state) {
  for (int d = 0; d < FLOATS; d++)
    for (int s = 0; s < FLOATS; s++) {
      ad_dtype to = float_dtypes[d], from = float_dtypes[s];
      fill(&inputs[0], 1, to);
      fill(&inputs[1], 2, from);
      for (size_t k = 0; k < LENGTHS; k++) {
        size_t offset = k % 4;
        const void *src = at(&inputs[1], from, 3 - offset);
        for (int variant = 0; variant <= (int)best; variant++) {
          ad_kernels_choose((ad_variant)variant);
          buffer *result = results[variant];
          for (int i = 0; i < 6; i++) result[i] = inputs[0];
          ad_cast(at(&result[0], to, offset), to, src, from, lengths[k]);
          ad_cast_scaled(at(&result[1], to, offset), to, src, from, 0.3, lengths[k]);
          ad_accumulate(at(&result[2], to, offset), to, src, from, -1.7, lengths[k]);
          ad_accumulate(at(&result[3], to, offset), to, src, from, 1, lengths[k]);
          ad_cast_past(at(&result[4], to, offset), to, src, from, 1, lengths[k]);
          ad_cast_past(at(&result[5], to, offset), to, src, from, 0.3, lengths[k]);
          for (int i = 0; i < 4; i++) assert_memory_equal(&result[i], &results[AD_PLAIN][i], sizeof(buffer));
          for (int i = 0; i < 2; i++) assert_memory_equal(&result[4 + i], &result[i], sizeof(buffer));
        }
      }
    }
}

static void every_variant_reduces_identically(void **state) {
  for (int dtype = AD_F64; dtype <= AD_BOOL; dtype++) {
    for (int j = 0; j < MOST_SOURCES; j++) fill(&inputs[j], (uint64_t)j, (ad_dtype)dtype);
    for (size_t k = 0; k < LENGTHS; k++)
      for (size_t count = 1; count <= MOST_SOURCES; count++) {
        ad_dtype sum = k % 2 ? AD_F64 : AD_F32;
        const void *sources[MOST_SOURCES];
        for (size_t j = 0; j < count; j++) sources[j] = at(&inputs[j], (ad_dtype)dtype, (j + k) % 4);
        size_t out_count = 1 + (k + count) % 3;
        for (int variant = 0; variant <= (int)best; variant++) {
          ad_kernels_choose((ad_variant)variant);
          void *out[3];
          for (int i = 0; i < 3; i++) {
            memset(&results[variant][i], 0x5a, sizeof(buffer));
            out[i] = at(&results[variant][i], (ad_dtype)dtype, (size_t)i);
          }
          ad_reduce(out, out_count, sources, count,
                    &(ad_reducing){.dtype = (ad_dtype)dtype,
                                   .accumulate = sum,
                                   .reduction = reductions[(k + count) % reductions_of((ad_dtype)dtype)],
                                   .past = (variant + k) % 2},
                    lengths[k]);
          for (int i = 0; i < 3; i++) assert_memory_equal(&results[variant][i], &results[AD_PLAIN][i], sizeof(buffer));
          for (size_t i = 1; i < out_count; i++)
            assert_memory_equal(out[0], out[i], lengths[k] * ad_dtype_size((ad_dtype)dtype));
        }
      }
  }
}

static uint16_t terms[ENCODINGS], pair_sums[VARIANTS][ENCODINGS];

/* Sums each 16-bit number with others: near its own size and of either sign, where sums cancel, lie halfway between two
 * numbers, are subnormal, infinite or NaN; and some far from its size. */
static void every_variant_rounds_sums_of_two_identically(void **state) {
  fill_encodings();
  for (int turn = 0; turn < 2 * 192; turn++) {
    ad_dtype dtype = turn % 2 ? AD_F16 : AD_BF16;
    unsigned step = (unsigned)turn / 2;
    for (unsigned i = 0; i < ENCODINGS; i++)
      terms[i] =
          (uint16_t)(step < 128 ? (i ^ (step & 1) << 15) + (step - 64) * (step < 64 ? 1 : 61) : i * 40503 + step * 977);
    for (int variant = 0; variant <= (int)best; variant++) {
      ad_kernels_choose((ad_variant)variant);
      const void *sources[] = {all_encodings, terms};
      void *out = pair_sums[variant];
      ad_reduce(&out, 1, sources, 2, &(ad_reducing){.dtype = dtype, .accumulate = AD_F32}, ENCODINGS);
      assert_memory_equal(pair_sums[variant], pair_sums[AD_PLAIN], sizeof pair_sums[0]);
    }
  }
}

/* ---- the kernels against their definition ---- */

static double reduce_two(ad_reduction reduction, double a, double b) {
  if (isnan(a) || isnan(b)) return NAN;
  if (reduction == AD_SUM) return a + b;
  if (reduction == AD_PRODUCT) return a * b;
  return reduction == AD_MAX ? (a > b ? a : b) : (a < b ? a : b);
}

typedef struct wanted_sum {
  size_t i;  // number of the element
  ad_dtype dtype, sum;
  ad_reduction reduction;
  const void *const *sources;
} wanted_sum;

/* The term in f64, rounded to f32 if f32 is the accumulate dtype. */
static double term_of(const void *context, size_t j) {
  const wanted_sum *w = context;
  double term;
  ad_cast(&term, AD_F64, (const char *)w->sources[j] + w->i * ad_dtype_size(w->dtype), w->dtype, 1);
  return w->sum == AD_F32 ? (double)(float)term : term;
}

static double join(const void *context, double a, double b) {
  const wanted_sum *w = context;
  double result = reduce_two(w->reduction, a, b);
  return w->sum == AD_F32 ? (double)(float)result : result;
}

static void assert_same_number(const void *found, const void *expected, ad_dtype dtype) {
  double a, b;
  ad_cast(&a, AD_F64, found, dtype, 1);
  ad_cast(&b, AD_F64, expected, dtype, 1);
  assert_true((isnan(a) && isnan(b)) || a == b);
}

enum { MANY_SOURCES = 33, MANY_LENGTH = 300 };

static const void *const *many_sources(ad_dtype dtype) {
  static char memory[MANY_SOURCES][MANY_LENGTH * sizeof(double)];
  static const void *sources[MANY_SOURCES];
  for (size_t j = 0; j < MANY_SOURCES; j++) {
    buffer filled;
    fill(&filled, 10 + j, dtype);
    memcpy(memory[j], filled.bytes, MANY_LENGTH * ad_dtype_size(dtype));
    sources[j] = memory[j];
  }
  return sources;
}

/* Checks that `out` is the reduction of `count` sources, which represent the indices from `first` on, in tree order. */
static void assert_in_order(const void *out, const wanted_sum *wanted, size_t first, size_t count) {
  for (size_t i = 0; i < MANY_LENGTH; i++) {
    wanted_sum w = *wanted;
    w.i = i;
    double expected = in_tree_order(&w, term_of, join, first, first + count), rounded;
    ad_cast(&rounded, w.dtype, &expected, AD_F64, 1);
    assert_same_number((const char *)out + i * ad_dtype_size(w.dtype), &rounded, w.dtype);
  }
}

/* Few elements are reduced in registers, many in blocks. */
static void a_reduction_goes_in_the_order_of_the_tree_in_the_accumulate_dtype(void **state) {
  static const size_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33};
  for (int turn = 0; turn < FLOATS * OF_FLOATS * 2; turn++) {
    wanted_sum w = {.dtype = float_dtypes[turn % FLOATS], .reduction = reductions[turn / FLOATS % OF_FLOATS]};
    w.sum = turn < FLOATS * OF_FLOATS && w.dtype != AD_F64 ? AD_F32 : AD_F64;
    w.sources = many_sources(w.dtype);
    for (int variant = 0; variant <= (int)best; variant++)
      for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        void *out = results[variant][0].bytes;
        ad_reducing how = {.dtype = w.dtype, .accumulate = w.sum, .reduction = w.reduction};
        ad_kernels_choose((ad_variant)variant);
        ad_reduce(&out, 1, w.sources, counts[c], &how, MANY_LENGTH);
        assert_in_order(out, &w, 0, counts[c]);
      }
  }
}

/* Cuts 0 .. count - 1 into parts of the tree, differently for each draw; a part with several leaves is summed first. */
static size_t cut_into_parts(size_t first, size_t count, uint64_t draw, uint32_t *leaves) {
  size_t lower = count > 1 ? ad_tree_lower(first, count) : 0;
  if (count == 1 || (draw >> (first + count) % 61 & 3) == 0) return leaves[0] = (uint32_t)count, 1;
  size_t below = cut_into_parts(first, lower, draw, leaves);
  return below + cut_into_parts(first + lower, count - lower, draw, leaves + below);
}

/* Sums parts first, as a node does that sends the sum of its ranks' addends to another: the bits are those of summing
 * all addends at one place. */
static void sum_parts_before(const void *const *sources, ad_dtype dtype, ad_reduction reduction, size_t count,
                             int turn) {
  static double partial[MANY_SOURCES][MANY_LENGTH];
  const void *parts[MANY_SOURCES];
  uint32_t leaves[MANY_SOURCES];
  size_t done = 0, part_count = cut_into_parts(0, count, ad_random_bits(4, 0, (uint64_t)turn), leaves);
  ad_dtype sum = !ad_dtype_is_float(dtype) || dtype == AD_F64 ? dtype : turn % 3 ? AD_F32 : AD_F64;
  ad_reducing how = {.dtype = dtype, .accumulate = sum, .out_dtype = sum, .reduction = reduction};
  ad_kernels_choose((ad_variant)(turn % ((int)best + 1)));
  for (size_t p = 0; p < part_count; done += leaves[p++]) {
    void *out = partial[p];
    how.first = done;
    parts[p] = leaves[p] == 1 ? sources[done] : out;
    if (leaves[p] > 1) ad_reduce(&out, 1, sources + done, leaves[p], &how, MANY_LENGTH);
  }
  void *at_once = results[0][0].bytes, *of_parts = results[0][1].bytes;
  int shift = ad_dtype_is_float(dtype) && reduction == AD_SUM ? -(turn % 3) : 0;
  how = (ad_reducing){.dtype = dtype, .accumulate = sum, .reduction = reduction, .shift = shift};
  ad_reduce(&at_once, 1, sources, count, &how, MANY_LENGTH);
  how.leaves = leaves;
  ad_reduce(&of_parts, 1, parts, part_count, &how, MANY_LENGTH);
  assert_memory_equal(of_parts, at_once, MANY_LENGTH * ad_dtype_size(dtype));
}

static void parts_of_the_tree_may_be_summed_before(void **state) {
  static const size_t counts[] = {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 33};
  int turn = 0;
  for (ad_dtype dtype = AD_F64; dtype <= AD_BOOL; dtype++) {
    const void *const *sources = many_sources(dtype);
    for (size_t r = 0; r < reductions_of(dtype); r++)
      for (size_t c = 0; c < 4 * (sizeof counts / sizeof *counts); c++)
        sum_parts_before(sources, dtype, reductions[r], counts[c / 4], turn++);
  }
}

/* Cuts a node's leaves 0 .. count - 1 into nodes, differently for each draw. */
static size_t cut_into_nodes(size_t first, size_t count, uint64_t draw, uint32_t *leaves) {
  if (count == 1 || (draw >> (first + count) % 61 & 3) == 0) return leaves[0] = (uint32_t)count, 1;
  size_t lower = ad_node_lower(count), below = cut_into_nodes(first, lower, draw, leaves);
  return below + cut_into_nodes(first + lower, count - lower, draw, leaves + below);
}

/* Sums a node of `count` leaves, of which some smaller nodes were summed before, each by itself. */
static void sum_node(const wanted_sum *wanted, size_t count, int turn) {
  static double partial[MANY_SOURCES][MANY_LENGTH];
  const void *nodes[MANY_SOURCES];
  uint32_t leaves[MANY_SOURCES];
  static uint32_t ones[MANY_SOURCES];
  for (size_t j = 0; j < MANY_SOURCES; j++) ones[j] = 1;
  size_t node_count = cut_into_nodes(0, count, ad_random_bits(5, 0, (uint64_t)turn), leaves);
  ad_reducing how = {.dtype = wanted->dtype, .accumulate = wanted->sum, .reduction = AD_SUM, .aligned = 1};
  ad_kernels_choose((ad_variant)(turn % ((int)best + 1)));
  for (size_t p = 0, done = 0; p < node_count; done += leaves[p++]) {
    void *out = partial[p];
    how.leaves = ones;
    nodes[p] = leaves[p] == 1 ? wanted->sources[done] : out;
    if (leaves[p] > 1) ad_reduce(&out, 1, wanted->sources + done, leaves[p], &how, MANY_LENGTH);
  }
  void *out = results[0][0].bytes;
  how.leaves = leaves;
  ad_reduce(&out, 1, nodes, node_count, &how, MANY_LENGTH);
  for (size_t i = 0; i < MANY_LENGTH; i++) {
    wanted_sum w = *wanted;
    w.i = i;
    double expected = in_node_order(&w, term_of, join, 0, count), rounded;
    ad_cast(&rounded, w.dtype, &expected, AD_F64, 1);
    assert_same_number((const char *)out + i * ad_dtype_size(w.dtype), &rounded, w.dtype);
  }
}

static void leaves_are_summed_in_the_order_of_their_tree(void **state) {
  int turn = 0;
  for (int d = 0; d < 2; d++) {
    wanted_sum w = {.dtype = d ? AD_F64 : AD_F32, .sum = d ? AD_F64 : AD_F32, .reduction = AD_SUM};
    w.sources = many_sources(w.dtype);
    for (size_t count = 1; count <= MANY_SOURCES; count++)
      for (int draw = 0; draw < 12; draw++) sum_node(&w, count, turn++);
  }
}

/* ---- integers and bools: the reference adds them one by one, in 64 bits ---- */

static int64_t whole_number(const void *memory, ad_dtype dtype, size_t i) {
  switch (dtype) {
    case AD_U8:
      return ((const uint8_t *)memory)[i];
    case AD_BOOL:
      return ((const uint8_t *)memory)[i] ? 1 : 0;
    case AD_I8:
      return ((const int8_t *)memory)[i];
    case AD_I16:
      return ((const int16_t *)memory)[i];
    case AD_I32:
      return ((const int32_t *)memory)[i];
    default:
      return ((const int64_t *)memory)[i];
  }
}

/* The number of the dtype that the low bits represent. */
static int64_t wrapped(uint64_t bits, ad_dtype dtype) {
  switch (dtype) {
    case AD_BOOL:
      return bits != 0;
    case AD_U8:
      return (int64_t)(bits % 256);
    case AD_I64:
      return (int64_t)bits;
    default: {
      uint64_t half = 1ull << (8 * ad_dtype_size(dtype) - 1);
      return (int64_t)((bits + half) % (2 * half)) - (int64_t)half;
    }
  }
}

static int64_t combined(ad_reduction reduction, int64_t a, int64_t b, ad_dtype dtype) {
  uint64_t x = (uint64_t)a, y = (uint64_t)b;
  switch (reduction) {
    case AD_SUM:
      return wrapped(x + y, dtype);
    case AD_PRODUCT:
      return wrapped(x * y, dtype);
    case AD_MAX:
      return a > b ? a : b;
    case AD_MIN:
      return a < b ? a : b;
    case AD_BIT_AND:
      return wrapped(x & y, dtype);
    case AD_BIT_OR:
      return wrapped(x | y, dtype);
    default:
      return wrapped(x ^ y, dtype);
  }
}

/* A number as it was written: a written bool must be 0 or 1. */
static int64_t written_number(const void *memory, ad_dtype dtype, size_t i) {
  return dtype == AD_BOOL ? ((const uint8_t *)memory)[i] : whole_number(memory, dtype, i);
}

static void assert_one_by_one(const void *found, const void *const *sources, size_t count, const ad_reducing *how) {
  for (size_t i = 0; i < MANY_LENGTH; i++) {
    int64_t expected = whole_number(sources[0], how->dtype, i);
    for (size_t j = 1; j < count; j++)
      expected = combined(how->reduction, expected, whole_number(sources[j], how->dtype, i), how->dtype);
    assert_int_equal(written_number(found, how->dtype, i), expected);
  }
}

/* Reduces into separate memory, and into the memory of the source in the middle. */
static void reduce_one_by_one(const void *const *sources, size_t count, const ad_reducing *how) {
  static char in_place[MANY_LENGTH * sizeof(int64_t)];
  const void *mixed[MANY_SOURCES];
  void *out[] = {results[0][0].bytes, in_place};
  memcpy(mixed, sources, sizeof mixed);
  memcpy(in_place, sources[count / 2], MANY_LENGTH * ad_dtype_size(how->dtype));
  mixed[count / 2] = in_place;
  ad_reduce(out, 2, mixed, count, how, MANY_LENGTH);
  for (int k = 0; k < 2; k++) assert_one_by_one(out[k], sources, count, how);
  memcpy(in_place, sources[count / 2], MANY_LENGTH * ad_dtype_size(how->dtype));
  ad_reduce(&out[1], 1, mixed, count, how, MANY_LENGTH);
  assert_one_by_one(in_place, sources, count, how);
}

static void whole_numbers_and_bools_are_reduced_as_one_by_one(void **state) {
  static const ad_dtype dtypes[] = {AD_I32, AD_I64, AD_U8, AD_I8, AD_I16, AD_BOOL};
  static const size_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33};
  for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
    const void *const *sources = many_sources(dtypes[d]);
    for (size_t turn = 0; turn < REDUCTIONS * sizeof counts / sizeof *counts; turn++)
      for (int variant = 0; variant <= (int)best; variant++) {
        ad_kernels_choose((ad_variant)variant);
        ad_reducing how = {.dtype = dtypes[d], .accumulate = dtypes[d], .past = variant % 2};
        how.reduction = reductions[turn % REDUCTIONS];
        reduce_one_by_one(sources, counts[turn / REDUCTIONS], &how);
      }
  }
}

static void the_tree_halves_its_indices_and_keeps_pairs_together(void **state) {
  for (size_t first = 0; first < 40; first++)
    for (size_t count = 2; count < 40; count++) {
      size_t lower = ad_tree_lower(first, count);
      assert_int_equal(lower, tree_cut(first, first + count) - first);
      assert_true(lower >= 1 && lower < count && 2 * lower + 1 >= count && 2 * lower <= count + 1);
      if (count % 2) assert_int_equal((first + lower) % 2, 0);
    }
}

static void integers_sum_exactly_and_wrap_around(void **state) {
  const int64_t big = (int64_t)1 << 53;
  const int64_t a[3] = {big, INT64_MAX, -5}, b[3] = {1, 1, 3}, c[3] = {1, 0, -9};
  const void *sources[3] = {a, b, c};
  int64_t sum[3], largest[3], smallest[3];
  void *out[3] = {sum, largest, smallest};
  for (int r = 0; r < 3; r++)
    ad_reduce(&out[r], 1, sources, 3, &(ad_reducing){.dtype = AD_I64, .accumulate = AD_F32, .reduction = reductions[r]},
              3);
  assert_true(sum[0] == big + 2 && sum[1] == INT64_MIN && sum[2] == -11);
  assert_true(largest[0] == big && largest[1] == INT64_MAX && largest[2] == 3);
  assert_true(smallest[0] == 1 && smallest[1] == 0 && smallest[2] == -9);
  const int32_t x[2] = {16777217, INT32_MIN}, y[2] = {2, -1};
  const void *pair[2] = {x, y};
  int32_t total[2];
  void *one[1] = {total};
  ad_reduce(one, 1, pair, 2, &(ad_reducing){.dtype = AD_I32, .accumulate = AD_F32, .reduction = AD_SUM}, 2);
  assert_true(total[0] == 16777219 && total[1] == INT32_MAX);
}

static void the_outs_may_be_the_sources(void **state) {
  enum { N = 2500 };
  static buffer copies[MOST_SOURCES];
  ad_kernels_choose(best);
  for (int dtype = AD_F64; dtype <= AD_BOOL; dtype++)
    for (size_t count = 1; count <= MOST_SOURCES; count++)
      for (size_t rotated = 0; rotated < count; rotated++) {
        const void *sources[MOST_SOURCES];
        void *out[MOST_SOURCES], *apart[1] = {results[0][0].bytes};
        for (size_t j = 0; j < count; j++) {
          if (!rotated) fill(&inputs[j], 20 + j, (ad_dtype)dtype);
          copies[j] = inputs[j];
          sources[j] = copies[j].bytes;
          out[(j + rotated) % count] = copies[j].bytes;
        }
        ad_reduce(apart, 1, sources, count,
                  &(ad_reducing){.dtype = (ad_dtype)dtype, .accumulate = AD_F32, .reduction = AD_SUM}, N);
        ad_reduce(out, rotated % 2 ? 1 : count, sources, count,
                  &(ad_reducing){.dtype = (ad_dtype)dtype, .accumulate = AD_F32, .reduction = AD_SUM}, N);
        for (size_t k = 0; k < (rotated % 2 ? 1 : count); k++)
          assert_memory_equal(out[k], apart[0], N * ad_dtype_size((ad_dtype)dtype));
      }
}

static void every_nan_that_a_sum_makes_has_the_same_bits(void **state) {
  float a[4] = {NAN, INFINITY, -NAN, 1}, b[4] = {-NAN, -INFINITY, 1, NAN}, sum[4];
  const void *sources[2] = {a, b};
  void *out[1] = {sum};
  for (int variant = 0; variant <= (int)best; variant++) {
    ad_kernels_choose((ad_variant)variant);
    ad_reduce(out, 1, sources, 2, &(ad_reducing){.dtype = AD_F32, .accumulate = AD_F32, .reduction = AD_SUM}, 4);
    for (int i = 0; i < 4; i++) {
      uint32_t bits;
      memcpy(&bits, &sum[i], 4);
      assert_int_equal(bits, 0x7fc00000);
    }
  }
}

static void the_maximum_or_minimum_with_a_nan_is_nan(void **state) {
  double a[3] = {NAN, 1, -INFINITY}, b[3] = {2, NAN, NAN}, found[3];
  const void *sources[2] = {a, b};
  void *out[1] = {found};
  for (int variant = 0; variant <= (int)best; variant++) {
    ad_kernels_choose((ad_variant)variant);
    for (int r = 0; r < OF_FLOATS; r++) {
      ad_reduce(out, 1, sources, 2, &(ad_reducing){.dtype = AD_F64, .accumulate = AD_F64, .reduction = reductions[r]},
                3);
      for (int i = 0; i < 3; i++) assert_true(isnan(found[i]));
    }
  }
}

static void scaling_forms_the_product_before_the_one_rounding(void **state) {
  double wide = 1 + 0x1p-11 + 0x1p-40, narrow_factor = 3;
  uint16_t half;
  ad_cast_scaled(&half, AD_F16, &wide, AD_F64, 1, 1);
  assert_int_equal(half, 0x3c01);  // rounded to f32 first it would be a tie and become 1
  float single = 0.1f, product;
  ad_cast_scaled(&product, AD_F32, &single, AD_F32, narrow_factor, 1);
  assert_true(product == 0.1f * 3.0f);
  double exact;
  ad_cast_scaled(&exact, AD_F64, &single, AD_F32, narrow_factor, 1);
  assert_true(exact == (double)0.1f * 3.0);
}

static void accumulating_adds_in_the_dtype_of_the_sum(void **state) {
  float single = 16777216.0f;
  double one = 1, total = 16777216;
  ad_accumulate(&single, AD_F32, &one, AD_F64, 1, 1);
  assert_true(single == 16777216.0f);
  float single_one = 1;
  ad_accumulate(&total, AD_F64, &single_one, AD_F32, -2, 1);
  assert_true(total == 16777214);
  uint16_t half = 0x3f80;  // bf16 encoding of 1
  ad_accumulate(&half, AD_BF16, &single_one, AD_F32, 0.5, 1);
  assert_int_equal(half, 0x3fc0);
}

/* So many bytes that the kernel writes past the caches. */
static void what_goes_past_the_caches_is_the_same(void **state) {
  enum { N = (12 << 20) + 5 };
  float *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b), *sum = malloc((N + 1) * sizeof *sum);
  assert_true(a && b && sum);
  for (size_t i = 0; i < N; i++) {
    a[i] = (float)(i % 1000);
    b[i] = (float)(i % 77);
  }
  const void *sources[2] = {a, b};
  void *out[2] = {sum + 1, b};
  ad_kernels_choose(best);
  ad_reduce(out, 2, sources, 2, &(ad_reducing){.dtype = AD_F32, .accumulate = AD_F32, .past = 1}, N);
  for (size_t i = 0; i < N; i++)
    if (sum[i + 1] != (float)(i % 1000) + (float)(i % 77)) fail();
  assert_memory_equal(b, sum + 1, N * sizeof *b);
  free(b);
  b = malloc(2 * N * sizeof *b);
  assert_non_null(b);
  for (size_t i = 0; i < N; i++) b[i] = b[N + i] = a[i];
  float *copy = realloc(sum, (2 * N + 1) * sizeof *copy);
  assert_non_null(copy);
  ad_copy(copy + 1, b, 2 * N * sizeof *b);
  assert_memory_equal(copy + 1, b, 2 * N * sizeof *b);
  free(a);
  free(b);
  free(copy);
}

/* Source and destination end at the end of a page, before a page that must not be touched. */
static void nothing_is_read_or_written_at_length_zero(void **state) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(pages != MAP_FAILED);
  assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
  memset(pages, 0x5a, page);
  char *end = pages + page;
  void *outs[][2] = {{NULL, NULL}, {end, end}};
  for (size_t i = 0; i < sizeof outs / sizeof *outs; i++) {
    for (int variant = 0; variant <= (int)best; variant++) {
      void **out = outs[i];
      const void *sources[2] = {out[0], out[1]};
      ad_kernels_choose((ad_variant)variant);
      ad_cast(out[0], AD_F32, out[1], AD_F16, 0);
      ad_cast(out[0], AD_F32, out[1], AD_F32, 0);
      ad_cast_scaled(out[0], AD_F32, out[1], AD_F16, 2, 0);
      ad_accumulate(out[0], AD_F32, out[1], AD_F16, 2, 0);
      ad_reduce(out, 1, sources, 2, &(ad_reducing){.dtype = AD_F32, .accumulate = AD_F32, .reduction = AD_SUM}, 0);
      ad_copy(out[0], out[1], 0);
    }
  }
  ad_kernels_choose(best);
  for (size_t i = 0; i < page; i++) assert_int_equal((unsigned char)pages[i], 0x5a);
  munmap(pages, 2 * page);
}

/* Sizes on both sides of the limit above which some processors copy past the caches, at any address; not a byte more is
 * written. */
static void copies_to_another_core_are_whole(void **state) {
  enum { LIMIT = 16 << 10, SPACE = 2 * LIMIT, EDGE = 64 };
  static const size_t sizes_tried[] = {0, 1, 63, 64, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 65, SPACE - 3};
  unsigned char *from = malloc(SPACE + EDGE), *to = malloc(SPACE + 3 * EDGE);
  assert_true(from && to);
  for (size_t i = 0; i < SPACE + EDGE; i++) from[i] = (unsigned char)(i * 7 + i / 251);
  for (int way = 0; way < 2; way++)
    for (size_t i = 0; i < sizeof sizes_tried / sizeof *sizes_tried; i++)
      for (size_t at = 0; at < EDGE; at += 13) {
        size_t bytes = sizes_tried[i];
        memset(to, 0x5a, SPACE + 3 * EDGE);
        (way ? ad_copy_past : ad_copy_shared)(to + EDGE + at, from + at % 3, bytes);
        assert_memory_equal(to + EDGE + at, from + at % 3, bytes);
        for (size_t k = 0; k < EDGE + at; k++) assert_int_equal(to[k], 0x5a);
        for (size_t k = EDGE + at + bytes; k < SPACE + 3 * EDGE; k++) assert_int_equal(to[k], 0x5a);
      }
  free(from);
  free(to);
}

static void the_choice_is_never_wider_than_the_machine(void **state) {
  for (int variant = 0; variant < VARIANTS; variant++) {
    ad_kernels_choose((ad_variant)variant);
    assert_int_equal(ad_kernels_variant(), variant < (int)best ? variant : (int)best);
  }
  setenv("ADDEND_KERNELS", "plain", 1);
  assert_int_equal(ad_kernels_best(), AD_PLAIN);
  ad_kernels_choose(AD_AVX512);
  assert_int_equal(ad_kernels_variant(), AD_PLAIN);
  setenv("ADDEND_KERNELS", "avx512fp16", 1);
  assert_int_equal(ad_kernels_best(), best);
  unsetenv("ADDEND_KERNELS");
}

static void a_name_of_no_variant_is_refused(void **state) {
  static const char *const nonsense[] = {"foo", "avx", "PLAIN", "plain ", "avx2,plain"};
  static const char *const names[] = {"plain", "avx2", "avx512", "avx512fp16", ""};
  for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
    setenv("ADDEND_KERNELS", nonsense[i], 1);
    assert_int_equal(ad_kernels_check(), AD_INVALID);
    assert_says("ADDEND_KERNELS", nonsense[i], "avx2", "avx512", "avx512fp16");
    assert_int_equal(ad_kernels_best(), best);
  }
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    setenv("ADDEND_KERNELS", names[i], 1);
    assert_int_equal(ad_kernels_check(), AD_OK);
  }
  unsetenv("ADDEND_KERNELS");
  assert_int_equal(ad_kernels_check(), AD_OK);
}

/* ---- writing sums: dtype, scale, adding ---- */

static void every_variant_writes_sums_identically(void **state) {
  for (int turn = 0; turn < 64; turn++) {
    ad_dtype dtype = float_dtypes[turn % 4], out_dtype = float_dtypes[turn / 4 % 4];
    ad_dtype sum = turn & 16 || dtype == AD_F64 ? AD_F64 : AD_F32;
    size_t count = (size_t)(turn % MOST_SOURCES) + 1, n = 1500;
    ad_reducing how = {.dtype = dtype, .accumulate = sum, .out_dtype = out_dtype, .shift = turn % 7 - 3};
    how.adds = turn & 32 && out_dtype == sum;
    const void *sources[MOST_SOURCES];
    for (size_t j = 0; j < count; j++) {
      fill(&inputs[j], (uint64_t)j, dtype);
      sources[j] = inputs[j].bytes;
    }
    for (int variant = 0; variant <= (int)best; variant++) {
      ad_kernels_choose((ad_variant)variant);
      fill(&results[variant][0], 99, out_dtype);
      void *out = results[variant][0].bytes;
      how.past = (variant + turn / 4) % 2;
      ad_reduce(&out, 1, sources, count, &how, n);
      assert_memory_equal(out, results[AD_PLAIN][0].bytes, n * ad_dtype_size(out_dtype));
    }
  }
}

static void a_sum_is_scaled_added_and_rounded_once(void **state) {
  const uint16_t large[] = {0x7bff, 0x7bff};  // 65504 in f16, scaled so that each represents twice as much
  const void *sources[] = {&large[0], &large[1]};
  float sum = 1;
  void *out = &sum;
  ad_reduce(&out, 1, sources, 2, &(ad_reducing){.dtype = AD_F16, .accumulate = AD_F32, .out_dtype = AD_F32, .shift = 1},
            1);
  assert_true(sum == 4 * 65504.0f);
  ad_reducing adds = {.dtype = AD_F16, .accumulate = AD_F32, .out_dtype = AD_F32, .shift = -1, .adds = 1};
  ad_reduce(&out, 1, sources, 2, &adds, 1);
  assert_true(sum == 5 * 65504.0f);
  uint16_t half;
  out = &half;
  ad_reduce(&out, 1, sources, 2,
            &(ad_reducing){.dtype = AD_F16, .accumulate = AD_F32, .out_dtype = AD_F16, .shift = -1}, 1);
  assert_int_equal(half, 0x7bff);  // the sum without its scale would be infinite
}

int main(void) {
  unsetenv("ADDEND_KERNELS");
  best = ad_kernels_best();
  fill_encodings();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_reference_decodes_known_numbers),
      cmocka_unit_test(all_16_bit_numbers_widen_exactly),
      cmocka_unit_test(narrowing_rounds_once_to_nearest_even),
      cmocka_unit_test(a_nan_stays_one_and_keeps_the_top_of_its_payload),
      cmocka_unit_test(a_16_bit_number_comes_back_from_each_wider_dtype),
      cmocka_unit_test(the_two_16_bit_formats_convert_into_each_other),
      cmocka_unit_test(integers_and_equal_dtypes_are_copied_bit_for_bit),
      cmocka_unit_test(every_variant_casts_scales_and_accumulates_identically),
      cmocka_unit_test(every_variant_reduces_identically),
      cmocka_unit_test(every_variant_rounds_sums_of_two_identically),
      cmocka_unit_test(a_reduction_goes_in_the_order_of_the_tree_in_the_accumulate_dtype),
      cmocka_unit_test(parts_of_the_tree_may_be_summed_before),
      cmocka_unit_test(leaves_are_summed_in_the_order_of_their_tree),
      cmocka_unit_test(whole_numbers_and_bools_are_reduced_as_one_by_one),
      cmocka_unit_test(the_tree_halves_its_indices_and_keeps_pairs_together),
      cmocka_unit_test(integers_sum_exactly_and_wrap_around),
      cmocka_unit_test(the_outs_may_be_the_sources),
      cmocka_unit_test(every_nan_that_a_sum_makes_has_the_same_bits),
      cmocka_unit_test(the_maximum_or_minimum_with_a_nan_is_nan),
      cmocka_unit_test(scaling_forms_the_product_before_the_one_rounding),
      cmocka_unit_test(accumulating_adds_in_the_dtype_of_the_sum),
      cmocka_unit_test(what_goes_past_the_caches_is_the_same),
      cmocka_unit_test(every_variant_writes_sums_identically),
      cmocka_unit_test(a_sum_is_scaled_added_and_rounded_once),
      cmocka_unit_test(nothing_is_read_or_written_at_length_zero),
      cmocka_unit_test(copies_to_another_core_are_whole),
      cmocka_unit_test(the_choice_is_never_wider_than_the_machine),
      cmocka_unit_test(a_name_of_no_variant_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
