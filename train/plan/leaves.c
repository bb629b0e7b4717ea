/* Makes and prints "leaves", a part of the plan of a recipe with train.leaves: how many sums of leaves a rank holds and
 * submits, and which other settings would need less memory. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "files/json.h"
#include "plan/pools.h"
#include "program/program.h"
#include "recipe/leaves.h"

static const char *const leaf_parts[] = {"leaf_sums", "leaf_shards", "leaf_shard_bytes"};

void ad_plan_add_leaf_sums(const ad_plan_memory *memory, json_t *rank) {
  const size_t values[] = {memory->leaf_sums, memory->leaf_shards, memory->leaf_shard_bytes};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    json_object_set_new(rank, leaf_parts[i], json_integer((json_int_t)values[i]));
}

/* Makes the document of the sums that a rank holds: `sums` are of full gradients, in the buckets; `shards` are what
 * remains of such sums on this rank after a reduce_scatter. */
static json_t *held_document(long long rank, long long sums, long long bytes, long long shards, long long shard_bytes) {
  return json_pack("{s:I, s:I, s:I, s:I, s:I}", "rank", (json_int_t)rank, "sums", (json_int_t)sums, "bytes",
                   (json_int_t)bytes, "shards", (json_int_t)shards, "shard_bytes", (json_int_t)shard_bytes);
}

/* Makes the document of the sums that one rank holds: the rank whose sums take the most bytes. */
static json_t *most_held(const json_t *document) {
  const json_t *entry, *most = NULL;
  long long most_bytes = -1;
  size_t i;
  json_array_foreach(json_object_get(document, "memory_per_rank"), i, entry) {
    long long bytes = ad_integer_of(entry, "buckets") + ad_integer_of(entry, "leaf_shard_bytes");
    if (bytes <= most_bytes) continue;
    most_bytes = bytes;
    most = entry;
  }
  return held_document(ad_integer_of(most, "rank"), ad_integer_of(most, "leaf_sums"), ad_integer_of(most, "buckets"),
                       ad_integer_of(most, "leaf_shards"), ad_integer_of(most, "leaf_shard_bytes"));
}

/* ---- what the reductions of a step sum ---- */

static json_t *reduction_document(const ad_leaf_reduction *reduction) {
  char axes[80];
  return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I}", "op", reduction->op, "axes",
                   ad_axes_print(reduction->axes, axes, sizeof axes), "dtype", ad_dtype_name(reduction->dtype),
                   "sums_most", (json_int_t)reduction->most, "sums_all", (json_int_t)reduction->all, "bytes",
                   (json_int_t)reduction->bytes, "times", (json_int_t)reduction->times);
}

static json_t *reductions_of(const ad_traffic *traffic) {
  json_t *list = json_array();
  for (size_t i = 0; i < traffic->reduction_count; i++)
    json_array_append_new(list, reduction_document(&traffic->reductions[i]));
  return list;
}

/* ---- settings that would need less memory ---- */

/* Finds what `rank` would hold with ZeRO 2 and train.sync=[], which then means that each leaf's gradients are reduced
 * immediately. Leaves *out NULL if the recipe cannot have ZeRO 2. */
static ad_status act_on_zero2(const ad_recipe *recipe, const ad_plan_world *world, int64_t rank, int64_t microbatches,
                              json_t **out) {
  char count[48], *text;
  const char *sets[] = {"shard.zero=2", count, "train.sync=[]"};
  ad_recipe *other;
  ad_comm *comm;
  ad_run *run;
  ad_plan_memory memory;
  snprintf(count, sizeof count, "train.microbatches=%lld", (long long)microbatches);
  AD_TRY(ad_recipe_print(recipe, &text));
  ad_status refused = ad_recipe_parse(text, recipe->path, sets, sizeof sets / sizeof *sets, &other);
  ad_release(text);
  if (refused) return refused == AD_MEMORY ? refused : AD_OK;
  ad_status status = ad_plan_act(other, rank, world, 0, &comm, &run);
  if (!status) {
    status = ad_plan_memory_of(run, &memory);
    if (!status)
      *out = held_document(rank, (long long)memory.leaf_sums, (long long)memory.buckets, (long long)memory.leaf_shards,
                           (long long)memory.leaf_shard_bytes);
    ad_run_destroy(run);
    ad_comm_close(comm);
  }
  ad_recipe_destroy(other);
  return status == AD_INVALID || status == AD_TYPE ? AD_OK : status;
}

/* Adds "with_zero2", what a rank would hold with ZeRO 2, if that is less than it holds now. With ZeRO 2 it may be less,
 * because a rank keeps only its shards of gradients. */
static ad_status add_zero2(const ad_recipe *recipe, const ad_plan_world *world, const ad_mesh *mesh, json_t *leaves) {
  const json_t *held = json_object_get(leaves, "held");
  json_t *with = NULL;
  int64_t positions = ad_mesh_axis_size(mesh, AD_DP_REPLICATE) * ad_mesh_axis_size(mesh, AD_DP_SHARD);
  if (recipe->shard.zero >= 2 || ad_mesh_axis_size(mesh, AD_DP_SHARD) == 1) return AD_OK;
  AD_TRY(act_on_zero2(recipe, world, ad_integer_of(held, "rank"), (recipe->train.leaves + positions - 1) / positions,
                      &with));
  if (with && ad_integer_of(with, "bytes") + ad_integer_of(with, "shard_bytes") <
                  ad_integer_of(held, "bytes") + ad_integer_of(held, "shard_bytes"))
    json_object_set(leaves, "with_zero2", with);
  json_decref(with);
  return AD_OK;
}

/* Returns 1 if the recipe sets the number of microbatches; otherwise this number follows from that of leaves. */
static int gives_microbatches(const ad_recipe *recipe) {
  for (size_t i = 0; i < recipe->given_count; i++)
    if (!strcmp(recipe->given[i], "train.microbatches") || !strcmp(recipe->given[i], "train.sync")) return 1;
  return 0;
}

/* Adds "no_rank_idle": the nearest numbers of leaves with which each rank has a leaf in each round. The list is empty
 * if the recipe's number of leaves is already one of these. */
static void add_even_numbers(const ad_recipe *recipe, int64_t positions, json_t *leaves) {
  int64_t slots = positions * (gives_microbatches(recipe) ? recipe->train.microbatches : 1);
  int64_t below = recipe->train.leaves / slots * slots;
  json_t *list = json_array();
  json_object_set_new(leaves, "no_rank_idle", list);
  if (recipe->train.leaves == positions * ad_recipe_rounds(recipe)) return;
  if (below && below < recipe->train.leaves) json_array_append_new(list, json_integer(below));
  if (below + slots <= AD_MICROBATCHES_MAX) json_array_append_new(list, json_integer(below + slots));
}

ad_status ad_plan_add_leaves(const ad_recipe *recipe, const ad_plan_world *world, const ad_plan_pools *pools,
                             json_t *document) {
  if (!recipe->train.leaves) return AD_OK;
  const ad_mesh *mesh = ad_program_full_mesh(ad_plan_program(pools), 0);
  int64_t positions = ad_mesh_axis_size(mesh, AD_DP_REPLICATE) * ad_mesh_axis_size(mesh, AD_DP_SHARD);
  json_t *leaves = json_pack("{s:I, s:I, s:I, s:f, s:o, s:o}", "leaves", (json_int_t)recipe->train.leaves, "ranks",
                             (json_int_t)positions, "rounds", (json_int_t)ad_recipe_rounds(recipe), "rounds_if_even",
                             (double)recipe->train.leaves / (double)positions, "held", most_held(document),
                             "reductions", reductions_of(&pools->list[0].traffic));
  json_object_set_new(document, "leaves", leaves);
  add_even_numbers(recipe, positions, leaves);
  return add_zero2(recipe, world, mesh, leaves);
}

/* ---- printing ---- */

static double mib(long long bytes) { return (double)bytes / (1 << 20); }

static void print_held(FILE *file, const json_t *held, const char *begins) {
  long long sums = ad_integer_of(held, "sums"), shards = ad_integer_of(held, "shards");
  fprintf(file, "    %s %lld sum%s of full gradients (%.2f MiB)", begins, sums, ad_plural(sums),
          mib(ad_integer_of(held, "bytes")));
  if (shards) fprintf(file, " and %lld of shards of them (%.2f MiB)", shards, mib(ad_integer_of(held, "shard_bytes")));
  fprintf(file, "\n");
}

static void print_reduction(FILE *file, const json_t *reduction) {
  long long most = ad_integer_of(reduction, "sums_most"), times = ad_integer_of(reduction, "times");
  fprintf(file, "    %s over %s: a rank submits at most %lld sum%s, all together %lld; %lld bytes in %lld call%s\n",
          ad_text_of(reduction, "op"), ad_text_of(reduction, "axes"), most, ad_plural(most),
          ad_integer_of(reduction, "sums_all"), ad_integer_of(reduction, "bytes"), times, ad_plural(times));
}

static void print_even_numbers(FILE *file, const json_t *leaves) {
  const json_t *even = json_object_get(leaves, "no_rank_idle"), *number;
  size_t i;
  if (!json_array_size(even)) return;
  fprintf(file, "    %lld leaves on %lld ranks take %lld rounds where %.3g would do; ", ad_integer_of(leaves, "leaves"),
          ad_integer_of(leaves, "ranks"), ad_integer_of(leaves, "rounds"),
          json_number_value(json_object_get(leaves, "rounds_if_even")));
  json_array_foreach(even, i, number) fprintf(file, "%s%lld", i ? " or " : "", (long long)json_integer_value(number));
  fprintf(file, " leaves leave no rank idle\n");
}

void ad_plan_print_leaves(FILE *file, const json_t *plan) {
  const json_t *leaves = json_object_get(plan, "leaves"), *reduction;
  size_t i;
  if (!leaves) return;
  fprintf(file, "\n  sums of %lld leaves\n", ad_integer_of(leaves, "leaves"));
  print_held(file, json_object_get(leaves, "held"), "a rank holds at most");
  json_array_foreach(json_object_get(leaves, "reductions"), i, reduction) print_reduction(file, reduction);
  if (json_object_get(leaves, "with_zero2"))
    print_held(file, json_object_get(leaves, "with_zero2"), "with shard.zero=2 it would hold");
  print_even_numbers(file, leaves);
}
