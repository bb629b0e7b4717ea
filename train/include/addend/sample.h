/* Generates tokens with a trained decoder: one process, one sequence. Keys and values of earlier tokens are kept, so
 * each token is computed once. Only for programs that can continue a text (ad_program_kind.sampling).
 *
 * For users. Only one thread at a time may use a sampler. */
#ifndef ADDEND_SAMPLE_H
#define ADDEND_SAMPLE_H
#include <stdint.h>
#include "addend/dtype.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_sampler ad_sampler;

typedef struct ad_sampler_options {
  size_t size;    /* sizeof(ad_sampler_options) */
  ad_dtype dtype; /* dtype of the computation and of the weights: AD_F32 (default), AD_BF16 or AD_F64 */
  /* 0: the next token is the one with the largest logit, the first of equal ones. Above 0: it is drawn from
   * softmax(logits / temperature), with the first number of the draw (seed, XXH64("sample"), number of tokens read so
   * far); data.h describes draws. */
  double temperature;
  uint64_t seed;
} ad_sampler_options;

/* Opens a sampler. `from` is the folder of a run (its weights.safetensors or its newest checkpoint, as for ad_export),
 * or of a model saved by Transformers (as for model.from). Reads all weights. AD_INVALID: the folder is neither, or
 * belongs to a program that has no next token; AD_IO; AD_MEMORY. */
AD_API AD_CHECKED ad_status ad_sampler_open(const char *from, const ad_sampler_options *options, ad_sampler **out);
AD_API void ad_sampler_close(ad_sampler *sampler); /* NULL allowed */

/* Returns the number of tokens in the vocabulary; tokens are numbered from 0. */
AD_API int64_t ad_sampler_vocabulary(const ad_sampler *sampler);
/* Returns 1 if each token is a byte of text: in runs on data.text, and in a folder with 256 tokens and no
 * tokenizer.json. */
AD_API int ad_sampler_tokens_are_bytes(const ad_sampler *sampler);
/* Returns 1 if the model ends its text with this token (eos_token_id of generation_config.json or config.json). */
AD_API int ad_sampler_ends(const ad_sampler *sampler, int32_t token);

/* Reads tokens [count], at least 1: adds them to the sequence. AD_INVALID: a token is outside the vocabulary. After
 * any other error the sequence is lost: call ad_sampler_begin. */
AD_API AD_CHECKED ad_status ad_sampler_read(ad_sampler *sampler, const int32_t *tokens, int64_t count);
/* Returns the logits [vocabulary] of the token after those read so far; valid until the next call. NULL: no token was
 * read. */
AD_API const double *ad_sampler_logits(const ad_sampler *sampler);
/* Chooses the next token by the options, without reading it. AD_INVALID: no token was read. */
AD_API AD_CHECKED ad_status ad_sampler_choose(const ad_sampler *sampler, int32_t *token);
/* Forgets the sequence and begins a new one. */
AD_API void ad_sampler_begin(ad_sampler *sampler);

#if defined(__cplusplus)
}
#endif
#endif
