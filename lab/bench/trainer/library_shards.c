/* The tasks "sharded_step", "update" and "muon": the parts of a training step besides the model's computing, with the
 * trainer's store, reducer and optimizer. */
#include <stdlib.h>
#include <string.h>

#include "module/module.h"
#include "measured.h"
#include "step/run.h"

static const char MUON[] =
    "optimizer: {kind: muon}\n"
    "groups: [{match: \"*norm*\", kind: adamw}, {match: \"embedding.*\", kind: adamw}, {match: \"head.*\", kind: "
    "adamw}]\n";

struct bench_shards {
  int updates;
  bench_iterations *iterations; /* not NULL: only their products run */
  ad_recipe *recipe;
  ad_run *run;
  size_t count;
  ad_array *grads; /* in ordinary memory; data is NULL if gradients are written into the bucket itself */
  ad_array **masters;
  const ad_array **reduced;
};

static ad_module *module_of(const bench_shards *shards) { return ad_run_module(shards->run, 0); }

static int is_muon(const bench_task *task) { return !strcmp(task->op, "muon"); }

static ad_status make_run(bench_shards *shards, ad_comm *comm, const bench_model *model, const bench_task *task,
                          int plain) {
  int ranks = (int)ad_comm_size(comm);
  bench_model own = *model;
  own.batch = ranks;
  bench_setting setting = bench_setting_of(&own, "dp_shard", ranks);
  setting.storage = task->storage, setting.dtype = task->dtype;
  if (is_muon(task) && plain < 2) setting.optimizer = MUON;
  AD_TRY(bench_recipe(&setting, &shards->recipe));
  return ad_run_create(comm, shards->recipe, NULL, &shards->run);
}

static ad_status make_grad(ad_run *run, size_t param, int has_memory, ad_array *out) {
  const ad_param_spec *spec = ad_run_param_at(run, param).spec;
  ad_layout layout = ad_layout_dual(&spec->layout);
  *out = ad_array_describe(ad_run_comm(run), AD_F32, &spec->shape, &layout);
  if (!has_memory) return AD_OK;
  float *memory = malloc(ad_array_bytes(out));
  if (!memory) return AD_MEMORY;
  for (size_t i = 0; i < ad_array_numel(out); i++) memory[i] = 1e-3f;
  out->data = memory;
  return AD_OK;
}

static ad_status make(bench_shards *shards, ad_comm *comm, const bench_model *model, const bench_task *task,
                      int plain) {
  shards->updates = is_muon(task) || !strcmp(task->op, "update");
  AD_TRY(make_run(shards, comm, model, task, plain));
  if (is_muon(task) && plain == 1)
    return bench_iterations_create(ad_module_optimizer(module_of(shards)), &shards->iterations);
  shards->count = ad_run_param_count(shards->run);
  shards->grads = calloc(shards->count, sizeof *shards->grads);
  shards->masters = calloc(shards->count, sizeof *shards->masters);
  shards->reduced = calloc(shards->count, sizeof *shards->reduced);
  if (!shards->grads || !shards->masters || !shards->reduced) return AD_MEMORY;
  for (size_t i = 0; i < shards->count; i++) {
    AD_TRY(make_grad(shards->run, i, !task->in_place, &shards->grads[i]));
    shards->masters[i] = ad_run_part(shards->run, i, AD_PART_MASTER);
    shards->reduced[i] = ad_run_part(shards->run, i, AD_PART_GRADIENT);
  }
  return AD_OK;
}

ad_status bench_shards_create(ad_comm *comm, const bench_model *model, const bench_task *task, int plain,
                              bench_shards **out) {
  bench_shards *shards = calloc(1, sizeof *shards);
  if (!shards) return AD_MEMORY;
  ad_status status = make(shards, comm, model, task, plain);
  if (status) return bench_shards_destroy(shards), status;
  *out = shards;
  return AD_OK;
}

void bench_shards_destroy(bench_shards *shards) {
  if (!shards) return;
  bench_iterations_destroy(shards->iterations);
  for (size_t i = 0; shards->grads && i < shards->count; i++) free(shards->grads[i].data);
  free(shards->grads);
  free(shards->masters);
  free(shards->reduced);
  if (shards->run) ad_run_destroy(shards->run);
  if (shards->recipe) ad_recipe_destroy(shards->recipe);
  free(shards);
}

/* Adds a gradient as a backward does: written in place in the bucket, or copied from other memory. */
static ad_status add(bench_shards *shards, size_t param) {
  ad_reducer *reducer = ad_module_reducer(module_of(shards));
  ad_array target = shards->grads[param];
  int adds;
  if (!target.data) AD_TRY(ad_reducer_target(reducer, param, &target, &adds));
  return ad_reducer_add(reducer, param, &target);
}

static ad_status use(bench_shards *shards, size_t param, int backward) {
  ad_store *store = ad_module_store(module_of(shards));
  AD_TRY(ad_store_acquire(store, param));
  ad_status status = backward ? add(shards, param) : AD_OK;
  ad_store_release(store, param);
  return status;
}

static ad_status pass(bench_shards *shards, int backward) {
  AD_TRY(ad_store_begin_pass(ad_module_store(module_of(shards)), backward));
  for (size_t i = 0; i < shards->count; i++) AD_TRY(use(shards, backward ? shards->count - 1 - i : i, backward));
  return ad_store_end_pass(ad_module_store(module_of(shards)));
}

ad_status bench_shards_run(bench_shards *shards) {
  if (shards->iterations) return bench_iterations_run(shards->iterations);
  ad_reducer *reducer = ad_module_reducer(module_of(shards));
  AD_TRY(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  AD_TRY(pass(shards, 0));
  AD_TRY(pass(shards, 1));
  AD_TRY(ad_reducer_end_microbatch(reducer));
  AD_TRY(ad_reducer_finish(reducer));
  if (shards->updates)
    AD_TRY(ad_optimizer_step(ad_module_optimizer(module_of(shards)), shards->masters, shards->reduced, 1e-4, 1));
  return ad_run_refresh(shards->run, AD_MASTERS_WRITTEN);
}
