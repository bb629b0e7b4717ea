/* Tests which gradients share a bucket (those whose precision policies agree in every field), and which shardings a
 * reducer can make. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/reduce.h"
#include "reduce/plan.h"
#include "ranks.h"
#include "says.h"

enum { NUMEL = 6 };

static ad_param_spec spec_of(const char *name, const ad_mesh *mesh, const ad_precision_policy *policy) {
  ad_layout copied = ad_layout_all(mesh, AD_R);
  return (ad_param_spec){.size = sizeof(ad_param_spec),
                         .name = name,
                         .shape = {1, {NUMEL}},
                         .layout = copied,
                         .storage = copied,
                         .policy = *policy};
}

/* Reduces two parameters in `reductions` reductions; each result is in the accumulate dtype of its own precision
 * policy. */
static void reduce_two(ad_comm *comm, const ad_mesh *mesh, const ad_precision_policy policies[2], size_t reductions) {
  ad_reducer *reducer;
  ad_param_spec specs[] = {spec_of("a", mesh, &policies[0]), spec_of("b", mesh, &policies[1])};
  CHECK_OK(ad_reducer_create(comm, specs, 2, NULL, &reducer));
  CHECK(ad_reducer_plan_count(reducer) == reductions);
  ad_layout layout = ad_layout_all(mesh, AD_P);
  float ones[NUMEL] = {1, 1, 1, 1, 1, 1};
  ad_array grad = ad_array_describe(comm, AD_F32, &specs[0].shape, &layout);
  grad.data = ones;
  const ad_array *grads[] = {&grad, &grad};
  CHECK_OK(ad_reducer_step(reducer, grads));
  for (size_t p = 0; p < 2; p++) {
    const ad_array *result = ad_reducer_gradient(reducer, p);
    CHECK(result->dtype == policies[p].accumulate);
    for (size_t i = 0; i < NUMEL; i++) {
      CHECK((result->dtype == AD_F64 ? ((double *)result->data)[i] : (double)((float *)result->data)[i]) == 2);
    }
  }
  ad_reducer_destroy(reducer);
}

static const ad_precision_policy base_policy = {
    .param = AD_BF16, .grad = AD_F32, .reduce = AD_BF16, .accumulate = AD_F32};

static int reduce_pairs(ad_comm *comm, void *context) {
  (void)context;
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  ad_precision_policy pair[2] = {base_policy, base_policy};
  reduce_two(comm, mesh, pair, 1);
  pair[1].param = AD_F32;
  reduce_two(comm, mesh, pair, 2);
  pair[1] = base_policy;
  pair[1].grad = AD_F16;
  reduce_two(comm, mesh, pair, 2);
  pair[1] = base_policy;
  pair[1].raw = 1;
  reduce_two(comm, mesh, pair, 2);
  pair[1] = base_policy;
  pair[1].reduce = AD_F32;
  reduce_two(comm, mesh, pair, 2);
  pair[1] = base_policy;
  pair[1].accumulate = AD_F64;
  reduce_two(comm, mesh, pair, 2);
  ad_mesh_destroy(mesh);
  return 0;
}

static void policies_that_differ_in_any_field_share_nothing(void **state) { run_ranks(2, reduce_pairs, NULL); }

/* Creates a reducer of a parameter whose storage is sharded over two axes. */
static ad_status create_nested(ad_comm *comm, const ad_mesh *mesh, int64_t rows) {
  ad_reducer *reducer = NULL;
  ad_precision_policy policy = {.param = AD_F32};
  ad_param_spec spec = spec_of("w", mesh, &policy);
  spec.shape.dim[0] = rows;
  ad_layout_set(&spec.storage, AD_AXES(AD_DP_REPLICATE) | AD_AXES(AD_DP_SHARD), AD_S(0));
  ad_status status = ad_reducer_create(comm, &spec, 1, NULL, &reducer);
  ad_reducer_destroy(reducer);
  return status;
}

/* Nine rows sharded over 2 ranks and then over 3 have parts of 1 1 2 and 1 2 2 rows; sharded over 6 ranks, 1 2 1 2 1
 * 2. */
static void a_nest_of_cuts_that_is_not_one_cut_is_refused(void **state) {
  ad_mesh *mesh;
  ad_comm *comm;
  assert_int_equal(ad_mesh_create("dp_replicate=2 dp_shard=3", &mesh), AD_OK);
  assert_int_equal(ad_comm_open_dry(1, 6, &comm), AD_OK);
  assert_int_equal(create_nested(comm, mesh, 12), AD_OK);
  assert_int_equal(create_nested(comm, mesh, 8), AD_OK);
  assert_int_equal(create_nested(comm, mesh, 9), AD_INVALID);
  assert_says("w");
  assert_listed();
  ad_comm_close(comm);
  ad_mesh_destroy(mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(policies_that_differ_in_any_field_share_nothing),
      cmocka_unit_test(a_nest_of_cuts_that_is_not_one_cut_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
