/* GPT trains as it does in PyTorch: each fixture's recipe is run again in f64, on one rank, on replicas and with cut
 * parameters, heads, vocabulary and sequence, and every number is held against those that PyTorch computed
 * (generate.py). What a distributed run and its reference in one process share can only be seen here: samples, targets,
 * masks, positions, formulas, options, the optimizer.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>
#include "addend/model.h"
#include "addend/train.h"
#include "numbers.h"
#include "ranks.h"

#define must(call) assert_int_equal((call), AD_OK)

// What the proof allows a gradient. The weights after 20 steps hold it too (2e-14 is the worst measured): AdamW
// divides each element by its own size, so an error grows only where a gradient is nearly as small as its rounding, and
// there epsilon is the larger divisor.
static const double bound = 1e-12;
// As in the proof: a parameter whose numbers are all tiny beside the model's is judged by those.
static const double smallest_scale = 1e-6;
enum { STEPS = 20, STEPS_WITH_GRADIENTS = 2 };

enum { SETTINGS_MAX = 4 };

/* The recipe's keys that are set: mesh, storage and how the model is cut. A list of worlds ends with one without ranks.
 */
typedef struct world {
  int64_t ranks;
  const char *settings[SETTINGS_MAX];
} world;

#define CUTS_SEQUENCE "model.sequence_parallel=true"
#define CONVERTS_NORMS "model.convert_norms=true"
#define GATHERS_KEYS "model.gather_keys=true"

static const world over_data[] = {
    {1, {"mesh=dp=1"}},
    {3, {"mesh=dp_replicate=3", "shard.zero=0"}},
    {4, {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3"}},
    {0},
};
static const world over_two_parts[] = {
    {2, {"mesh=tp=2"}},
    {2, {"mesh=tp=2", CUTS_SEQUENCE}},
    {4, {"mesh=dp_shard=2 tp=2", "shard.zero=3", CUTS_SEQUENCE, CONVERTS_NORMS}},
    {0},
};
static const world over_three_parts[] = {
    {3, {"mesh=tp=3"}},
    {3, {"mesh=tp=3", CUTS_SEQUENCE}},
    {3, {"mesh=tp=3", CUTS_SEQUENCE, CONVERTS_NORMS}},
    {0},
};
static const world over_four_parts[] = {
    {4, {"mesh=tp=4"}},
    {4, {"mesh=tp=4", CUTS_SEQUENCE}},
    {8, {"mesh=cp=2 tp=4", CUTS_SEQUENCE, CONVERTS_NORMS}},
    {0},
};
static const world over_the_sequence[] = {
    {2, {"mesh=cp=2"}},
    {3, {"mesh=cp=3"}},
    {2, {"mesh=cp=2", GATHERS_KEYS}},
    {3, {"mesh=cp=3", GATHERS_KEYS}},
    {4, {"mesh=dp_shard=2 cp=2", "shard.zero=3"}},
    {0},
};
static const world over_everything[] = {
    {8, {"mesh=dp_shard=2 cp=2 tp=2", "shard.zero=0"}},
    {8, {"mesh=dp_shard=2 cp=2 tp=2", "shard.zero=3", CUTS_SEQUENCE}},
    {8, {"mesh=dp_replicate=2 cp=2 tp=2", "shard.zero=0", CUTS_SEQUENCE, CONVERTS_NORMS}},
    {8, {"mesh=dp_shard=2 cp=2 tp=2", "shard.zero=3", GATHERS_KEYS}},
    {0},
};

typedef struct job {
  const char *name;
  const world *world;
  const ad_recipe *recipe;
  const ad_safetensors *expected;
} job;

static const ad_text_options *text_of(const ad_recipe *recipe) {
  return &((const ad_gpt_options *)recipe->options)->decoder.data;
}

/* ---- parameters of a run ---- */

typedef struct param {
  const ad_param_spec *spec;
  const ad_array *value, *gradient;
} param;

static size_t params_of(ad_run *run) { return ad_run_param_count(run); }
static param param_of(ad_run *run, size_t i) {
  return (param){ad_run_param_at(run, i).spec, ad_run_part(run, i, AD_PART_VALUE),
                 ad_run_part(run, i, AD_PART_GRADIENT)};
}

/* ---- comparing: in a rank ---- */

static const char *words_of(const world *w, char *words, size_t size) {
  size_t used = 0;
  words[0] = 0;
  for (int i = 0; i < SETTINGS_MAX && w->settings[i] && used < size; i++)
    used += (size_t)snprintf(words + used, size - used, "%s%s", i ? " " : "", w->settings[i]);
  return words;
}

// Says which number is off, on which mesh.
static void judge(const job *j, const char *what, const char *name, int step, double worst) {
  char words[512], where[256];
  if (worst < bound) return;
  snprintf(words, sizeof words, "%s, %s: %s %s of step %d is off by %.3g", j->name,
           words_of(j->world, where, sizeof where), what, name, step, worst);
  rank_check_failed(__FILE__, __LINE__, words);
}

static double judge_number(const job *j, const char *name, int step, double found) {
  size_t n;
  double *expected = numbers(j->expected, name, &n);
  CHECK(expected && n > (size_t)step);
  double scale = fabs(expected[step]) > 0 ? fabs(expected[step]) : 1, worst = fabs(found - expected[step]) / scale;
  judge(j, "the", name, step, worst);
  free(expected);
  return worst;
}

/* ---- whole parameters against PyTorch's ---- */

// Of the model's gradients or weights as PyTorch has them: "gradient.0:".
static double largest_of(const job *j, ad_run *run, const char *prefix) {
  double most = 0;
  for (size_t i = 0; i < params_of(run); i++) {
    char name[160];
    size_t n;
    snprintf(name, sizeof name, "%s%s", prefix, param_of(run, i).spec->name);
    double *expected = numbers(j->expected, name, &n);
    CHECK(expected);
    most = fmax(most, largest(expected, n));
    free(expected);
  }
  return most;
}

static double worst_of(const job *j, ad_run *run, const ad_array *array, const char *name, double model_largest) {
  size_t n;
  double *expected = numbers(j->expected, name, &n);
  ad_array whole = {.data = malloc((n + 1) * sizeof(double))};
  CHECK(expected && whole.data && n == (size_t)ad_shape_numel(&array->shape) && array->dtype == AD_F64);
  CHECK(ad_shape_equal(&ad_safetensors_find(j->expected, name)->shape, &array->shape));
  CHECK_OK(ad_array_whole(ad_run_comm(run), array, AD_HERE, &whole));
  double scale = fmax(largest(expected, n), smallest_scale * model_largest);
  double worst = worst_difference(whole.data, expected, n) / scale;
  free(whole.data);
  free(expected);
  return worst;
}

static double judge_params(const job *j, ad_run *run, const char *what, int step) {
  char prefix[32], name[160];
  double worst = 0;
  snprintf(prefix, sizeof prefix, "%s.%d:", what, step);
  double model_largest = largest_of(j, run, prefix);
  for (size_t i = 0; i < params_of(run); i++) {
    param p = param_of(run, i);
    snprintf(name, sizeof name, "%s%s", prefix, p.spec->name);
    double own = worst_of(j, run, !strcmp(what, "weight") ? p.value : p.gradient, name, model_largest);
    judge(j, what, p.spec->name, step, own);
    worst = fmax(worst, own);
  }
  return worst;
}

/* ---- one rank's training ---- */

typedef struct worst_errors {
  double loss, norm, gradient, weight;
} worst_errors;

static void take_step(const job *j, ad_run *run, int step, worst_errors *worst) {
  ad_step_report report;
  CHECK_OK(ad_run_step(run, step, &report));
  const ad_safetensor *count = ad_safetensors_find(j->expected, "count");
  CHECK(count && count->dtype == AD_I64 && count->bytes == STEPS * sizeof(int64_t));
  CHECK(!memcmp((const char *)count->data + (size_t)step * sizeof report.count, &report.count, sizeof report.count));
  if (step < STEPS_WITH_GRADIENTS) worst->gradient = fmax(worst->gradient, judge_params(j, run, "gradient", step));
  worst->loss = fmax(worst->loss, judge_number(j, "loss", step, report.loss));
  worst->norm = fmax(worst->norm, judge_number(j, "norm", step, report.norm));
  judge_number(j, "lr", step, report.lr);
}

static void judge_held_out(const job *j, ad_run *run) {
  double loss;
  if (!(text_of(j->recipe)->held_out > 0)) return;
  CHECK_OK(ad_run_loss(run, 0, 1, &loss));
  judge_number(j, "held_out.loss", 0, loss);
}

static int train(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  worst_errors worst = {0};
  ad_run *run;
  CHECK_OK(ad_run_create(comm, j->recipe, &options, &run));
  judge_held_out(j, run);
  for (int step = 0; step < STEPS; step++) take_step(j, run, step, &worst);
  worst.weight = judge_params(j, run, "weight", STEPS);
  if (!ad_comm_rank(comm)) {
    char where[256];
    printf("%s, %s: worst error of the loss %.1e, norm %.1e, gradients %.1e, weights after %d steps %.1e\n", j->name,
           words_of(j->world, where, sizeof where), worst.loss, worst.norm, worst.gradient, STEPS, worst.weight);
    fflush(stdout);
  }
  ad_run_destroy(run);
  return 0;
}

/* ---- samples: PyTorch's side drew them itself ---- */

static void samples_of_step(const job *j, const ad_text_data *text, int64_t step, int held_out, const char *tokens_name,
                            const char *targets_name) {
  const ad_recipe *recipe = j->recipe;
  const ad_safetensor *expected[] = {ad_safetensors_find(j->expected, tokens_name),
                                     ad_safetensors_find(j->expected, targets_name)};
  ad_batch_options options = {.seed = (uint64_t)recipe->train.seed,
                              .global_batch = recipe->train.global_batch,
                              .valid = text_of(recipe)->valid,
                              .valid_count = text_of(recipe)->valid_count,
                              .held_out = held_out};
  size_t n = (size_t)(recipe->train.global_batch * text_of(recipe)->seq), bytes = n * sizeof(int32_t);
  int32_t *found[] = {malloc(bytes), malloc(bytes)};
  int64_t counted;
  assert_true(found[0] && found[1]);
  ad_text_data_rows(text, &options, step, 0, recipe->train.global_batch, found[0], found[1], &counted);
  for (int i = 0; i < 2; i++) {
    assert_true(expected[i] && expected[i]->dtype == AD_I32 && expected[i]->bytes >= (size_t)(step + 1) * bytes);
    assert_memory_equal(found[i], (const char *)expected[i]->data + (size_t)step * bytes, bytes);
    free(found[i]);
  }
}

static void compare_samples(const job *j) {
  ad_text_data *text;
  must(ad_text_data_open((const char *const *)text_of(j->recipe)->text, text_of(j->recipe)->text_count,
                         text_of(j->recipe)->seq, text_of(j->recipe)->held_out, &text));
  for (int64_t step = 0; step < STEPS; step++) samples_of_step(j, text, step, 0, "tokens", "targets");
  if (text_of(j->recipe)->held_out > 0) samples_of_step(j, text, 0, 1, "held_out.tokens", "held_out.targets");
  ad_text_data_close(text);
}

/* ---- the fixtures ---- */

typedef void (*use)(job *j);

static void with_fixture(const char *name, const world *on, use function) {
  char recipe_path[128], expected_path[128];
  ad_recipe *recipe;
  ad_safetensors *expected;
  snprintf(recipe_path, sizeof recipe_path, FIXTURES "%s/recipe.yaml", name);
  snprintf(expected_path, sizeof expected_path, FIXTURES "%s/expected.safetensors", name);
  size_t settings = 0;
  while (settings < SETTINGS_MAX && on->settings[settings]) settings++;
  if (ad_recipe_read(recipe_path, on->settings, settings, &recipe)) fail_msg("%s", ad_last_error());
  if (ad_safetensors_open(expected_path, &expected)) fail_msg("%s", ad_last_error());
  job j = {name, on, recipe, expected};
  function(&j);
  ad_safetensors_close(expected);
  ad_recipe_destroy(recipe);
}

static const char *const names[] = {"gpt-tied",       "gpt-untied",  "gpt-masks",   "gpt-schedule",
                                    "gpt-everything", "gpt-grouped", "gpt-one-key", "gpt-head-norms"};

static void use_samples(job *j) { compare_samples(j); }
static void use_training(job *j) { run_ranks(j->world->ranks, train, j); }

static void samples_are_those_that_the_documented_rule_draws(void **state) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) with_fixture(names[i], &over_data[0], use_samples);
}

static void train_on(const char *name, const world *list) {
  for (; list->ranks; list++) with_fixture(name, list, use_training);
}

static void a_tied_model_with_every_default_trains_as_in_pytorch(void **state) {
  train_on("gpt-tied", over_data);
  train_on("gpt-tied", over_two_parts);
}
static void an_untied_model_with_decay_trains_as_in_pytorch(void **state) {
  train_on("gpt-untied", over_data);
  train_on("gpt-untied", over_three_parts);
}
static void masks_and_unequal_microbatches_train_as_in_pytorch(void **state) { train_on("gpt-masks", over_data); }
static void warm_up_cosine_and_clip_train_as_in_pytorch(void **state) {
  train_on("gpt-schedule", over_data);
  train_on("gpt-schedule", over_two_parts);
}
static void everything_at_once_trains_as_in_pytorch(void **state) {
  train_on("gpt-everything", over_data);
  train_on("gpt-everything", over_the_sequence);
}
static void grouped_heads_train_as_in_pytorch(void **state) {
  train_on("gpt-grouped", over_data);
  train_on("gpt-grouped", over_two_parts);
  train_on("gpt-grouped", over_three_parts);  // more ranks than heads of keys: each has them all
  train_on("gpt-grouped", over_the_sequence);
  train_on("gpt-grouped", over_everything);
}
static void one_head_of_keys_and_biases_train_as_in_pytorch(void **state) {
  train_on("gpt-one-key", over_data);
  train_on("gpt-one-key", over_two_parts);
  train_on("gpt-one-key", over_three_parts);
  train_on("gpt-one-key", over_the_sequence);
  train_on("gpt-one-key", over_everything);
}
static void normalised_heads_train_as_in_pytorch(void **state) {
  train_on("gpt-head-norms", over_data);
  train_on("gpt-head-norms", over_two_parts);
  train_on("gpt-head-norms", over_four_parts);
  train_on("gpt-head-norms", over_the_sequence);
  train_on("gpt-head-norms", over_everything);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(samples_are_those_that_the_documented_rule_draws),
      cmocka_unit_test(a_tied_model_with_every_default_trains_as_in_pytorch),
      cmocka_unit_test(an_untied_model_with_decay_trains_as_in_pytorch),
      cmocka_unit_test(masks_and_unequal_microbatches_train_as_in_pytorch),
      cmocka_unit_test(warm_up_cosine_and_clip_train_as_in_pytorch),
      cmocka_unit_test(everything_at_once_trains_as_in_pytorch),
      cmocka_unit_test(grouped_heads_train_as_in_pytorch),
      cmocka_unit_test(one_head_of_keys_and_biases_train_as_in_pytorch),
      cmocka_unit_test(normalised_heads_train_as_in_pytorch),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // recipes name their files as seen from there
  return cmocka_run_group_tests(tests, NULL, NULL);
}
