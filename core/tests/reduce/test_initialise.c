/* Tests the initial values that each part of a parameter gets. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/parameter.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

static ad_param_spec matrix(const ad_mesh *mesh, const char *name, int64_t rows, int64_t columns) {
  ad_param_spec declaration = {
      .size = sizeof declaration, .shape = {2, {rows, columns}}, .deviation = 0.5, .layout = ad_layout_all(mesh, AD_R)};
  declaration.name = name;
  return declaration;
}

// The part of `rank` in `layout`, as f64 in malloc'ed memory.
static ad_array part(const ad_param_spec *declaration, const ad_layout *layout, uint64_t seed, int64_t rank) {
  ad_array array = {.dtype = AD_F64, .shape = declaration->shape, .layout = *layout};
  array.local = ad_layout_local_shape(layout, &declaration->shape, rank);
  array.data = calloc(ad_array_numel(&array) + 1, sizeof(double));
  assert_non_null(array.data);
  must(ad_param_initialise(declaration, seed, rank, &array));
  return array;
}

static double at(const ad_array *array, int64_t row, int64_t column) {
  return ((const double *)array->data)[row * array->local.dim[1] + column];
}

static int spans_of(const ad_layout *layout, int dim, int64_t n, int64_t rank, int64_t *index) {
  ad_span spans[16];
  int count = ad_layout_spans(layout, dim, n, rank, spans, 16), used = 0;
  for (int s = 0; s < count; s++) {
    for (int64_t i = 0; i < spans[s].count; i++) index[used++] = spans[s].first + i;
  }
  return used;
}

static void every_rank_agrees_with(const ad_array *full, const ad_param_spec *declaration, const ad_layout *layout) {
  for (int64_t rank = 0; rank < ad_mesh_size(layout->mesh); rank++) {
    int64_t row[64], column[64];
    ad_array own = part(declaration, layout, 3, rank);
    int rows = spans_of(layout, 0, declaration->shape.dim[0], rank, row);
    int columns = spans_of(layout, 1, declaration->shape.dim[1], rank, column);
    assert_int_equal(rows * columns, ad_array_numel(&own));
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < columns; j++) assert_true(at(&own, i, j) == at(full, row[i], column[j]));
    }
    free(own.data);
  }
}

static void a_part_holds_the_numbers_of_the_full_value(void **state) {
  static const char *const layouts[] = {"dp=R cp=R tp=I",    "dp=R cp=R tp=S0",   "dp=S0 cp=R tp=S1",
                                        "dp=R cp=S0z tp=S1", "dp=S1 cp=S1 tp=S1", "dp=S0 cp=S0z tp=S0"};
  ad_mesh *mesh;
  must(ad_mesh_create("dp_replicate=1 dp_shard=3 cp=2 tp=2", &mesh));
  ad_param_spec declaration = matrix(mesh, "w", 7, 10);
  ad_array full = part(&declaration, &declaration.layout, 3, 0);
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    ad_layout layout;
    must(ad_layout_parse(mesh, layouts[i], &layout));
    every_rank_agrees_with(&full, &declaration, &layout);
  }
  free(full.data);
  ad_mesh_destroy(mesh);
}

static void names_seeds_and_places_draw_different_numbers(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp=1", &mesh));
  ad_param_spec a = matrix(mesh, "a", 30, 40), b = matrix(mesh, "b", 30, 40);
  ad_array of_a = part(&a, &a.layout, 1, 0), of_b = part(&b, &b.layout, 1, 0), other = part(&a, &a.layout, 2, 0);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < 1200; i++) {
    double value = at(&of_a, 0, i);
    assert_true(value != at(&of_b, 0, i));
    assert_true(value != at(&other, 0, i));
    if (i) assert_true(value != at(&of_a, 0, i - 1));
    sum += value;
    squares += value * value;
  }
  assert_true(fabs(sum / 1200) < 0.06);
  assert_true(fabs(sqrt(squares / 1200) - 0.5) < 0.04);
  free(of_a.data);
  free(of_b.data);
  free(other.data);
  ad_mesh_destroy(mesh);
}

static void without_deviation_every_element_is_the_mean(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp=1", &mesh));
  ad_param_spec ones = {
      .size = sizeof ones, .name = "norm", .shape = {1, {600}}, .mean = 1, .layout = ad_layout_all(mesh, AD_R)};
  float data[600] = {0};
  ad_array array = {.dtype = AD_F32, .shape = ones.shape, .local = ones.shape, .layout = ones.layout, .data = data};
  must(ad_param_initialise(&ones, 1, 0, &array));
  for (int i = 0; i < 600; i++) assert_true(data[i] == 1);
  ad_mesh_destroy(mesh);
}

static void a_value_of_another_shape_or_kind_is_refused_by_name(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp=1", &mesh));
  ad_param_spec declaration = matrix(mesh, "blocks.0.attn.wq", 2, 3);
  double data[6];
  ad_array array = {.dtype = AD_F64, .shape = {2, {3, 2}}, .local = {2, {3, 2}}, .layout = declaration.layout};
  array.data = data;
  assert_int_equal(ad_param_initialise(&declaration, 1, 0, &array), AD_INVALID);
  assert_says("blocks.0.attn.wq");
  assert_says("[2", "3]");
  array.shape = array.local = declaration.shape;
  array.dtype = AD_I32;
  assert_int_equal(ad_param_initialise(&declaration, 1, 0, &array), AD_INVALID);
  assert_says("i32");
  ad_mesh_destroy(mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_part_holds_the_numbers_of_the_full_value),
      cmocka_unit_test(names_seeds_and_places_draw_different_numbers),
      cmocka_unit_test(without_deviation_every_element_is_the_mean),
      cmocka_unit_test(a_value_of_another_shape_or_kind_is_refused_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
