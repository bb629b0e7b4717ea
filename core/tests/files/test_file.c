/* Tests how files are read when the system gives less than they should have, and which entries of a folder are listed. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/memory.h"
#include "files/file.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

static char folder[64];

static const char *at(const char *name) {
  static char path[4][128];
  static int next;
  char *out = path[next++ % 4];
  snprintf(out, sizeof path[0], "%s/%s", folder, name);
  return out;
}

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_true(file && fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-file-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  write_file(at("words"), "0123456789");
  return 0;
}

static int remove_folder(void **state) { return ad_folder_remove(folder) != AD_OK; }

/* ---- reading ---- */

/* What `read` answers from now on: reasons (< 0), or at most so many bytes; NULL: what the system does. */
static const int *answers;

ssize_t __real_read(int file, void *data, size_t size);
ssize_t __wrap_read(int file, void *data, size_t size);

ssize_t __wrap_read(int file, void *data, size_t size) {
  if (!answers) return __real_read(file, data, size);
  int answer = *answers++;
  if (answer >= 0) return __real_read(file, data, (size_t)answer < size ? (size_t)answer : size);
  errno = -answer;
  return -1;
}

/* Reads the file of ten bytes with these answers. */
static ad_status read_with(const int *next) {
  char *text = NULL;
  int64_t size = -1;
  answers = next;
  ad_status status = ad_file_read(at("words"), 10, &text, &size);
  answers = NULL;
  if (status) {
    assert_null(text);
    assert_int_equal(size, -1);
    return status;
  }
  assert_int_equal(size, 10);
  assert_string_equal(text, "0123456789");
  ad_release(text);
  return AD_OK;
}

static void a_file_is_read_in_as_many_pieces_as_it_comes(void **state) {
  must(read_with((const int[]){10}));
  must(read_with((const int[]){1, 2, 7}));
  must(read_with((const int[]){-EINTR, 4, -EINTR, -EINTR, 6}));
}

static void a_file_that_ends_early_or_fails_is_no_file(void **state) {
  assert_int_equal(read_with((const int[]){0}), AD_IO);
  assert_says(at("words"), "0", "10");
  assert_int_equal(read_with((const int[]){4, 3, 0}), AD_IO);
  assert_says(at("words"), "7", "10");
  assert_int_equal(read_with((const int[]){4, -EIO}), AD_IO);
  assert_says(at("words"));
}

static void a_file_may_be_as_large_as_is_allowed(void **state) {
  char *text = NULL;
  int64_t size = 0;
  for (int64_t most = 9; most <= 11; most++) {
    ad_status status = ad_file_read(at("words"), most, &text, &size);
    assert_int_equal(status, most < 10 ? AD_IO : AD_OK);
    if (status) assert_says(at("words"), "10", "9");
    if (!status) ad_release(text);
  }
}

/* ---- listing ---- */

static char passed[8][2][128]; /* path and kind of what was skipped */
static int passed_count;

static void note(const char *path, const char *what) {
  snprintf(passed[passed_count][0], sizeof passed[0][0], "%s", path);
  snprintf(passed[passed_count++][1], sizeof passed[0][1], "%s", what);
}

static void links_and_pipes_in_a_folder_are_passed_over_and_reported(void **state) {
  ad_file_list list = {.passed = note};
  must(ad_folder_make(at("tree/b")));
  write_file(at("tree/c"), "ccc");
  write_file(at("tree/b/x"), "x");
  write_file(at("tree/a"), "");
  assert_int_equal(symlink(at("words"), at("tree/d")), 0);
  assert_int_equal(mkfifo(at("tree/b/pipe"), 0600), 0);
  must(ad_file_list_add(&list, at("tree")));
  static const char *const names[] = {"tree/a", "tree/b/x", "tree/c"};
  static const int64_t sizes[] = {0, 1, 3};
  assert_int_equal(list.count, 3);
  for (size_t i = 0; i < 3; i++) {
    assert_string_equal(list.entries[i].path, at(names[i]));
    assert_int_equal(list.entries[i].size, sizes[i]);
  }
  assert_int_equal(passed_count, 2);
  assert_string_equal(passed[0][0], at("tree/b/pipe"));
  assert_string_equal(passed[1][0], at("tree/d"));
  assert_null(strstr(passed[0][1], "link"));
  assert_non_null(strstr(passed[1][1], "link"));
  must(ad_file_list_add(&list, at("tree/d"))); /* a link that is named is followed */
  assert_int_equal(list.entries[3].size, 10);
  ad_file_list_clear(&list);
  must(ad_folder_remove(at("tree/b")));
  must(ad_folder_remove(at("tree")));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_file_is_read_in_as_many_pieces_as_it_comes),
      cmocka_unit_test(a_file_that_ends_early_or_fails_is_no_file),
      cmocka_unit_test(a_file_may_be_as_large_as_is_allowed),
      cmocka_unit_test(links_and_pipes_in_a_folder_are_passed_over_and_reported),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
