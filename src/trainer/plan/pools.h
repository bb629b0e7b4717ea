/* The pools of a plan: ranks on which the same modules lie. One process acts as the first rank of each. */
#ifndef PLAN_POOLS_H
#define PLAN_POOLS_H
#include "plan/plan.h"
#include "plan/traffic.h"

typedef struct ad_plan_pool {
  int64_t first, ranks;
  ad_comm *comm;
  ad_run *run; /* of the first rank, after a step */
  ad_traffic traffic;
} ad_plan_pool;

typedef struct ad_plan_pools {
  ad_plan_pool *list; /* in the order of their ranks, which is that of the program's modules */
  size_t count;
} ad_plan_pools;

ad_status ad_plan_pools_act(const ad_recipe *recipe, const ad_plan_world *world, ad_plan_pools *out) AD_CHECKED;
/* The world for further ranks, which take the order of steps that the first one made. */
ad_plan_world ad_plan_world_after(const ad_plan_pools *pools, const ad_plan_world *world);
void ad_plan_pools_release(ad_plan_pools *pools);

/* The pool that the rank is in. */
size_t ad_plan_pool_of(const ad_plan_pools *pools, int64_t rank);
/* The same of a mesh of any of their runs. */
size_t ad_plan_pool_under(const ad_plan_pools *pools, const ad_mesh *mesh);
/* The same on every rank. */
const ad_program *ad_plan_program(const ad_plan_pools *pools);

/* "pools" of the plan's document: first rank, ranks, and the modules that lie there; of a pipeline their stages too. */
json_t *ad_plan_pools_document(const ad_plan_pools *pools);
/* The numbers of the stages that lie on the pool, of a pipeline, whose modules are its stages. */
json_t *ad_plan_pool_stages(const ad_plan_pools *pools, size_t pool);
/* Fills "stage" of what belongs to a module of a pipeline. */
void ad_plan_add_stage(const ad_program *program, size_t module, json_t *document);
/* Fills "gradient_memory": how the buckets of each pool's modules share memory. */
void ad_plan_add_gradient_memory(const ad_plan_pools *pools, json_t *document);
/* Fills "bridges": what crosses them, route by route. */
ad_status ad_plan_add_bridges(const ad_plan_pools *pools, json_t *document) AD_CHECKED;
/* Fills memory_per_rank and memory_per_node. */
ad_status ad_plan_add_memory(const ad_recipe *recipe, const ad_plan_world *world, const ad_plan_pools *pools,
                             json_t *document) AD_CHECKED;

#endif
