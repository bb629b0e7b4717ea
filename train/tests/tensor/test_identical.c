/* Tests a value on a tape that crosses a bridge between two meshes of the same shape on the same ranks: the value and
 * its gradient are as if there were no bridge, whatever their types. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "addend/bridge.h"
#include "addend/helpers.h"
#include "addend/tensor.h"
#include "ranks.h"

typedef struct world {
  const char *mesh, *layout;
  int64_t ranks;
  ad_shape shape;
} world;

typedef struct sides {
  ad_mesh *a, *b;
  ad_bridge *bridge;
  ad_layout from, to;
} sides;

static sides open_sides(ad_comm *comm, const world *w) {
  sides s;
  ad_bridge_options options = {.size = sizeof options, .identical = 1};
  CHECK_OK(ad_mesh_create(w->mesh, &s.a));
  CHECK_OK(ad_mesh_create(w->mesh, &s.b));
  CHECK_OK(ad_layout_parse(s.a, w->layout, &s.from));
  CHECK_OK(ad_layout_parse(s.b, w->layout, &s.to));
  CHECK_OK(ad_bridge_create(comm, &s.from, &s.to, &options, &s.bridge));
  return s;
}

static void close_sides(sides *s) {
  ad_bridge_destroy(s->bridge);
  ad_mesh_destroy(s->a);
  ad_mesh_destroy(s->b);
}

/* Each rank has other numbers, so that a value of another rank is noticed. */
static double number(const ad_comm *comm, uint64_t stream, size_t i) {
  return ad_random_normal(5, 100 * stream + (uint64_t)ad_comm_rank(comm), i);
}

static ad_array numbers(ad_comm *comm, const world *w, const ad_layout *layout, uint64_t stream) {
  ad_array array;
  CHECK_OK(ad_array_create(comm, AD_F64, &w->shape, layout, &array));
  for (size_t i = 0; i < ad_array_numel(&array); i++) ad_array_set(&array, i, number(comm, stream, i));
  return array;
}

/* The loss uses 6 times the value: it is doubled on one side of the bridge and tripled on the other. */
static void check_value(ad_comm *comm, const ad_array *value) {
  for (size_t i = 0; i < ad_array_numel(value); i++) CHECK(ad_array_get(value, i) == 3 * (2 * number(comm, 1, i)));
}

/* The gradient is the sum of what came back over the bridge and of what a user before the bridge left. */
static void check_gradient(ad_comm *comm, const ad_array *gradient) {
  CHECK(gradient);
  for (size_t i = 0; i < ad_array_numel(gradient); i++)
    CHECK(ad_array_get(gradient, i) == 2 * (3 * number(comm, 2, i) + 4 * number(comm, 3, i)));
}

static int transfers(ad_comm *comm, void *context) {
  const world *w = context;
  sides s = open_sides(comm, w);
  ad_tape *tape;
  ad_layout back_from = ad_layout_dual(&s.from), back_to = ad_layout_dual(&s.to);
  ad_array value = numbers(comm, w, &s.from, 1);
  ad_array arrive[] = {numbers(comm, w, &back_to, 2), numbers(comm, w, &back_from, 3)};
  CHECK_OK(ad_tape_create(comm, s.a, &(ad_tape_options){.size = sizeof(ad_tape_options), .dtype = AD_F64}, &tape));
  ad_tensor *x = ad_input(tape, &value), *twice = ad_scale(tape, x, 2);
  ad_tensor *transferred = ad_transfer_tensor(tape, twice, s.bridge);
  ad_tensor *outputs[] = {ad_scale(tape, transferred, 3), ad_scale(tape, twice, 4)};
  CHECK_OK(ad_tape_status(tape));
  check_value(comm, ad_tensor_array(outputs[0]));
  CHECK_OK(ad_backward_from(tape, outputs, (const ad_array *[]){&arrive[0], &arrive[1]}, 2, AD_LAST_START));
  check_gradient(comm, ad_grad(x));
  ad_tape_destroy(tape);
  ad_array_destroy(comm, &value);
  ad_array_destroy(comm, &arrive[0]);
  ad_array_destroy(comm, &arrive[1]);
  close_sides(&s);
  return 0;
}

static void a_value_crosses_as_it_lies(void **state) {
  static world worlds[] = {
      {"cp=3 tp=1", "cp=S1z tp=I", 3, {2, {2, 13}}},
      {"dp=2 tp=2", "dp=S0 tp=S1", 4, {2, {3, 5}}},
      {"dp=3 tp=1", "dp=R tp=S0", 3, {2, {4, 2}}}, /* the value's gradient is P, and stays P over the bridge */
      {"dp=3", "dp=S0", 3, {2, {2, 3}}},           /* one rank has no element */
      {"dp=2", "dp=V", 2, {1, {4}}},
      {"tp=3", "tp=I", 3, {0, {0}}}, /* a scalar */
  };
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) run_ranks(worlds[i].ranks, transfers, &worlds[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_value_crosses_as_it_lies)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
