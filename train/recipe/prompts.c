/* Reads prompts of bytes and of token numbers. Prompts that need a tokenizer are encoded by the caller. */
#include "recipe/prompts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"
#include "program/program.h"

static const char separators[] = " ,\t\n", digits_and_separators[] = "0123456789 ,\t\n";

static const ad_text_options *text_of(const ad_recipe *recipe) {
  int64_t vocabulary;
  return ad_program_kind_text(recipe->program, recipe->options, &vocabulary);
}

static int64_t vocabulary_of(const ad_recipe *recipe) {
  int64_t vocabulary;
  ad_program_kind_text(recipe->program, recipe->options, &vocabulary);
  return vocabulary;
}

static int is_of_numbers(const char *text) { return !text[strspn(text, digits_and_separators)]; }

int ad_prompt_needs_tokenizer(const ad_recipe *recipe, size_t index) {
  return !text_of(recipe)->text_count && !is_of_numbers(recipe->evaluate.prompts[index]);
}

int ad_prompts_are_bytes(const ad_recipe *recipe, const char *tokenizer) {
  return text_of(recipe)->text_count || (!tokenizer && vocabulary_of(recipe) == AD_BYTE_TOKENS);
}

/* ---- reading a prompt's tokens ---- */

ad_status ad_prompt_check(const ad_recipe *recipe, const ad_prompt *prompt) {
  int64_t vocabulary = vocabulary_of(recipe);
  if (!prompt->count)
    return ad_fail(AD_INVALID, "the prompt has no tokens, so there is nothing to continue; give at least one token");
  if (prompt->count > AD_PROMPT_TOKENS_MAX)
    return ad_fail(AD_INVALID, "the prompt has %lld tokens, but at most %d are allowed; shorten it",
                   (long long)prompt->count, AD_PROMPT_TOKENS_MAX);
  for (int64_t i = 0; i < prompt->count; i++)
    if (prompt->tokens[i] < 0 || prompt->tokens[i] >= vocabulary)
      return ad_fail(AD_INVALID,
                     "token %lld (from 0) of the prompt is %d, but the model's vocabulary is %lld, so use tokens from "
                     "0 to %lld; change the prompt",
                     (long long)i, prompt->tokens[i], (long long)vocabulary, (long long)vocabulary - 1);
  return AD_OK;
}

static void take_bytes(const char *text, ad_prompt *out) {
  for (; *text; text++) out->tokens[out->count++] = (unsigned char)*text;
}

/* Reads token numbers. A number that is too large for a token becomes INT32_MAX, which is refused later. */
static void take_numbers(const char *text, ad_prompt *out) {
  for (text += strspn(text, separators); *text; text += strspn(text, separators)) {
    char *end;
    long long token = strtoll(text, &end, 10);
    out->tokens[out->count++] = token > INT32_MAX ? INT32_MAX : (int32_t)token;
    text = end;
  }
}

ad_status ad_prompt_read(const ad_recipe *recipe, size_t index, ad_prompt *out) {
  const char *text = recipe->evaluate.prompts[index];
  *out = (ad_prompt){0};
  AD_TRY(ad_new(strlen(text) + 1, &out->tokens));
  if (text_of(recipe)->text_count || !is_of_numbers(text))
    take_bytes(text, out);
  else
    take_numbers(text, out);
  return ad_prompt_check(recipe, out);
}

/* ---- finding the tokenizer ---- */

/* Releases *path and sets it to NULL if the file does not exist. */
static ad_status keep_if_there(ad_status status, char **path) {
  if (status || !*path || !access(*path, R_OK)) return status;
  ad_release(*path);
  *path = NULL;
  return AD_OK;
}

static ad_status find_in(const char *folder, char **out) {
  if (*out || !folder) return AD_OK;
  return keep_if_there(ad_path_in(folder, "tokenizer.json", out), out);
}

/* Finds tokenizer.json in the folder of the first file of tokens. */
static ad_status find_beside(const ad_text_options *text, char **out) {
  char *folder;
  if (*out || !text->token_count) return AD_OK;
  if (!strchr(text->tokens[0], '/')) return keep_if_there(ad_copy_string("tokenizer.json", out), out);
  AD_TRY(ad_copy_string(text->tokens[0], &folder));
  *strrchr(folder, '/') = 0;
  ad_status status = find_in(folder, out);
  ad_release(folder);
  return status;
}

ad_status ad_prompts_tokenizer(const ad_recipe *recipe, const char *folder, char **out) {
  *out = NULL;
  AD_TRY(find_in(recipe->from, out));
  AD_TRY(find_beside(text_of(recipe), out));
  return find_in(folder, out);
}

/* ---- checking prompts ---- */

static void check_prompt(const ad_recipe *recipe, size_t index, const ad_complaints *to) {
  char key[48];
  ad_prompt prompt = {0};
  if (ad_prompt_needs_tokenizer(recipe, index)) return;
  snprintf(key, sizeof key, "evaluate.prompts[%zu]", index);
  ad_status status = ad_prompt_read(recipe, index, &prompt);
  if (status) ad_complain_of(to, key, status);
  ad_release(prompt.tokens);
}

void ad_prompts_check(const ad_recipe *recipe, const ad_complaints *to) {
  static const char key[] = "evaluate.prompts";
  size_t count = recipe->evaluate.prompt_count;
  if (!count || !recipe->program || !recipe->program->sampling.next) return;
  if (!recipe->evaluate.every)
    ad_complain(to, key,
                "is set, but evaluate.every is 0, so no evaluation would continue the prompts; set evaluate.every to "
                "the number of steps between evaluations");
  if (count > AD_PROMPTS_MAX)
    ad_complain(to, key, "has %zu prompts, but at most %d are allowed; leave some out", count, AD_PROMPTS_MAX);
  for (size_t i = 0; i < count && count <= AD_PROMPTS_MAX; i++) check_prompt(recipe, i, to);
}
