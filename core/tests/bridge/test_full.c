/* Tests bridges of values that are not sharded by batch, such as weights, between pools that may have other ranks
 * between them: every rank of the destination gets the value; its gradient is summed there and counts once at the
 * source. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "addend/bridge.h"
#include "ranks.h"
#include "says.h"

enum { NUMEL = 5 };

typedef struct pools {
  const char *source, *destination;
  int64_t first, second, ranks; /* first ranks of the two meshes; number of ranks in the world */
  ad_type type;                 /* type of the value at the source */
} pools;

typedef struct sides {
  ad_mesh *a, *b;
  ad_bridge *bridge;
  ad_array source, destination;
} sides;

static ad_array described(ad_comm *comm, const ad_layout *layout) {
  ad_array array = {0};
  if (ad_mesh_has_rank(layout->mesh, ad_comm_rank(comm)))
    CHECK_OK(ad_array_create(comm, AD_F64, &(ad_shape){1, {NUMEL}}, layout, &array));
  return array;
}

static void open_sides(ad_comm *comm, const pools *p, sides *s) {
  CHECK_OK(ad_mesh_create_pool(p->source, p->first, &s->a));
  CHECK_OK(ad_mesh_create_pool(p->destination, p->second, &s->b));
  ad_layout from = ad_layout_all(s->a, p->type), to = ad_layout_all(s->b, AD_R);
  CHECK_OK(ad_bridge_create(comm, &from, &to, NULL, &s->bridge));
}

static void fill(const ad_array *array, double value) {
  for (size_t i = 0; array->data && i < ad_array_numel(array); i++) ((double *)array->data)[i] = value + (double)i;
}

static void holds(const ad_array *array, double value, double step) {
  for (size_t i = 0; array->data && i < ad_array_numel(array); i++)
    CHECK(((double *)array->data)[i] == value + step * (double)i);
}

static int there_and_back(ad_comm *comm, void *context) {
  const pools *p = context;
  sides s;
  int64_t rank = ad_comm_rank(comm);
  open_sides(comm, p, &s);
  ad_layout from = ad_bridge_from(s.bridge), to = ad_bridge_to(s.bridge);
  ad_layout from_back = ad_layout_dual(&from), to_back = ad_layout_dual(&to);
  int is_source = ad_bridge_has_source(s.bridge), is_destination = ad_bridge_has_destination(s.bridge);
  if (is_source || is_destination) {
    ad_array source = described(comm, &from), destination = described(comm, &to);
    fill(&source, 10);
    CHECK_OK(ad_bridge_forward_at(s.bridge, &source, &destination, NULL));
    holds(&destination, 10, 1);
    ad_array source_gradient = described(comm, &from_back), destination_gradient = described(comm, &to_back);
    fill(&destination_gradient, 3);
    CHECK_OK(ad_bridge_backward_at(s.bridge, &destination_gradient, &source_gradient, NULL));
    double addends = (double)ad_mesh_size(s.b);
    int counts = p->type == AD_I || rank == p->first;
    holds(&source_gradient, counts ? 3 * addends : 0, counts ? addends : 0);
    ad_array_destroy(comm, &source);
    ad_array_destroy(comm, &destination);
    ad_array_destroy(comm, &source_gradient);
    ad_array_destroy(comm, &destination_gradient);
  }
  ad_bridge_destroy(s.bridge);
  ad_mesh_destroy(s.a);
  ad_mesh_destroy(s.b);
  return 0;
}

static void all_get_it_and_it_counts_once(void **state) {
  static const char *const meshes[] = {"dp=1", "dp=2", "dp=3", "dp=2 tp=2"};
  static const int64_t sizes[] = {1, 2, 3, 4};
  for (int a = 0; a < 4; a++) {
    for (int b = 0; b < 4; b++) {
      for (int gap = 0; gap < 3; gap++) {
        pools up = {meshes[a], meshes[b], 0, sizes[a] + gap, sizes[a] + gap + sizes[b], gap % 2 ? AD_R : AD_I};
        pools down = {meshes[a], meshes[b], sizes[b] + gap, 0, sizes[a] + gap + sizes[b], gap % 2 ? AD_I : AD_R};
        run_ranks(up.ranks, there_and_back, &up);
        run_ranks(down.ranks, there_and_back, &down);
      }
    }
  }
}

static void on_the_same_ranks_nothing_moves(void **state) {
  pools same = {"dp=2 tp=2", "dp=4", 0, 0, 4, AD_R};
  run_ranks(4, there_and_back, &same);
  same.type = AD_I;
  run_ranks(4, there_and_back, &same);
}

static void what_is_sharded_on_one_side_alone_is_refused(void **state) {
  ad_comm *comm;
  ad_mesh *a, *b;
  ad_bridge *bridge;
  assert_int_equal(ad_comm_open_dry(0, 5, &comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp=2", &a), AD_OK);
  assert_int_equal(ad_mesh_create_pool("dp=3", 2, &b), AD_OK);
  ad_layout full = ad_layout_all(a, AD_R), sharded = ad_layout_all(b, AD_I), partial = ad_layout_all(b, AD_P);
  ad_layout_set(&sharded, AD_AXES(AD_DP_SHARD), AD_S(0));
  assert_int_equal(ad_bridge_create(comm, &full, &sharded, NULL, &bridge), AD_TYPE);
  assert_says("dp_shard", "dp");
  assert_int_equal(ad_bridge_create(comm, &full, &partial, NULL, &bridge), AD_TYPE);
  assert_says("dp_shard");
  ad_mesh_destroy(a);
  ad_mesh_destroy(b);
  ad_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_get_it_and_it_counts_once),
      cmocka_unit_test(on_the_same_ranks_nothing_moves),
      cmocka_unit_test(what_is_sharded_on_one_side_alone_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
