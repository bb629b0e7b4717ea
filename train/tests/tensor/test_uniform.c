/* Tests that the random numbers of a sample do not depend on which rank holds it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "addend/tensor.h"
#include "array/part.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { SAMPLES = 10, SEQ = 6, WIDTH = 5, OF_SAMPLE = SEQ * WIDTH };

typedef struct place {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_layout layout;
} place;

/* A place in a world: the rank's comm is dry, since nothing is communicated. */
static place open_place(const char *mesh, const char *layout, int64_t rank) {
  place p;
  must(ad_mesh_create(mesh, &p.mesh));
  must(ad_comm_open_dry(rank, ad_mesh_size(p.mesh), &p.comm));
  must(ad_layout_parse(p.mesh, layout, &p.layout));
  return p;
}

static void close_place(place *p) {
  ad_comm_close(p->comm);
  ad_mesh_destroy(p->mesh);
}

/* Random numbers of samples first .. first + count - 1 of step 3, as the rank holds them. */
static ad_array drawn(const place *p, ad_dtype dtype, int64_t first, int64_t count) {
  ad_array array = ad_array_describe(p->comm, dtype, &(ad_shape){3, {count, SEQ, WIDTH}}, &p->layout);
  array.data = malloc(ad_array_bytes(&array) + 1);
  assert_non_null(array.data);
  must(ad_array_uniform(p->comm, 7, "mask", 3, first, &array));
  return array;
}

static const double *full(void) {
  place p = open_place("dp=1", "dp=R", 0);
  double *numbers = drawn(&p, AD_F64, 0, SAMPLES).data;
  close_place(&p);
  return numbers;
}

/* Compares a rank's part of samples first .. first + count - 1 with the same elements of the full array. */
static void hold(const place *p, const double *all, int64_t first, int64_t count) {
  ad_array own = drawn(p, AD_F64, first, count);
  ad_layout uncut = ad_layout_all(p->mesh, AD_R);
  ad_part everything, mine;
  double *expected = malloc(ad_array_bytes(&own) + 1);
  assert_non_null(expected);
  ad_part_of(&uncut, &own.shape, 0, &everything);
  ad_part_of(&p->layout, &own.shape, ad_comm_rank(p->comm), &mine);
  ad_part_copy(expected, &mine, all + first * OF_SAMPLE, &everything, &mine, sizeof *expected);
  assert_memory_equal(own.data, expected, ad_array_bytes(&own));
  free(expected);
  free(own.data);
}

static void every_rank_and_microbatch_has_the_numbers_of_the_full_batch(void **state) {
  static const char *const places[][2] = {{"dp=1", "dp=R"},
                                          {"dp_shard=3 tp=2", "dp=S0 tp=I"},
                                          {"dp_replicate=2 dp_shard=2", "dp=S0"},
                                          {"dp_shard=2 cp=2", "dp=S0 cp=S1z"},
                                          {"dp_shard=16", "dp=S0"}, /* more ranks than samples */
                                          {"cp=2 tp=3", "cp=S1 tp=S2"}};
  const double *all = full();
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    place p = open_place(places[i][0], places[i][1], 0);
    for (int64_t rank = 0, ranks = ad_mesh_size(p.mesh); rank < ranks; rank++) {
      close_place(&p);
      p = open_place(places[i][0], places[i][1], rank);
      hold(&p, all, 0, SAMPLES);
      for (int64_t m = 0; m < 3; m++) { /* microbatches of 3, 3 and 4 */
        ad_span span = ad_cut(SAMPLES, m, 3);
        hold(&p, all, span.first, span.count);
      }
    }
    close_place(&p);
  }
  free((void *)(uintptr_t)all);
}

static void both_dtypes_have_the_same_numbers_below_one(void **state) {
  place p = open_place("dp=1", "dp=R", 0);
  ad_array narrow = drawn(&p, AD_F32, 0, 20000), wide = drawn(&p, AD_F64, 0, 20000);
  double sum = 0, squares = 0;
  size_t n = ad_array_numel(&wide);
  for (size_t i = 0; i < n; i++) {
    double value = ((double *)wide.data)[i];
    assert_true(value == (double)((float *)narrow.data)[i]);
    assert_true(value >= 0 && value < 1);
    sum += value;
    squares += value * value;
  }
  /* The mean of 600000 numbers errs by 1/sqrt(12 n), 4e-4, and the mean of squares by 4e-4; the bounds are five times
   * that. */
  assert_true(fabs(sum / (double)n - 0.5) < 2e-3);
  assert_true(fabs(squares / (double)n - 1.0 / 3) < 2e-3);
  free(narrow.data);
  free(wide.data);
  close_place(&p);
}

static void seed_name_step_sample_and_place_each_change_the_number(void **state) {
  place p = open_place("dp=1", "dp=R", 0);
  double data[5][2 * OF_SAMPLE];
  ad_array array = ad_array_describe(p.comm, AD_F64, &(ad_shape){3, {2, SEQ, WIDTH}}, &p.layout);
  for (int i = 0; i < 5; i++) {
    array.data = data[i];
    must(ad_array_uniform(p.comm, i == 1 ? 8 : 7, i == 2 ? "other" : "mask", i == 3 ? 4 : 3, i == 4 ? 2 : 0, &array));
  }
  for (int i = 0; i < 5; i++)
    for (int k = 0; k < 2 * OF_SAMPLE; k++)
      for (int j = 0; j < 5; j++)
        for (int l = 0; l < 2 * OF_SAMPLE; l++) assert_true((i == j && k == l) || data[i][k] != data[j][l]);
  close_place(&p);
}

static void is_refused(const place *p, ad_array array, ad_status status) {
  assert_int_equal(ad_array_uniform(p->comm, 7, "mask", 3, 0, &array), status);
}
#define refused(place, array, status, ...) \
  (is_refused((place), (array), (status)), \
   assert_says_in(#array, ad_last_error(), SAYS_FACTS("test_uniform.c", __VA_ARGS__)))

static void what_has_no_full_value_or_no_samples_is_refused(void **state) {
  place p = open_place("dp_shard=2 tp=2", "dp=S0 tp=P", 0), v = open_place("dp_shard=2 tp=2", "dp=V tp=I", 0),
        i = open_place("dp_shard=2 tp=2", "dp=S0 tp=I", 0);
  ad_shape shape = {2, {4, 3}}, scalar = {0, {0}};
  ad_array scaled = ad_array_describe(i.comm, AD_F32, &shape, &i.layout);
  scaled.scale = 2;
  refused(&p, ad_array_describe(p.comm, AD_F32, &shape, &p.layout), AD_TYPE, "tp", "P");
  refused(&v, ad_array_describe(v.comm, AD_F32, &shape, &v.layout), AD_TYPE, "dp_shard", "V");
  refused(&i, ad_array_describe(i.comm, AD_BF16, &shape, &i.layout), AD_INVALID, "bf16");
  refused(&i, scaled, AD_INVALID, "scale 2");
  ad_layout full_layout = ad_layout_all(i.mesh, AD_R);
  refused(&i, ad_array_describe(i.comm, AD_F32, &scalar, &full_layout), AD_INVALID, NULL);
  ad_array empty = {.dtype = AD_F32, .shape = shape, .local = {2, {2, 3}}, .layout = i.layout};
  must(ad_array_uniform(i.comm, 7, "mask", 3, 0, &empty)); /* on backend dry there is nothing to fill */
  close_place(&p);
  close_place(&v);
  close_place(&i);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_rank_and_microbatch_has_the_numbers_of_the_full_batch),
      cmocka_unit_test(both_dtypes_have_the_same_numbers_below_one),
      cmocka_unit_test(seed_name_step_sample_and_place_each_change_the_number),
      cmocka_unit_test(what_has_no_full_value_or_no_samples_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
