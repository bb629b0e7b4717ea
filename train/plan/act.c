/* Acts as one rank of a world of any size, in one process on backend dry (which moves no bytes), and counts the memory
 * that this rank would use. */
#include "base/error.h"
#include "base/options.h"
#include "comm/dry.h"
#include "module/module.h"
#include "optim/record.h"
#include "optim/whole.h"
#include "plan/plan.h"
#include "plan/repairs.h"
#include "products/gemm_ways.h"
#include "program/program.h"
#include "recipe/shard_groups.h"
#include "reduce/plan.h"
#include "step/prompts.h"
#include "step/run.h"

/* The bytes that a rank's process uses without any parameter, on x86-64 Linux: 1 MiB for its share of the code pages
 * that all ranks map, and 2 MiB for its stack, libraries' data, heap and packed blocks of matrix products. */
static const size_t process_bytes = 3 << 20;
/* The bytes that are added if oneDNN computes matrix products (f32 and bf16 with AVX-512): its relocated data, kernels
 * and packed blocks. In bf16, kernels are compiled for each shape, and blocks that were widened to f32 are kept. */
static const size_t onednn_bytes = 6 << 20, onednn_bf16_bytes = 6 << 20;
/* The bytes that are added if checkpoints are written: the heap of the writer thread, and its buffer for reading files
 * back. */
static const size_t writer_bytes = 2 << 20;
/* Values on a tape go to other ranks through staging buffers of half a MiB each (core/comm/shm). A rank keeps a buffer
 * until the ranks that read it are done. At most four buffers at the same time were observed, and all together are no
 * larger than the tape. Gradient buckets need no staging, because they are in shared memory. */
static const size_t staging_bytes = 2 << 20;

/* Returns 1 if this rank's tapes send values to other ranks: over a bridge, or along an axis that is not
 * data-parallel. */
static int passes_values(const ad_run *run) {
  if (ad_transfers_bytes(run)) return 1;
  for (size_t i = 0; i < ad_program_module_count(ad_run_program(run)); i++) {
    if (!ad_run_module(run, i)) continue;
    const ad_mesh *mesh = ad_module_mesh(ad_run_module(run, i));
    int64_t data = ad_mesh_axis_size(mesh, AD_DP_REPLICATE) * ad_mesh_axis_size(mesh, AD_DP_SHARD);
    if (ad_mesh_size(mesh) > data) return 1;
  }
  return 0;
}

/* Returns 1 if this rank has no rows of any microbatch and gets none from other ranks, so that it computes no matrix
 * products. */
static int has_no_rows(const ad_run *run) {
  const ad_array *array;
  size_t i = 0;
  for (; (array = ad_program_batch_array(ad_run_program(run), i, NULL, 0)); i++)
    if (ad_array_bytes(array)) return 0;
  return i > 0 && !passes_values(run);
}

/* Returns the memory of the library that computes this run's matrix products, as if all products were of usual size. */
static size_t products_bytes(const ad_run *run) {
  ad_products products = ad_products_in_use();
  gemm_product usual = {.values = ad_run_compute_dtype(run), .m = 512, .n = 512, .k = 512};
  gemm_way way = ad_gemm_choose(&products, &usual);
  if (has_no_rows(run)) return 0;
  if (way != GEMM_ONEDNN && way != GEMM_WIDEN_ONEDNN) return 0;
  return usual.values == AD_BF16 ? onednn_bf16_bytes : onednn_bytes;
}

/* Returns the memory of the staging buffers. */
static size_t staged_bytes(const ad_run *run) {
  size_t values = ad_run_tape_bytes(run);
  if (!passes_values(run)) return 0;
  return values < staging_bytes ? values : staging_bytes;
}

static size_t runtime_bytes(const ad_run *run) {
  return process_bytes + products_bytes(run) + staged_bytes(run) + ad_run_data_bytes(run);
}

/* The names of the kinds of memory in the plan's document, in the order of its columns. */
const char *const ad_plan_parts[AD_PLAN_PARTS] = {"params", "gathered",          "buckets",    "grads",   "optimizer",
                                                  "update", "activations",       "checkpoint", "runtime", "prompts",
                                                  "peak",   "activations_worst", "peak_worst"};

size_t ad_plan_peak(const ad_plan_memory *memory) {
  return memory->params + memory->gathered + memory->grads + memory->optimizer + memory->update + memory->buckets +
         memory->activations + memory->checkpoint + memory->runtime + memory->prompts;
}

size_t ad_plan_peak_worst(const ad_plan_memory *memory) {
  return ad_plan_peak(memory) - memory->activations + memory->activations_worst;
}

ad_status ad_plan_world_of(const ad_recipe *recipe, const ad_plan_options *options, ad_plan_world *out) {
  ad_plan_options own;
  int64_t ranks = 0;
  AD_TRY(ad_options_take(&own, sizeof own, options, "ad_plan_options"));
  if (own.ranks_per_node < 0)
    return ad_fail(AD_INVALID,
                   "the number of ranks per node is %lld, but must be at least 1, or 0 to put all ranks on one node",
                   (long long)own.ranks_per_node);
  AD_TRY(ad_recipe_world(recipe, &ranks));
  int all = !own.ranks_per_node || own.ranks_per_node > ranks;
  *out = (ad_plan_world){.ranks = ranks, .ranks_per_node = all ? ranks : own.ranks_per_node};
  return AD_OK;
}

/* Refuses a recipe if the window of a parameter's group, the number of gradient buckets that are in memory at the same
 * time, is too small for a module. */
static ad_status check_window(const ad_run *run, size_t param) {
  ad_run_param at = ad_run_param_at(run, param);
  const ad_recipe *recipe = ad_run_recipe(run);
  char name[AD_PROGRAM_NAME_SIZE], key[AD_ENTRY_PATH_SIZE] = "shard.window";
  size_t needed = at.held ? ad_reducer_window_needed(ad_module_reducer(at.held), at.param) : 0;
  if (!needed) return AD_OK;
  size_t group = ad_recipe_shard_group_of(
      recipe, ad_program_param_name(ad_run_program(run), at.module, at.param, name, sizeof name));
  if (group && recipe->shard.groups[group - 1].gives & AD_SHARDS_WINDOW)
    ad_entry_path(&ad_shard_group_entries, group - 1, "window", key);
  return ad_fail(AD_INVALID,
                 "%s is %lld, which is too small for the module `%s`: its backward pass needs %zu buckets of one kind "
                 "at the same time; set %s to at least %zu, or to 0 for as many as needed",
                 key, (long long)ad_recipe_sharding_of_group(recipe, group).window,
                 ad_program_module(ad_run_program(run), at.module)->name, needed, key, needed);
}

static ad_status check_windows(const ad_run *run) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) AD_TRY(check_window(run, i));
  return AD_OK;
}

/* The arguments of ad_plan_act. */
typedef struct acting {
  const ad_recipe *recipe;
  int64_t rank;
  const ad_plan_world *world;
  size_t crowd;
} acting;

/* Creates the run on the dry comm and takes one step of it. */
static ad_status act_on(ad_comm *comm, const acting *as, ad_run **out) {
  const ad_plan_world *world = as->world;
  ad_run_options options = {
      .size = sizeof options, .dtype = world->dtype, .crowd = as->crowd, .plans = 1, .table = world->table};
  ad_run *run;
  AD_TRY(ad_run_create(comm, as->recipe, &options, &run));
  ad_step_report report;
  ad_status status = ad_run_step(run, 0, &report);
  if (!status) status = check_windows(run);
  if (status)
    ad_run_destroy(run);
  else
    *out = run;
  return status;
}

static ad_status act(const acting *as, ad_comm **comm, ad_run **run) {
  ad_comm *dry;
  int64_t ranks = as->world->ranks, node = as->world->ranks_per_node;
  AD_TRY(ad_comm_open_dry_nodes(as->rank, ranks, node == ranks ? 0 : node, &dry));
  ad_status status = act_on(dry, as, run);
  if (status)
    ad_comm_close(dry);
  else
    *comm = dry;
  return status;
}

/* Takes the refused step once more, so that ad_repair_report can try a repair in it, and releases the comm and the run
 * that it made. */
static ad_status act_again(void *context) {
  ad_comm *comm;
  ad_run *run;
  AD_TRY(act(context, &comm, &run));
  ad_run_destroy(run);
  ad_comm_close(comm);
  return AD_OK;
}

ad_status ad_plan_act(const ad_recipe *recipe, int64_t rank, const ad_plan_world *world, size_t crowd, ad_comm **comm,
                      ad_run **run) {
  acting as = {recipe, rank, world, crowd};
  ad_status status = act(&as, comm, run);
  return status ? ad_repair_report(status, act_again, &as) : AD_OK;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Raises the numbers of sums of leaves in `to` to the largest of any bucket of one module, and adds the bytes of its
 * shards. */
static void add_leaf_sums(const ad_reducer *reducer, ad_plan_memory *to) {
  for (size_t i = 0; i < ad_reducer_bucket_count(reducer); i++) {
    ad_bucket_plan bucket = ad_reducer_bucket(reducer, i);
    to->leaf_sums = larger(to->leaf_sums, bucket.leaf_sums);
    to->leaf_shards = larger(to->leaf_shards, bucket.leaf_shards);
    to->leaf_shard_bytes += bucket.leaf_shard_bytes;
  }
}

/* Adds the bytes of one module to `to`. */
static void add_module(ad_module *module, ad_plan_memory *to) {
  const ad_reducer *reducer = ad_module_reducer(module);
  size_t sums = ad_reducer_sum_bytes(reducer);
  to->params += ad_store_bytes(ad_module_store(module));
  to->gathered += ad_store_gathered_bytes(ad_module_store(module));
  to->grads += sums;
  to->buckets += ad_reducer_bytes(reducer) - sums;
  add_leaf_sums(reducer, to);
  const ad_optimizer *optimizer = ad_module_optimizer(module);
  const ad_whole *whole = optimizer ? ad_optimizer_whole(optimizer) : NULL;
  if (optimizer) to->optimizer += ad_optimizer_bytes(optimizer);
  if (whole) to->update += ad_whole_bytes(whole);
  for (size_t i = 0; i < ad_module_state_count(module); i++) to->params += ad_array_bytes(ad_module_state(module, i));
}

ad_status ad_plan_memory_of(ad_run *run, ad_plan_memory *out) {
  ad_plan_memory memory = {0};
  for (size_t i = 0; i < ad_program_module_count(ad_run_program(run)); i++)
    if (ad_run_module(run, i)) add_module(ad_run_module(run, i), &memory);
  memory.activations = ad_run_tape_bytes(run) + ad_transfers_bytes(run);
  memory.most_routed = ad_run_most_routed(run);
  memory.runtime = runtime_bytes(run);
  memory.prompts = ad_prompts_bytes(run);
  if (ad_run_recipe(run)->checkpoint.every) AD_TRY(ad_run_checkpoint_bytes(run, &memory.checkpoint));
  if (memory.checkpoint) memory.runtime += writer_bytes;
  *out = memory;
  return AD_OK;
}
