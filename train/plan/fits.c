/* Checks, before ranks start, that there is enough memory for a plan. Without this check the kernel would promise more
 * memory than it has and later kill processes. */
#include "plan/fits.h"

#include <inttypes.h>
#include <stdio.h>
#include "base/error.h"
#include "base/process.h"
#include "plan/pools.h"
#include "products/gemm.h"

static uint64_t mebibytes(uint64_t bytes) { return bytes >> 20; }

static ad_status refuse_memory(const char *what, size_t bytes, const ad_memory_room *room) {
  return ad_fail(AD_MEMORY,
                 "%s %" PRIu64
                 " MiB, but the memory limit of this process's cgroup, or of a cgroup above it, allows only %" PRIu64
                 " MiB (%s); raise this limit, or use a smaller model, batch or number of ranks. `addend plan` shows "
                 "what takes memory",
                 what, mebibytes(bytes), mebibytes(room->limit), room->limited_by);
}

ad_status ad_memory_fits(const char *root, const char *what, size_t bytes) {
  ad_memory_room room;
  ad_process_memory_room(root, &room);
  if (bytes > room.limit && bytes - room.limit > room.swap) return refuse_memory(what, bytes, &room);
  if (bytes > room.left && bytes - room.left > room.swap)
    ad_log(AD_LOG_WARNING,
           "%s %" PRIu64 " MiB, but the machine, or the cgroup of this process, has only %" PRIu64
           " MiB left now, so the kernel may kill ranks",
           what, mebibytes(bytes), mebibytes(room.left));
  return AD_OK;
}

/* Returns the bytes of all nodes together. */
static size_t sum_of_nodes(const json_t *document) {
  size_t i, sum = 0;
  json_t *node;
  json_array_foreach(json_object_get(document, "memory_per_node"), i, node) {
    sum += (size_t)json_integer_value(json_object_get(node, "peak"));
  }
  return sum;
}

ad_status ad_plan_needs(const ad_recipe *recipe, ad_dtype dtype, size_t *out) {
  ad_plan_world world;
  ad_plan_pools pools;
  AD_TRY(ad_plan_world_of(recipe, NULL, &world));
  world.dtype = dtype;
  AD_TRY(ad_plan_pools_act(recipe, &world, &pools));
  json_t *document = json_object();
  ad_status status = ad_plan_add_memory(recipe, &world, &pools, document);
  *out = sum_of_nodes(document);
  json_decref(document);
  ad_plan_pools_release(&pools);
  return status;
}

static ad_status fits(const ad_recipe *recipe) {
  size_t bytes;
  int64_t ranks = 0;
  char what[64];
  AD_TRY(ad_recipe_world(recipe, &ranks));
  AD_TRY(ad_plan_needs(recipe, 0, &bytes));
  snprintf(what, sizeof what, "the plan's %" PRId64 " rank%s need%s", ranks, ranks == 1 ? "" : "s",
           ranks == 1 ? "s" : "");
  return ad_memory_fits("", what, bytes);
}

ad_status ad_plan_fits(const ad_recipe *recipe) {
  ad_recipe *first;
  AD_NEED(recipe);
  AD_TRY(ad_gemm_try());
  AD_TRY(ad_recipe_pretraining(recipe, &first));
  ad_status status = first ? fits(first) : AD_OK;
  ad_recipe_destroy(first);
  return status ? status : fits(recipe);
}
