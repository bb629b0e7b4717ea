/* Reads tokens and chooses the next token. */
#include "sample/sampler.h"

#include <math.h>
#include "base/random.h"
#include "addend/store.h"
#include "base/error.h"
#include "base/options.h"
#include "program/program.h"
#include "tensor/tape.h"
#include "nn/kept.h"

int64_t ad_sampler_vocabulary(const ad_sampler *sampler) { return sampler ? sampler->vocabulary : 0; }

int ad_sampler_tokens_are_bytes(const ad_sampler *sampler) { return sampler && sampler->are_bytes; }

int ad_sampler_ends(const ad_sampler *sampler, int32_t token) {
  for (int i = 0; sampler && i < sampler->ends.count; i++)
    if (sampler->ends.tokens[i] == token) return 1;
  return 0;
}

const double *ad_sampler_logits(const ad_sampler *sampler) { return sampler && sampler->read ? sampler->logits : NULL; }

/* ---- creating a sampler ---- */

static ad_status check_options(const ad_sampler_options *options) {
  if (options->dtype != AD_F32 && options->dtype != AD_F64 && options->dtype != AD_BF16)
    return ad_fail(AD_INVALID, "a sampler cannot compute in dtype %s; use f32, bf16 or f64",
                   ad_dtype_name(options->dtype));
  if (isfinite(options->temperature) && options->temperature >= 0) return AD_OK;
  return ad_fail(AD_INVALID, "the temperature is %g, but must be 0 (always the most probable token) or more",
                 options->temperature);
}

static ad_status create_kept(ad_sampler *sampler) {
  const ad_program *program = sampler->model.program;
  const ad_program_kind *kind = ad_program_kind_of(program);
  size_t count = AD_GUEST(kind, "sampling.kept_count", kind->sampling.kept_count(ad_program_own(program)));
  AD_TRY(ad_new(count, &sampler->kept));
  for (; sampler->kept_count < count; sampler->kept_count++)
    AD_TRY(ad_kept_keys_create(&sampler->kept[sampler->kept_count]));
  return AD_OK;
}

/* Allocates the list of the program's tensors, and the logits. */
static ad_status create_lists(ad_sampler *sampler) {
  const ad_sample_model *model = &sampler->model;
  AD_TRY(ad_new(model->params.count, &sampler->params));
  AD_TRY(ad_new(model->state_count, &sampler->states));
  for (size_t i = 0; i < model->state_count; i++) sampler->states[i] = &model->states[i];
  return ad_new((size_t)sampler->vocabulary, &sampler->logits);
}

static ad_status create_parts(const ad_recipe *recipe, ad_sampler *sampler) {
  ad_tape_options tape = {.size = sizeof tape, .dtype = sampler->options.dtype};
  AD_TRY(ad_sample_model_create(recipe, tape.dtype, &sampler->model));
  AD_TRY(ad_tape_create(sampler->model.comm, ad_program_mesh(sampler->model.program, 0), &tape, &sampler->tape));
  AD_TRY(create_kept(sampler));
  sampler->are_bytes = ad_program_kind_text(recipe->program, recipe->options, &sampler->vocabulary)->text_count > 0;
  return create_lists(sampler);
}

ad_status ad_sampler_create(const ad_recipe *recipe, const ad_sampler_options *options, ad_sampler **out) {
  ad_sampler *sampler;
  ad_sampler_options taken;
  AD_TRY(ad_options_take(&taken, sizeof taken, options, "ad_sampler_options"));
  if (!taken.dtype) taken.dtype = AD_F32;
  AD_TRY(check_options(&taken));
  AD_TRY(ad_new(1, &sampler));
  sampler->options = taken;
  sampler->window = recipe->window;
  ad_status status = create_parts(recipe, sampler);
  if (status)
    ad_sampler_close(sampler);
  else
    *out = sampler;
  return status;
}

void ad_sampler_begin(ad_sampler *sampler) {
  if (!sampler) return;
  for (size_t i = 0; i < sampler->kept_count; i++) ad_kept_keys_forget(sampler->kept[i]);
  sampler->read = 0;
}

void ad_sampler_close(ad_sampler *sampler) {
  if (!sampler) return;
  for (size_t i = 0; i < sampler->kept_count; i++) ad_kept_keys_destroy(sampler->kept[i]);
  ad_release(sampler->kept);
  ad_release(sampler->params);
  ad_release(sampler->states);
  ad_release(sampler->logits);
  ad_tape_destroy(sampler->tape);
  ad_sample_model_release(&sampler->model);
  ad_recipe_destroy(sampler->recipe);
  ad_release(sampler);
}

/* ---- reading tokens: a forward pass ---- */

static ad_status check_tokens(const ad_sampler *sampler, const int32_t *tokens, int64_t count) {
  int64_t vocabulary = ad_sampler_vocabulary(sampler);
  if (count < 1) return ad_fail(AD_INVALID, "the text has %lld tokens; give at least 1", (long long)count);
  for (int64_t i = 0; i < count; i++)
    if (tokens[i] < 0 || tokens[i] >= vocabulary)
      return ad_fail(AD_INVALID,
                     "token %lld (from 0) is %d, but the tokens of the model are 0 to %lld; give only such tokens",
                     (long long)i, tokens[i], (long long)vocabulary - 1);
  return AD_OK;
}

/* Returns the layout of tokens [1, count] on one rank: samples are sharded over the data-parallel axes. */
static ad_layout layout_of_tokens(const ad_mesh *mesh) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_DP_REPLICATE), AD_S(0));
  ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_S(0));
  return layout;
}

static ad_tensor *tensor_of_tokens(ad_tape *tape, const int32_t *tokens, int64_t count) {
  ad_shape shape = {2, {1, count}};
  ad_array array = {.dtype = AD_I32, .shape = shape, .local = shape, .layout = layout_of_tokens(ad_tape_mesh(tape))};
  array.data = (void *)(uintptr_t)tokens;
  return ad_constant(tape, &array);
}

static ad_tensor *next(ad_sampler *sampler, const int32_t *tokens, int64_t count) {
  const ad_sample_model *model = &sampler->model;
  const ad_program_kind *kind = ad_program_kind_of(model->program);
  for (size_t i = 0; i < model->params.count; i++) sampler->params[i] = ad_constant(sampler->tape, &model->arrays[i]);
  ad_continued from = {.size = sizeof from,
                       .params = sampler->params,
                       .states = sampler->states,
                       .tokens = tensor_of_tokens(sampler->tape, tokens, count),
                       .kept = sampler->kept};
  return AD_GUEST(kind, "sampling.next", kind->sampling.next(ad_program_own(model->program), sampler->tape, &from));
}

static void keep_logits(const ad_sampler *sampler, const ad_array *logits) {
  for (size_t i = 0; i < ad_array_numel(logits); i++) sampler->logits[i] = ad_array_get(logits, i);
}

static ad_status run_model(ad_sampler *sampler, const int32_t *tokens, int64_t count) {
  ad_tape_reset(sampler->tape);
  ad_tape_continue(sampler->tape, sampler->read);
  ad_tensor *logits = next(sampler, tokens, count);
  AD_TRY(ad_tape_status(sampler->tape));
  keep_logits(sampler, ad_tensor_array(logits));
  sampler->read += count;
  return AD_OK;
}

ad_status ad_sampler_read(ad_sampler *sampler, const int32_t *tokens, int64_t count) {
  AD_NEED(sampler, tokens);
  AD_TRY(check_tokens(sampler, tokens, count));
  if (sampler->window && count > sampler->window - sampler->read)
    return ad_fail(AD_INVALID,
                   "the model has a sliding window of %lld tokens (sliding_window in its config.json), which addend "
                   "does not compute, so prompt and continuation together may have at most %lld tokens; ask for fewer",
                   (long long)sampler->window, (long long)sampler->window);
  return run_model(sampler, tokens, count);
}

/* ---- choosing the next token ---- */

static int32_t largest(const double *logits, int64_t count) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; i++)
    if (logits[i] > logits[best]) best = i;
  return (int32_t)best;
}

/* Draws from the softmax: returns the first token at which the cumulative probability exceeds `part`, a number from 0
 * to 1. */
static int32_t drawn(const double *logits, int64_t count, double temperature, double part) {
  double most = logits[largest(logits, count)], sum = 0, so_far = 0;
  for (int64_t i = 0; i < count; i++) sum += exp((logits[i] - most) / temperature);
  for (int64_t i = 0; i < count; i++) {
    so_far += exp((logits[i] - most) / temperature);
    if (so_far > part * sum) return (int32_t)i;
  }
  return largest(logits, count);
}

ad_status ad_sampler_choose(const ad_sampler *sampler, int32_t *token) {
  AD_NEED(sampler, token);
  int64_t vocabulary = ad_sampler_vocabulary(sampler);
  if (!sampler->read)
    return ad_fail(AD_INVALID, "no token has been read yet, so there is no next token; call ad_sampler_read first");
  for (int64_t i = 0; i < vocabulary; i++)
    if (!isfinite(sampler->logits[i]))
      return ad_fail(
          AD_NUMBER,
          "the logit of token %lld is %g, which is not a finite number; the weights of the model may be damaged",
          (long long)i, sampler->logits[i]);
  uint64_t bits = ad_random_bits(sampler->options.seed, ad_checksum("sample", 6, 0), (uint64_t)sampler->read);
  double part = (double)(bits >> 11) * 0x1p-53;
  *token = sampler->options.temperature > 0 ? drawn(sampler->logits, vocabulary, sampler->options.temperature, part)
                                            : largest(sampler->logits, vocabulary);
  return AD_OK;
}
