/* Acts as the first rank of each pool. */
#include "plan/pools.h"

#include "base/error.h"
#include "base/memory.h"
#include "program/program.h"
#include "step/run.h"

/* Returns the index of the pool whose first rank is `first`, or `count` if there is none. */
static size_t find_first(const ad_plan_pools *pools, int64_t first) {
  size_t i = 0;
  while (i < pools->count && pools->list[i].first != first) i++;
  return i;
}

/* Appends a pool and acts as its first rank. */
static ad_status add_pool(const ad_recipe *recipe, const ad_plan_world *world, int64_t first, ad_plan_pools *to) {
  AD_TRY(ad_grow(&to->list, to->count, to->count + 1));
  ad_plan_pool *pool = &to->list[to->count++];
  *pool = (ad_plan_pool){.first = first};
  ad_traffic_begin(&pool->traffic);
  ad_status status = ad_plan_act(recipe, first, world, 0, &pool->comm, &pool->run);
  ad_traffic_end(&pool->traffic);
  return status ? status : pool->traffic.status;
}

ad_plan_world ad_plan_world_after(const ad_plan_pools *pools, const ad_plan_world *world) {
  ad_plan_world after = *world;
  after.table = pools->list[0].run->order.table;
  return after;
}

/* Acts as rank 0, whose program has the meshes of all modules, and then as the first rank of every other pool, in the
 * order of ranks. */
static ad_status act(const ad_recipe *recipe, const ad_plan_world *world, ad_plan_pools *to) {
  AD_TRY(add_pool(recipe, world, 0, to));
  ad_plan_world after = ad_plan_world_after(to, world);
  for (size_t m = 0; m < ad_program_module_count(ad_plan_program(to)); m++) {
    const ad_mesh *mesh = ad_program_full_mesh(ad_plan_program(to), m);
    size_t pool = find_first(to, ad_mesh_first_rank(mesh));
    if (pool == to->count) AD_TRY(add_pool(recipe, &after, ad_mesh_first_rank(mesh), to));
    to->list[pool].ranks = ad_mesh_size(mesh);
  }
  return AD_OK;
}

ad_status ad_plan_pools_act(const ad_recipe *recipe, const ad_plan_world *world, ad_plan_pools *out) {
  ad_plan_pools pools = {0};
  ad_status status = act(recipe, world, &pools);
  if (status)
    ad_plan_pools_release(&pools);
  else
    *out = pools;
  return status;
}

void ad_plan_pools_release(ad_plan_pools *pools) {
  for (size_t i = 0; i < pools->count; i++) {
    ad_run_destroy(pools->list[i].run);
    ad_comm_close(pools->list[i].comm);
    ad_traffic_release(&pools->list[i].traffic);
  }
  ad_release(pools->list);
}

size_t ad_plan_pool_of(const ad_plan_pools *pools, int64_t rank) {
  size_t i = 0;
  while (i + 1 < pools->count && rank - pools->list[i].first >= pools->list[i].ranks) i++;
  return i;
}

size_t ad_plan_pool_under(const ad_plan_pools *pools, const ad_mesh *mesh) {
  return find_first(pools, ad_mesh_first_rank(mesh));
}

const ad_program *ad_plan_program(const ad_plan_pools *pools) { return ad_run_program(pools->list[0].run); }

json_t *ad_plan_pool_stages(const ad_plan_pools *pools, size_t pool) {
  json_t *list = json_array();
  for (size_t m = 0; m < ad_program_module_count(ad_plan_program(pools)); m++)
    if (ad_run_module(pools->list[pool].run, m)) json_array_append_new(list, json_integer((json_int_t)m));
  return list;
}

void ad_plan_add_stage(const ad_program *program, size_t module, json_t *document) {
  if (ad_program_stage_count(program) > 1) json_object_set_new(document, "stage", json_integer((json_int_t)module));
}

static json_t *pool_document(const ad_plan_pools *pools, size_t number) {
  const ad_plan_pool *pool = &pools->list[number];
  const ad_program *program = ad_run_program(pool->run);
  json_t *modules = json_array();
  for (size_t m = 0; m < ad_program_module_count(program); m++)
    if (ad_run_module(pool->run, m)) json_array_append_new(modules, json_string(ad_program_module(program, m)->name));
  json_t *document = json_pack("{s:I, s:I, s:o}", "first_rank", (json_int_t)pool->first, "ranks",
                               (json_int_t)pool->ranks, "modules", modules);
  if (ad_program_stage_count(program) > 1) json_object_set_new(document, "stages", ad_plan_pool_stages(pools, number));
  return document;
}

json_t *ad_plan_pools_document(const ad_plan_pools *pools) {
  json_t *list = json_array();
  for (size_t i = 0; i < pools->count; i++) json_array_append_new(list, pool_document(pools, i));
  return list;
}
