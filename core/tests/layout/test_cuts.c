/* Tests the parts of a sharded dimension: every element belongs to exactly one part, in uneven, empty, zigzag and
 * nested shardings. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include "addend/layout.h"
#include "layout/nest.h"

enum { ELEMENTS_MAX = 64, SPANS_MAX = 32 };
static const int sizes[] = {1, 2, 3, 5};

static void a_cut_parts_its_elements_in_order(void **state) {
  for (int64_t g = 1; g <= 8; g++)
    for (int64_t n = 0; n <= 20; n++) {
      int64_t next = 0;
      for (int64_t i = 0; i < g; i++) {
        ad_span part = ad_cut(n, i, g);
        assert_int_equal(part.first, i * n / g);
        assert_int_equal(part.first, next);
        assert_in_range(part.count, n / g, n / g + 1);
        next = part.first + part.count;
      }
      assert_int_equal(next, n);
    }
}

static void a_shard_of_a_huge_dimension_does_not_overflow(void **state) {
  int64_t n = (int64_t)1 << 60, g = 1000003;
  ad_span last = ad_cut(n, g - 1, g);
  assert_true(last.first + last.count == n);
}

static void a_zigzag_member_holds_a_front_and_a_back_chunk(void **state) {
  ad_mesh *mesh = NULL;
  ad_layout layout;
  ad_span spans[SPANS_MAX];
  assert_int_equal(ad_mesh_create("cp=3", &mesh), AD_OK);
  assert_int_equal(ad_layout_parse(mesh, "cp=S1z", &layout), AD_OK);
  for (int64_t rank = 0; rank < 2; rank++) {
    assert_int_equal(ad_layout_spans(&layout, 1, 12, rank, spans, SPANS_MAX), 2);
    assert_int_equal(spans[0].first, 2 * rank);
    assert_int_equal(spans[1].first, 10 - 2 * rank);
    assert_int_equal(spans[0].count + spans[1].count, 4);
  }
  /* the two zigzag chunks of this rank are neighbours */
  assert_int_equal(ad_layout_spans(&layout, 1, 12, 2, spans, SPANS_MAX), 1);
  assert_int_equal(spans[0].first, 4);
  assert_int_equal(spans[0].count, 4);
  assert_int_equal(ad_layout_spans(&layout, 0, 12, 1, spans, SPANS_MAX), 1); /* the other dimension is not sharded */
  assert_int_equal(spans[0].count, 12);
  ad_mesh_destroy(mesh);
}

/* Lists the elements of one dimension that a rank stores, by definition: each inner axis picks from what the outer axis
 * left. */
static int stored_by_definition(const ad_mesh *mesh, const ad_axis axis[2], const ad_type type[2], int n, int64_t rank,
                                int elements[]) {
  int count = n;
  for (int i = 0; i < n; i++) elements[i] = i;
  for (int k = 0; k < 2; k++) {
    int64_t g = ad_mesh_axis_size(mesh, axis[k]), i = ad_mesh_position(mesh, rank, axis[k]);
    int kept[ELEMENTS_MAX] = {0}, kept_count = 0, zigzag = type[k] >= AD_S_ZIGZAG(0);
    int64_t chunks = zigzag ? 2 * g : g, own[2] = {i, 2 * g - 1 - i};
    for (int c = 0; c <= zigzag; c++)
      for (int64_t e = own[c] * count / chunks; e < (own[c] + 1) * count / chunks; e++)
        kept[kept_count++] = elements[e];
    for (int e = 0; e < kept_count; e++) elements[e] = kept[e];
    count = kept_count;
  }
  return count;
}

static void check_nest(const ad_mesh *mesh, const ad_axis axis[2], const ad_type type[2], int n) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  int holders[ELEMENTS_MAX] = {0};
  for (int k = 0; k < 2; k++) ad_layout_set(&layout, AD_AXES(axis[k]), type[k]);
  for (int64_t rank = 0; rank < ad_mesh_size(mesh); rank++) {
    int elements[ELEMENTS_MAX], count = stored_by_definition(mesh, axis, type, n, rank, elements), at = 0;
    ad_span spans[SPANS_MAX];
    int span_count = ad_layout_spans(&layout, 0, n, rank, spans, SPANS_MAX);
    for (int s = 0; s < span_count; s++) {
      assert_true(spans[s].count > 0);
      for (int64_t e = 0; e < spans[s].count; e++) assert_int_equal(elements[at++], spans[s].first + e);
    }
    assert_int_equal(at, count);
    ad_shape local = ad_layout_local_shape(&layout, &(ad_shape){2, {n, 3}}, rank);
    assert_int_equal(local.dim[0], count);
    assert_int_equal(local.dim[1], 3);
    for (int e = 0; e < count; e++) holders[elements[e]]++;
  }
  for (int e = 0; e < n; e++) assert_int_equal(holders[e], 1);
}

static void nested_shardings_give_every_element_to_one_rank(void **state) {
  static const ad_type types[] = {AD_S(0), AD_S_ZIGZAG(0)};
  static const int lengths[] = {0, 1, 2, 3, 7, 12, 30, 61};
  static const ad_axis orders[2][2] = {{AD_DP_SHARD, AD_TP}, {AD_TP, AD_DP_SHARD}};
  char text[64];
  for (int i = 0; i < 16; i++) {
    ad_mesh *mesh = NULL;
    snprintf(text, sizeof text, "dp_shard=%d tp=%d", sizes[i / 4], sizes[i % 4]);
    assert_int_equal(ad_mesh_create(text, &mesh), AD_OK);
    for (int order = 0; order < 2; order++)
      for (int kinds = 0; kinds < 4; kinds++)
        for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
          check_nest(mesh, orders[order], (ad_type[]){types[kinds / 2], types[kinds % 2]}, lengths[n]);
    ad_mesh_destroy(mesh);
  }
}

static void more_spans_than_asked_for_are_counted_not_written(void **state) {
  ad_mesh *mesh = NULL;
  ad_layout layout;
  ad_span spans[2] = {{-1, -1}, {-1, -1}};
  assert_int_equal(ad_mesh_create("cp=4", &mesh), AD_OK);
  assert_int_equal(ad_layout_parse(mesh, "cp=S0z", &layout), AD_OK);
  assert_int_equal(ad_layout_spans(&layout, 0, 16, 0, spans, 1), 2);
  assert_int_equal(spans[0].count, 2);
  assert_int_equal(spans[1].count, -1);
  ad_mesh_destroy(mesh);
}

/* All axes shard one dimension zigzag, which is the deepest possible nest. */
static void the_deepest_nest_fits(void **state) {
  ad_mesh *mesh = NULL;
  enum { N = 4099 };
  static int holders[N];
  assert_int_equal(ad_mesh_create("pp=2 dp_replicate=2 dp_shard=2 cp=3 tp=2 block=2 efsdp=2 ep=2 etp=2", &mesh), AD_OK);
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES_ALL, AD_S_ZIGZAG(0));
  for (int64_t rank = 0; rank < ad_mesh_size(mesh); rank++) {
    ad_span spans[SPANS_MAX];
    int count = ad_layout_spans(&layout, 0, N, rank, spans, SPANS_MAX);
    assert_in_range(count, 1, 2 * AD_AXIS_COUNT);
    for (int s = 0; s < count; s++)
      for (int64_t e = 0; e < spans[s].count; e++) holders[spans[s].first + e]++;
  }
  for (int e = 0; e < N; e++) assert_int_equal(holders[e], 1);
  ad_mesh_destroy(mesh);
}

static int is_sharded_once(const ad_layout *layout, int64_t n, ad_axes axes, int64_t rank, int64_t rows) {
  ad_group group = ad_mesh_group(layout->mesh, axes, rank);
  ad_shape shape = {1, {n}};
  for (int64_t i = 0; i < ad_group_size(&group); i++) {
    ad_shape part = ad_layout_local_shape(layout, &shape, ad_group_rank(&group, i));
    if (part.dim[0] != ad_cut(rows, i, ad_group_size(&group)).count) return 0;
  }
  return 1;
}

static void several_shardings_are_known_to_be_as_one_where_they_are(void **state) {
  static const char *const meshes[] = {"dp_replicate=2 dp_shard=3 tp=2", "dp_replicate=3 dp_shard=2 tp=2",
                                       "dp_shard=5 dp_replicate=7 tp=1"};
  static const char *const layouts[] = {"dp_replicate=S0 dp_shard=S0 tp=R",  "dp_shard=S0 dp_replicate=S0 tp=R",
                                        "tp=S0 dp_replicate=S0 dp_shard=S0", "dp_replicate=S0 tp=S0 dp_shard=S0",
                                        "dp_replicate=R dp_shard=S0z tp=R",  "dp_replicate=S0 dp_shard=S1 tp=R"};
  static const ad_axes axes[] = {AD_AXES_DP, AD_AXES(AD_DP_SHARD), AD_AXES(AD_DP_REPLICATE), 0};
  int once = 0, not_once = 0;
  for (int m = 0; m < 3; m++)
    for (int l = 0; l < 6; l++)
      for (int64_t n = 0; n < 45; n++)
        for (int a = 0; a < 4; a++) {
          ad_mesh *mesh;
          ad_layout layout;
          assert_int_equal(ad_mesh_create(meshes[m], &mesh), AD_OK);
          assert_int_equal(ad_layout_parse(mesh, layouts[l], &layout), AD_OK);
          for (int64_t rows = n / 4; rows <= n; rows++) {
            int expected = is_sharded_once(&layout, n, axes[a], ad_mesh_size(mesh) - 1, rows);
            int found = ad_layout_is_sharded_once(&layout, n, axes[a], ad_mesh_size(mesh) - 1, rows);
            assert_int_equal(found, expected);
            once += found;
            not_once += !found;
          }
          ad_mesh_destroy(mesh);
        }
  assert_true(once > 500 && not_once > 500);
}

/* ---- rows of a batch ---- */

/* Ranks hold neighbouring rows in the order of the mesh; over all microbatches every row comes once. */
static void check_rows(const char *mesh_text, int64_t global_batch, int64_t microbatches) {
  ad_mesh *mesh;
  ad_layout layout;
  assert_int_equal(ad_mesh_create(mesh_text, &mesh), AD_OK);
  layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_DP_REPLICATE), AD_S(0));
  ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_S(0));
  int64_t next = 0;
  for (int64_t m = 0; m < microbatches; m++) {
    for (int64_t rank = 0; rank < ad_mesh_size(mesh); rank++) {
      ad_span rows = ad_batch_rows(&layout, rank, global_batch, microbatches, m);
      if (rows.count) assert_int_equal(rows.first, next);
      next += rows.count;
    }
    assert_int_equal(next, (m + 1) * global_batch / microbatches);
  }
  ad_mesh_destroy(mesh);
}

static void every_row_is_read_once_however_it_is_cut(void **state) {
  const char *const meshes[] = {"dp_shard=1", "dp_replicate=3 dp_shard=1", "dp_replicate=2 dp_shard=3", "dp_shard=5"};
  for (int i = 0; i < 4; i++)
    for (int64_t global_batch = 1; global_batch < 20; global_batch++)
      for (int64_t microbatches = 1; microbatches < 8; microbatches++)
        check_rows(meshes[i], global_batch, microbatches);
}

static void a_batch_that_is_not_cut_is_whole_on_every_rank(void **state) {
  ad_mesh *mesh;
  assert_int_equal(ad_mesh_create("dp_shard=2", &mesh), AD_OK);
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_span rows = ad_batch_rows(&layout, 1, 8, 2, 1);
  assert_int_equal(rows.first, 4);
  assert_int_equal(rows.count, 4);
  assert_int_equal(ad_batch_rows(&layout, 2, 8, 2, 1).count, 0);  // no rank of the mesh
  assert_int_equal(ad_batch_rows(&layout, 1, 8, 2, 2).count, 0);  // no microbatch
  assert_int_equal(ad_batch_rows(&layout, 1, 8, 2, -1).count, 0);
  assert_int_equal(ad_batch_rows(&layout, 1, 8, 0, 0).count, 0);
  assert_int_equal(ad_batch_rows(&layout, 1, -8, 2, 0).count, 0);
  ad_mesh_destroy(mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_cut_parts_its_elements_in_order),
      cmocka_unit_test(a_shard_of_a_huge_dimension_does_not_overflow),
      cmocka_unit_test(a_zigzag_member_holds_a_front_and_a_back_chunk),
      cmocka_unit_test(nested_shardings_give_every_element_to_one_rank),
      cmocka_unit_test(more_spans_than_asked_for_are_counted_not_written),
      cmocka_unit_test(the_deepest_nest_fits),
      cmocka_unit_test(several_shardings_are_known_to_be_as_one_where_they_are),
      cmocka_unit_test(every_row_is_read_once_however_it_is_cut),
      cmocka_unit_test(a_batch_that_is_not_cut_is_whole_on_every_rank),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
