/* Tests that groups of parameters are updated as torch.optim's Muon, AdamW and SGD update them (generate_optimizers.py),
 * and that frozen parameters stay as they are. Every step starts from PyTorch's own weights and states: Muon's iteration
 * multiplies a small singular value by up to 485, so rounding errors of one step would grow in the next ones. Free runs
 * are compared too, with a bound that only a mistake exceeds. */
#include <unistd.h>
#include "addend/optim.h"
#include "training.h"

#define SHARDS_SEQUENCE "model.sequence_parallel=true"
#define GATHERED "optimizer.muon.way=gathered"
#define DEALT "optimizer.muon.way=dealt"
#define TO_REPLICAS "optimizer.muon.way=dealt_to_replicas"

/* The bound of a free run's weights after 20 steps; the worst measured is 4.1e-14. */
static const double free_bound = 1e-9;

static const world dense[] = {
    {1, {"mesh=dp=1"}},
    {3, {"mesh=dp_replicate=3", "shard.zero=0"}},
    {3, {"mesh=dp_shard=3", "shard.zero=3", DEALT}},
    {4, {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3"}},
    {4, {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3", GATHERED}},
    {4, {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3", DEALT}},
    {4, {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3", TO_REPLICAS}},
    {6, {"mesh=dp_replicate=3 dp_shard=2", "shard.zero=1"}},
    {6, {"mesh=dp_replicate=3 dp_shard=2", "shard.zero=1", TO_REPLICAS}},
    {4, {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3", "shard.outer_zero=1", DEALT}},
    {6, {"mesh=dp_replicate=3 dp_shard=2", "shard.zero=2", "shard.outer_zero=1", GATHERED}},
    {2, {"mesh=tp=2", GATHERED}},
    {2, {"mesh=tp=2", DEALT, SHARDS_SEQUENCE}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=3", DEALT}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=3", TO_REPLICAS, SHARDS_SEQUENCE}},
    {2, {"mesh=pp=2"}},
    {4, {"mesh=pp=2 dp_shard=2", "shard.zero=3"}},
    {0},
};
static const world sparse[] = {
    {1, {"mesh=dp=1"}},
    {3, {"mesh=dp_shard=3", "shard.zero=3"}},
    {2, {"mesh=dp_shard=2", "shard.zero=0", "views.sparse=ep=2 etp=1"}},
    {4, {"mesh=dp_shard=4", "shard.zero=3", "views.sparse=efsdp=2 ep=2 etp=1"}},
    {4, {"mesh=dp_shard=4", "shard.zero=3", "views.sparse=efsdp=2 ep=2 etp=1", GATHERED}},
    {2, {"mesh=tp=2", "views.sparse=efsdp=1 ep=2 etp=1"}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=3", "views.sparse=efsdp=1 ep=2 etp=2", DEALT}},
    {2, {"mesh=pp=2 dp_shard=1"}},
    {0},
};
/* Meshes for frozen parameters, without keys of Muon. */
static const world frozen[] = {
    {1, {"mesh=dp=1"}},
    {3, {"mesh=dp_replicate=3", "shard.zero=0"}},
    {4, {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3"}},
    {2, {"mesh=dp_shard=2", "shard.zero=2"}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=3", SHARDS_SEQUENCE}},
    {2, {"mesh=pp=2"}},
    {3, {"mesh=pp=3"}},
    {0},
};

/* ---- starting a step from PyTorch's weights and states ---- */

/* An array of a parameter, and the name of PyTorch's numbers for it after `step` steps. */
typedef struct kept {
  ad_array *array;
  char name[192];
} kept;

/* Finds the value (part 0) or a state of a parameter that trains. Returns 0 if the optimizer has no such state. */
static int kept_of(const job *j, ad_run *run, size_t i, int part, int step, kept *out) {
  const char *name = param_of(run, i).name;
  *out = (kept){.array = ad_run_part(run, i, part ? (ad_param_part)(AD_PART_STATE + part - 1) : AD_PART_VALUE)};
  snprintf(out->name, sizeof out->name, "weight.%d:%s", step, name);
  if (!part) return 1;
  int found = 0;
  for (int kind = 0; kind < AD_OPTIMIZER_COUNT && !found; kind++) {
    const char *state = ad_optimizer_state_name((ad_optimizer_kind)kind, (size_t)part - 1);
    if (!state) continue;
    snprintf(out->name, sizeof out->name, "state.%d:%s.%s", step, state, name);
    found = ad_safetensors_find(j->expected, out->name) != NULL;
  }
  CHECK(found == (out->array != NULL));
  return found;
}

static void write_kept(const job *j, ad_comm *comm, ad_run *run, size_t i, int part, int step) {
  kept to;
  size_t n;
  if (!kept_of(j, run, i, part, step, &to) || !ad_run_param_at(run, i).held) return;
  double *expected = numbers(j->expected, to.name, &n);
  CHECK(expected && n == (size_t)ad_shape_numel(&to.array->shape));
  ad_layout everywhere = ad_layout_all(to.array->layout.mesh, AD_R);
  ad_array full = ad_array_describe(comm, AD_F64, &to.array->shape, &everywhere);
  full.data = expected;
  CHECK_OK(ad_array_from_full(comm, &full, to.array));
  free(expected);
}

static double judge_kept(const job *j, ad_run *run, size_t i, int part, int step) {
  kept found;
  if (!kept_of(j, run, i, part, step, &found)) return 0;
  double worst = worst_of(j, run, found.array, found.name, 0);
  judge(j, part ? "state" : "weight", found.name, step, worst);
  return worst;
}

static void restart(const job *j, ad_comm *comm, ad_run *run, int step) {
  for (size_t i = 0; i < params_of(run); i++)
    for (int part = 0; part <= AD_OPTIMIZER_STATES_MAX && param_of(run, i).gradient; part++)
      write_kept(j, comm, run, i, part, step);
  CHECK_OK(ad_run_refresh(run, AD_VALUES_WRITTEN));
}

/* ---- one rank's training ---- */

static int train_restarted(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  worst_errors worst = {0};
  double updated = 0;
  ad_run *run;
  CHECK_OK(ad_run_create(comm, j->recipe, &options, &run));
  for (int step = 0; step < STEPS; step++) {
    if (step) restart(j, comm, run, step);
    take_step(j, run, step, &worst);
    for (size_t i = 0; i < params_of(run); i++)
      for (int part = 0; part <= AD_OPTIMIZER_STATES_MAX && param_of(run, i).gradient; part++)
        updated = fmax(updated, judge_kept(j, run, i, part, step + 1));
  }
  judge_params(j, run, "weight", STEPS);
  if (!ad_comm_rank(comm)) {
    char where[256];
    printf("%s, %s, restarted: worst error of the loss %.1e, norm %.1e, gradients %.1e, weights and states %.1e\n",
           j->name, words_of(j->world, where, sizeof where), worst.loss, worst.norm, worst.gradient, updated);
    fflush(stdout);
  }
  ad_run_destroy(run);
  return 0;
}

static double worst_weight(const job *j, ad_run *run, const char *prefix) {
  double worst = 0, largest_weight = largest_of(j, run, prefix);
  for (size_t i = 0; i < params_of(run); i++) {
    char name[192];
    snprintf(name, sizeof name, "%s%s", prefix, param_of(run, i).name);
    worst = fmax(worst, worst_of(j, run, param_of(run, i).value, name, largest_weight));
  }
  return worst;
}

static int train_freely(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_run *run;
  CHECK_OK(ad_run_create(comm, j->recipe, &options, &run));
  for (int step = 0; step < STEPS; step++) {
    ad_step_report report;
    CHECK_OK(ad_run_step(run, step, &report));
  }
  double worst = worst_weight(j, run, "weight.20:");
  judge_by(free_bound, j, "weight of", "a free run", STEPS, worst);
  if (!ad_comm_rank(comm)) {
    char where[256];
    printf("%s, %s, free: worst error of the weights after %d steps %.1e\n", j->name,
           words_of(j->world, where, sizeof where), STEPS, worst);
    fflush(stdout);
  }
  ad_run_destroy(run);
  return 0;
}

static void use_restarted(job *j) { run_ranks(j->world->ranks, train_restarted, j); }
static void use_freely(job *j) { run_ranks(j->world->ranks, train_freely, j); }

/* Trains on half of the worlds of the list, drawn by a seed: restarted, and freely. */
static void optimize_on(const char *name, const world *list) {
  char what[128];
  int count = 0;
  while (list[count].ranks) count++;
  snprintf(what, sizeof what, "worlds of %s", name);
  draw drawn = draw_cases(what, count, 0, (count + 1) / 2);
  for (int i = 0; i < count; i++) {
    if (!is_drawn(&drawn, i)) continue;
    with_fixture(name, &list[i], use_restarted);
    with_fixture(name, &list[i], use_freely);
  }
}

/* ---- bf16 ---- */

/* PyTorch rounds a direction to bf16 and orthogonalises it in bf16, and rounds at other places there, so that neither
 * result is nearer to the unrounded one. Returns the distance of the weights to those after PyTorch's rounded step or,
 * if `to` is "weight.1:", after its step without the rounding, as a multiple of the distance between these two. */
static double distance_in_roundings(const job *j, const char *name, const float *found, const char *to) {
  char rounded[192], exact[192];
  int to_exact = !strcmp(to, "weight.1:");
  size_t n, count;
  snprintf(rounded, sizeof rounded, "rounded.1:%s", name);
  snprintf(exact, sizeof exact, "weight.1:%s", name);
  double *after = numbers(j->expected, rounded, &n), *without = numbers(j->expected, exact, &count), own = 0,
         theirs = 0;
  CHECK(after && without && n == count);
  for (size_t e = 0; e < n; e++) {
    double other = to_exact ? without[e] : after[e];
    own += (found[e] - other) * (found[e] - other);
    theirs += (without[e] - after[e]) * (without[e] - after[e]);
  }
  free(after);
  free(without);
  return sqrt(own / theirs);
}

static int step_in_bf16(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options};
  ad_step_report report;
  ad_run *run;
  size_t matrices = 0;
  CHECK_OK(ad_run_create(comm, j->recipe, &options, &run));
  CHECK_OK(ad_run_step(run, 0, &report));
  for (size_t i = 0; i < params_of(run); i++) {
    param p = param_of(run, i);
    if (!has_numbers(j, "rounded.1:", p.name)) continue;
    CHECK(p.value->dtype == AD_F32 && p.value->data);
    double distance = distance_in_roundings(j, p.name, p.value->data, "rounded.1:"),
           rounding = distance_in_roundings(j, p.name, p.value->data, "weight.1:");
    printf("%s in bf16: %.2g of what bf16 changes in PyTorch, and %.2g away from no bf16\n", p.name, distance,
           rounding);
    CHECK(distance < 3 && distance > 1e-3 && rounding > 0.1);
    matrices++;
  }
  CHECK(matrices == 14);
  ad_run_destroy(run);
  return 0;
}

static void use_bf16(job *j) { run_ranks(1, step_in_bf16, j); }

/* ---- tests ---- */

static void samples_are_those_that_the_documented_rule_draws(void **state) {
  static const char *const names[] = {"gpt-muon", "gpt-muon-rates", "moe-muon", "gpt-frozen"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) with_fixture(names[i], &dense[0], use_samples);
}
static void muon_with_every_default_updates_as_in_pytorch(void **state) { optimize_on("gpt-muon", dense); }
static void muon_with_every_key_beside_sgd_updates_as_in_pytorch(void **state) { optimize_on("gpt-muon-rates", dense); }
static void each_expert_is_a_matrix_as_in_pytorch(void **state) { optimize_on("moe-muon", sparse); }
static void muon_in_bf16_rounds_as_much_as_in_pytorch(void **state) {
  static const world in_bf16 = {1, {"mesh=dp=1", "optimizer.muon.dtype=bf16"}};
  with_fixture("gpt-muon", &in_bf16, use_bf16);
}
static void frozen_parameters_stay_and_the_others_train_as_in_pytorch(void **state) { train_on("gpt-frozen", frozen); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(samples_are_those_that_the_documented_rule_draws),
      cmocka_unit_test(muon_with_every_default_updates_as_in_pytorch),
      cmocka_unit_test(muon_with_every_key_beside_sgd_updates_as_in_pytorch),
      cmocka_unit_test(each_expert_is_a_matrix_as_in_pytorch),
      cmocka_unit_test(muon_in_bf16_rounds_as_much_as_in_pytorch),
      cmocka_unit_test(frozen_parameters_stay_and_the_others_train_as_in_pytorch),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // recipes name their files relative to this folder
  return cmocka_run_group_tests(tests, NULL, NULL);
}
