/* Tests texts that are printed into memory: what is returned of a text that is whole, of printing that failed, and of a
 * text that did not find room, wherever that shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "base/text_stream.h"
#include "says.h"

/* What fails in the next stream. */
typedef enum failure { NOTHING, OPENING, PRINTING, CLOSING } failure;
static failure fails;

void *__real_open_memstream(char **text, size_t *size);
void *__wrap_open_memstream(char **text, size_t *size);
int __real_fclose(FILE *file);
int __wrap_fclose(FILE *file);
int __real_ferror(FILE *file);
int __wrap_ferror(FILE *file);

void *__wrap_open_memstream(char **text, size_t *size) {
  return fails == OPENING ? NULL : __real_open_memstream(text, size);
}

int __wrap_fclose(FILE *file) {
  int status = __real_fclose(file);
  return fails == CLOSING ? EOF : status;
}

int __wrap_ferror(FILE *file) {
  int has_failed = __real_ferror(file);
  return has_failed || fails == PRINTING;
}

/* Prints 4,000 lines; returns the status of all. */
static ad_status print_lines(failure which, ad_status printed, char **out) {
  ad_text_stream to;
  fails = which;
  ad_status status = ad_text_stream_open("the lines", &to);
  for (int i = 0; !status && i < 4000; i++) fprintf(to.file, "%d\n", i);
  if (!status) status = ad_text_stream_close(&to, printed, out);
  fails = NOTHING;
  return status;
}

static void a_text_of_any_length_is_whole(void **state) {
  char *text = NULL, *end;
  assert_int_equal(print_lines(NOTHING, AD_OK, &text), AD_OK);
  end = text;
  for (int i = 0; i < 4000; i++) assert_int_equal(strtol(end, &end, 10), i);
  assert_string_equal(end, "\n");
  free(text);
}

static void a_text_that_found_no_room_is_none(void **state) {
  for (failure which = OPENING; which <= CLOSING; which++) {
    char *text = NULL;
    assert_int_equal(print_lines(which, AD_OK, &text), AD_MEMORY);
    assert_listed();
    assert_null(text);
  }
}

/* The status of printing is returned, also where the text did not find room. */
static void printing_that_failed_leaves_no_text(void **state) {
  for (failure which = NOTHING; which <= CLOSING; which++) {
    char *text = NULL;
    if (which == OPENING) continue;
    assert_int_equal(print_lines(which, AD_TYPE, &text), AD_TYPE);
    assert_null(text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_text_of_any_length_is_whole),
      cmocka_unit_test(a_text_that_found_no_room_is_none),
      cmocka_unit_test(printing_that_failed_leaves_no_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
