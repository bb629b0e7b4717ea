/* Tests that text from outside (file names, file contents) is printed without control characters that a terminal would
 * obey. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "base/error.h"
#include "base/printable.h"
#include "says.h"
#include "addend/helpers.h"

static void prints(const char *text, const char *printed) {
  char buffer[128];
  assert_string_equal(ad_printable(text, buffer, sizeof buffer), printed);
}

static void texts_stay_as_they_are(void **state) {
  prints("", "");
  prints("runs/gpt-text 1~", "runs/gpt-text 1~");
  prints("\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82\xc2\xa0", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82\xc2\xa0");
}

static void what_a_terminal_obeys_is_escaped(void **state) {
  prints("a\x1b[31mb", "a\\x1b[31mb");
  prints("\a\b\t\r\n\x7f", "\\x07\\x08\\x09\\x0d\\x0a\\x7f");
  prints(
      "\xc2\x9b"
      "31m",
      "\\xc2\\x9b31m"); /* CSI (begins a terminal command) as one character */
}

/* A name that shows another end than it has, and one that breaks a line. */
static void what_turns_the_direction_of_text_is_escaped(void **state) {
  prints("w\xe2\x80\xaegpj.exe", "w\\xe2\\x80\\xaegpj.exe");
  prints(
      "\xe2\x81\xa6"
      "a\xe2\x81\xa9",
      "\\xe2\\x81\\xa6a\\xe2\\x81\\xa9");
  prints("\xd8\x9c\xe2\x80\x8f\xe2\x80\xa8", "\\xd8\\x9c\\xe2\\x80\\x8f\\xe2\\x80\\xa8");
  prints("\xd7\xa9\xd8\xa7\xe2\x80\x8d\xe2\x80\xa6\xe2\x82\xac",
         "\xd7\xa9\xd8\xa7\xe2\x80\x8d\xe2\x80\xa6\xe2\x82\xac");
  for (unsigned code = 0x80; code < 0x10000; code++) {
    char text[4] = {(char)(0xc0 | code >> 6), (char)(0x80 | (code & 63)), 0};
    if (code >= 0x800)
      memcpy(text, (char[]){(char)(0xe0 | code >> 12), (char)(0x80 | (code >> 6 & 63)), (char)(0x80 | (code & 63)), 0},
             4);
    int obeyed = code < 0xa0 || code == 0x61c || code == 0x200e || code == 0x200f ||
                 (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    unsigned found = 0;
    assert_int_equal(ad_control_at(text, &found), obeyed ? strlen(text) : 0);
    if (obeyed) assert_int_equal(found, code);
  }
}

static void bytes_that_are_no_text_are_escaped(void **state) {
  prints("\x9b", "\\x9b");
  prints("\xff.svg", "\\xff.svg");
  prints("\xc3", "\\xc3"); /* a cut-off character */
  prints("\xe2\x82", "\\xe2\\x82");
  prints("\xc0\x9b", "\\xc0\\x9b");
  prints("\xf8\x88\x80\x80\x80", "\\xf8\\x88\\x80\\x80\\x80");
}

static void what_has_no_room_is_cut_between_pieces(void **state) {
  char buffer[6] = "?????";
  assert_string_equal(ad_printable("ab\x1b", buffer, sizeof buffer), "ab");
  assert_string_equal(ad_printable("abcd\xc3\xa4", buffer, sizeof buffer), "abcd");
  assert_string_equal(ad_printable("abc\xc3\xa4", buffer, sizeof buffer), "abc\xc3\xa4");
  buffer[0] = 'x';
  assert_int_equal(ad_printable("ab", buffer, 0)[0], 'x');
}

static char heard[256];
static void hear(void *context, ad_log_level level, const char *message) { strncpy(heard, message, sizeof heard - 1); }

static void messages_are_printable(void **state) {
  ad_fail(AD_IO, "%s: cannot be read", "a\x1b[31mb");
  assert_says("x1b[31mb");
  ad_fail_in(AD_IO, "%s", "\x1b");
  assert_says("x1b", "x1b[31mb");
  ad_fail(AD_IO, "one\ntwo"); /* line breaks stay: lists of errors have several lines */
  assert_listed();
  ad_set_log(hear, NULL);
  ad_log(AD_LOG_WARNING, "%s", "\x1b]0;title\a");
  ad_set_log(NULL, NULL);
  assert_string_equal(heard, "\\x1b]0;title\\x07");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts_stay_as_they_are),
      cmocka_unit_test(what_a_terminal_obeys_is_escaped),
      cmocka_unit_test(what_turns_the_direction_of_text_is_escaped),
      cmocka_unit_test(bytes_that_are_no_text_are_escaped),
      cmocka_unit_test(what_has_no_room_is_cut_between_pieces),
      cmocka_unit_test(messages_are_printable),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
