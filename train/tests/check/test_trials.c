/* Tests how the trial of a mutant is judged: any change in a step counts as killed, and "no effect" is said
 * only if the program is provably unchanged. */
#include "drawn_program.h"
#include "every_move.h"

#include "check/mutants.h"
#include "program/program.h"
#include "reduce/count.h"
#include "says.h"
#include "step/run.h"

static ad_mutants *drawn_of(const ad_recipe *recipe) {
  ad_mutants *drawn;
  must(ad_mutants_create(recipe, 1, 0, &drawn));
  return drawn;
}

/* ---- a mistake that changes only a loss that has no gradient ---- */

static double metric_times;

/* A loss that is reported only: its coefficient gives no gradient. */
static ad_status metric_run(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *weights = ad_constant(t, &((every_model *)own)->batches[ad_phase_microbatch(at)].weights);
  ad_tensor *squares = ad_scale(t, ad_multiply(t, weights, weights), metric_times);
  ad_phase_loss(at, 1, ad_sum(t, ad_once(t, squares, "tp")));
  metric_times = 1;
  return AD_OK;
}

static ad_status metric_create(const void *options, ad_program *to, void **own) {
  AD_TRY(every_create(options, to, own));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "metric", .is_metric = 1}));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "metric", .run = metric_run});
}

static void double_metric(void *context, void *passing) {
  ((ad_known_bug_scene *)context)->fired = 1;
  metric_times = 2;
}

static void a_mutant_that_shows_in_a_metric_alone_is_killed(void **state) {
  static const ad_known_bug doubled = {
      .name = "doubled", .words = "a metric counts twice", .at = {{AD_INJECT_PHASE, double_metric}}};
  ad_recipe *recipe = every_recipe("dp_shard=2 tp=1", 0);
  ad_program_kind kind = *recipe->program;
  kind.create = metric_create;
  recipe->program = &kind;
  metric_times = 1;
  ad_check_options options = {.size = sizeof options, .mutate = 1, .mutant_count = 1};
  ad_check_result *scratch;
  must(ad_check_result_create(recipe, &scratch));
  ad_mutants *tried = drawn_of(recipe);
  ad_mutant *first = &tried->list[tried->derived];
  tried->count = tried->derived + 1;
  first->known = &doubled;
  must(ad_mutants_try(recipe, &options, scratch, tried));
  if (first->killed_by != AD_KILLED_BY_NUMBER) fail_msg("%s: %s", ad_killed_by_name(first->killed_by), first->message);
  assert_int_equal(ad_mutants_survivors(tried), 0);
  ad_mutants_destroy(tried);
  ad_check_result_destroy(scratch);
  ad_recipe_destroy(recipe);
}

/* ---- a mistake that leaves the first rank's numbers right ---- */

/* A norm below `clip` updates nothing, so a wrong norm shows in the reports of ranks alone. */
static void a_norm_that_other_ranks_than_the_first_have_wrong_is_reported(void **state) {
  ad_recipe *recipe;
  must(
      ad_recipe_parse("name: unclipped\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
                      "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"dp_replicate=2 dp_shard=2\"\n"
                      "train: {global_batch: 12, steps: 5, lr: 1e-2, clip: 1000}\n",
                      "unclipped.yaml", NULL, 0, &recipe));
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_check_result *scratch;
  ad_mutants *tried;
  size_t of_norm = 0;
  must(ad_check_result_create(recipe, &scratch));
  must(ad_mutants_create(recipe, 0, 0, &tried));
  for (size_t i = 0; i < tried->derived; i++) {
    const ad_mutation *mutation = &tried->list[i].mutation;
    if (strcmp(mutation->place.what, "norm") || mutation->in_record) continue;
    tried->list[of_norm++] = tried->list[i];
  }
  tried->count = tried->derived = of_norm;
  must(ad_mutants_try(recipe, &options, scratch, tried));
  assert_true(of_norm >= 4);
  for (size_t i = 0; i < of_norm; i++)
    if (tried->list[i].killed_by != AD_KILLED_BY_NUMBER)
      fail_msg("%s: %s", tried->list[i].name, ad_killed_by_name(tried->list[i].killed_by));
  ad_mutants_destroy(tried);
  ad_check_result_destroy(scratch);
  ad_recipe_destroy(recipe);
}

/* ---- a mistake that is judged by the collectives of a second run ---- */

static void notice_creation(void *context, void *passing) { ((ad_known_bug_scene *)context)->fired = 1; }

/* Makes the divisor of the loss so small that f16 overflows. */
static void overflow(void *context, void *passing) { ((ad_divisor_passing *)passing)->total = 1e-30; }

static ad_recipe *halves(int scale) {
  char text[640];
  ad_recipe *recipe = NULL;
  snprintf(text, sizeof text,
           "name: halves\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"dp_shard=2\"\n"
           "precision: {param: f16, reduce: f16, loss_scale: %d}\nshard: {zero: 2}\n"
           "train: {global_batch: 12, steps: 5, lr: 1e-3, clip: 0.5}\n",
           scale);
  must(ad_recipe_parse(text, "halves.yaml", NULL, 0, &recipe));
  return recipe;
}

static ad_mutant try_at_creation(const ad_known_bug *bug, int scale) {
  ad_recipe *recipe = halves(scale);
  ad_check_options options = {.size = sizeof options, .mutate = 1, .mutant_count = 1};
  ad_check_result *scratch;
  must(ad_check_result_create(recipe, &scratch));
  ad_mutants *tried = drawn_of(recipe);
  ad_mutant *first = &tried->list[tried->derived];
  tried->count = tried->derived + 1;
  if (!bug) {
    while (strcmp(first->known->name, "bucket-by-wide-gradient") != 0) first++;
    tried->list[tried->derived] = *first;
    first = &tried->list[tried->derived];
  } else {
    first->known = bug;
  }
  must(ad_mutants_try(recipe, &options, scratch, tried));
  ad_mutant found = *first;
  ad_mutants_destroy(tried);
  ad_check_result_destroy(scratch);
  ad_recipe_destroy(recipe);
  return found;
}

static void a_wide_bucket_is_found_by_policy_and_by_calls(void **state) {
  ad_mutant found = try_at_creation(NULL, 10);
  assert_int_equal(found.killed_by, AD_KILLED_BY_PLAN);
  assert_text_says(found.message, "reduce_scatter", "dp_shard",
                   "f32"); /* how often and how many bytes, and as planned */
}

/* Widens the dtype of the first parameter's gradient alone, so that the others still overflow. */
static void widen_first(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  ad_precision_policy *policy = passing;
  if (scene->fired) return;
  policy->param = policy->grad = policy->reduce = AD_F32;
  scene->fired = 1;
}

/* At loss scale 2^24 a step overflows and is skipped: the collectives that are reported are those of the first step
 * that is not skipped, at a smaller scale. */
static void calls_are_reported_of_a_step_that_counts(void **state) {
  static const ad_known_bug wide_first = {.name = "wide first",
                                          .words = "one bucket is wide",
                                          .of_dtype = 1,
                                          .at_creation = 1,
                                          .at = {{AD_INJECT_POLICY, widen_first}}};
  ad_mutant found = try_at_creation(&wide_first, 24);
  assert_int_equal(found.killed_by, AD_KILLED_BY_PLAN);
  assert_text_says(found.message, "reduce_scatter", "dp_shard",
                   "f32"); /* how often and how many bytes, and as planned */
}

/* A skipped step has fewer collectives, which must not count as catching the mistake. */
static void a_skipped_step_is_not_reported_by_its_calls(void **state) {
  static const ad_known_bug overflows = {.name = "overflows",
                                         .words = "the loss is divided by next to nothing",
                                         .of_dtype = 1,
                                         .at_creation = 1,
                                         .at = {{AD_INJECT_POLICY, notice_creation}, {AD_INJECT_DIVISOR, overflow}}};
  ad_mutant found = try_at_creation(&overflows, 10);
  if (found.killed_by != AD_KILLED_BY_NONE) fail_msg("%s: %s", ad_killed_by_name(found.killed_by), found.message);
}

/* ---- how far a mistake that only rounds moves gradients ---- */

/* Makes every gradient larger by a part of itself. */
static void enlarge(void *context, void *passing) {
  for (size_t i = 0; i < ad_run_param_count(passing); i++) {
    const ad_array *gradient = ad_run_part(passing, i, AD_PART_GRADIENT);
    for (size_t k = 0; gradient->data && k < ad_array_numel(gradient); k++)
      ad_array_set(gradient, k, ad_array_get(gradient, k) * (1 + 0x1p-13));
  }
  ((ad_known_bug_scene *)context)->fired = 1;
}

static double moved_at(int loss_scale, const char *mesh) {
  static const ad_known_bug coarse = {
      .name = "coarse", .words = "it only rounds", .rounds = 1, .of_dtype = 1, .at = {{AD_INJECT_GRADIENTS, enlarge}}};
  char text[512];
  ad_recipe *recipe = NULL;
  if (!ad_program_kind_find("drawn")) must(ad_program_register(&drawn_kind));
  snprintf(text, sizeof text,
           "name: coarse\nmodel: {kind: drawn, form: %d}\nmesh: \"%s\"\n"
           "precision: {param: f16, compute: bf16, reduce: f16, loss_scale: %d}\n"
           "train: {global_batch: 12, microbatches: 2, steps: 3, lr: 0.01}\n",
           DRAWN_TIED, mesh, loss_scale);
  must(ad_recipe_parse(text, "coarse.yaml", NULL, 0, &recipe));
  ad_check_options options = {.size = sizeof options, .mutate = 1, .mutant_count = 1};
  ad_check_result *scratch;
  must(ad_check_result_create(recipe, &scratch));
  ad_mutants *tried = drawn_of(recipe);
  ad_mutant *first = &tried->list[tried->derived];
  tried->count = tried->derived + 1;
  first->known = &coarse;
  must(ad_mutants_try(recipe, &options, scratch, tried));
  assert_int_equal(first->killed_by, AD_KILLED_BY_NO_EFFECT);
  double moved = first->moved;
  ad_mutants_destroy(tried);
  ad_check_result_destroy(scratch);
  ad_recipe_destroy(recipe);
  return moved;
}

/* Whatever the loss scale, and however gradients are spread, they move by as much. */
static void a_mutant_moves_gradients_by_as_much_at_every_loss_scale(void **state) {
  double moved = moved_at(0, "dp_shard=2");
  assert_true(moved > 0.02 && moved < 0.04);
  assert_true(moved_at(6, "dp_shard=2") == moved);
  assert_true(fabs(moved_at(6, "dp_replicate=2 dp_shard=2") - moved) < 1e-3 * moved);
}

/* ---- a mistake leaves nothing behind for the next one ---- */

/* An overflowing step lowers the loss scale; the next mistake is tried from the original scale. */
static void each_mutant_is_tried_at_the_same_loss_scale(void **state) {
  static const ad_known_bug overflows = {.name = "overflows",
                                         .words = "the loss is divided by next to nothing",
                                         .of_dtype = 1,
                                         .at = {{AD_INJECT_NORM, notice_creation}, {AD_INJECT_DIVISOR, overflow}}};
  static const ad_known_bug nothing = {.name = "nothing",
                                       .words = "nothing is changed",
                                       .no_effect = "it changes nothing",
                                       .of_dtype = 1,
                                       .at = {{AD_INJECT_NORM, notice_creation}}};
  ad_recipe *recipe = halves(10);
  ad_check_options options = {.size = sizeof options, .mutate = 1, .mutant_count = 1};
  ad_check_result *scratch;
  must(ad_check_result_create(recipe, &scratch));
  ad_mutants *tried = drawn_of(recipe);
  ad_mutant *first = &tried->list[tried->derived];
  tried->count = tried->derived + 2;
  first[0].known = &overflows;
  first[1].known = &nothing;
  must(ad_mutants_try(recipe, &options, scratch, tried));
  assert_int_equal(first[0].killed_by, AD_KILLED_BY_NUMBER);
  if (first[1].killed_by != AD_KILLED_BY_NO_EFFECT)
    fail_msg("%s: %s", ad_killed_by_name(first[1].killed_by), first[1].message);
  ad_mutants_destroy(tried);
  ad_check_result_destroy(scratch);
  ad_recipe_destroy(recipe);
}

/* ---- a module without an optimizer ---- */

static ad_status mirrored_create(const void *options, ad_program *to, void **own) {
  AD_TRY(every_create(options, to, own));
  const ad_mesh *mesh = ad_program_mesh(to, 1);
  ad_param_spec param = every_param("copy", EVERY_IN, EVERY_WIDTH, mesh, AD_R);
  ad_module_spec mirror = {
      .size = sizeof mirror, .name = "mirror", .mesh = mesh, .params = &param, .param_count = 1, .is_mirror = 1};
  return ad_program_add_module(to, &mirror);
}

static ad_recipe *mirrored_recipe(void) {
  static const char *const modules[] = {"every", "mirror", NULL};
  static const char text[] =
      "name: mirrored\nmodel: {kind: mirrored}\nmesh: {every: \"dp_shard=2\", mirror: \"dp_shard=2\"}\n"
      "precision: {param: f64, compute: f64}\ntrain: {global_batch: 9, steps: 5, lr: 1e-2}\n";
  static ad_program_kind kind;
  ad_recipe *recipe = NULL;
  every_register();
  kind = *ad_program_kind_find("every");
  kind.name = "mirrored", kind.modules = modules, kind.create = mirrored_create;
  must(ad_program_register(&kind));
  must(ad_recipe_parse(text, "mirrored.yaml", NULL, 0, &recipe));
  return recipe;
}

/* Each trial restores the state of the first; a mirror module's parameters have no moments to restore. */
static void mutants_are_tried_beside_a_mirror(void **state) {
  ad_recipe *recipe = mirrored_recipe();
  ad_check_options options = {.size = sizeof options, .mutate = 1, .mutant_count = 1};
  ad_check_result *scratch;
  must(ad_check_result_create(recipe, &scratch));
  ad_mutants *tried = drawn_of(recipe);
  must(ad_mutants_try(recipe, &options, scratch, tried));
  assert_int_equal(ad_mutants_survivors(tried), 0);
  ad_mutants_destroy(tried);
  ad_check_result_destroy(scratch);
  ad_recipe_destroy(recipe);
}

/* ---- mistakes in the tape's record that keep all types right ---- */

/* Mutates a transition to have one axis fewer, an axis over which it does not go: the program is unchanged and all
 * types hold. If that axis has several ranks, nothing shows that the program is unchanged. */
static ad_killed_by leave_out(const ad_recipe *recipe, const ad_place *place, ad_axis axis) {
  ad_mutant mutant = {.mutation = {.place = *place, .operator_ = AD_OPERATOR_FEWER_AXES, .axis = axis, .in_record = 1}};
  must(ad_derived_try_record(recipe, &mutant));
  assert_int_equal(mutant.message[0] != 0, mutant.killed_by != AD_KILLED_BY_NONE);
  return mutant.killed_by;
}

static void what_types_let_pass_has_no_effect_only_over_one_rank(void **state) {
  ad_recipe *recipe = every_recipe("dp_replicate=1 dp_shard=2 tp=3", 0);
  ad_places places;
  int tried[2] = {0};
  must(ad_derived_places(recipe, &places));
  for (size_t i = 0; i < places.count; i++) {
    const ad_place *place = &places.list[i];
    if (place->phase != AD_PLACE_FORWARD) continue;
    int declares = place->move == AD_MOVE_DECLARE;
    for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
      if (!(AD_AXES(axis) & (AD_AXES_DP | AD_AXES(AD_TP))) || AD_AXES(axis) & place->axes) continue;
      int of_one = axis == AD_DP_REPLICATE;
      assert_int_equal(leave_out(recipe, place, (ad_axis)axis),
                       of_one || declares ? AD_KILLED_BY_NO_EFFECT : AD_KILLED_BY_NONE);
      tried[of_one]++;
    }
  }
  assert_true(tried[0] > 10 && tried[1] > 10);
  ad_places_release(&places);
  ad_recipe_destroy(recipe);
}

/* Over a group of one rank, a transition that is left out of the record leaves the program unchanged. */
static void what_is_left_out_over_one_rank_has_no_effect(void **state) {
  for (int ranks = 1; ranks <= 2; ranks++) {
    ad_recipe *recipe = every_recipe(ranks == 1 ? "dp_shard=2 tp=1" : "dp_shard=2 tp=2", 0);
    ad_places places;
    int same = 0, refused = 0;
    must(ad_derived_places(recipe, &places));
    for (size_t i = 0; i < places.count; i++) {
      if (places.list[i].phase != AD_PLACE_FORWARD || places.list[i].axes != AD_AXES(AD_TP)) continue;
      ad_mutant mutant = {.mutation = {.place = places.list[i], .operator_ = AD_OPERATOR_LEFT_OUT, .in_record = 1}};
      must(ad_derived_try_record(recipe, &mutant));
      assert_true(mutant.killed_by != AD_KILLED_BY_NONE);
      same += mutant.killed_by == AD_KILLED_BY_NO_EFFECT && places.list[i].move != AD_MOVE_DECLARE;
      refused += mutant.killed_by == AD_KILLED_BY_TYPE;
    }
    assert_int_equal(same > 0, ranks == 1);
    assert_true(refused > 0);
    ad_places_release(&places);
    ad_recipe_destroy(recipe);
  }
}

static void a_place_that_is_not_found_again_is_reported(void **state) {
  ad_recipe *recipe = every_recipe("dp_shard=2 tp=2", 0);
  ad_places places;
  must(ad_derived_places(recipe, &places));
  for (size_t i = 0; i < places.count; i++) {
    ad_mutant mutant = {.mutation = {.place = places.list[i], .operator_ = AD_OPERATOR_LEFT_OUT, .in_record = 1}};
    if (places.list[i].phase != AD_PLACE_FORWARD) continue;
    mutant.mutation.place.ordinal += 1000;
    must(ad_derived_try_record(recipe, &mutant));
    assert_int_equal(mutant.killed_by, AD_KILLED_BY_NONE);
    assert_string_equal(mutant.message, "the mutant's step did not reach the transition that the mutation changes");
    break;
  }
  ad_places_release(&places);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_mutant_that_shows_in_a_metric_alone_is_killed),
      cmocka_unit_test(a_norm_that_other_ranks_than_the_first_have_wrong_is_reported),
      cmocka_unit_test(a_mutant_moves_gradients_by_as_much_at_every_loss_scale),
      cmocka_unit_test(a_wide_bucket_is_found_by_policy_and_by_calls),
      cmocka_unit_test(calls_are_reported_of_a_step_that_counts),
      cmocka_unit_test(a_skipped_step_is_not_reported_by_its_calls),
      cmocka_unit_test(each_mutant_is_tried_at_the_same_loss_scale),
      cmocka_unit_test(mutants_are_tried_beside_a_mirror),
      cmocka_unit_test(what_types_let_pass_has_no_effect_only_over_one_rank),
      cmocka_unit_test(what_is_left_out_over_one_rank_has_no_effect),
      cmocka_unit_test(a_place_that_is_not_found_again_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
