/* Tests the tape of one leaf (train.leaves): its mesh has the ranks of one data-parallel position, its parameters are on
 * the mesh of all ranks, and moves between positions are refused. */
#include "dry_world.h"
#include "addend/reduce.h"

/* The tape of rank 1 of "dp_shard=3 tp=2", on the ranks 0 and 1. */
typedef struct leaf_world {
  dry_world dry;
  ad_mesh *full;
  ad_leaf_mesh meshes;
} leaf_world;

static int open_leaf(void **state) {
  static leaf_world w;
  dry_world *d = &w.dry;
  w = (leaf_world){.full = NULL};
  must(ad_comm_open_dry(1, 6, &d->comm));
  must(ad_mesh_create("dp_shard=3 tp=2", &w.full));
  must(ad_mesh_create("dp_shard=1 tp=2", &d->mesh));
  must(ad_tape_create(d->comm, d->mesh, NULL, &d->tape));
  w.meshes = (ad_leaf_mesh){w.full, d->mesh};
  ad_tape_take_leaf(d->tape, &w.meshes, 1);
  *state = &w;
  return 0;
}

static int close_leaf(void **state) {
  leaf_world *w = *state;
  void *dry = &w->dry;
  ad_mesh_destroy(w->full);
  return close_dry(&dry);
}

static void a_move_of_bytes_between_positions_is_refused(void **state) {
  dry_world *d = &((leaf_world *)*state)->dry;
  ad_shape shape = SHAPE(2, 6, 4);
  refused(d, ad_all_reduce(d->tape, leaf(d, "dp_shard=P tp=R", shape), "dp", AD_R), AD_TYPE, "all_reduce", "dp_shard",
          "train.leaves");
  refused(d, ad_all_gather(d->tape, leaf(d, "dp_shard=S0 tp=R", shape), "dp_shard", AD_R), AD_TYPE, "all_gather",
          "dp_shard", "train.leaves");
  refused(d, ad_reduce_scatter(d->tape, leaf(d, "dp_shard=P tp=R", shape), "dp_shard", AD_S(0)), AD_TYPE,
          "reduce_scatter", "dp_shard", "train.leaves");
  refused(d, ad_all_to_all(d->tape, leaf(d, "dp_shard=S0 tp=R", shape), "dp_shard", AD_S(1)), AD_TYPE, "all_to_all",
          "dp_shard", "train.leaves");
  refused(d, ad_all_reduce(d->tape, leaf(d, "dp_shard=I tp=P pp=P", shape), "tp,pp", AD_R), AD_TYPE, "all_reduce", "pp",
          "train.leaves");
}

static void moves_within_a_position_and_without_bytes_are_not(void **state) {
  dry_world *d = &((leaf_world *)*state)->dry;
  ad_shape shape = SHAPE(2, 6, 4);
  ad_all_reduce(d->tape, leaf(d, "dp_shard=S0 tp=P", shape), "tp", AD_R);
  ad_all_gather(d->tape, leaf(d, "dp_shard=S0 tp=S1", shape), "tp", AD_R);
  ad_once(d->tape, leaf(d, "dp_shard=R tp=R", shape), "dp");
  ad_convert(d->tape, leaf(d, "dp_shard=R tp=R", shape), "dp_shard", AD_S(0));
  ad_declare(d->tape, leaf(d, "dp_shard=V tp=R", shape), "dp_shard", AD_P);
  must(ad_tape_status(d->tape));
}

/* What the tape passed as the gradient of its one parameter. */
static void keep_gradient(void *context, size_t param, const ad_array *gradient) {
  assert_int_equal(param, 0);
  *(ad_array *)context = *gradient;
}

static void a_parameter_enters_with_the_tapes_mesh_and_leaves_with_all_ranks(void **state) {
  leaf_world *w = *state;
  dry_world *d = &w->dry;
  ad_layout layout;
  ad_array kept = {0};
  must(ad_layout_parse(w->full, "dp_shard=R tp=S1", &layout));
  ad_array value = ad_array_describe(d->comm, AD_F32, &SHAPE(2, 4, 8), &layout);
  const ad_array *values[] = {&value};
  ad_parameters from = {
      .size = sizeof from, .values = values, .count = 1, .gradient = keep_gradient, .gradient_context = &kept};
  ad_tensor *weight = ad_parameter(d->tape, &from, 0);
  ad_tensor *x = ad_constant(d->tape, array_of(d, AD_F32, "dp_shard=S0 tp=R", SHAPE(2, 6, 4)));
  ad_tensor *y = ad_all_gather(d->tape, ad_linear(d->tape, x, weight), "tp", AD_I);
  must(ad_backward(d->tape, ad_sum(d->tape, y)));
  assert_ptr_equal(ad_tensor_array(weight)->layout.mesh, d->mesh);
  ad_layout gradient = ad_layout_dual(&layout);
  assert_true(ad_layout_equal(&kept.layout, &gradient));
  assert_ptr_equal(kept.layout.mesh, w->full);
}

/* A state that all positions have, such as a balancing bias, may be a constant; a value of which each has a part may
 * not. */
static void a_constant_of_all_ranks_is_the_same_on_all_positions(void **state) {
  leaf_world *w = *state;
  dry_world *d = &w->dry;
  ad_layout layout = ad_layout_all(w->full, AD_R);
  ad_array value = ad_array_describe(d->comm, AD_F32, &SHAPE(1, 4), &layout);
  assert_ptr_equal(ad_tensor_array(ad_constant(d->tape, &value))->layout.mesh, d->mesh);
  ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_S(0));
  value = ad_array_describe(d->comm, AD_F32, &SHAPE(1, 4), &layout);
  refused(d, ad_constant(d->tape, &value), AD_TYPE, "dp_shard=1 tp=2");
}

static void a_parameter_of_other_ranks_is_refused(void **state) {
  leaf_world *w = *state;
  dry_world *d = &w->dry;
  ad_layout layout = ad_layout_all(d->mesh, AD_R);
  ad_array value = ad_array_describe(d->comm, AD_F32, &SHAPE(1, 4), &layout);
  const ad_array *values[] = {&value};
  ad_parameters from = {.size = sizeof from, .values = values, .count = 1};
  ad_parameter(d->tape, &from, 0);
  assert_int_equal(ad_tape_status(d->tape), AD_TYPE);
  assert_says("dp_shard=3 tp=2");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_move_of_bytes_between_positions_is_refused, open_leaf, close_leaf),
      cmocka_unit_test_setup_teardown(moves_within_a_position_and_without_bytes_are_not, open_leaf, close_leaf),
      cmocka_unit_test_setup_teardown(a_parameter_enters_with_the_tapes_mesh_and_leaves_with_all_ranks, open_leaf,
                                      close_leaf),
      cmocka_unit_test_setup_teardown(a_constant_of_all_ranks_is_the_same_on_all_positions, open_leaf, close_leaf),
      cmocka_unit_test_setup_teardown(a_parameter_of_other_ranks_is_refused, open_leaf, close_leaf),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
