/* Compares the counts by which ranks divided their losses. A count is summed over the ranks of its group, so they must
 * have the same number. Ranks of different groups count the same rows, so their numbers must be equal, too. */
#include "base/memory.h"
#include "check/account.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "step/run.h"
#include "mesh/mesh.h"

/* Returns this rank's total of the count `count` over all microbatches; 0 if the rank has no share of this count. */
static int64_t total_of(const ad_run *run, size_t count) {
  const ad_count *sums = ad_run_count(run, count);
  int64_t total = 0;
  for (size_t m = 0; sums && m < (size_t)ad_recipe_parts(ad_run_recipe(run)); m++) total += ad_count_of(sums, m);
  return total;
}

/* Gives every rank the totals of all ranks. */
static ad_status share(const ad_checker *checker, int64_t own, int64_t *totals) {
  size_t world = (size_t)ad_comm_size(checker->comm);
  for (size_t rank = 0; rank < world; rank++) totals[rank] = 0;
  totals[ad_comm_rank(checker->comm)] = own;
  ad_collective sum = {.size = sizeof sum,
                       .op = AD_ALL_REDUCE,
                       .group = checker->everyone,
                       .in = totals,
                       .out = totals,
                       .count = world,
                       .dtype = AD_I64,
                       .reduction = AD_SUM,
                       .site = AD_HERE};
  return ad_comm_run(checker->comm, &sum);
}

/* Returns 1 if some rank's total differs from that of the first rank of its group over these axes. */
static int differ_over(const ad_mesh *mesh, ad_axes axes, const int64_t *totals) {
  for (int64_t i = 0, rank = ad_mesh_first_rank(mesh); i < ad_mesh_size(mesh); rank++) {
    if (!ad_mesh_has_rank(mesh, rank)) continue;
    if (totals[rank] != totals[ad_mesh_group(mesh, axes, rank).base]) return 1;
    i++;
  }
  return 0;
}

static void compare_counts(const ad_layout *layout, const int64_t *totals, ad_reported_counts *out) {
  ad_axes large = ad_mesh_large(layout->mesh), summed = ad_layout_axes_of(layout, AD_P) & large;
  if (differ_over(layout->mesh, summed, totals)) out->within |= summed;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if ((large & ~summed & AD_AXES(axis)) && differ_over(layout->mesh, AD_AXES(axis), totals))
      out->beside |= AD_AXES(axis);
}

ad_status ad_account_compare_counts(ad_checker *checker) {
  const ad_program *program = ad_run_program(checker->run);
  int64_t *totals;
  checker->reported_counts = (ad_reported_counts){0};
  AD_TRY(ad_new((size_t)ad_comm_size(checker->comm), &totals));
  ad_status status = AD_OK;
  for (size_t c = 0; c < ad_program_count_count(program) && !status; c++) {
    status = share(checker, total_of(checker->run, c), totals);
    if (!status) compare_counts(&ad_program_count(program, c)->layout, totals, &checker->reported_counts);
  }
  ad_release(totals);
  return status;
}
