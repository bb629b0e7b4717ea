/* Writes samples.jsonl: how the model continues each prompt of the recipe, at each evaluation. */
#ifndef TRAIN_PROMPTS_H
#define TRAIN_PROMPTS_H
#include <stdio.h>
#include "addend/sample.h"
#include "recipe/prompts.h"
#include "step/run.h"

/* Filled on the first rank only. Other ranks have an empty one, but they take part in collectives. */
typedef struct ad_prompts {
  ad_prompt *list; /* the recipe's prompts; NULL if this rank does not sample */
  size_t count;
  const ad_train_options *options;
  char *tokenizer; /* path of the tokenizer; NULL if there is none, or if tokens are bytes */
  ad_sampler *sampler;
  FILE *file;
  char *path;
} ad_prompts;

/* Checks, before ranks start, that every prompt can be converted to tokens, with a tokenizer if it needs one. Returns
 * AD_INVALID with the key in the message. Not collective. */
ad_status ad_prompts_try(const ad_recipe *recipe, const ad_train_options *options) AD_CHECKED;
/* On the first rank, makes the sampler, which allocates memory for all parameters, and opens the file, in which lines
 * of steps before `first_step` are kept. There is no sampler if the recipe has no prompts. Borrows the options. */
ad_status ad_prompts_open(const ad_recipe *recipe, const ad_train_options *options, int64_t first_step,
                          ad_prompts *out) AD_CHECKED;
/* Continues each prompt with the present parameters, and writes a line for each. Does not change the run. Collective if
 * the recipe has prompts. */
ad_status ad_prompts_sample(ad_prompts *prompts, ad_run *run, int64_t step) AD_CHECKED;
/* Returns the bytes that this rank needs for prompts in addition to its share of the training. On rank 0 this is a copy
 * of all parameters and states, and a second copy of the largest one while it is gathered. It is 0 on other ranks, and
 * without prompts. Local. */
size_t ad_prompts_bytes(const ad_run *run);
ad_status ad_prompts_close(ad_prompts *prompts) AD_CHECKED; /* returns AD_IO if lines were lost */
void ad_prompts_destroy(ad_prompts *prompts);

#endif
