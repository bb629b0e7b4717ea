/* Tests, on backend dry, the layer of experts whose gate is I on tp: its gradient's sum over tp is left out, made, or
 * made twice; and on which ranks the layer's parameters lie. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "array/transit.h"
#include "base/injection.h"
#include "addend/experts.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { TOKENS = 6, EXPERTS = 4, WIDTH = 8, HIDDEN = 4 };

typedef struct dry {
  ad_comm *comm;
  ad_mesh *mesh, *view;
  ad_tape *tape;
  int is_sharded; /* 1: experts are sharded over etp; 0: tokens are sharded over tp */
} dry;

static dry open_dry(int is_sharded) {
  dry d = {.is_sharded = is_sharded};
  must(ad_comm_open_dry(1, 4, &d.comm));
  must(ad_mesh_create("dp_shard=2 tp=2", &d.mesh));
  must(ad_mesh_create_view(d.mesh, is_sharded ? "efsdp=1 ep=2 etp=2" : "efsdp=1 ep=4 etp=1", &d.view));
  must(ad_tape_create(d.comm, d.mesh, NULL, &d.tape));
  return d;
}

static void close_dry(dry *d) {
  ad_tape_destroy(d->tape);
  ad_mesh_destroy(d->view);
  ad_mesh_destroy(d->mesh);
  ad_comm_close(d->comm);
}

static ad_tensor *leaf(dry *d, const ad_mesh *mesh, const char *text, ad_shape shape, int carries) {
  ad_layout layout;
  must(ad_layout_parse(mesh, text, &layout));
  ad_array array = ad_array_describe(d->comm, AD_F32, &shape, &layout);
  return carries ? ad_input(d->tape, &array) : ad_constant(d->tape, &array);
}

static ad_tensor *product(dry *d, ad_tensor *rows, const char *etp_type, const char *full, int64_t in, int64_t out,
                          const ad_routing *routing) {
  ad_tensor *w = leaf(d, d->view, d->is_sharded ? etp_type : full, (ad_shape){3, {EXPERTS, in, out}}, 0);
  return ad_grouped_linear(d->tape, rows, w, routing);
}

static ad_tensor *experts_of(dry *d, ad_tensor *rows, ad_routing *routing) {
  static const char full[] = "efsdp=R ep=S0 etp=R";
  rows = ad_dispatch(d->tape, rows, routing, "ep");
  rows = product(d, rows, "efsdp=R ep=S0 etp=S2", full, WIDTH, HIDDEN, routing);
  rows = product(d, rows, "efsdp=R ep=S0 etp=S1", full, HIDDEN, WIDTH, routing);
  return ad_return(d->tape, rows, routing, "ep");
}

/* Brings tokens or scores, which are I on tp, to the type that the layer takes: R, or rows sharded over tp. */
static ad_tensor *entered(dry *d, ad_tensor *x) {
  return d->is_sharded ? ad_convert(d->tape, x, "tp", AD_R)
                       : ad_to_rows(d->tape, ad_convert(d->tape, x, "tp", AD_S(0)));
}

static ad_tensor *tokens_of(dry *d) { return leaf(d, d->mesh, "dp_shard=V tp=I", (ad_shape){2, {TOKENS, WIDTH}}, 1); }
static ad_tensor *scores_of(dry *d, int carries) {
  return leaf(d, d->mesh, "dp_shard=V tp=I", (ad_shape){2, {TOKENS, EXPERTS}}, carries);
}

static ad_tensor *routed(dry *d, ad_tensor *scores, int scores_first) {
  ad_tape *t = d->tape;
  ad_routing *routing = NULL;
  ad_tensor *chosen = ad_top_k(t, ad_view(t, scores, d->view), 2, NULL, &routing);
  ad_tensor *factors = ad_slot_weights(t, chosen, routing);
  ad_tensor *slots = ad_to_slots(t, ad_view(t, entered(d, tokens_of(d)), d->view), routing);
  if (scores_first) slots = ad_scale_rows(t, slots, factors);
  slots = experts_of(d, slots, routing);
  return scores_first ? slots : ad_scale_rows(t, slots, factors);
}

/* ---- the sum over tp is left out ---- */

static void assert_refused(int is_sharded, int scores_first, const char *const *facts) {
  dry d = open_dry(is_sharded);
  assert_null(ad_tensor_array(routed(&d, scores_of(&d, 1), scores_first)));
  assert_int_equal(ad_tape_status(d.tape), AD_TYPE);
  assert_says_all(facts);
  close_dry(&d);
}

static void scores_of_a_gate_that_is_not_summed_do_not_meet_the_experts(void **state) {
  static const char *const split[] = {"dp_shard,tp", "ep", "tp", "I->S(0)", "S(0)->V", NULL};
  assert_refused(0, 1, split);
  assert_refused(0, 0, split);
  assert_refused(1, 0, SAYS_FACTS("scale_rows", "etp", "operand 1", "P", "operand 2", "I", "I->R"));
}

/* ---- the sum over tp is made once ---- */

/* Counts the transitions of the backward pass, by kind. */
static void count_backward(void *context, void *passing) {
  const ad_transit *transit = ((const ad_transit_passing *)passing)->transit;
  if (transit->backward) ((int *)context)[transit->move]++;
}

static void run(int is_sharded, int scores_first, int carries, int seen[AD_MOVE_COUNT]) {
  dry d = open_dry(is_sharded);
  ad_tensor *y = routed(&d, entered(&d, scores_of(&d, carries)), scores_first);
  y = ad_sum(d.tape, ad_declare(d.tape, y, is_sharded ? "efsdp,ep" : "efsdp,ep,etp", AD_P));
  must(ad_tape_status(d.tape));
  ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){count_backward, seen});
  ad_status status = ad_backward(d.tape, y);
  ad_injections_clear();
  must(status);
  close_dry(&d);
}

static void assert_one_more(int is_sharded, int scores_first, ad_move sum) {
  int with[AD_MOVE_COUNT] = {0}, without[AD_MOVE_COUNT] = {0};
  run(is_sharded, scores_first, 1, with);
  run(is_sharded, scores_first, 0, without);
  for (int move = 0; move < AD_MOVE_COUNT; move++) {
    int moves_bytes = move <= AD_MOVE_ALL_TO_ALL;
    if (moves_bytes) assert_int_equal(with[move] - without[move], move == (int)sum);
  }
}

static void the_sum_of_the_gate_is_one_collective_of_the_backward_pass(void **state) {
  assert_one_more(0, 1, AD_MOVE_ALL_GATHER);
  assert_one_more(0, 0, AD_MOVE_ALL_GATHER);
  assert_one_more(1, 0, AD_MOVE_ALL_REDUCE);
}

/* ---- the sum over tp is made twice ---- */

/* Scores multiply rows that are still I, so the conversion of the rows sums the gradients of both. */
static ad_tensor *scored_before_entering(dry *d, int converts) {
  ad_tape *t = d->tape;
  ad_routing *routing = NULL;
  ad_tensor *scores = scores_of(d, 1);
  if (converts) scores = ad_convert(t, scores, "tp", AD_R);
  ad_tensor *chosen = ad_top_k(t, ad_view(t, scores, d->view), 2, NULL, &routing);
  ad_tensor *factors = ad_slot_weights(t, chosen, routing);
  ad_tensor *slots = ad_scale_rows(t, ad_to_slots(t, ad_view(t, tokens_of(d), d->view), routing), factors);
  return experts_of(d, ad_convert(t, slots, "etp", AD_R), routing);
}

static void where_the_rows_are_summed_a_second_sum_of_the_scores_is_refused(void **state) {
  dry d = open_dry(1);
  scored_before_entering(&d, 0);
  must(ad_tape_status(d.tape));
  ad_tape_reset(d.tape);
  scored_before_entering(&d, 1);
  assert_int_equal(ad_tape_status(d.tape), AD_TYPE);
  assert_says("etp", "scale_rows", "1", "2");
  close_dry(&d);
}

/* ---- experts that are whole, beside shared experts ---- */

/* Counts the transitions of the forward pass over tp, by kind. */
static void count_forward(void *context, void *passing) {
  const ad_transit *transit = ((const ad_transit_passing *)passing)->transit;
  if (!transit->backward && transit->axes & AD_AXES(AD_TP)) ((int *)context)[transit->move]++;
}

static void forward_of_layer(dry *d, int64_t shared, int seen[AD_MOVE_COUNT]) {
  ad_declarations list = ad_declarations_on(d->mesh);
  ad_experts_shape shape = {.size = sizeof shape,
                            .d_model = WIDTH,
                            .experts = EXPERTS,
                            .hidden = HIDDEN,
                            .top_k = 2,
                            .shared_hidden = shared,
                            .output_factor = 1,
                            .view = d->view};
  ad_experts_layer layer = ad_experts_declare(&list, "b.moe", &shape);
  ad_tensor *params[16];
  ad_experts_notes notes;
  must(list.status);
  assert_in_range(list.count, 1, 16);
  for (size_t i = 0; i < list.count; i++) {
    ad_array array = ad_array_describe(d->comm, AD_F32, &list.list[i].shape, &list.list[i].layout);
    params[i] = ad_input(d->tape, &array);
  }
  ad_tensor *x = leaf(d, d->mesh, "dp_shard=S0 tp=I", (ad_shape){3, {4, 3, WIDTH}}, 1);
  ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){count_forward, seen});
  ad_experts_forward(d->tape, params, &layer, x, NULL, (ad_decisions){0}, &notes);
  ad_injections_clear();
  must(ad_tape_status(d->tape));
  ad_declarations_release(&list);
}

/* Results of rows that were sharded over tp are gathered; if there are shared experts, whose addends are summed anyway,
 * the results are made addends of the same sum. */
static void full_experts_and_shared_ones_are_made_full_by_one_collective(void **state) {
  for (int shared = 0; shared <= 1; shared++) {
    int seen[AD_MOVE_COUNT] = {0};
    dry d = open_dry(0);
    forward_of_layer(&d, shared ? HIDDEN : 0, seen);
    assert_int_equal(seen[AD_MOVE_ALL_GATHER], !shared);
    assert_int_equal(seen[AD_MOVE_ALL_REDUCE], shared);
    assert_int_equal(seen[AD_MOVE_REDUCE_SCATTER], 0);
    close_dry(&d);
  }
}

/* ---- layouts of the parameters ---- */

static void assert_layout(const ad_declarations *list, size_t param, const char *name, const char *wanted) {
  char text[128];
  assert_string_equal(list->list[param].name, name);
  assert_string_equal(ad_layout_print(&list->list[param].layout, text, sizeof text), wanted);
}

static void experts_lie_on_the_view_and_the_router_beside_what_is_dense(void **state) {
  for (int is_sharded = 0; is_sharded <= 1; is_sharded++) {
    dry d = open_dry(is_sharded);
    ad_declarations list = ad_declarations_on(d.mesh);
    ad_experts_shape shape = {.size = sizeof shape,
                              .d_model = WIDTH,
                              .experts = EXPERTS,
                              .hidden = HIDDEN,
                              .top_k = 2,
                              .shared_hidden = HIDDEN,
                              .gate_is_summed = is_sharded,
                              .output_factor = 1,
                              .view = d.view};
    ad_experts_layer layer = ad_experts_declare(&list, "b.moe", &shape);
    must(list.status);
    assert_layout(&list, layer.router, "b.moe.router", is_sharded ? "dp_shard=R tp=R" : "dp_shard=R tp=I");
    assert_layout(&list, layer.up, "b.moe.up", is_sharded ? "efsdp=R ep=S0 etp=S2" : "efsdp=R ep=S0 etp=R");
    assert_layout(&list, layer.down, "b.moe.down", is_sharded ? "efsdp=R ep=S0 etp=S1" : "efsdp=R ep=S0 etp=R");
    assert_layout(&list, layer.shared.down.weight, "b.moe.shared.down", "dp_shard=R tp=S0");
    assert_int_equal(list.list[layer.gate].sharded, AD_AXES(AD_EFSDP));
    ad_declarations_release(&list);
    close_dry(&d);
  }
}

/* ---- what is refused ---- */

/* Checks that declaring this layer fails; the failure stays in the list, which gets no parameter. */
static void refuse_shape(const char *name, const dry *d, ad_experts_shape shape, const char *const *facts) {
  ad_declarations list = ad_declarations_on(d->mesh);
  ad_experts_layer layer = ad_experts_declare(&list, "b.moe", &shape);
  assert_int_equal(list.status, AD_INVALID);
  assert_int_equal(list.count, 0);
  assert_null(layer.shape.view);
  assert_says_in(name, ad_last_error(), facts);
  ad_declarations_release(&list);
}

static ad_experts_shape shape_on(const ad_mesh *view) {
  return (ad_experts_shape){.size = sizeof(ad_experts_shape),
                            .d_model = WIDTH,
                            .experts = EXPERTS,
                            .hidden = HIDDEN,
                            .top_k = 2,
                            .output_factor = 1,
                            .view = view};
}

static void shapes_that_are_no_layer_are_refused(void **state) {
  dry d = open_dry(0);
  ad_mesh *fewer, *across;
  must(ad_mesh_create("efsdp=1 ep=2 etp=1", &fewer));
  must(ad_mesh_create_view(d.mesh, "efsdp=1 etp=2 ep=2", &across));
  ad_experts_shape shape = shape_on(d.view);
  shape.size = 0;
  refuse_shape("size 0", &d, shape, SAYS_FACTS("ad_experts_shape", "size", "0"));
  shape = shape_on(d.view), shape.top_k = EXPERTS + 1;
  refuse_shape(
      "too many choices", &d, shape,
      SAYS_FACTS("b.moe", "d_model", "8", "hidden 4", "shared_hidden", "shared_hidden 0", "top_k", "top_k 5", "4"));
  shape = shape_on(d.view), shape.top_k = 0;
  refuse_shape("no choices", &d, shape, SAYS_FACTS("b.moe", "top_k", "top_k 0", "4"));
  shape = shape_on(d.view), shape.d_model = 0;
  refuse_shape("no width", &d, shape, SAYS_FACTS("b.moe", "d_model", "0"));
  shape = shape_on(d.view), shape.hidden = 0;
  refuse_shape("no hidden width", &d, shape, SAYS_FACTS("b.moe", "hidden 0"));
  shape = shape_on(d.view), shape.shared_hidden = -1;
  refuse_shape("a negative width", &d, shape, SAYS_FACTS("b.moe", "shared_hidden", "shared_hidden -1"));
  refuse_shape("no view", &d, shape_on(NULL), SAYS_FACTS("b.moe", "NULL"));
  refuse_shape("a view of fewer ranks", &d, shape_on(fewer), SAYS_FACTS("efsdp=1 ep=2 etp=1"));
  refuse_shape("a view across", &d, shape_on(across), SAYS_FACTS("efsdp=1 etp=2 ep=2", "etp", "1"));
  ad_mesh_destroy(across);
  ad_mesh_destroy(fewer);
  close_dry(&d);
}

/* Calls with the parameters of another layer, with x of a wrong shape, and with a layer that was never declared; the
 * notes are then empty. */
static void what_is_no_call_of_a_layer_sticks_to_the_tape(void **state) {
  dry d = open_dry(0);
  ad_declarations list = ad_declarations_on(d.mesh);
  ad_experts_shape shape = shape_on(d.view);
  ad_experts_layer layer = ad_experts_declare(&list, "b.moe", &shape), never = {0};
  ad_tensor *params[4] = {0};
  ad_tensor *x = leaf(&d, d.mesh, "dp_shard=S0 tp=I", (ad_shape){3, {4, 3, WIDTH + 1}}, 1);
  ad_experts_notes notes = {.routing = (const ad_routing *)&notes, .balance = x}; /* left from an earlier call */
  must(list.status);
  ad_experts_forward(d.tape, params, &layer, x, NULL, (ad_decisions){0}, &notes);
  assert_int_equal(ad_tape_status(d.tape), AD_INVALID);
  assert_says("ad_experts_forward", "[4, 3, 9]", "8");
  assert_null(notes.routing);
  assert_null(notes.balance);
  ad_tape_reset(d.tape);
  x = leaf(&d, d.mesh, "dp_shard=S0 tp=I", (ad_shape){3, {4, 3, WIDTH}}, 1);
  ad_experts_forward(d.tape, params, &never, x, NULL, (ad_decisions){0}, NULL);
  assert_int_equal(ad_tape_status(d.tape), AD_INVALID);
  assert_says("ad_experts_forward", "layer", "ad_experts_declare");
  ad_tape_reset(d.tape);
  ad_experts_forward(d.tape, params, &layer, NULL, NULL, (ad_decisions){0}, NULL);
  assert_int_equal(ad_tape_status(d.tape), AD_INVALID);
  assert_says("to_rows", "operand 1", "NULL");
  ad_declarations_release(&list);
  close_dry(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(scores_of_a_gate_that_is_not_summed_do_not_meet_the_experts),
      cmocka_unit_test(the_sum_of_the_gate_is_one_collective_of_the_backward_pass),
      cmocka_unit_test(where_the_rows_are_summed_a_second_sum_of_the_scores_is_refused),
      cmocka_unit_test(full_experts_and_shared_ones_are_made_full_by_one_collective),
      cmocka_unit_test(experts_lie_on_the_view_and_the_router_beside_what_is_dense),
      cmocka_unit_test(shapes_that_are_no_layer_are_refused),
      cmocka_unit_test(what_is_no_call_of_a_layer_sticks_to_the_tape),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
