/* Tests code that steps outside the types and back (ad_local): what the stated layout of a gradient makes of a value,
 * and what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <stdio.h>
#include "addend/tensor.h"
#include "ranks.h"
#include "says.h"

enum { N = 3 };

typedef struct outside {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_tape *t;
  double memory[2 * N];
  ad_array array;
} outside;

static void open_outside(outside *o, ad_comm *comm, const char *mesh, const char *layout) {
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_layout parsed;
  ad_shape shape = {1, {N}};
  *o = (outside){.comm = comm};
  CHECK_OK(ad_mesh_create(mesh, &o->mesh));
  CHECK_OK(ad_layout_parse(o->mesh, layout, &parsed));
  CHECK_OK(ad_tape_create(comm, o->mesh, &options, &o->t));
  o->array = ad_array_describe(comm, AD_F64, &shape, &parsed);
  o->array.data = o->memory;
  for (int i = 0; i < N; i++) o->memory[i] = i + 1;
}

static void close_outside(outside *o) {
  ad_tape_destroy(o->t);
  ad_mesh_destroy(o->mesh);
}

/* ---- values that leave the tape (ad_to_local) ---- */

/* x is I, but outside each rank uses its copy for its own addend of a loss: rank r computes (r + 1) * sum(x). So the
 * gradient that comes back is stated as P. */
static int each_rank_uses_its_replica(ad_comm *comm, void *context) {
  outside o;
  open_outside(&o, comm, "tp=3", "tp=I");
  ad_tensor *x = ad_input(o.t, &o.array);
  ad_tensor *local = ad_to_local(o.t, x, "tp=P");
  CHECK_OK(ad_tape_status(o.t));
  const ad_array *own = ad_tensor_array(local);
  CHECK(own->layout.type[AD_TP] == AD_R);
  double slopes[N];
  for (int i = 0; i < N; i++) {
    CHECK(((const double *)own->data)[i] == i + 1);
    slopes[i] = (double)(ad_comm_rank(comm) + 1);
  }
  ad_array gradient = *own;
  gradient.layout = ad_layout_dual(&own->layout);
  gradient.data = slopes;
  const ad_array *gradients[] = {&gradient};
  CHECK_OK(ad_backward_from(o.t, &local, gradients, 1, AD_LAST_START));
  CHECK(ad_grad(x)->layout.type[AD_TP] == AD_I);
  for (int i = 0; i < N; i++) CHECK(((const double *)ad_grad(x)->data)[i] == 1 + 2 + 3);
  close_outside(&o);
  return 0;
}

static void addends_of_what_left_are_summed(void **state) { run_ranks(3, each_rank_uses_its_replica, NULL); }

/* If the stated gradient has the dual type, the value leaves as it is and backward moves nothing. */
static int all_ranks_do_the_same(ad_comm *comm, void *context) {
  outside o;
  open_outside(&o, comm, "tp=3", "tp=I");
  ad_tensor *x = ad_input(o.t, &o.array);
  CHECK(ad_to_local(o.t, x, NULL) == x);
  CHECK(ad_to_local(o.t, x, "tp=I") == x);
  close_outside(&o);
  return 0;
}

static void a_stated_dual_changes_nothing(void **state) { run_ranks(3, all_ranks_do_the_same, NULL); }

/* Outside, a rank's part of a sharded value is its own value (V). */
static int a_part_leaves(ad_comm *comm, void *context) {
  outside o;
  open_outside(&o, comm, "tp=3", "tp=S0");
  ad_tensor *x = ad_input(o.t, &o.array);
  ad_tensor *local = ad_to_local(o.t, x, "tp=V");
  CHECK_OK(ad_tape_status(o.t));
  CHECK(ad_tensor_array(local)->layout.type[AD_TP] == AD_V);
  CHECK(ad_array_numel(ad_tensor_array(local)) == 1);
  close_outside(&o);
  return 0;
}

static void a_sharded_value_leaves_as_each_ranks_own(void **state) { run_ranks(3, a_part_leaves, NULL); }

/* ---- refusals ---- */

static void refused(ad_comm *comm, const char *layout, const char *gradient, ad_status status,
                    const char *const *facts) {
  outside o;
  char list[32];
  open_outside(&o, comm, "tp=3", layout);
  ad_tensor *local = ad_to_local(o.t, ad_input(o.t, &o.array), gradient);
  CHECK(!ad_tensor_array(local));
  CHECK_STATUS(ad_tape_status(o.t), status);
  snprintf(list, sizeof list, "%s, %s", layout, gradient ? gradient : "not stated");
  CHECK_SAYS_IN(list, ad_last_error(), facts);
  close_outside(&o);
}

static int refusals(ad_comm *comm, void *context) {
  refused(comm, "tp=P", NULL, AD_TYPE, SAYS_FACTS("to_local", "P", "tp", "R"));
  refused(comm, "tp=P", "tp=I", AD_TYPE, SAYS_FACTS("to_local", "P", "tp", "I", "P->I", "R"));
  refused(comm, "tp=R", "tp=I", AD_TYPE, SAYS_FACTS("to_local", "R", "tp", "I", "P"));
  refused(comm, "tp=I", "tp=R", AD_TYPE, SAYS_FACTS("to_local", "I", "tp", "R", "I->R", "R->P"));
  refused(comm, "tp=I", "tp=V", AD_TYPE, SAYS_FACTS("to_local", "I", "tp", "V"));
  refused(comm, "tp=S0", "tp=P", AD_TYPE, SAYS_FACTS("to_local", "S(0)", "tp", "P"));
  refused(comm, "tp=I", "xp=P", AD_INVALID, SAYS_FACTS("xp=P"));
  return 0;
}

static void what_no_entry_leads_to_is_refused(void **state) { run_ranks(3, refusals, NULL); }

static int a_sum_leaves(ad_comm *comm, void *context) {
  outside o;
  open_outside(&o, comm, "tp=3", "tp=P");
  ad_tensor *x = ad_input(o.t, &o.array);
  CHECK(ad_to_local(o.t, x, "tp=R") == x); /* each rank's addend leaves, and every rank gets the gradient of the sum */
  close_outside(&o);
  return 0;
}

static void a_partial_leaves_with_its_gradient_stated(void **state) { run_ranks(3, a_sum_leaves, NULL); }

/* ---- values that enter the tape (ad_from_local) ---- */

/* All ranks computed the same x outside, so its gradient leaves as I; here each rank uses x for its own addend. */
static int a_value_comes_in(ad_comm *comm, void *context) {
  outside o;
  open_outside(&o, comm, "tp=3", "tp=R");
  ad_tensor *leaf = NULL, *x = ad_from_local(o.t, &o.array, "tp=I", &leaf);
  CHECK_OK(ad_tape_status(o.t));
  CHECK(ad_tensor_array(x)->layout.type[AD_TP] == AD_R);
  ad_tensor *own = ad_declare(o.t, ad_scale(o.t, x, (double)(ad_comm_rank(comm) + 1)), "tp", AD_V);
  CHECK_OK(ad_backward(o.t, ad_declare(o.t, ad_sum(o.t, own), "tp", AD_P)));
  CHECK(ad_grad(leaf)->layout.type[AD_TP] == AD_I);
  for (int i = 0; i < N; i++) CHECK(((const double *)ad_grad(leaf)->data)[i] == 1 + 2 + 3);
  close_outside(&o);
  return 0;
}

static void what_comes_in_gets_its_gradient_as_stated(void **state) { run_ranks(3, a_value_comes_in, NULL); }

/* A value of 4 rows sharded over dp; on tp its columns are each rank's own (V) or declared a cut. */
static void comes_in_on_two_axes(ad_comm *comm, const char *layout, const char *gradient, ad_type on_tp) {
  ad_mesh *mesh;
  ad_tape *t;
  ad_layout parsed;
  double memory[12] = {0};
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  CHECK_OK(ad_mesh_create("dp_shard=2 tp=2", &mesh));
  CHECK_OK(ad_layout_parse(mesh, layout, &parsed));
  CHECK_OK(ad_tape_create(comm, mesh, &options, &t));
  ad_shape shape = {2, {4, 6}};
  ad_array value = ad_array_describe(comm, AD_F64, &shape, &parsed);
  value.data = memory;
  ad_tensor *leaf, *x = ad_from_local(t, &value, gradient, &leaf);
  CHECK_OK(ad_tape_status(t));
  CHECK(ad_layout_equal(&ad_tensor_array(x)->layout, &parsed));
  CHECK(ad_shape_equal(&ad_tensor_array(x)->shape, &shape));
  CHECK(ad_tensor_array(leaf)->layout.type[AD_DP_SHARD] == AD_S(0) &&
        ad_tensor_array(leaf)->layout.type[AD_TP] == on_tp);
  ad_tape_destroy(t);
  ad_mesh_destroy(mesh);
}

static int values_come_in_on_two_axes(ad_comm *comm, void *context) {
  comes_in_on_two_axes(comm, "dp_shard=S0 tp=V", "dp_shard=S0 tp=V", AD_V);
  comes_in_on_two_axes(comm, "dp_shard=S0 tp=S1", "dp_shard=S0 tp=V", AD_V);
  comes_in_on_two_axes(comm, "dp_shard=S0 tp=S1", "dp_shard=S0 tp=S1", AD_S(1));
  return 0;
}

static void what_comes_in_may_be_sharded_on_another_axis(void **state) {
  run_ranks(4, values_come_in_on_two_axes, NULL);
}

static int refused_to_come_in(ad_comm *comm, void *context) {
  outside o;
  open_outside(&o, comm, "tp=3", "tp=I");
  CHECK(!ad_tensor_array(ad_from_local(o.t, &o.array, "tp=P", NULL)));
  CHECK_STATUS(ad_tape_status(o.t), AD_TYPE);
  CHECK_SAYS("tp", "from_local");
  ad_tape_reset(o.t);
  ad_tensor *leaf;
  CHECK(!ad_tensor_array(ad_from_local(o.t, &o.array, NULL, &leaf)));
  CHECK(!ad_tensor_array(leaf));
  CHECK_STATUS(ad_tape_status(o.t), AD_INVALID);
  close_outside(&o);
  return 0;
}

static void what_cannot_come_in_is_refused(void **state) { run_ranks(3, refused_to_come_in, NULL); }

static void without_a_tape_nothing_leaves_or_comes_in(void **state) {
  ad_array array = {0};
  assert_null(ad_to_local(NULL, NULL, NULL));
  assert_facts(ad_last_error(), "to_local", "NULL");
  assert_null(ad_from_local(NULL, &array, NULL, NULL));
  assert_facts(ad_last_error(), "from_local", "NULL");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(addends_of_what_left_are_summed),
      cmocka_unit_test(a_stated_dual_changes_nothing),
      cmocka_unit_test(a_sharded_value_leaves_as_each_ranks_own),
      cmocka_unit_test(what_no_entry_leads_to_is_refused),
      cmocka_unit_test(a_partial_leaves_with_its_gradient_stated),
      cmocka_unit_test(what_comes_in_gets_its_gradient_as_stated),
      cmocka_unit_test(what_comes_in_may_be_sharded_on_another_axis),
      cmocka_unit_test(what_cannot_come_in_is_refused),
      cmocka_unit_test(without_a_tape_nothing_leaves_or_comes_in),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
