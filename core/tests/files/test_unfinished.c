/* Tests files that are written whole or not at all: a failed write leaves the old file, and no symbolic link is written
 * through. */
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
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"
#include "base/unfinished.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

static char folder[64], path[96], other[96];

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-unfinished-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/file", folder);
  snprintf(other, sizeof other, "%s/other", folder);
  return 0;
}

static int remove_folder(void **state) { return ad_folder_remove(folder) != AD_OK; }

static ad_status put_words(FILE *file, void *context) {
  fputs(context, file);
  return AD_OK;
}

static ad_status fail_half_way(FILE *file, void *context) {
  fputs("half", file);
  return ad_fail(AD_INVALID, "half way");
}

static void holds(const char *name, const char *words) {
  char *text;
  int64_t size;
  must(ad_file_read(name, 1 << 20, &text, &size));
  assert_string_equal(text, words);
  ad_release(text);
}

static void files_are(size_t count) {
  ad_file_list list = {0};
  must(ad_file_list_add(&list, folder));
  assert_int_equal(list.count, count);
  ad_file_list_clear(&list);
}

static void a_file_is_replaced_when_it_is_whole(void **state) {
  must(ad_unfinished_write(path, put_words, "one", NULL));
  must(ad_unfinished_write(path, put_words, "two", NULL));
  holds(path, "two");
  files_are(1);
}

static void a_writer_that_fails_leaves_what_was_there(void **state) {
  must(ad_unfinished_write(path, put_words, "whole", NULL));
  assert_int_equal(ad_unfinished_write(path, fail_half_way, NULL, NULL), AD_INVALID);
  assert_listed();
  holds(path, "whole");
  files_are(1);
}

static void a_link_makes_way(void **state) {
  must(ad_unfinished_write(other, put_words, "victim", NULL));
  assert_int_equal(symlink(other, path), 0);
  must(ad_unfinished_write(path, put_words, "mine", NULL));
  holds(other, "victim");
  holds(path, "mine");
}

static void a_file_that_stays_open_takes_more(void **state) {
  FILE *file;
  must(ad_unfinished_write(path, put_words, "first ", &file));
  fputs("second", file);
  assert_int_equal(fclose(file), 0);
  holds(path, "first second");
}

static void what_is_no_file_is_not_replaced(void **state) {
  char folders[112];
  snprintf(folders, sizeof folders, "%s/folder", folder);
  assert_int_equal(mkdir(folders, 0777), 0);
  assert_int_equal(mkfifo(other, 0666), 0);
  assert_int_equal(symlink("/proc/self/fd/1", path), 0); /* a link like /dev/stdout */
  const char *const names[] = {folders, other, path, "/dev/null"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    struct stat before, after;
    assert_int_equal(lstat(names[i], &before), 0);
    assert_int_equal(ad_unfinished_write(names[i], put_words, "words", NULL), AD_IO);
    assert_says(names[i]);
    assert_int_equal(lstat(names[i], &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_mode == after.st_mode);
  }
  assert_int_equal(unlink(path), 0);
  assert_int_equal(symlink(other, path), 0); /* a link to a pipe */
  assert_int_equal(ad_unfinished_write(path, put_words, "words", NULL), AD_IO);
  assert_int_equal(rmdir(folders), 0);
}

static void what_cannot_be_written_is_named(void **state) {
  FILE *file = NULL;
  assert_int_equal(ad_unfinished_write("/nowhere/file", put_words, "", &file), AD_IO);
  assert_says("/nowhere/file");
  assert_null(file);
  assert_int_equal(ad_unfinished_write(folder, put_words, "", &file), AD_IO);  // the name belongs to a folder
  assert_null(file);
}

/* The bits of a token come from the system's source of random bits, not from the clock, whose tokens have the same two
 * lowest bits. Were they drawn the same by chance, 64 tokens would agree in them once in 2^126 runs. */
static void a_token_is_not_made_of_the_time(void **state) {
  long long first = ad_token_bits(), differ = 0;
  for (int i = 1; i < 64; i++) differ |= ad_token_bits() ^ first;
  assert_true(differ & 3);
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
  const struct CMUnitTest tests[] = {
      IN_FOLDER(a_file_is_replaced_when_it_is_whole),
      IN_FOLDER(a_writer_that_fails_leaves_what_was_there),
      IN_FOLDER(a_link_makes_way),
      IN_FOLDER(a_file_that_stays_open_takes_more),
      IN_FOLDER(what_is_no_file_is_not_replaced),
      IN_FOLDER(what_cannot_be_written_is_named),
      cmocka_unit_test(a_token_is_not_made_of_the_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
