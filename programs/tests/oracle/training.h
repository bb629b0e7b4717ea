/* Repeats a fixture's training in f64 on any mesh, and compares every number with PyTorch's: samples, losses, norms,
 * gradients, weights after 20 steps, states after each step, and the program's metrics. */
#ifndef TESTS_ORACLE_TRAINING_H
#define TESTS_ORACLE_TRAINING_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>
#include "decoder/options.h"
#include "addend/train.h"
#include "addend/data.h"
#include "module/module.h"
#include "program/program.h"
#include "step/run.h"
#include "draw.h"
#include "numbers.h"
#include "ranks.h"

#define must(call) assert_int_equal((call), AD_OK)

// The check's bound for a gradient. The weights after 20 steps stay within it too (2e-14 is the worst measured): AdamW
// divides each element by its own size, so an error grows only where a gradient is nearly as small as its rounding, and
// there epsilon is the larger divisor.
static const double bound = 1e-12;
// The rule of the check: a parameter whose numbers are all tiny beside the model's is measured relative to the model's.
static const double smallest_scale = 1e-6;
// The bound of f64 states, which are sources that climb: a step divides a small gradient by its own size, and the next
// step starts from the result, so rounding errors grow from step to step (4.5e-13 is the worst measured).
static const double climbing_bound = 1e-11;
enum { STEPS = 20, STEPS_WITH_GRADIENTS = 2 };

enum { SETTINGS_MAX = 5 };

/* A world: the number of ranks, and recipe keys for mesh, storage and sharding of the model. A list of worlds ends with
 * one without ranks. */
typedef struct world {
  int64_t ranks;
  const char *settings[SETTINGS_MAX];
} world;

typedef struct job {
  const char *name;
  const world *world;
  const ad_recipe *recipe;
  const ad_safetensors *expected;
} job;

// The options of every kind of program begin with the decoder's; those of ocr have no text there.
static inline const ad_text_options *text_of(const ad_recipe *recipe) {
  return &((const ad_decoder_options *)recipe->options)->data;
}

/* ---- parameters of a run ---- */

typedef struct param {
  char name[128]; /* name in the program */
  const ad_array *value, *gradient;
} param;

static inline size_t params_of(ad_run *run) { return ad_run_param_count(run); }
static inline param param_of(ad_run *run, size_t i) {
  param p = {.value = ad_run_part(run, i, AD_PART_VALUE), .gradient = ad_run_part(run, i, AD_PART_GRADIENT)};
  ad_run_param at = ad_run_param_at(run, i);
  ad_program_param_name(ad_run_program(run), at.module, at.param, p.name, sizeof p.name);
  return p;
}

/* ---- comparing numbers, inside a rank ---- */

static inline const char *words_of(const world *w, char *words, size_t size) {
  size_t used = 0;
  words[0] = 0;
  for (int i = 0; i < SETTINGS_MAX && w->settings[i] && used < size; i++)
    used += (size_t)snprintf(words + used, size - used, "%s%s", i ? " " : "", w->settings[i]);
  return words;
}

// Fails with a message that names the number and the mesh if `worst` exceeds `allowed`.
static inline void judge_by(double allowed, const job *j, const char *what, const char *name, int step, double worst) {
  char words[512], where[256];
  if (worst < allowed) return;
  snprintf(words, sizeof words, "%s, %s: %s %s of step %d is off by %.3g", j->name,
           words_of(j->world, where, sizeof where), what, name, step, worst);
  rank_check_failed(__FILE__, __LINE__, words);
}

static inline void judge(const job *j, const char *what, const char *name, int step, double worst) {
  judge_by(bound, j, what, name, step, worst);
}

// Compares a step's numbers of this name, relative to the largest of them.
static inline double judge_numbers_by(double allowed, const job *j, const char *name, int step, const double *found,
                                      size_t count) {
  size_t n;
  double *expected = numbers(j->expected, name, &n);
  CHECK(expected && n >= count * ((size_t)step + 1));
  const double *row = expected + count * (size_t)step;
  double scale = largest(row, count) > 0 ? largest(row, count) : 1, worst = worst_difference(found, row, count) / scale;
  judge_by(allowed, j, "the", name, step, worst);
  free(expected);
  return worst;
}

static inline double judge_numbers(const job *j, const char *name, int step, const double *found, size_t count) {
  return judge_numbers_by(bound, j, name, step, found, count);
}

static inline double judge_number(const job *j, const char *name, int step, double found) {
  return judge_numbers(j, name, step, &found, 1);
}

/* ---- full parameters against PyTorch's ---- */

// Whether PyTorch has such numbers of the parameter: a frozen one has no gradient.
static inline int has_numbers(const job *j, const char *prefix, const char *own) {
  char name[160];
  snprintf(name, sizeof name, "%s%s", prefix, own);
  return ad_safetensors_find(j->expected, name) != NULL;
}

// The largest magnitude of PyTorch's gradients or weights, such as those with the prefix "gradient.0:".
static inline double largest_of(const job *j, ad_run *run, const char *prefix) {
  double most = 0;
  for (size_t i = 0; i < params_of(run); i++) {
    char name[160];
    size_t n;
    if (!has_numbers(j, prefix, param_of(run, i).name)) continue;
    snprintf(name, sizeof name, "%s%s", prefix, param_of(run, i).name);
    double *expected = numbers(j->expected, name, &n);
    CHECK(expected);
    most = fmax(most, largest(expected, n));
    free(expected);
  }
  return most;
}

static inline double worst_of(const job *j, ad_run *run, const ad_array *array, const char *name,
                              double model_largest) {
  size_t n;
  double *expected = numbers(j->expected, name, &n);
  ad_array full = {.data = malloc((n + 1) * sizeof(double))};
  CHECK(expected && full.data && n == (size_t)ad_shape_numel(&array->shape) && array->dtype == AD_F64);
  CHECK(ad_shape_equal(&ad_safetensors_find(j->expected, name)->shape, &array->shape));
  CHECK_OK(ad_run_full(run, array, &full));
  double scale = fmax(largest(expected, n), smallest_scale * model_largest);
  double worst = worst_difference(full.data, expected, n) / scale;
  free(full.data);
  free(expected);
  return worst;
}

static inline double judge_params(const job *j, ad_run *run, const char *what, int step) {
  char prefix[32], name[160];
  double worst = 0;
  snprintf(prefix, sizeof prefix, "%s.%d:", what, step);
  double model_largest = largest_of(j, run, prefix);
  for (size_t i = 0; i < params_of(run); i++) {
    param p = param_of(run, i);
    const ad_array *own_array = !strcmp(what, "weight") ? p.value : p.gradient;
    CHECK(has_numbers(j, prefix, p.name) == (own_array != NULL));
    if (!own_array) continue;
    snprintf(name, sizeof name, "%s%s", prefix, p.name);
    double own = worst_of(j, run, own_array, name, model_largest);
    judge(j, what, p.name, step, own);
    worst = fmax(worst, own);
  }
  return worst;
}

/* ---- numbers that only some programs have ---- */

// Compares each loss, without its coefficient.
static inline void judge_losses(const job *j, const ad_program *program, int step, const ad_step_report *report) {
  char name[160];
  size_t count = ad_program_loss_count(program);
  for (size_t i = 0; i < count && count > 1; i++) {
    snprintf(name, sizeof name, "loss.%s", ad_program_loss(program, i)->name);
    judge_number(j, name, step, report->losses[i]);
  }
}

static inline void judge_measured(const job *j, const ad_program *program, int step) {
  const ad_program_kind *kind = ad_program_kind_of(program);
  const double *values;
  const char *own;
  char name[160];
  size_t count;
  for (size_t i = 0;
       kind->account.measured && (values = kind->account.measured(ad_program_own(program), i, &own, &count)); i++) {
    snprintf(name, sizeof name, "measured.%s", own);
    judge_numbers(j, name, step, values, count);
  }
}

static inline double judge_state(const job *j, ad_run *run, size_t module, size_t state, int step) {
  char name[160];
  const ad_array *array = ad_run_state(run, module, state);
  size_t n = (size_t)ad_shape_numel(&array->shape);
  ad_array full = {.data = malloc((n + 1) * sizeof(double))};
  double *found = malloc((n + 1) * sizeof *found);
  CHECK(found && full.data && (array->dtype == AD_F32 || array->dtype == AD_F64));
  CHECK_OK(ad_run_full(run, array, &full));
  for (size_t e = 0; e < n; e++)
    found[e] = array->dtype == AD_F32 ? ((const float *)full.data)[e] : ((const double *)full.data)[e];
  snprintf(name, sizeof name, "state:%s", ad_program_module(ad_run_program(run), module)->states[state].name);
  double worst = judge_numbers_by(array->dtype == AD_F64 ? climbing_bound : bound, j, name, step, found, n);
  free(full.data);
  free(found);
  return worst;
}

static inline double judge_states(const job *j, ad_run *run, int step) {
  double worst = 0;
  for (size_t m = 0; m < ad_program_module_count(ad_run_program(run)); m++)
    for (size_t i = 0; i < ad_program_module(ad_run_program(run), m)->state_count; i++)
      worst = fmax(worst, judge_state(j, run, m, i, step));
  return worst;
}

// Called after the last step; NULL: nothing. A test sets it before its ranks start.
static void (*judge_at_end)(const job *j, ad_run *run);

/* ---- one rank's training ---- */

typedef struct worst_errors {
  double loss, norm, gradient, weight, state;
} worst_errors;

static inline void take_step(const job *j, ad_run *run, int step, worst_errors *worst) {
  ad_step_report report;
  CHECK_OK(ad_run_step(run, step, &report));
  const ad_safetensor *count = ad_safetensors_find(j->expected, "count");
  CHECK(count && count->dtype == AD_I64 && count->bytes == STEPS * sizeof(int64_t));
  CHECK(!memcmp((const char *)count->data + (size_t)step * sizeof report.count, &report.count, sizeof report.count));
  if (step < STEPS_WITH_GRADIENTS) worst->gradient = fmax(worst->gradient, judge_params(j, run, "gradient", step));
  worst->loss = fmax(worst->loss, judge_number(j, "loss", step, report.loss));
  worst->norm = fmax(worst->norm, judge_number(j, "norm", step, report.norm));
  judge_number(j, "lr", step, report.lr);
  judge_losses(j, ad_run_program(run), step, &report);
  judge_measured(j, ad_run_program(run), step);
  worst->state = fmax(worst->state, judge_states(j, run, step));
}

static inline void judge_validation(const job *j, ad_run *run) {
  double loss;
  const ad_program *program = ad_run_program(run);
  if (!ad_program_kind_of(program)->data.has_validation(ad_program_own(program))) return;
  CHECK_OK(ad_run_loss(run, 0, AD_VALIDATION_DRAWN, &loss));
  judge_number(j, "validation.loss", 0, loss);
}

static inline int train(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  worst_errors worst = {0};
  ad_run *run;
  CHECK_OK(ad_run_create(comm, j->recipe, &options, &run));
  judge_validation(j, run);
  for (int step = 0; step < STEPS; step++) take_step(j, run, step, &worst);
  worst.weight = judge_params(j, run, "weight", STEPS);
  if (judge_at_end) judge_at_end(j, run);
  if (!ad_comm_rank(comm)) {
    char where[256];
    printf(
        "%s, %s: worst error of the loss %.1e, norm %.1e, gradients %.1e, weights after %d steps %.1e, states %.1e\n",
        j->name, words_of(j->world, where, sizeof where), worst.loss, worst.norm, worst.gradient, STEPS, worst.weight,
        worst.state);
    fflush(stdout);
  }
  ad_run_destroy(run);
  return 0;
}

/* ---- samples: PyTorch's side drew them independently ---- */

static inline void samples_of_step(const job *j, const ad_text_data *text, int64_t step, ad_data_split validation,
                                   const char *tokens_name, const char *targets_name) {
  const ad_recipe *recipe = j->recipe;
  const ad_safetensor *expected[] = {ad_safetensors_find(j->expected, tokens_name),
                                     ad_safetensors_find(j->expected, targets_name)};
  ad_batch_options options = {.size = sizeof options,
                              .seed = (uint64_t)recipe->train.seed,
                              .global_batch = recipe->train.global_batch,
                              .valid = text_of(recipe)->valid,
                              .valid_count = text_of(recipe)->valid_count,
                              .validation = validation};
  size_t n = (size_t)(recipe->train.global_batch * text_of(recipe)->seq), bytes = n * sizeof(int32_t);
  int32_t *found[] = {malloc(bytes), malloc(bytes)};
  int64_t counted;
  assert_true(found[0] && found[1]);
  CHECK_OK(ad_text_data_rows(text, &options, step, 0, recipe->train.global_batch, found[0], found[1], &counted));
  for (int i = 0; i < 2; i++) {
    assert_true(expected[i] && expected[i]->dtype == AD_I32 && expected[i]->bytes >= (size_t)(step + 1) * bytes);
    assert_memory_equal(found[i], (const char *)expected[i]->data + (size_t)step * bytes, bytes);
    free(found[i]);
  }
}

static inline ad_status open_text(const ad_text_options *options, ad_text_data **out) {
  return ad_text_data_open((const char *const *)options->text, options->text_count, options->seq, options->validation,
                           out);
}

static inline ad_status open_tokens(const ad_text_options *options, int64_t vocabulary, ad_text_data **out) {
  ad_token_options files = {.size = sizeof files,
                            .tokens = (const char *const *)options->tokens,
                            .masks = options->mask_count ? (const char *const *)options->mask : NULL,
                            .count = options->token_count,
                            .seq = options->seq,
                            .validation = options->validation,
                            .vocabulary = vocabulary};
  return ad_text_data_open_tokens(&files, out);
}

static inline void compare_samples(const job *j) {
  ad_text_data *text;
  const ad_text_options *options = text_of(j->recipe);
  int64_t vocabulary = ((const ad_decoder_options *)j->recipe->options)->vocabulary;
  must(options->token_count ? open_tokens(options, vocabulary, &text) : open_text(options, &text));
  for (int64_t step = 0; step < STEPS; step++) samples_of_step(j, text, step, 0, "tokens", "targets");
  if (text_of(j->recipe)->validation > 0) samples_of_step(j, text, 0, 1, "validation.tokens", "validation.targets");
  ad_text_data_close(text);
}

/* ---- opening fixtures and running worlds ---- */

typedef void (*use)(job *j);

static inline void with_fixture(const char *name, const world *on, use function) {
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

static inline void use_samples(job *j) { compare_samples(j); }
static inline void use_training(job *j) { run_ranks(j->world->ranks, train, j); }

// Trains the fixture on half of the worlds of the list, drawn by a seed.
static inline void train_on(const char *name, const world *list) {
  char what[128];
  int count = 0;
  while (list[count].ranks) count++;
  snprintf(what, sizeof what, "worlds of %s from %s on", name, list[0].settings[0]);
  draw drawn = draw_cases(what, count, 0, (count + 1) / 2);
  for (int i = 0; i < count; i++)
    if (is_drawn(&drawn, i)) with_fixture(name, &list[i], use_training);
}

#endif
