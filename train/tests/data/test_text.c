/* Tests text as training data: which bytes a sample holds, whichever rank draws it; which rows a rank reads; and what
 * makes a text unusable. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "allocations.h"
#include "says.h"
#include "addend/data.h"
#include "base/memory.h"

#define must(call) assert_int_equal((call), AD_OK)

static char folder[64];

static const char *in_folder(const char *name) {
  static char path[4][160];
  static int next;
  char *out = path[next++ % 4];
  snprintf(out, sizeof path[0], "%s/%s", folder, name);
  return out;
}

static void write_file(const char *name, const char *text) {
  FILE *file = fopen(in_folder(name), "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static int make_files(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-text-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  mkdir(in_folder("tree"), 0755);
  mkdir(in_folder("tree/b"), 0755);
  mkdir(in_folder("hollow"), 0755);
  write_file("tree/c", "cccccccccc");
  write_file("tree/a", "aaaaaaaaaa");
  write_file("tree/b/x", "xxxxxxxxxx");
  write_file("empty", "");
  write_file("ten", "0123456789");
  return symlink("c", in_folder("tree/link")) || symlink("tree", in_folder("to_tree"));
}

static int remove_files(void **state) {
  const char *const names[] = {"tree/link", "to_tree", "tree/c", "tree/a", "tree/b/x", "tree/b",
                               "tree",      "hollow",  "empty",  "ten",    "numbers"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) remove(in_folder(names[i]));
  return rmdir(folder);
}

static ad_text_data *open_one(const char *path, int64_t seq, double validation) {
  ad_text_data *text;
  assert_int_equal(ad_text_data_open(&path, 1, seq, validation, &text), AD_OK);
  return text;
}

/* The text is refused with these facts; the sentence is in the list of the case. */
static void wrong(const char *name, const char *path, int64_t seq, double validation, ad_status status,
                  const char *const *facts) {
  ad_text_data *text = NULL;
  assert_int_equal(ad_text_data_open(&path, 1, seq, validation, &text), status);
  assert_null(text);
  assert_says_in(name, ad_last_error(), facts);
  assert_int_equal(ad_text_data_check(&path, 1, seq, validation), status);
  assert_says_in(name, ad_last_error(), facts);
}

static void files_are_read_in_name_order_and_links_inside_are_not_followed(void **state) {
  ad_text_data *text = open_one(in_folder("to_tree"), 29, 0);  // one window fits: the whole text
  assert_int_equal(ad_text_data_bytes(text), 30);
  int32_t tokens[29], targets[29];
  int64_t counted;
  ad_batch_options options = {.size = sizeof options, .seed = 1, .global_batch = 1};
  must(ad_text_data_rows(text, &options, 0, 0, 1, tokens, targets, &counted));
  assert_int_equal(counted, 29);
  for (int i = 0; i < 29; i++) {
    assert_int_equal(tokens[i], "axc"[i / 10]);
    assert_int_equal(targets[i], "axc"[(i + 1) / 10]);
  }
  ad_text_data_close(text);
}

static void what_is_wrong_with_a_text_is_reported(void **state) {
  wrong("no file", in_folder("nowhere"), 4, 0, AD_IO, SAYS_FACTS(in_folder("nowhere"), "No such"));
  wrong("empty", in_folder("empty"), 4, 0, AD_IO, SAYS_FACTS(in_folder("empty")));
  wrong("an empty folder", in_folder("hollow"), 4, 0, AD_IO, SAYS_FACTS(in_folder("hollow")));
  wrong("a device", "/dev/null", 4, 0, AD_IO, SAYS_FACTS("/dev/null"));
  wrong("too short", in_folder("ten"), 10, 0, AD_INVALID, SAYS_FACTS("10", "11"));
  wrong("too short to train on", in_folder("ten"), 9, 0.2, AD_INVALID, SAYS_FACTS("8", "9", "10"));
  wrong("too short to validate on", in_folder("ten"), 3, 0.2, AD_INVALID, SAYS_FACTS("2", "3", "4"));
  wrong("seq", in_folder("ten"), 0, 0, AD_INVALID, SAYS_FACTS("1", "0"));
  wrong("validation", in_folder("ten"), 3, 1, AD_INVALID, SAYS_FACTS("data.validation", "0", "1"));
  ad_text_data *text;
  assert_int_equal(ad_text_data_open(NULL, 0, 3, 0, &text), AD_INVALID);
}

static void the_last_part_of_every_file_is_for_validation(void **state) {
  ad_text_data *text = open_one(in_folder("ten"), 3, 0.5);
  int32_t tokens[3 * 50], targets[3 * 50];
  int64_t counted;
  for (int validation = 0; validation < 2; validation++) {
    ad_batch_options options = {.size = sizeof options, .seed = 7, .global_batch = 50, .validation = validation};
    must(ad_text_data_rows(text, &options, 0, 0, 50, tokens, targets, &counted));
    for (int i = 0; i < 150; i++) {
      assert_in_range(tokens[i], '0' + 5 * validation, '4' + 5 * validation);
      assert_int_equal(targets[i], tokens[i] + 1);
    }
  }
  ad_text_data_close(text);
}

static void no_validation_part_gives_rows_that_do_not_count(void **state) {
  ad_text_data *text = open_one(in_folder("ten"), 3, 0);
  int32_t tokens[6], targets[6];
  int64_t counted = 5;
  ad_batch_options options = {.size = sizeof options, .seed = 7, .global_batch = 2, .validation = 1};
  must(ad_text_data_rows(text, &options, 0, 0, 2, tokens, targets, &counted));
  assert_int_equal(counted, 0);
  for (int i = 0; i < 6; i++) assert_int_equal(targets[i], -1);
  ad_text_data_close(text);
}

static void a_sample_depends_on_its_global_index_alone(void **state) {
  ad_text_data *text = open_one(in_folder("tree"), 5, 0);
  ad_batch_options options = {.size = sizeof options, .seed = 3, .global_batch = 7};
  int32_t whole[35], whole_targets[35], tokens[35], targets[35];
  int64_t all, counted;
  must(ad_text_data_rows(text, &options, 4, 0, 7, whole, whole_targets, &all));
  for (int64_t first = 0; first < 7; first++) {
    for (int64_t count = 0; first + count <= 7; count++) {
      must(ad_text_data_rows(text, &options, 4, first, count, tokens, targets, &counted));
      assert_int_equal(counted, count * 5);
      assert_memory_equal(tokens, whole + first * 5, (size_t)count * 5 * sizeof *tokens);
      assert_memory_equal(targets, whole_targets + first * 5, (size_t)count * 5 * sizeof *tokens);
    }
  }
  ad_text_data_close(text);
}

static void tokens_and_targets_are_read_and_counted_apart(void **state) {
  ad_text_data *text = open_one(in_folder("tree"), 5, 0);
  double valid[] = {0.6, 1};
  ad_batch_options options = {.size = sizeof options, .seed = 3, .global_batch = 3, .valid = valid, .valid_count = 2};
  int32_t both[2][15], alone[2][15];
  int64_t counted[4];
  must(ad_text_data_rows(text, &options, 1, 0, 3, both[0], both[1], &counted[0]));
  must(ad_text_data_rows(text, &options, 1, 0, 3, alone[0], NULL, &counted[1]));
  must(ad_text_data_rows(text, &options, 1, 0, 3, NULL, alone[1], &counted[2]));
  must(ad_text_data_rows(text, &options, 1, 0, 3, NULL, NULL, &counted[3]));
  assert_memory_equal(both, alone, sizeof both);
  for (int i = 0; i < 4; i++) assert_int_equal(counted[i], 3 + 5 + 3);
  options.validation = 1;  // the text has no validation part
  must(ad_text_data_rows(text, &options, 1, 0, 3, alone[0], NULL, &counted[0]));
  must(ad_text_data_rows(text, &options, 1, 0, 3, NULL, alone[1], &counted[0]));
  for (int i = 0; i < 15; i++) assert_true(alone[0][i] == 0 && alone[1][i] == -1);
  ad_text_data_close(text);
}

static void seeds_steps_and_samples_differ(void **state) {
  ad_text_data *text = open_one("/proc/self/exe", 64, 0);
  int32_t first[64 * 4], other[64 * 4], targets[64 * 4];
  int64_t counted;
  ad_batch_options options = {.size = sizeof options, .seed = 1, .global_batch = 4},
                   seeded = {.size = sizeof seeded, .seed = 2, .global_batch = 4};
  must(ad_text_data_rows(text, &options, 0, 0, 4, first, targets, &counted));
  must(ad_text_data_rows(text, &seeded, 0, 0, 4, other, targets, &counted));
  assert_memory_not_equal(first, other, sizeof first);
  must(ad_text_data_rows(text, &options, 1, 0, 4, other, targets, &counted));
  assert_memory_not_equal(first, other, sizeof first);
  ad_text_data_close(text);
}

/* Writes a text that looks different at every place: numbers, one after another. */
static void write_numbers(const char *name) {
  FILE *file = fopen(in_folder(name), "w");
  assert_non_null(file);
  for (int i = 0; i < 100000; i++) fprintf(file, "%05d ", i);
  fclose(file);
}

/* Every sample of every step has its own number, by which its place is drawn. */
static void no_sample_comes_back_in_a_later_step(void **state) {
  enum { STEPS = 8, BATCH = 6, SEQ = 12, SAMPLES = STEPS * BATCH };
  write_numbers("numbers");
  ad_text_data *text = open_one(in_folder("numbers"), SEQ, 0);
  int32_t tokens[SAMPLES][SEQ], targets[SAMPLES][SEQ];
  int64_t counted;
  ad_batch_options options = {.size = sizeof options, .seed = 1, .global_batch = BATCH};
  for (int64_t step = 0; step < STEPS; step++)
    must(ad_text_data_rows(text, &options, step, 0, BATCH, tokens[step * BATCH], targets[step * BATCH], &counted));
  for (int a = 0; a < SAMPLES; a++)
    for (int b = 0; b < a; b++) assert_memory_not_equal(tokens[a], tokens[b], sizeof tokens[a]);
  ad_text_data_close(text);
}

static void every_place_of_the_text_is_drawn(void **state) {
  ad_text_data *text = open_one(in_folder("ten"), 1, 0);
  int seen[9] = {0};
  int32_t tokens[400], targets[400];
  int64_t counted;
  ad_batch_options options = {.size = sizeof options, .seed = 1, .global_batch = 400};
  must(ad_text_data_rows(text, &options, 0, 0, 400, tokens, targets, &counted));
  for (int i = 0; i < 400; i++) seen[tokens[i] - '0']++;
  for (int i = 0; i < 9; i++) assert_in_range(seen[i], 20, 80);
  ad_text_data_close(text);
}

static void fractions_of_a_sample_count(void **state) {
  ad_text_data *text = open_one(in_folder("tree"), 10, 0);
  const double valid[] = {1, 0.5, 0, 0.04};
  ad_batch_options options = {.size = sizeof options, .seed = 1, .global_batch = 6, .valid = valid, .valid_count = 4};
  const int expected[] = {10, 5, 0, 0, 10, 5};
  int32_t tokens[60], targets[60];
  int64_t counted;
  must(ad_text_data_rows(text, &options, 0, 0, 6, tokens, targets, &counted));
  assert_int_equal(counted, 30);
  for (int row = 0; row < 6; row++)
    for (int i = 0; i < 10; i++) assert_int_equal(targets[row * 10 + i] >= 0, i < expected[row]);
  must(ad_text_data_rows(text, &options, 0, 2, 2, tokens, targets, &counted));
  assert_int_equal(counted, 0);
  ad_text_data_close(text);
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  const char *path = in_folder("tree");
  ad_text_data *text = NULL;
  ad_status status = AD_MEMORY;
  for (long n = 1; status == AD_MEMORY; n++) {
    ad_memory_fail_at(n);
    status = ad_text_data_open(&path, 1, 4, 0.2, &text);
    assert_true(reports_allocation(n, status));
    if (status) assert_null(text);
    assert_true(n < 100);
  }
  ad_text_data_close(text);
}

static void a_text_that_is_not_read_has_its_size_and_its_counts(void **state) {
  const char *path = in_folder("tree");
  ad_text_data *read = open_one(path, 4, 0.2), *unread;
  assert_int_equal(ad_text_data_open_unread(&path, 1, 4, 0.2, &unread), AD_OK);
  assert_int_equal(ad_text_data_bytes(unread), ad_text_data_bytes(read));
  double valid[] = {1, 0.5, 0};
  ad_batch_options options = {.size = sizeof options, .seed = 3, .global_batch = 9, .valid = valid, .valid_count = 3};
  int32_t tokens[20], targets[20];
  for (options.validation = 0; options.validation < 2; options.validation++) {
    int64_t counted[2];
    must(ad_text_data_rows(read, &options, 2, 3, 5, tokens, targets, &counted[0]));
    must(ad_text_data_rows(unread, &options, 2, 3, 5, NULL, NULL, &counted[1]));
    assert_true(counted[0] > 0 && counted[0] == counted[1]);
  }
  ad_text_data_close(read);
  ad_text_data_close(unread);
}

/* An unreadable file is found before it is read. The test runs as another user, since root may read everything. */
static void a_file_that_may_not_be_read_is_reported_when_it_is_found(void **state) {
  const char *path = in_folder("ten");
  assert_int_equal(chmod(folder, 0711), 0);
  assert_int_equal(chmod(path, 0), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    if (!geteuid() && setresuid(47013, 47013, 47013)) _exit(9);
    ad_status status = ad_text_data_check(&path, 1, 4, 0);
    _exit(status != AD_IO || says_missing(ad_last_error(), SAYS_FACTS(path, "Permission denied")) != NULL);
  }
  int ended = -1;
  assert_int_equal(waitpid(child, &ended, 0), child);
  assert_int_equal(ended, 0);
  assert_int_equal(chmod(path, 0644), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_are_read_in_name_order_and_links_inside_are_not_followed),
      cmocka_unit_test(what_is_wrong_with_a_text_is_reported),
      cmocka_unit_test(a_file_that_may_not_be_read_is_reported_when_it_is_found),
      cmocka_unit_test(the_last_part_of_every_file_is_for_validation),
      cmocka_unit_test(no_validation_part_gives_rows_that_do_not_count),
      cmocka_unit_test(a_sample_depends_on_its_global_index_alone),
      cmocka_unit_test(tokens_and_targets_are_read_and_counted_apart),
      cmocka_unit_test(seeds_steps_and_samples_differ),
      cmocka_unit_test(no_sample_comes_back_in_a_later_step),
      cmocka_unit_test(every_place_of_the_text_is_drawn),
      cmocka_unit_test(fractions_of_a_sample_count),
      cmocka_unit_test(a_text_that_is_not_read_has_its_size_and_its_counts),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, make_files, remove_files);
}
