/* Collecting everything that is wrong with a recipe and making one message of it. What is wrong is found elsewhere. */
#include "recipe/mistakes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"

enum { LISTED_MAX = 100, TEXT_MAX = 1024 };

/* What was read may hold anything; a message is one printable line. */
static void make_printable(char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

static ad_status make_room(ad_mistakes *mistakes) {
  if (mistakes->count < mistakes->capacity) return AD_OK;
  size_t capacity = mistakes->capacity ? 2 * mistakes->capacity : 8;
  AD_TRY(ad_grow(&mistakes->entries, mistakes->capacity, capacity));
  mistakes->capacity = capacity;
  return AD_OK;
}

static int comes_after(const ad_mistake *a, const ad_mistake *b) {
  return a->order != b->order ? a->order > b->order : a->line > b->line;
}

static ad_status insert(ad_mistakes *mistakes, ad_place place, const char *text) {
  ad_mistake mistake = {place.order, place.line, NULL};
  AD_TRY(make_room(mistakes));
  AD_TRY(ad_copy_string(text, &mistake.text));
  size_t at = mistakes->count++;
  for (; at > 0 && comes_after(&mistakes->entries[at - 1], &mistake); at--)
    mistakes->entries[at] = mistakes->entries[at - 1];
  mistakes->entries[at] = mistake;
  return AD_OK;
}

/* "--set PATH" says the path already. */
static int names_path(ad_place place, const char *path) {
  return place.order && !strcmp(place.origin + strlen("--set "), path);
}

static void add(ad_mistakes *mistakes, ad_status kind, ad_place place, const char *path, const char *format,
                va_list arguments) {
  if (mistakes->status == AD_OK || (mistakes->status == AD_IO && kind == AD_INVALID)) mistakes->status = kind;
  if (mistakes->count == LISTED_MAX) {
    mistakes->unlisted++;
    return;
  }
  char buffer[TEXT_MAX], message[TEXT_MAX];
  vsnprintf(message, sizeof message, format, arguments);
  ad_text text = ad_text_on(buffer, sizeof buffer);
  ad_text_add(&text, "%s", place.origin);
  if (place.line) ad_text_add(&text, ":%lld", (long long)place.line);
  if (*path && !names_path(place, path)) ad_text_add(&text, ": %s", path);
  ad_text_add(&text, ": %s", message);
  make_printable(buffer);
  if (insert(mistakes, place, buffer)) mistakes->status = AD_MEMORY;
}

void ad_mistakes_add(ad_mistakes *mistakes, ad_place place, const char *path, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add(mistakes, AD_INVALID, place, path, format, arguments);
  va_end(arguments);
}

void ad_mistakes_add_io(ad_mistakes *mistakes, ad_place place, const char *path, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add(mistakes, AD_IO, place, path, format, arguments);
  va_end(arguments);
}

/* As many lines as a message holds, and how many more there are. */
ad_status ad_mistakes_report(const ad_mistakes *mistakes) {
  if (mistakes->status == AD_OK) return AD_OK;
  if (mistakes->status == AD_MEMORY) return ad_fail(AD_MEMORY, "no memory for the list of the recipe's mistakes");
  enum { MORE = 40 };  // characters of the last line
  char buffer[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(buffer, sizeof buffer);
  size_t i = 0;
  for (; i < mistakes->count && text.used + strlen(mistakes->entries[i].text) + MORE < sizeof buffer; i++)
    ad_text_add(&text, "%s%s", i ? "\n" : "", mistakes->entries[i].text);
  size_t left = mistakes->count - i + mistakes->unlisted;
  if (left) ad_text_add(&text, "\nand %zu more", left);
  return ad_fail(mistakes->status, "%s", buffer);
}

void ad_mistakes_clear(ad_mistakes *mistakes) {
  for (size_t i = 0; i < mistakes->count; i++) ad_release(mistakes->entries[i].text);
  ad_release(mistakes->entries);
  *mistakes = (ad_mistakes){0};
}
