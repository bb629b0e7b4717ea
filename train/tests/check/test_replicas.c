/* Tests, on real ranks, which copies of a replicated value differ, along which axes, and whether one rank alone is
 * different; and whether all ranks report the same losses and norms. */
#include "ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "check/replicas.h"

enum { ROWS = 5 };

/* A layout in which the ranks of the bit mask `changed` hold a value that differs from their replicas'. */
typedef struct scene {
  const char *mesh, *layout;
  uint32_t changed;
  ad_replicas expected;
} scene;

static ad_array create(ad_comm *comm, const ad_mesh *mesh, const char *text, int64_t rows, int changed) {
  ad_layout layout;
  ad_shape shape = {.ndim = 2, .dim = {rows, 3}};
  ad_array array;
  CHECK_OK(ad_layout_parse(mesh, text, &layout));
  CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &array));
  for (size_t i = 0; i < ad_array_numel(&array); i++) ((double *)array.data)[i] = (double)i;
  if (changed && ad_array_numel(&array)) ((double *)array.data)[ad_array_numel(&array) - 1] += 1e-9;
  return array;
}

static int compare(ad_comm *comm, void *context) {
  const scene *s = context;
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create(s->mesh, &mesh));
  ad_group everyone = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  ad_array sound = create(comm, mesh, s->layout, ROWS, 0);
  ad_array changed = create(comm, mesh, s->layout, ROWS, s->changed >> ad_comm_rank(comm) & 1);
  ad_array empty = create(comm, mesh, s->layout, 0, 0);
  const ad_array *arrays[] = {&sound, &changed, &empty};
  ad_replicas found[3];
  CHECK_OK(ad_replicas_compare(comm, &everyone, arrays, 3, found));
  CHECK(found[0].equal && found[2].equal && !found[0].differs);
  CHECK(found[1].equal == s->expected.equal);
  CHECK(found[1].differs == s->expected.differs);
  CHECK(found[1].odd_rank == s->expected.odd_rank);
  ad_array_destroy(comm, &sound);
  ad_array_destroy(comm, &changed);
  ad_array_destroy(comm, &empty);
  ad_mesh_destroy(mesh);
  return 0;
}

static const ad_axes REPLICATE = AD_AXES(AD_DP_REPLICATE), SHARD = AD_AXES(AD_DP_SHARD);

static void equal_replicas_are_equal(void **state) {
  scene whole = {"dp_replicate=3 dp_shard=2", "dp=R", 0, {1, 0, -1}};
  scene sharded = {"dp_replicate=3 dp_shard=2", "dp_replicate=R dp_shard=S0", 0, {1, 0, -1}};
  scene alone = {"dp_shard=1", "dp=R", 1, {1, 0, -1}};
  run_ranks(6, compare, &whole);
  run_ranks(6, compare, &sharded);
  run_ranks(1, compare, &alone);
}

static void one_odd_rank_is_named_wherever_it_is(void **state) {
  for (int rank = 0; rank < 6; rank++) {
    scene s = {"dp_replicate=3 dp_shard=2", "dp=R", 1u << rank, {0, REPLICATE | SHARD, rank}};
    run_ranks(6, compare, &s);
  }
}

static void of_two_replicas_none_is_the_odd_one(void **state) {
  scene first = {"dp_shard=2", "dp=R", 1, {0, SHARD, -1}}, second = {"dp_shard=2", "dp=R", 2, {0, SHARD, -1}};
  run_ranks(2, compare, &first);
  run_ranks(2, compare, &second);
  scene halves = {"dp_replicate=4", "dp=R", 0xc, {0, REPLICATE, -1}};
  run_ranks(4, compare, &halves);
}

static void replicas_that_differ_along_one_axis_name_it(void **state) {
  scene replicas = {"dp_replicate=3 dp_shard=2", "dp=R", 0x30, {0, REPLICATE, -1}}; /* ranks 4 and 5 differ */
  scene shards = {"dp_replicate=3 dp_shard=2", "dp=R", 0x2a, {0, SHARD, -1}};       /* ranks 1, 3 and 5 differ */
  run_ranks(6, compare, &replicas);
  run_ranks(6, compare, &shards);
}

static void parts_are_compared_with_their_own_replicas_only(void **state) {
  scene one = {"dp_replicate=3 dp_shard=2", "dp_replicate=R dp_shard=S0", 1 << 3, {0, REPLICATE, 3}};
  scene both = {"dp_replicate=3 dp_shard=2", "dp_replicate=R dp_shard=S0", 1 << 2 | 1 << 5, {0, REPLICATE, -1}};
  scene column = {"dp_replicate=3 dp_shard=2", "dp_replicate=R dp_shard=S0", 0x2a, {1, 0, -1}};
  run_ranks(6, compare, &one);
  run_ranks(6, compare, &both);
  run_ranks(6, compare, &column); /* all copies of the second part are equal */
}

/* ---- reports ---- */

enum { REPORTS_RANKS = 5 };

/* What is changed in the reports of the ranks of the bit mask `changed`. */
typedef struct report_scene {
  size_t offset; /* of a double in ad_step_report */
  uint32_t changed;
  double to;
  int first; /* the rank that is named; 0: none */
} report_scene;

static int compare_reports(ad_comm *comm, void *context) {
  const report_scene *s = context;
  ad_step_report report = {.loss = 2, .norm = 1, .losses = {2, 3}, .norms = {1}, .seconds = ad_comm_rank(comm)};
  char text[128], named[32];
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("dp_shard=5", &mesh));
  ad_group everyone = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  if (s->changed >> ad_comm_rank(comm) & 1) memcpy((char *)&report + s->offset, &s->to, sizeof s->to);
  CHECK_OK(ad_reports_compare(comm, &everyone, &report, text, sizeof text));
  snprintf(named, sizeof named, "rank %d", s->first);
  if (s->first)
    CHECK_TEXT_SAYS(text, "rank 0", named);
  else
    CHECK(!*text);
  ad_mesh_destroy(mesh);
  return 0;
}

static void one_bit_of_a_loss_or_a_norm_on_any_rank_is_a_difference(void **state) {
  static const size_t offsets[] = {
      offsetof(ad_step_report, loss), offsetof(ad_step_report, norm), offsetof(ad_step_report, losses[1]),
      offsetof(ad_step_report, losses[AD_LOSSES_MAX - 1]), offsetof(ad_step_report, norms[AD_NORM_GROUPS_MAX - 1])};
  for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
    double bits = nextafter(1, 2);
    report_scene last = {offsets[i], 1u << (REPORTS_RANKS - 1), bits, REPORTS_RANKS - 1};
    report_scene first = {offsets[i], 1, bits, 1}, two = {offsets[i], 1u << 2 | 1u << 4, bits, 2};
    run_ranks(REPORTS_RANKS, compare_reports, &last);
    run_ranks(REPORTS_RANKS, compare_reports, &first);
    run_ranks(REPORTS_RANKS, compare_reports, &two);
  }
}

static void a_number_that_is_not_finite_is_no_zero(void **state) {
  report_scene nan = {offsetof(ad_step_report, losses[2]), 1u << 3, NAN, 3}; /* the others' is 0 */
  report_scene infinite = {offsetof(ad_step_report, losses[2]), 1u << 1, INFINITY, 1};
  run_ranks(REPORTS_RANKS, compare_reports, &nan);
  run_ranks(REPORTS_RANKS, compare_reports, &infinite);
}

static void the_same_reports_and_the_ranks_own_times_are_no_difference(void **state) {
  report_scene same = {offsetof(ad_step_report, norm), 0, 0, 0};
  report_scene overflowed = {offsetof(ad_step_report, norm), (1u << REPORTS_RANKS) - 1, NAN, 0};
  run_ranks(REPORTS_RANKS, compare_reports, &same);
  run_ranks(REPORTS_RANKS, compare_reports, &overflowed);
  overflowed.to = -INFINITY;
  run_ranks(REPORTS_RANKS, compare_reports, &overflowed);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_replicas_are_equal),
      cmocka_unit_test(one_odd_rank_is_named_wherever_it_is),
      cmocka_unit_test(of_two_replicas_none_is_the_odd_one),
      cmocka_unit_test(replicas_that_differ_along_one_axis_name_it),
      cmocka_unit_test(parts_are_compared_with_their_own_replicas_only),
      cmocka_unit_test(one_bit_of_a_loss_or_a_norm_on_any_rank_is_a_difference),
      cmocka_unit_test(a_number_that_is_not_finite_is_no_zero),
      cmocka_unit_test(the_same_reports_and_the_ranks_own_times_are_no_difference),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
