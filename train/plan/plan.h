/* The facts that a plan collects before it is printed. They are found by acting as ranks on backend dry, which moves no
 * bytes. */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H
#include <jansson.h>
#include "addend/plan.h"
#include "addend/schedule.h"
#include "addend/train.h"

/* The memory of one rank in bytes. */
typedef struct ad_plan_memory {
  size_t params;      /* parameters and master weights in their storage layout, and states that are no parameters */
  size_t gathered;    /* this rank's share of gathered parameters, of which the ranks of a node share one copy */
  size_t buckets;     /* gradient buckets, in which gradients are written and sent */
  size_t grads;       /* sums of gradients outside the buckets: shards, and partial sums between microbatches */
  size_t optimizer;   /* the optimizer's states */
  size_t update;      /* working memory of updates on whole matrices */
  size_t activations; /* the most that tapes use, with gradients of the backward pass and values from bridges */
  size_t checkpoint;  /* the copy that is written to disk while training continues */
  size_t runtime;     /* the text and the batch, and what a process uses without any of these */
  size_t prompts;     /* rank 0's copy of the full parameters, with which evaluate.prompts are sampled; 0 on other
                       * ranks */
  /* Only for mixtures of experts, else 0. `activations` assumes that tokens choose all experts equally often. */
  size_t most_routed;       /* the most tokens that choose experts at the same time on this rank */
  size_t activations_worst; /* activations, if all tokens choose experts of this rank */
  /* Only with leaves, else 0. leaf_sums: the most sums of leaves that this rank holds of one gradient at the same time,
   * as full gradients in `buckets`. leaf_shards: the same for the sums of its shards in `grads`, which a first
   * reduction leaves. leaf_shard_bytes: the bytes of the latter. */
  size_t leaf_sums, leaf_shards, leaf_shard_bytes;
} ad_plan_memory;
/* Returns the sum of all kinds of memory. */
size_t ad_plan_peak(const ad_plan_memory *memory);
/* The names, in documents, of the kinds of memory and of their sum. `update` is only for recipes with updates on whole
 * matrices, `prompts` for those with evaluate.prompts, the last two for mixtures of experts. */
enum { AD_PLAN_PARTS = 13 };
extern const char *const ad_plan_parts[AD_PLAN_PARTS];
/* Returns the sum of all kinds of memory in the worst case (activations_worst). */
size_t ad_plan_peak_worst(const ad_plan_memory *memory);

/* The world for which a plan is made. */
typedef struct ad_plan_world {
  int64_t ranks, ranks_per_node; /* each at least 1 */
  ad_dtype dtype;                /* same meaning as in ad_run_options; 0: the recipe's dtype */
  /* same meaning as in ad_run_options: the table of actions, which the first rank's run made; NULL: it is made now */
  const ad_table *table;
} ad_plan_world;
ad_status ad_plan_world_of(const ad_recipe *recipe, const ad_plan_options *options, ad_plan_world *out) AD_CHECKED;

/* Acts as `rank`: creates its run on backend dry and takes one step, which checks all types and counts bytes. `crowd`
 * is 0 or, for the worst choice of experts, has the same meaning as in ad_tape_options. */
ad_status ad_plan_act(const ad_recipe *recipe, int64_t rank, const ad_plan_world *world, size_t crowd, ad_comm **comm,
                      ad_run **run) AD_CHECKED;
ad_status ad_plan_memory_of(ad_run *run, ad_plan_memory *out) AD_CHECKED;
/* Makes the document of `addend plan --json`. Release with json_decref. */
ad_status ad_plan_document(const ad_recipe *recipe, const ad_plan_options *options, json_t **out) AD_CHECKED;
/* Returns what a collective of the document carries: "parameters", "gradients", or "matrices" of an update. */
const char *ad_plan_carried_by(const json_t *step);

#endif
