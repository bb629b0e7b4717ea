/* Creates and destroys a rank's share of a run, part by part. step.c takes the steps. */
#include "step/run.h"

#include "base/error.h"
#include "base/text.h"
#include "base/memory.h"
#include "base/options.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "recipe/recipe.h"
#include "recipe/schedule.h"

/* ---- checking that the recipe fits the number of ranks ---- */

ad_status ad_run_check_world(const ad_comm *comm, const ad_recipe *recipe) {
  int64_t ranks = 0, world = ad_comm_size(comm);
  char mesh[256];
  AD_TRY(ad_recipe_world(recipe, &ranks));
  if (ranks == world) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "the mesh \"%s\" of %s has %lld rank%s, but the communicator has %lld ranks; start as many ranks as the mesh has",
      ad_recipe_mesh_text(recipe, mesh, sizeof mesh), recipe->path ? recipe->path : recipe->name, (long long)ranks,
      ad_plural(ranks), (long long)world);
}

/* ---- creating a run ---- */

static ad_status read_initial(ad_run *run) {
  if (run->recipe->from) return ad_run_read_pretrained(run, run->recipe->from);
  return run->recipe->weights ? ad_run_read_weights(run, run->recipe->weights) : AD_OK;
}

static int is_pipeline(const ad_run *run) { return ad_program_stage_count(run->program) > 1; }

static ad_status create_order(ad_run *run) {
  const char *schedule = is_pipeline(run) ? ad_recipe_schedule(run->recipe) : NULL;
  if (run->options.table) return ad_order_share(run->program, ad_comm_rank(run->comm), run->options.table, &run->order);
  return ad_order_create(run->program, ad_comm_rank(run->comm), (size_t)ad_recipe_rounds(run->recipe), schedule,
                         &run->order);
}

/* Creates those parts of the run that depend on the order of a step's actions. */
static ad_status create_by_order(ad_run *run, int shares_memory) {
  AD_TRY(ad_microbatches_create(run, shares_memory));
  AD_TRY(ad_progress_create(run));
  return ad_transfers_create(run);
}

static void destroy_by_order(ad_run *run) {
  ad_transfers_destroy(run);
  ad_progress_destroy(run);
  ad_microbatches_destroy(run);
}

static ad_status list_leaves(ad_run *run) {
  if (!run->recipe->train.leaves) return AD_OK;
  AD_TRY(ad_recipe_list_leaves(run->recipe, ad_comm_rank(run->comm), &run->leaves));
  return ad_recipe_list_passes(run->recipe, ad_comm_rank(run->comm), &run->passes);
}

static ad_status create_program(ad_run *run) {
  if (!run->options.is_part) AD_TRY(ad_run_check_world(run->comm, run->recipe));
  AD_TRY(ad_recipe_program(run->recipe, run->comm, run->options.dtype, &run->program));
  AD_TRY(ad_run_group_create(run));
  AD_TRY(list_leaves(run));
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  return kind->open ? AD_GUEST(kind, "open", kind->open(ad_program_own(run->program))) : AD_OK;
}

// Creates all parts of a run. After a failure ad_run_destroy frees the parts that were created.
static ad_status create_parts(ad_run *run, const ad_run_options *options) {
  AD_TRY(ad_options_take(&run->options, sizeof run->options, options, "ad_run_options"));
  AD_TRY(create_program(run));
  ad_run_round_transfers(run, !run->options.dtype);
  AD_TRY(ad_trace_create(&run->trace));
  AD_TRY(ad_run_modules_create(run));
  AD_TRY(read_initial(run));
  AD_TRY(ad_norms_create(run));
  AD_TRY(ad_run_counts_create(run));
  AD_TRY(create_order(run));
  // tapes share memory in a pipeline, and where phases without gradients give theirs back before the others
  return create_by_order(run, is_pipeline(run) || ad_program_has_frozen(run->program));
}

ad_status ad_run_create(ad_comm *comm, const ad_recipe *recipe, const ad_run_options *options, ad_run **out) {
  AD_NEED(comm, recipe, out);
  ad_run *run;
  AD_TRY(ad_new(1, &run));
  run->comm = comm;
  run->recipe = recipe;
  ad_status status = ad_run_report_error(run, create_parts(run, options));
  if (status) {
    run->options.trace = NULL;
    ad_run_destroy(run);
    return status;
  }
  *out = run;
  return AD_OK;
}

/* Creates again the parts that depend on the order of a step's actions, after another table has replaced the order. */
static ad_status renew_by_order(ad_run *run) {
  destroy_by_order(run);
  return create_by_order(run, 1);
}

ad_status ad_run_take_table(ad_run *run, ad_table *table) {
  ad_status status = ad_order_take(&run->order, run->program, table);
  if (status) ad_table_destroy(table);
  return ad_run_report_error(run, status ? status : renew_by_order(run));
}

ad_status ad_run_take_unchecked(ad_run *run, ad_table *table) {
  ad_order_replace(&run->order, table);
  return ad_run_report_error(run, renew_by_order(run));
}

static void write_trace(ad_run *run) {
  if (!run->options.trace) return;
  ad_status status = ad_trace_settle(&run->trace);
  if (!status) status = ad_trace_write(&run->trace, ad_comm_rank(run->comm), run->options.trace);
  if (status) ad_log(AD_LOG_WARNING, "%s", ad_last_error());
}

void ad_run_destroy(ad_run *run) {
  if (!run) return;
  write_trace(run);
  destroy_by_order(run);
  ad_order_release(&run->order);
  ad_run_counts_destroy(run);
  ad_norms_destroy(run);
  ad_run_modules_destroy(run);
  ad_trace_destroy(&run->trace);
  ad_program_destroy(run->program);
  ad_release(run->leaves);
  ad_release(run->passes);
  ad_release(run->began);
  ad_run_group_destroy(run);
  ad_release(run);
}
