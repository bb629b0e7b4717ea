/* Tests a plan's memory against what the kernel counts of ranks that train: within 5 % for every rank and
 * for the node. */
#include "draw.h"
#include "ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/process.h"
#include "plan/plan.h"
#include "step/run.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

static const double tolerance = 0.05;

typedef struct measured_case {
  const char *mesh, *precision, *shard, *train, *checkpoint;
} measured_case;

static ad_recipe *recipe_of(const measured_case *c) {
  char text[1024];
  snprintf(text, sizeof text,
           "name: memory\nmodel: {kind: gpt, layers: 4, d_model: 384, heads: 6}\n"
           "data: {text: [/usr/share/common-licenses], seq: 32}\nmesh: \"%s\"\nprecision: {%s}\nshard: {%s}\n"
           "train: {global_batch: 8, steps: 3, lr: 1e-3%s}\n%s",
           c->mesh, c->precision, c->shard, c->train, c->checkpoint);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "memory.yaml", NULL, 0, &recipe));
  return recipe;
}

typedef struct job {
  const ad_recipe *recipe;
  const json_t *plan;
  const char *folder;
} job;

static double planned_peak(const job *j, const char *list, size_t index) {
  const json_t *entry = json_array_get(json_object_get(j->plan, list), index);
  return (double)json_integer_value(json_object_get(entry, "peak"));
}

/* No plan has a sanitizer's memory or what hostile ranks keep, so with these only too little memory is an error. */
static int counts_only_addend(void) {
#if defined(AD_SANITIZED)
  return 0;
#else
  return !getenv("ADDEND_HOSTILE");
#endif
}

static void expect_close(double held, double planned, const char *what, int64_t index) {
  double more = held / planned - 1;
  if (more >= -tolerance && (more <= tolerance || !counts_only_addend())) return;
  fprintf(stderr, "%s %d holds %.1f MiB, %.1f were planned\n", what, (int)index, held / (1 << 20), planned / (1 << 20));
  CHECK(!"within 5 %");
}

/* Saves after each step, so that checkpoint copies exist, and measures once all ranks are done. */
static void train_and_measure(ad_run *run, const job *j, ad_run_memory *out) {
  ad_checkpointer *checkpointer = NULL;
  ad_step_report report;
  int saves = j->recipe->checkpoint.every > 0;
  if (saves) CHECK_OK(ad_checkpointer_create(ad_run_comm(run), ad_run_everyone(run).mesh, j->folder, 1, &checkpointer));
  for (int64_t step = 0; step < j->recipe->train.steps; step++) {
    CHECK_OK(ad_run_step(run, step, &report));
    if (saves) CHECK_OK(ad_run_save(run, checkpointer, step + 1));
  }
  if (saves) CHECK_OK(ad_checkpointer_finish(checkpointer));
  CHECK_OK(ad_run_measure_memory(run, out));
  expect_close((double)ad_process_pss(), planned_peak(j, "memory_per_rank", (size_t)ad_comm_rank(ad_run_comm(run))),
               "rank", ad_comm_rank(ad_run_comm(run)));
  ad_checkpointer_destroy(checkpointer);
}

/* All ranks keep their memory until the last one has measured. */
static int holds_what_was_planned(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run *run;
  ad_run_memory memory;
  CHECK_OK(ad_run_create(comm, j->recipe, NULL, &run));
  train_and_measure(run, j, &memory);
  expect_close((double)memory.all_bytes, planned_peak(j, "memory_per_node", 0), "node", 0);
  CHECK_OK(ad_run_measure_memory(run, &memory));
  ad_run_destroy(run);
  return 0;
}

static void measure_recipe(ad_recipe *recipe) {
  char folder[] = "/tmp/addend-memory-XXXXXX", command[64];
  job j = {.recipe = recipe, .folder = mkdtemp(folder)};
  int64_t ranks;
  json_t *plan;
  assert_non_null(j.folder);
  must(ad_recipe_world(j.recipe, &ranks));
  must(ad_plan_document(j.recipe, NULL, &plan));
  j.plan = plan;
  run_ranks(ranks, holds_what_was_planned, &j);
  json_decref(plan);
  ad_recipe_destroy(recipe);
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
}

enum { CASES = 25, TAKEN = 4 };
static draw drawn;
static int number;  // number of cases so far, drawn or not

static void measure(const measured_case *c) {
  if (is_drawn(&drawn, number++)) measure_recipe(recipe_of(c));
}

static const char f32[] = "", bf16[] = "param: bf16";

static void every_zero_level_holds_what_was_planned(void **state) {
  static const char *const levels[] = {"zero: 0", "zero: 1", "zero: 2", "zero: 3"};
  for (int i = 0; i < 4; i++) {
    measure(&(measured_case){"dp_shard=2", f32, levels[i], "", ""});
    measure(&(measured_case){"dp_shard=2", bf16, levels[i], "", ""});
  }
}

static void hybrid_sharding_holds_what_was_planned(void **state) {
  measure(&(measured_case){"dp_replicate=2 dp_shard=2", f32, "zero: 1", ", microbatches: 2", ""});
  measure(&(measured_case){"dp_replicate=2 dp_shard=2", bf16, "zero: 2", ", microbatches: 2", ""});
  measure(
      &(measured_case){"dp_replicate=2 dp_shard=2", f32, "zero: 3", ", microbatches: 3, sync: [none, all, all]", ""});
}

/* Ranks read each other's memory unevenly here, and the kernel counts a part of it as theirs. */
static void updates_on_whole_matrices_hold_what_was_planned(void **state) {
  measure(&(measured_case){"dp_replicate=3 dp_shard=2", f32, "zero: 3", "",
                           "optimizer: {kind: muon, muon: {way: dealt_to_replicas}}\n"
                           "groups: [{match: \"embedding.*\", kind: adamw}, {match: \"*norm*\", kind: adamw}]\n"});
}

static void ranks_without_rows_hold_what_was_planned(void **state) {
  measure(&(measured_case){"dp_replicate=3 dp_shard=1", f32, "zero: 2", ", microbatches: 5", ""});
}

static void copies_for_checkpoints_are_planned(void **state) {
  measure(&(measured_case){"dp_replicate=2 dp_shard=2", f32, "zero: 1", "", "checkpoint: {every: 1}\n"});
  measure(&(measured_case){"dp_shard=2", bf16, "zero: 3", "", "checkpoint: {every: 1}\n"});
}

static void computing_in_bf16_holds_what_was_planned(void **state) {
  measure(&(measured_case){"dp_shard=2", "compute: bf16", "zero: 1", ", microbatches: 2", ""});
}

/* An encoder's and a model's ranks, whose largest allocations differ. */
static void pools_hold_what_was_planned(void **state) {
  ad_recipe *recipe = NULL;
  if (!is_drawn(&drawn, number++)) return;
  must(
      ad_recipe_parse("name: memory\nmodel: {kind: ocr, encoder_layers: 3, encoder_d_model: 384, encoder_heads: 6,"
                      " patch: 8, layers: 4, d_model: 384, heads: 6}\n"
                      "data: {text: [/usr/share/common-licenses],"
                      " fonts: [/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf], chars: 24, height: 16, width: 64,"
                      " sizes: [9, 11]}\n"
                      "mesh: {encoder: \"dp=2\", model: \"dp=1 cp=2\"}\nplacement: disjoint\n"
                      "train: {global_batch: 8, microbatches: 2, steps: 3, lr: 1e-3}\n",
                      "memory.yaml", NULL, 0, &recipe));
  measure_recipe(recipe);
}

/* Three pools, each of which must hold only its own: the blocks their sites, the adversary its sources and a second
 * tape. There are so many components that 5 % of the smallest rank exceeds the 2 to 4 MiB by which processes differ
 * anyway, depending on the addresses of heaps and libraries. */
static void pools_of_a_decomposition_hold_what_was_planned(void **state) {
  ad_recipe *recipe = NULL;
  must(
      ad_recipe_parse("name: memory\nmodel: {kind: decompose, layers: 1, d_model: 128, heads: 4}\n"
                      "data: {text: [/usr/share/common-licenses], seq: 32}\n"
                      "importance: {layers: 1, d_model: 256, heads: 4}\n"
                      "sites: [{match: \"blocks.*\", components: 1536}]\n"
                      "mesh: {ci: \"dp=1\", blocks: \"block=2 dp=1\", adv: \"dp=1\"}\nplacement: disjoint\n"
                      "train: {global_batch: 8, microbatches: 1, steps: 2, lr: 1e-3}\n",
                      "memory.yaml", NULL, 0, &recipe));
  measure_recipe(recipe);
}

/* A pipeline's ranks, whose memory is mostly activations of the microbatches in flight. Samples are so long that 5 % of
 * the smallest rank exceeds what processes differ by anyway. */
static void measure_pipeline(const char *schedule, int ranks, int stages) {
  char text[1024];
  ad_recipe *recipe = NULL;
  if (!is_drawn(&drawn, number++)) return;
  snprintf(text, sizeof text,
           "name: memory\nmodel: {kind: gpt, layers: 6, d_model: 256, heads: 4}\n"
           "data: {text: [/usr/share/common-licenses], seq: 448}\nmesh: \"pp=%d\"\n"
           "schedule: {kind: %s, stages: %d}\n"
           "train: {global_batch: 8, microbatches: 8, steps: 3, lr: 1e-3}\n",
           ranks, schedule, stages);
  must(ad_recipe_parse(text, "memory.yaml", NULL, 0, &recipe));
  measure_recipe(recipe);
}

static void pipelines_hold_what_was_planned(void **state) {
  for (int ranks = 2; ranks <= 3; ranks++) {
    measure_pipeline("gpipe", ranks, ranks);
    measure_pipeline("1f1b", ranks, ranks);
    measure_pipeline("interleaved", ranks, 2 * ranks);
    measure_pipeline("zb", ranks, ranks);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(copies_for_checkpoints_are_planned),        // always runs: it uses threads
      cmocka_unit_test(computing_in_bf16_holds_what_was_planned),  // always runs: it measures oneDNN's memory
      cmocka_unit_test(every_zero_level_holds_what_was_planned),
      cmocka_unit_test(hybrid_sharding_holds_what_was_planned),
      cmocka_unit_test(updates_on_whole_matrices_hold_what_was_planned),
      cmocka_unit_test(ranks_without_rows_hold_what_was_planned),
      cmocka_unit_test(pools_hold_what_was_planned),
      cmocka_unit_test(pools_of_a_decomposition_hold_what_was_planned),
      cmocka_unit_test(pipelines_hold_what_was_planned),
  };
  drawn = draw_cases("memory of recipes", CASES, 3, 3 + TAKEN);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  return failed || number != CASES;
}
