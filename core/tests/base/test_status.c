/* Tests statuses and error messages, text in buffers of fixed size, and the log callback. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/text.h"
#include "says.h"

static void every_status_has_a_name_and_a_sentence_of_its_own(void **state) {
  for (int i = 0; i < AD_STATUS_COUNT; i++) {
    assert_true(strlen(ad_status_name((ad_status)i)) > 0);
    assert_true(strlen(ad_status_sentence((ad_status)i)) > 5);
    for (int j = 0; j < i; j++) {
      assert_string_not_equal(ad_status_name((ad_status)i), ad_status_name((ad_status)j));
      assert_string_not_equal(ad_status_sentence((ad_status)i), ad_status_sentence((ad_status)j));
    }
  }
  assert_int_equal(AD_OK, 0);
  assert_string_equal(ad_status_name(AD_RANK_DIED), "rank-died");
}

static void a_number_that_is_no_status_is_unknown(void **state) {
  assert_string_equal(ad_status_name((ad_status)-1), "unknown");
  assert_string_equal(ad_status_name(AD_STATUS_COUNT), "unknown");
  assert_true(strlen(ad_status_sentence(AD_STATUS_COUNT)) > 0);
}

static void a_failure_records_its_message(void **state) {
  assert_int_equal(ad_fail(AD_TYPE, "axis %s has %d ranks", "tp", 3), AD_TYPE);
  assert_says("tp", "3");
}

static void a_prefix_goes_before_the_message(void **state) {
  (void)ad_fail(AD_IO, "it ends early");
  assert_int_equal(ad_fail_in(AD_INVALID, "%s:%d", "a.yaml", 7), AD_INVALID);
  assert_says("a.yaml:7");
}

static void the_last_message_may_be_part_of_the_next(void **state) {
  (void)ad_fail(AD_IO, "inner");
  (void)ad_fail(AD_IO, "outer (%s)", ad_last_error());
  assert_listed();
}

static void what_fails_identically_on_all_ranks_is_known_until_the_next_message(void **state) {
  (void)ad_fail_on_all_ranks(AD_IO, "it is not there: %d", 7);
  assert_says("7");
  assert_true(ad_last_error_is_on_all_ranks());
  (void)ad_fail_in(AD_IO, "folder");
  assert_says("7");
  assert_true(ad_last_error_is_on_all_ranks());
  (void)ad_fail(AD_IO, "here alone");
  assert_false(ad_last_error_is_on_all_ranks());
}

static void an_overlong_message_is_cut(void **state) {
  char text[AD_MESSAGE_MAX + 100];
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = 0;
  (void)ad_fail(AD_INVALID, "%s", text);
  assert_int_equal(strlen(ad_last_error()), AD_MESSAGE_MAX - 1);
  (void)ad_fail_in(AD_INVALID, "%s", text);
  assert_int_equal(strlen(ad_last_error()), AD_MESSAGE_MAX - 1);
}

static void *fail_in_a_thread(void *message) {
  size_t before = strlen(ad_last_error());
  (void)ad_fail(AD_SYSTEM, "of the other thread");
  strcpy(message, ad_last_error());
  return (void *)before;
}

static void each_thread_has_its_own_message(void **state) {
  (void)ad_fail(AD_INVALID, "mine");
  char theirs[64];
  pthread_t thread;
  void *before;
  assert_int_equal(pthread_create(&thread, NULL, fail_in_a_thread, theirs), 0);
  pthread_join(thread, &before);
  assert_null(before);
  assert_string_equal(theirs, "of the other thread");
  assert_listed();
}

static ad_status try_twice(int *reached) {
  AD_TRY(AD_OK);
  *reached = 1;
  AD_TRY(AD_CYCLE);
  *reached = 2;
  return AD_OK;
}

static void a_try_returns_the_first_failure(void **state) {
  int reached = 0;
  assert_int_equal(try_twice(&reached), AD_CYCLE);
  assert_int_equal(reached, 1);
}

static void here_is_file_and_line(void **state) { assert_non_null(strstr(AD_HERE, "test_status.c:")); }

typedef struct heard {
  int count;
  ad_log_level level;
  char message[64];
} heard;

static void hear(void *context, ad_log_level level, const char *message) {
  heard *into = context;
  into->count++;
  into->level = level;
  snprintf(into->message, sizeof into->message, "%s", message);
}

static void the_log_goes_to_its_callback_or_nowhere(void **state) {
  heard got = {0};
  ad_set_log(hear, &got);
  ad_log(AD_LOG_WARNING, "count is %d", 0);
  assert_int_equal(got.count, 1);
  assert_int_equal(got.level, AD_LOG_WARNING);
  assert_string_equal(got.message, "count is 0");
  ad_set_log(NULL, NULL);
  ad_log(AD_LOG_WARNING, "unheard");
  assert_int_equal(got.count, 1);
}

static void a_text_grows_and_is_cut_at_its_buffer(void **state) {
  char buffer[8] = "before";
  ad_text text = ad_text_on(buffer, sizeof buffer);
  assert_string_equal(buffer, "");
  ad_text_add(&text, "%d", 123);
  ad_text_add(&text, "-%s", "45");
  assert_string_equal(text.data, "123-45");
  assert_int_equal(text.used, 6);
  ad_text_add(&text, "%s", "6789");
  assert_string_equal(buffer, "123-456");
  ad_text_add(&text, "more");
  assert_string_equal(buffer, "123-456");
  assert_int_equal(text.used, 7);
}

/* A character of UTF-8 is in the text as a whole or not at all, and nothing follows a cut. */
static void a_text_is_cut_between_characters(void **state) {
  static const char *const characters[] = {"e", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x99\x82"};
  for (size_t length = 1; length <= 4; length++)
    for (size_t size = 1; size < 16; size++) {
      char buffer[16], whole[32];
      ad_text text = ad_text_on(buffer, size);
      for (int i = 0; i < 5; i++) ad_text_add(&text, "%s", characters[length - 1]);
      size_t fit = (size - 1) / length < 5 ? (size - 1) / length : 5;
      for (size_t i = 0; i < fit; i++) memcpy(whole + i * length, characters[length - 1], length);
      whole[fit * length] = 0;
      assert_string_equal(buffer, whole);
      assert_int_equal(text.used, fit * length);
      ad_text_add(&text, "%s", "x");
      assert_int_equal(text.used, fit * length + (fit == 5 && size > 5 * length + 1));
    }
}

static void a_text_on_no_bytes_takes_nothing(void **state) {
  char untouched = 'x';
  ad_text text = ad_text_on(&untouched, 0);
  ad_text_add(&text, "abc");
  assert_int_equal(untouched, 'x');
  assert_int_equal(text.used, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_status_has_a_name_and_a_sentence_of_its_own),
      cmocka_unit_test(a_number_that_is_no_status_is_unknown),
      cmocka_unit_test(a_failure_records_its_message),
      cmocka_unit_test(a_prefix_goes_before_the_message),
      cmocka_unit_test(the_last_message_may_be_part_of_the_next),
      cmocka_unit_test(what_fails_identically_on_all_ranks_is_known_until_the_next_message),
      cmocka_unit_test(an_overlong_message_is_cut),
      cmocka_unit_test(each_thread_has_its_own_message),
      cmocka_unit_test(a_try_returns_the_first_failure),
      cmocka_unit_test(here_is_file_and_line),
      cmocka_unit_test(the_log_goes_to_its_callback_or_nowhere),
      cmocka_unit_test(a_text_grows_and_is_cut_at_its_buffer),
      cmocka_unit_test(a_text_is_cut_between_characters),
      cmocka_unit_test(a_text_on_no_bytes_takes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
