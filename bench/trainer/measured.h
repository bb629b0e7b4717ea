/* What is measured of libaddend_train: recipes, their steps, and parts of them. */
#ifndef BENCH_TRAINER_MEASURED_H
#define BENCH_TRAINER_MEASURED_H
#include "addend/addend.h"
#include "bench/library.h"

size_t bench_model_numel(const bench_model *model); /* parameters; 0 if the model cannot be made */
size_t bench_recipe_numel(const ad_recipe *recipe); /* of all modules */

/* What of a recipe differs between measurements. */
typedef struct bench_setting {
  const bench_model *model;
  char mesh[64];
  int sequence;                /* over tp the sequence is cut where matrices are not */
  const char *storage, *dtype; /* as in a task; the dtype is of parameters and of what is reduced */
  const char *compute;         /* the dtype of activations and of what products read */
  int microbatches;
  char schedule[64]; /* the recipe's section of a pipeline, as YAML; "": none */
} bench_setting;
/* All ranks on one axis; "whole", all dtypes "f32". */
bench_setting bench_setting_of(const bench_model *model, const char *axis, int64_t ranks);
/* What a task's step is taken under: over dp_replicate, computing in the task's dtype; or as the storage of a
 * parallel_step says; `splits_batch`: the same ranks share a parallel_step's batch instead. */
bench_setting bench_step_setting(const bench_model *model, const bench_task *task, int64_t ranks, int splits_batch);
ad_status bench_recipe(const bench_setting *setting, ad_recipe **out) AD_CHECKED;

/* Training steps on this rank. */
typedef struct bench_steps bench_steps;
/* Takes the recipe, also where it fails. */
ad_status bench_steps_create(ad_comm *comm, ad_recipe *recipe, bench_steps **out) AD_CHECKED;
void bench_steps_destroy(bench_steps *steps);
ad_status bench_steps_run(bench_steps *steps) AD_CHECKED; /* one more */
double bench_steps_waited(bench_steps *steps);            /* for sums of gradients, since this was asked last */
double bench_steps_crossed(bench_steps *steps);           /* the same: in transfers between modules, of this rank */

/* A model's gradients going through the reducer, without the model: summed over all ranks, or, `alone`, over one, which
 * is copying them into buckets and, where buckets are of another dtype, what comes out of them again. */
typedef struct bench_gradients bench_gradients;
ad_status bench_gradients_create(ad_comm *comm, const bench_model *model, ad_dtype reduce, int alone,
                                 bench_gradients **out) AD_CHECKED;
void bench_gradients_destroy(bench_gradients *gradients);
/* One step; the gradients lie in the buckets already (`in_place`) or in memory of their own. */
ad_status bench_gradients_run(bench_gradients *gradients, int in_place) AD_CHECKED;

/* Parameters cut over all ranks, with the store, the reducer and the optimizer of a training run, but no model that
 * computes: its passes use every parameter, and gradients are there at once. */
typedef struct bench_shards bench_shards;
ad_status bench_shards_create(ad_comm *comm, const bench_model *model, const bench_task *task,
                              bench_shards **out) AD_CHECKED;
void bench_shards_destroy(bench_shards *shards);
/* One step; with `updates` the optimizer's too. */
ad_status bench_shards_run(bench_shards *shards, int updates) AD_CHECKED;

/* Rows that go to the ranks of their experts and come back. */
typedef struct bench_exchange bench_exchange;
ad_status bench_exchange_create(ad_comm *comm, const bench_task *task, bench_exchange **out) AD_CHECKED;
void bench_exchange_destroy(bench_exchange *exchange);
/* There and back; `looks`: AD_INVALID unless each row was where it belongs. */
ad_status bench_exchange_run(bench_exchange *exchange, int looks) AD_CHECKED;

/* Rows times the matrices of their experts, or, `is_one`, all times one matrix. */
typedef struct bench_products bench_products;
ad_status bench_products_create(ad_comm *comm, const bench_task *task, int is_one, bench_products **out) AD_CHECKED;
void bench_products_destroy(bench_products *products);
ad_status bench_products_run(bench_products *products) AD_CHECKED; /* forward and backward */

/* The layer of experts on this rank alone. */
typedef struct bench_experts bench_experts;
ad_status bench_experts_create(ad_comm *comm, const bench_task *task, bench_experts **out) AD_CHECKED;
void bench_experts_destroy(bench_experts *experts);
ad_status bench_experts_run(bench_experts *experts) AD_CHECKED; /* forward and backward */

/* A decomposition of the model's matrices; on one rank all of it, otherwise on three pools (pools.h). */
ad_status bench_decomposition_recipe(const bench_model *model, int64_t ranks, ad_recipe **out) AD_CHECKED;

/* One of the exchanges between its pools, in the dtype in which it travels. */
typedef struct bench_crossings bench_crossings;
ad_status bench_crossings_create(ad_comm *comm, const bench_model *model, const bench_task *task,
                                 bench_crossings **out) AD_CHECKED;
void bench_crossings_destroy(bench_crossings *crossings);
/* `looks`: AD_INVALID unless all is where it belongs. */
ad_status bench_crossings_run(bench_crossings *crossings, int looks) AD_CHECKED;
size_t bench_crossings_elements(const bench_model *model, const char *exchanged, int ranks); /* that must move */

#endif
