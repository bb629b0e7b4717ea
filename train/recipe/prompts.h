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

/* Returns 1 if the prompt is text and the program reads tokens from data.tokens: then a tokenizer must make the
 * prompt's tokens. A prompt of token numbers needs no tokenizer. */
int ad_prompt_needs_tokenizer(const ad_recipe *recipe, size_t index);
/* Returns 1 if the model's tokens are bytes: it reads text files, or it has 256 tokens and no tokenizer (NULL). */
int ad_prompts_are_bytes(const ad_recipe *recipe, const char *tokenizer);
/* Reads a prompt without a tokenizer: its token numbers, or else its bytes. AD_INVALID if it has no token, too many
 * tokens, or one outside the vocabulary; the message continues the key's name. */
ad_status ad_prompt_read(const ad_recipe *recipe, size_t index, ad_prompt *out) AD_CHECKED;
/* Checks a prompt with tokens from the caller, as ad_prompt_read checks the prompts that it reads. */
ad_status ad_prompt_check(const ad_recipe *recipe, const ad_prompt *prompt) AD_CHECKED;
/* Finds the tokenizer.json that belongs to the run: that of model.from, else the one beside the tokens, else the one in
 * `folder`. *out NULL: there is none. Release it with ad_release. */
ad_status ad_prompts_tokenizer(const ad_recipe *recipe, const char *folder, char **out) AD_CHECKED;
/* Complains of prompts that cannot be continued, as far as that shows without a tokenizer, each at its own place. */
void ad_prompts_check(const ad_recipe *recipe, const ad_complaints *to);

#endif
