/* Converts prompts to tokens and tokens to text with one tokenizer process. */
#include "encoding.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer.h"

static ad_cli_tokenizer own;
static int is_tried;

static int is_there(const char *path) {
  if (!is_tried) ad_cli_tokenizer_start(path, &own);
  is_tried = 1;
  return own.process != 0;
}

void ad_cli_encoding_end(void) {
  ad_cli_tokenizer_end(&own);
  is_tried = 0;
}

static ad_status take_tokens(const json_t *list, int32_t **tokens, int64_t *count) {
  size_t i;
  const json_t *token;
  *count = (int64_t)json_array_size(list);
  *tokens = malloc((size_t)*count * sizeof **tokens + 1);
  if (!*tokens) return ad_fail(AD_MEMORY, "no memory for %lld tokens", (long long)*count);
  json_array_foreach((json_t *)list, i, token)(*tokens)[i] = (int32_t)json_integer_value(token);
  return AD_OK;
}

ad_status ad_cli_encode(void *context, const char *tokenizer, const char *text, int32_t **tokens, int64_t *count) {
  if (!is_there(tokenizer))
    return ad_fail(AD_INVALID,
                   "the prompt is text, but the tokenizer %s cannot be used; write token numbers, such as \"17 4 250\"",
                   tokenizer);
  json_t *list = ad_cli_tokenizer_ask(&own, json_string(text));
  ad_status status =
      json_is_array(list)
          ? take_tokens(list, tokens, count)
          : ad_fail(AD_INVALID, "the tokenizer %s cannot encode the text; write the text in UTF-8", tokenizer);
  json_decref(list);
  return status;
}

char *ad_cli_decode(void *context, const char *tokenizer, const int32_t *tokens, int64_t count) {
  if (!is_there(tokenizer)) return NULL;
  json_t *list = json_array();
  for (int64_t i = 0; list && i < count; i++) json_array_append_new(list, json_integer(tokens[i]));
  json_t *text = ad_cli_tokenizer_ask(&own, list);
  char *copy = json_is_string(text) ? strdup(json_string_value(text)) : NULL;
  json_decref(text);
  return copy;
}
