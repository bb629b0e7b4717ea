/* Tests positions, groups and views: the arithmetic of ranks, exhaustively on small odd meshes and on pools whose first
 * rank is not 0. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/mesh.h"
#include "mesh/group.h"
#include "says.h"
#include "small_meshes.h"
#include "mesh/mesh.h"

enum { RANKS_MAX = 125, FIRST_RANK = 7 };

/* Calls `check` with each small mesh as a pool of ranks from FIRST_RANK on. */
static void with_every_mesh(void (*check)(const ad_mesh *mesh)) {
  char text[128];
  for (int i = 0; i < SMALL_MESH_COUNT; i++) {
    ad_mesh *mesh = NULL;
    assert_int_equal(ad_mesh_create_pool(small_mesh_text(i, text, sizeof text), FIRST_RANK, &mesh), AD_OK);
    check(mesh);
    ad_mesh_destroy(mesh);
  }
}

/* Calls `check` with each subset of the axes that the mesh names. */
static void with_every_set(const ad_mesh *mesh, void (*check)(const ad_mesh *mesh, ad_axes axes)) {
  ad_axes named = ad_mesh_named(mesh);
  for (ad_axes axes = named;; axes = (axes - 1) & named) {
    check(mesh, axes);
    if (!axes) break;
  }
}

static void check_positions(const ad_mesh *mesh) {
  int64_t position[AD_AXIS_COUNT], size = 1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) size *= ad_mesh_axis_size(mesh, (ad_axis)axis);
  assert_int_equal(size, ad_mesh_size(mesh));
  for (int64_t rank = FIRST_RANK; rank < FIRST_RANK + size; rank++) {
    for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
      position[axis] = ad_mesh_position(mesh, rank, (ad_axis)axis);
      assert_in_range(position[axis], 0, ad_mesh_axis_size(mesh, (ad_axis)axis) - 1);
    }
    assert_int_equal(ad_mesh_rank_at(mesh, position), rank);
    assert_true(ad_mesh_has_rank(mesh, rank));
  }
  assert_false(ad_mesh_has_rank(mesh, FIRST_RANK - 1));
  assert_false(ad_mesh_has_rank(mesh, FIRST_RANK + size));
}

static void positions_and_ranks_are_a_bijection(void **state) { with_every_mesh(check_positions); }

static void the_last_axis_is_the_fastest(void **state) {
  ad_mesh *mesh = NULL;
  assert_int_equal(ad_mesh_create("tp=3 pp=2 dp=5", &mesh), AD_OK);
  assert_int_equal(ad_mesh_position(mesh, 1, AD_DP_SHARD), 1);
  assert_int_equal(ad_mesh_position(mesh, 5, AD_PP), 1);
  assert_int_equal(ad_mesh_position(mesh, 10, AD_TP), 1);
  assert_int_equal(ad_mesh_position(mesh, 10, AD_CP), 0);
  ad_mesh_destroy(mesh);
}

/* Every rank is in exactly one group at one index; members of a group differ only in the group's axes. */
static void check_partition(const ad_mesh *mesh, ad_axes axes) {
  int seen[RANKS_MAX] = {0};
  for (int64_t rank = FIRST_RANK; rank < FIRST_RANK + ad_mesh_size(mesh); rank++) {
    ad_group group = ad_mesh_group(mesh, axes, rank);
    int64_t index = ad_group_index(&group, rank);
    assert_int_equal(ad_group_rank(&group, index), rank);
    assert_int_equal(ad_group_rank(&group, 0), group.base);
    if (index) continue;
    for (int64_t i = 0, before = -1; i < ad_group_size(&group); i++) {
      int64_t member = ad_group_rank(&group, i);
      assert_true(member > before);
      before = member;
      assert_int_equal(ad_group_index(&group, member), i);
      seen[member - FIRST_RANK]++;
      for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
        if (!(axes & AD_AXES(axis)))
          assert_int_equal(ad_mesh_position(mesh, member, (ad_axis)axis), ad_mesh_position(mesh, rank, (ad_axis)axis));
    }
  }
  for (int64_t i = 0; i < ad_mesh_size(mesh); i++) assert_int_equal(seen[i], 1);
}

static void check_partitions(const ad_mesh *mesh) { with_every_set(mesh, check_partition); }
static void groups_part_the_ranks(void **state) { with_every_mesh(check_partitions); }

static void a_rank_of_another_group_is_no_member(void **state) {
  ad_mesh *mesh = NULL;
  assert_int_equal(ad_mesh_create_pool("dp=3 tp=2", 4, &mesh), AD_OK);
  ad_group group = ad_mesh_group(mesh, AD_AXES(AD_DP_SHARD), 6);
  assert_int_equal(ad_group_index(&group, 8), 2);
  assert_int_equal(ad_group_index(&group, 7), -1);
  assert_int_equal(ad_group_index(&group, 3), -1);
  assert_int_equal(ad_group_index(&group, 10), -1);
  assert_int_equal(ad_group_index(&group, -4), -1);
  assert_int_equal(ad_group_rank(&group, 2), 8);
  assert_int_equal(ad_group_rank(&group, 3), -1);
  assert_int_equal(ad_group_rank(&group, -1), -1);
  assert_int_equal(ad_mesh_axis_size(mesh, AD_AXIS_COUNT), 0);
  assert_int_equal(ad_mesh_stride(mesh, (ad_axis)-1), 0);
  assert_int_equal(ad_mesh_position(mesh, 6, AD_AXIS_COUNT), -1);
  ad_mesh_destroy(mesh);
}

static void the_empty_set_gives_the_rank_alone(void **state) {
  ad_mesh *mesh = NULL;
  assert_int_equal(ad_mesh_create("dp=3 tp=2", &mesh), AD_OK);
  ad_group group = ad_mesh_group(mesh, 0, 4);
  assert_int_equal(ad_group_size(&group), 1);
  assert_int_equal(ad_group_rank(&group, 0), 4);
  assert_int_equal(ad_group_index(&group, 4), 0);
  assert_int_equal(ad_group_index(&group, 3), -1);
  ad_mesh_destroy(mesh);
}

static int64_t member_by_shape(const ad_group_shape *shape, int64_t index) {
  int64_t rank = shape->base;
  for (int k = shape->count - 1; k >= 0; index /= shape->size[k], k--)
    rank += index % shape->size[k] * shape->stride[k];
  return rank;
}

static int same_members(const ad_group *a, const ad_group *b) {
  if (ad_group_size(a) != ad_group_size(b)) return 0;
  for (int64_t i = 0; i < ad_group_size(a); i++)
    if (ad_group_rank(a, i) != ad_group_rank(b, i)) return 0;
  return 1;
}

static int same_shape(const ad_group_shape *a, const ad_group_shape *b) {
  size_t bytes = (size_t)a->count * sizeof a->size[0];
  return a->base == b->base && a->count == b->count && memcmp(a->size, b->size, bytes) == 0 &&
         memcmp(a->stride, b->stride, bytes) == 0;
}

static void check_shape(const ad_mesh *mesh, ad_axes axes) {
  for (int64_t rank = FIRST_RANK; rank < FIRST_RANK + ad_mesh_size(mesh); rank++) {
    ad_group group = ad_mesh_group(mesh, axes, rank);
    ad_group_shape shape = ad_group_canonical(&group);
    for (int64_t i = 0; i < ad_group_size(&group); i++)
      assert_int_equal(member_by_shape(&shape, i), ad_group_rank(&group, i));
  }
}

static void check_shapes(const ad_mesh *mesh) { with_every_set(mesh, check_shape); }
static void a_canonical_shape_gives_the_members(void **state) { with_every_mesh(check_shapes); }

/* Compares groups for all pairs of sets of axes of two meshes on the same ranks, at two ranks. */
static void compare_groups(const ad_mesh *a, const ad_mesh *b) {
  ad_axes named_a = ad_mesh_named(a), named_b = ad_mesh_named(b);
  int64_t last = ad_mesh_size(a) - 1;
  for (ad_axes in_a = named_a;; in_a = (in_a - 1) & named_a) {
    for (ad_axes in_b = named_b;; in_b = (in_b - 1) & named_b) {
      for (int64_t rank = 0; rank <= last; rank += last ? last : 1) {
        ad_group left = ad_mesh_group(a, in_a, rank), right = ad_mesh_group(b, in_b, rank);
        ad_group_shape left_shape = ad_group_canonical(&left), right_shape = ad_group_canonical(&right);
        assert_int_equal(same_members(&left, &right), same_shape(&left_shape, &right_shape));
      }
      if (!in_b) break;
    }
    if (!in_a) break;
  }
}

static const char *const views[] = {"dp_replicate=2 dp_shard=3 cp=2 tp=1",
                                    "efsdp=3 ep=4 etp=1",
                                    "ep=2 tp=6",
                                    "cp=12",
                                    "pp=2 cp=3 tp=2 ep=1",
                                    "efsdp=6 etp=2",
                                    "dp_shard=1 dp_replicate=4 tp=3",
                                    "tp=2 ep=2 etp=3"};
enum { VIEW_COUNT = sizeof views / sizeof views[0] };

static void with_every_pair_of_views(void (*check)(const ad_mesh *a, const ad_mesh *b)) {
  for (int i = 0; i < VIEW_COUNT; i++) {
    for (int j = 0; j < VIEW_COUNT; j++) {
      ad_mesh *a = NULL, *b = NULL;
      assert_int_equal(ad_mesh_create(views[i], &a), AD_OK);
      assert_int_equal(ad_mesh_create_view(a, views[j], &b), AD_OK);
      assert_true(ad_mesh_same_ranks(a, b));
      assert_int_equal(ad_mesh_equal(a, b), i == j);
      check(a, b);
      ad_mesh_destroy(a);
      ad_mesh_destroy(b);
    }
  }
}

static void canonical_shapes_are_equal_only_for_equal_groups(void **state) { with_every_pair_of_views(compare_groups); }

static int common(const ad_mesh *a, const ad_mesh *b, ad_axes in_a, ad_axes in_b) {
  ad_group left = ad_mesh_group(a, in_a, 0), right = ad_mesh_group(b, in_b, 0);
  return same_members(&left, &right);
}

/* Finds by search, among all pairs of nonempty sets without axes of size 1, the common sets that contain no smaller
 * pair. */
static int common_sets_by_search(const ad_mesh *a, const ad_mesh *b, ad_axes in_a[], ad_axes in_b[]) {
  int count = 0;
  for (ad_axes x = 1; x <= AD_AXES_ALL; x++)
    for (ad_axes y = 1; y <= AD_AXES_ALL; y++) {
      int usable = !(x & ~ad_mesh_named(a)) && !(y & ~ad_mesh_named(b)), contains = 0;
      for (int axis = 0; axis < AD_AXIS_COUNT && usable; axis++)
        if (((x >> axis & 1) && ad_mesh_axis_size(a, (ad_axis)axis) == 1) ||
            ((y >> axis & 1) && ad_mesh_axis_size(b, (ad_axis)axis) == 1))
          usable = 0;
      if (!usable || !common(a, b, x, y)) continue;
      for (ad_axes part = (x - 1) & x; part; part = (part - 1) & x)
        for (ad_axes other = y; other; other = (other - 1) & y) contains |= common(a, b, part, other);
      if (contains) continue;
      in_a[count] = x;
      in_b[count++] = y;
    }
  return count;
}

static void check_common_sets(const ad_mesh *a, const ad_mesh *b) {
  ad_axes in_a[AD_AXIS_COUNT], in_b[AD_AXIS_COUNT], wanted_a[AD_AXIS_COUNT], wanted_b[AD_AXIS_COUNT];
  int count = ad_mesh_common_sets(a, b, in_a, in_b);
  assert_int_equal(count, common_sets_by_search(a, b, wanted_a, wanted_b));
  for (int i = 0; i < count; i++) {
    int found = 0;
    for (int j = 0; j < count; j++) found += in_a[i] == wanted_a[j] && in_b[i] == wanted_b[j];
    assert_int_equal(found, 1);
  }
}

static void common_sets_are_the_smallest_that_span_the_same_groups(void **state) {
  with_every_pair_of_views(check_common_sets);
}

static void meshes_of_other_ranks_have_no_sets_in_common(void **state) {
  ad_mesh *a = NULL, *b = NULL;
  ad_axes in_a[AD_AXIS_COUNT], in_b[AD_AXIS_COUNT];
  assert_int_equal(ad_mesh_create_pool("tp=4", 0, &a), AD_OK);
  assert_int_equal(ad_mesh_create_pool("tp=4", 4, &b), AD_OK);
  assert_int_equal(ad_mesh_common_sets(a, b, in_a, in_b), 0);
  assert_false(ad_mesh_equal(a, b));
  ad_mesh_destroy(a);
  ad_mesh_destroy(b);
}

static void a_view_of_another_size_is_refused(void **state) {
  ad_mesh *mesh = NULL, *view = NULL;
  assert_int_equal(ad_mesh_create_pool("dp=2 tp=3", 5, &mesh), AD_OK);
  assert_int_equal(ad_mesh_create_view(mesh, "efsdp=2 ep=4", &view), AD_INVALID);
  assert_null(view);
  assert_says("dp_shard=2 tp=3", "8", "6");
  assert_int_equal(ad_mesh_create_view(mesh, "efsdp=3 ep=2", &view), AD_OK);
  assert_int_equal(ad_mesh_first_rank(view), 5);
  ad_mesh_destroy(view);
  ad_mesh_destroy(mesh);
}

static void a_group_prints_its_axes_and_members(void **state) {
  ad_mesh *mesh = NULL;
  char text[128], small[8];
  assert_int_equal(ad_mesh_create("dp_replicate=2 dp_shard=3 tp=2", &mesh), AD_OK);
  ad_group group = ad_mesh_group(mesh, AD_AXES_DP, 1);
  assert_string_equal(ad_group_print(&group, text, sizeof text), "dp_replicate,dp_shard {1,3,5,7,9,11}");
  assert_string_equal(ad_group_print(&group, small, sizeof small), "dp_repl");
  group = ad_mesh_group(mesh, 0, 1);
  assert_string_equal(ad_group_print(&group, text, sizeof text), "{1}");
  ad_mesh_destroy(mesh);
  assert_int_equal(ad_mesh_create("tp=1000", &mesh), AD_OK);
  group = ad_mesh_group(mesh, AD_AXES(AD_TP), 1);
  assert_string_equal(ad_group_print(&group, text, sizeof text), "tp {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,...}");
  ad_mesh_destroy(mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(positions_and_ranks_are_a_bijection),
      cmocka_unit_test(the_last_axis_is_the_fastest),
      cmocka_unit_test(groups_part_the_ranks),
      cmocka_unit_test(a_rank_of_another_group_is_no_member),
      cmocka_unit_test(the_empty_set_gives_the_rank_alone),
      cmocka_unit_test(a_canonical_shape_gives_the_members),
      cmocka_unit_test(canonical_shapes_are_equal_only_for_equal_groups),
      cmocka_unit_test(common_sets_are_the_smallest_that_span_the_same_groups),
      cmocka_unit_test(meshes_of_other_ranks_have_no_sets_in_common),
      cmocka_unit_test(a_view_of_another_size_is_refused),
      cmocka_unit_test(a_group_prints_its_axes_and_members),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
