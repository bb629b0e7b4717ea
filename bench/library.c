/* A rank of addend under measurement: tasks become calls of the public API. */
#include "library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct library_rank {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_group everyone;
  const char *address;
  const bench_model *model;
  int plain;
  bench_task held; /* what the last task needed, kept while the next ones need the same */
  bench_steps *steps;
  bench_gradients *gradients;
  bench_shards *shards;
  bench_exchange *exchange;
  bench_products *products;
  bench_experts *experts;
  bench_bridge *bridge;
  bench_crossings *crossings;
} library_rank;

void *bench_ordinary_alloc(size_t bytes) {
  const size_t page = (size_t)2 << 20;
  size_t whole = (bytes + page - 1) / page * page;
  void *memory = aligned_alloc(page, whole);
  if (memory) (void)madvise(memory, whole, MADV_HUGEPAGE);
  return memory;
}

static void *library_alloc(void *context, const bench_task *task, size_t bytes) {
  library_rank *self = context;
  void *memory = NULL;
  if (!strcmp(task->memory, "comm")) {
    if (ad_comm_alloc(self->comm, bytes, &memory)) return NULL;
  } else {
    memory = bench_ordinary_alloc(bytes);
  }
  return memory ? memset(memory, 0, bytes) : NULL;
}

static void library_free(void *context, const bench_task *task, void *memory) {
  library_rank *self = context;
  if (!strcmp(task->memory, "comm"))
    ad_comm_free(self->comm, memory);
  else
    free(memory);
}

static ad_status run_collective(library_rank *self, const bench_task *task, const void *in, void *out) {
  ad_collective collective = {
      .size = sizeof collective, .group = self->everyone, .in = in, .out = out, .site = AD_HERE};
  AD_TRY(ad_dtype_parse(task->dtype, &collective.dtype));
  size_t numel = task->bytes / ad_dtype_size(collective.dtype);
  int whole = !strcmp(task->op, "all_reduce");
  collective.op = whole ? AD_ALL_REDUCE : !strcmp(task->op, "all_gather") ? AD_ALL_GATHER : AD_REDUCE_SCATTER;
  collective.count = whole ? numel : numel / (size_t)ad_comm_size(self->comm);
  return ad_comm_run(self->comm, &collective);
}

static void let_go(library_rank *self) {
  bench_steps_destroy(self->steps);
  bench_gradients_destroy(self->gradients);
  bench_shards_destroy(self->shards);
  bench_exchange_destroy(self->exchange);
  bench_products_destroy(self->products);
  bench_experts_destroy(self->experts);
  bench_bridge_destroy(self->bridge);
  bench_crossings_destroy(self->crossings);
  self->steps = NULL, self->gradients = NULL, self->shards = NULL;
  self->exchange = NULL, self->products = NULL, self->experts = NULL, self->bridge = NULL, self->crossings = NULL;
}

static void hold_for(library_rank *self, const bench_task *task) {
  const bench_task *held = &self->held;
  int same = !strcmp(held->op, task->op) && !strcmp(held->dtype, task->dtype) &&
             !strcmp(held->storage, task->storage) && held->bytes == task->bytes;
  if (!same) let_go(self);
  self->held = *task;
}

static ad_status run_gradients(library_rank *self, const bench_task *task) {
  ad_dtype dtype;
  AD_TRY(ad_dtype_parse(task->dtype, &dtype));
  int alone = !strcmp(task->op, "copy_in");
  if (!self->gradients) AD_TRY(bench_gradients_create(self->comm, self->model, dtype, alone, &self->gradients));
  return bench_gradients_run(self->gradients, task->in_place);
}

static ad_status run_shards(library_rank *self, const bench_task *task) {
  if (!self->shards) AD_TRY(bench_shards_create(self->comm, self->model, task, &self->shards));
  return bench_shards_run(self->shards, !strcmp(task->op, "update"));
}

static ad_status run_step(library_rank *self, const bench_task *task) {
  int64_t ranks = ad_comm_size(self->comm);
  bench_setting setting = bench_step_setting(self->model, task, ranks, self->plain);
  ad_recipe *recipe;
  if (self->steps) return bench_steps_run(self->steps);
  if (!strcmp(task->op, "decompose_step"))
    AD_TRY(bench_decomposition_recipe(self->model, ranks, &recipe));
  else
    AD_TRY(bench_recipe(&setting, &recipe));
  AD_TRY(bench_steps_create(self->comm, recipe, &self->steps));
  return bench_steps_run(self->steps);
}

static ad_status run_exchange(library_rank *self, const bench_task *task) {
  if (!self->exchange) AD_TRY(bench_exchange_create(self->comm, task, &self->exchange));
  return bench_exchange_run(self->exchange, !task->iterations);
}

static ad_status run_products(library_rank *self, const bench_task *task) {
  if (!self->products) AD_TRY(bench_products_create(self->comm, task, self->plain, &self->products));
  return bench_products_run(self->products);
}

static ad_status run_experts(library_rank *self, const bench_task *task) {
  if (!self->experts) AD_TRY(bench_experts_create(self->comm, task, &self->experts));
  return bench_experts_run(self->experts);
}

static ad_status run_bridge(library_rank *self, const bench_task *task) {
  if (!self->bridge) AD_TRY(bench_bridge_create(self->comm, task, &self->bridge));
  return bench_bridge_run(self->bridge, !task->iterations);
}

static ad_status run_crossings(library_rank *self, const bench_task *task) {
  if (!self->crossings) AD_TRY(bench_crossings_create(self->comm, self->model, task, &self->crossings));
  return bench_crossings_run(self->crossings, !task->iterations);
}

static int is_step(const char *op) {
  return !strcmp(op, "train_step") || !strcmp(op, "parallel_step") || !strcmp(op, "decompose_step");
}

static ad_status run_task(library_rank *self, const bench_task *task, const void *in, void *out) {
  hold_for(self, task);
  if (is_step(task->op)) return run_step(self, task);
  if (!strcmp(task->op, "reducer") || !strcmp(task->op, "copy_in")) return run_gradients(self, task);
  if (!strcmp(task->op, "sharded_step") || !strcmp(task->op, "update")) return run_shards(self, task);
  if (!strcmp(task->op, "exchange")) return run_exchange(self, task);
  if (!strcmp(task->op, "grouped")) return run_products(self, task);
  if (!strcmp(task->op, "experts")) return run_experts(self, task);
  if (!strcmp(task->op, "bridge")) return run_bridge(self, task);
  if (!strcmp(task->op, "decompose_exchange")) return run_crossings(self, task);
  return run_collective(self, task, in, out);
}

static int run(void *context, const bench_task *task, const void *in, void *out) {
  library_rank *self = context;
  ad_status status = run_task(self, task, in, out);
  if (status && ad_comm_rank(self->comm) == 0) fprintf(stderr, "addend bench: %s: %s\n", task->op, ad_last_error());
  return status != AD_OK;
}

static int barrier(void *context) {
  library_rank *self = context;
  return ad_comm_barrier(self->comm, &self->everyone) != AD_OK;
}

static int work(library_rank *self) {
  bench_team team = {.self = self,
                     .rank = (int)ad_comm_rank(self->comm),
                     .ranks = (int)ad_comm_size(self->comm),
                     .alloc = library_alloc,
                     .free = library_free,
                     .run = run,
                     .barrier = barrier};
  int status = bench_work(self->address, &team);
  let_go(self);
  return status;
}

int bench_library_rank(ad_comm *comm, const char *address, const bench_model *model, int plain) {
  library_rank self = {.comm = comm, .address = address, .model = model, .plain = plain};
  char text[64];
  snprintf(text, sizeof text, "dp_replicate=%lld", (long long)ad_comm_size(comm));
  if (ad_mesh_create(text, &self.mesh)) return 1;
  self.everyone = ad_mesh_group(self.mesh, AD_AXES_ALL, ad_comm_rank(comm));
  int status = work(&self);
  ad_mesh_destroy(self.mesh);
  return status;
}

typedef struct launched {
  const char *address;
  const bench_model *model;
  int plain;
} launched;

static int be_rank(ad_comm *comm, void *context) {
  const launched *self = context;
  return bench_library_rank(comm, self->address, self->model, self->plain);
}

int bench_library(const char *address, int ranks, const bench_model *model, int plain) {
  launched all = {address, model, plain};
  ad_launch_options options = {.size = sizeof options, .ranks = ranks, .function = be_rank, .context = &all};
  ad_launch_result result = {.size = sizeof result};
  if (ad_launch(&options, &result) == AD_OK) return 0;
  fprintf(stderr, "addend bench: %s\n", ad_last_error());
  return 1;
}

static int leave(ad_comm *comm, void *context) { return 0; }

ad_status bench_startup(int ranks, double *seconds) {
  ad_launch_options options = {.size = sizeof options, .ranks = ranks, .function = leave};
  ad_launch_result result = {.size = sizeof result};
  double start = bench_now();
  ad_status status = ad_launch(&options, &result);
  if (!status) *seconds = bench_now() - start;
  return status;
}
