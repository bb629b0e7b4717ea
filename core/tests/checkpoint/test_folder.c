/* Tests names in a folder of checkpoints: which of them are complete checkpoints, which are removed, and which stay. */
#include <dirent.h>
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
#include "checkpoint/checkpoint_folder.h"

#define must(call) assert_int_equal((call), AD_OK)
#define TOKEN ".0123456789abcdef.tmp"

static char folder[64];

static const char *in_folder(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-checkpoints-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
  char command[96];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command);
}

static void make_inside(const char *name) { assert_int_equal(mkdir(in_folder(name), 0777), 0); }
static int is_there(const char *name) { return !access(in_folder(name), F_OK); }

static void write_file(const char *name) {
  FILE *file = fopen(in_folder(name), "w");
  assert_non_null(file);
  fclose(file);
}

static void make_checkpoint(int64_t step) {
  char name[64];
  snprintf(name, sizeof name, "step-%lld", (long long)step);
  make_inside(name);
}

static void a_checkpoint_is_named_by_its_step_alone(void **state) {
  static const char *const others[] = {"step-",
                                       "step-05",
                                       "step--1",
                                       "step-5x",
                                       "step-+7",
                                       "step- 8",
                                       "step-9.tmp",
                                       "Step-10",
                                       "step11",
                                       "xstep-12",
                                       "step-99999999999999999999"};
  int64_t steps[AD_CHECKPOINTS_LISTED];
  assert_int_equal(ad_checkpoint_steps(in_folder("nowhere"), steps), 0);
  assert_int_equal(ad_checkpoint_newest(in_folder("nowhere")), -1);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) make_inside(others[i]);
  assert_int_equal(ad_checkpoint_steps(folder, steps), 0);
  assert_int_equal(ad_checkpoint_newest(folder), -1);
  static const int64_t made[] = {3, 0, 12, 7, 100, 9223372036854775807};
  static const int64_t listed[] = {9223372036854775807, 100, 12, 7, 3, 0};
  for (int i = 0; i < 6; i++) make_checkpoint(made[i]);
  assert_int_equal(ad_checkpoint_steps(folder, steps), 6);
  assert_memory_equal(steps, listed, sizeof listed);
  assert_true(ad_checkpoint_newest(folder) == listed[0]);
}

/* The oldest checkpoints are left out if there are more than are listed, in whatever order the folder has them. */
static void the_newest_are_listed(void **state) {
  enum { EXTRA = 3 };
  int64_t steps[AD_CHECKPOINTS_LISTED + 1];
  for (int made = 1; made <= AD_CHECKPOINTS_LISTED + EXTRA; made++) {
    make_checkpoint((made * 37) % 101);
    steps[AD_CHECKPOINTS_LISTED] = -7;
    int count = ad_checkpoint_steps(folder, steps);
    assert_int_equal(count, made < AD_CHECKPOINTS_LISTED ? made : AD_CHECKPOINTS_LISTED);
    assert_int_equal(steps[AD_CHECKPOINTS_LISTED], -7);
    for (int i = 1; i < count; i++) assert_true(steps[i - 1] > steps[i]);
    int newer = 0;
    for (int m = 1; m <= made; m++) newer += (m * 37) % 101 > steps[count - 1];
    assert_int_equal(newer, count - 1);
  }
}

static void a_path_has_the_step_and_the_token(void **state) {
  char *path;
  must(ad_checkpoint_path("a/b", 12, NULL, &path));
  assert_string_equal(path, "a/b/step-12");
  ad_release(path);
  must(ad_checkpoint_path("a/b", 0, "7f", &path));
  assert_string_equal(path, "a/b/step-0.7f.tmp");
  ad_release(path);
}

/* Returns the number of entries whose names begin with `begin` and end with `end`. */
static int count_named(const char *begin, const char *end) {
  int count = 0;
  DIR *at = opendir(folder);
  assert_non_null(at);
  for (const struct dirent *entry = readdir(at); entry; entry = readdir(at)) {
    size_t length = strlen(entry->d_name), tail = strlen(end);
    count +=
        !strncmp(entry->d_name, begin, strlen(begin)) && length >= tail && !strcmp(entry->d_name + length - tail, end);
  }
  closedir(at);
  return count;
}

static int reported;
static void count_reported(void *context, ad_log_level level, const char *message) {
  reported += level == AD_LOG_INFO && strstr(message, ".others") != NULL;
}

/* Unfinished checkpoints of a killed training are removed. If one of their folders has a file that addend did not
 * write, the folder is kept under another name. */
static void unfinished_checkpoints_are_cleaned_away(void **state) {
  static const char *const own[] = {"rank-0.safetensors", "rank-12.safetensors", "rank-3.safetensors" TOKEN,
                                    "index.json", "index.json" TOKEN};
  static const char *const others[] = {
      "notes",          "rank-.safetensors", "rank-1x.safetensors", "rank-1.safetensors.bak", "myrank-1.safetensors",
      "index.json.bak", "xindex.json"};
  enum { OTHERS = sizeof others / sizeof *others };
  char name[128];
  make_checkpoint(4);
  make_inside("step-5.7f.tmp");
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    snprintf(name, sizeof name, "step-5.7f.tmp/%s", own[i]);
    write_file(name);
  }
  for (int i = 0; i < OTHERS; i++) {
    snprintf(name, sizeof name, "step-6.%d.tmp", i);
    make_inside(name);
    snprintf(name, sizeof name, "step-6.%d.tmp/index.json", i);
    write_file(name);
    snprintf(name, sizeof name, "step-6.%d.tmp/%s", i, others[i]);
    write_file(name);
  }
  make_inside("step-7.tmpx"), make_inside("other.tmp");
  ad_set_log(count_reported, NULL);
  must(ad_checkpoint_clean(folder));
  ad_set_log(NULL, NULL);
  assert_int_equal(reported, OTHERS);
  assert_true(is_there("step-4") && is_there("step-7.tmpx") && is_there("other.tmp"));
  assert_int_equal(count_named("step-5", ""), 0);
  assert_int_equal(count_named("step-6", ".tmp"), 0);
  assert_int_equal(count_named("step-6", ".others"), OTHERS);
  assert_int_equal(ad_checkpoint_clean(in_folder("nowhere")), AD_IO);
}

static void the_last_ones_up_to_a_step_are_kept(void **state) {
  static const struct {
    int64_t step, keep;
    const char *left;
  } cases[] = {
      {9, 1, " 9"},     {9, 2, " 7 9"}, {9, 3, " 5 7 9"}, {9, 4, " 3 5 7 9"}, {9, 5, " 3 5 7 9"}, {7, 1, " 7 9"},
      {7, 2, " 5 7 9"}, {8, 1, " 7 9"}, {6, 1, " 5 7 9"}, {3, 1, " 3 5 7 9"}, {2, 1, " 3 5 7 9"}, {10, 0, ""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char left[64] = "", name[48];
    assert_int_equal(make_folder(NULL), 0);
    for (int64_t step = 3; step < 10; step += 2) make_checkpoint(step);
    snprintf(name, sizeof name, "step-%lld.old.tmp", (long long)cases[i].step);
    make_inside(name);
    make_inside("step-77.old.tmp");
    must(ad_checkpoint_remove_older(folder, cases[i].step, cases[i].keep));
    for (int64_t step = 0; step < 20; step++) {
      char checkpoint[48];
      snprintf(checkpoint, sizeof checkpoint, "step-%lld", (long long)step);
      if (is_there(checkpoint)) sprintf(strchr(left, 0), " %lld", (long long)step);
    }
    assert_string_equal(left, cases[i].left);
    assert_false(is_there(name));
    assert_true(is_there("step-77.old.tmp"));  // of another step
    assert_int_equal(count_named("step-", ".tmp"), 1);
    assert_int_equal(remove_folder(NULL), 0);
  }
}

static void a_new_one_takes_the_name_of_one_of_its_step(void **state) {
  make_inside("step-3.7f.tmp"), write_file("step-3.7f.tmp/index.json");
  must(ad_checkpoint_place(folder, 3, "7f"));
  assert_true(is_there("step-3/index.json"));
  assert_int_equal(count_named("step-", ".tmp"), 0);
  make_inside("step-3.8f.tmp"), write_file("step-3.8f.tmp/rank-0.safetensors");
  must(ad_checkpoint_place(folder, 3, "8f"));
  assert_true(is_there("step-3/rank-0.safetensors") && is_there("step-3.old.tmp/index.json"));
  // there is no such unfinished checkpoint: the earlier checkpoint gets its name back
  assert_int_equal(ad_checkpoint_place(folder, 3, "9f"), AD_IO);
  assert_true(is_there("step-3/rank-0.safetensors"));
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
  const struct CMUnitTest tests[] = {
      IN_FOLDER(a_checkpoint_is_named_by_its_step_alone),    IN_FOLDER(the_newest_are_listed),
      cmocka_unit_test(a_path_has_the_step_and_the_token),   IN_FOLDER(unfinished_checkpoints_are_cleaned_away),
      cmocka_unit_test(the_last_ones_up_to_a_step_are_kept), IN_FOLDER(a_new_one_takes_the_name_of_one_of_its_step),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
