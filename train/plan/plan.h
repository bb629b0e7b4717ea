/* The data of a plan before it is printed. It is gathered by acting as ranks on backend dry, which moves no bytes. */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H
#include <jansson.h>
#include "addend/plan.h"
#include "addend/schedule.h"
#include "addend/train.h"

/* The memory of one rank, in bytes. */
typedef struct ad_plan_memory {
  size_t params;      /* parameter values and master weights in their storage layout, and state that is no parameter */
  size_t gathered;    /* this rank's share of gathered parameters, of which a node has one copy */
  size_t buckets;     /* memory that gradients are written into and sent from */
  size_t grads;       /* sums kept beside the buckets: shards, and partial sums between microbatches */
  size_t optimizer;   /* moments of the optimizer */
  size_t activations; /* the most that tapes hold, with gradients of the backward pass and values from bridges */
  size_t checkpoint;  /* the copy that is written to disk while training continues */
  size_t runtime;     /* text and batch, and what a process takes before it holds anything */
  size_t prompts;     /* rank 0's copy of the full parameters, with which evaluate.prompts are sampled; else 0 */
  /* For mixtures of experts, else 0. `activations` assumes that the tokens choose all experts equally often. */
  size_t most_routed;       /* the most tokens that choose experts at the same time on this rank */
  size_t activations_worst; /* activations if all tokens choose experts of this rank */
} ad_plan_memory;
/* The sum of all parts. */
size_t ad_plan_peak(const ad_plan_memory *memory);
/* The names of the parts and of their sum in documents. `prompts` exists only for recipes with evaluate.prompts, the
 * last two only for mixtures of experts. */
enum { AD_PLAN_PARTS = 12 };
extern const char *const ad_plan_parts[AD_PLAN_PARTS];
/* The sum of all parts in the worst case. */
size_t ad_plan_peak_worst(const ad_plan_memory *memory);

/* The world that a plan is made for. */
typedef struct ad_plan_world {
  int64_t ranks, ranks_per_node; /* each at least 1 */
  ad_dtype dtype;                /* as in ad_run_options; 0: as in the recipe */
  const ad_table *table; /* as in ad_run_options: the table of actions that the first acting rank made; NULL: make it */
} ad_plan_world;
ad_status ad_plan_world_of(const ad_recipe *recipe, const ad_plan_options *options, ad_plan_world *out) AD_CHECKED;

/* Acts as `rank`: creates its run on backend dry and takes one step of it, which checks all types and counts bytes.
 * `crowd`: 0, or as in ad_tape_options for the worst choice of experts. */
ad_status ad_plan_act(const ad_recipe *recipe, int64_t rank, const ad_plan_world *world, size_t crowd, ad_comm **comm,
                      ad_run **run) AD_CHECKED;
ad_status ad_plan_memory_of(ad_run *run, ad_plan_memory *out) AD_CHECKED;
/* The document of `addend plan --json`; the caller calls json_decref on it. */
ad_status ad_plan_document(const ad_recipe *recipe, const ad_plan_options *options, json_t **out) AD_CHECKED;

#endif
