/* Tests the table of verdicts: each has words and an exit status, and only one means that it holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/verdict.h"
#include "base/verdict.h"

static void every_verdict_has_words_of_its_own(void **state) {
  for (int i = 0; i < AD_VERDICT_WORD_COUNT; i++) {
    assert_true(strlen(ad_verdict_words((ad_verdict_word)i)) > 6);
    for (int j = 0; j < i; j++)
      assert_string_not_equal(ad_verdict_words((ad_verdict_word)i), ad_verdict_words((ad_verdict_word)j));
  }
}

static void the_exit_status_is_0_only_where_it_matches(void **state) {
  for (int i = 0; i < AD_VERDICT_WORD_COUNT; i++) {
    assert_int_equal(ad_verdict_status((ad_verdict_word)i), i == AD_MATCHES ? 0 : 1);
  }
}

static void a_number_that_is_no_verdict_is_unknown(void **state) {
  static const int none[] = {-1, AD_VERDICT_WORD_COUNT};
  for (size_t i = 0; i < 2; i++) {
    assert_string_equal(ad_verdict_words((ad_verdict_word)none[i]), "unknown");
    assert_int_equal(ad_verdict_status((ad_verdict_word)none[i]), 3);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_verdict_has_words_of_its_own),
      cmocka_unit_test(the_exit_status_is_0_only_where_it_matches),
      cmocka_unit_test(a_number_that_is_no_verdict_is_unknown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
