/* The trainer's part of the benchmarks (part.h): which cases need it, and how a rank does these tasks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

#include "attention.h"
#include "bench/part.h"
#include "bench/programs.h"
#include "bench/shared.h"
#include "measured.h"
#include "memory.h"
#include "fastest.h"
#include "products.h"
#include "ways.h"

struct bench_held {
  ad_comm *comm;
  const bench_model *model;
  int plain;
  bench_steps *steps;
  int is_pipeline; /* 1: the steps are those of a pipeline */
  bench_gradients *gradients;
  bench_shards *shards;
  bench_exchange *exchange;
  bench_products *products;
  bench_experts *experts;
  bench_transfers *transfers;
};

/* ---- a rank's tasks ---- */

static void let_go(bench_held *self) {
  if (!self) return;
  bench_steps_destroy(self->steps);
  bench_gradients_destroy(self->gradients);
  bench_shards_destroy(self->shards);
  bench_exchange_destroy(self->exchange);
  bench_products_destroy(self->products);
  bench_experts_destroy(self->experts);
  bench_transfers_destroy(self->transfers);
  free(self);
}

static ad_status run_gradients(bench_held *self, const bench_task *task) {
  ad_dtype dtype;
  AD_TRY(ad_dtype_parse(task->dtype, &dtype));
  int alone = !strcmp(task->op, "copy_in");
  if (!self->gradients) AD_TRY(bench_gradients_create(self->comm, self->model, dtype, alone, &self->gradients));
  return bench_gradients_run(self->gradients, task->in_place);
}

static ad_status run_shards(bench_held *self, const bench_task *task) {
  if (!self->shards) AD_TRY(bench_shards_create(self->comm, self->model, task, self->plain, &self->shards));
  return bench_shards_run(self->shards);
}

static ad_status run_step(bench_held *self, const bench_task *task) {
  int64_t ranks = ad_comm_size(self->comm);
  bench_setting setting = bench_step_setting(self->model, task, ranks, self->plain);
  ad_recipe *recipe;
  self->is_pipeline = !strcmp(task->op, "pipeline");
  if (self->steps) return bench_steps_run(self->steps);
  if (!strcmp(task->op, "decompose_step"))
    AD_TRY(bench_decomposition_recipe(self->model, ranks, &recipe));
  else
    AD_TRY(bench_recipe(&setting, &recipe));
  AD_TRY(bench_steps_create(self->comm, recipe, &self->steps));
  return bench_steps_run(self->steps);
}

static ad_status run_exchange(bench_held *self, const bench_task *task) {
  if (!self->exchange) AD_TRY(bench_exchange_create(self->comm, task, &self->exchange));
  return bench_exchange_run(self->exchange, !task->iterations);
}

static ad_status run_products(bench_held *self, const bench_task *task) {
  if (!self->products) AD_TRY(bench_products_create(self->comm, task, self->plain, &self->products));
  return bench_products_run(self->products);
}

static ad_status run_experts(bench_held *self, const bench_task *task) {
  if (!self->experts) AD_TRY(bench_experts_create(self->comm, task, &self->experts));
  return bench_experts_run(self->experts);
}

static ad_status run_transfers(bench_held *self, const bench_task *task) {
  if (!self->transfers) AD_TRY(bench_transfers_create(self->comm, self->model, task, &self->transfers));
  return bench_transfers_run(self->transfers, !task->iterations);
}

static int is_step(const char *op) {
  static const char *const steps[] = {"train_step", "parallel_step", "decompose_step", "pipeline", "leaves"};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
    if (!strcmp(op, steps[i])) return 1;
  return 0;
}

static ad_status run_task(bench_held *self, const bench_task *task) {
  if (is_step(task->op)) return run_step(self, task);
  if (!strcmp(task->op, "reducer") || !strcmp(task->op, "copy_in")) return run_gradients(self, task);
  if (!strcmp(task->op, "exchange")) return run_exchange(self, task);
  if (!strcmp(task->op, "grouped")) return run_products(self, task);
  if (!strcmp(task->op, "experts")) return run_experts(self, task);
  return !strcmp(task->op, "decompose_exchange") ? run_transfers(self, task) : run_shards(self, task);
}

static ad_status run(ad_comm *comm, const bench_model *model, int plain, const bench_task *task, bench_held **held) {
  if (!*held) *held = calloc(1, sizeof **held);
  if (!*held) return AD_MEMORY;
  (*held)->comm = comm, (*held)->model = model, (*held)->plain = plain;
  return run_task(*held, task);
}

/* Returns the seconds of waiting for sums of gradients or, in a pipeline, the seconds in transfers between stages. */
static double waited(bench_held *held) {
  if (!held->steps) return 0;
  return held->is_pipeline ? bench_steps_transfer_seconds(held->steps) : bench_steps_waited(held->steps);
}

/* ---- numbers of parameters and elements ---- */

static size_t pools_numel(const bench_model *model, bench_duty duty, const char *storage, int ranks) {
  ad_recipe *recipe;
  if (duty == BENCH_TRANSFER) return bench_transfers_elements(model, storage, ranks);
  if (bench_decomposition_recipe(model, 1, &recipe)) return 0;
  size_t numel = bench_recipe_numel(recipe);
  ad_recipe_destroy(recipe);
  return numel;
}

/* ---- facts about matrix products for rows and the document ---- */

/* Adds to the row the library of matrix products: the one that computes a rank's part of the batch times a matrix of
 * attention. */
static void add_products(json_t *row, const bench_case *measured) {
  const bench_model *model = measured->model;
  gemm_product of = {.m = model->batch / measured->ranks * model->seq, .n = model->d_model, .k = model->d_model};
  if (ad_dtype_parse(measured->task.dtype, &of.values)) return;
  of.result = of.values;
  json_t *words = bench_way_words(bench_way_of(&of), of.values);
  json_object_update(row, words);
  json_decref(words);
}

static void add_machine(json_t *machine) {
  json_t *words =
      json_pack("{ss ss?}", "openblas_core", openblas_get_corename(), "instructions", ad_gemm_onednn_instructions());
  json_object_update(machine, words);
  json_decref(words);
}

/* Returns the share and rate of matrix products in a step on one rank, measured by the program bench_gemm. */
static json_t *measure_products(const bench_options *options, const char *dtype) {
  char path[1024], quoted[1100];
  snprintf(quoted, sizeof quoted, "exec '%s' %s%s", bench_peer_path("bench_gemm", path, sizeof path), dtype,
           options->quick ? " quick" : "");
  FILE *output = popen(quoted, "r");
  json_t *products = output ? json_loadf(output, 0, NULL) : NULL;
  if (output) pclose(output);
  return products ? products : json_null();
}

static ad_status write_fastest(const char *path, const json_t *rows) {
  ad_status status = bench_write_fastest(path, rows);
  if (status) fprintf(stderr, "addend bench: %s\n", ad_last_error());
  return status;
}

static ad_status measure(const bench_options *options, json_t *document, json_t *rows) {
  ad_status status = AD_OK;
  if (bench_wants(options, "attention")) status = bench_measure_attention(options, rows);
  if (bench_wants(options, "products") && status != AD_INTERRUPTED)
    bench_keep(&status, bench_measure_products(options, rows));
  if (options->write && !status) bench_keep(&status, write_fastest(options->write, rows));
  if (bench_wants(options, "memory") && status != AD_INTERRUPTED) {
    bench_keep(&status, bench_measure_memory(options, rows));
    json_object_set_new(document, "activations", bench_activations(rows));
  }
  if (bench_wants(options, "train_step") && status != AD_INTERRUPTED) {
    json_object_set_new(document, "products", measure_products(options, "f32"));
    json_object_set_new(document, "products_bf16", measure_products(options, "bf16"));
  }
  return status;
}

static const char *const others[] = {"attention", "products", "memory", NULL};

const bench_part bench_trainer = {.duties = ~(BENCH_COLLECTIVES | BENCH_BRIDGE | BENCH_TORCH),
                                  .others = others,
                                  .numel = bench_model_numel,
                                  .pools_numel = pools_numel,
                                  .run = run,
                                  .let_go = let_go,
                                  .waited = waited,
                                  .add_products = add_products,
                                  .add_machine = add_machine,
                                  .measure = measure};
