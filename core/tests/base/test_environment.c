/* Tests that every environment variable that holds a number or a folder is refused if its value is not possible. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "base/environment.h"
#include "says.h"

static const struct {
  const char *name, *good[4], *bad[8], *facts[3];
} variables[] = {
    {"ADDEND_STAGING", {"0", "1"}, {"2", "-1", "x", "true", "01x"}, {"0", "1"}},
    {"ADDEND_BLAS_THREADS", {"1", "1024"}, {"0", "-1", "1025", "2x", "none", " 3"}, {"1", "1024"}},
    {"ADDEND_HOSTILE",
     {"0", "7", "4294967295"},
     {"foo", "-1", "+1", "4294967296", "18446744073709551617"},
     {"0", "4294967295"}},
    {"ADDEND_FLIGHT_DIR", {".", "/tmp"}, {"/nonexist", "/proc/self/status"}, {NULL}},
    {"ADDEND_DUMP", {".", "/tmp"}, {"/nonexist", "/proc/self/status"}, {NULL}},
    {"ADDEND_DUMP_STEP", {"0", "3"}, {"-1", "x", "4294967296"}, {"0", "4294967295"}},
};
enum { VARIABLES = sizeof variables / sizeof *variables };

static void what_cannot_be_is_refused_by_name(void **state) {
  for (int i = 0; i < VARIABLES; i++) {
    for (int k = 0; variables[i].bad[k]; k++) {
      setenv(variables[i].name, variables[i].bad[k], 1);
      assert_int_equal(ad_environment_check(), AD_INVALID);
      assert_says(variables[i].name, variables[i].bad[k]);
      assert_says_all(variables[i].facts);
      assert_int_equal(ad_environment_number(variables[i].name, 77), 77);
    }
    unsetenv(variables[i].name);
  }
}

static void what_can_be_is_taken_and_empty_is_not_set(void **state) {
  for (int i = 0; i < VARIABLES; i++) {
    for (int k = 0; variables[i].good[k]; k++) {
      setenv(variables[i].name, variables[i].good[k], 1);
      assert_int_equal(ad_environment_check(), AD_OK);
      assert_string_equal(ad_environment_text(variables[i].name), variables[i].good[k]);
    }
    setenv(variables[i].name, "", 1);
    assert_int_equal(ad_environment_check(), AD_OK);
    assert_null(ad_environment_text(variables[i].name));
    unsetenv(variables[i].name);
  }
  setenv("ADDEND_BLAS_THREADS", "12", 1);
  assert_int_equal(ad_environment_number("ADDEND_BLAS_THREADS", 1), 12);
  unsetenv("ADDEND_BLAS_THREADS");
  assert_int_equal(ad_environment_number("ADDEND_BLAS_THREADS", 1), 1);
}

int main(void) {
  for (int i = 0; i < VARIABLES; i++) unsetenv(variables[i].name);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_cannot_be_is_refused_by_name),
      cmocka_unit_test(what_can_be_is_taken_and_empty_is_not_set),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
