/* Checks the recipe keys data.text, data.tokens and data.mask, and the files that they name. */
#include "decoder/text_keys.h"

#include <stdio.h>
#include "addend/data.h"

void ad_text_check(const ad_text_options *text, const ad_complaints *to) {
  if (!text->text_count && !text->token_count)
    ad_complain(to, "data.text",
                "there is no training data; set data.text to files or folders of text, or data.tokens to .npy files of "
                "token ids");
  if (text->text_count && text->token_count)
    ad_complain(to, "data.tokens",
                "a run trains on data.text or on data.tokens, but both keys are set; leave one of the two out");
  if (text->mask_count && !text->token_count)
    ad_complain(
        to, "data.mask",
        "needs data.tokens, which is not set; leave data.mask out, since all bytes of data.text count in the loss");
  if (text->mask_count && text->token_count && text->mask_count != text->token_count)
    ad_complain(to, "data.mask",
                "must have one file for each file of data.tokens, but has %zu files for %zu files of tokens",
                text->mask_count, text->token_count);
}

typedef struct checked {
  const char *key; /* "data.text", for example */
  char *const *paths;
  size_t count;
  /* Checks the files from index *at on. Sets *at to the index of the first unusable file, or to `count` if there is
   * none. */
  ad_status (*check)(const char *const *paths, size_t count, int64_t vocabulary, size_t *at);
} checked;

static ad_status check_text(const char *const *paths, size_t count, int64_t vocabulary, size_t *at) {
  ad_status status = AD_OK;
  while (*at < count && !(status = ad_text_path_check(paths[*at]))) ++*at;
  return status;
}

static ad_status check_mask(const char *const *paths, size_t count, int64_t vocabulary, size_t *at) {
  return ad_token_masks_check(paths, count, at);
}

/* Complains about each unusable file. Returns how many there are. */
static size_t check_each(const checked *files, int64_t vocabulary, const ad_complaints *to) {
  size_t wrong = 0;
  for (size_t at = 0; at < files->count; at++) {
    char key[40];
    ad_status status = files->check((const char *const *)files->paths, files->count, vocabulary, &at);
    if (!status) break;
    snprintf(key, sizeof key, "%s[%zu]", files->key, at);
    ad_complain_of(to, key, status);
    wrong++;
  }
  return wrong;
}

static size_t check_all(const ad_text_options *text, int64_t vocabulary, const ad_complaints *to) {
  const checked files[] = {{"data.text", text->text, text->text_count, check_text},
                           {"data.tokens", text->tokens, text->token_count, ad_token_files_check},
                           {"data.mask", text->mask, text->mask_count, check_mask}};
  size_t wrong = 0;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) wrong += check_each(&files[i], vocabulary, to);
  return wrong;
}

static void check_tokens(const ad_text_options *text, int64_t vocabulary, const ad_complaints *to) {
  ad_text_data *data;
  if (text->mask_count && text->mask_count != text->token_count) return;
  ad_status status = ad_text_open(text, vocabulary, 1, &data);
  if (status)
    ad_complain_of(to, "data.tokens", status);
  else
    ad_text_data_close(data);
}

void ad_text_check_files(const ad_text_options *text, int64_t vocabulary, const ad_complaints *to) {
  if (check_all(text, vocabulary, to) || text->seq < 1 || !text->text_count == !text->token_count) return;
  if (text->token_count) {
    check_tokens(text, vocabulary, to);
    return;
  }
  ad_status status = ad_text_data_check((const char *const *)text->text, text->text_count, text->seq, text->validation);
  if (status) ad_complain_of(to, status == AD_INVALID ? "data.seq" : "data.text", status);
}

ad_status ad_text_open(const ad_text_options *text, int64_t vocabulary, int unread, ad_text_data **out) {
  ad_token_options tokens = {.size = sizeof tokens,
                             .tokens = (const char *const *)text->tokens,
                             .masks = (const char *const *)text->mask,
                             .count = text->token_count,
                             .seq = text->seq,
                             .validation = text->validation,
                             .vocabulary = vocabulary};
  const char *const *paths = (const char *const *)text->text;
  if (text->token_count) return ad_text_data_open_tokens(&tokens, out);
  return unread ? ad_text_data_open_unread(paths, text->text_count, text->seq, text->validation, out)
                : ad_text_data_open(paths, text->text_count, text->seq, text->validation, out);
}
