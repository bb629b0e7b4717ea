/* The manual page has every key of a recipe, as the schema describes it. Its options are compared in tests/cli. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "recipe/schema.h"

enum { PAGE_MAX = 1 << 20 };
static char page[PAGE_MAX];

static int read_page(void **state) {
  FILE *file = fopen(AD_TEST_SOURCE "/docs/addend.1", "r");
  size_t length = file ? fread(page, 1, sizeof page - 1, file) : 0;
  if (file) fclose(file);
  return length == 0;
}

/* The entry of a key, as it must stand there. */
static void entry_of(const ad_key *key, char *out, size_t size) {
  char head[256];
  if (!key->fallback)
    snprintf(head, sizeof head, ".BR %s \" (must be given)\"", key->path);
  else if (!*key->fallback)
    snprintf(head, sizeof head, ".B %s", key->path);
  else
    snprintf(head, sizeof head, ".BR %s \" (default %s)\"", key->path, key->fallback);
  snprintf(out, size, ".TP\n%s\n%s\n", head, key->help);
}

static void every_key_is_described_as_in_the_schema(void **state) {
  size_t count;
  const ad_key *keys = ad_schema(&count);
  const char *at = strstr(page, "\n.SH RECIPE KEYS\n");
  assert_non_null(at);
  for (size_t i = 0; i < count; i++) {
    char entry[1024];
    if (keys[i].kind == AD_KEY_LATER) continue;
    entry_of(&keys[i], entry, sizeof entry);
    at = strstr(at, entry);  // in the order of the schema
    if (!at) fail_msg("docs/addend.1 lacks, or has in another place:\n%s", entry);
  }
}

static void no_other_key_is_described(void **state) {
  const char *section = strstr(page, "\n.SH RECIPE KEYS\n"), *end = strstr(section + 1, "\n.SH ");
  for (const char *at = section; (at = strstr(at, "\n.TP\n")) && at < end; at += 5) {
    char path[128];
    assert_int_equal(sscanf(at + 5, ".B%*[R ]%127s", path), 1);
    if (!ad_schema_find(path)) fail_msg("docs/addend.1 describes %s, which no recipe has", path);
  }
}

static void names_of_later_versions_are_listed(void **state) {
  size_t count;
  const ad_key *keys = ad_schema(&count);
  const char *list = strstr(page, "\n.BR views ");
  assert_non_null(list);
  for (size_t i = 0; i < count; i++)
    if (keys[i].kind == AD_KEY_LATER && !strstr(list, keys[i].path)) fail_msg("docs/addend.1 lacks %s", keys[i].path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_key_is_described_as_in_the_schema),
      cmocka_unit_test(no_other_key_is_described),
      cmocka_unit_test(names_of_later_versions_are_listed),
  };
  return cmocka_run_group_tests(tests, read_page, NULL);
}
