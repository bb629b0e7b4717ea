/* Tests that the manual page has every recipe key of every kind, as the schema describes it. Command line options are
 * compared in train/tests/cli. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "recipe/schema.h"
#include "program/program.h"

enum { PAGE_MAX = 1 << 20 };
static char page[PAGE_MAX];

static int read_page(void **state) {
  FILE *file = fopen(AD_TEST_SOURCE "/docs/addend.1", "r");
  size_t length = file ? fread(page, 1, sizeof page - 1, file) : 0;
  if (file) fclose(file);
  return length == 0;
}

/* Prints the entry of a key as the manual page must have it. */
static void entry_of(const ad_key *key, char *out, size_t size) {
  char head[256], help[256];
  if (!key->fallback)
    snprintf(head, sizeof head, ".BR %s \" (must be given)\"", key->path);
  else if (!*key->fallback)
    snprintf(head, sizeof head, ".B %s", key->path);
  else
    snprintf(head, sizeof head, ".BR %s \" (default %s)\"", key->path, key->fallback);
  snprintf(out, size, ".TP\n%s\n%s\n", head, ad_key_help(key, help, sizeof help));
}

static void has_every_key_of(const ad_program_kind *kind) {
  ad_schema schema;
  const char *at = strstr(page, "\n.SH RECIPE KEYS\n");
  assert_non_null(at);
  assert_int_equal(ad_schema_create(kind, &schema), AD_OK);
  for (size_t i = 0; i < schema.count; i++) {
    char entry[1024];
    entry_of(&schema.entries[i].key, entry, sizeof entry);
    at = strstr(at, entry);  // entries must have the schema's order
    if (!at) fail_msg("docs/addend.1 does not have, or has in another place:\n%s", entry);
  }
  ad_schema_release(&schema);
}

static void every_key_is_described_as_in_the_schema(void **state) {
  assert_non_null(ad_program_kinds()[0]);
  for (const ad_program_kind *const *kind = ad_program_kinds(); *kind; kind++) has_every_key_of(*kind);
}

static int some_kind_has(const char *path) {
  int has = 0;
  for (const ad_program_kind *const *kind = ad_program_kinds(); *kind; kind++) {
    ad_schema schema;
    assert_int_equal(ad_schema_create(*kind, &schema), AD_OK);
    has |= ad_schema_find(&schema, path) != NULL;
    ad_schema_release(&schema);
  }
  return has;
}

static void no_other_key_is_described(void **state) {
  const char *section = strstr(page, "\n.SH RECIPE KEYS\n"), *end = strstr(section + 1, "\n.SH ");
  for (const char *at = section; (at = strstr(at, "\n.TP\n")) && at < end; at += 5) {
    char path[128];
    assert_int_equal(sscanf(at + 5, ".B%*[R ]%127s", path), 1);
    if (!some_kind_has(path)) fail_msg("docs/addend.1 describes %s, which no recipe has", path);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_key_is_described_as_in_the_schema),
      cmocka_unit_test(no_other_key_is_described),
  };
  return cmocka_run_group_tests(tests, read_page, NULL);
}
