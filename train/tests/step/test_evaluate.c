/* Tests the evaluation on the validation set: always the same samples, their mean loss and its standard error; and that
 * it changes nothing of the run. */
#include "world.h"

#include <math.h>
#include <unistd.h>
#include "addend/data.h"
#include "module/module.h"
#include "step/run.h"
#include "data/text.h"

enum { SAMPLES = 7 };
static const double close_enough = 1e-12;

/* What a run's ranks saw: an evaluation, then a step, then the second step's loss. */
typedef struct seen {
  ad_evaluation evaluation;
  double alone, of_step; /* the first step's loss: by forward alone, and as the step reports it */
  double loss_after;     /* loss of the second step's batch, after the first step */
  /* batches that were reported done, each in its turn (-1: out of turn), and how many were announced */
  int64_t reported, of;
} seen;

typedef struct job {
  const ad_recipe *recipe;
  const char *writes; /* file for the initial weights; NULL: they are not written */
  int evaluates;
  seen *seen;
} job;

/* Counts the reports of all ranks: if a second rank reported too, a report would come out of turn. */
static void hear(void *context, const char *what, int64_t done, int64_t of) {
  seen *heard = context;
  if (!strcmp(what, "evaluate") && done == heard->reported + 1)
    heard->reported = done;
  else
    heard->reported = -1;
  heard->of = of;
}

static int evaluate(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_step_report report;
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  run->listener.report_progress = hear;
  run->listener.context = j->seen;
  if (j->writes) RANK_MUST(comm, ad_run_write_weights(run, j->writes));
  if (j->evaluates) RANK_MUST(comm, ad_run_evaluate(run, &j->seen->evaluation));
  RANK_MUST(comm, ad_run_loss(run, 0, AD_TRAINED_ON, &j->seen->alone));
  RANK_MUST(comm, ad_run_step(run, 0, &report));
  j->seen->of_step = report.loss;
  RANK_MUST(comm, ad_run_step(run, 1, &report));
  j->seen->loss_after = report.loss;
  ad_run_destroy(run);
  return 0;
}

static const char gpt[] = "model: {kind: gpt, layers: 1, d_model: 16, heads: 2}";
static const char text[] = "data: {text: [/usr/share/common-licenses], seq: 12, valid: [1, 0.5, 0.2], validation: 0.1}";
static const char moe[] =
    "model: {kind: moe, layers: 1, d_model: 16, heads: 2, experts: 4, top_k: 2, expert_hidden: 16, balance_loss: 0.5}";
static const char ocr[] =
    "model: {kind: ocr, encoder_layers: 1, encoder_d_model: 16, encoder_heads: 2, patch: 4, layers: 1, d_model: 16, "
    "heads: 2}";
static const char lines[] =
    "data: {text: [/usr/share/common-licenses], validation: 0.1, chars: 4, height: 12, width: 32, sizes: [9, 9],\n"
    "  fonts: [/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf]}";

static seen see_with(const char *writes, int evaluates, int64_t ranks, const char *model, const char *data,
                     const char *mesh, const char *rest) {
  char whole[1024];
  snprintf(whole, sizeof whole, "name: tiny\n%s\n%s\nmesh: %s\n%s\n", model, data, mesh, rest);
  ad_recipe *recipe = NULL;
  if (ad_recipe_parse(whole, "tiny.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  job j = {recipe, writes, evaluates, shared_memory(sizeof(seen))};
  ad_launch_result result = {.size = sizeof result};
  if (launch(ranks, evaluate, &j, &result)) fail_msg("%s", result.message);
  seen found = *j.seen;
  munmap(j.seen, sizeof(seen));
  ad_recipe_destroy(recipe);
  return found;
}

static seen see(int evaluates, int64_t ranks, const char *model, const char *data, const char *mesh, const char *rest) {
  return see_with(NULL, evaluates, ranks, model, data, mesh, rest);
}

#define REST(train) "train: {steps: 4, lr: 1e-2, " train "}\nevaluate: {samples: 7}"

static void same(const ad_evaluation *a, const ad_evaluation *b) {
  assert_int_equal(a->samples, SAMPLES);
  assert_int_equal(b->samples, SAMPLES);
  assert_true(a->loss > 1 && a->standard_error > 0);
  assert_true(fabs(a->loss - b->loss) < close_enough * a->loss);
  assert_true(fabs(a->standard_error - b->standard_error) < 1e-9 * a->standard_error);
}

/* Global batches of other sizes, whose last one is smaller, other microbatches, ranks that share samples, sequences and
 * the vocabulary, and ranks without samples. */
static void a_validation_loss_is_the_same_on_every_topology_and_batch(void **state) {
  seen one = see(1, 1, gpt, text, "dp=1", REST("global_batch: 7"));
  static const char *const meshes[] = {"dp=3", "cp=2 tp=2", "dp_replicate=2 dp_shard=2", "dp=5"};
  static const int64_t ranks[] = {3, 4, 4, 5};
  for (int i = 0; i < 4; i++) {
    seen other = see(1, ranks[i], gpt, text, meshes[i], REST("global_batch: 4, microbatches: 3"));
    same(&one.evaluation, &other.evaluation);
  }
  seen larger = see(1, 2, gpt, text, "dp=2", REST("global_batch: 16, microbatches: 2"));
  same(&one.evaluation, &larger.evaluation);
}

static void of_a_mixture_and_of_pictures_too(void **state) {
  seen one = see(1, 1, moe, text, "dp=1\nviews: {sparse: \"efsdp=1 ep=1 etp=1\"}", REST("global_batch: 7"));
  seen two = see(1, 2, moe, text, "dp=2\nviews: {sparse: \"efsdp=1 ep=2 etp=1\"}", REST("global_batch: 4"));
  same(&one.evaluation, &two.evaluation);
  one = see(1, 1, ocr, lines, "{encoder: dp=1, model: dp=1}", REST("global_batch: 7"));
  two = see(1, 4, ocr, lines, "{encoder: dp=4, model: \"dp=2 cp=2\"}", REST("global_batch: 4"));
  same(&one.evaluation, &two.evaluation);
}

/* The balancing loss is part of the training loss but not of the evaluation, since it does not measure how good a model
 * is. */
static void no_balancing_loss_is_in_it(void **state) {
  static const char none[] =
      "model: {kind: moe, layers: 1, d_model: 16, heads: 2, experts: 4, top_k: 2, expert_hidden: 16, balance_loss: 0}";
  static const char mesh[] = "dp=1\nviews: {sparse: \"efsdp=1 ep=1 etp=1\"}";
  seen with = see(1, 1, moe, text, mesh, REST("global_batch: 7"));
  seen without = see(1, 1, none, text, mesh, REST("global_batch: 7"));
  same(&with.evaluation, &without.evaluation);
  assert_true(with.loss_after > without.loss_after + 0.1);
  assert_true(fabs(with.alone - with.of_step) < close_enough && with.alone > without.alone + 0.1);
}

/* Evaluates on one rank, with parameters that do not depend on the seed. */
static ad_evaluation of_seed(int64_t seed, int64_t samples) {
  static const ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  char train[128];
  snprintf(train, sizeof train, ", seed: %lld, steps: 4, lr: 1e-2, global_batch: 3}\nevaluate: {samples: %lld",
           (long long)seed, (long long)samples);
  char whole[512];
  snprintf(whole, sizeof whole,
           "name: tiny\n%s\ndata: {text: [/usr/share/common-licenses], seq: 12, validation: 0.1}\n"
           "mesh: dp=1\ntrain: {warmup: 0%s}\n",
           gpt, train);
  ad_recipe *recipe = NULL;
  ad_comm *comm;
  ad_run *run;
  ad_evaluation found;
  must(ad_recipe_parse(whole, "tiny.yaml", NULL, 0, &recipe));
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, &options, &run));
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_array *value = ad_run_part(run, i, AD_PART_VALUE);
    for (size_t k = 0; k < ad_array_numel(value); k++) ((double *)value->data)[k] = sin((double)(100 * i + k)) / 2;
  }
  must(ad_run_refresh(run, AD_VALUES_WRITTEN));
  must(ad_run_evaluate(run, &found));
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
  return found;
}

static void no_seed_is_in_it(void **state) {
  ad_evaluation one = of_seed(1, SAMPLES), two = of_seed(2, SAMPLES);
  same(&one, &two);
}

/* The second run reads the weights that the first one wrote. */
static void no_seed_is_in_that_of_pictures(void **state) {
  static const char mesh[] = "{encoder: dp=1, model: dp=1}";
  char path[] = "/tmp/addend-evaluate-XXXXXX", reading[512];
  int file = mkstemp(path);
  assert_true(file >= 0);
  snprintf(reading, sizeof reading, "%.*s, weights: %s}", (int)sizeof ocr - 2, ocr, path);
  seen one = see_with(path, 1, 1, ocr, lines, mesh, REST("global_batch: 7"));
  seen other = see(1, 1, reading, lines, mesh, REST("global_batch: 7, seed: 9"));
  close(file);
  unlink(path);
  same(&one.evaluation, &other.evaluation);
  assert_true(one.loss_after != other.loss_after);
}

/* A set of n samples begins with the samples of a smaller set, and here all samples have the same number of tokens: so
 * the loss of each sample follows from the sets' losses. */
static void its_standard_error_is_that_of_a_mean(void **state) {
  double losses[SAMPLES], mean = 0, squares = 0, before = 0;
  for (int n = 1; n <= SAMPLES; n++) {
    double sum = n * of_seed(1, n).loss;
    losses[n - 1] = sum - before;
    before = sum;
  }
  for (int i = 0; i < SAMPLES; i++) mean += losses[i] / SAMPLES;
  for (int i = 0; i < SAMPLES; i++) squares += (losses[i] - mean) * (losses[i] - mean);
  ad_evaluation all = of_seed(1, SAMPLES);
  double expected = sqrt(squares / (SAMPLES - 1) / SAMPLES);
  assert_true(fabs(all.standard_error - expected) < 1e-9 * expected);
  assert_true(isnan(of_seed(1, 1).standard_error));
}

static void an_evaluation_changes_nothing(void **state) {
  static const char mesh[] = "dp=2\nviews: {sparse: \"efsdp=1 ep=2 etp=1\"}";
  seen with = see(1, 2, moe, text, mesh, REST("global_batch: 4"));
  seen without = see(0, 2, moe, text, mesh, REST("global_batch: 4"));
  assert_true(with.loss_after == without.loss_after);
}

static void each_of_its_batches_is_reported_by_the_first_rank(void **state) {
  seen one = see(1, 1, gpt, text, "dp=1", REST("global_batch: 2")),
       two = see(1, 2, gpt, text, "dp=2", REST("global_batch: 3"));
  assert_true(one.reported == 4 && one.of == 4);
  assert_true(two.reported == 3 && two.of == 3);
  assert_int_equal(see(0, 1, gpt, text, "dp=1", REST("global_batch: 2")).reported, 0);
}

/* Evaluating all validation samples takes each of them once. */
static void a_set_has_no_sample_twice(void **state) {
  const char *paths[] = {"/usr/share/common-licenses"};
  ad_text_data *data;
  must(ad_text_data_open(paths, 1, 40, 0.02, &data));
  int64_t all = ad_text_data_samples(data, AD_VALIDATION_PART), counted;
  char *seen_already = calloc((size_t)all, 1);
  ad_batch_options options = {.size = sizeof options, .seed = 5, .global_batch = 1, .validation = 1, .set = all};
  int64_t size;
  const uint8_t *bytes = ad_text_data_part(data, AD_VALIDATION_PART, &size);
  assert_true(all > 50 && all == (size - 1) / 40);
  for (int64_t i = 0; i < all + 2; i++) {
    int32_t tokens[40], targets[40];
    must(ad_text_data_rows(data, &options, i, 0, 1, tokens, targets, &counted));
    assert_int_equal(counted, i < all ? 40 : 0);
    for (int64_t w = 0; w < all && i < all; w++) {
      int same_bytes = 1;
      for (int k = 0; k < 40 && same_bytes; k++) same_bytes = bytes[w * 40 + k] == tokens[k];
      if (same_bytes && !seen_already[w] && (seen_already[w] = 1)) break;
    }
  }
  for (int64_t w = 0; w < all; w++) assert_true(seen_already[w]);
  free(seen_already);
  ad_text_data_close(data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_validation_loss_is_the_same_on_every_topology_and_batch),
      cmocka_unit_test(of_a_mixture_and_of_pictures_too),
      cmocka_unit_test(no_balancing_loss_is_in_it),
      cmocka_unit_test(no_seed_is_in_it),
      cmocka_unit_test(no_seed_is_in_that_of_pictures),
      cmocka_unit_test(its_standard_error_is_that_of_a_mean),
      cmocka_unit_test(an_evaluation_changes_nothing),
      cmocka_unit_test(each_of_its_batches_is_reported_by_the_first_rank),
      cmocka_unit_test(a_set_has_no_sample_twice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
