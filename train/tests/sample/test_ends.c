/* Tests which tokens end a text: those of generation_config.json or, if that names none, of config.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "sample/ends.h"
#include "says.h"

#define SIXTEEN "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"

static char folder[64];

static void write_config(const char *name, const char *end) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  unlink(path);
  if (!end) return;
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fprintf(file, *end ? "{\"eos_token_id\": %s}" : "{}%s", end);
  fclose(file);
}

/* end: the value of eos_token_id; "": the file has none; NULL: there is no file. */
static void the_first_file_that_names_some_is_taken(void **state) {
  static const struct {
    const char *generation, *config;
    const char *refused_by; /* the file that is named; NULL: it is accepted */
    int count;
    int64_t first, last;
  } cases[] = {
      {NULL, NULL, NULL, 0, 0, 0},
      {"", "", NULL, 0, 0, 0},
      {"5", NULL, NULL, 1, 5, 5},
      {NULL, "6", NULL, 1, 6, 6},
      {"5", "6", NULL, 1, 5, 5},
      {"", "6", NULL, 1, 6, 6},
      {"null", "[7, 8]", NULL, 2, 7, 8},
      {"[]", "[7, 8, 9]", NULL, 3, 7, 9},
      {"[3, 4]", "[7, 8, 9]", NULL, 2, 3, 4},
      {"[" SIXTEEN "]", NULL, NULL, AD_ENDS_MAX, 0, 15},
      {"[" SIXTEEN ", 16]", NULL, "generation_config.json", 0, 0, 0},
      {"\"5\"", "6", "generation_config.json", 0, 0, 0},
      {"[5, 2.5]", "6", "generation_config.json", 0, 0, 0},
      {NULL, "{}", "/config.json", 0, 0, 0},
      {"5", "{}", NULL, 1, 5, 5},
  };
  snprintf(folder, sizeof folder, "/tmp/addend-ends-XXXXXX");
  assert_non_null(mkdtemp(folder));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_ends found;
    write_config("generation_config.json", cases[i].generation);
    write_config("config.json", cases[i].config);
    ad_status status = ad_ends_read(folder, &found);
    assert_int_equal(status, cases[i].refused_by ? AD_INVALID : AD_OK);
    if (status) {
      assert_says("eos_token_id", "16");
      assert_non_null(strstr(ad_last_error(), cases[i].refused_by));
      continue;
    }
    assert_int_equal(found.count, cases[i].count);
    if (!found.count) continue;
    assert_int_equal(found.tokens[0], cases[i].first);
    assert_int_equal(found.tokens[found.count - 1], cases[i].last);
  }
  write_config("generation_config.json", NULL);
  write_config("config.json", NULL);
  assert_int_equal(rmdir(folder), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_file_that_names_some_is_taken)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
