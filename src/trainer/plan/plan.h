/* What a plan holds before it is printed: gathered by acting as ranks on engine dry. */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H
#include <jansson.h>
#include "addend/plan.h"
#include "addend/schedule.h"
#include "addend/train.h"

/* Bytes of one rank. */
typedef struct ad_plan_memory {
  size_t params;      /* values and masters in the storage layout, and state that is no parameter's */
  size_t gathered;    /* its share of whole copies */
  size_t buckets;     /* what gradients are written into and travel in */
  size_t grads;       /* sums that are kept beside the buckets: shards, and partial sums between microbatches */
  size_t optimizer;   /* moments */
  size_t activations; /* what tapes hold at most, gradients on their way and what bridges bring included */
  size_t checkpoint;  /* the copy that is written while training goes on */
  size_t runtime;     /* text and batch, and what a process takes before it holds anything */
  size_t prompts;     /* rank 0's whole copy of the parameters that evaluate.prompts are sampled with; else 0 */
  /* Where tokens choose experts; 0 where none do. `activations` are those of an even choice. */
  size_t most_routed;       /* tokens that choose at once on this rank */
  size_t activations_worst; /* where all tokens choose experts of this rank */
} ad_plan_memory;
size_t ad_plan_peak(const ad_plan_memory *memory);
/* What documents call the parts, and their sum. `prompts` is there where the recipe has evaluate.prompts, the last two
 * where tokens choose experts. */
enum { AD_PLAN_PARTS = 12 };
extern const char *const ad_plan_parts[AD_PLAN_PARTS];
size_t ad_plan_peak_worst(const ad_plan_memory *memory);

/* Where a plan puts the ranks. */
typedef struct ad_plan_world {
  int64_t ranks, ranks_per_node; /* at least 1 */
  ad_dtype dtype;                /* of ad_run_options: 0: as in the recipe */
  const ad_table *table;         /* the same: that a rank has made which acted before */
} ad_plan_world;
ad_status ad_plan_world_of(const ad_recipe *recipe, const ad_plan_options *options, ad_plan_world *out) AD_CHECKED;

/* Acts as `rank`: creates the run on engine dry and takes one step of it, so that types are checked and bytes counted.
 * `crowd`: 0, or the worst choice of experts (ad_tape_options). */
ad_status ad_plan_act(const ad_recipe *recipe, int64_t rank, const ad_plan_world *world, size_t crowd, ad_comm **comm,
                      ad_run **run) AD_CHECKED;
ad_status ad_plan_memory_of(ad_run *run, ad_plan_memory *out) AD_CHECKED;
/* The document of `addend plan --json`; *out is given up with json_decref. */
ad_status ad_plan_document(const ad_recipe *recipe, const ad_plan_options *options, json_t **out) AD_CHECKED;

#endif
