/* Tests public functions that otherwise only the command line calls, and what a run, a reducer and an optimizer say of
 * themselves. */
#include "ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "addend/addend.h"
#include "comm/dry.h"
#include "module/module.h"
#include "reduce/plan.h"
#include "says.h"
#include "step/run.h"
#include "comm/shared.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

enum { TEXT_BYTES = 4000, SEQ = 12 };
static char folder[] = "/tmp/addend-direct-XXXXXX", text_path[64];

static int write_text(void **state) {
  if (!mkdtemp(folder)) return 1;
  snprintf(text_path, sizeof text_path, "%s/text", folder);
  FILE *file = fopen(text_path, "w");
  for (int i = 0; file && i < TEXT_BYTES; i++) fputc('a' + i * i % 23, file);
  return !file || fclose(file);
}

static int remove_text(void **state) { return remove(text_path) || remove(folder); }

static ad_recipe *recipe_of(const char *mesh, int zero) {
  char text[1024];
  snprintf(text, sizeof text,
           "name: direct\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\ndata: {text: [%s], seq: %d}\n"
           "mesh: \"%s\"\nshard: {zero: %d}\ntrain: {global_batch: 4, steps: 1, lr: 1e-2}\n",
           text_path, SEQ, mesh, zero);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "direct.yaml", NULL, 0, &recipe));
  return recipe;
}

/* ---- checks ---- */

static void check_document(const char *text) {
  json_t *document = json_loads(text, 0, NULL);
  CHECK(document && json_integer_value(json_object_get(document, "world")) == 2);
  CHECK(json_is_true(json_object_get(json_object_get(document, "summary"), "pass")));
  json_decref(document);
}

static int checks_itself(ad_comm *comm, void *context) {
  int holds = 0;
  char *text = (char *)folder, *table = NULL; /* not NULL: every rank must set it */
  CHECK_OK(ad_check_on(comm, context, NULL, &holds, &text));
  CHECK(holds == 1);
  CHECK((text != NULL) == (ad_comm_rank(comm) == 0));
  if (!text) return 0;
  check_document(text);
  CHECK_OK(ad_check_table(text, AD_PLAIN_TEXT, &table));
  CHECK(!strncmp(table, "matches one process", 19) && strstr(table, "\nmatches one process") && !strchr(table, '\033'));
  free(table);
  CHECK_OK(ad_check_table(text, AD_COLOURED_TEXT, &table));
  CHECK(strchr(table, '\033') != NULL);
  free(table);
  CHECK_STATUS(ad_check_table("no document", AD_PLAIN_TEXT, &table), AD_INVALID);
  CHECK_SAYS("JSON", "line 1");
  free(text);
  return 0;
}

static void ranks_that_are_there_check_their_recipe(void **state) {
  ad_recipe *recipe = recipe_of("dp_shard=2", 2);
  run_ranks(2, checks_itself, recipe);
  ad_recipe_destroy(recipe);
}

static int refuses_what_needs_other_ranks(ad_comm *comm, void *context) {
  ad_check_options mutant = {.size = sizeof mutant, .mutate = 1};
  int holds = 0;
  char *text = NULL;
  CHECK_STATUS(ad_check_on(comm, context, &mutant, &holds, &text), AD_INVALID);
  CHECK_LISTED();
  CHECK(!text);
  return 0;
}

static void a_check_on_given_ranks_refuses_to_mutate(void **state) {
  ad_recipe *recipe = recipe_of("dp_shard=2", 2);
  run_ranks(2, refuses_what_needs_other_ranks, recipe);
  ad_recipe_destroy(recipe);
}

/* ---- worlds ---- */

/* What this program does when the test `a_started_program_knows_that_it_is_a_rank` starts it as a rank. */
static int be_started(void) {
  ad_comm *comm;
  if (!ad_comm_launched() || ad_comm_open(&comm)) return 1;
  int joined = ad_comm_size(comm) == 2;
  ad_comm_close(comm);
  return joined ? 0 : 2;
}

static void a_started_program_knows_that_it_is_a_rank(void **state) {
  char *argv[] = {"/proc/self/exe", "started", NULL};
  ad_launch_options options = {.size = sizeof options, .ranks = 2, .argv = argv};
  ad_launch_result result = {.size = sizeof result};
  if (!getenv("ADDEND_TEST_MPIRUN")) assert_false(ad_comm_launched());
  must(ad_launch(&options, &result));
  assert_int_equal(result.exit_status, 0);
}

static void ranks_on_backend_dry_share_memory_by_node(void **state) {
  ad_comm *comm;
  ad_mesh *mesh;
  must(ad_mesh_create("dp_replicate=2 dp_shard=2", &mesh));
  ad_group node = ad_mesh_group(mesh, AD_AXES(AD_DP_SHARD), 2), world = ad_mesh_group(mesh, AD_AXES_DP, 2);
  for (int64_t ranks_per_node = 0; ranks_per_node <= 5; ranks_per_node++) {
    must(ad_comm_open_dry_nodes(2, 4, ranks_per_node, &comm));
    int all = ranks_per_node == 0 || ranks_per_node >= 4; /* with 3 ranks a node, ranks 2 and 3 are on two nodes */
    assert_int_equal(ad_comm_shares(comm, &world), all);
    assert_int_equal(ad_comm_shares(comm, &node), all || ranks_per_node == 2);
    ad_comm_close(comm);
  }
  assert_int_equal(ad_comm_open_dry_nodes(2, 4, -1, &comm), AD_INVALID);
  assert_says("ranks_per_node", "-1");
  ad_mesh_destroy(mesh);
}

static void every_axis_is_parsed_from_its_name(void **state) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_axes axes;
    must(ad_axes_parse(ad_axis_name((ad_axis)axis), &axes));
    assert_int_equal(axes, AD_AXES(axis));
  }
  assert_string_equal(ad_axis_name(AD_AXIS_COUNT), "unknown");
}

/* ---- optimizers ---- */

/* Bias correction divides both moments by 1 - beta^t. */
static void loaded_steps_count_in_the_bias_correction(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp=1", &mesh));
  float value = 0, gradient = 1;
  ad_array param = {.dtype = AD_F32, .shape = {1, {1}}, .local = {1, {1}}, .layout = ad_layout_all(mesh, AD_R)};
  ad_array grad = param, *params[] = {&param};
  const ad_array *read[] = {&param}, *grads[] = {&grad};
  ad_optimizer *optimizer;
  param.data = &value, grad.data = &gradient;
  must(ad_optimizer_create(read, NULL, 1, NULL, &optimizer));
  must(ad_optimizer_set_steps(optimizer, 9));
  assert_int_equal(ad_optimizer_set_steps(optimizer, -1), AD_INVALID);
  assert_int_equal(ad_optimizer_steps(optimizer), 9);
  must(ad_optimizer_step(optimizer, params, grads, 1, 1));
  double first = 0.1 / (1 - pow(0.9, 10)), second = 0.05 / (1 - pow(0.95, 10));
  assert_true(fabs(value + first / sqrt(second)) < 1e-5);
  assert_int_equal(ad_optimizer_steps(optimizer), 10);
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(mesh);
}

/* ---- plans ---- */

static void a_plan_is_a_document_and_a_table(void **state) {
  ad_recipe *recipe = recipe_of("dp_replicate=2 dp_shard=4", 2);
  ad_plan_options nodes = {.size = sizeof nodes, .ranks_per_node = 4}, wrong = {.size = sizeof wrong};
  char *text, *table;
  wrong.ranks_per_node = -1;
  must(ad_plan_json(recipe, &nodes, &text));
  json_t *plan = json_loads(text, 0, NULL);
  assert_int_equal(json_integer_value(json_object_get(plan, "world")), 8);
  assert_int_equal(json_array_size(json_object_get(plan, "memory_per_rank")), 8);
  assert_int_equal(json_array_size(json_object_get(plan, "memory_per_node")), 2);
  json_decref(plan);
  free(text);
  must(ad_plan_table(recipe, NULL, &table));
  assert_text_says(table, "8", "dp_replicate=2", "dp_shard=4");
  assert_text_says(table, "reduce_scatter", "dp_shard");
  free(table);
  assert_int_equal(ad_plan_json(recipe, &wrong, &text), AD_INVALID);
  ad_recipe_destroy(recipe);
}

/* ---- the parts of a run ---- */

static size_t numel_of(ad_run *run) {
  size_t numel = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++)
    numel += (size_t)ad_shape_numel(&ad_run_param_at(run, i).spec->shape);
  return numel;
}

static int parts_fit_together(ad_comm *comm, void *context) {
  ad_run *run;
  ad_step_report report;
  size_t checkpoint, parts = 0;
  CHECK_OK(ad_run_create(comm, context, NULL, &run));
  CHECK_OK(ad_run_step(run, 0, &report));
  ad_module *module = ad_run_module(run, 0);
  CHECK(ad_module_param_count(module) == ad_run_param_count(run));
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    CHECK(ad_module_find(module, ad_run_param_at(run, i).spec->name) == i);
    CHECK(ad_run_part(run, i, AD_PART_VALUE) == ad_store_value(ad_module_store(module), i));
    CHECK(ad_run_part(run, i, AD_PART_GRADIENT) == ad_reducer_gradient(ad_module_reducer(module), i));
    parts += ad_array_bytes(ad_run_part(run, i, AD_PART_VALUE));
  }
  /* The text, and the tokens and targets of this rank's 4 / 2 rows. */
  CHECK(ad_run_data_bytes(run) == TEXT_BYTES + 2 * (4 / 2) * SEQ * sizeof(int32_t));
  CHECK_OK(ad_run_checkpoint_bytes(run, &checkpoint));
  /* in f32: values and both moments of the rank's own shards, which no other rank holds */
  CHECK(checkpoint == 3 * parts);
  CHECK(ad_store_bytes(ad_module_store(module)) == parts);
  /* The buckets hold full gradients; the sums of the rank's own shards are kept beside them. */
  CHECK(ad_reducer_sum_bytes(ad_module_reducer(module)) == parts);
  CHECK(ad_reducer_bytes(ad_module_reducer(module)) == parts + 4 * numel_of(run));
  ad_run_destroy(run);
  return 0;
}

static void the_parts_of_a_run_fit_together(void **state) {
  ad_recipe *recipe = recipe_of("dp_shard=2", 2);
  run_ranks(2, parts_fit_together, recipe);
  ad_recipe_destroy(recipe);
}

static void the_folder_of_a_run_is_made_or_refused(void **state) {
  char path[96], lock[96];
  struct stat is;
  ad_recipe *recipe = recipe_of("dp=1", 0);
  snprintf(path, sizeof path, "%s/runs/deep", folder);
  ad_train_options options = {.size = sizeof options, .folder = path}, below = options;
  must(ad_train_make_folder(recipe, &options));
  must(ad_train_make_folder(recipe, &options)); /* the folder exists */
  assert_true(!stat(path, &is) && S_ISDIR(is.st_mode));
  snprintf(path, sizeof path, "%s/runs/deep/.lock", folder);
  assert_int_equal(unlink(path), 0);
  snprintf(path, sizeof path, "%s/runs/deep", folder);
  assert_int_equal(rmdir(path), 0);
  snprintf(path, sizeof path, "%s/runs", folder);
  assert_int_equal(rmdir(path), 0);
  snprintf(path, sizeof path, "%s/run", text_path); /* a path below a file */
  below.folder = path;
  options.folder = folder;
  options.resume = 1; /* nothing was written there, so the run begins at the start */
  must(ad_train_make_folder(recipe, &options));
  snprintf(lock, sizeof lock, "%s/.lock", folder);
  assert_int_equal(unlink(lock), 0);
  assert_int_equal(ad_train_make_folder(recipe, &below), AD_IO);
  assert_says(text_path);
  ad_recipe_destroy(recipe);
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "started")) return be_started();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_that_are_there_check_their_recipe),
      cmocka_unit_test(a_check_on_given_ranks_refuses_to_mutate),
      cmocka_unit_test(a_started_program_knows_that_it_is_a_rank),
      cmocka_unit_test(ranks_on_backend_dry_share_memory_by_node),
      cmocka_unit_test(every_axis_is_parsed_from_its_name),
      cmocka_unit_test(loaded_steps_count_in_the_bias_correction),
      cmocka_unit_test(a_plan_is_a_document_and_a_table),
      cmocka_unit_test(the_parts_of_a_run_fit_together),
      cmocka_unit_test(the_folder_of_a_run_is_made_or_refused),
  };
  return cmocka_run_group_tests(tests, write_text, remove_text);
}
