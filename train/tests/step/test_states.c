/* Tests states that are no parameters, after a step: the adversary's sources of a decomposition do not depend on the
 * loss scale and do not move if no ascent is asked for; the balancing bias of a mixture of experts does not move if a
 * step is skipped. */
#include "says.h"
#include "world.h"

#include "kernels/kernels.h"
#include "base/memory.h"
#include "program/program.h"
#include "step/run.h"
#include "ranks.h"

enum { VALUES_MAX = 4096, STEPS = 2 };

typedef struct seen {
  double states[VALUES_MAX];
  size_t count;
  int skipped;
} seen;

typedef struct job {
  const ad_recipe *recipe;
  int overflows;
  seen *seen; /* states before the first step and after each step */
} job;

#define DECOMPOSE(DP)                                                                                   \
  "name: tiny\nmodel: {kind: decompose, layers: 1, d_model: 8, heads: 2}\n"                             \
  "data: {text: [/usr/share/common-licenses], seq: 6}\nimportance: {layers: 1, d_model: 8, heads: 2}\n" \
  "sites: [{match: blocks.0.attn.wo, components: 4}]\nlosses: {adversarial: {coefficient: 3}}\n"        \
  "mesh: {ci: dp=" #DP ", blocks: \"block=1 dp=" #DP "\", adv: dp=" #DP                                 \
  "}\nplacement: colocated\n"                                                                           \
  "train: {steps: 4, lr: 1e-3, seed: 4, global_batch: 3, microbatches: 2}\n"
static const char decompose[] = DECOMPOSE(1), decompose_on_three[] = DECOMPOSE(3);
static const char moe[] =
    "name: tiny\nmodel: {kind: moe, layers: 2, d_model: 8, heads: 2, experts: 5, top_k: 2, expert_hidden: 8,\n"
    "  balance_rate: 0.125}\n"
    "data: {text: [/usr/share/common-licenses], seq: 6}\nmesh: dp=1\n"
    "train: {steps: 4, lr: 1e-3, seed: 4, global_batch: 3, microbatches: 2}\n";

/* Keeps the states of the first rank, which has the fewest samples. */
static void keep_states(ad_comm *comm, const ad_run *run, seen *to) {
  if (ad_comm_rank(comm) > 0) return;
  to->count = 0;
  for (size_t m = 0; m < ad_program_module_count(ad_run_program(run)); m++) {
    for (size_t i = 0; i < ad_program_module(ad_run_program(run), m)->state_count; i++) {
      const ad_array *state = ad_run_state(run, m, i);
      size_t numel = ad_array_numel(state);
      ad_cast(to->states + to->count, AD_F64, state->data, state->dtype, numel);
      to->count += numel;
    }
  }
}

/* Takes two steps; if the job `overflows`, the second one's loss scale is too large. */
static int take_steps(ad_comm *comm, void *context) {
  const job *j = context;
  const ad_run_options options = {.size = sizeof options, .quiet = 1};
  ad_step_report report;
  ad_run *run;
  CHECK_OK(ad_run_create(comm, j->recipe, &options, &run));
  keep_states(comm, run, &j->seen[0]);
  for (int step = 0; step < STEPS; step++) {
    if (j->overflows && step) ad_run_loss_scale(run)->exponent = 30;
    CHECK_OK(ad_run_step(run, step, &report));
    keep_states(comm, run, &j->seen[1 + step]);
    j->seen[1 + step].skipped = report.skipped;
  }
  ad_run_destroy(run);
  return 0;
}

static seen *states_of(const char *model, const char *rest, int overflows) {
  char text[1024];
  ad_recipe *recipe = NULL;
  snprintf(text, sizeof text, "%s%s\n", model, rest);
  if (ad_recipe_parse(text, "tiny.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  job j = {recipe, overflows, shared_memory((1 + STEPS) * sizeof(seen))};
  int64_t ranks;
  assert_false(ad_recipe_world(recipe, &ranks));
  run_ranks(ranks, take_steps, &j);
  ad_recipe_destroy(recipe);
  assert_true(j.seen->count > 0);
  return j.seen;
}

static void forget(seen *s) { munmap(s, (1 + STEPS) * sizeof *s); }

static int is_same(const seen *a, const seen *b) {
  return a->count == b->count && !memcmp(a->states, b->states, a->count * sizeof *a->states);
}

static void sources_climb_identically_at_any_loss_scale(void **state) {
  seen *low = states_of(decompose, "precision: {param: f16, loss_scale: 0}", 0);
  seen *high = states_of(decompose, "precision: {param: f16, loss_scale: 3}", 0);
  assert_false(is_same(&low[0], &low[1]));
  assert_true(is_same(&low[1], &high[1]));
  assert_false(low[1].skipped || high[1].skipped);
  forget(low);
  forget(high);
}

static void sources_that_take_no_step_up_stay(void **state) {
  seen *s = states_of(decompose, "ascent: {steps: 0}", 0);
  assert_true(is_same(&s[0], &s[2]));
  forget(s);
}

/* Microbatches of two samples and of one, on three ranks: the first rank has no samples, so its sources are empty,
 * though they take part in the ascent. */
static void sources_of_a_rank_without_samples_are_none(void **state) {
  seen *whole = states_of(decompose, "", 0), *s = states_of(decompose_on_three, "", 0);
  assert_true(s[2].count < whole[2].count / 3);
  forget(whole);
  forget(s);
}

static void a_balancing_bias_stays_where_a_step_is_skipped(void **state) {
  seen *s = states_of(moe, "precision: {param: f16, loss_scale: 2}", 1);
  assert_false(s[1].skipped);
  assert_true(s[2].skipped);
  assert_false(is_same(&s[0], &s[1]));
  assert_true(is_same(&s[1], &s[2]));
  forget(s);
}

/* A recipe whose target has 4 matrices in each layer. */
static ad_status recipe_of_layers(int layers, ad_recipe **out) {
  char text[1024];
  snprintf(
      text, sizeof text,
      "name: tiny\nmodel: {kind: decompose, layers: %d, d_model: 4, heads: 1, d_hidden: 4}\n"
      "data: {text: [/usr/share/common-licenses], seq: 2}\nimportance: {layers: 1, d_model: 4, heads: 1}\n"
      "sites: [{match: \"*.attn.*\", components: 1}]\nlosses: {adversarial: {coefficient: 3}}\nascent: {steps: 1}\n"
      "mesh: {ci: dp=1, blocks: \"block=1 dp=1\", adv: dp=1}\nplacement: colocated\n"
      "train: {steps: 4, lr: 1e-3, seed: 4, global_batch: 1}\n",
      layers);
  return ad_recipe_parse(text, "tiny.yaml", NULL, 0, out);
}

static int take_one_step(ad_comm *comm, void *context) {
  const ad_run_options options = {.size = sizeof options, .quiet = 1};
  ad_step_report report;
  ad_run *run;
  CHECK_OK(ad_run_create(comm, context, &options, &run));
  CHECK_OK(ad_run_step(run, 0, &report));
  ad_run_destroy(run);
  return 0;
}

static void an_adversary_attacks_512_matrices_and_no_more(void **state) {
  ad_recipe *most = NULL, *more = NULL;
  must(recipe_of_layers(128, &most));
  run_ranks(1, take_one_step, most);
  ad_recipe_destroy(most);
  assert_int_equal(recipe_of_layers(129, &more), AD_INVALID);
  assert_says("516", "512");
}

/* Takes a first step, in this process, in which allocation number `n` fails; *made: how many there were. */
static ad_status step_without(const ad_recipe *recipe, long n, long *made) {
  const ad_run_options options = {.size = sizeof options, .quiet = 1};
  ad_step_report report;
  ad_comm *comm;
  ad_run *run;
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, &options, &run));
  ad_memory_fail_at(n);
  ad_status status = ad_run_step(run, 0, &report);
  *made = ad_memory_fail_at(0);
  ad_run_destroy(run);
  ad_comm_close(comm);
  return status;
}

/* If making the adversary's inputs fails, the adversary does not climb, and the step reports the first error. A tape's
 * reset can do without memory. */
static void what_stops_a_phase_is_what_the_step_says(void **state) {
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(decompose, "tiny.yaml", NULL, 0, &recipe));
  long n = 0, made;
  do {
    ad_status status = step_without(recipe, ++n, &made);
    if (status && (made < n || status != AD_MEMORY)) fail_msg("allocation %ld: %s", n, ad_last_error());
    assert_true(n < 1000);
  } while (made >= n);
  assert_true(n > 20);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sources_climb_identically_at_any_loss_scale),
      cmocka_unit_test(sources_that_take_no_step_up_stay),
      cmocka_unit_test(sources_of_a_rank_without_samples_are_none),
      cmocka_unit_test(a_balancing_bias_stays_where_a_step_is_skipped),
      cmocka_unit_test(an_adversary_attacks_512_matrices_and_no_more),
      cmocka_unit_test(what_stops_a_phase_is_what_the_step_says),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
