/* A measured rank of addend: does the conductor's tasks with calls of the public API. */
#include "library.h"
#include "part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct library_rank {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_group everyone;
  const char *address;
  const bench_model *model;
  int plain;
  bench_task held; /* the last task; the objects below are kept as long as the next tasks are equal */
  bench_bridge *bridge;
  bench_held *trained;
} library_rank;

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

static ad_collective_op op_of(const char *op) {
  if (!strcmp(op, "all_gather")) return AD_ALL_GATHER;
  if (!strcmp(op, "all_to_all")) return AD_ALL_TO_ALL;
  return strcmp(op, "all_reduce") ? AD_REDUCE_SCATTER : AD_ALL_REDUCE;
}

static ad_status run_collective(library_rank *self, const bench_task *task, const void *in, void *out) {
  ad_collective collective = {
      .size = sizeof collective, .group = self->everyone, .in = in, .out = out, .site = AD_HERE};
  AD_TRY(ad_dtype_parse(task->dtype, &collective.dtype));
  size_t numel = task->bytes / ad_dtype_size(collective.dtype);
  collective.op = op_of(task->op);
  int whole = collective.op == AD_ALL_REDUCE;
  collective.count = whole ? numel : numel / (size_t)ad_comm_size(self->comm);
  return ad_comm_run(self->comm, &collective);
}

static void let_go(library_rank *self) {
  bench_bridge_destroy(self->bridge);
  if (self->trained) bench_trainer.let_go(self->trained);
  self->bridge = NULL, self->trained = NULL;
}

static void hold_for(library_rank *self, const bench_task *task) {
  const bench_task *held = &self->held;
  int same = !strcmp(held->op, task->op) && !strcmp(held->dtype, task->dtype) &&
             !strcmp(held->storage, task->storage) && held->bytes == task->bytes;
  if (!same) let_go(self);
  self->held = *task;
}

static ad_status run_bridge(library_rank *self, const bench_task *task) {
  if (!self->bridge) AD_TRY(bench_bridge_create(self->comm, task, &self->bridge));
  return bench_bridge_run(self->bridge, !task->iterations);
}

static ad_status run_task(library_rank *self, const bench_task *task, const void *in, void *out) {
  hold_for(self, task);
  if (bench_is_collective(task->op)) return run_collective(self, task, in, out);
  if (!strcmp(task->op, "bridge")) return run_bridge(self, task);
  return bench_trainer.run(self->comm, self->model, self->plain, task, &self->trained);
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

static double waited(void *context) {
  library_rank *self = context;
  return self->trained ? bench_trainer.waited(self->trained) : 0;
}

static int work(library_rank *self) {
  bench_team team = {.self = self,
                     .rank = (int)ad_comm_rank(self->comm),
                     .ranks = (int)ad_comm_size(self->comm),
                     .alloc = library_alloc,
                     .free = library_free,
                     .run = run,
                     .barrier = barrier,
                     .waited = waited};
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
