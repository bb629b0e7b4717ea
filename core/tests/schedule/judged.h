/* Helpers: a schedule table as text, and what the laws of tables say of it. */
#ifndef TESTS_SCHEDULE_JUDGED_H
#define TESTS_SCHEDULE_JUDGED_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include <cmocka.h>
#include "addend/schedule.h"
#include "says.h"

static inline ad_table *table_of(const char *text) {
  ad_table *table;
  if (ad_table_parse(text, strlen(text), "test", &table, NULL)) fail_msg("%s", ad_last_error());
  return table;
}

/* Checks that the table obeys all laws; destroys it. */
static inline void table_holds(ad_table *table, const ad_table_options *options) {
  if (ad_table_check(table, options)) fail_msg("%s", ad_last_error());
  ad_table_destroy(table);
}
static inline void holds_with(const char *text, const ad_table_options *options) {
  table_holds(table_of(text), options);
}
static inline void holds(const char *text) { holds_with(text, NULL); }

/* Checks that `law` is the first law that the table breaks, and that its message is recorded; destroys the table. */
static inline void table_breaks_law(ad_table *table, const ad_table_options *options, const char *law) {
  char *json;
  int right;
  assert_int_equal(ad_table_report(table, options, &right, &json), AD_OK);
  json_t *document = json_loads(json, 0, NULL), *first = json_array_get(json_object_get(document, "broken"), 0);
  const char *reported = json_string_value(json_object_get(first, "message"));
  if (right || !reported || strcmp(json_string_value(json_object_get(first, "law")), law) != 0) fail_msg("%s", json);
  assert_int_equal(ad_table_check(table, options), AD_INVALID);
  assert_string_equal(ad_last_error(), reported);
  json_decref(document);
  free(json);
  ad_table_destroy(table);
}
/* The same, with the facts of the message. */
#define table_breaks(table, options, law, ...) (table_breaks_law((table), (options), (law)), assert_says(__VA_ARGS__))
#define breaks_with(text, options, law, ...) table_breaks(table_of(text), (options), (law), __VA_ARGS__)
#define breaks(text, law, ...) breaks_with((text), NULL, (law), __VA_ARGS__)

#endif
