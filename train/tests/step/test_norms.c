/* Tests the norm of a step's gradients: with exact sums it has the same bits however many ranks share the gradients. */
#include "world.h"

#include <math.h>
#include "addend/helpers.h"
#include "base/memory.h"
#include "step/run.h"

#define STEPPING ", global_batch: 6, steps: 1, lr: 1e-2"

/* What one run found. */
typedef struct found {
  double norm;
  double sums[64]; /* the sum of squares of each parameter */
  size_t count;
} found;

typedef struct job {
  const ad_recipe *recipe;
  int exact;
  found *found;
} job;

/* Writes gradients that depend only on the parameter and the place in it, of many magnitudes, so that f64 sums of their
 * squares depend on the order of additions. */
static ad_status write_gradients(ad_run *run) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT), full;
    ad_layout layout = ad_layout_all(gradient->layout.mesh, AD_R);
    AD_TRY(ad_array_create(ad_run_comm(run), gradient->dtype, &gradient->shape, &layout, &full));
    for (size_t e = 0; e < ad_array_numel(&full); e++)
      ad_array_set(&full, e, ldexp(ad_random_uniform(3, i, e) - 0.5, (int)(e % 9)));
    AD_TRY(ad_array_from_full(ad_run_comm(run), &full, gradient));
    ad_array_destroy(ad_run_comm(run), &full);
  }
  return AD_OK;
}

static int find_norm(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options};
  ad_step_report report = {0};
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  ad_norm_group *group = &run->norms.groups[0];
  if (j->exact) RANK_MUST(comm, ad_new(group->sum_count, &group->exact));
  RANK_MUST(comm, write_gradients(run));
  RANK_MUST(comm, ad_norms_find(run, 1, &report));
  if (ad_run_is_first(run)) {
    j->found->norm = report.norm;
    j->found->count = group->sum_count;
    memcpy(j->found->sums, group->sums, group->sum_count * sizeof *group->sums);
  }
  ad_run_destroy(run);
  return 0;
}

static found find_on(const char *mesh, int64_t ranks, int zero, int exact) {
  ad_recipe *recipe = tiny_recipe(mesh, "", STEPPING);
  recipe->shard.zero = zero;
  job j = {recipe, exact, shared_memory(sizeof(found))};
  ad_launch_result result = {.size = sizeof result};
  if (launch(ranks, find_norm, &j, &result)) fail_msg("%s", result.message);
  found out = *j.found;
  munmap(j.found, sizeof out);
  ad_recipe_destroy(recipe);
  return out;
}

static const struct {
  int64_t ranks;
  const char *mesh;
} worlds[] = {{2, "dp_shard=2"}, {3, "dp_shard=3"}, {5, "dp_shard=5"}, {6, "dp_replicate=2 dp_shard=3"}};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static void a_norm_of_exact_sums_has_the_same_bits_on_any_number_of_ranks(void **state) {
  found one = find_on("dp_shard=1", 1, 0, 1);
  assert_true(one.norm > 0);
  for (int zero = 0; zero < 2; zero++)
    for (int i = 0; i < WORLDS; i++) {
      found many = find_on(worlds[i].mesh, worlds[i].ranks, zero, 1);
      assert_memory_equal(&many.norm, &one.norm, sizeof one.norm);
      assert_int_equal(many.count, one.count);
      assert_memory_equal(many.sums, one.sums, one.count * sizeof *one.sums);
    }
}

static void a_norm_of_rounded_sums_has_nearly_the_same_numbers(void **state) {
  found exact = find_on("dp_shard=1", 1, 0, 1);
  int differ = 0;
  for (int i = 0; i < WORLDS; i++) {
    found rounded = find_on(worlds[i].mesh, worlds[i].ranks, 1, 0);
    assert_true(fabs(rounded.norm - exact.norm) < 1e-12 * exact.norm);
    for (size_t k = 0; k < exact.count; k++) differ += rounded.sums[k] != exact.sums[k];
  }
  assert_true(differ > 0);  // so the gradients of these tests show a sum that is rounded on each rank
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_norm_of_exact_sums_has_the_same_bits_on_any_number_of_ranks),
      cmocka_unit_test(a_norm_of_rounded_sums_has_nearly_the_same_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
