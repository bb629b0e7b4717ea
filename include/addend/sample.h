/* Tokens that a trained decoder goes on with: one process, one sequence, keys and values of earlier tokens kept, so
 * that each token is computed once. Programs gpt and moe. */
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
  ad_dtype dtype; /* what is computed in: AD_F32 (default), AD_BF16 or AD_F64; weights are kept in it */
  /* 0: the token with the largest logit, of equal ones the first. Above 0: drawn from softmax(logits / temperature),
   * with the first number of the draw (seed, XXH64("sample"), tokens read so far) as data.h describes draws. */
  double temperature;
  uint64_t seed;
} ad_sampler_options;

/* `from`: the folder of a run (its weights.safetensors or its newest checkpoint, as ad_export has it), or of a model as
 * Transformers saves it (as model.from has it). AD_INVALID: it is neither, or of a program that has no next token;
 * AD_IO; AD_MEMORY. Reads all weights. */
AD_API AD_CHECKED ad_status ad_sampler_open(const char *from, const ad_sampler_options *options, ad_sampler **out);
AD_API void ad_sampler_close(ad_sampler *sampler); /* NULL allowed */

/* How many tokens there are: they are numbered from 0. */
AD_API int64_t ad_sampler_vocabulary(const ad_sampler *sampler);
/* 1: a token is a byte of text, as in runs on data.text; so are the 256 tokens of a folder without tokenizer.json. */
AD_API int ad_sampler_tokens_are_bytes(const ad_sampler *sampler);
/* Whether the model ends its text with this token (eos_token_id of generation_config.json or config.json). */
AD_API int ad_sampler_ends(const ad_sampler *sampler, int32_t token);

/* Adds tokens [count], at least 1, to the sequence. AD_INVALID: a token that there is not. After another error the
 * sequence is lost: begin anew. */
AD_API AD_CHECKED ad_status ad_sampler_read(ad_sampler *sampler, const int32_t *tokens, int64_t count);
/* [vocabulary], of the token that follows those that were read; until the next call. NULL: none was read. */
AD_API const double *ad_sampler_logits(const ad_sampler *sampler);
/* Chooses the next token by the options; it is not read. AD_INVALID: nothing was read. */
AD_API AD_CHECKED ad_status ad_sampler_choose(const ad_sampler *sampler, int32_t *token);
/* Forgets the sequence. */
AD_API void ad_sampler_begin(ad_sampler *sampler);

#if defined(__cplusplus)
}
#endif
#endif
