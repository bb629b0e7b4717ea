/* Tests the mistakes that are derived from a program with every transition: which mistakes there are, and, for some
 * drawn by a seed, that each can be made, is killed, and gets the right verdict. */
#include "every_move.h"

#include <math.h>

#include "draw.h"
#include "says.h"

static const struct {
  const char *mesh;
  int zero;
} worlds[] = {{"dp_shard=2 tp=3", 2}, {"dp_replicate=2 tp=3 cp=1", 0}, {"dp_replicate=2 dp_shard=2 tp=2", 2}};
enum { WORLDS = sizeof worlds / sizeof *worlds };

enum { TAKEN = 40 };

/* For each world, made once: all derived mutants, and the drawn ones with their verdicts. */
static ad_mutants *listed[WORLDS], *found[WORLDS];
static size_t taken[WORLDS];

static void mutant(int world) {
  ad_recipe *recipe = every_recipe(worlds[world].mesh, worlds[world].zero);
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_check_result *scratch;
  char what[128];
  must(ad_check_result_create(recipe, &scratch));
  must(ad_mutants_create(recipe, 0, 0, &listed[world]));
  snprintf(what, sizeof what, "derived mistakes on %s", worlds[world].mesh);
  draw drawn = draw_cases(what, (int)listed[world]->derived, 0, TAKEN);
  taken[world] = (size_t)drawn.taken;
  must(ad_mutants_create(recipe, drawn.taken, drawn.seed, &found[world]));
  must(ad_mutants_try(recipe, &options, scratch, found[world]));
  ad_check_result_destroy(scratch);
  ad_recipe_destroy(recipe);
}

static int set_up(void **state) {
  for (int i = 0; i < WORLDS; i++) mutant(i);
  return 0;
}

static int tear_down(void **state) {
  for (int i = 0; i < WORLDS; i++) {
    ad_mutants_destroy(listed[i]);
    ad_mutants_destroy(found[i]);
  }
  return 0;
}

typedef void visitor(int world, const ad_mutant *tried);

static void visit_derived(ad_mutants *const *of, visitor *visit) {
  for (int world = 0; world < WORLDS; world++) {
    assert_true(of[world]->derived >= taken[world]);
    for (size_t i = 0; i < of[world]->derived; i++) visit(world, &of[world]->list[i]);
  }
}

static void the_program_matches(void **state) {
  for (int i = 0; i < WORLDS; i++) {
    ad_recipe *recipe = every_recipe(worlds[i].mesh, worlds[i].zero);
    ad_check_options options = {.size = sizeof options};
    int holds = 0;
    char *json = NULL;
    must(ad_check(recipe, &options, &holds, &json));
    if (!holds) fail_msg("%s", json);
    free(json);
    ad_recipe_destroy(recipe);
  }
}

static void nothing_survives(void **state) {
  for (int w = 0; w < WORLDS; w++) {
    for (size_t i = 0; i < found[w]->count; i++) {
      const ad_mutant *tried = &found[w]->list[i];
      if (tried->killed_by == AD_KILLED_BY_NONE)
        fail_msg("%s survived on %s: %s", tried->name, worlds[w].mesh, tried->message);
    }
    assert_int_equal(ad_mutants_survivors(found[w]), 0);
  }
}

/* ---- which operators each transition is mutated with ---- */

enum { IN_RECORD = AD_PLACE_STEP + 1, PHASES };
static unsigned seen[AD_MOVE_COUNT][PHASES]; /* bit i: operator i was listed */

static void see(int world, const ad_mutant *tried) {
  const ad_mutation *mutation = &tried->mutation;
  int phase = mutation->in_record ? IN_RECORD : (int)mutation->place.phase;
  seen[mutation->place.move][phase] |= 1u << mutation->operator_;
}

#define OP(name) (1u << AD_OPERATOR_##name)

/* Every sum on the tape is over one axis, so no axis of it can be left out; parameters' gradients are summed over
 * several axes. */
static void every_transition_meets_every_operator_that_means_something(void **state) {
  static const unsigned wrong_sum = OP(DOUBLED) | OP(AVERAGED) | OP(MORE_AXES), wrong_ranks = OP(OTHER_GROUP),
                        late = OP(FIRST_MICROBATCH_ONLY);
  static const struct {
    ad_move move;
    unsigned forward, backward, record;
  } table[] = {
      {AD_MOVE_ALL_REDUCE, OP(LEFT_OUT) | wrong_sum | wrong_ranks | late,
       OP(BACKWARD_IDENTITY) | wrong_sum | wrong_ranks | late,
       OP(LEFT_OUT) | OP(DOUBLED) | OP(MORE_AXES) | OP(FEWER_AXES)},
      {AD_MOVE_REDUCE_SCATTER, OP(LEFT_OUT) | wrong_sum | wrong_ranks | late,
       OP(BACKWARD_LOCAL) | OP(FEWER_AXES) | wrong_sum | wrong_ranks | late,
       OP(LEFT_OUT) | OP(DOUBLED) | OP(MORE_AXES)},
      {AD_MOVE_ALL_GATHER, OP(LEFT_OUT) | OP(FEWER_AXES) | wrong_ranks | late, OP(BACKWARD_LOCAL) | wrong_ranks | late,
       OP(LEFT_OUT) | OP(DOUBLED) | OP(MORE_AXES) | OP(FEWER_AXES)},
      {AD_MOVE_ALL_TO_ALL, OP(LEFT_OUT) | wrong_ranks | late, OP(BACKWARD_LOCAL) | wrong_ranks | late,
       OP(LEFT_OUT) | OP(DOUBLED) | OP(MORE_AXES)},
      {AD_MOVE_CONVERT, 0, 0, OP(LEFT_OUT) | OP(DOUBLED) | OP(MORE_AXES) | OP(FEWER_AXES)},
      {AD_MOVE_ONCE, OP(ONCE_EVERYWHERE), OP(ONCE_EVERYWHERE), OP(ONCE_EVERYWHERE) | OP(DOUBLED) | OP(MORE_AXES)},
      {AD_MOVE_DECLARE, 0, 0, OP(LEFT_OUT) | OP(DOUBLED) | OP(MORE_AXES)}};
  visit_derived(listed, see);
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    const unsigned *of = seen[table[i].move];
    assert_int_equal(of[AD_PLACE_FORWARD], table[i].forward);
    assert_int_equal(of[AD_PLACE_BACKWARD], table[i].backward);
    assert_int_equal(of[IN_RECORD] & ~OP(FEWER_AXES), table[i].record & ~OP(FEWER_AXES));
    assert_int_equal(of[IN_RECORD] & table[i].record, table[i].record);
  }
  assert_true(seen[AD_MOVE_ALL_REDUCE][AD_PLACE_STEP] & OP(FEWER_AXES));
}

/* Only in a gradient's path have averaged, left out and doubled sums a number in the catalogue
 * of published mistakes. */
static void name_number(int world, const ad_mutant *tried) {
  const ad_mutation *mutation = &tried->mutation;
  const ad_place *place = &mutation->place;
  int number = mutation->operator_ == AD_OPERATOR_AVERAGED   ? 9
               : mutation->operator_ == AD_OPERATOR_LEFT_OUT ? 2
               : mutation->operator_ == AD_OPERATOR_DOUBLED  ? 7
                                                             : 0;
  if (place->phase != AD_PLACE_STEP || place->move == AD_MOVE_ONCE) return;
  if (!strcmp(place->what, "count") || !strcmp(place->what, "norm")) return;
  if (tried->catalogue != number) fail_msg("%s on %s: number %d", tried->name, worlds[world].mesh, tried->catalogue);
}

static void of_a_gradients_sums_three_mistakes_have_a_number(void **state) { visit_derived(listed, name_number); }

/* ---- the verdict of each mistake ---- */

static void judge(int world, const ad_mutant *tried) {
  ad_killed_by expected = tried->mutation.in_record ? AD_KILLED_BY_TYPE : AD_KILLED_BY_NUMBER;
  int has_message = tried->message[0] != 0, changes_gradients = isfinite(tried->ratio);
  int only_changes_loss = !changes_gradients && tried->loss_err > 1e-9; /* which no parameter is the place of */
  if (tried->killed_by != expected && tried->killed_by != AD_KILLED_BY_NO_EFFECT)
    fail_msg("%s on %s: killed by %s", tried->name, worlds[world].mesh, ad_killed_by_name(tried->killed_by));
  if (tried->killed_by != AD_KILLED_BY_NUMBER || !changes_gradients) assert_true(has_message);
  if (tried->killed_by == AD_KILLED_BY_NUMBER && !only_changes_loss && !(tried->param[0] && tried->causes.count))
    fail_msg("%s on %s: no cause; %s", tried->name, worlds[world].mesh, tried->message);
  if (tried->killed_by == AD_KILLED_BY_NUMBER && isfinite(tried->expected_ratio))
    assert_true(fabs(tried->ratio / tried->expected_ratio - 1) < 1e-9);
}

static void what_is_written_is_refused_and_what_is_done_shows_in_numbers(void **state) { visit_derived(found, judge); }

static void explain(int world, const ad_mutant *tried) {
  char list[96];
  if (tried->killed_by != AD_KILLED_BY_NO_EFFECT) return;
  snprintf(list, sizeof list, "%s without effect", ad_operator_name(tried->mutation.operator_));
  assert_says_in(list, tried->message, SAYS_FACTS(NULL));
}

static void what_has_no_effect_has_a_reason(void **state) { visit_derived(found, explain); }

static void leave_cp(int world, const ad_mutant *tried) {
  const ad_mutation *mutation = &tried->mutation;
  if (mutation->operator_ != AD_OPERATOR_FEWER_AXES || mutation->axis != AD_CP || mutation->in_record) return;
  assert_int_equal(tried->killed_by, AD_KILLED_BY_NO_EFFECT);
  assert_text_says(tried->message, "cp");
}

static void an_axis_of_one_rank_may_be_left_out(void **state) { visit_derived(found, leave_cp); }

/* ---- which mistakes are drawn by a seed ---- */

static ad_mutants *list_some(const ad_recipe *recipe, int64_t take, uint64_t seed) {
  ad_mutants *drawn;
  must(ad_mutants_create(recipe, take, seed, &drawn));
  return drawn;
}

static int are_the_same(const ad_mutants *a, const ad_mutants *b) {
  int same = a->derived == b->derived && a->count == b->count;
  for (size_t i = 0; same && i < a->count; i++) same = !strcmp(a->list[i].name, b->list[i].name);
  return same;
}

static void a_seed_draws_the_same_mutants_and_another_seed_others(void **state) {
  ad_recipe *recipe = every_recipe("dp_shard=2 tp=3", 2);
  ad_mutants *all = list_some(recipe, 0, 0), *some = list_some(recipe, 20, 7), *again = list_some(recipe, 20, 7),
             *others = list_some(recipe, 20, 8), *many = list_some(recipe, (int64_t)1 << 40, 7);
  assert_int_equal(some->derived, 20);
  assert_int_equal(some->places, all->places);
  /* known bugs are all tried, whatever is drawn */
  assert_int_equal(some->count - some->derived, all->count - all->derived);
  assert_true(are_the_same(some, again));
  assert_false(are_the_same(some, others));
  assert_true(are_the_same(many, all));
  ad_mutants *lists[] = {all, some, again, others, many};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) ad_mutants_destroy(lists[i]);
  ad_recipe_destroy(recipe);
}

static void never_called(void *context, void *passing) { ((ad_known_bug_scene *)context)->fired = 1; }

/* Tries a known bug that can never fire: the program has no experts, so no scores of their slots pass. Returns what
 * killed it. */
static int try_unreached(ad_recipe *recipe, char *message, size_t size) {
  static const ad_known_bug unreached = {.name = "unreached",
                                         .words = "something of experts, in a program without any",
                                         .needs = AD_NEED_TOKENS,
                                         .no_effect = "never said: it was not made",
                                         .at = {{AD_INJECT_SLOT_SCORES, never_called}}};
  ad_check_options options = {.size = sizeof options, .mutate = 1, .mutant_count = 1};
  ad_check_result *scratch;
  must(ad_check_result_create(recipe, &scratch));
  ad_mutants *tried = list_some(recipe, 1, 0);
  ad_mutant *first = &tried->list[tried->derived];
  first->known = &unreached;
  snprintf(first->name, sizeof first->name, "%s", unreached.name);
  must(ad_mutants_try(recipe, &options, scratch, tried));
  int killed_by = first->killed_by;
  snprintf(message, size, "%s", first->message);
  assert_int_equal(ad_mutants_survivors(tried), killed_by == AD_KILLED_BY_NONE);
  ad_mutants_destroy(tried);
  ad_check_result_destroy(scratch);
  ad_recipe_destroy(recipe);
  return killed_by;
}

static void a_known_bug_that_never_fires_where_it_should_is_a_survivor(void **state) {
  static const char text[] =
      "name: plain\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\nmesh: \"dp_shard=2\"\n"
      "data: {text: [/usr/share/common-licenses], seq: 8}\ntrain: {global_batch: 4, microbatches: 2, steps: 2, lr: "
      "1e-3}\n";
  ad_recipe *recipe;
  char message[512];
  must(ad_recipe_parse(text, "plain.yaml", NULL, 0, &recipe));
  assert_int_equal(try_unreached(recipe, message, sizeof message), AD_KILLED_BY_NONE);
  assert_text_says(message, NULL);
}

/* Nobody says of a custom program what its steps reach, so there it is no survivor. */
static void a_known_bug_that_a_custom_program_never_reaches_is_not_injected(void **state) {
  char message[512];
  assert_int_equal(try_unreached(every_recipe("dp_shard=2 tp=1", 0), message, sizeof message),
                   AD_KILLED_BY_NOT_APPLICABLE);
}

/* Whichever allocation fails, that is what is said: no step is taken of a run that was not made. One may fail without
 * harm, that of a larger chunk in which a tape would keep the memory of the next microbatch in one piece. */
static void transitions_that_found_no_memory_are_not_listed(void **state) {
  ad_recipe *recipe = every_recipe(worlds[0].mesh, worlds[0].zero);
  ad_places places = {0};
  ad_memory_fail_at(0);
  must(ad_derived_places(recipe, &places));
  long made = ad_memory_fail_at(0), harmless = 0;
  ad_places_release(&places);
  assert_true(made > 100);
  for (long n = 1; n <= made; n += n < 20 ? 1 : made / 50 + 1) {
    places = (ad_places){0};
    ad_memory_fail_at(n);
    ad_status status = ad_derived_places(recipe, &places);
    ad_memory_fail_at(0);
    if (!status && ++harmless == 1) {
      ad_places_release(&places);
      continue;
    }
    if (status != AD_MEMORY) fail_msg("allocation %ld: %s: %s", n, ad_status_name(status), ad_last_error());
    assert_null(places.list);
  }
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_program_matches),
      cmocka_unit_test(nothing_survives),
      cmocka_unit_test(every_transition_meets_every_operator_that_means_something),
      cmocka_unit_test(of_a_gradients_sums_three_mistakes_have_a_number),
      cmocka_unit_test(what_is_written_is_refused_and_what_is_done_shows_in_numbers),
      cmocka_unit_test(what_has_no_effect_has_a_reason),
      cmocka_unit_test(an_axis_of_one_rank_may_be_left_out),
      cmocka_unit_test(a_seed_draws_the_same_mutants_and_another_seed_others),
      cmocka_unit_test(a_known_bug_that_never_fires_where_it_should_is_a_survivor),
      cmocka_unit_test(a_known_bug_that_a_custom_program_never_reaches_is_not_injected),
      cmocka_unit_test(transitions_that_found_no_memory_are_not_listed),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
