/* Lists the keys that --set may name in recipes of all programs. Shells complete command lines from this list. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/text_stream.h"
#include "program/program.h"
#include "recipe/schema.h"

/* Returns 1 if the list has this line. `line` ends in a line end; it must match at the beginning of a line of the
 * list. */
static int has_line(const ad_text_stream *list, const char *line) {
  const char *found = list->text ? strstr(list->text, line) : NULL;
  while (found && found != list->text && found[-1] != '\n') found = strstr(found + 1, line);
  return found != NULL;
}

/* Adds a path, unless it is in the list. --set replaces a list of maps only as a whole, so for a key of such maps the
 * path of the list is added. */
static void add_path(ad_text_stream *list, const char *path) {
  char line[256];
  size_t length = ad_schema_list_length(path);
  ad_text text = ad_text_on(line, sizeof line);
  ad_text_add(&text, "%.*s\n", (int)(length ? length : strlen(path)), path);
  if (!has_line(list, line)) fputs(line, list->file);
  fflush(list->file);
}

static ad_status add_kind(ad_text_stream *list, const ad_program_kind *kind) {
  ad_schema schema;
  AD_TRY(ad_schema_create(kind, &schema));
  for (size_t i = 0; i < schema.count; i++) add_path(list, schema.entries[i].key.path);
  ad_schema_release(&schema);
  return AD_OK;
}

static ad_status add_kinds(ad_text_stream *list) {
  for (const ad_program_kind *const *kind = ad_program_kinds(); *kind; kind++) AD_TRY(add_kind(list, *kind));
  return AD_OK;
}

ad_status ad_recipe_keys(char **out) {
  AD_NEED(out);
  ad_text_stream list;
  AD_TRY(ad_text_stream_open("the list of keys", &list));
  return ad_text_stream_close(&list, add_kinds(&list), out);
}
