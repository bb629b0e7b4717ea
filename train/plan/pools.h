/* The pools of a plan: disjoint ranges of ranks, each with modules of its own. One process acts as the first rank of
 * each pool. */
#ifndef PLAN_POOLS_H
#define PLAN_POOLS_H
#include <stdio.h>
#include "plan/plan.h"
#include "plan/traffic.h"

/* A pool: its first rank and its number of ranks. */
typedef struct ad_plan_pool {
  int64_t first, ranks;
  ad_comm *comm;
  ad_run *run; /* the run of the pool's first rank, after one step */
  /* what the tapes of that step moved between ranks */
  ad_traffic traffic;
} ad_plan_pool;

typedef struct ad_plan_pools {
  ad_plan_pool *list; /* in the order of ranks, which is also the order of the program's modules */
  size_t count;
} ad_plan_pools;

/* Creates the run of each pool's first rank, and takes one step of it (ad_plan_act). */
ad_status ad_plan_pools_act(const ad_recipe *recipe, const ad_plan_world *world, ad_plan_pools *out) AD_CHECKED;
/* Returns `world` with the table of actions that the first rank made, for acting as other ranks. */
ad_plan_world ad_plan_world_after(const ad_plan_pools *pools, const ad_plan_world *world);
void ad_plan_pools_release(ad_plan_pools *pools);

/* Returns the index of the pool that has the rank. */
size_t ad_plan_pool_of(const ad_plan_pools *pools, int64_t rank);
/* Returns the index of the pool that has the ranks of this mesh; the mesh may be from any of the runs. */
size_t ad_plan_pool_under(const ad_plan_pools *pools, const ad_mesh *mesh);
/* Returns the program, which is the same on every rank. */
const ad_program *ad_plan_program(const ad_plan_pools *pools);

/* Makes "pools" of the plan's document: first rank, number of ranks and modules of each pool and, in a pipeline, its
 * stages. */
json_t *ad_plan_pools_document(const ad_plan_pools *pools);
/* Lists the stages of a pipeline that are on this pool. Stage m is the program's module m. */
json_t *ad_plan_pool_stages(const ad_plan_pools *pools, size_t pool);
/* Adds "stage" to the document of something that belongs to a module of a pipeline. */
void ad_plan_add_stage(const ad_program *program, size_t module, json_t *document);
/* Adds "gradient_memory": how the gradient buckets of each pool's modules share memory. */
void ad_plan_add_gradient_memory(const ad_plan_pools *pools, json_t *document);
/* Adds "bridges": what each bridge sends, route by route. */
ad_status ad_plan_add_bridges(const ad_plan_pools *pools, json_t *document) AD_CHECKED;
/* Adds memory_per_rank and memory_per_node. */
ad_status ad_plan_add_memory(const ad_recipe *recipe, const ad_plan_world *world, const ad_plan_pools *pools,
                             json_t *document) AD_CHECKED;
/* For a recipe with train.leaves: adds "leaves". Call it after ad_plan_add_memory, because it reads memory_per_rank,
 * whose entries ad_plan_add_leaf_sums completed. ad_plan_print_leaves prints "leaves" if the plan has it. */
ad_status ad_plan_add_leaves(const ad_recipe *recipe, const ad_plan_world *world, const ad_plan_pools *pools,
                             json_t *document) AD_CHECKED;
void ad_plan_add_leaf_sums(const ad_plan_memory *memory, json_t *rank);
void ad_plan_print_leaves(FILE *file, const json_t *plan);

#endif
