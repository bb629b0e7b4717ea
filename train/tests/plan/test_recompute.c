/* Tests train.recompute: steps in which layers run again have the losses, norms, gradients and parameters of steps
 * without, bit for bit, for programs on meshes of every kind; tapes hold less, and what the plan says. */
#include "says.h"
#include "../step/world.h"

#include <math.h>
#include "base/injection.h"
#include "module/module.h"
#include "plan/plan.h"
#include "step/run.h"

enum { RANKS_MAX = 16, STEPS = 2, PARAMS_MAX = 512 };

/* What one rank has after the steps: a hash of each gradient and parameter, and the bytes of its tapes. */
typedef struct seen {
  ad_step_report report[STEPS];
  uint64_t gradient[RANKS_MAX][STEPS][PARAMS_MAX], value[RANKS_MAX][PARAMS_MAX];
  size_t bytes[RANKS_MAX], again[RANKS_MAX], kept[RANKS_MAX];
} seen;

typedef struct job {
  const ad_recipe *recipe;
  seen *seen;
} job;

static uint64_t hash_of(const ad_array *array) {
  const unsigned char *byte = array ? array->data : NULL;
  uint64_t hash = 14695981039346656037u; /* FNV-1a */
  for (size_t i = 0; byte && i < ad_array_bytes(array); i++) hash = (hash ^ byte[i]) * 1099511628211u;
  return hash;
}

static void note(uint64_t *to, ad_run *run, ad_param_part part) {
  for (size_t i = 0; i < ad_run_param_count(run); i++)
    if (ad_run_param_at(run, i).held) to[i] = hash_of(ad_run_part(run, i, part));
}

static size_t runs[2]; /* how many operations of layers ran again, and how many choices were kept */

static void count_runs(void *context, void *passing) {
  const ad_rerun_passing *at = passing;
  (void)context;
  runs[0] += at->out->runs_again;
  runs[1] += !strcmp(at->out->op->name, "top_k");
  if (!strcmp(at->out->op->name, "top_k") && at->out->runs_again) abort();
}

static int take_steps(ad_comm *comm, void *context) {
  job *j = context;
  int64_t rank = ad_comm_rank(comm);
  ad_run *run;
  runs[0] = runs[1] = 0;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, NULL, &run));
  if (ad_run_param_count(run) > PARAMS_MAX) abort();
  ad_injection_set(AD_INJECT_RERUN, (ad_injection){count_runs, NULL});
  for (int step = 0; step < STEPS; step++) {
    RANK_MUST(comm, ad_run_step(run, step, &j->seen->report[step]));
    note(j->seen->gradient[rank][step], run, AD_PART_GRADIENT);
  }
  note(j->seen->value[rank], run, AD_PART_VALUE);
  j->seen->bytes[rank] = ad_run_tape_bytes(run) + ad_transfers_bytes(run);
  j->seen->again[rank] = runs[0];
  j->seen->kept[rank] = runs[1];
  ad_injections_clear();
  ad_run_destroy(run);
  return 0;
}

static ad_recipe *read(const char *name, const char *const *sets, size_t count) {
  char path[512];
  ad_recipe *recipe;
  snprintf(path, sizeof path, AD_TEST_SOURCE "/recipes/%s.yaml", name);
  if (ad_recipe_read(path, sets, count, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}

static seen *steps_of(const ad_recipe *recipe, int64_t ranks) {
  job j = {recipe, shared_memory(sizeof(seen))};
  ad_launch_result result = {.size = sizeof result};
  if (launch(ranks, take_steps, &j, &result)) fail_msg("%s: %s", recipe->name, result.message);
  return j.seen;
}

static void same_bits(const char *name, const seen *a, const seen *b) {
  for (int step = 0; step < STEPS; step++) {
    if (a->report[step].loss != b->report[step].loss || a->report[step].norm != b->report[step].norm)
      fail_msg("%s, step %d: loss %.17g and %.17g", name, step, a->report[step].loss, b->report[step].loss);
  }
  if (memcmp(a->gradient, b->gradient, sizeof a->gradient)) fail_msg("%s: another gradient", name);
  if (memcmp(a->value, b->value, sizeof a->value)) fail_msg("%s: another value", name);
}

/* Compares the bytes of every rank with the plan, where rows do not depend on what experts are chosen. */
static void as_planned(const ad_recipe *recipe, const seen *of, int64_t ranks) {
  json_t *plan;
  must(ad_plan_document(recipe, NULL, &plan));
  for (int64_t rank = 0; rank < ranks; rank++) {
    const json_t *planned = json_array_get(json_object_get(plan, "memory_per_rank"), (size_t)rank);
    double bytes = (double)json_integer_value(json_object_get(planned, "activations"));
    if (fabs((double)of->bytes[rank] / bytes - 1) > 0.05)
      fail_msg("%s, rank %d: tapes have %zu bytes, and %g are planned", recipe->name, (int)rank, of->bytes[rank],
               bytes);
  }
  json_decref(plan);
}

/* Takes the recipe's steps without and with layers that run again. */
static void compare(const char *name, const char *layers, const char *first, const char *second) {
  const char *sets[] = {layers, first, second};
  size_t count = 1 + (first != NULL) + (second != NULL);
  int64_t ranks;
  ad_recipe *with = read(name, sets, count);
  sets[0] = "train.recompute=none";
  ad_recipe *without = read(name, sets, count);
  must(ad_recipe_world(with, &ranks));
  assert_true(ranks <= RANKS_MAX);
  seen *a = steps_of(without, ranks), *b = steps_of(with, ranks);
  same_bits(name, a, b);
  size_t before = 0, after = 0, again = 0;
  for (int64_t rank = 0; rank < ranks; rank++) {
    assert_int_equal(a->again[rank], 0);
    before += a->bytes[rank];
    after += b->bytes[rank];
    again += b->again[rank];
    if (!strncmp(name, "moe", 3) && b->again[rank]) assert_true(b->kept[rank] > 0);
  }
  if (!again || after >= before) fail_msg("%s: %zu run again, %zu bytes and %zu without", name, again, after, before);
  print_message("%s %s %s: %zu bytes, %zu with layers that run again\n", name, first ? first : "", second ? second : "",
                before, after);
  if (strncmp(name, "moe", 3)) as_planned(with, b, ranks);
  munmap(a, sizeof *a);
  munmap(b, sizeof *b);
  ad_recipe_destroy(with);
  ad_recipe_destroy(without);
}

#define LAYERS "train.recompute=layers"

static void decoders_have_the_same_bits(void **state) {
  compare("gpt-tp", LAYERS, "mesh=dp_shard=1 tp=3", NULL);
  compare("gpt-tp", LAYERS, "precision.compute=bf16", NULL);
  compare("gpt-tp-sp", LAYERS, NULL, NULL);
  compare("gpt-cp", LAYERS, NULL, NULL);
  compare("gpt-3d", LAYERS, "model.layers=2", NULL);
  compare("gpt-dp", "train.recompute=[blocks.0]", NULL, NULL);
}

static void units_of_zero_3_are_gathered_once_for_both(void **state) {
  compare("gpt-tp", LAYERS, "mesh=dp_shard=3 tp=1", "shard.zero=3");
  compare("gpt-tp", LAYERS, "mesh=dp_replicate=1 dp_shard=2 tp=3", "shard.zero=3");
}

static void leaves_have_the_same_bits(void **state) {
  compare("gpt-leaves", LAYERS, NULL, NULL);
  compare("gpt-leaves", LAYERS, "shard.zero=3", NULL);
  compare("moe-leaves", LAYERS, NULL, NULL);
}

static void experts_are_not_chosen_again(void **state) {
  compare("moe-dp2ep", LAYERS, NULL, NULL);
  compare("moe-tp2ep", LAYERS, NULL, NULL);
  compare("moe-balance", LAYERS, NULL, NULL);
  compare("moe-empty", LAYERS, NULL, NULL);
}

static void pipelines_have_the_same_bits(void **state) {
  compare("gpt-pp", LAYERS, "schedule.kind=1f1b", NULL);
  compare("gpt-pp", LAYERS, "schedule.kind=zb", NULL);
  compare("gpt-pp", LAYERS, "schedule={kind: interleaved, stages: 4, layers: [1, 1, 0, 1]}", NULL);
  compare("moe-pp", LAYERS, NULL, NULL);
}

static void modules_have_the_same_bits(void **state) {
  compare("ocr-disjoint", LAYERS, NULL, NULL);
  compare("ocr-ragged", "train.recompute=[model.*]", "model.layers=3", NULL);
}

static void refused(const char *set, const char *const *facts) {
  ad_recipe *recipe;
  assert_int_equal(ad_recipe_read(AD_TEST_SOURCE "/recipes/gpt-tp.yaml", &set, 1, &recipe), AD_INVALID);
  assert_says_in(set, ad_last_error(), facts);
}

static void patterns_name_layers(void **state) {
  refused("train.recompute=[embedding.*]", SAYS_FACTS("train.recompute", "embedding.*", "blocks.0", "blocks.1"));
  refused("train.recompute=[layers, blocks.0]", SAYS_FACTS("train.recompute", "layers"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(decoders_have_the_same_bits),  cmocka_unit_test(units_of_zero_3_are_gathered_once_for_both),
      cmocka_unit_test(leaves_have_the_same_bits),    cmocka_unit_test(experts_are_not_chosen_again),
      cmocka_unit_test(pipelines_have_the_same_bits), cmocka_unit_test(modules_have_the_same_bits),
      cmocka_unit_test(patterns_name_layers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
