/* The prompts of a recipe (evaluate.prompts) as tokens. */
#ifndef RECIPE_PROMPTS_H
#define RECIPE_PROMPTS_H
#include "addend/recipe.h"
#include "program/keys.h"

enum { AD_PROMPTS_MAX = 64, AD_PROMPT_TOKENS_MAX = 4096 /* the most tokens of a prompt and of its continuation */ };
enum { AD_BYTE_TOKENS = 256 }; /* the vocabulary of a model whose tokens are bytes */

typedef struct ad_prompt {
  int32_t *tokens; /* release with ad_release, even after an error */
  int64_t count;
} ad_prompt;

/* Returns 1 if the prompt is text and the program reads data.tokens, so that a tokenizer must make the prompt's tokens.
 * A prompt of token numbers needs no tokenizer. */
int ad_prompt_needs_tokenizer(const ad_recipe *recipe, size_t index);
/* Returns 1 if the model's tokens are bytes: it reads files of text, or it has 256 tokens and `tokenizer` is NULL. */
int ad_prompts_are_bytes(const ad_recipe *recipe, const char *tokenizer);
/* Reads a prompt of token numbers or of bytes, without a tokenizer. Returns AD_INVALID if it has no token, too many
 * tokens, or a token outside the vocabulary; the message continues the name of the key. */
ad_status ad_prompt_read(const ad_recipe *recipe, size_t index, ad_prompt *out) AD_CHECKED;
/* Checks a prompt whose tokens the caller made, as ad_prompt_read checks a prompt that it reads. */
ad_status ad_prompt_check(const ad_recipe *recipe, const ad_prompt *prompt) AD_CHECKED;
/* Finds the tokenizer.json of a run: that of model.from, else the one beside the files of tokens, else the one in
 * `folder`. Sets *out to NULL if there is none. Release with ad_release. */
ad_status ad_prompts_tokenizer(const ad_recipe *recipe, const char *folder, char **out) AD_CHECKED;
/* Complains about each prompt that cannot be continued, if this can be seen without a tokenizer. */
void ad_prompts_check(const ad_recipe *recipe, const ad_complaints *to);

#endif
