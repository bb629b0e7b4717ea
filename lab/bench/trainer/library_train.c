/* Makes recipes of the measured models and runs training steps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measured.h"
#include "program/program.h"
#include "recipe/recipe.h"
#include "step/run.h"

static const char RECIPE[] =
    "name: bench\n"
    "model: {kind: gpt, layers: %d, d_model: %d, heads: %d, tied: false, sequence_parallel: %s}\n"
    "data: {text: [/usr/share/common-licenses], seq: %d}\n"
    "mesh: \"%s\"\n"
    "precision: {param: %s, reduce: %s, compute: %s}\n"
    "shard: {zero: %d}\n"
    "train: {global_batch: %d, microbatches: %d, leaves: %d, steps: 1000000, lr: 1e-4, clip: 1.0, seed: 1}\n"
    "%s%s";

ad_status bench_recipe(const bench_setting *setting, ad_recipe **out) {
  const bench_model *model = setting->model;
  char text[sizeof RECIPE + 512];
  int zero = strncmp(setting->storage, "zero", 4) ? 0 : atoi(setting->storage + 4);
  snprintf(text, sizeof text, RECIPE, model->layers, model->d_model, model->heads, setting->sequence ? "true" : "false",
           model->seq, setting->mesh, setting->dtype, setting->dtype, setting->compute, zero, model->batch,
           setting->microbatches, setting->leaves, setting->schedule, setting->optimizer);
  return ad_recipe_parse(text, "bench", NULL, 0, out);
}

bench_setting bench_setting_of(const bench_model *model, const char *axis, int64_t ranks) {
  bench_setting setting = {
      .model = model, .storage = "whole", .dtype = "f32", .compute = "f32", .microbatches = 1, .optimizer = ""};
  snprintf(setting.mesh, sizeof setting.mesh, "%s=%lld", axis, (long long)ranks);
  return setting;
}

/* Returns the setting of a pipeline step with one sample per microbatch; one rank runs the same microbatches without
 * a pipeline. If `splits_batch` is 1, the step is data parallel instead: each rank has the whole model and a part of
 * the batch. */
static bench_setting pipeline_setting(const bench_model *model, const bench_task *task, int64_t ranks,
                                      int splits_batch) {
  bench_setting setting = bench_setting_of(model, splits_batch ? "dp_replicate" : "pp", ranks);
  int stages = (int)ranks * (strcmp(task->storage, "interleaved") ? 1 : 2);
  setting.microbatches = splits_batch ? model->batch / (int)ranks : model->batch;
  if (ranks > 1 && !splits_batch)
    snprintf(setting.schedule, sizeof setting.schedule, "schedule: {kind: %s, stages: %d}\n", task->storage, stages);
  return setting;
}

/* Sets the setting's leaves: each sample is a leaf, and each microbatch of a rank has one leaf. If `plain` is 1,
 * only the microbatches are set; if it is 2, a single microbatch. */
static void set_leaves(bench_setting *setting, int64_t ranks, int plain) {
  int batch = setting->model->batch;
  if (!plain) setting->leaves = batch;
  if (plain < 2) setting->microbatches = batch / (int)ranks;
}

/* In a parallel_step two ranks share each matrix (tp=2); with more ranks, FSDP shards parameters over the pairs. */
bench_setting bench_step_setting(const bench_model *model, const bench_task *task, int64_t ranks, int plain) {
  if (!strcmp(task->op, "pipeline")) return pipeline_setting(model, task, ranks, plain);
  int shards = !strcmp(task->storage, "fsdp_tp"), zero = !strncmp(task->storage, "zero", 4);
  bench_setting setting = bench_setting_of(model, shards || zero ? "dp_shard" : "dp_replicate", ranks);
  if (shards) setting.storage = "zero3";
  if (zero) setting.storage = task->storage;
  int is_leaves = !strcmp(task->op, "leaves");
  if (is_leaves) set_leaves(&setting, ranks, plain);
  if (is_leaves || !strcmp(task->op, "train_step")) setting.compute = task->dtype;
  if (strcmp(task->op, "parallel_step") != 0 || plain) return setting;
  snprintf(setting.mesh, sizeof setting.mesh, "dp_shard=%lld tp=2", (long long)ranks / 2);
  setting.sequence = !strcmp(task->storage, "tp_sequence");
  return setting;
}

static size_t count_numel(const ad_program *program) {
  size_t numel = 0;
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    const ad_module_spec *module = ad_program_module(program, m);
    for (size_t i = 0; i < module->param_count; i++) numel += (size_t)ad_shape_numel(&module->params[i].shape);
  }
  return numel;
}

size_t bench_recipe_numel(const ad_recipe *recipe) {
  ad_comm *paper = NULL;
  ad_program *program = NULL;
  ad_status status = ad_comm_open_dry(0, 1, &paper);
  if (!status) status = ad_recipe_program(recipe, paper, 0, &program);
  size_t numel = !status && program ? count_numel(program) : 0;
  if (program) ad_program_destroy(program);
  if (paper) ad_comm_close(paper);
  return numel;
}

size_t bench_model_numel(const bench_model *model) {
  bench_setting setting = bench_setting_of(model, "dp_replicate", 1);
  ad_recipe *recipe;
  if (bench_recipe(&setting, &recipe)) return 0;
  size_t numel = bench_recipe_numel(recipe);
  ad_recipe_destroy(recipe);
  return numel;
}

struct bench_steps {
  ad_recipe *recipe;
  ad_run *run;
  int64_t step;
  double waited, transfer_seconds;
};

ad_status bench_steps_create(ad_comm *comm, ad_recipe *recipe, bench_steps **out) {
  bench_steps *steps = calloc(1, sizeof *steps);
  if (!steps) return ad_recipe_destroy(recipe), AD_MEMORY;
  steps->recipe = recipe;
  ad_status status = ad_run_create(comm, recipe, NULL, &steps->run);
  if (status) return bench_steps_destroy(steps), status;
  *out = steps;
  return AD_OK;
}

void bench_steps_destroy(bench_steps *steps) {
  if (!steps) return;
  if (steps->run) ad_run_destroy(steps->run);
  if (steps->recipe) ad_recipe_destroy(steps->recipe);
  free(steps);
}

ad_status bench_steps_run(bench_steps *steps) {
  ad_step_report report;
  AD_TRY(ad_run_step(steps->run, steps->step++, &report));
  steps->waited += report.wait_seconds;
  steps->transfer_seconds += ad_run_transfer_seconds(steps->run);
  return AD_OK;
}

double bench_steps_waited(bench_steps *steps) {
  double waited = steps->waited;
  steps->waited = 0;
  return waited;
}

double bench_steps_transfer_seconds(bench_steps *steps) {
  double transfer_seconds = steps->transfer_seconds;
  steps->transfer_seconds = 0;
  return transfer_seconds;
}
