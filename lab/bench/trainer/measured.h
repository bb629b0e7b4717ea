/* The measured parts of libaddend_train: training steps of recipes, and parts of such steps alone. */
#ifndef BENCH_TRAINER_MEASURED_H
#define BENCH_TRAINER_MEASURED_H
#include "addend/addend.h"
#include "bench/library.h"

size_t bench_model_numel(const bench_model *model); /* number of parameters; 0 if the model cannot be made */
size_t bench_recipe_numel(const ad_recipe *recipe); /* number of parameters of all modules */

/* The settings in which the measured recipes differ. */
typedef struct bench_setting {
  const bench_model *model;
  char mesh[64];
  int sequence;                /* 1: sequence parallelism over tp */
  const char *storage, *dtype; /* as in a task; the dtype is that of parameters and reductions */
  const char *compute;         /* the dtype of activations and of the inputs of matrix products */
  int microbatches, leaves;    /* leaves 0: none */
  char schedule[64];           /* the recipe's `schedule` of a pipeline, as YAML; "": no pipeline */
  const char *optimizer;       /* the recipe's `optimizer` and `groups`, as YAML; "": AdamW */
} bench_setting;
/* Returns the setting with all ranks on one axis, storage "whole" and all dtypes "f32". */
bench_setting bench_setting_of(const bench_model *model, const char *axis, int64_t ranks);
/* Returns the setting for a task's step: ranks on dp_replicate, computing in the task's dtype; for a parallel_step,
 * ranks as the task's storage says; for `leaves`, each sample is a leaf. `plain` as of bench_library. */
bench_setting bench_step_setting(const bench_model *model, const bench_task *task, int64_t ranks, int plain);
ad_status bench_recipe(const bench_setting *setting, ad_recipe **out) AD_CHECKED;

/* Training steps on this rank. */
typedef struct bench_steps bench_steps;
/* Takes ownership of the recipe, even if it fails. */
ad_status bench_steps_create(ad_comm *comm, ad_recipe *recipe, bench_steps **out) AD_CHECKED;
void bench_steps_destroy(bench_steps *steps);
ad_status bench_steps_run(bench_steps *steps) AD_CHECKED; /* runs one step */
double bench_steps_waited(bench_steps *steps); /* seconds of waiting for sums of gradients since the last call */
double bench_steps_transfer_seconds(bench_steps *steps); /* seconds in transfers between modules since the last call */

/* Gradients of a model's shapes that go through the reducer; the model itself does not run. They are summed over all
 * ranks or, if `alone` is 1, over this rank only, which copies them into buckets and, if buckets have another dtype,
 * back. */
typedef struct bench_gradients bench_gradients;
ad_status bench_gradients_create(ad_comm *comm, const bench_model *model, ad_dtype reduce, int alone,
                                 bench_gradients **out) AD_CHECKED;
void bench_gradients_destroy(bench_gradients *gradients);
/* Runs one step; the gradients are in the buckets already (`in_place`), or are copied from ordinary memory. */
ad_status bench_gradients_run(bench_gradients *gradients, int in_place) AD_CHECKED;

/* Parameters sharded over all ranks, with the store, reducer and optimizer of a training run, but without a model: each
 * pass only gathers every parameter, and gradients exist from the start. */
typedef struct bench_shards bench_shards;
/* The optimizer of the task "muon" is Muon for the matrices of blocks and AdamW for the rest; if `plain` is 2, and in
 * all other tasks, AdamW alone. */
ad_status bench_shards_create(ad_comm *comm, const bench_model *model, const bench_task *task, int plain,
                              bench_shards **out) AD_CHECKED;
void bench_shards_destroy(bench_shards *shards);
/* Runs one step, with the optimizer's update in the tasks "update" and "muon". If `plain` is 1 in the task "muon", runs
 * only the matrix products of this rank's share of the step. */
ad_status bench_shards_run(bench_shards *shards) AD_CHECKED;

/* The matrix products of an optimizer's iterations in a step on this rank. */
typedef struct bench_iterations bench_iterations;
ad_status bench_iterations_create(const ad_optimizer *optimizer, bench_iterations **out) AD_CHECKED;
void bench_iterations_destroy(bench_iterations *iterations);
ad_status bench_iterations_run(bench_iterations *iterations) AD_CHECKED;

/* Rows that go to the ranks of their experts and return. */
typedef struct bench_exchange bench_exchange;
ad_status bench_exchange_create(ad_comm *comm, const bench_task *task, bench_exchange **out) AD_CHECKED;
void bench_exchange_destroy(bench_exchange *exchange);
/* Sends the rows to their experts and back once. If `looks` is 1, also checks where each row went; AD_INVALID if it
 * is wrong. */
ad_status bench_exchange_run(bench_exchange *exchange, int looks) AD_CHECKED;

/* Products of rows with their experts' matrices or, if `is_one` is 1, of all rows with one matrix. */
typedef struct bench_products bench_products;
ad_status bench_products_create(ad_comm *comm, const bench_task *task, int is_one, bench_products **out) AD_CHECKED;
void bench_products_destroy(bench_products *products);
ad_status bench_products_run(bench_products *products) AD_CHECKED; /* forward and backward */

/* A mixture-of-experts layer on this rank alone. */
typedef struct bench_experts bench_experts;
ad_status bench_experts_create(ad_comm *comm, const bench_task *task, bench_experts **out) AD_CHECKED;
void bench_experts_destroy(bench_experts *experts);
ad_status bench_experts_run(bench_experts *experts) AD_CHECKED; /* forward and backward */

/* The recipe of a decomposition of the model's matrices, on one rank or on three pools (pools.h). */
ad_status bench_decomposition_recipe(const bench_model *model, int64_t ranks, ad_recipe **out) AD_CHECKED;

/* One of the exchanges between the decomposition's pools, in the dtype in which the data is sent. */
typedef struct bench_transfers bench_transfers;
ad_status bench_transfers_create(ad_comm *comm, const bench_model *model, const bench_task *task,
                                 bench_transfers **out) AD_CHECKED;
void bench_transfers_destroy(bench_transfers *transfers);
/* Runs the exchange once. If `looks` is 1, also checks the results; AD_INVALID if they are wrong. */
ad_status bench_transfers_run(bench_transfers *transfers, int looks) AD_CHECKED;
/* Returns the number of elements that the exchange must move. */
size_t bench_transfers_elements(const bench_model *model, const char *exchanged, int ranks);

#endif
