/* Tests that right programs of users are called right, whatever they compute and on whatever mesh, in f64 and in the
 * recipe's own dtypes. Drawn: forms (drawn_program.h), meshes, ZeRO, microbatches, batches, dtypes and seeds. */
#include "says.h"
#include "world.h"

#include <jansson.h>
#include "draw.h"
#include "drawn_bridge.h"
#include "drawn_program.h"

#define main main_of_experts
#include "../../../tests/install/experts.c"
#undef main

#include "base/random.h"
#include "check/computing.h"
#include "check/formulas.h"

static const char *const forms[] = {
#define DRAWN_WORDS(code, words) words,
    DRAWN_FORMS(DRAWN_WORDS)
#undef DRAWN_WORDS
};

/* One recipe of a drawn program. */
typedef struct drawn_case {
  drawn_form form;
  const char *mesh, *compute;
  int zero, microbatches, batch, seed;
} drawn_case;

static const char *const meshes[] = {
    "dp_shard=2", "dp_shard=4",      "dp_replicate=3",           "dp_replicate=2 dp_shard=2",
    "tp=2",       "dp_shard=2 tp=2", "dp_replicate=3 dp_shard=1"};
enum { MESHES = sizeof meshes / sizeof *meshes, CASES = 600, TAKEN = 60, MUTATED = 40 };

/* Case number i: every form and dtype in turn, all else by chance. */
static drawn_case case_of(int i) {
  uint64_t drawn[5];
  for (int k = 0; k < 5; k++) drawn[k] = ad_random_bits(91, (uint64_t)i, (uint64_t)k);
  drawn_case c = {.form = (drawn_form)(i / 2 % DRAWN_RIGHT), .compute = i % 2 ? "bf16" : "f32", .seed = i};
  c.mesh = meshes[drawn[0] % MESHES];
  c.zero = (int)(drawn[1] % 4);
  c.microbatches = 1 + (int)(drawn[2] % 3);
  c.batch = 3 * c.microbatches + (int)(drawn[3] % 8); /* of three rows some ranks have none */
  return c;
}

static ad_recipe *recipe_of(const drawn_case *c) {
  char text[512];
  ad_recipe *recipe;
  static int is_registered;
  if (!is_registered++) must(ad_program_register(&drawn_kind));
  snprintf(text, sizeof text,
           "name: drawn\nmodel: {kind: drawn, form: %d}\nmesh: \"%s\"\nprecision: {compute: %s}\nshard: {zero: %d}\n"
           "train: {global_batch: %d, microbatches: %d, steps: 4, lr: 0.01, seed: %d, clip: 0.05}\n",
           (int)c->form, c->mesh, c->compute, c->zero, c->batch, c->microbatches, c->seed);
  must(ad_recipe_parse(text, "drawn.yaml", NULL, 0, &recipe));
  return recipe;
}

/* The document of the check; *holds: its verdict. */
static json_t *check(const drawn_case *c, ad_check_options options, int *holds, char **table) {
  ad_recipe *recipe = recipe_of(c);
  char *json = NULL;
  options.size = sizeof options;
  must(ad_check(recipe, &options, holds, &json));
  must(ad_check_table(json, AD_PLAIN_TEXT, table));
  json_t *document = json_loads(json, 0, NULL);
  assert_non_null(document);
  free(json);
  ad_recipe_destroy(recipe);
  return document;
}

static void expect_right(int number, ad_check_options options) {
  drawn_case c = case_of(number);
  char *table;
  int holds;
  json_t *document = check(&c, options, &holds, &table);
  if (!holds) fputs(table, stderr); /* fail_msg cuts long texts */
  if (!holds)
    fail_msg("case %d (%s; mesh %s, zero %d, %d microbatches of %d rows, %s)", number, forms[c.form], c.mesh, c.zero,
             c.microbatches, c.batch, c.compute);
  json_decref(document);
  free(table);
}

/* The metric is a sum of both signs: ranks add it in another order, and no product of the draws shows that. */
static void a_metric_that_cancels_may_be_off_by_what_the_largest_loss_may(void **state) {
  enum { CANCELS = 472 };
  expect_right(CANCELS, (ad_check_options){.steps = 2});
}

static void no_right_program_is_called_wrong(void **state) {
  draw cases = draw_cases("right programs", CASES, 0, TAKEN);
  for (int i = 0; i < CASES; i++)
    if (is_drawn(&cases, i)) expect_right(i, (ad_check_options){0});
}

/* ---- what is not right, or nothing, is not called right ---- */

static const drawn_case plain = {.mesh = "dp_shard=2", .compute = "f32", .microbatches = 2, .batch = 9, .seed = 3};

static const char *text_at(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

/* One process stops the same gradient, so that both agree; the slope of the loss does not. */
static void a_constant_that_stops_a_gradient_is_seen_by_the_slope_and_named(void **state) {
  drawn_case c = plain;
  char *table;
  int holds;
  c.form = DRAWN_STOPPED;
  json_t *document = check(&c, (ad_check_options){0}, &holds, &table);
  const json_t *slope = json_object_get(document, "directional");
  assert_false(holds);
  assert_true(json_is_true(json_object_get(json_object_get(document, "summary"), "pass")));
  assert_true(json_is_false(json_object_get(slope, "pass")));
  assert_facts(text_at(slope, "changing_constant"), "drawn_program.h");
  assert_text_says(table, text_at(slope, "changing_constant"));
  json_decref(document);
  free(table);
  c.form = DRAWN_GATHERED;
  document = check(&c, (ad_check_options){0}, &holds, &table);
  assert_true(holds);
  assert_true(json_is_true(json_object_get(json_object_get(document, "directional"), "pass")));
  json_decref(document);
  free(table);
}

static void a_loss_times_0_is_nothing_in_every_dtype_and_along_a_direction(void **state) {
  const ad_check_options options[] = {
      {0}, {.recipe_dtype = 1}, {.dtype = AD_F32}, {.directional = 1}, {.mutate = 1, .mutant_count = 3}};
  drawn_case c = plain;
  c.form = DRAWN_NOTHING;
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    char *table;
    int holds;
    json_t *document = check(&c, options[i], &holds, &table);
    assert_false(holds || json_is_true(json_object_get(document, "holds")));
    assert_true(*text_at(document, "reason"));
    assert_says_in(__func__, last_line(table), SAYS_FACTS(NULL));
    json_decref(document);
    free(table);
  }
}

static const json_t *param_of(const json_t *document, const char *name) {
  const json_t *param;
  size_t i;
  json_array_foreach(json_object_get(document, "params"), i,
                     param) if (!strcmp(text_at(param, "name"), name)) return param;
  fail_msg("no parameter `%s`", name);
  return NULL;
}

/* A parameter that nothing uses is named; it makes nothing wrong, and counts for nothing. */
static void a_parameter_that_no_gradient_reached_is_named(void **state) {
  drawn_case c = plain;
  char *table;
  int holds;
  c.form = DRAWN_MASKED;
  json_t *document = check(&c, (ad_check_options){0}, &holds, &table);
  assert_true(holds);
  assert_true(json_is_false(json_object_get(param_of(document, "own.scale"), "reached")));
  assert_true(json_is_true(json_object_get(param_of(document, "own.head"), "reached")));
  assert_int_equal(json_integer_value(json_object_get(json_object_get(document, "summary"), "reached")), 5);
  assert_text_says(table, "5");
  assert_text_says(table, "own.scale");
  json_decref(document);
  free(table);
}

/* A bias before a mean over the batch is taken off: its gradient is what rounding leaves of addends that cancel. */
static void a_gradient_that_cancels_is_neither_wrong_nor_reached(void **state) {
  drawn_case c = plain;
  char *table;
  int holds, cancelled = 0;
  c.form = DRAWN_BATCH_STATISTIC;
  for (c.seed = 0; c.seed < 6; c.seed++) {
    json_t *document = check(&c, (ad_check_options){0}, &holds, &table);
    if (!holds) fail_msg("seed %d:\n%s", c.seed, table);
    cancelled += json_is_false(json_object_get(param_of(document, "layers.down_bias"), "reached"));
    assert_true(json_is_true(json_object_get(param_of(document, "layers.up_bias"), "reached")));
    json_decref(document);
    free(table);
  }
  assert_true(cancelled > 0);
}

/* Where a count cancels in every loss, a mistake in it has no effect, and none is called a survivor. */
static void mutants_of_a_count_that_cancels_have_no_effect(void **state) {
  drawn_case c = plain;
  char *table;
  int holds, of_count = 0;
  size_t i;
  const json_t *one;
  c.form = DRAWN_GATHERED;
  c.batch = 8;
  json_t *document = check(&c, (ad_check_options){.mutate = 1}, &holds, &table);
  if (!holds) fail_msg("%s", table);
  assert_int_equal(json_integer_value(json_object_get(document, "survivors")), 0);
  json_array_foreach(json_object_get(document, "mutants"), i, one) {
    int is_count = !strcmp(text_at(json_object_get(one, "derived"), "place"), "count: all_reduce over dp_shard");
    if (!is_count || strcmp(text_at(one, "killed_by"), "no_effect") != 0) continue;
    assert_text_says(text_at(one, "message"), "per_microbatch");
    of_count++;
  }
  assert_true(of_count >= 2); /* doubled, averaged or left out, as the ranks' shares of the rows have it */
  int is_explained = 0;
  json_array_foreach(json_object_get(document, "not_applicable"), i, one) {
    if (strcmp(text_at(one, "name"), "mean-of-microbatch-means") != 0) continue;
    assert_text_says(text_at(one, "why"), "per_microbatch");
    is_explained = 1;
  }
  assert_true(is_explained);
  json_decref(document);
  free(table);
}

/* Mixtures of experts, as tests/install/experts.c has them: their layer, view and choices. */
static void no_mixture_of_experts_is_called_wrong(void **state) {
  static const char *const views[] = {"ep=1 etp=1", "ep=2 etp=1", "ep=4 etp=1"};
  must(ad_program_register(&kind));
  draw cases = draw_cases("mixtures of experts", 12, 0, 4);
  for (int i = 0; i < 12; i++) {
    char text[512], *json = NULL;
    int holds = 0;
    ad_recipe *recipe;
    ad_check_options options = {.size = sizeof options};
    if (!is_drawn(&cases, i)) continue;
    snprintf(text, sizeof text,
             "name: mixture\nmodel: {kind: mixture}\nmesh: dp_shard=4\nviews: {sparse: \"%s\"}\n"
             "precision: {compute: %s}\nshard: {zero: %d}\n"
             "train: {global_batch: 8, microbatches: %d, steps: 3, lr: 0.01, seed: %d}\n",
             views[i % 3], i / 3 % 2 ? "bf16" : "f32", i / 6 * 3, 1 + i % 2, i);
    must(ad_recipe_parse(text, "mixture.yaml", NULL, 0, &recipe));
    must(ad_check(recipe, &options, &holds, &json));
    if (!holds) fail_msg("%s: %s", text, json);
    free(json);
    ad_recipe_destroy(recipe);
  }
}

/* ---- programs on two meshes that bridges join ---- */

static const char *const bridged_forms[] = {
#define BRIDGED_WORDS(code, words) words,
    BRIDGED_FORMS(BRIDGED_WORDS)
#undef BRIDGED_WORDS
};

/* Rows are dealt in another way on each side: to more ranks or to fewer, in parts that lie inside each other or not. */
static const struct {
  const char *near, *far, *placement;
} joined[] = {{"dp=3", "dp=2", "disjoint"},
              {"dp=2", "dp=3", "disjoint"},
              {"dp=1", "dp=3", "disjoint"},
              {"dp=2", "dp=2", "disjoint"},
              {"dp=4", "dp=2 tp=2", "colocated"},
              {"dp=2 tp=2", "dp_replicate=2 dp_shard=2", "colocated"},
              {"dp_replicate=2 dp_shard=2", "dp=1", "disjoint"},
              {"dp=3", "dp=3", "colocated"}};
enum { JOINED = sizeof joined / sizeof *joined, BRIDGED_CASES = 280 };

static void register_bridged(void) {
  static int is_registered;
  if (!is_registered++) must(ad_program_register(&bridged_kind));
}

/* Writes the recipe of case number i; rows 0: as many as are drawn. Returns its form. */
static int write_bridged(int i, int rows, char *text, size_t size) {
  uint64_t drawn[5];
  for (int k = 0; k < 5; k++) drawn[k] = ad_random_bits(92, (uint64_t)i, (uint64_t)k);
  int form = i / 2 % BRIDGED_COUNT, mesh = (int)(drawn[0] % JOINED), microbatches = 1 + (int)(drawn[1] % 3);
  snprintf(text, size,
           "name: bridged\nmodel: {kind: bridged, form: %d}\nmesh: {near: \"%s\", far: \"%s\"}\nplacement: %s\n"
           "precision: {compute: %s}\nshard: {zero: %d}\n"
           "train: {global_batch: %d, microbatches: %d, steps: 3, lr: 0.01, seed: %d, clip: 0.05}\n",
           form, joined[mesh].near, joined[mesh].far, joined[mesh].placement, i % 2 ? "bf16" : "f32",
           (int)(drawn[2] % 4), rows ? rows : 3 * microbatches + (int)(drawn[3] % 8), microbatches, i);
  return form;
}

static void expect_right_over_a_bridge(int i, ad_check_options options) {
  char text[512], *json = NULL;
  int holds = 0;
  ad_recipe *recipe;
  int form = write_bridged(i, 0, text, sizeof text);
  must(ad_recipe_parse(text, "bridged.yaml", NULL, 0, &recipe));
  options.size = sizeof options;
  if (ad_check(recipe, &options, &holds, &json)) fail_msg("%s\n%s: %s", bridged_forms[form], text, ad_last_error());
  char *table;
  must(ad_check_table(json, AD_PLAIN_TEXT, &table));
  if (!holds) fputs(table, stderr);
  if (!holds) fail_msg("case %d: %s\n%s", i, bridged_forms[form], text);
  free(table);
  free(json);
  ad_recipe_destroy(recipe);
}

static void no_right_program_with_bridges_is_called_wrong(void **state) {
  draw cases = draw_cases("right programs with bridges", BRIDGED_CASES, 0, 28);
  register_bridged();
  for (int i = 0; i < BRIDGED_CASES; i++)
    if (is_drawn(&cases, i)) expect_right_over_a_bridge(i, (ad_check_options){0});
  cases = draw_cases("right programs with bridges and mutants", BRIDGED_CASES, 0, 3);
  for (int i = 0; i < BRIDGED_CASES; i++)
    if (is_drawn(&cases, i)) expect_right_over_a_bridge(i, (ad_check_options){.mutate = 1, .mutant_count = 12});
}

/* The outcome of the mistake whose name begins so; NULL: it is not in the document. */
static const json_t *mutant_of(const json_t *document, const char *name) {
  const json_t *one;
  size_t i;
  json_array_foreach(json_object_get(document, "mutants"), i,
                     one) if (!strncmp(text_at(one, "name"), name, strlen(name))) return one;
  return NULL;
}

static json_t *check_bridged(const char *text, int *holds) {
  char *json = NULL;
  ad_recipe *recipe;
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  must(ad_recipe_parse(text, "bridged.yaml", NULL, 0, &recipe));
  must(ad_check(recipe, &options, holds, &json));
  json_t *document = json_loads(json, 0, NULL);
  assert_non_null(document);
  free(json);
  ad_recipe_destroy(recipe);
  return document;
}

/* `near` counts its rows, and the only loss is divided by the count of `far`; in form 4 it is the other way round. Sums
 * over axes of other names are tried each on a rank of its own pool; over axes of one name, on one of the first. */
static void a_count_that_no_loss_is_divided_by_has_no_effect_and_one_that_divides_is_refused(void **state) {
  static const char *const fars[] = {"dp=2", "dp_replicate=2"};
  static const char *const counts[] = {"left_out in the record: count: all_reduce over dp_shard",
                                       "left_out in the record: count: all_reduce over dp_replicate"};
  register_bridged();
  for (int i = 0; i < 4; i++) {
    char text[256];
    int holds, apart = i / 2, form = i % 2 * BRIDGED_BACK, divides = form == 0; /* the count that divides the loss */
    snprintf(text, sizeof text,
             "name: bridged\nmodel: {kind: bridged, form: %d}\nmesh: {near: \"dp=3\", far: \"%s\"}\n"
             "placement: disjoint\ntrain: {global_batch: 8, microbatches: 1, steps: 3, lr: 0.01}\n",
             form, fars[apart]);
    json_t *document = check_bridged(text, &holds);
    if (!holds) fail_msg("%s", json_dumps(document, 0));
    assert_int_equal(json_integer_value(json_object_get(document, "survivors")), 0);
    for (int k = 0; k <= apart; k++) {
      const json_t *count = mutant_of(document, counts[k]);
      assert_non_null(count);
      assert_string_equal(text_at(count, "killed_by"), k == divides ? "type" : "no_effect");
    }
    json_decref(document);
  }
}

/* How many times too wide the bounds of what ranks compute are; the ranks of a check inherit it. */
static double too_wide = 1;

void __real_ad_computing_measure(ad_computing *c, const ad_run *run, const ad_reference *of, const ad_addends *ranks);
void __wrap_ad_computing_measure(ad_computing *c, const ad_run *run, const ad_reference *of, const ad_addends *ranks);
void __wrap_ad_computing_measure(ad_computing *c, const ad_run *run, const ad_reference *of, const ad_addends *ranks) {
  __real_ad_computing_measure(c, run, of, ranks);
  for (size_t i = 0; i < c->count; i++) c->apart[i] *= too_wide, c->allowed[i] *= too_wide;
  c->all_apart *= too_wide;
  c->relative *= too_wide;
}

/* Sums over few rows hide that they are rounded to bf16 on the way; sums over many rows show it, so that only a bound
 * that is too wide passes it: then it survives, and is not excused. */
static void a_mutant_that_only_rounds_has_no_effect_on_short_sums_alone(void **state) {
  enum { SHORT = 205 };
  static const struct {
    int rows; /* 0: the few of the draw */
    double too_wide;
    const char *killed_by;
  } cases[] = {{0, 1, "no_effect"}, {0, 1000, "no_effect"}, {2048, 1, "number"}, {2048, 1000, "none"}};
  register_bridged();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int holds;
    char text[512];
    write_bridged(SHORT, cases[i].rows, text, sizeof text);
    too_wide = cases[i].too_wide;
    json_t *document = check_bridged(text, &holds);
    too_wide = 1;
    const json_t *sums = mutant_of(document, "product-sums-in-bf16");
    int survives = !strcmp(cases[i].killed_by, "none");
    assert_non_null(sums);
    if (holds == survives || strcmp(text_at(sums, "killed_by"), cases[i].killed_by) != 0)
      fail_msg("%d rows, bounds times %g: holds %d, %s: %s", cases[i].rows, cases[i].too_wide, holds,
               text_at(sums, "killed_by"), json_dumps(document, JSON_INDENT(1)));
    assert_int_equal(json_integer_value(json_object_get(document, "survivors")), survives);
    const json_t *moved = json_object_get(sums, "moved");
    assert_int_equal(json_is_null(moved), !strcmp(cases[i].killed_by, "number"));
    assert_int_equal(json_real_value(moved) >= 0.5, survives);
    json_decref(document);
  }
}

static void no_mutant_survives_in_a_right_program(void **state) {
  draw cases = draw_cases("right programs with mutants", MUTATED, 0, 4);
  for (int i = 0; i < MUTATED; i++)
    if (is_drawn(&cases, i)) expect_right(i, (ad_check_options){.mutate = 1, .mutant_count = 12});
}

/* Whether a form's ranks compute in pieces that bf16 rounds, on a mesh that shards the batch alone. */
static void ranks_that_use_each_others_activations_compute_in_pieces(void **state) {
  static const struct {
    drawn_form form;
    int shards;
  } cases[] = {{DRAWN_DIVIDED, 0},  {DRAWN_MASKED, 0},  {DRAWN_DROPOUT, 0},         {DRAWN_GATHERED_INVARIANT, 0},
               {DRAWN_GATHERED, 1}, {DRAWN_WIDENED, 1}, {DRAWN_GATHERED_DIVIDED, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int narrow = 0; narrow < 2; narrow++) {
      drawn_case c = plain;
      ad_run_options options = {.size = sizeof options, .quiet = 1};
      int shards = -1;
      ad_comm *comm;
      ad_run *run;
      c.form = cases[i].form;
      c.compute = narrow ? "bf16" : "f32";
      ad_recipe *recipe = recipe_of(&c);
      must(ad_comm_open_dry(0, 2, &comm));
      must(ad_run_create(comm, recipe, &options, &run));
      must(ad_formulas_sharded(run, &shards));
      if (shards != (narrow && cases[i].shards)) fail_msg("%s in %s: %d", forms[c.form], c.compute, shards);
      ad_run_destroy(run);
      ad_comm_close(comm);
      ad_recipe_destroy(recipe);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_constant_that_stops_a_gradient_is_seen_by_the_slope_and_named),
      cmocka_unit_test(a_loss_times_0_is_nothing_in_every_dtype_and_along_a_direction),
      cmocka_unit_test(a_parameter_that_no_gradient_reached_is_named),
      cmocka_unit_test(a_gradient_that_cancels_is_neither_wrong_nor_reached),
      cmocka_unit_test(mutants_of_a_count_that_cancels_have_no_effect),
      cmocka_unit_test(ranks_that_use_each_others_activations_compute_in_pieces),
      cmocka_unit_test(a_metric_that_cancels_may_be_off_by_what_the_largest_loss_may),
      cmocka_unit_test(no_right_program_is_called_wrong),
      cmocka_unit_test(no_right_program_with_bridges_is_called_wrong),
      cmocka_unit_test(no_mixture_of_experts_is_called_wrong),
      cmocka_unit_test(a_count_that_no_loss_is_divided_by_has_no_effect_and_one_that_divides_is_refused),
      cmocka_unit_test(a_mutant_that_only_rounds_has_no_effect_on_short_sums_alone),
      cmocka_unit_test(no_mutant_survives_in_a_right_program),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
