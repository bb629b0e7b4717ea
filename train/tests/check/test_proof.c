/* Tests proofs on real ranks: a correct program is proven, every planted mistake is found, and an independent oracle
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

/* Every mesh, first with whole storage and then with sharded storage. */
enum { WORLDS = 2 * MESHES };
static ad_recipe *world_at(int i) {
  return small_recipe(meshes[i % MESHES], UNEQUAL,
                      i < MESHES ? ", microbatches: 2" : ", microbatches: 2}\nshard: {zero: 3, bucket_mib: 0.01");
}

static ad_check_options options_of(int64_t steps, int directional) {
  return (ad_check_options){.size = sizeof(ad_check_options), .steps = steps, .directional = directional};
}

static void prove(const ad_recipe *recipe, const ad_check_options *options, ad_proof *proof) {
  ad_launch_result result = {.size = sizeof result};
  ad_proof_job job = {.recipe = recipe, .options = options, .steps = options->steps, .proof = proof};
  must(ad_proof_run(&job, &result));
}

static void a_sound_world_is_proven(void **state) {
  ad_check_options options = options_of(3, 0);
  for (int i = 0; i < WORLDS; i++) {
    ad_recipe *recipe = world_at(i);
    ad_proof *proof;
    must(ad_proof_create(recipe, &proof));
    prove(recipe, &options, proof);
    assert_true(ad_proof_passes(proof, 0));
    assert_true(proof->free_difference < 1e-10);
    assert_true(proof->counted > 0);
    ad_proof_destroy(proof);
    ad_recipe_destroy(recipe);
  }
}

/* Whether the proof's memory fits a control group's `limit` (bytes), read from a folder that stands for
 * /proc and /sys. */
static ad_status fits_under(const ad_recipe *recipe, const ad_check_options *options, int64_t limit) {
  char root[] = "/tmp/addend-proof-XXXXXX", command[512];
  ad_proof_job job = {.recipe = recipe, .options = options, .steps = options->steps};
  assert_non_null(mkdtemp(root));
  snprintf(command, sizeof command,
           "cd '%s' && mkdir -p proc/self sys/fs/cgroup/job && echo 0::/job >proc/self/cgroup && "
           "echo %lld >sys/fs/cgroup/job/memory.max && echo 0 >sys/fs/cgroup/job/memory.current",
           root, (long long)limit);
  assert_int_equal(system(command), 0);
  ad_status status = ad_proof_fits(&job, 1, root);
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

static void a_proof_that_its_control_group_has_no_room_for_is_refused(void **state) {
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

static void every_planted_mistake_is_caught(void **state) {
  ad_check_options options = options_of(0, 0);
  draw drawn = draw_cases("worlds with planted mistakes", WORLDS, 0, 2);
  for (int i = 0; i < WORLDS; i++) {
    if (!is_drawn(&drawn, i)) continue;
    ad_recipe *recipe = world_at(i);
    ad_sabotages *planted;
    ad_proof *proof;
    must(ad_proof_create(recipe, &proof));
    must(ad_sabotages_create(recipe, DRAWN, (uint64_t)i, &planted));
    must(ad_sabotages_try(recipe, &options, proof, planted));
    for (size_t k = 0; k < planted->count; k++) {
      const ad_sabotage *tried = &planted->list[k];
      if (tried->caught == AD_CAUGHT_NONE) fail_msg("%s survived on world %d: %s", tried->name, i, tried->message);
      if (tried->caught == AD_CAUGHT_NUMBER && isfinite(tried->expected_ratio))
        assert_true(fabs(tried->ratio / tried->expected_ratio - 1) < 1e-9);
    }
    ad_sabotages_destroy(planted);
    ad_proof_destroy(proof);
    ad_recipe_destroy(recipe);
  }
}

/* The diagnosis names the operator and its axes if all ranks of the axis hold copies of the whole gradient. */
static void the_cause_of_a_wrong_sum_is_told(void **state) {
  static const struct {
    ad_operator operator_;
    ad_cause_kind kind;
  } causes[] = {{AD_OPERATOR_AVERAGED, AD_CAUSE_AVERAGED},
                {AD_OPERATOR_DOUBLED, AD_CAUSE_DOUBLED},
                {AD_OPERATOR_LEFT_OUT, AD_CAUSE_PARTIAL}};
  ad_check_options options = options_of(0, 0);
  ad_recipe *recipe = unequal_world("dp_replicate=3");
  ad_sabotages *planted;
  ad_proof *proof;
  int told = 0;
  must(ad_proof_create(recipe, &proof));
  must(ad_sabotages_create(recipe, 0, 0, &planted));
  must(ad_sabotages_try(recipe, &options, proof, planted));
  for (size_t i = 0; i < planted->derived; i++) {
    const ad_sabotage *tried = &planted->list[i];
    for (size_t k = 0; k < sizeof causes / sizeof *causes; k++) {
      if (!tried->planting.place.is_segment || tried->planting.in_record) continue;
      if (tried->planting.place.move != AD_MOVE_ALL_REDUCE || tried->planting.operator_ != causes[k].operator_)
        continue;
      const ad_cause *cause = &tried->causes.list[0];
      if (tried->causes.count != 1 || cause->kind != causes[k].kind || cause->axes != AD_AXES(AD_DP_REPLICATE))
        fail_msg("%s: %d causes, %s", tried->name, tried->causes.count, cause->text);
      told++;
    }
  }
  assert_int_equal(told, 3 * (int)proof->param_count);
  ad_sabotages_destroy(planted);
  ad_proof_destroy(proof);
  ad_recipe_destroy(recipe);
}

/* Ranks whose copies differ may hold partial sums, or sums over other ranks; only the first are called partial. */
static void a_sum_over_other_ranks_is_not_told_as_a_part(void **state) {
  ad_check_options options = options_of(0, 0);
  ad_recipe *recipe =
      small_recipe("dp_replicate=2 dp_shard=2", UNEQUAL, ", microbatches: 2}\nshard: {zero: 3, bucket_mib: 0.01");
  ad_sabotages *planted;
  ad_proof *proof;
  int others = 0, parts = 0;
  must(ad_proof_create(recipe, &proof));
  must(ad_sabotages_create(recipe, 0, 0, &planted));
  must(ad_sabotages_try(recipe, &options, proof, planted));
  for (size_t i = 0; i < planted->derived; i++) {
    const ad_sabotage *tried = &planted->list[i];
    const ad_cause *cause = &tried->causes.list[0];
    if (!tried->planting.place.is_segment || tried->caught != AD_CAUGHT_NUMBER || !tried->causes.count) continue;
    int is_part = cause->kind == AD_CAUSE_PARTIAL;
    int is_later = tried->planting.operator_ == AD_OPERATOR_FIRST_MICROBATCH_ONLY;
    if (is_part && tried->planting.operator_ != AD_OPERATOR_LEFT_OUT &&
        tried->planting.operator_ != AD_OPERATOR_FEWER_AXES && !is_later)
      fail_msg("%s: %s", tried->name, cause->text);
    if (is_part) assert_string_equal(cause->place, is_later ? "microbatches" : "");
    others += tried->planting.operator_ == AD_OPERATOR_OTHER_GROUP &&
              (cause->kind == AD_CAUSE_REPLICAS_DIFFER || cause->kind == AD_CAUSE_WRONG_GROUP);
    parts += is_part;
  }
  assert_true(others > 0 && parts > 0);
  ad_sabotages_destroy(planted);
  ad_proof_destroy(proof);
  ad_recipe_destroy(recipe);
}

static void the_difference_quotient_agrees_in_a_sound_world(void **state) {
  ad_check_options options = options_of(1, 1);
  for (int i = 0; i < WORLDS; i++) {
    ad_recipe *recipe = world_at(i);
    ad_proof *proof;
    must(ad_proof_create(recipe, &proof));
    prove(recipe, &options, proof);
    assert_true(ad_proof_passes(proof, 1));
    assert_true(proof->derivative != 0);
    ad_proof_destroy(proof);
    ad_recipe_destroy(recipe);
  }
}

/* A proof in which one mistake is planted from the beginning. */
typedef struct planted_job {
  ad_proof_job job;
  ad_sabotage *planted;
} planted_job;

static int prove_with_a_mistake(ad_comm *comm, void *context) {
  const planted_job *p = context;
  ad_mistake_scene scene = {.rank = ad_comm_rank(comm), .microbatches = p->job.recipe->train.microbatches};
  if (p->planted->known)
    ad_mistake_plant(p->planted->known, &scene);
  else
    ad_planting_begin(&p->planted->planting);
  ad_status status = ad_prove(comm, &p->job);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

/* Whether the mistake is a wrong sum of one large parameter's gradient, or of all: then no loss is wrong. */
static int is_a_wrong_sum(const ad_sabotage *sabotage) {
  const ad_planting *planting = &sabotage->planting;
  if (sabotage->known)
    return !strcmp(sabotage->name, "last-microbatch-only") || !strcmp(sabotage->name, "first-step-unsynchronised");
  return !planting->in_record && planting->place.move == AD_MOVE_ALL_REDUCE &&
         !strcmp(planting->place.what, "embedding.weight");
}

static void the_difference_quotient_catches_wrong_sums(void **state) {
  ad_check_options options = options_of(1, 1);
  ad_recipe *recipe = unequal_world("dp_replicate=3 dp_shard=2");
  ad_sabotages *listed;
  ad_proof *proof;
  int tried = 0;
  must(ad_sabotages_create(recipe, 0, 0, &listed));
  for (size_t i = 0; i < listed->count; i++) {
    if (!is_a_wrong_sum(&listed->list[i])) continue;
    must(ad_proof_create(recipe, &proof));
    planted_job job = {{.recipe = recipe, .options = &options, .steps = options.steps, .proof = proof},
                       &listed->list[i]};
    ad_launch_options launch = {.size = sizeof launch, .ranks = 6, .function = prove_with_a_mistake, .context = &job};
    ad_launch_result result = {.size = sizeof result};
    must(ad_launch(&launch, &result));
    if (!(proof->directional_err > 1000 * AD_DIRECTIONAL_BOUND))
      fail_msg("%s: error %g", listed->list[i].name, proof->directional_err);
    assert_false(ad_proof_passes(proof, 1));
    ad_proof_destroy(proof);
    tried++;
  }
  assert_int_equal(tried, 7); /* left out, doubled, averaged, two with fewer axes, and two known ones */
  ad_sabotages_destroy(listed);
  ad_recipe_destroy(recipe);
}

/* A proof in which one rank trains by another recipe than the others. */
typedef struct odd_job {
  ad_proof_job job;
  const ad_recipe *odd;
} odd_job;

static int prove_with_an_odd_recipe(ad_comm *comm, void *context) {
  const odd_job *odd = context;
  ad_proof_job job = odd->job;
  if (ad_comm_rank(comm) == 2) job.recipe = odd->odd;
  ad_status status = ad_prove(comm, &job);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

static void a_rank_that_updates_in_another_way_is_named(void **state) {
  ad_recipe *recipe = unequal_world("dp_replicate=3"), *odd = unequal_world("dp_replicate=3");
  odd->train.lr *= 2; /* step 0 has the same gradients, and other values afterwards */
  ad_check_options options = options_of(1, 0);
  ad_proof *proof;
  must(ad_proof_create(recipe, &proof));
  odd_job job = {{.recipe = recipe, .options = &options, .steps = options.steps, .proof = proof}, odd};
  ad_launch_options launch = {.size = sizeof launch, .ranks = 3, .function = prove_with_an_odd_recipe, .context = &job};
  ad_launch_result result = {.size = sizeof result};
  must(ad_launch(&launch, &result));
  assert_false(ad_proof_passes(proof, 0));
  assert_true(proof->params[0].max_rel_err <= proof->params[0].bound);
  assert_false(proof->params[0].replicas_equal);
  assert_int_equal(proof->params[0].causes.list[0].kind, AD_CAUSE_REPLICAS_DIFFER);
  assert_text_says(proof->params[0].causes.list[0].text, "rank 2");
  ad_proof_destroy(proof);
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
  ad_proof *proof;
  must(ad_proof_create(recipe, &proof));
  prove(recipe, &options, proof);
#define FAILS_WITH(field, value)             \
  do {                                       \
    __typeof__(field) kept = (field);        \
    (field) = (value);                       \
    assert_false(ad_proof_passes(proof, 0)); \
    (field) = kept;                          \
    assert_true(ad_proof_passes(proof, 0));  \
  } while (0)
  ad_proof_param *last = &proof->params[proof->param_count - 1];
  FAILS_WITH(proof->complete, 0);
  FAILS_WITH(proof->initial_equal, 0);
  FAILS_WITH(proof->updates_equal, 0);
  FAILS_WITH(proof->loss_err, 1e-11);
  FAILS_WITH(proof->loss_err, NAN);
  FAILS_WITH(proof->norm_err, NAN);
  FAILS_WITH(proof->process_share, 1.001);
  FAILS_WITH(proof->process_share, NAN);
  FAILS_WITH(last->replicas_equal, 0);
  FAILS_WITH(last->max_rel_err, 1.1e-12);
  FAILS_WITH(last->max_rel_err, NAN);
  FAILS_WITH(last->ratio, NAN);
  ad_proof_destroy(proof);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sound_world_is_proven),
      cmocka_unit_test(a_proof_that_its_control_group_has_no_room_for_is_refused),
      cmocka_unit_test(every_planted_mistake_is_caught),
      cmocka_unit_test(the_cause_of_a_wrong_sum_is_told),
      cmocka_unit_test(a_sum_over_other_ranks_is_not_told_as_a_part),
      cmocka_unit_test(the_difference_quotient_agrees_in_a_sound_world),
      cmocka_unit_test(the_difference_quotient_catches_wrong_sums),
      cmocka_unit_test(a_rank_that_updates_in_another_way_is_named),
      cmocka_unit_test(a_value_or_moment_that_differs_in_one_bit_is_noticed),
      cmocka_unit_test(the_verdict_needs_every_number),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
