/* Checks the value of each option of a program against its key, and passes complaints on. The program's own `check`
 * judges combinations of values. */
#include "program/keys.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/text.h"

/* ---- adding complaints ---- */

void ad_complain(const ad_complaints *to, const char *key, const char *format, ...) {
  char message[AD_MESSAGE_MAX];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  to->add(to->context, key, AD_INVALID, message);
}

void ad_complain_of(const ad_complaints *to, const char *key, ad_status status) {
  to->add(to->context, key, status, ad_last_error());
}

/* ---- checking single values ---- */

int ad_key_refuses(const ad_key *key, double value, const char *written, char words[AD_KEY_WORDS_SIZE]) {
  int above = key->open_least ? value > key->least : value >= key->least;
  int below = key->open_most ? value < key->most : value <= key->most;
  if (above && below) return 0;
  snprintf(words, AD_KEY_WORDS_SIZE, "must be %s %.15g, but is %.60s",
           above ? (key->open_most ? "below" : "at most") : (key->open_least ? "above" : "at least"),
           above ? key->most : key->least, written);
  return 1;
}

size_t ad_key_value_size(const ad_key *key) {
  static const size_t sizes[] = {[AD_KEY_INTEGER] = sizeof(int64_t),
                                 [AD_KEY_NUMBER] = sizeof(double),
                                 [AD_KEY_BOOLEAN] = sizeof(int),
                                 [AD_KEY_TEXT] = sizeof(char *),
                                 [AD_KEY_VIEW] = sizeof(char *),
                                 [AD_KEY_DTYPE] = sizeof(ad_dtype),
                                 [AD_KEY_GRADIENT] = sizeof(ad_dtype),
                                 [AD_KEY_SYNC] = sizeof(ad_sync),
                                 [AD_KEY_OVERRIDES] = 0,
                                 [AD_KEY_GROUPS] = 0,
                                 [AD_KEY_COUNT] = sizeof(int),
                                 [AD_KEY_SHARD_GROUPS] = 0};
  return sizes[key->kind];
}

static int count_words(const ad_key *key) {
  int count = 0;
  while (key->words[count]) count++;
  return count;
}

int ad_key_word(const ad_key *key, const char *text) {
  int has_none = !strcmp(key->words[0], "none");  // then `false` means none, and `true` the last word
  if (has_none && !strcmp(text, "false")) return 0;
  if (has_none && !strcmp(text, "true")) return count_words(key) - 1;
  for (int i = 0; key->words[i]; i++)
    if (!strcmp(text, key->words[i])) return i;
  return -1;
}

const char *ad_key_word_of(const ad_key *key, int number) {
  return key->words ? key->words[number] : number ? "true" : "false";
}

int ad_key_is_text(const ad_key *key) { return key->kind == AD_KEY_TEXT || key->kind == AD_KEY_VIEW; }

static void check_word(const ad_key *key, int number, const ad_complaints *to) {
  int count = count_words(key);
  if (number < 0 || number >= count)
    ad_complain(to, key->path, "must be the index of one of its %d words, counted from 0, but is %d; set such an index",
                count, number);
}

static void check_value(const ad_key *key, const void *at, const ad_complaints *to) {
  char written[40], words[AD_KEY_WORDS_SIZE];
  double value;
  if (key->kind == AD_KEY_INTEGER) {
    value = (double)*(const int64_t *)at;
    snprintf(written, sizeof written, "%lld", (long long)*(const int64_t *)at);
  } else if (key->kind == AD_KEY_COUNT) {
    value = *(const int *)at;
    snprintf(written, sizeof written, "%d", *(const int *)at);
  } else if (key->kind == AD_KEY_NUMBER) {
    value = *(const double *)at;
    if (key->word && value == 0) return;
    snprintf(written, sizeof written, "%.15g", value);
  } else if (key->words) {
    check_word(key, *(const int *)at, to);
    return;
  } else {
    return;
  }
  if (ad_key_refuses(key, value, written, words)) ad_complain(to, key->path, "%s", words);
}

static void check_list(const ad_key *key, const char *base, const ad_complaints *to) {
  const char *values = *(char *const *)(base + key->offset);
  size_t count = *(const size_t *)(base + key->second);
  for (size_t i = 0; i < count; i++) check_value(key, values + i * ad_key_value_size(key), to);
}

void ad_keys_check(const ad_program_kind *kind, const void *options, const ad_complaints *to) {
  const char *base = options;
  for (size_t i = 0; i < kind->key_count; i++) {
    const ad_key *key = &kind->keys[i];
    if (key->list)
      check_list(key, base, to);
    else
      check_value(key, base + key->offset, to);
  }
}

/* Completes a view that names axes of experts but not efsdp: adds efsdp=N after dp_replicate and before ep and etp, so
 * that the view has all ranks of the mesh. Sets *out to the completed view, which is in `whole`, or to `text` if `text`
 * is no mesh or no N gives all ranks. */
static ad_status add_efsdp(const ad_mesh *mesh, const char *text, char *whole, size_t size, const char **out) {
  ad_mesh *own;
  *out = text;
  ad_status status = ad_mesh_create_pool(text, ad_mesh_first_rank(mesh), &own);
  if (status) return status == AD_MEMORY ? status : AD_OK;
  int64_t ranks = ad_mesh_size(mesh), named = ad_mesh_size(own);
  int misses_efsdp = !(ad_mesh_named(own) & AD_AXES(AD_EFSDP)) && ranks % named == 0;
  ad_mesh_destroy(own);
  const char *first = strstr(text, "dp_replicate") ? strchr(strstr(text, "dp_replicate"), ' ') : text;
  if (!misses_efsdp || !first) return AD_OK;
  int length = snprintf(whole, size, "%.*s%sefsdp=%lld %s", (int)(first - text), text, first > text ? " " : "",
                        (long long)(ranks / named), first);
  if ((size_t)length < size) *out = whole;
  return AD_OK;
}

ad_status ad_key_view(const ad_mesh *mesh, const char *text, ad_mesh **out) {
  char whole[256];
  const char *view;
  AD_NEED(mesh, text, out);
  AD_TRY(add_efsdp(mesh, text, whole, sizeof whole, &view));
  return ad_mesh_create_view(mesh, view, out);
}

static void check_view(const ad_key *key, const char *text, const ad_mesh *mesh, const ad_complaints *to) {
  ad_mesh *view;
  ad_status status = ad_key_view(mesh, text, &view);
  if (status)
    ad_complain_of(to, key->path, status);
  else
    ad_mesh_destroy(view);
}

void ad_keys_check_views(const ad_program_kind *kind, const void *options, const ad_mesh *mesh,
                         const ad_complaints *to) {
  for (size_t i = 0; i < kind->key_count; i++) {
    const char *text;
    if (kind->keys[i].kind != AD_KEY_VIEW) continue;
    memcpy(&text, (const char *)options + kind->keys[i].offset, sizeof text);
    if (text) check_view(&kind->keys[i], text, mesh, to);
  }
}
