/* Tests that a dtype is added by its row alone: four dtypes (rows.h) that the libraries do not have are named,
 * converted, reduced, sent, summed by the reducer and written to files. cmake/Tests.cmake compiles what is made of the
 * list of dtypes again, with these rows; all else is that of libaddend. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "addend/core.h"
#include "base/dtypes.h"
#include "base/roundoff.h"
#include "kernels/finite.h"
#include "kernels/kernels.h"
#include "ranks.h"
#include "rows.h"

#define F8 ((ad_dtype)ADDED_F8)
#define E6M9 ((ad_dtype)ADDED_E6M9)
#define E4M2 ((ad_dtype)ADDED_E4M2)
#define U16 ((ad_dtype)ADDED_U16)

/* ---- the reference: a narrow float computed with f64 numbers ---- */

typedef struct format {
  ad_dtype dtype;
  int exponent_bits, fraction_bits;
} format;
static const format formats[] = {{F8, 5, 2}, {E6M9, 6, 9}, {E4M2, 4, 2}};
enum { FORMATS = 3, ENCODINGS_MAX = 65536 };

static int bias_of(format f) { return (1 << (f.exponent_bits - 1)) - 1; }
static int encodings_of(format f) { return 2 << (f.exponent_bits + f.fraction_bits); }
static int infinity_of(format f) { return ((1 << f.exponent_bits) - 1) << f.fraction_bits; }

static double decoded(format f, int bits) {
  int magnitude = bits & (encodings_of(f) / 2 - 1), exponent = magnitude >> f.fraction_bits;
  int fraction = magnitude & ((1 << f.fraction_bits) - 1), unit = 1 - bias_of(f) - f.fraction_bits;
  double value = exponent ? ldexp(fraction + (1 << f.fraction_bits), exponent - 1 + unit) : ldexp(fraction, unit);
  if (magnitude >= infinity_of(f)) value = magnitude > infinity_of(f) ? NAN : INFINITY;
  return bits == magnitude ? value : -value;
}

/* Encodes a number that is not NaN, in units of the last place, so that a full fraction carries into the exponent. */
static int encoded(format f, double value) {
  int sign = signbit(value) ? encodings_of(f) / 2 : 0, least = 1 - bias_of(f);
  if (isinf(value)) return sign | infinity_of(f);
  int exponent = value != 0 ? ilogb(value) : least;
  if (exponent < least) exponent = least;
  double bits = nearbyint(ldexp(fabs(value), f.fraction_bits - exponent)) + ldexp(exponent - least, f.fraction_bits);
  return sign | (bits < infinity_of(f) ? (int)bits : infinity_of(f));
}

static int bits_at(format f, const void *memory, size_t i) {
  return ad_dtype_size(f.dtype) == 1 ? ((const uint8_t *)memory)[i] : ((const uint16_t *)memory)[i];
}

/* Fills `out` with all encodings of the format, and returns their number. */
static size_t fill_encodings(format f, uint16_t *out) {
  for (int i = 0; i < encodings_of(f); i++) {
    if (ad_dtype_size(f.dtype) == 1)
      ((uint8_t *)out)[i] = (uint8_t)i;
    else
      out[i] = (uint16_t)i;
  }
  return (size_t)encodings_of(f);
}

/* ---- what a row says ---- */

static void a_row_names_a_dtype(void **state) {
  ad_dtype parsed = 0;
  int64_t number;
  char text[AD_DTYPES_TEXT];
  assert_int_equal(ad_dtype_parse("e6m9", &parsed), AD_OK);
  assert_int_equal(parsed, E6M9);
  assert_string_equal(ad_dtype_name(F8), "f8");
  assert_string_equal(ad_dtype_name_in(F8, "safetensors"), "F8_E5M2");
  assert_string_equal(ad_dtype_name_in(F8, "torch"), "float8_e5m2");
  assert_string_equal(ad_dtype_name_in(U16, "numpy"), "u2");
  assert_null(ad_dtype_name_in(F8, "numpy"));
  assert_null(ad_dtype_name_in((ad_dtype)(U16 + 1), "torch"));
  assert_int_equal(ad_header_constant("ADDED_U16", &number), AD_OK);
  assert_int_equal(number, U16);
  assert_string_equal(ad_dtypes_print(ad_dtype_is_float, NULL, "or", text), "f64, f32, bf16, f16, f8, e6m9 or e4m2");
}

static void widths_say_precision_and_range(void **state) {
  const ad_dtype order[] = {AD_F64, AD_F32, AD_F16, E6M9, AD_BF16, F8, E4M2, 0};
  for (int i = 0; order[i]; i++) assert_int_equal(ad_dtype_coarser(order[i]), order[i + 1]);
  assert_true(ad_unit_roundoff(F8) == 0x1p-3 && ad_unit_roundoff(E6M9) == 0x1p-10);
  assert_true(ad_smallest_number(F8) == 0x1p-16 && ad_smallest_number(E6M9) == 0x1p-39);
  assert_true(ad_largest_number(F8) == 57344 && ad_largest_number(E6M9) == 0x1.ff8p31);
  assert_true(ad_dtype_needs_scale(F8) && ad_dtype_needs_scale(E6M9) && !ad_dtype_needs_scale(U16));
  assert_true(ad_dtype_holds(AD_F16, F8) && ad_dtype_holds(AD_F32, E6M9));
  assert_true(!ad_dtype_holds(AD_F16, E6M9) && !ad_dtype_holds(E6M9, AD_F16) && !ad_dtype_holds(F8, AD_F32));
  for (int i = 0; i < FORMATS; i++) {
    assert_int_equal(ad_dtype_wide(formats[i].dtype), AD_F32);
    assert_true(ad_dtype_is_float(formats[i].dtype) && ad_dtype_is_of_arrays(formats[i].dtype));
  }
}

/* ---- conversions ---- */

static uint16_t all[ENCODINGS_MAX], narrow[2 * ENCODINGS_MAX];
static float singles[2 * ENCODINGS_MAX];
static double doubles[2 * ENCODINGS_MAX];

static void all_numbers_widen_exactly_and_come_back(void **state) {
  for (int variant = 0; variant <= (int)ad_kernels_best(); variant++) {
    ad_kernels_choose((ad_variant)variant);
    for (int k = 0; k < FORMATS; k++) {
      format f = formats[k];
      size_t n = fill_encodings(f, all);
      assert_int_equal(ad_cast(singles, AD_F32, all, f.dtype, n), AD_OK);
      assert_int_equal(ad_cast(doubles, AD_F64, all, f.dtype, n), AD_OK);
      for (size_t i = 0; i < n; i++) {
        double expected = decoded(f, (int)i);
        assert_true(isnan(expected) ? isnan(singles[i]) && isnan(doubles[i]) : doubles[i] == expected);
        assert_true(isnan(expected) || (double)singles[i] == expected);
        assert_int_equal(signbit(doubles[i]) != 0, i >= n / 2);
      }
      assert_int_equal(ad_cast(narrow, f.dtype, singles, AD_F32, n), AD_OK);
      for (size_t i = 0; i < n; i++)
        if (!isnan(doubles[i])) assert_int_equal(bits_at(f, narrow, i), i);
      for (size_t i = 0; i < n; i++)
        if (isnan(doubles[i])) assert_true(isnan(decoded(f, bits_at(f, narrow, i))));
    }
  }
}

/* Around the middle of each number and the next, from which on values round up; after the largest, to infinity. */
static size_t fill_middles(format f) {
  size_t n = 0;
  for (int i = 0; i < infinity_of(f); i++) {
    double here = decoded(f, i), after = i + 1 < infinity_of(f) ? decoded(f, i + 1) : 2 * here - decoded(f, i - 1);
    double middle = (here + after) / 2 * (i & 1 ? -1 : 1);
    doubles[n++] = middle;
    doubles[n++] = middle * (1 + 0x1p-40); /* a conversion through a rounded f32 would lose this */
    doubles[n++] = middle * (1 - 0x1p-40);
  }
  return n;
}

static void conversions_round_to_nearest_even(void **state) {
  for (int variant = 0; variant <= (int)ad_kernels_best(); variant++) {
    ad_kernels_choose((ad_variant)variant);
    for (int k = 0; k < FORMATS; k++) {
      format f = formats[k];
      size_t n = fill_middles(f);
      assert_true(n <= 2 * ENCODINGS_MAX);
      ad_cast(narrow, f.dtype, doubles, AD_F64, n);
      for (size_t i = 0; i < n; i++) assert_int_equal(bits_at(f, narrow, i), encoded(f, doubles[i]));
      ad_cast(singles, AD_F32, doubles, AD_F64, n);
      ad_cast(narrow, f.dtype, singles, AD_F32, n);
      for (size_t i = 0; i < n; i++) assert_int_equal(bits_at(f, narrow, i), encoded(f, singles[i]));
    }
  }
}

static void the_first_value_that_is_not_finite_is_found(void **state) {
  for (int k = 0; k < FORMATS; k++) {
    format f = formats[k];
    size_t n = fill_encodings(f, all);
    assert_int_equal(ad_first_not_finite(all, f.dtype, n), infinity_of(f));
    assert_int_equal(ad_first_not_finite(all, f.dtype, (size_t)infinity_of(f)), infinity_of(f));
    for (size_t at = 0; at < 9; at++) {
      double numbers[9] = {0};
      numbers[at] = at % 2 ? INFINITY : -INFINITY;
      ad_cast(narrow, f.dtype, numbers, AD_F64, 9);
      assert_int_equal(ad_first_not_finite(narrow, f.dtype, 9), at);
    }
  }
}

/* ---- reductions ---- */

enum { SOURCES = 5, LENGTH = 777 };

static void sums_round_once_in_every_variant(void **state) {
  static uint16_t memory[SOURCES][LENGTH], found[LENGTH];
  const void *sources[SOURCES];
  for (int k = 0; k < FORMATS; k++) {
    format f = formats[k];
    for (int j = 0; j < SOURCES; j++) {
      for (size_t i = 0; i < LENGTH; i++) singles[i] = (float)((int)((i * 37 + (size_t)j * 11) % 101) - 50) / 16;
      ad_cast(memory[j], f.dtype, singles, AD_F32, LENGTH);
      sources[j] = memory[j];
    }
    for (int variant = 0; variant <= (int)ad_kernels_best(); variant++) {
      void *out = found;
      ad_kernels_choose((ad_variant)variant);
      ad_reduce(&out, 1, sources, SOURCES, &(ad_reducing){.dtype = f.dtype, .accumulate = AD_F32}, LENGTH);
      for (size_t i = 0; i < LENGTH; i++) {
        double sum = 0; /* exact in f32 and in f64, in any order */
        for (int j = 0; j < SOURCES; j++) sum += decoded(f, bits_at(f, memory[j], i));
        assert_int_equal(bits_at(f, found, i), encoded(f, sum));
      }
      ad_cast_scaled(found, f.dtype, memory[0], f.dtype, 0.5, LENGTH);
      ad_accumulate(found, f.dtype, memory[1], f.dtype, 2, LENGTH);
      for (size_t i = 0; i < LENGTH; i++) {
        double half = decoded(f, encoded(f, decoded(f, bits_at(f, memory[0], i)) / 2));
        assert_int_equal(bits_at(f, found, i), encoded(f, half + 2 * decoded(f, bits_at(f, memory[1], i))));
      }
    }
  }
}

static int reduce_over_ranks(ad_comm *comm, void *context) {
  double numbers[4] = {0.25, 1, -1.5, 1024};
  int rank = (int)ad_comm_rank(comm), size = (int)ad_comm_size(comm);
  for (int k = 0; k < FORMATS; k++) {
    uint16_t values[4];
    double sums[4];
    ad_cast(values, formats[k].dtype, numbers, AD_F64, 4);
    ad_collective call = {.size = sizeof call, .op = AD_ALL_REDUCE, .in = values, .out = values, .count = 4};
    call.dtype = formats[k].dtype;
    CHECK_OK(ad_comm_run(comm, &call));
    ad_cast(sums, AD_F64, values, formats[k].dtype, 4);
    for (int i = 0; i < 4; i++) CHECK(sums[i] == decoded(formats[k], encoded(formats[k], size * numbers[i])));
  }
  uint16_t whole[2] = {(uint16_t)(40000 + rank), rank ? 5 : 40000};
  ad_collective call = {.size = sizeof call, .op = AD_ALL_REDUCE, .in = whole, .out = whole, .count = 1, .dtype = U16};
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(whole[0] == (uint16_t)(40000 * size + size * (size - 1) / 2));
  call.in = call.out = whole + 1;
  call.reduction = AD_MAX;
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(whole[1] == 40000);
  return 0;
}

static void ranks_reduce(void **state) { run_ranks(3, reduce_over_ranks, NULL); }

/* Two addends of 32768 sum to more than f8's largest number: scaled as f16's are, eight of them arrive. */
static int sum_gradients(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_reducer *reducer;
  CHECK_OK(ad_mesh_create("dp_replicate=2 dp_shard=2", &mesh));
  ad_param_spec spec = {.size = sizeof spec, .name = "w", .shape = {1, {4}}, .layout = ad_layout_all(mesh, AD_R)};
  spec.storage = spec.layout;
  spec.policy = (ad_precision_policy){.param = F8, .grad = F8, .reduce = F8};
  CHECK_OK(ad_reducer_create(comm, &spec, 1, NULL, &reducer));
  double numbers[4] = {32768, 32768, -32768, 0.25};
  uint8_t memory[4];
  ad_layout layout = ad_layout_all(mesh, AD_P);
  ad_array grad = ad_array_describe(comm, F8, &spec.shape, &layout);
  ad_cast(memory, F8, numbers, AD_F64, 4);
  grad.data = memory;
  for (int m = 0; m < 2; m++) {
    CHECK_OK(ad_reducer_begin_microbatch(reducer, m ? AD_SYNC_ALL : AD_SYNC_NONE));
    CHECK_OK(ad_reducer_add(reducer, 0, &grad));
    CHECK_OK(ad_reducer_end_microbatch(reducer));
  }
  CHECK_OK(ad_reducer_finish(reducer));
  for (size_t i = 0; i < 4; i++) CHECK(ad_array_get(ad_reducer_gradient(reducer, 0), i) == 8 * numbers[i]);
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
  return 0;
}

static void the_reducer_scales_sums(void **state) { run_ranks(4, sum_gradients, NULL); }

/* ---- arrays and files ---- */

static int keep_in_arrays(ad_comm *comm, void *context) {
  const ad_dtype dtypes[] = {F8, E6M9, U16};
  ad_layout layout = ad_layout_all(ad_comm_mesh(comm), AD_R);
  for (int k = 0; k < 3; k++) {
    ad_array array;
    CHECK_OK(ad_array_create(comm, dtypes[k], &(ad_shape){1, {3}}, &layout, &array));
    for (size_t i = 0; i < 3; i++) ad_array_set(&array, i, 1.5 * (double)i);
    CHECK(ad_array_bytes(&array) == 3 * ad_dtype_size(dtypes[k]));
    CHECK(ad_array_get(&array, 1) == (k == 2 ? 1 : 1.5) && ad_array_get(&array, 2) == 3);
    if (k < 2) CHECK_OK(ad_array_add(&array, &array));
    CHECK(ad_array_get(&array, 2) == (k == 2 ? 3 : 6));
    ad_array_destroy(comm, &array);
  }
  return 0;
}

static void arrays_keep_them(void **state) { run_ranks(1, keep_in_arrays, NULL); }

static void files_keep_them(void **state) {
  char path[] = "/tmp/addend-dtypes-XXXXXX";
  ad_safetensor tensor = {.name = "w", .dtype = F8, .shape = {1, {5}}};
  const uint8_t values[5] = {0, 1, 0x3c, 0x7b, 0xbc};
  ad_safetensors_writer *writer;
  ad_safetensors *file;
  close(mkstemp(path));
  assert_int_equal(ad_safetensors_create(path, &tensor, 1, NULL, &writer), AD_OK);
  assert_int_equal(ad_safetensors_add(writer, values), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_OK);
  ad_safetensors_writer_destroy(writer);
  assert_int_equal(ad_safetensors_open(path, &file), AD_OK);
  assert_int_equal(ad_safetensors_at(file, 0)->dtype, F8);
  assert_memory_equal(ad_safetensors_at(file, 0)->data, values, sizeof values);
  assert_int_equal(ad_safetensors_check_values(file), AD_OK);
  ad_safetensors_close(file);
  unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_row_names_a_dtype),
      cmocka_unit_test(widths_say_precision_and_range),
      cmocka_unit_test(all_numbers_widen_exactly_and_come_back),
      cmocka_unit_test(conversions_round_to_nearest_even),
      cmocka_unit_test(the_first_value_that_is_not_finite_is_found),
      cmocka_unit_test(sums_round_once_in_every_variant),
      cmocka_unit_test(ranks_reduce),
      cmocka_unit_test(the_reducer_scales_sums),
      cmocka_unit_test(arrays_keep_them),
      cmocka_unit_test(files_keep_them),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
