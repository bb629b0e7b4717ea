/* The prompts of a recipe: evaluate.prompts, as tokens. */
#ifndef RECIPE_PROMPTS_H
#define RECIPE_PROMPTS_H
#include "addend/recipe.h"
#include "program/keys.h"

enum { AD_PROMPTS_MAX = 64, AD_PROMPT_TOKENS_MAX = 4096 /* most tokens of a prompt, and of its continuation */ };
enum { AD_BYTE_TOKENS = 256 }; /* the vocabulary of a model whose tokens are bytes */

typedef struct ad_prompt {
  int32_t *tokens; /* released with ad_release, also after an error */
  int64_t count;
} ad_prompt;

/* 1: the prompt is text, and the program reads tokens from data.tokens: a tokenizer makes its tokens. A list of numbers
 * of tokens needs none. */
int ad_prompt_needs_tokenizer(const ad_recipe *recipe, size_t index);
/* Whether the model's tokens are bytes: it reads text files, or has 256 tokens and there is no tokenizer (NULL). */
int ad_prompts_are_bytes(const ad_recipe *recipe, const char *tokenizer);
/* Reads a prompt without a tokenizer: the numbers that it names, or else its bytes. AD_INVALID, in words that follow
 * its key: it has no token, too many, or one beyond the vocabulary. */
ad_status ad_prompt_read(const ad_recipe *recipe, size_t index, ad_prompt *out) AD_CHECKED;
/* Checks a prompt whose tokens the caller made, as ad_prompt_read checks the prompts that it reads. */
ad_status ad_prompt_check(const ad_recipe *recipe, const ad_prompt *prompt) AD_CHECKED;
/* Finds the tokenizer.json that belongs to the run: that of model.from, else the one beside the tokens, else the one in
 * `folder`. *out NULL: there is none. Release it with ad_release. */
ad_status ad_prompts_tokenizer(const ad_recipe *recipe, const char *folder, char **out) AD_CHECKED;
/* Complains of prompts that cannot be continued, each at its own place, as far as that is known without a tokenizer. */
void ad_prompts_check(const ad_recipe *recipe, const ad_complaints *to);

#endif
