/* The helpers of tests/support/says.h: what counts as a fact, and which sentences the golden file has to list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include "says.h"

#define MISSING(text, ...) says_missing((text), SAYS_FACTS(__VA_ARGS__))

static void a_fact_is_a_whole_name_or_number(void **state) {
  assert_null(MISSING("rank 12 has `emb.w` over dp, 2.5e-07 of it", "rank 12", "12", "emb.w", "dp", "2.5e-07"));
  assert_non_null(MISSING("rank 12", "rank 1"));
  assert_non_null(MISSING("rank 12", "2"));
  assert_non_null(MISSING("over dp_shard", "dp"));
  assert_non_null(MISSING("`emb.w`", "emb.b"));
}

static void numbers_are_in_the_order_of_the_message(void **state) {
  const char text[] = "row 2: 3 of 4 ranks, at most 3, not -1.5";
  assert_null(MISSING(text, "2", "3", "4", "3", "-1.5"));
  assert_null(MISSING(text, "4", "row 2", "-1.5"));
  assert_non_null(MISSING(text, "4", "2"));
  assert_non_null(MISSING(text, "3", "3", "4"));
}

static void an_option_a_shape_and_the_subject_are_facts(void **state) {
  const char text[] =
      "  axes: mine.c:7: rotary: shapes [2,3] and [2] differ without --resume, or -o with --no-resume-all: see that";
  assert_null(MISSING(text, "axes", "rotary", "[2,3]", "--resume", "-o", "--no-resume-all"));
  assert_non_null(strstr(MISSING(text, "see"), "prose"));
  assert_non_null(strstr(MISSING(text, "that"), "prose"));
  assert_non_null(strstr(MISSING(text, "shapes"), "prose"));
  assert_non_null(MISSING("--resume-all", "--resume"));
  assert_non_null(MISSING("--no", "-no"));
}

static void a_word_of_prose_is_no_fact(void **state) {
  const char text[] = "the mesh must have `block` first, on \"dp=2 tp=3\" and gloo";
  assert_null(MISSING(text, "block", "dp=2 tp=3", "dp=2"));
  assert_null(MISSING("summed over efsdp,etp", "efsdp,etp"));
  assert_null(MISSING("--set name: is empty", "--set name"));
  assert_non_null(strstr(MISSING("summed over ep,all", "ep,all"), "prose"));
  assert_non_null(strstr(MISSING(text, "must"), "prose"));
  assert_non_null(strstr(MISSING(text, "gloo"), "prose"));
  assert_non_null(strstr(MISSING("at most 3 rows of it", "most 3 rows of"), "prose"));
}

// Sets the variable that makes sentences recorded, or takes it away.
static void set_golden(const char *folder) {
  if (folder)
    assert_int_equal(setenv("ADDEND_GOLDEN", folder, 1), 0);
  else
    unsetenv("ADDEND_GOLDEN");
}

static void a_sentence_that_is_not_listed_fails(void **state) {
  const char *given = getenv("ADDEND_GOLDEN"), *const none[] = {NULL};
  char kept[4096] = "";
  if (given) snprintf(kept, sizeof kept, "%s", given);
  set_golden(NULL);
  const char *wrong = says_wrong("nobody says this", none, __FILE__, __func__);
  assert_non_null(strstr(wrong, "tests/golden/base.txt does not list, for says.a_sentence_that_is_not_listed_fails"));
  assert_non_null(strstr(wrong, "script/golden base"));
  if (given) set_golden(kept);
}

static void what_differs_from_run_to_run_is_not_in_the_sentence(void **state) {
  char folder[] = "/tmp/addend_says_XXXXXX", text[256];
  assert_non_null(mkdtemp(folder));
  assert_int_equal(rmdir(folder), 0);
  snprintf(text, sizeof text, "%s/a/b.npy.0123456789abcdef.tmp: at %s/x.c, test_says.c:%d: `a/b` and /tmp\nfollow",
           folder, AD_TEST_SOURCE, (int)getpid());
  const char *const facts[] = {"b.npy", NULL};
  says_or_fail(says_wrong(text, facts, __FILE__, __func__), __FILE__, __LINE__);
}

static void the_line_that_has_all_facts_is_the_sentence(void **state) {
  const char text[] = "a.w  1\na.w  2  dp\na.w  2  tp\n";
  assert_text_says(text, "a.w", "2");
  const char *const facts[] = {"a.w", "3", NULL};
  assert_non_null(strstr(says_wrong_line(text, facts, __FILE__, __func__), "no line has a.w 3"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_fact_is_a_whole_name_or_number),
      cmocka_unit_test(numbers_are_in_the_order_of_the_message),
      cmocka_unit_test(an_option_a_shape_and_the_subject_are_facts),
      cmocka_unit_test(a_word_of_prose_is_no_fact),
      cmocka_unit_test(a_sentence_that_is_not_listed_fails),
      cmocka_unit_test(what_differs_from_run_to_run_is_not_in_the_sentence),
      cmocka_unit_test(the_line_that_has_all_facts_is_the_sentence),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
