/* Tests that the sampler continues text as Hugging Face Transformers does: the logits of each position, whether tokens
 * are read together or one by one, and what `generate` makes of a prompt greedily
 * (programs/tests/oracle/generate_transformers.py). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../../programs/tests/oracle/numbers.h"
#include "base/random.h"
#include "addend/sample.h"
#include "addend/store.h"
#include "gpt/gpt.h"
#include "sample/sampler.h"
#include "says.h"

enum { SEQ = 12, PROMPT = 4, GENERATED = 100 };

static const char *const names[] = {"hf-llama",   "hf-llama-scaled", "hf-qwen2",     "hf-qwen3",
                                    "hf-mistral", "hf-mixtral",      "hf-qwen3-moe", "hf-qwen3-moe-raw"};

typedef struct fixture {
  const char *name;
  ad_safetensors *expected;
  const int32_t *tokens; /* the window of the first sample of the first step */
  double *logits;        /* shape [non-padding positions of all samples, vocabulary] */
} fixture;

static fixture open_fixture(const char *name) {
  char path[160];
  size_t count;
  fixture f = {.name = name};
  snprintf(path, sizeof path, "programs/tests/oracle/fixtures/%s/expected.safetensors", name);
  if (ad_safetensors_open(path, &f.expected)) fail_msg("%s", ad_last_error());
  f.tokens = ad_safetensors_find(f.expected, "tokens")->data;
  f.logits = numbers(f.expected, "logits", &count);
  assert_non_null(f.logits);
  return f;
}

static void close_fixture(fixture *f) {
  free(f->logits);
  ad_safetensors_close(f->expected);
}

static ad_sampler *open_sampler(const char *name, ad_dtype dtype, double temperature, uint64_t seed) {
  char path[160];
  ad_sampler *sampler;
  ad_sampler_options options = {.size = sizeof options, .dtype = dtype, .temperature = temperature, .seed = seed};
  snprintf(path, sizeof path, "programs/tests/oracle/fixtures/%s/model", name);
  if (ad_sampler_open(path, &options, &sampler)) fail_msg("%s", ad_last_error());
  return sampler;
}

static void read_tokens(ad_sampler *sampler, const int32_t *tokens, int64_t count) {
  if (ad_sampler_read(sampler, tokens, count)) fail_msg("%s", ad_last_error());
}

/* The number of tokens before the first padding (0) of the first sample, whose logits come first. */
static int64_t real_tokens(const fixture *f) {
  int64_t count = 0;
  while (count < SEQ && f->tokens[count]) count++;
  return count;
}

static void has_logits(const fixture *f, const ad_sampler *sampler, int64_t position) {
  int64_t vocabulary = ad_sampler_vocabulary(sampler);
  const double *expected = f->logits + position * vocabulary;
  double worst = worst_difference(ad_sampler_logits(sampler), expected, (size_t)vocabulary);
  double error = worst / largest(expected, (size_t)vocabulary);
  if (!(error < 1e-12)) fail_msg("%s: the logits of position %d are off by %g", f->name, (int)position, error);
}

static void logits_are_those_of_transformers(void **state) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    fixture f = open_fixture(names[i]);
    ad_sampler *sampler = open_sampler(names[i], AD_F64, 0, 0);
    int64_t real = real_tokens(&f);
    for (int64_t position = 0; position < real; position++) {
      read_tokens(sampler, &f.tokens[position], 1);
      has_logits(&f, sampler, position);
    }
    ad_sampler_begin(sampler);
    read_tokens(sampler, f.tokens, real);
    has_logits(&f, sampler, real - 1);
    ad_sampler_close(sampler);
    close_fixture(&f);
  }
}

/* Reads some tokens together after others whose keys are kept, so mask and positions join both parts. */
static void a_part_follows_a_part(void **state) {
  for (int64_t first = 1; first < SEQ; first++) {
    fixture f = open_fixture("hf-llama-scaled");
    ad_sampler *sampler = open_sampler("hf-llama-scaled", AD_F64, 0, 0);
    read_tokens(sampler, f.tokens, first);
    read_tokens(sampler, f.tokens + first, SEQ - first);
    has_logits(&f, sampler, SEQ - 1);
    ad_sampler_close(sampler);
    close_fixture(&f);
  }
}

static void greedy_tokens_are_those_of_generate(void **state) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    fixture f = open_fixture(names[i]);
    const int32_t *expected = ad_safetensors_find(f.expected, "generated")->data;
    ad_sampler *sampler = open_sampler(names[i], AD_F32, 0, 0);
    read_tokens(sampler, expected, PROMPT);
    for (int n = PROMPT; n < PROMPT + GENERATED; n++) {
      int32_t token;
      if (ad_sampler_choose(sampler, &token)) fail_msg("%s", ad_last_error());
      if (token != expected[n]) fail_msg("%s: token %d is %d, not %d", names[i], n, token, expected[n]);
      read_tokens(sampler, &token, 1);
    }
    ad_sampler_close(sampler);
    close_fixture(&f);
  }
}

/* How often each token is drawn, compared with its probability. */
static void draws_follow_the_softmax(void **state) {
  enum { DRAWS = 4000, TOKENS_MAX = 64 };
  const double temperature = 0.5;
  int32_t token = 7;
  double shares[TOKENS_MAX], sum = 0, squares = 0;
  int counts[TOKENS_MAX] = {0};
  ad_sampler *first = open_sampler("hf-mistral", AD_F32, temperature, 0);
  int64_t vocabulary = ad_sampler_vocabulary(first);
  assert_true(vocabulary <= TOKENS_MAX);
  read_tokens(first, &token, 1);
  for (int64_t i = 0; i < vocabulary; i++) sum += shares[i] = exp(ad_sampler_logits(first)[i] / temperature);
  for (int n = 0; n < DRAWS; n++) { /* a draw depends on how many tokens were read before */
    int32_t chosen;
    if (ad_sampler_choose(first, &chosen)) fail_msg("%s", ad_last_error());
    counts[chosen]++;
    ad_sampler_begin(first);
    ad_sampler_close(first);
    first = open_sampler("hf-mistral", AD_F32, temperature, (uint64_t)n + 1);
    read_tokens(first, &token, 1);
  }
  for (int64_t i = 0; i < vocabulary; i++) {
    double expected = DRAWS * shares[i] / sum, off = counts[i] - expected;
    squares += off * off / expected;
  }
  ad_sampler_close(first);
  /* the bound of chi-squared with vocabulary - 1 degrees of freedom: its mean and six standard deviations */
  assert_true(squares < (double)(vocabulary - 1) + 6 * sqrt(2.0 * (double)(vocabulary - 1)));
}

/* The token that sample.h describes: the first at which the cumulative probability exceeds the draw. */
static int32_t described(const ad_sampler *sampler, double temperature, uint64_t seed, uint64_t read) {
  uint64_t bits = ad_random_bits(seed, ad_checksum("sample", strlen("sample"), 0), read);
  const double *logits = ad_sampler_logits(sampler);
  int64_t vocabulary = ad_sampler_vocabulary(sampler), token = 0;
  double sum = 0, so_far;
  for (int64_t i = 0; i < vocabulary; i++) sum += exp(logits[i] / temperature);
  for (so_far = exp(logits[0] / temperature); so_far <= sum * ldexp((double)(bits >> 11), -53);)
    so_far += exp(logits[++token] / temperature);
  return (int32_t)token;
}

static void draws_are_those_of_the_header(void **state) {
  const double temperature = 2;
  const uint64_t seed = 11;
  ad_sampler *sampler = open_sampler("hf-mistral", AD_F64, temperature, seed);
  int32_t token = 7;
  for (uint64_t read = 1; read <= 40; read++) {
    read_tokens(sampler, &token, 1);
    if (ad_sampler_choose(sampler, &token)) fail_msg("%s", ad_last_error());
    assert_int_equal(token, described(sampler, temperature, seed, read));
  }
  ad_sampler_close(sampler);
}

/* In bf16, vectors and routers keep the dtype that they have in training. */
static void wide_parameters_are_wide(void **state) {
  ad_sampler *narrow = open_sampler("hf-mixtral", AD_BF16, 0, 0), *wide = open_sampler("hf-mixtral", AD_F32, 0, 0);
  int routers = 0;
  for (size_t i = 0; i < narrow->model.params.count; i++) {
    const ad_param_spec *spec = &narrow->model.params.list[i];
    const ad_array *array = &narrow->model.arrays[i], *same = &wide->model.arrays[i];
    int is_router = strstr(spec->name, "router") != NULL, is_wide = spec->shape.ndim == 1 || is_router;
    routers += is_router;
    if (array->dtype != (is_wide ? AD_F32 : AD_BF16)) fail_msg("%s is %s", spec->name, ad_dtype_name(array->dtype));
    if (is_wide) assert_memory_equal(array->data, same->data, ad_array_numel(array) * sizeof(float));
  }
  assert_true(routers > 0);
  ad_sampler_close(narrow);
  ad_sampler_close(wide);
}

/* The bound is that of bf16, which keeps 8 bits of each number, through some layers. */
static void logits_in_bf16_are_near(void **state) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    fixture f = open_fixture(names[i]);
    ad_sampler *sampler = open_sampler(names[i], AD_BF16, 0, 0);
    int64_t real = real_tokens(&f), vocabulary = ad_sampler_vocabulary(sampler);
    for (int64_t position = 0; position < real; position++) read_tokens(sampler, &f.tokens[position], 1);
    const double *expected = f.logits + (real - 1) * vocabulary;
    double error = worst_difference(ad_sampler_logits(sampler), expected, (size_t)vocabulary) /
                   largest(expected, (size_t)vocabulary);
    if (!(error < 0.02)) fail_msg("%s: off by %g", names[i], error);
    ad_sampler_close(sampler);
    close_fixture(&f);
  }
}

static void kept_keys_are_of_the_tokens_before(void **state) {
  ad_sampler *sampler = open_sampler("hf-mistral", AD_F32, 0, 0);
  int32_t token = 3;
  read_tokens(sampler, &token, 1);
  sampler->read = 0;
  assert_int_equal(ad_sampler_read(sampler, &token, 1), AD_INVALID);
  assert_says("0", "1");
  ad_sampler_begin(sampler);
  read_tokens(sampler, &token, 1);
  ad_sampler_close(sampler);
}

/* The last logits of a mixture of experts with random values, in which one block's bias is far above its other ones for
 * one expert; block -1: in none. */
static void read_with_bias(const ad_recipe *recipe, int block, double *logits) {
  ad_sampler *sampler;
  const int32_t tokens[] = {1, 7, 3};
  ad_sampler_options options = {.size = sizeof options, .dtype = AD_F64};
  if (ad_sampler_create(recipe, &options, &sampler)) fail_msg("%s", ad_last_error());
  const ad_sample_model *model = &sampler->model;
  for (size_t i = 0; i < model->params.count; i++)
    for (size_t k = 0; k < ad_array_numel(&model->arrays[i]); k++)
      ad_array_set(&model->arrays[i], k, ad_random_normal(3, i, k));
  assert_int_equal(model->state_count, 2);
  for (int i = 0; i < 2; i++) ad_array_set(&model->states[i], 2, i == block ? 1e3 : 0);
  read_tokens(sampler, tokens, 3);
  memcpy(logits, ad_sampler_logits(sampler), 256 * sizeof *logits);
  ad_sampler_close(sampler);
}

static void every_blocks_bias_chooses_its_experts(void **state) {
  static double logits[3][256];
  ad_recipe *recipe;
  if (ad_recipe_parse("model: {kind: moe, layers: 2, d_model: 8, heads: 2, experts: 5, top_k: 1, expert_hidden: 8, "
                      "balance_rate: 0.1}\ndata: {text: a, seq: 6}\nmesh: dp=1\n"
                      "train: {global_batch: 1, steps: 1, lr: 1}\n",
                      "bias.yaml", NULL, 0, &recipe))
    fail_msg("%s", ad_last_error());
  for (int block = -1; block < 2; block++) read_with_bias(recipe, block, logits[1 + block]);
  for (int a = 0; a < 3; a++)
    for (int b = 0; b < a; b++) assert_memory_not_equal(logits[a], logits[b], sizeof logits[a]);
  ad_recipe_destroy(recipe);
}

static int prepared;
static void note_preparing(void *options) { prepared += ((ad_gpt_options *)options)->decoder.layers == 2; }

/* The last logits of a program with random values. */
static void read_kind(const char *kind, double *logits) {
  char text[512];
  ad_recipe *recipe;
  snprintf(text, sizeof text,
           "model: {kind: %s, layers: 2, d_model: 8, heads: 2}\ndata: {text: a, seq: 6, validation: 0.5}\nmesh: dp=1\n"
           "train: {global_batch: 1, steps: 1, lr: 1}\nevaluate: {every: 1, prompts: [ab]}\n",
           kind);
  if (ad_recipe_parse(text, "kind.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  ad_sampler *sampler;
  if (ad_sampler_create(recipe, NULL, &sampler)) fail_msg("%s", ad_last_error());
  const ad_sample_model *model = &sampler->model;
  for (size_t i = 0; i < model->params.count; i++)
    for (size_t k = 0; k < ad_array_numel(&model->arrays[i]); k++)
      ad_array_set(&model->arrays[i], k, ad_random_normal(3, i, k));
  read_tokens(sampler, (const int32_t[]){1, 7, 3}, 3);
  memcpy(logits, ad_sampler_logits(sampler), 256 * sizeof *logits);
  ad_sampler_close(sampler);
  ad_recipe_destroy(recipe);
}

static void a_users_decoder_is_sampled_as_its_record_says(void **state) {
  static double logits[2][256];
  static ad_program_kind own;
  own = *ad_gpt();
  own.name = "own";
  own.sampling.prepare = note_preparing;
  if (ad_program_register(&own)) fail_msg("%s", ad_last_error());
  read_kind("gpt", logits[0]);
  assert_int_equal(prepared, 0);
  read_kind("own", logits[1]);
  assert_int_equal(prepared, 1);
  assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

static void refuses(const char *name, const char *from, const ad_sampler_options *options, const char *const *facts) {
  ad_sampler *sampler = NULL;
  assert_int_not_equal(ad_sampler_open(from, options, &sampler), AD_OK);
  assert_says_in(name, ad_last_error(), facts);
  assert_null(sampler);
}

static void what_does_not_fit_is_refused(void **state) {
  const char *model = "programs/tests/oracle/fixtures/hf-llama/model";
  ad_sampler *sampler = open_sampler("hf-llama", AD_F32, 0, 0);
  int32_t token = 43, chosen;
  assert_int_equal(ad_sampler_choose(sampler, &chosen), AD_INVALID);
  assert_null(ad_sampler_logits(sampler));
  assert_int_equal(ad_sampler_read(sampler, &token, 1), AD_INVALID);
  assert_says("0", "43", "42");
  token = -1;
  assert_int_equal(ad_sampler_read(sampler, &token, 1), AD_INVALID);
  assert_int_equal(ad_sampler_read(sampler, &token, 0), AD_INVALID);
  assert_null(ad_sampler_logits(sampler));
  ad_sampler_close(sampler);
  refuses("no model", "programs/tests/oracle/fixtures", NULL,
          SAYS_FACTS("programs/tests/oracle/fixtures", "config.json"));
  refuses("no folder", "no/such/folder", NULL, SAYS_FACTS("no/such/folder", "No such"));
  refuses("temperature", model, &(ad_sampler_options){.size = sizeof(ad_sampler_options), .temperature = -1},
          SAYS_FACTS("-1", "0"));
  refuses("dtype", model, &(ad_sampler_options){.size = sizeof(ad_sampler_options), .dtype = AD_F16},
          SAYS_FACTS("f16"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(logits_are_those_of_transformers),
      cmocka_unit_test(a_part_follows_a_part),
      cmocka_unit_test(greedy_tokens_are_those_of_generate),
      cmocka_unit_test(draws_follow_the_softmax),
      cmocka_unit_test(draws_are_those_of_the_header),
      cmocka_unit_test(wide_parameters_are_wide),
      cmocka_unit_test(kept_keys_are_of_the_tokens_before),
      cmocka_unit_test(logits_in_bf16_are_near),
      cmocka_unit_test(every_blocks_bias_chooses_its_experts),
      cmocka_unit_test(what_does_not_fit_is_refused),
      cmocka_unit_test(a_users_decoder_is_sampled_as_its_record_says),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
