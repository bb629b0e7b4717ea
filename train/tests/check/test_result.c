/* Tests checks on real ranks: a correct program passes, every mutant is found, and an independent oracle
 * that shares no formula with the library finds it too. */
#include "says.h"
#include "world.h"

#include <math.h>

#include "check/reference.h"
#include "module/module.h"
#include "draw.h"

static const char *const meshes[] = {"dp_replicate=3 dp_shard=2", "dp_replicate=3", "dp_shard=2", "dp_shard=5"};
enum { MESHES = sizeof meshes / sizeof *meshes, DRAWN = 60 };

static ad_recipe *unequal_world(const char *mesh) { return small_recipe(mesh, UNEQUAL, ", microbatches: 2"); }

/* Every mesh, first with full storage and then with sharded storage. */
enum { WORLDS = 2 * MESHES };
static ad_recipe *world_at(int i) {
  return small_recipe(meshes[i % MESHES], UNEQUAL,
                      i < MESHES ? ", microbatches: 2" : ", microbatches: 2}\nshard: {zero: 3, bucket_mib: 0.01");
}

static ad_check_options options_of(int64_t steps, int directional) {
  return (ad_check_options){.size = sizeof(ad_check_options), .steps = steps, .directional = directional};
}

static void check(const ad_recipe *recipe, const ad_check_options *options, ad_check_result *result) {
  ad_launch_result launched = {.size = sizeof launched};
  ad_check_job job = {.recipe = recipe, .options = options, .steps = options->steps, .result = result};
  must(ad_check_run(&job, &launched));
}

static void a_sound_world_matches(void **state) {
  ad_check_options options = options_of(3, 0);
  for (int i = 0; i < WORLDS; i++) {
    ad_recipe *recipe = world_at(i);
    ad_check_result *result;
    must(ad_check_result_create(recipe, &result));
    check(recipe, &options, result);
    assert_true(ad_check_result_passes(result, 0));
    assert_true(result->free_difference < 1e-10);
    assert_true(result->counted > 0);
    ad_check_result_destroy(result);
    ad_recipe_destroy(recipe);
  }
}

/* Whether the check's memory fits a control group's `limit` (bytes), read from a folder in place of /proc and /sys. */
static ad_status fits_under(const ad_recipe *recipe, const ad_check_options *options, int64_t limit) {
  char root[] = "/tmp/addend-proof-XXXXXX", command[512];
  ad_check_job job = {.recipe = recipe, .options = options, .steps = options->steps};
  assert_non_null(mkdtemp(root));
  snprintf(command, sizeof command,
           "cd '%s' && mkdir -p proc/self sys/fs/cgroup/job && echo 0::/job >proc/self/cgroup && "
           "echo %lld >sys/fs/cgroup/job/memory.max && echo 0 >sys/fs/cgroup/job/memory.current",
           root, (long long)limit);
  assert_int_equal(system(command), 0);
  ad_status status = ad_check_fits(&job, 1, root);
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  assert_int_equal(system(command), 0);
  return status;
}

static int64_t least_limit(const ad_recipe *recipe, const ad_check_options *options) {
  int64_t refused = 0, taken = (int64_t)1 << 32;
  while (taken - refused > 1 << 16) {
    int64_t limit = (taken + refused) / 2;
    if (fits_under(recipe, options, limit))
      refused = limit;
    else
      taken = limit;
  }
  return taken;
}

static void a_check_that_its_control_group_has_no_room_for_is_refused(void **state) {
  ad_recipe *recipe = world_at(0);
  ad_check_options one = options_of(1, 0), several = options_of(3, 0), slope = options_of(1, 1);
  assert_int_equal(fits_under(recipe, &several, 1 << 20), AD_MEMORY);
  assert_listed();
  assert_says("/sys/fs/cgroup/job/memory.max");
  assert_true(least_limit(recipe, &slope) < least_limit(recipe, &one)); /* a slope needs no reference */
  /* several steps need one more reference, which never restarts */
  assert_true(least_limit(recipe, &one) < least_limit(recipe, &several));
  ad_recipe_destroy(recipe);
}

static void every_mutant_is_killed(void **state) {
  ad_check_options options = options_of(0, 0);
  draw drawn = draw_cases("worlds with mutants", WORLDS, 0, 2);
  for (int i = 0; i < WORLDS; i++) {
    if (!is_drawn(&drawn, i)) continue;
    ad_recipe *recipe = world_at(i);
    ad_mutants *mutants;
    ad_check_result *result;
    must(ad_check_result_create(recipe, &result));
    must(ad_mutants_create(recipe, DRAWN, (uint64_t)i, &mutants));
    must(ad_mutants_try(recipe, &options, result, mutants));
    for (size_t k = 0; k < mutants->count; k++) {
      const ad_mutant *tried = &mutants->list[k];
      if (tried->killed_by == AD_KILLED_BY_NONE)
        fail_msg("%s survived on world %d: %s", tried->name, i, tried->message);
      if (tried->killed_by == AD_KILLED_BY_NUMBER && isfinite(tried->expected_ratio))
        assert_true(fabs(tried->ratio / tried->expected_ratio - 1) < 1e-9);
    }
    ad_mutants_destroy(mutants);
    ad_check_result_destroy(result);
    ad_recipe_destroy(recipe);
  }
}

/* The diagnosis names the operator and its axes if all ranks of the axis hold copies of the full gradient. */
static void the_cause_of_a_wrong_sum_is_reported(void **state) {
  static const struct {
    ad_operator operator_;
    ad_cause_kind kind;
  } causes[] = {{AD_OPERATOR_AVERAGED, AD_CAUSE_AVERAGED},
                {AD_OPERATOR_DOUBLED, AD_CAUSE_DOUBLED},
                {AD_OPERATOR_LEFT_OUT, AD_CAUSE_PARTIAL}};
  ad_check_options options = options_of(0, 0);
  ad_recipe *recipe = unequal_world("dp_replicate=3");
  ad_mutants *mutants;
  ad_check_result *result;
  int reported = 0;
  must(ad_check_result_create(recipe, &result));
  must(ad_mutants_create(recipe, 0, 0, &mutants));
  must(ad_mutants_try(recipe, &options, result, mutants));
  for (size_t i = 0; i < mutants->derived; i++) {
    const ad_mutant *tried = &mutants->list[i];
    for (size_t k = 0; k < sizeof causes / sizeof *causes; k++) {
      if (!tried->mutation.place.is_segment || tried->mutation.in_record) continue;
      if (tried->mutation.place.move != AD_MOVE_ALL_REDUCE || tried->mutation.operator_ != causes[k].operator_)
        continue;
      const ad_cause *cause = &tried->causes.list[0];
      if (tried->causes.count != 1 || cause->kind != causes[k].kind || cause->axes != AD_AXES(AD_DP_REPLICATE))
        fail_msg("%s: %d causes, %s", tried->name, tried->causes.count, cause->text);
      reported++;
    }
  }
  assert_int_equal(reported, 3 * (int)result->param_count);
  ad_mutants_destroy(mutants);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

/* Ranks whose copies differ may hold partial sums, or sums over other ranks; only the first are called partial. */
static void a_sum_over_other_ranks_is_not_reported_as_a_part(void **state) {
  ad_check_options options = options_of(0, 0);
  ad_recipe *recipe =
      small_recipe("dp_replicate=2 dp_shard=2", UNEQUAL, ", microbatches: 2}\nshard: {zero: 3, bucket_mib: 0.01");
  ad_mutants *mutants;
  ad_check_result *result;
  int others = 0, parts = 0;
  must(ad_check_result_create(recipe, &result));
  must(ad_mutants_create(recipe, 0, 0, &mutants));
  must(ad_mutants_try(recipe, &options, result, mutants));
  for (size_t i = 0; i < mutants->derived; i++) {
    const ad_mutant *tried = &mutants->list[i];
    const ad_cause *cause = &tried->causes.list[0];
    if (!tried->mutation.place.is_segment || tried->killed_by != AD_KILLED_BY_NUMBER || !tried->causes.count) continue;
    int is_part = cause->kind == AD_CAUSE_PARTIAL;
    int is_later = tried->mutation.operator_ == AD_OPERATOR_FIRST_MICROBATCH_ONLY;
    if (is_part && tried->mutation.operator_ != AD_OPERATOR_LEFT_OUT &&
        tried->mutation.operator_ != AD_OPERATOR_FEWER_AXES && !is_later)
      fail_msg("%s: %s", tried->name, cause->text);
    if (is_part) assert_string_equal(cause->place, is_later ? "microbatches" : "");
    others += tried->mutation.operator_ == AD_OPERATOR_OTHER_GROUP &&
              (cause->kind == AD_CAUSE_REPLICAS_DIFFER || cause->kind == AD_CAUSE_WRONG_GROUP);
    parts += is_part;
  }
  assert_true(others > 0 && parts > 0);
  ad_mutants_destroy(mutants);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

static void the_difference_quotient_agrees_in_a_sound_world(void **state) {
  ad_check_options options = options_of(1, 1);
  for (int i = 0; i < WORLDS; i++) {
    ad_recipe *recipe = world_at(i);
    ad_check_result *result;
    must(ad_check_result_create(recipe, &result));
    check(recipe, &options, result);
    assert_true(ad_check_result_passes(result, 1));
    assert_true(result->derivative != 0);
    ad_check_result_destroy(result);
    ad_recipe_destroy(recipe);
  }
}

/* A check with one mutation from the beginning. */
typedef struct mutant_job {
  ad_check_job job;
  ad_mutant *mutants;
} mutant_job;

static int check_with_a_bug(ad_comm *comm, void *context) {
  const mutant_job *p = context;
  ad_known_bug_scene scene = {.rank = ad_comm_rank(comm), .microbatches = p->job.recipe->train.microbatches};
  if (p->mutants->known)
    ad_known_bug_inject(p->mutants->known, &scene);
  else
    ad_mutation_begin(&p->mutants->mutation);
  ad_status status = ad_check_rank(comm, &p->job);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

/* Whether the mistake is a wrong sum of one large parameter's gradient, or of all: then no loss is wrong. */
static int is_a_wrong_sum(const ad_mutant *mutant) {
  const ad_mutation *mutation = &mutant->mutation;
  if (mutant->known)
    return !strcmp(mutant->name, "last-microbatch-only") || !strcmp(mutant->name, "first-step-unsynchronised");
  return !mutation->in_record && mutation->place.move == AD_MOVE_ALL_REDUCE &&
         !strcmp(mutation->place.what, "embedding.weight");
}

static void the_difference_quotient_catches_wrong_sums(void **state) {
  ad_check_options options = options_of(1, 1);
  ad_recipe *recipe = unequal_world("dp_replicate=3 dp_shard=2");
  ad_mutants *listed;
  ad_check_result *result;
  int tried = 0;
  must(ad_mutants_create(recipe, 0, 0, &listed));
  for (size_t i = 0; i < listed->count; i++) {
    if (!is_a_wrong_sum(&listed->list[i])) continue;
    must(ad_check_result_create(recipe, &result));
    mutant_job job = {{.recipe = recipe, .options = &options, .steps = options.steps, .result = result},
                      &listed->list[i]};
    ad_launch_options launch = {.size = sizeof launch, .ranks = 6, .function = check_with_a_bug, .context = &job};
    ad_launch_result launched = {.size = sizeof launched};
    must(ad_launch(&launch, &launched));
    if (!(result->directional_err > 1000 * AD_DIRECTIONAL_BOUND))
      fail_msg("%s: error %g", listed->list[i].name, result->directional_err);
    assert_false(ad_check_result_passes(result, 1));
    ad_check_result_destroy(result);
    tried++;
  }
  assert_int_equal(tried, 7); /* left out, doubled, averaged, two with fewer axes, and two known ones */
  ad_mutants_destroy(listed);
  ad_recipe_destroy(recipe);
}

/* A check in which one rank trains by another recipe than the others. */
typedef struct odd_job {
  ad_check_job job;
  const ad_recipe *odd;
} odd_job;

static int check_with_an_odd_recipe(ad_comm *comm, void *context) {
  const odd_job *odd = context;
  ad_check_job job = odd->job;
  if (ad_comm_rank(comm) == 2) job.recipe = odd->odd;
  ad_status status = ad_check_rank(comm, &job);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

static void a_rank_that_updates_in_another_way_is_named(void **state) {
  ad_recipe *recipe = unequal_world("dp_replicate=3"), *odd = unequal_world("dp_replicate=3");
  odd->train.lr *= 2; /* step 0 has the same gradients, and other values afterwards */
  ad_check_options options = options_of(1, 0);
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  odd_job job = {{.recipe = recipe, .options = &options, .steps = options.steps, .result = result}, odd};
  ad_launch_options launch = {.size = sizeof launch, .ranks = 3, .function = check_with_an_odd_recipe, .context = &job};
  ad_launch_result launched = {.size = sizeof launched};
  must(ad_launch(&launch, &launched));
  assert_false(ad_check_result_passes(result, 0));
  assert_true(result->params[0].max_rel_err <= result->params[0].bound);
  assert_false(result->params[0].replicas_equal);
  assert_int_equal(result->params[0].causes.list[0].kind, AD_CAUSE_REPLICAS_DIFFER);
  assert_text_says(result->params[0].causes.list[0].text, "rank 2");
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
  ad_recipe_destroy(odd);
}

/* A copy, described like the distributed run's, of one of the reference's arrays, with one element
 * changed by `amount`. */
static void changed_copy(const ad_array *array, double amount, double *memory, ad_array *out) {
  memcpy(memory, array->data, ad_array_bytes(array));
  memory[ad_array_numel(array) / 2] += amount;
  *out = *array;
  out->data = memory;
}

enum { NUMEL_MAX = 256 * 16 };

static void a_value_or_moment_that_differs_in_one_bit_is_noticed(void **state) {
  ad_recipe *recipe = unequal_world("dp_replicate=1");
  static double memory[NUMEL_MAX];
  ad_reference *reference;
  ad_step_report report;
  must(ad_reference_create(recipe, &(ad_reference_options){.dtype = AD_F64}, &reference));
  must(ad_reference_step(reference, 0, 0, &report));
  const ad_array *like = ad_reference_gradient(reference, 0);
  for (int part = 0; part < AD_PART_KEPT; part++) {
    ad_array other;
    changed_copy(like, 0, memory, &other); /* the gradient has no counterpart among the values and moments */
    ad_reference_restart(reference, 0, (ad_param_part)part, &other);
    assert_true(ad_reference_agrees(reference, 0, (ad_param_part)part, &other));
    memory[7] = nextafter(memory[7], INFINITY);
    assert_false(ad_reference_agrees(reference, 0, (ad_param_part)part, &other));
  }
  ad_reference_destroy(reference);
  ad_recipe_destroy(recipe);
}

static void the_verdict_needs_every_number(void **state) {
  ad_recipe *recipe = unequal_world("dp_shard=2");
  ad_check_options options = options_of(1, 0);
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  check(recipe, &options, result);
#define FAILS_WITH(field, value)                     \
  do {                                               \
    __typeof__(field) kept = (field);                \
    (field) = (value);                               \
    assert_false(ad_check_result_passes(result, 0)); \
    (field) = kept;                                  \
    assert_true(ad_check_result_passes(result, 0));  \
  } while (0)
  ad_check_param *last = &result->params[result->param_count - 1];
  FAILS_WITH(result->complete, 0);
  FAILS_WITH(result->initial_equal, 0);
  FAILS_WITH(result->updates_equal, 0);
  FAILS_WITH(result->loss_err, 1e-11);
  FAILS_WITH(result->loss_err, NAN);
  FAILS_WITH(result->norm_err, NAN);
  FAILS_WITH(result->process_share, 1.001);
  FAILS_WITH(result->process_share, NAN);
  FAILS_WITH(last->replicas_equal, 0);
  FAILS_WITH(last->max_rel_err, 1.1e-12);
  FAILS_WITH(last->max_rel_err, NAN);
  FAILS_WITH(last->ratio, NAN);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sound_world_matches),
      cmocka_unit_test(a_check_that_its_control_group_has_no_room_for_is_refused),
      cmocka_unit_test(every_mutant_is_killed),
      cmocka_unit_test(the_cause_of_a_wrong_sum_is_reported),
      cmocka_unit_test(a_sum_over_other_ranks_is_not_reported_as_a_part),
      cmocka_unit_test(the_difference_quotient_agrees_in_a_sound_world),
      cmocka_unit_test(the_difference_quotient_catches_wrong_sums),
      cmocka_unit_test(a_rank_that_updates_in_another_way_is_named),
      cmocka_unit_test(a_value_or_moment_that_differs_in_one_bit_is_noticed),
      cmocka_unit_test(the_verdict_needs_every_number),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
