/* Writes samples.jsonl: at each evaluation, how the model continues each prompt of the recipe. */
#ifndef TRAIN_PROMPTS_H
#define TRAIN_PROMPTS_H
#include <stdio.h>
#include "addend/sample.h"
#include "recipe/prompts.h"
#include "step/run.h"

/* Only the first rank fills this; on other ranks it is empty, but they, too, take part in collectives. */
typedef struct ad_prompts {
  ad_prompt *list; /* the recipe's prompts; NULL: this rank does not sample */
  size_t count;
  const ad_train_options *options;
  char *tokenizer; /* path of the tokenizer; NULL: there is none, or tokens are bytes */
  ad_sampler *sampler;
  FILE *file;
  char *path;
} ad_prompts;

/* Checks before ranks start that every prompt can be made into tokens, with a tokenizer if it needs one. AD_INVALID
 * names the key. Not collective. */
ad_status ad_prompts_try(const ad_recipe *recipe, const ad_train_options *options) AD_CHECKED;
/* On the first rank: makes the sampler, which takes memory for all parameters, and opens the file, keeping lines of
 * steps before `first_step`. Without prompts in the recipe there is no sampler. Borrows the options. */
ad_status ad_prompts_open(const ad_recipe *recipe, const ad_train_options *options, int64_t first_step,
                          ad_prompts *out) AD_CHECKED;
/* Continues each prompt with the present parameters and writes a line for each. Does not change the run. Collective if
 * the recipe has prompts. */
ad_status ad_prompts_sample(ad_prompts *prompts, ad_run *run, int64_t step) AD_CHECKED;
/* The bytes that this rank keeps for prompts beside its share of the training: on rank 0 a copy of all parameters and
 * states, and a second copy of the largest while it is gathered; 0 on other ranks and without prompts. Local. */
size_t ad_prompts_bytes(const ad_run *run);
ad_status ad_prompts_close(ad_prompts *prompts) AD_CHECKED; /* AD_IO if lines were lost */
void ad_prompts_destroy(ad_prompts *prompts);

#endif
