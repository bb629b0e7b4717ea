/* Reads which tokens end a text of a model. */
#include "sample/ends.h"

#include <jansson.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"
#include "files/json.h"

static ad_status add_end(const char *path, const json_t *token, ad_ends *out) {
  if (!json_is_integer(token) || out->count == AD_ENDS_MAX)
    return ad_fail(AD_INVALID, "%s: `eos_token_id` must be a token number or a list of at most %d token numbers", path,
                   AD_ENDS_MAX);
  out->tokens[out->count++] = json_integer_value(token);
  return AD_OK;
}

static ad_status read_ends(const char *path, const json_t *tokens, ad_ends *out) {
  size_t i;
  const json_t *token;
  if (!tokens || json_is_null(tokens)) return AD_OK;
  if (!json_is_array(tokens)) return add_end(path, tokens, out);
  json_array_foreach((json_t *)tokens, i, token) AD_TRY(add_end(path, token, out));
  return AD_OK;
}

static ad_status read_file(const char *path, ad_ends *out) {
  json_t *document;
  if (out->count || access(path, F_OK)) return AD_OK;
  AD_TRY(ad_json_read(path, &document));
  ad_status status = read_ends(path, json_object_get(document, "eos_token_id"), out);
  json_decref(document);
  return status;
}

ad_status ad_ends_read(const char *folder, ad_ends *out) {
  static const char *const names[] = {"generation_config.json", "config.json"};
  *out = (ad_ends){0};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char *path;
    AD_TRY(ad_path_in(folder, names[i], &path));
    ad_status status = read_file(path, out);
    ad_release(path);
    if (status) return status;
  }
  return AD_OK;
}
