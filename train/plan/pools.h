/* The pools of a plan: disjoint ranges of ranks, each with its own modules. One process
 * acts as the first rank of each. */
#ifndef PLAN_POOLS_H
#define PLAN_POOLS_H
#include "plan/plan.h"
#include "plan/traffic.h"

/* A pool. `ranks`: its number of ranks. */
typedef struct ad_plan_pool {
  int64_t first, ranks;
  ad_comm *comm;
  ad_run *run; /* run of the pool's first rank, after one step */
  /* what the tapes of that step moved between ranks */
  ad_traffic traffic;
} ad_plan_pool;

typedef struct ad_plan_pools {
  ad_plan_pool *list; /* in the order of ranks, which is also that of the program's modules */
  size_t count;
} ad_plan_pools;

/* Acts as the first rank of each pool. */
ad_status ad_plan_pools_act(const ad_recipe *recipe, const ad_plan_world *world, ad_plan_pools *out) AD_CHECKED;
/* The world with the table of actions that the first rank made, for acting as further ranks. */
ad_plan_world ad_plan_world_after(const ad_plan_pools *pools, const ad_plan_world *world);
void ad_plan_pools_release(ad_plan_pools *pools);

/* The index of the pool that the rank is in. */
size_t ad_plan_pool_of(const ad_plan_pools *pools, int64_t rank);
/* The index of the pool that this mesh, of any of the runs, lies in. */
size_t ad_plan_pool_under(const ad_plan_pools *pools, const ad_mesh *mesh);
/* The program, which is the same on every rank. */
const ad_program *ad_plan_program(const ad_plan_pools *pools);

/* "pools" of the plan's document: first rank, number of ranks, and the modules there; in a
 * pipeline also their stages. */
json_t *ad_plan_pools_document(const ad_plan_pools *pools);
/* The stages on this pool, in a pipeline, whose module m is stage m. */
json_t *ad_plan_pool_stages(const ad_plan_pools *pools, size_t pool);
/* Sets "stage" in the document of something that belongs to a pipeline's module. */
void ad_plan_add_stage(const ad_program *program, size_t module, json_t *document);
/* Sets "gradient_memory": how the buckets of each pool's modules share memory. */
void ad_plan_add_gradient_memory(const ad_plan_pools *pools, json_t *document);
/* Sets "bridges": what is sent over each bridge, route by route. */
ad_status ad_plan_add_bridges(const ad_plan_pools *pools, json_t *document) AD_CHECKED;
/* Sets memory_per_rank and memory_per_node. */
ad_status ad_plan_add_memory(const ad_recipe *recipe, const ad_plan_world *world, const ad_plan_pools *pools,
                             json_t *document) AD_CHECKED;

#endif
