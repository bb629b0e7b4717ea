/* Tests the program moe without running it: the view that is used if none is named, the parameters that a token is
 * multiplied with, and that all mistakes of a recipe are reported together. train/tests/cli checks what it computes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>
#include "allocations.h"
#include "array/transit.h"
#include "moe/moe.h"
#include "base/memory.h"
#include "base/injection.h"
#include "moe/keys.h"
#include "moe/load.h"
#include "program/program.h"
#include "ranks.h"
#include "says.h"
#include "tensor/routing.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { BATCH = 4, SEQ = 4 };

static char *text_paths[] = {(char[]){"/usr/share/common-licenses"}};

static ad_moe_options tiny(void) {
  return (ad_moe_options){.decoder = {.layers = 2,
                                      .d_model = 8,
                                      .heads = 2,
                                      .rotary_base = 10000,
                                      .norm_epsilon = 1e-5,
                                      .vocabulary = 256,
                                      .data = {.text = text_paths, .text_count = 1, .seq = SEQ}},
                          .experts = 6,
                          .top_k = 2,
                          .expert_hidden = 10,
                          .shared_experts = 5};
}

static ad_status try(const ad_moe_options *options, ad_comm *comm, const char *mesh, ad_program **out) {
  ad_program_setting setting = {
      .comm = comm, .meshes = (const char *const[]){mesh}, .global_batch = BATCH, .microbatches = 1, .seed = 5};
  *out = NULL;
  return ad_program_create(ad_moe(), options, &setting, out);
}

static const ad_param_spec *find(ad_program *program, const char *name) {
  for (size_t i = 0; i < ad_program_module(program, 0)->param_count; i++)
    if (!strcmp(ad_program_param(program, 0, i)->name, name)) return ad_program_param(program, 0, i);
  fail_msg("there is no %s", name);
  return NULL;
}

static void without_a_view_experts_are_sharded_as_the_rest_and_not_spread(void **state) {
  ad_moe_options options = tiny();
  ad_comm *comm;
  ad_program *program;
  must(ad_comm_open_dry(0, 6, &comm));
  must(try(&options, comm, "dp_shard=3 tp=2", &program));
  const ad_param_spec *gate = find(program, "blocks.1.moe.gate");
  assert_string_equal(ad_mesh_text(gate->layout.mesh), "efsdp=3 ep=1 etp=2");
  char text[64];
  assert_string_equal(ad_layout_print(&gate->layout, text, sizeof text), "efsdp=R ep=S0 etp=S2");
  ad_program_destroy(program);
  ad_comm_close(comm);
}

static void a_token_is_multiplied_with_its_experts_alone(void **state) {
  ad_moe_options options = tiny();
  ad_comm *comm;
  ad_program *program;
  double attention = 4 * 8 * 8 + SEQ * 8, experts = 8 * 6 + 3 * 2 * 8 * 10 + 3 * 8 * 5, head = 8 * AD_VOCABULARY_BYTES;
  must(ad_comm_open_dry(0, 1, &comm));
  must(try(&options, comm, "dp=1", &program));
  double flops = ad_moe()->account.flops(ad_program_own(program), 3);
  assert_true(fabs(flops - 3 * SEQ * 6 * (2 * (attention + experts) + head)) < 1e-6);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

static void every_error_is_reported_together(void **state) {
  ad_moe_options options = tiny();
  ad_comm *comm;
  ad_program *program;
  options.experts = 3;
  options.top_k = 7;
  options.shared_experts = 1;
  options.sparse = (char[]){"efsdp=1 ep=4 etp=1"};
  must(ad_comm_open_dry(0, 4, &comm));
  assert_int_equal(try(&options, comm, "dp_shard=2 tp=2", &program), AD_INVALID);
  assert_text_says(ad_last_error(), "model.top_k", "model.experts", "7", "3");
  assert_text_says(ad_last_error(), "model.shared_experts", "tp=2", "1", "2");
  assert_text_says(ad_last_error(), "model.experts", "ep=4", "3 experts", "4");
  options.sparse = (char[]){"efsdp=1 ep=3 etp=1"};
  assert_int_equal(try(&options, comm, "dp_shard=2 tp=2", &program), AD_INVALID);
  assert_says("efsdp=1 ep=3 etp=1", "views.sparse", "3");
  assert_says("ep=2 etp=1", "ep=1 etp=1", "ep=2 etp=2", "ep=1 etp=2");
  ad_comm_close(comm);
}

static void names_views(const char *name, ad_comm *comm, const ad_moe_options *options, const char *mesh,
                        const char *const *facts) {
  ad_program *program;
  assert_int_equal(try(options, comm, mesh, &program), AD_INVALID);
  assert_says_in(name, ad_last_error(), facts);
  if (strstr(ad_last_error(), "etp=2")) fail_msg("etp=2 would not do: %s", ad_last_error());
}

/* No view is proposed if experts are too narrow to shard, if the mesh names no axis but tp, or without experts. */
static void views_that_would_not_do_are_not_named(void **state) {
  ad_moe_options options = tiny();
  ad_comm *four, *two;
  must(ad_comm_open_dry(0, 4, &four));
  must(ad_comm_open_dry(0, 2, &two));
  options.sparse = (char[]){"efsdp=1 ep=3 etp=1"};
  options.expert_hidden = 1;
  names_views("narrow experts", four, &options, "dp_shard=2 tp=2",
              SAYS_FACTS("views.sparse", "ep=2 etp=1", "ep=1 etp=1"));
  options.expert_hidden = 10;
  names_views("tp alone", two, &options, "tp=2", SAYS_FACTS("views.sparse", "ep=2 etp=1", "ep=1 etp=1"));
  options.experts = 0;
  names_views("no experts", four, &options, "dp_shard=2 tp=2", SAYS_FACTS("model.experts"));
  ad_comm_close(two);
  ad_comm_close(four);
}

static void a_view_is_that_of(const char *mesh_text, const char *given, const char *whole) {
  ad_moe_options options = tiny();
  ad_mesh *mesh, *view;
  char sparse[64];
  snprintf(sparse, sizeof sparse, "%s", given);
  options.sparse = sparse;
  must(ad_mesh_create(mesh_text, &mesh));
  must(ad_moe_view(&options, mesh, &view));
  assert_string_equal(ad_mesh_text(view), whole);
  ad_mesh_destroy(view);
  ad_mesh_destroy(mesh);
}

static void what_a_view_leaves_are_replicas_of_experts(void **state) {
  a_view_is_that_of("dp_shard=4 tp=3", "ep=2 etp=3", "efsdp=2 ep=2 etp=3");
  a_view_is_that_of("dp_shard=4 tp=3", "ep=12 etp=1", "efsdp=1 ep=12 etp=1");
  a_view_is_that_of("dp_shard=4 tp=3", "efsdp=4 ep=3 etp=1", "efsdp=4 ep=3 etp=1");
  a_view_is_that_of("dp_replicate=2 dp_shard=2 tp=3", "dp_replicate=2 ep=2 etp=1", "dp_replicate=2 efsdp=3 ep=2 etp=1");
}

/* In the second block the experts are chosen 1, 4, 4 and 7 times, where an even share is 4; the first block has no
 * choices. */
static void the_bias_grows_where_an_expert_is_asked_for_too_seldom(void **state) {
  double step[] = {0, 0, 0, 0, /**/ 9, 1, 4, 4, 7, /**/ 2};
  float values[] = {0.5f, 0, -1, 0};
  static const float wanted[] = {0.5f + 0.25f, 0, -1, -0.25f};
  ad_moe_load load = {.blocks = 2, .experts = 4, .step = step};
  ad_array bias = {.dtype = AD_F32, .data = values};
  ad_moe_load_correct(&load, 0, 0.25, &bias);
  assert_true(values[0] == 0.5f && values[3] == 0);
  ad_moe_load_correct(&load, 1, 0.25, &bias);
  assert_memory_equal(values, wanted, sizeof wanted);
}

/* ---- the load of experts summed over ranks ---- */

/* A mutant: the sum is left out, so the array stays P. */
static void leave_out(void *context, void *passing) {
  ad_transit_passing *p = passing;
  p->out->layout = p->in->layout;
  p->handled = 1;
}

enum { RANKS = 3, EXPERTS = 6 };

/* Counts two tokens of rank r: one chooses expert r, the other the last expert. */
static void count_own(ad_moe_load *load, int64_t rank) {
  int32_t wanted[] = {(int32_t)rank, EXPERTS - 1};
  ad_moe_load_begin(load);
  ad_moe_load_add(load, 1, &(ad_routing){.tokens = 2, .top_k = 1, .slots = 2, .expert = wanted});
}

/* Checks the load of the second block; the first has none. */
static void holds_all(const double *numbers) {
  static const double all[] = {1, 1, 1, 0, 0, RANKS, 0};
  for (int i = 0; i <= EXPERTS; i++) CHECK(numbers[i] == 0 && numbers[EXPERTS + 1 + i] == all[i]);
}

static int sum_own(ad_comm *comm, void *context) {
  ad_moe_options options = tiny();
  ad_moe_load load;
  ad_mesh *mesh, *view;
  CHECK_OK(ad_mesh_create("dp_shard=3", &mesh));
  CHECK_OK(ad_mesh_create_view(mesh, "efsdp=1 ep=3 etp=1", &view));
  CHECK_OK(ad_moe_load_create(&load, comm, mesh, view, &options));
  count_own(&load, ad_comm_rank(comm));
  ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){leave_out, NULL});
  ad_status left_out = ad_moe_load_sum(&load);
  ad_injections_clear();
  CHECK(left_out == AD_TYPE);
  CHECK_SAYS("all_reduce", "P-");
  ad_array summed = load.all;
  ad_axes partial = ad_layout_axes_of(&load.own.layout, AD_P);
  CHECK_OK(ad_array_after(comm, &load.own, AD_MOVE_ALL_REDUCE, partial, AD_R, &summed));
  summed.data = load.all.data;
  CHECK_OK(ad_array_move(comm, &load.own, AD_MOVE_ALL_REDUCE, partial, AD_R, AD_F64, &summed));
  holds_all(summed.data);
  count_own(&load, ad_comm_rank(comm));
  CHECK_OK(ad_moe_load_sum(&load));
  holds_all(load.step);
  ad_moe_load_release(&load);
  ad_mesh_destroy(view);
  ad_mesh_destroy(mesh);
  return 0;
}

static void tokens_that_were_not_summed_are_refused_and_the_sum_is_right_as_said(void **state) {
  run_ranks(RANKS, sum_own, NULL);
}

static void the_margin_is_that_of_the_closest_choice(void **state) {
  static const double margins[] = {0.5, 0.25, 0.75};
  ad_moe_load load = {.blocks = 2, .experts = 4, .margin = INFINITY};
  int32_t expert = 0;
  for (int i = 0; i < 3; i++)
    ad_moe_load_add(&load, i % 2, &(ad_routing){.tokens = 1, .top_k = 1, .expert = &expert, .margin = margins[i]});
  assert_true(load.margin == 0.25);
  ad_moe_load_begin(&load);
  assert_true(load.margin == INFINITY);
}

static void the_loss_of_balance_is_there_where_it_is_asked_for(void **state) {
  ad_moe_options options = tiny();
  ad_comm *comm;
  ad_program *program;
  must(ad_comm_open_dry(0, 4, &comm));
  must(try(&options, comm, "dp_shard=2 tp=2", &program));
  assert_int_equal(ad_program_loss_count(program), 1);
  assert_int_equal(ad_program_module(program, 0)->state_count, 0);
  ad_program_destroy(program);
  options.balance_loss = 0.01;
  options.balance_rate = 0.1;
  must(try(&options, comm, "dp_shard=2 tp=2", &program));
  const ad_loss_spec *balance = ad_program_loss(program, 1);
  assert_string_equal(balance->name, "balance");
  assert_true(balance->coefficient == 0.01 && balance->per_microbatch && balance->is_auxiliary && !balance->is_metric);
  assert_int_equal(ad_program_module(program, 0)->state_count, 2);
  assert_string_equal(ad_program_module(program, 0)->states[1].name, "blocks.1.moe.bias");
  ad_program_destroy(program);
  ad_comm_close(comm);
}

static void memory_that_runs_out_leaves_nothing_behind(void **state) {
  ad_moe_options options = tiny();
  options.sparse = (char[]){"efsdp=2 ep=2 etp=1"};
  options.balance_loss = options.balance_rate = 0.1;
  ad_comm *comm;
  ad_program *program;
  must(ad_comm_open_dry(0, 4, &comm));
  long n = 1;
  for (;; n++) {
    ad_memory_fail_at(n);
    ad_status status = try(&options, comm, "dp_shard=2 tp=2", &program);
    assert_true(reports_allocation(n, status));
    if (!status) break;
    assert_null(program);
  }
  assert_true(n > 4);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_a_view_experts_are_sharded_as_the_rest_and_not_spread),
      cmocka_unit_test(a_token_is_multiplied_with_its_experts_alone),
      cmocka_unit_test(every_error_is_reported_together),
      cmocka_unit_test(views_that_would_not_do_are_not_named),
      cmocka_unit_test(what_a_view_leaves_are_replicas_of_experts),
      cmocka_unit_test(the_bias_grows_where_an_expert_is_asked_for_too_seldom),
      cmocka_unit_test(tokens_that_were_not_summed_are_refused_and_the_sum_is_right_as_said),
      cmocka_unit_test(the_margin_is_that_of_the_closest_choice),
      cmocka_unit_test(the_loss_of_balance_is_there_where_it_is_asked_for),
      cmocka_unit_test(memory_that_runs_out_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
