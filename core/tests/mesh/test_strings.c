/* Tests mesh strings and sets of axes: what is read, printed and refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "base/memory.h"
#include "mesh/object.h"
#include "says.h"
#include "small_meshes.h"
#include "mesh/mesh.h"

static void a_mesh_prints_as_the_string_it_was_built_from(void **state) {
  char text[128];
  for (int i = 0; i < SMALL_MESH_COUNT; i++) {
    ad_mesh *mesh = NULL;
    assert_int_equal(ad_mesh_create(small_mesh_text(i, text, sizeof text), &mesh), AD_OK);
    assert_string_equal(ad_mesh_text(mesh), text);
    assert_int_equal(ad_mesh_check(mesh), AD_OK);
    ad_mesh_destroy(mesh);
  }
}

static void a_mesh_string_is_normalised(void **state) {
  static const char *const pairs[][2] = {{"  dp=4\ttp=02\n", "dp_shard=4 tp=2"},
                                         {"dp_replicate=2 dp=3", "dp_replicate=2 dp_shard=3"},
                                         {"", ""},
                                         {"block=1", "block=1"}};
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    ad_mesh *mesh = NULL;
    assert_int_equal(ad_mesh_create(pairs[i][0], &mesh), AD_OK);
    assert_string_equal(ad_mesh_text(mesh), pairs[i][1]);
    ad_mesh_destroy(mesh);
  }
}

static void a_wrong_mesh_string_is_refused_and_says_why(void **state) {
  static const struct {
    const char *text, *facts[8];
  } cases[] = {
      {"tp=2 xp=3", {"xp", "dp_replicate", "dp_shard"}},
      {"tp=2 cp=2 tp=2", {"tp"}},
      {"dp=2 dp_shard=2", {"dp_shard"}},
      {"tp=0", {"tp", "0", "1"}},
      {"tp=-1", {"tp", "-1"}},
      {"tp=", {"tp"}},
      {"tp=2x", {"tp", "2x"}},
      {"tp=99999999999999999999999", {"tp"}},
      {"tp", {"tp", "AXIS=SIZE"}},
      {"dp=1048576 tp=1048577", {"tp", "1048576", "=1048577", "2^40 ranks"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_mesh *mesh = NULL;
    assert_int_equal(ad_mesh_create(cases[i].text, &mesh), AD_INVALID);
    assert_null(mesh);
    assert_says_all(cases[i].facts);
  }
}

static void the_largest_mesh_is_as_cheap_as_the_smallest(void **state) {
  ad_mesh *mesh = NULL;
  assert_int_equal(ad_mesh_create("dp=1048576 tp=1048576", &mesh), AD_OK);
  assert_true(ad_mesh_size(mesh) == (int64_t)1 << 40);
  ad_group group = ad_mesh_group(mesh, AD_AXES(AD_DP_SHARD), 1048577);
  assert_int_equal(ad_group_size(&group), 1048576);
  assert_true(ad_group_rank(&group, 1048575) == 1048575 * (int64_t)1048576 + 1);
  assert_true(ad_group_index(&group, 5 * (int64_t)1048576 + 1) == 5);
  ad_mesh_destroy(mesh);
}

static void a_pool_outside_the_ranks_is_refused(void **state) {
  ad_mesh *mesh = NULL;
  assert_int_equal(ad_mesh_create_pool("tp=2", -1, &mesh), AD_INVALID);
  assert_says("-1");
  assert_null(mesh);
}

static void a_set_of_axes_prints_as_it_is_read(void **state) {
  char text[128];
  for (ad_axes axes = 0; axes <= AD_AXES_ALL; axes++) {
    ad_axes again = ~axes;
    assert_int_equal(ad_axes_parse(ad_axes_print(axes, text, sizeof text), &again), AD_OK);
    assert_int_equal(again, axes);
  }
  ad_axes axes = 77;
  assert_int_equal(ad_axes_parse("tp dp", &axes), AD_OK);
  assert_int_equal(axes, AD_AXES_DP | AD_AXES(AD_TP));
  assert_int_equal(ad_axes_parse("tp,world", &axes), AD_INVALID);
  assert_says("world", "pp");
  assert_int_equal(axes, AD_AXES_DP | AD_AXES(AD_TP));
}

static void a_damaged_mesh_is_found_and_the_numbers_are_named(void **state) {
  ad_mesh *mesh = NULL;
  assert_int_equal(ad_mesh_create("dp=3 tp=2", &mesh), AD_OK);
  ad_mesh whole = *mesh;
  mesh->size = 7;
  assert_int_equal(ad_mesh_check(mesh), AD_INVALID);
  assert_says("6", "7");
  *mesh = whole, mesh->stride[AD_TP] = 3;
  assert_int_equal(ad_mesh_check(mesh), AD_INVALID);
  assert_says("tp", "dp_shard=3 tp=2", "2", "1", "3");
  *mesh = whole, mesh->order[0] = AD_TP;
  assert_int_equal(ad_mesh_check(mesh), AD_INVALID);
  *mesh = whole, mesh->named = 0;
  assert_int_equal(ad_mesh_check(mesh), AD_INVALID);
  *mesh = whole, memset(mesh->text, 'x', sizeof mesh->text);
  assert_int_equal(ad_mesh_check(mesh), AD_INVALID);
  *mesh = whole;
  assert_int_equal(ad_mesh_check(mesh), AD_OK);
  assert_int_equal(ad_mesh_check(NULL), AD_INVALID);
  ad_mesh_destroy(mesh);
}

static void a_block_has_the_other_axes_of_its_mesh(void **state) {
  ad_mesh *mesh, *block = NULL;
  assert_int_equal(ad_mesh_create("block=3 dp_replicate=2 tp=5", &mesh), AD_OK);
  assert_int_equal(ad_mesh_create_block(mesh, 20, &block), AD_OK);
  assert_string_equal(ad_mesh_text(block), "dp_replicate=2 tp=5");
  assert_int_equal(ad_mesh_first_rank(block), 20);
  assert_int_equal(ad_mesh_size(block), 10);
  ad_mesh_destroy(block);
  ad_mesh_destroy(mesh);
  block = NULL;
  assert_int_equal(ad_mesh_create("dp_shard=2 block=3", &mesh), AD_OK);
  assert_int_equal(ad_mesh_create_block(mesh, 0, &block), AD_INVALID);
  assert_says("block");
  assert_null(block);
  ad_mesh_destroy(mesh);
}

static void a_stage_has_the_other_axes_on_the_ranks_of_its_position(void **state) {
  ad_mesh *mesh, *stage = NULL;
  assert_int_equal(ad_mesh_create_pool("pp=3 dp_replicate=1 tp=5", 7, &mesh), AD_OK);
  for (int64_t position = 0; position < 3; position++) {
    assert_int_equal(ad_mesh_create_stage(mesh, position, &stage), AD_OK);
    assert_string_equal(ad_mesh_text(stage), "dp_replicate=1 tp=5");
    assert_int_equal(ad_mesh_first_rank(stage), 7 + 5 * position);
    assert_int_equal(ad_mesh_size(stage), 5);
    ad_mesh_destroy(stage);
  }
  stage = NULL;
  assert_int_equal(ad_mesh_create_stage(mesh, 3, &stage), AD_INVALID);
  assert_says("3", "pp", "0", "2");
  assert_int_equal(ad_mesh_create_stage(mesh, -1, &stage), AD_INVALID);
  ad_mesh_destroy(mesh);
  assert_int_equal(ad_mesh_create("dp_shard=2 pp=3", &mesh), AD_OK);
  assert_int_equal(ad_mesh_create_stage(mesh, 0, &stage), AD_INVALID);
  assert_says("pp");
  assert_null(stage);
  ad_mesh_destroy(mesh);
  assert_int_equal(ad_mesh_create("dp_shard=2 pp=1", &mesh), AD_OK);
  assert_int_equal(ad_mesh_create_stage(mesh, 0, &stage), AD_OK);
  assert_string_equal(ad_mesh_text(stage), "dp_shard=2");
  ad_mesh_destroy(stage);
  ad_mesh_destroy(mesh);
}

static void a_slice_has_the_ranks_of_one_data_parallel_position(void **state) {
  static const char *const meshes[][2] = {
      {"dp_replicate=2 dp_shard=3 cp=2 tp=2", "dp_replicate=1 dp_shard=1 cp=2 tp=2"},
      {"dp_shard=3 dp_replicate=2 tp=4", "dp_shard=1 dp_replicate=1 tp=4"},
      {"cp=1 dp_shard=6 pp=1 tp=4", "cp=1 dp_shard=1 pp=1 tp=4"},
      {"tp=1 dp_replicate=24", "tp=1 dp_replicate=1"},
      {"tp=24", "tp=24"},
      {"", ""}};
  for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
    ad_mesh *mesh, *slice;
    assert_int_equal(ad_mesh_create_pool(meshes[i][0], 7, &mesh), AD_OK);
    for (int64_t rank = 7; rank < 7 + ad_mesh_size(mesh); rank++) {
      assert_int_equal(ad_mesh_create_slice(mesh, rank, &slice), AD_OK);
      assert_string_equal(ad_mesh_text(slice), meshes[i][1]);
      for (int64_t other = 7; other < 7 + ad_mesh_size(mesh); other++) {
        int has = ad_mesh_has_rank(slice, other);
        assert_int_equal(
            has, !((ad_mesh_position(mesh, rank, AD_DP_REPLICATE) != ad_mesh_position(mesh, other, AD_DP_REPLICATE)) ||
                   (ad_mesh_position(mesh, rank, AD_DP_SHARD) != ad_mesh_position(mesh, other, AD_DP_SHARD))));
        for (int axis = AD_CP; has && axis <= AD_TP; axis++)
          assert_int_equal(ad_mesh_position(slice, other, (ad_axis)axis), ad_mesh_position(mesh, other, (ad_axis)axis));
      }
      ad_mesh_destroy(slice);
    }
    ad_mesh_destroy(mesh);
  }
}

static void a_slice_that_is_not_consecutive_is_refused(void **state) {
  static const char *const meshes[][2] = {
      {"tp=2 dp_shard=2", "tp"}, {"dp_replicate=2 cp=2 dp_shard=2", "cp"}, {"pp=2 cp=2 dp_replicate=2 tp=2", "pp"}};
  ad_mesh *mesh, *slice = NULL;
  for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
    assert_int_equal(ad_mesh_create(meshes[i][0], &mesh), AD_OK);
    assert_int_equal(ad_mesh_create_slice(mesh, 0, &slice), AD_INVALID);
    assert_says(meshes[i][0], meshes[i][1]);
    assert_null(slice);
    ad_mesh_destroy(mesh);
  }
  assert_int_equal(ad_mesh_create("dp_shard=2", &mesh), AD_OK);
  assert_int_equal(ad_mesh_create_slice(mesh, 2, &slice), AD_INVALID);
  assert_says("2", "dp_shard=2");
  ad_mesh_destroy(mesh);
}

static void a_failed_allocation_leaves_nothing_behind(void **state) {
  ad_mesh *mesh = NULL, *view = NULL;
  ad_memory_fail_at(1);
  assert_int_equal(ad_mesh_create("tp=2", &mesh), AD_MEMORY);
  assert_null(mesh);
  ad_memory_fail_at(0);
  assert_int_equal(ad_mesh_create("tp=2", &mesh), AD_OK);
  ad_memory_fail_at(1);
  assert_int_equal(ad_mesh_create_view(mesh, "ep=2", &view), AD_MEMORY);
  assert_null(view);
  ad_memory_fail_at(0);
  ad_mesh_destroy(mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_mesh_prints_as_the_string_it_was_built_from),
      cmocka_unit_test(a_mesh_string_is_normalised),
      cmocka_unit_test(a_wrong_mesh_string_is_refused_and_says_why),
      cmocka_unit_test(the_largest_mesh_is_as_cheap_as_the_smallest),
      cmocka_unit_test(a_pool_outside_the_ranks_is_refused),
      cmocka_unit_test(a_set_of_axes_prints_as_it_is_read),
      cmocka_unit_test(a_damaged_mesh_is_found_and_the_numbers_are_named),
      cmocka_unit_test(a_block_has_the_other_axes_of_its_mesh),
      cmocka_unit_test(a_stage_has_the_other_axes_on_the_ranks_of_its_position),
      cmocka_unit_test(a_slice_has_the_ranks_of_one_data_parallel_position),
      cmocka_unit_test(a_slice_that_is_not_consecutive_is_refused),
      cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
