/* Tests that decompositions train as they do in PyTorch (generate_decompose.py): losses, gradients, weights and the
 * adversary's sources in every step, and the final result; on one rank, and on pools of any sizes, on disjoint or
 * shared ranks. */
#include <unistd.h>
#include <jansson.h>
#include "step/run.h"
#include "training.h"

#define POOLS(ci, block, blocks, adv) \
  "mesh={ci: \"dp=" #ci "\", blocks: \"block=" #block " dp=" #blocks "\", adv: \"dp=" #adv "\"}"

static const world on_one_rank[] = {{1, {POOLS(1, 1, 1, 1), "placement=colocated"}}, {0}};
static const world apart[] = {
    {3, {POOLS(1, 1, 1, 1), "placement=disjoint"}},
    {9, {POOLS(2, 2, 2, 3), "placement=disjoint"}},
    {8, {POOLS(4, 2, 1, 2), "placement=disjoint", "shard.zero=3"}},
    {0},
};
static const world together[] = {
    {2, {POOLS(2, 1, 2, 2), "placement=colocated", "shard.zero=0"}},
    {3, {POOLS(3, 2, 3, 3), "placement=colocated", "shard.zero=3"}},
    {0},
};

static const char *const names[] = {"decompose-plain", "decompose-annealed", "decompose-signs", "decompose-measured"};

static void samples_are_those_that_the_documented_rule_draws(void **state) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) with_fixture(names[i], on_one_rank, use_samples);
}

/* ---- a decomposition's final result ---- */

// The bound of the fit of random components, whose error grows with the square of V's condition number.
static const double fit_bound = 1e-9;
enum { FOUND_MAX = 256, SITES_MAX = 16, USED = 8, SHOWN = 4 };

static double number_at(const json_t *in, const char *name) {
  const json_t *number = json_object_get(in, name);
  CHECK(json_is_number(number));
  return json_number_value(number);
}

static void judge_found(const job *j, const char *name, const double *found, size_t count, double allowed) {
  char of[64];
  size_t n;
  snprintf(of, sizeof of, "found.%s", name);
  double *expected = numbers(j->expected, of, &n);
  CHECK(expected && n == count);
  double scale = largest(expected, n) > 0 ? largest(expected, n) : 1,
         worst = worst_difference(found, expected, n) / scale;
  judge_by(allowed, j, "the", of, STEPS, worst);
  free(expected);
}

static void judge_passes(const job *j, const json_t *document, const char *name, int first) {
  static const char *const passes[] = {"target", "masked", "rounded", "stochastic", "unmasked", "random", "largest"};
  enum { PASSES = sizeof passes / sizeof *passes };
  double found[PASSES];
  for (int i = first; i < PASSES; i++) found[i] = number_at(json_object_get(document, name), passes[i]);
  judge_found(j, name, found + first, (size_t)(PASSES - first), fit_bound);
}

/* Expected numbers of all components; a result lists only some components. */
typedef struct expected_components {
  double *importance, *frequency, *threshold;
} expected_components;

static expected_components components_of(const job *j) {
  size_t n;
  return (expected_components){numbers(j->expected, "found.importance", &n),
                               numbers(j->expected, "found.above_zero", &n),
                               numbers(j->expected, "found.above_threshold", &n)};
}

static void judge_one(const json_t *reported, const expected_components *of, int64_t component) {
  CHECK(fabs(number_at(reported, "importance") - of->importance[component]) < bound);
  CHECK(fabs(number_at(reported, "frequency") - of->frequency[component]) < bound);
}

// Checks the counts of components [first, first + count).
static void judge_active(const json_t *active, const expected_components *of, int64_t first, int64_t count) {
  double above_zero = 0, above_threshold = 0, alive = 0;
  for (int64_t c = first; c < first + count; c++) {
    above_zero += of->frequency[c];
    above_threshold += of->threshold[c];
    alive += of->frequency[c] > 0;
  }
  CHECK(fabs(number_at(active, "above_zero") - above_zero) < bound * (double)count);
  CHECK(fabs(number_at(active, "above_threshold") - above_threshold) < bound * (double)count);
  CHECK(number_at(active, "alive") == alive);
}

static void judge_used(const json_t *used, const expected_components *of, const double *expected, int64_t first) {
  size_t count = 0;
  while (count < USED && expected[count] >= 0) count++;
  CHECK(json_array_size(used) == count);
  for (size_t i = 0; i < count; i++) {
    const json_t *one = json_array_get(used, i);
    CHECK(number_at(one, "component") == expected[i]);
    judge_one(one, of, first + (int64_t)expected[i]);
  }
}

static void judge_sites(const job *j, const json_t *document, const expected_components *of) {
  size_t n, sites = json_array_size(json_object_get(document, "sites"));
  double errors[SITES_MAX + 1], *used = numbers(j->expected, "found.used", &n);
  int64_t first = 0;
  CHECK(sites <= SITES_MAX && used && n == sites * USED);
  for (size_t s = 0; s < sites; s++) {
    const json_t *site = json_array_get(json_object_get(document, "sites"), s);
    int64_t components = (int64_t)number_at(site, "components");
    errors[s] = number_at(site, "relative_error");
    judge_active(json_object_get(site, "active"), of, first, components);
    judge_used(json_object_get(site, "used"), of, used + s * USED, first);
    first += components;
  }
  errors[sites] = number_at(document, "relative_error");
  judge_found(j, "relative_error", errors, sites + 1, bound);
  judge_active(json_object_get(document, "active"), of, 0, first);
  free(used);
}

static int64_t first_of(const json_t *document, const char *name, size_t *site) {
  int64_t first = 0;
  const json_t *sites = json_object_get(document, "sites");
  for (*site = 0; strcmp(json_string_value(json_object_get(json_array_get(sites, *site), "name")), name) != 0; ++*site)
    first += (int64_t)number_at(json_array_get(sites, *site), "components");
  return first;
}

/* The listed components are sorted by site, and within a site by how much they vary. */
static void judge_shown(const job *j, const json_t *document, const expected_components *of) {
  const json_t *shown = json_object_get(document, "shown");
  size_t n, site, of_site[SITES_MAX] = {0}, wanted = 0;
  double *expected = numbers(j->expected, "found.shown", &n);
  CHECK(expected);
  for (size_t i = 0; i < n; i++) wanted += expected[i] >= 0;
  CHECK(json_array_size(shown) == wanted);
  for (size_t i = 0; i < wanted; i++) {
    const json_t *one = json_array_get(shown, i);
    int64_t first = first_of(document, json_string_value(json_object_get(one, "site")), &site);
    double component = number_at(one, "component");
    CHECK(of_site[site] < SHOWN && component == expected[site * SHOWN + of_site[site]++]);
    judge_one(one, of, first + (int64_t)component);
  }
  free(expected);
}

static void judge_document(const job *j, const json_t *document) {
  expected_components of = components_of(j);
  double positions = number_at(document, "positions"), counted = number_at(document, "counted");
  CHECK(of.importance && of.frequency && of.threshold);
  judge_found(j, "positions", &positions, 1, bound);
  judge_found(j, "counted", &counted, 1, bound);
  judge_passes(j, document, "cross_entropy", 0);
  judge_passes(j, document, "divergence", 1);
  judge_sites(j, document, &of);
  judge_shown(j, document, &of);
  free(of.importance);
  free(of.frequency);
  free(of.threshold);
}

static void judge_what_is_shown(const job *j, ad_run *run) {
  char *text;
  CHECK_OK(ad_run_show(run, &text));
  int is_expected = ad_safetensors_find(j->expected, "found.positions") != NULL;
  CHECK(!text == (!is_expected || ad_comm_rank(ad_run_comm(run)) != 0));
  if (!text) return;
  json_t *document = json_loads(text, 0, NULL);
  CHECK(document);
  judge_document(j, document);
  json_decref(document);
  free(text);
}

/* ---- training ---- */

static void train_everywhere(const char *name) {
  judge_at_end = judge_what_is_shown;
  train_on(name, on_one_rank);
  train_on(name, apart);
  train_on(name, together);
}

static void with_every_default_as_in_pytorch(void **state) { train_everywhere("decompose-plain"); }
static void with_a_power_that_goes_and_shared_sources_as_in_pytorch(void **state) {
  train_everywhere("decompose-annealed");
}
static void with_sources_that_go_by_signs_as_in_pytorch(void **state) { train_everywhere("decompose-signs"); }
static void with_losses_measured_alone_as_in_pytorch(void **state) { train_everywhere("decompose-measured"); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(samples_are_those_that_the_documented_rule_draws),
      cmocka_unit_test(with_every_default_as_in_pytorch),
      cmocka_unit_test(with_a_power_that_goes_and_shared_sources_as_in_pytorch),
      cmocka_unit_test(with_sources_that_go_by_signs_as_in_pytorch),
      cmocka_unit_test(with_losses_measured_alone_as_in_pytorch),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // recipes name their files relative to this folder
  return cmocka_run_group_tests(tests, NULL, NULL);
}
