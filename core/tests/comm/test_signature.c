/* Tests what a call publishes about itself to other ranks: its line in the program. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "comm/signature.h"

static void a_site_too_long_for_its_room_keeps_its_end(void **state) {
  static const size_t lengths[] = {0, 1, AD_SITE_MAX - 10, AD_SITE_MAX - 1, AD_SITE_MAX, 2 * AD_SITE_MAX};
  char site[3 * AD_SITE_MAX], room[2 * AD_SITE_MAX];
  for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
    size_t length = lengths[n], kept = length < AD_SITE_MAX ? length : AD_SITE_MAX - 1;
    memset(site, '!', sizeof site);
    memset(room, '?', sizeof room);
    for (size_t i = 0; i < length; i++) site[i] = (char)('a' + i % 26);
    site[length] = 0;
    ad_site_write(room, site);
    assert_int_equal(strlen(room), kept);
    assert_string_equal(room, site + length - kept);
    for (size_t i = kept + 1; i < sizeof room; i++) assert_int_equal(room[i], '?');
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_site_too_long_for_its_room_keeps_its_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
