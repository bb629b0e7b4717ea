/* Tests repeated runs of the reference in low precision with its sums in other random orders: each order is
 * reproducible and close to the f64 gradient; and how a check judges the distributed gradient by their spread. */
#include "world.h"

#include <math.h>

#include "kernels/kernels.h"
#include "check/chance.h"
#include "check/computing.h"
#include "check/formulas.h"
#include "module/module.h"
#include "step/run.h"

static ad_reference *reference_of(const ad_recipe *recipe, int shards_formulas) {
  ad_reference *reference;
  ad_step_report report;
  must(ad_reference_create(recipe, &(ad_reference_options){.rounds = 1, .shards_formulas = shards_formulas},
                           &reference));
  for (size_t i = 0; i < ad_run_param_count(ad_reference_run(reference)); i++) {
    const ad_array *value = ad_run_part(ad_reference_run(reference), i, AD_PART_VALUE);
    float *narrow = calloc(ad_array_numel(value), sizeof *narrow);
    ad_cast(narrow, AD_F32, value->data, value->dtype, ad_array_numel(value));
    ad_array full = *value;
    full.data = narrow;
    full.dtype = AD_F32;
    ad_reference_restart(reference, i, AD_PART_VALUE, &full);
    free(narrow);
  }
  must(ad_reference_step(reference, 0, 0, &report));
  return reference;
}

static size_t numel_of(const ad_reference *reference, size_t i) {
  return ad_array_numel(ad_reference_gradient(reference, i));
}

static double distance_of(const ad_reference *reference, size_t i, int a, int b) {
  const ad_draws *draws = ad_reference_draws(reference);
  const float *one = ad_draws_deviation(draws, i, a), *other = ad_draws_deviation(draws, i, b);
  double squares = 0;
  for (size_t k = 0; k < numel_of(reference, i); k++) squares += pow((double)one[k] - (double)other[k], 2);
  return sqrt(squares);
}

static double norm_of(const ad_reference *reference, size_t i) {
  return ad_norm_of(ad_reference_gradient(reference, i)->data, numel_of(reference, i));
}

static void every_draw_rounds_otherwise_and_none_computes_otherwise(void **state) {
  ad_recipe *recipe = small_recipe("dp_shard=1", "", "");
  ad_reference *reference = reference_of(recipe, 0);
  for (size_t i = 0; i < ad_run_param_count(ad_reference_run(reference)); i++)
    for (int a = 0; a < AD_DRAWS; a++)
      for (int b = 0; b < a; b++) {
        double distance = distance_of(reference, i, a, b) / norm_of(reference, i);
        assert_true(distance > 0 && distance < 1e-5);
      }
  ad_reference_destroy(reference);
  ad_recipe_destroy(recipe);
}

static void draws_are_the_same_in_every_run(void **state) {
  ad_recipe *recipe = small_recipe("dp_shard=1", "", ", microbatches: 2");
  ad_reference *one = reference_of(recipe, 0), *other = reference_of(recipe, 0);
  for (size_t i = 0; i < ad_run_param_count(ad_reference_run(one)); i++)
    assert_memory_equal(ad_draws_deviation(ad_reference_draws(one), i, 0),
                        ad_draws_deviation(ad_reference_draws(other), i, 0),
                        AD_DRAWS * numel_of(one, i) * sizeof(float));
  ad_reference_destroy(one);
  ad_reference_destroy(other);
  ad_recipe_destroy(recipe);
}

/* If each partial sum of a bf16 product is rounded, the draws lie as far from each other as one draw lies from f64. */
static void pieces_that_round_lie_further_apart(void **state) {
  ad_recipe *recipe = small_recipe("dp_shard=1", "", "}\nprecision: {compute: bf16");
  ad_reference *once = reference_of(recipe, 0), *each = reference_of(recipe, 1);
  size_t count = ad_run_param_count(ad_reference_run(once));
  for (size_t i = 0; i < count; i++) {
    assert_true(distance_of(each, i, 1, 2) > 2e-4 * norm_of(each, i));
    assert_true(distance_of(once, i, 1, 2) < 0.5 * distance_of(each, i, 1, 2));
  }
  ad_reference_destroy(once);
  ad_reference_destroy(each);
  ad_recipe_destroy(recipe);
}

/* ---- judging ranks by the draws: the ranks' addends are made by hand from one process's ---- */

typedef struct judged {
  ad_recipe *recipe;
  ad_reference *reference;
  ad_comm *comm;
  ad_run *run;
  ad_addends ranks;
  ad_computing computing;
} judged;

static judged judge_recipe(ad_recipe *recipe) {
  judged world = {.recipe = recipe};
  world.reference = reference_of(world.recipe, 0);
  ad_run_options options = {.size = sizeof options, .quiet = 1, .given_states = 1};
  must(ad_comm_open_alone(&world.comm));
  must(ad_run_create(world.comm, world.recipe, &options, &world.run));
  must(ad_addends_create(world.run, 1, &world.ranks));
  must(ad_addends_measure(&world.ranks, 0, 0, NULL));
  must(ad_computing_create(world.run, 0, 2, &world.computing));
  return world;
}

static judged judge_as(const char *precision) { return judge_recipe(small_recipe("dp_shard=1", "", precision)); }

static void release(judged *world) {
  ad_computing_destroy(&world->computing);
  ad_addends_destroy(&world->ranks);
  ad_run_destroy(world->run);
  ad_comm_close(world->comm);
  ad_reference_destroy(world->reference);
  ad_recipe_destroy(world->recipe);
}

static void measure(judged *world) {
  ad_computing_measure(&world->computing, world->run, world->reference, &world->ranks);
}

/* Sets the ranks' sum of parameter i to the mean of the draws, moved by `amount` times its bound. */
static void move(judged *world, size_t i, double amount) {
  const ad_draws *draws = ad_reference_draws(world->reference);
  const double *ref = ad_reference_gradient(world->reference, i)->data;
  double *sum = world->ranks.themselves.full[i].data;
  size_t numel = numel_of(world->reference, i);
  for (size_t k = 0; k < numel; k++) {
    double mean = 0;
    for (int d = 0; d < AD_DRAWS; d++) mean += ad_draws_deviation(draws, i, d)[k] / AD_DRAWS;
    sum[k] = ref[k] + mean + (k % 2 ? amount : -amount) * world->computing.apart[i] / sqrt((double)numel);
  }
}

static void the_ranks_own_program_is_within_what_draws_allow(void **state) {
  static const char *const precisions[] = {"", "}\nprecision: {compute: bf16"};
  for (int p = 0; p < 2; p++) {
    judged world = judge_as(precisions[p]);
    measure(&world);
    for (size_t i = 0; i < world.computing.count; i++) {
      assert_true(world.computing.distance[i] < world.computing.apart[i]);
      assert_true(world.computing.apart[i] < world.computing.allowed[i]);
    }
    assert_true(world.computing.all_distance < world.computing.all_apart);
    release(&world);
  }
}

static void a_parameter_just_beyond_its_bound_is_beyond_and_one_just_within_is_within(void **state) {
  judged world = judge_as("");
  measure(&world);
  for (size_t i = 0; i < world.computing.count; i++) {
    double bound = world.computing.apart[i];
    move(&world, i, 0.99);
    measure(&world);
    assert_true(world.computing.apart[i] == bound);
    assert_true(world.computing.distance[i] < bound && world.computing.distance[i] > 0.98 * bound);
    move(&world, i, 1.01);
    measure(&world);
    assert_true(world.computing.distance[i] > bound);
    move(&world, i, 0);
  }
  release(&world);
}

/* In bf16, with only the batch sharded, one parameter may be off by most of its bound, but not all together. */
static void all_parameters_moved_at_once_are_beyond_though_each_is_within(void **state) {
  judged world = judge_as("}\nprecision: {compute: bf16");
  measure(&world);
  move(&world, 2, 0.6);
  measure(&world);
  assert_true(world.computing.all_distance < world.computing.all_apart);
  for (size_t i = 0; i < world.computing.count; i++) move(&world, i, 0.6);
  measure(&world);
  for (size_t i = 0; i < world.computing.count; i++)
    assert_true(world.computing.distance[i] < world.computing.apart[i]);
  assert_true(world.computing.all_distance > world.computing.all_apart);
  release(&world);
}

/* The chance of a false alarm is shared by all judged numbers: more steps leave each a smaller chance and a wider
 * bound. */
static void a_longer_check_has_wider_bounds_and_no_more_false_alarms(void **state) {
  judged world = judge_as("");
  measure(&world);
  double bound = world.computing.apart[0], chance = world.computing.chance;
  assert_true(chance * 2 * (double)world.computing.count < AD_FALSE_ALARMS);
  ad_computing longer;
  must(ad_computing_create(world.run, 0, 2000, &longer));
  ad_computing_measure(&longer, world.run, world.reference, &world.ranks);
  assert_true(fabs(longer.chance * 1000 / chance - 1) < 1e-12);
  assert_true(longer.apart[0] > bound && longer.apart[0] < 100 * bound);
  ad_computing_destroy(&longer);
  release(&world);
}

/* ---- the bounds, computed again from the words of core/docs/dtypes.md ---- */

/* How drawn vectors are spread, in the document's letters: S, b, n, the norm of their mean, and M. */
typedef struct lie {
  double deviation, identical, directions, mean, error;
} lie;

/* `draws`: AD_DRAWS vectors of `numel` elements one after another. Contrast c: the mean of the first c + 1 draws minus
 * the next draw, scaled to the variance of one draw. */
static lie lie_of(const double *draws, size_t numel) {
  enum { FREE = AD_DRAWS - 1 };
  double gram[FREE][FREE] = {{0}}, of_mean = 0, of_all = 0, squares = 0, pairs = 0, across = 0, variance = 0;
  for (size_t k = 0; k < numel; k++) {
    double contrast[FREE], mean = 0;
    for (int d = 0; d < AD_DRAWS; d++) mean += draws[d * numel + k] / AD_DRAWS, of_all += pow(draws[d * numel + k], 2);
    of_mean += mean * mean;
    for (int c = 0; c < FREE; c++) {
      double before = 0;
      for (int d = 0; d <= c; d++) before += draws[d * numel + k] / (c + 1);
      contrast[c] = (before - draws[(c + 1) * numel + k]) / sqrt(1 + 1.0 / (c + 1));
    }
    for (int a = 0; a < FREE; a++)
      for (int b = 0; b < FREE; b++) gram[a][b] += contrast[a] * contrast[b];
  }
  for (int a = 0; a < FREE; a++) squares += gram[a][a] / FREE;
  for (int a = 0; a < FREE; a++) {
    variance += pow(gram[a][a] - squares, 2) / (FREE - 1);
    for (int b = 0; b < a; b++) pairs += gram[a][a] * gram[b][b], across += pow(gram[a][b], 2);
  }
  double by_angles = across > 0 ? pairs / across : INFINITY;
  double by_norms = variance > 0 ? 2 * squares * squares / variance : INFINITY;
  double directions = (by_angles < by_norms ? by_angles : by_norms) / 2;
  lie found = {.deviation = sqrt(squares), .mean = sqrt(of_mean), .error = sqrt(of_all / AD_DRAWS)};
  found.directions = directions < 1 ? 1 : directions > 1e6 ? 1e6 : directions;
  found.identical = of_mean > squares / AD_DRAWS ? sqrt(of_mean - squares / AD_DRAWS) : 0;
  return found;
}

/* The bound k hypot(q S, s b); q is at most `most`. */
static double drawn_apart(const judged *world, const lie *of, double k, double s, double most) {
  double numbers = 2 * ((double)world->computing.count + AD_LOSSES_MAX + AD_NORM_GROUPS_MAX + 3);
  double squares = (1 + 1.0 / 8) * ad_ratio_of_chance(1e-7 / numbers, of->directions, 7 * of->directions);
  squares = squares < most * most ? squares : most * most;
  return k * sqrt(squares * of->deviation * of->deviation + s * s * of->identical * of->identical);
}

/* The bound's fixed part: 2 u ||sum|a_i|||, or 1e-12 of the gradient's norm if that is more, plus w. */
static double spared(const judged *world, size_t i, double u) {
  const double *ref = ad_reference_gradient(world->reference, i)->data;
  const double *exact = ad_reference_exact_gradient(world->reference, i)->data;
  size_t numel = numel_of(world->reference, i);
  double rounded = 2 * u * ad_norm_of(world->ranks.sizes.full[i].data, numel), comm_rounding = 0;
  double step = sqrt(12 / (double)numel), least = 1e-12 * ad_norm_of(ref, numel);
  for (size_t k = 0; k < numel; k++) comm_rounding += pow(ref[k] - exact[k], 2);
  return (rounded > least ? rounded : least) + (step > 1.0 / 3 ? step : 1.0 / 3) * sqrt(comm_rounding);
}

static double *draws_of(const judged *world, size_t i) {
  size_t numel = numel_of(world->reference, i);
  double *draws = calloc(AD_DRAWS * numel, sizeof *draws);
  for (int d = 0; d < AD_DRAWS; d++)
    for (size_t k = 0; k < numel; k++)
      draws[d * numel + k] = ad_draws_deviation(ad_reference_draws(world->reference), i, d)[k];
  return draws;
}

static void nearly(double found, double expected) {
  if (fabs(found - expected) > 1e-9 * fabs(expected)) fail_msg("%.17g, not %.17g", found, expected);
}

/* Compares all bounds with the document's. u: unit roundoff of the compute dtype; k, s: factors of one parameter's
 * bound; s_of_all, most: s and the largest q of all gradients together. */
static void hold_to_the_words(judged *world, double u, double k, double s, double s_of_all, double most) {
  ad_computing *c = &world->computing;
  size_t total = 0;
  measure(world);
  for (size_t i = 0; i < c->count; i++) total += numel_of(world->reference, i);
  double *all = calloc(AD_DRAWS * total, sizeof *all);
  double allowed = 0, norms = 0, more = 0, distances = 0;
  for (size_t i = 0, at = 0; i < c->count; i++) {
    size_t numel = numel_of(world->reference, i);
    double *draws = draws_of(world, i), norm = norm_of(world->reference, i);
    lie of = lie_of(draws, numel);
    nearly(c->apart[i], drawn_apart(world, &of, k, s, INFINITY) + spared(world, i, u));
    nearly(c->allowed[i], of.mean + c->apart[i]);
    nearly(c->spread[i].error, of.error);
    allowed += pow(c->allowed[i], 2);
    norms += norm * norm;
    if (of.error > 0) {
      more += pow(spared(world, i, u) / of.error, 2);
      distances += pow(c->distance[i] / of.error, 2);
      for (int d = 0; d < AD_DRAWS; d++)
        for (size_t n = 0; n < numel; n++) all[d * total + at + n] = draws[d * numel + n] / of.error;
    }
    at += numel;
    free(draws);
  }
  lie of = lie_of(all, total);
  nearly(c->all_apart, drawn_apart(world, &of, k, s_of_all, most) + sqrt(more));
  nearly(c->all_distance, sqrt(distances));
  nearly(c->relative, sqrt(allowed / norms));
  free(all);
}

static ad_recipe *pools_with_comm_dtypes(void) {
  ad_recipe *recipe = NULL;
  const char *sets[] = {"placement=colocated", "comm_dtype={values: bf16, gradients: bf16}"};
  must(ad_recipe_read(AD_TEST_SOURCE "/recipes/pools-1.yaml", sets, 2, &recipe));
  return recipe;
}

static void what_gradients_may_be_off_by_is_what_the_documents_say(void **state) {
  judged single = judge_as(""), brain = judge_as("}\nprecision: {compute: bf16");
  judged wide = judge_as("}\nprecision: {compute: f64, param: f32"),
         comm_rounding = judge_recipe(pools_with_comm_dtypes());
  hold_to_the_words(&single, 0x1p-24, 2, 1, 1, INFINITY);
  hold_to_the_words(&brain, 0x1p-24, 1, 1, 0.3, 5);
  hold_to_the_words(&wide, 0x1p-53, 2, 1, 1, INFINITY);
  hold_to_the_words(&comm_rounding, 0x1p-24, 2, 1, 1, INFINITY);
  int crossed = 0;
  for (size_t i = 0; i < comm_rounding.computing.count; i++) crossed += comm_rounding.computing.comm_rounding[i] > 0;
  assert_true(crossed > 0);
  for (size_t i = 0; i < single.computing.count; i++) assert_true(single.computing.comm_rounding[i] == 0);
  release(&single);
  release(&brain);
  release(&wide);
  release(&comm_rounding);
}

/* Tests ad_formulas_sharded: ranks that only cut the batch round at the same places as one process. On backend dry. */
static void what_a_mesh_shards_decides_how_ranks_may_round(void **state) {
  static const struct {
    const char *recipe, *mesh, *view; /* NULL: the recipe's own */
    int shards;
  } cases[] = {{"gpt-dp", NULL, NULL, 0},
               {"hsdp-3x2", NULL, NULL, 0},
               {"gpt-tp", NULL, NULL, 1},
               {"gpt-cp", NULL, NULL, 1},
               {"pools-10", NULL, NULL, 0}, /* its mesh has block=2 */
               {"pools-ragged", NULL, NULL, 0},
               {"ocr-disjoint", "mesh={encoder: \"dp=2\", model: \"dp_replicate=2 dp_shard=2\"}", NULL, 0},
               {"moe-balance", "mesh=dp_shard=4", "views.sparse=efsdp=4 ep=1 etp=1", 0},
               {"moe-16", "mesh=dp_shard=4", "views.sparse=efsdp=2 ep=2 etp=1", 1},
               {"moe-16", "mesh=dp_shard=4", "views.sparse=efsdp=4 ep=1 etp=1", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int brain = 0; brain < 2; brain++) {
      char path[256];
      const char *sets[] = {brain ? "precision.compute=bf16" : "precision.compute=f32", cases[i].mesh, cases[i].view};
      ad_run_options options = {.size = sizeof options, .quiet = 1};
      ad_recipe *recipe;
      ad_comm *comm;
      ad_run *run;
      ad_computing computing;
      int64_t world;
      snprintf(path, sizeof path, AD_TEST_SOURCE "/recipes/%s.yaml", cases[i].recipe);
      must(ad_recipe_read(path, sets, cases[i].view ? 3 : cases[i].mesh ? 2 : 1, &recipe));
      must(ad_recipe_world(recipe, &world));
      must(ad_comm_open_dry(brain ? world - 1 : 0, world, &comm));
      must(ad_run_create(comm, recipe, &options, &run));
      int shards = -1;
      must(ad_formulas_sharded(run, &shards));
      assert_int_equal(shards, cases[i].shards);
      must(ad_computing_create(run, shards, 1, &computing));
      int identical = brain && !cases[i].shards;
      assert_true(computing.latitude.coarser == (identical ? 1 : 2) && computing.latitude.shared == 1);
      assert_true(computing.latitude.shared_all == (identical ? 0.3 : 1));
      ad_computing_destroy(&computing);
      ad_run_destroy(run);
      ad_comm_close(comm);
      ad_recipe_destroy(recipe);
    }
  }
}

/* A parameter without any rounding error has nothing to measure a distance in, so the comparison of all parameters
 * leaves it out. */
static void a_parameter_in_which_nothing_rounds_is_none_of_those_side_by_side(void **state) {
  judged world = judge_as("");
  measure(&world);
  double before = world.computing.all_apart;
  for (int d = 0; d < AD_DRAWS; d++)
    memset((float *)ad_draws_deviation(ad_reference_draws(world.reference), 1, d), 0,
           numel_of(world.reference, 1) * sizeof(float));
  measure(&world);
  assert_true(world.computing.spread[1].error == 0 && isfinite(world.computing.apart[1]));
  assert_true(world.computing.all_apart > 0 && world.computing.all_apart < 10 * before);
  assert_true(isfinite(world.computing.all_distance) && isfinite(world.computing.relative));
  release(&world);
}

static void a_loss_may_be_off_by_its_draws_or_by_what_all_gradients_may_be(void **state) {
  static const char *const precisions[] = {"", "}\nprecision: {compute: bf16"};
  for (int p = 0; p < 2; p++) {
    judged world = judge_as(precisions[p]);
    measure(&world);
    for (int trial = 0; trial < 8; trial++) {
      double losses[AD_DRAWS], off[AD_DRAWS], least = 3 * world.computing.relative;
      for (int d = 0; d < AD_DRAWS; d++) losses[d] = -3 + (off[d] = least * trial * (0.2 + 0.1 * (d * d % 5)));
      for (int d = 0; d < AD_DRAWS; d++) off[d] = losses[d] + 3;
      lie of = lie_of(off, 1);
      double bound = of.mean + drawn_apart(&world, &of, p ? 1 : 2, 1, INFINITY);
      nearly(ad_computing_of_loss(&world.computing, losses, -3, 3), bound > least ? bound : least);
      assert_int_equal(bound > least, trial > 0);
    }
    release(&world);
  }
}

static void a_loss_is_held_to_its_own_draws(void **state) {
  judged world = judge_as("");
  measure(&world);
  double steady[AD_DRAWS], loose[AD_DRAWS], least = world.computing.relative * 2;
  for (int d = 0; d < AD_DRAWS; d++) steady[d] = 2, loose[d] = 2 + (d % 2 ? 1e-3 : -1e-3);
  assert_true(fabs(ad_computing_of_loss(&world.computing, steady, 2, 2) / least - 1) < 1e-12);
  /* a small loss beside a large one may be off by as much as the large one */
  assert_true(fabs(ad_computing_of_loss(&world.computing, steady, 2, 200) / (100 * least) - 1) < 1e-12);
  assert_true(fabs(ad_computing_of_loss(&world.computing, steady, 2, 0.02) / least - 1) < 1e-12);
  double none[AD_DRAWS] = {0};
  assert_true(ad_computing_of_loss(&world.computing, none, 0, 200) == 0);
  double bound = ad_computing_of_loss(&world.computing, loose, 2, 2);
  assert_true(bound > 1e-2 && bound < 2);
  release(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_draw_rounds_otherwise_and_none_computes_otherwise),
      cmocka_unit_test(draws_are_the_same_in_every_run),
      cmocka_unit_test(pieces_that_round_lie_further_apart),
      cmocka_unit_test(the_ranks_own_program_is_within_what_draws_allow),
      cmocka_unit_test(a_parameter_just_beyond_its_bound_is_beyond_and_one_just_within_is_within),
      cmocka_unit_test(all_parameters_moved_at_once_are_beyond_though_each_is_within),
      cmocka_unit_test(a_longer_check_has_wider_bounds_and_no_more_false_alarms),
      cmocka_unit_test(what_gradients_may_be_off_by_is_what_the_documents_say),
      cmocka_unit_test(what_a_mesh_shards_decides_how_ranks_may_round),
      cmocka_unit_test(a_parameter_in_which_nothing_rounds_is_none_of_those_side_by_side),
      cmocka_unit_test(a_loss_may_be_off_by_its_draws_or_by_what_all_gradients_may_be),
      cmocka_unit_test(a_loss_is_held_to_its_own_draws),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
