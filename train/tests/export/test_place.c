/* Tests where an export is written and what it replaces: whichever renaming fails, an earlier export is still there. */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>
#include "export/place.h"
#include "files/file.h"

/* The C library's rename is replaced here: those of `fails` (bit 0: the first) fail. */
static unsigned fails, renames;

int rename(const char *from, const char *to) {
  if (fails >> renames++ & 1) return errno = EIO, -1;
  return (int)syscall(SYS_renameat2, -100, from, -100, to, 0);
}

static char base[32], folder[64];

static int make_base(void **state) {
  snprintf(base, sizeof base, "/tmp/addend-place-XXXXXX");
  if (!mkdtemp(base)) return 1;
  snprintf(folder, sizeof folder, "%s/out", base);
  fails = renames = 0;
  return 0;
}
static int remove_base(void **state) {
  (void)!ad_folder_remove(folder);
  return ad_folder_remove(base) != AD_OK;
}

static void write_text(const char *in, const char *name, const char *text) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", in, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

/* Checks that the file in the export has this text; NULL: there is no such file. */
static void has_text(const char *name, const char *text) {
  char path[128], found[64] = "";
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "r");
  assert_int_equal(file != NULL, text != NULL);
  if (!file) return;
  assert_non_null(fgets(found, sizeof found, file));
  assert_string_equal(found, text);
  fclose(file);
}

/* How many entries the folder that has the export in it holds. */
static int entries(void) {
  int count = 0;
  DIR *opened = opendir(base);
  for (const struct dirent *entry = readdir(opened); entry; entry = readdir(opened)) count += *entry->d_name != '.';
  closedir(opened);
  return count;
}

static ad_status export_text(const char *text, int overwrite, ad_status written) {
  ad_export_place place;
  ad_status status = ad_export_begin(folder, overwrite, &place);
  if (status) return status;
  write_text(place.written, "config.json", text);
  renames = 0;
  return ad_export_end(&place, written);
}

/* Where an earlier export is, the first renaming (of the new folder onto it) fails by itself, since it is not empty. */
static void an_earlier_export_survives_a_renaming_that_fails(void **state) {
  assert_int_equal(export_text("earlier", 0, AD_OK), AD_OK);
  has_text("config.json", "earlier");
  assert_int_equal(export_text("new", 1, AD_INVALID), AD_INVALID);
  has_text("config.json", "earlier");
  for (fails = 1; fails < 8; fails++) {
    int may = !(fails & 6); /* bit 1: the earlier export's, bit 2: the new one's */
    assert_int_equal(export_text("new", 1, AD_OK), may ? AD_OK : AD_IO);
    assert_int_equal(entries(), 1);
    has_text("config.json", may ? "new" : "earlier");
    fails &= 7;
    unsigned kept = fails;
    fails = 0;
    assert_int_equal(export_text("earlier", 1, AD_OK), AD_OK);
    fails = kept;
  }
  fails = 0;
  assert_int_equal(export_text("new", 1, AD_OK), AD_OK);
  has_text("config.json", "new");
  assert_int_equal(entries(), 1);
}

/* Only an earlier export is replaced, and only if that is wanted. */
static void other_files_are_not_replaced(void **state) {
  assert_int_equal(mkdir(folder, 0700), 0);
  assert_int_equal(export_text("one", 0, AD_OK), AD_OK); /* an empty folder is taken */
  assert_int_equal(export_text("two", 0, AD_OK), AD_INVALID);
  has_text("config.json", "one");
  static const char *const theirs[] = {"model.safetensors", "model-00001-of-00002.safetensors",
                                       "model.safetensors.index.json", "tokenizer.json"},
                           *const others[] = {"notes.txt",      "model",          "model.bin",
                                              ".safetensors",   "my.safetensors", "model.safetensors.old",
                                              "config.json.old"};
  for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) {
    write_text(folder, theirs[i], "x");
    assert_int_equal(export_text("three", 1, AD_OK), AD_OK);
    has_text(theirs[i], NULL);
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    char path[128];
    write_text(folder, others[i], "x");
    assert_int_equal(export_text("four", 1, AD_OK), AD_INVALID);
    has_text("config.json", "three");
    has_text(others[i], "x");
    snprintf(path, sizeof path, "%s/%s", folder, others[i]);
    unlink(path);
  }
}

/* Files that somebody put there while the export was written are not lost. */
static void what_came_meanwhile_is_not_replaced(void **state) {
  for (int overwrite = 0; overwrite < 2; overwrite++) {
    ad_export_place place;
    assert_int_equal(ad_export_begin(folder, overwrite, &place), AD_OK);
    write_text(place.written, "config.json", "new");
    assert_int_equal(mkdir(folder, 0700), 0);
    write_text(folder, overwrite ? "notes.txt" : "config.json", "another's");
    assert_int_equal(ad_export_end(&place, AD_OK), AD_INVALID);
    has_text(overwrite ? "notes.txt" : "config.json", "another's");
    assert_int_equal(entries(), 1);
    assert_int_equal(ad_folder_remove(folder), AD_OK);
  }
}

/* Slashes at the end are no part of the name, and the root of all folders is never free. */
static void slashes_at_the_end_are_left_out(void **state) {
  for (int slashes = 1; slashes < 4; slashes++) {
    char name[80];
    ad_export_place place;
    snprintf(name, sizeof name, "%s%.*s", folder, slashes, "///");
    assert_int_equal(ad_export_begin(name, 0, &place), AD_OK);
    write_text(place.written, "config.json", "new");
    assert_int_equal(ad_export_end(&place, AD_OK), AD_OK);
    has_text("config.json", "new");
    assert_int_equal(ad_folder_remove(folder), AD_OK);
    for (int overwrite = 0; overwrite < 2; overwrite++) {
      snprintf(name, sizeof name, "%.*s", slashes, "///");
      assert_int_equal(ad_export_begin(name, overwrite, &place), AD_INVALID);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(an_earlier_export_survives_a_renaming_that_fails, make_base, remove_base),
      cmocka_unit_test_setup_teardown(other_files_are_not_replaced, make_base, remove_base),
      cmocka_unit_test_setup_teardown(what_came_meanwhile_is_not_replaced, make_base, remove_base),
      cmocka_unit_test_setup_teardown(slashes_at_the_end_are_left_out, make_base, remove_base),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
