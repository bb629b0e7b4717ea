/* Tests what a build without FreeType answers where lines of text are to be drawn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* The functions of this file, beside those that draw. */
#define ad_line_font_check plain_font_check
#define ad_line_data_open plain_open
#define ad_line_data_draw plain_draw
#define ad_line_data_close plain_close
#define ad_line_data_bytes plain_bytes
#define ad_line_data_checksum plain_checksum
#define ad_line_data_font_checksum plain_font_checksum
#include <cmocka.h>
#include "says.h"
#include "addend/data.h"
#include "../../data/without_lines.c"

static void drawing_is_refused_and_freetype_named(void **state) {
  ad_line_options options = {0};
  ad_line_data *lines = NULL;
  ad_line line;
  assert_int_equal(plain_font_check(&options, "font.ttf"), AD_INVALID);
  assert_says("FreeType", "script/setup");
  assert_int_equal(plain_open(&options, &lines), AD_INVALID);
  assert_null(lines);
  assert_int_equal(plain_draw(NULL, 1, AD_TRAINING_PART, 0, &line, NULL, NULL), AD_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(drawing_is_refused_and_freetype_named)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
