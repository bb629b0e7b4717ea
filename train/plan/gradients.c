/* "gradient_memory" in a plan's document: which gradient buckets share slots of memory, and which are kept in full and
 * why. A row is for all buckets of a module that are reduced in the same way. The buckets of one window use its slots
 * one after another. */
#include "module/module.h"
#include "plan/pools.h"
#include "program/program.h"
#include "reduce/plan.h"
#include "step/run.h"

/* A row of "gradient_memory": the buckets of a module that are reduced in the same way. */
typedef struct gradient_row {
  const ad_reducer *reducer; /* the reducer of the row's buckets */
  size_t first_param;        /* the run's number of the reducer's first parameter */
  ad_bucket_plan first;      /* the first bucket of the row */
} gradient_row;

/* Returns 1 if the bucket belongs to this row of "gradient_memory": it is in the window of the row's first bucket or,
 * if neither bucket is in a window, is reduced in the same way. */
static int is_of(const gradient_row *row, const ad_bucket_plan *bucket) {
  const ad_bucket_plan *first = &row->first;
  if (first->window >= 0 || bucket->window >= 0) return first->window == bucket->window;
  return first->group == bucket->group && first->lasting == bucket->lasting && first->move == bucket->move &&
         first->axes == bucket->axes && first->dtype == bucket->dtype;
}

static json_t *names_of(const ad_run *run, size_t module, const ad_bucket_plan *bucket) {
  json_t *names = json_array();
  char name[AD_PROGRAM_NAME_SIZE];
  for (size_t i = 0; i < bucket->param_count; i++)
    json_array_append_new(
        names, json_string(ad_program_param_name(ad_run_program(run), module, bucket->params[i], name, sizeof name)));
  return names;
}

/* Lists buckets that are still incomplete when later buckets begin. Such a bucket needs a separate slot of memory until
 * it is complete. */
static json_t *open_buckets(const ad_run *run, size_t module, const gradient_row *row) {
  json_t *open = json_array();
  for (size_t i = 0; i < ad_reducer_bucket_count(row->reducer); i++) {
    ad_bucket_plan bucket = ad_reducer_bucket(row->reducer, i);
    if (!bucket.overtaken || !is_of(row, &bucket)) continue;
    json_array_append_new(
        open, json_pack("{s:I, s:I, s:I, s:o}", "bucket", (json_int_t)i, "bytes", (json_int_t)bucket.bytes, "beside",
                        (json_int_t)bucket.overtaken, "params", names_of(run, module, &bucket)));
  }
  return open;
}

/* Returns 1 if the gradients of some microbatch are not reduced in that microbatch (sync `none`). */
static int leaves_unsent(const ad_recipe *recipe, const ad_sync *sync) {
  for (size_t m = 0; m < recipe->train.sync_count; m++)
    if (sync[m] == AD_SYNC_NONE) return 1;
  return 0;
}

/* Returns why the buckets of a row do not share memory. */
static const char *why_full(const ad_run *run, const gradient_row *row) {
  const ad_recipe *recipe = ad_run_recipe(run);
  const ad_bucket_plan *bucket = &row->first;
  ad_recipe_sharding sharding = ad_run_sharding(run, row->first_param + bucket->params[0]);
  if (bucket->move != AD_MOVE_REDUCE_SCATTER || !bucket->axes) return "not reduce-scattered";
  if (bucket->lasting) return "added to through the whole backward pass, by uses that lie far apart";
  if (sharding.zero < 2) return "shard.zero is below 2";
  if (leaves_unsent(recipe, sharding.sync)) return "train.sync has `none`, and what is not sent needs all elements";
  if (recipe->train.leaves && recipe->train.rounds_each > 1)
    return "a rank sums several leaves of a microbatch before it sends them";
  return "two slots would take no less";
}

static void describe_window(const ad_run *run, size_t module, const gradient_row *row, json_t *document) {
  ad_window_plan window = ad_reducer_window(row->reducer, row->first.window);
  json_object_set_new(document, "slots", json_integer((json_int_t)window.slots));
  json_object_set_new(document, "bytes", json_integer((json_int_t)window.bytes));
  json_object_set_new(document, "open", open_buckets(run, module, row));
}

static json_t *row_document(const ad_run *run, size_t module, const gradient_row *row) {
  char axes[80];
  size_t count = 0, bytes = 0;
  for (size_t i = 0; i < ad_reducer_bucket_count(row->reducer); i++) {
    ad_bucket_plan bucket = ad_reducer_bucket(row->reducer, i);
    if (!is_of(row, &bucket)) continue;
    count++;
    bytes += bucket.bytes;
  }
  json_t *document =
      json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I}", "module", ad_program_module(ad_run_program(run), module)->name,
                "op", row->first.axes ? ad_move_name(row->first.move) : "none", "axes",
                ad_axes_print(row->first.axes, axes, sizeof axes), "dtype", ad_dtype_name(row->first.dtype), "buckets",
                (json_int_t)count, "slots", (json_int_t)count, "bytes", (json_int_t)bytes);
  size_t group = row->first.group;
  if (group)
    json_object_set_new(document, "shard_group", json_string(ad_run_recipe(run)->shard.groups[group - 1].pattern));
  const char *why = row->first.window < 0 ? why_full(run, row) : NULL;
  if (why) json_object_set_new(document, "full_because", json_string(why));
  if (row->first.window >= 0) describe_window(run, module, row, document);
  return document;
}

/* Returns 1 if an earlier bucket belongs to the same row as this bucket. */
static int was_stated(const ad_reducer *reducer, size_t index) {
  gradient_row row = {.reducer = reducer, .first = ad_reducer_bucket(reducer, index)};
  for (size_t i = 0; i < index; i++) {
    ad_bucket_plan earlier = ad_reducer_bucket(reducer, i);
    if (is_of(&row, &earlier)) return 1;
  }
  return 0;
}

static void add_module(const ad_run *run, size_t pool, size_t module, size_t first, json_t *list) {
  const ad_reducer *reducer = ad_module_reducer(ad_run_module(run, module));
  for (size_t i = 0; i < ad_reducer_bucket_count(reducer); i++) {
    if (was_stated(reducer, i)) continue;
    gradient_row row = {reducer, first, ad_reducer_bucket(reducer, i)};
    json_t *document = row_document(run, module, &row);
    json_object_set_new(document, "pool", json_integer((json_int_t)pool));
    ad_plan_add_stage(ad_run_program(run), module, document);
    json_array_append_new(list, document);
  }
}

void ad_plan_add_gradient_memory(const ad_plan_pools *pools, json_t *document) {
  json_t *list = json_array();
  for (size_t p = 0; p < pools->count; p++) {
    ad_run *run = pools->list[p].run;
    for (size_t m = 0, first = 0; m < ad_program_module_count(ad_run_program(run)); m++) {
      if (ad_run_module(run, m)) add_module(run, p, m, first, list);
      first += ad_program_module(ad_run_program(run), m)->param_count;
    }
  }
  json_object_set_new(document, "gradient_memory", list);
}
