/* Collects the errors that the reader of a recipe finds, and makes one message of them. */
#include "recipe/errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"

enum { LISTED_MAX = 100, TEXT_MAX = 1024 };

static ad_status make_room(ad_recipe_errors *errors) {
  if (errors->count < errors->capacity) return AD_OK;
  size_t capacity = errors->capacity ? 2 * errors->capacity : 8;
  AD_TRY(ad_grow(&errors->entries, errors->capacity, capacity));
  errors->capacity = capacity;
  return AD_OK;
}

static int comes_after(const ad_recipe_error *a, const ad_recipe_error *b) {
  return a->order != b->order ? a->order > b->order : a->line > b->line;
}

static ad_status insert(ad_recipe_errors *errors, ad_recipe_place place, const char *text) {
  ad_recipe_error error = {place.order, place.line, NULL};
  AD_TRY(make_room(errors));
  AD_TRY(ad_copy_string(text, &error.text));
  size_t at = errors->count++;
  for (; at > 0 && comes_after(&errors->entries[at - 1], &error); at--) errors->entries[at] = errors->entries[at - 1];
  errors->entries[at] = error;
  return AD_OK;
}

/* Returns 1 if the origin of `place`, "--set PATH", already has the path. */
static int names_path(ad_recipe_place place, const char *path) {
  return place.order && !strcmp(place.origin + strlen("--set "), path);
}

/* Adds an error of the status `kind`, AD_INVALID or AD_IO. The status of the report is AD_INVALID if any error has
 * it. */
static void add_error(ad_recipe_errors *errors, ad_status kind, ad_recipe_place place, const char *path,
                      const char *format, va_list arguments) {
  if (errors->status == AD_OK || (errors->status == AD_IO && kind == AD_INVALID)) errors->status = kind;
  if (errors->count == LISTED_MAX) {
    errors->unlisted++;
    return;
  }
  char buffer[TEXT_MAX], message[TEXT_MAX], printable[TEXT_MAX];
  vsnprintf(message, sizeof message, format, arguments);
  ad_text text = ad_text_on(buffer, sizeof buffer);
  ad_text_add(&text, "%s", place.origin);
  if (place.line) ad_text_add(&text, ":%lld", (long long)place.line);
  if (*path && !names_path(place, path)) ad_text_add(&text, ": %s", path);
  ad_text_add(&text, ": %s", message);
  // A recipe may contain any bytes, but an error must be one line.
  ad_printable(buffer, printable, sizeof printable);
  if (insert(errors, place, printable)) errors->status = AD_MEMORY;
}

void ad_recipe_errors_add(ad_recipe_errors *errors, ad_recipe_place place, const char *path, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add_error(errors, AD_INVALID, place, path, format, arguments);
  va_end(arguments);
}

void ad_recipe_errors_add_io(ad_recipe_errors *errors, ad_recipe_place place, const char *path, const char *format,
                             ...) {
  va_list arguments;
  va_start(arguments, format);
  add_error(errors, AD_IO, place, path, format, arguments);
  va_end(arguments);
}

/* Makes a message of as many lines as fit. If errors are left out, the last line has their number. */
ad_status ad_recipe_errors_report(const ad_recipe_errors *errors) {
  if (errors->status == AD_OK) return AD_OK;
  if (errors->status == AD_MEMORY) return ad_fail(AD_MEMORY, "no memory for the list of the recipe's errors");
  enum { MORE = 40 };  // characters of the last line, which has the number of errors that are left out
  char buffer[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(buffer, sizeof buffer);
  size_t i = 0;
  for (; i < errors->count && text.used + strlen(errors->entries[i].text) + MORE < sizeof buffer; i++)
    ad_text_add(&text, "%s%s", i ? "\n" : "", errors->entries[i].text);
  size_t left = errors->count - i + errors->unlisted;
  if (left) ad_text_add(&text, "\nand %zu more", left);
  return ad_fail(errors->status, "%s", buffer);
}

void ad_recipe_errors_clear(ad_recipe_errors *errors) {
  for (size_t i = 0; i < errors->count; i++) ad_release(errors->entries[i].text);
  ad_release(errors->entries);
  *errors = (ad_recipe_errors){0};
}
