/* The counts of a run's program (law 5). Each count is summed once in a step, over all microbatches and over the ranks
 * that count their own rows, and every loss is divided by a count. */
#include "base/memory.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "step/execute.h"

ad_status ad_run_counts_create(ad_run *run) {
  size_t count = ad_program_count_count(run->program), parts = (size_t)ad_recipe_parts(run->recipe);
  AD_TRY(ad_new(count, &run->counts.sums));
  AD_TRY(ad_new(count, &run->counts.own));
  for (size_t i = 0; i < count; i++) {
    const ad_count_spec *spec = ad_program_count(run->program, i);
    AD_TRY(ad_new(parts, &run->counts.own[i]));
    if (ad_mesh_has_rank(spec->layout.mesh, ad_comm_rank(run->comm)))
      AD_TRY(ad_count_create(run->comm, &spec->layout, parts, &run->counts.sums[i]));
  }
  return AD_OK;
}

void ad_run_counts_destroy(ad_run *run) {
  for (size_t i = 0; run->counts.sums && i < ad_program_count_count(run->program); i++)
    ad_count_destroy(run->counts.sums[i]);
  for (size_t i = 0; run->counts.own && i < ad_program_count_count(run->program); i++) ad_release(run->counts.own[i]);
  ad_release(run->counts.sums);
  ad_release(run->counts.own);
}

const ad_count *ad_run_count(const ad_run *run, size_t count) { return run->counts.sums[count]; }

int64_t *const *ad_run_counted(const ad_run *run) { return run->counts.own; }

/* Sets the counts of leaves that other ranks compute to 0, so that the sum over ranks counts each leaf once. (The
 * program also counts leaves that this rank only runs to gather parameters with the others.) */
static void drop_others(const ad_run *run, int64_t *counts) {
  size_t round = 0, rounds = (size_t)ad_recipe_rounds(run->recipe);
  for (int64_t leaf = 0; leaf < run->recipe->train.leaves; leaf++) {
    while (round < rounds && ad_run_part_of(run, round) < leaf) round++;
    if (round == rounds || ad_run_part_of(run, round) != leaf) counts[leaf] = 0;
  }
}

ad_status ad_run_counts_post(ad_run *run) {
  for (size_t i = 0; i < ad_program_count_count(run->program); i++) {
    if (run->leaves) drop_others(run, run->counts.own[i]);
    if (run->counts.sums[i]) AD_TRY(ad_count_post(run->counts.sums[i], run->counts.own[i]));
  }
  return AD_OK;
}

ad_status ad_step_wait_for_counts(ad_run *run, ad_step_state *state) {
  for (size_t i = 0; !state->counted && i < ad_program_count_count(run->program); i++)
    if (run->counts.sums[i]) AD_TRY(ad_count_wait(run->counts.sums[i], NULL));
  state->counted = 1;
  return AD_OK;
}
