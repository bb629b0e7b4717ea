/* The check for bits: takes a recipe's steps on the recipe's own ranks, takes them again on the ranks of one
 * data-parallel position (the reference), and compares the bits of both runs. */
#include "check/bits.h"

#include "base/error.h"
#include "base/memory.h"
#include "mesh/mesh.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/alone.h"
#include "recipe/leaves.h"
#include "recipe/paper.h"
#include "step/run.h"
#include "recipe/sharding.h"

/* Returns an upper limit of the notes that one rank makes in a step: one for each leaf; for each parameter, the nodes
 * of the tree over leaves (fewer than two for each leaf) before and after each reduction, and the updated arrays; the
 * losses, norms and clip factors; and the states. */
static size_t notes_in_step(const ad_recipe *recipe, const ad_program *program) {
  size_t leaves = (size_t)recipe->train.leaves, params = ad_program_module(program, 0)->param_count,
         states = ad_program_module(program, 0)->state_count;
  size_t sums = 2 * leaves * (AD_AXIS_COUNT + 1), numbers = AD_LOSSES_MAX + 2 * AD_NORM_GROUPS_MAX;
  return leaves + params * (sums + AD_PART_KEPT) + numbers + states;
}

static ad_status launch(const ad_bits_job *job) {
  ad_launch_result launched = {.size = sizeof launched};
  ad_status status = ad_bits_run(job, &launched);
  if (status && status != AD_INTERRUPTED && launched.message[0])
    return ad_fail(launched.status ? launched.status : status, "%s", launched.message);
  return status;
}

/* Runs the reference: if `comm` is NULL, on new ranks; otherwise on the first ranks of `comm`, while the others wait for
 * rank 0 to have its notes. */
static ad_status run_reference(ad_bits *bits, const ad_program *program, size_t room, ad_comm *comm) {
  ad_recipe reference;
  int64_t shards =
      ad_recipe_highest_zero(bits->recipe) ? ad_mesh_axis_size(ad_program_full_mesh(program, 0), AD_DP_SHARD) : 0;
  ad_status status = ad_alone_create_position(bits->recipe, &reference);
  if (!status) status = ad_recipe_world(&reference, &bits->found.ranks);
  if (!status) status = ad_bits_notes_create(bits->found.ranks, room * (size_t)(1 + shards), &bits->reference);
  ad_bits_job job = {
      .recipe = &reference, .steps = bits->found.steps, .notes = bits->reference, .shards = shards, .is_part = 1};
  int runs = !comm || ad_comm_rank(comm) < bits->found.ranks;
  if (!status && runs) status = comm ? ad_bits_take_steps(comm, &job) : launch(&job);
  if (!status && comm) status = ad_bits_gather(comm, bits->reference);
  ad_alone_release(&reference);
  return status;
}

/* Runs the recipe and its reference and compares them. If `comm` is NULL, starts ranks for each of the two runs;
 * otherwise runs both on the ranks of `comm`, and compares them on rank 0. */
static ad_status run_both(ad_bits *bits, const ad_program *program, ad_comm *comm) {
  size_t room = (size_t)bits->found.steps * notes_in_step(bits->recipe, program);
  int64_t ranks;
  AD_TRY(ad_recipe_world(bits->recipe, &ranks));
  AD_TRY(ad_bits_notes_create(ranks, room, &bits->run));
  ad_bits_job job = {.recipe = bits->recipe, .steps = bits->found.steps, .notes = bits->run};
  AD_TRY(comm ? ad_bits_take_steps(comm, &job) : launch(&job));
  if (comm) AD_TRY(ad_bits_gather(comm, bits->run));
  AD_TRY(run_reference(bits, program, room, comm));
  if (comm && ad_comm_rank(comm)) return AD_OK;
  return ad_bits_compare(bits->run, bits->reference, program, &bits->found);
}

static ad_status create_bits(const ad_recipe *recipe, int64_t steps, ad_comm *comm, ad_bits **out) {
  ad_paper paper;
  ad_bits *bits;
  AD_TRY(ad_new(1, &bits));
  bits->recipe = recipe;
  bits->found.steps = steps;
  bits->found.leaves = recipe->train.leaves;
  ad_status status = ad_paper_open(recipe, &paper);
  if (!status) {
    status = run_both(bits, paper.program, comm);
    ad_paper_close(&paper);
  }
  if (status)
    ad_bits_destroy(bits);
  else
    *out = bits;
  return status;
}

ad_status ad_bits_create(const ad_recipe *recipe, int64_t steps, ad_bits **out) {
  return create_bits(recipe, steps, NULL, out);
}

ad_status ad_bits_create_on(ad_comm *comm, const ad_recipe *recipe, int64_t steps, ad_bits **out) {
  *out = NULL;
  AD_TRY(create_bits(recipe, steps, comm, out));
  if (!ad_comm_rank(comm)) return AD_OK;
  ad_bits_destroy(*out);
  *out = NULL;
  return AD_OK;
}

void ad_bits_destroy(ad_bits *bits) {
  if (!bits) return;
  ad_bits_notes_destroy(bits->run);
  ad_bits_notes_destroy(bits->reference);
  ad_release(bits);
}
